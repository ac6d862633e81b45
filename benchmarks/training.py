"""How fast many small networks train: ours against the loops that one would write.

    python benchmarks/training.py [--device cuda] [--epochs 1500] [--depths 2 3 5 8 13] [--runs 6]

(a) plain loop, a process for each run   (b) plain loop, all runs in one process   (b') b without the
DataLoader, on tensors that lie ready    (c) ncpipe's batches

Each contender has a process of its own, on digits-sized data (500 samples of 64 numbers, full batch, Adam,
L-RN1 of width 64, float32). What is timed are a few hundred epochs; (a) is charged, on top, with starting
Python and torch once in --epochs of them. Roofline: floating-point operations of the products and bytes
that a step cannot but move (what autograd keeps, written and read; the optimizer's buffers), over the
ceilings that a large product and a large copy reach here.
"""

import argparse
import dataclasses
import json
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.flop_counter import FlopCounterMode

from ncpipe.commands.batch import worker_count
from ncpipe.datasets.prepared import Prepared, Split
from ncpipe.models.build import build_model, input_shape, penalised
from ncpipe.params import load_params
from ncpipe.specs import Compute, Run
from ncpipe.training.cost import BUFFERS, kept_bytes
from ncpipe.training.device import prepare_device
from ncpipe.training.loop import train_batch
from ncpipe.training.session import Session

PARAMS = Path(__file__).resolve().parent.parent / "params.yaml"
TIMED = 300  # epochs


def digits_sized(samples: int = 500) -> Prepared:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(10).repeat_interleave(samples // 10)
    train = Split(torch.randn(samples, 1, 8, 8, generator=generator), labels)
    return Prepared("image", 10, None, train, train[torch.arange(0, samples, 10)], {})


def runs_at(depth: int, count: int, epochs: int) -> list[Run]:
    shipped = load_params(PARAMS).experiment("digits_rn1")
    spec = dataclasses.replace(shipped, epochs=epochs, log_every=epochs)
    return [Run("digits", depth, seed, spec) for seed in range(count)]


def plain_loop(run: Run, data: Prepared, device: torch.device, loaded: bool) -> None:
    """One network: a DataLoader whose batch is all there is, the penalty in the loss, fused Adam.

    loaded: without the DataLoader.
    """
    network = build_model(run.spec.model, input_shape(data, run.spec.model), 10, run.depth, run.seed)
    network = network.to(device)
    matrices = [p for name, p in network.named_parameters() if penalised(name)]
    optimizer = torch.optim.Adam(network.parameters(), 0.005, fused=True)
    samples = TensorDataset(data.train.inputs.flatten(1), data.train.labels)
    loader = DataLoader(samples, batch_size=len(samples), shuffle=True)
    ready = [tuple(tensor.to(device) for tensor in samples.tensors)]
    for _ in range(run.spec.epochs):
        for inputs, labels in ready if loaded else loader:
            loss = F.cross_entropy(network(inputs.to(device)), labels.to(device))
            loss = loss + 0.0025 * sum((matrix**2).sum() for matrix in matrices)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def ours(runs: list[Run], data: Prepared, compute: Compute) -> None:
    """As `ncpipe sweep` trains: batches side by side, a thread for each."""
    from concurrent.futures import ThreadPoolExecutor

    place = prepare_device(compute)
    workers = worker_count(compute, place, None)

    def work(batch: list[Run]) -> None:
        prepare_device(compute)
        train_batch(batch, data, place, compute.precision)

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(work, [runs[index::workers] for index in range(workers) if runs[index::workers]]))


def contend(name: str, depth: int, count: int, compute: Compute) -> None:
    """In a process of its own: prints the seconds of one epoch of one run."""
    data = digits_sized()
    device = torch.device("cuda" if compute.device == "cuda" else "cpu")
    torch.set_flush_denormal(True)

    def train(epochs: int) -> float:
        runs = runs_at(depth, count if name == "ours" else 1, epochs)
        start = time.perf_counter()
        ours(runs, data, compute) if name == "ours" else plain_loop(runs[0], data, device, name == "tensors")
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    train(20)
    seconds = min(train(TIMED) - train(1) for _ in range(3)) / (TIMED - 1)
    print(json.dumps(seconds / (count if name == "ours" else 1)))


def child(name: str, depth: int, count: int, device: str) -> float:
    arguments = ["--contender", name, "--depths", str(depth), "--runs", str(count), "--device", device]
    command = [sys.executable, __file__, *arguments]
    return float(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def start_up() -> float:
    """Seconds until a process has what a training loop needs."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch, torch.utils.data"], check=True)
    return time.perf_counter() - start


def ceilings(device: torch.device) -> tuple[float, float]:
    """Operations a second of a large product, and bytes a second of a large copy."""
    size = 8192 if device.type == "cuda" else 2048
    left = torch.randn(size, size, device=device)
    right, target = torch.randn_like(left), torch.empty_like(left)
    big = torch.empty(2**26, device=device)
    copy = torch.empty_like(big)
    results = []
    for call, amount in (
        (lambda: torch.mm(left, right, out=target), 2 * size**3),
        (lambda: copy.copy_(big), 8 * big.numel()),
    ):
        times = []
        for _ in range(7):
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
            call()
            if device.type == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
        results.append(amount / min(times))
    return results[0], results[1]


def least_work(depth: int) -> tuple[float, float]:
    """Operations and bytes of one step of one run."""
    run, data = runs_at(depth, 1, 1)[0], digits_sized()
    session = Session([run], data, torch.device("cpu"), torch.float32)
    with FlopCounterMode(display=False) as counter:
        session.loss_and_gradient(session.train)
    kept = kept_bytes(session.stack, run, data, len(data.train))
    return counter.get_total_flops(), 2 * kept + BUFFERS * session.stack.values.nbytes


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--epochs", type=int, default=1500)
    parser.add_argument("--depths", type=int, nargs="+", default=[2, 3, 5, 8, 13])
    parser.add_argument("--runs", type=int, default=6)
    parser.add_argument("--contender", choices=["plain", "tensors", "ours"])
    options = parser.parse_args()
    compute = Compute(options.device, 1, "float32")
    if options.contender:
        contend(options.contender, options.depths[0], options.runs, compute)
        return
    device = torch.device(options.device)
    operations, bandwidth = ceilings(device)
    begin = min(start_up() for _ in range(3))
    cores = torch.get_num_threads()
    print(
        f"L-RN1, 500 samples, width 64, {options.epochs} epochs, {options.device}, {cores} cores; "
        f"ceilings {operations / 1e9:.0f} GFLOP/s, {bandwidth / 1e9:.1f} GB/s; start {begin:.1f} s"
    )
    print("ms a run and epoch:  (b)    (b')   (c)  | ratios: (a)/(c)  (b)/(c)  (b')/(c) | roofline/(c)")
    seconds = {"a": 0.0, "b": 0.0, "b'": 0.0, "c": 0.0}
    for depth in options.depths:
        plain, ready = (child(name, depth, 1, options.device) for name in ("plain", "tensors"))
        together = child("ours", depth, options.runs, options.device)
        alone = plain + begin / options.epochs
        for name, time_taken in zip(seconds, (alone, plain, ready, together), strict=True):
            seconds[name] += time_taken
        work, moved = least_work(depth)
        share = max(work / operations, moved / bandwidth) / together
        print(
            f"L = {depth:<3} {1e3 * plain:>17.2f} {1e3 * ready:>7.2f} {1e3 * together:>6.2f} "
            f"| {alone / together:>14.1f} {plain / together:>8.1f} {ready / together:>9.1f} | {share:>9.0%}"
        )
    a, b, ready, ours_ = seconds.values()
    print(f"the grid: {a / ours_:.1f} x (a), {b / ours_:.1f} x (b), {ready / ours_:.1f} x (b')")


if __name__ == "__main__":
    main()
