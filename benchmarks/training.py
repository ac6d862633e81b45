"""How fast many small networks train: ours against the loops that one would write.

    python benchmarks/training.py [--device cuda] [--epochs 1500] [--runs 6] [--seconds 6] [--threads 2]
        [--depths 2 13 34] [--samples 500 5000] [--batch-sizes full 128] [--architectures L-RN1 L-T11]

(a) plain loop, a process for each run, one after the other   (b) plain loop, all runs in one process
(b') b without the DataLoader, on tensors that lie ready      (c) ncpipe's batches

A row for each setting, a contender in a process of its own. The data are digits-sized (images of 8 x 8, a
transformer reads four patches of 4 x 4), the networks 64 wide, Adam, float32; all take the same steps, the
short last mini-batch of an epoch included. Timed are as many epochs as fit into a fifth of --seconds, less
one epoch just before (on a GPU five, in which ncpipe records its steps), five to fifteen times, until half of
the differences lie within a tenth of their median, which counts; where it is not positive, or they never do,
stands `-`: not measured. A plain loop has --threads, by default all cores; ncpipe one for each batch, and as
many batches as cores. Building the networks is left out; (a) is charged, on top, with starting Python and
torch once in --epochs. Roofline: floating-point operations of a plain network's products, and bytes that a
step cannot but move (what autograd keeps, written and read; the optimizer's buffers), over the ceilings that
a large product and a large copy reach here. The last column has where one thread of (c) spends its time by
PyTorch's profiler, which lengthens Python's share: in matrix products, in all other operations, which mostly
move memory, and in Python. On a GPU it is left out.
"""

import argparse
import dataclasses
import functools
import itertools
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.flop_counter import FlopCounterMode

from ncpipe.config.architectures.paper import TWO_LAYER_MLPS, ResNetModel
from ncpipe.config.architectures.transformer import TransformerModel
from ncpipe.config.params import Params, load_params
from ncpipe.config.run import Compute, Run
from ncpipe.datasets.prepared import Prepared, Split
from ncpipe.models.build import build_model, input_shape, reshape_inputs
from ncpipe.models.penalties import is_penalised
from ncpipe.runs.batches import batches_that_fit, parts_of_each, worker_count
from ncpipe.runs.fingerprint import RunFingerprint
from ncpipe.training.cost import BUFFERS, bytes_per_run, saved_bytes
from ncpipe.training.cuda_graph import WARM_UP
from ncpipe.training.device import prepare_device
from ncpipe.training.loop import train_batch
from ncpipe.training.stack import Stack

RESNETS, TRANSFORMERS = (
    get_args(get_type_hints(kind)["architecture"]) for kind in (ResNetModel, TransformerModel)
)
CPU = torch.device("cpu")
FEWEST, MOST = 5, 15  # differences of times
STEADY = 0.1  # share of their median within which half of them have to lie
PRODUCTS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::baddbmm_"}
HEAD = (
    "network samples  batch   L |     (b)    (b')     (c) |    (a)    (b)   (b') | roofline/(c) "
    "| products other Python"
)


@functools.cache
def shipped_params() -> Params:
    return load_params(Path(__file__).resolve().parent.parent / "params.yaml")


@dataclass(frozen=True)
class Setting:
    """What a row of the table is about. batch: samples, or None for all of them."""

    architecture: str
    samples: int
    batch: int | None
    depth: int

    @property
    def steps(self) -> int:
        """Of an epoch."""
        return -(-self.samples // (self.batch or self.samples))

    @functools.cached_property
    def data(self) -> Prepared:
        generator = torch.Generator().manual_seed(0)
        labels = torch.arange(10).repeat_interleave(self.samples // 10)
        train = Split(torch.randn(self.samples, 1, 8, 8, generator=generator), labels)
        return Prepared("image", 10, None, train, train[torch.arange(0, self.samples, 10)], {})

    def runs(self, count: int, epochs: int) -> list[Run]:
        residual = self.architecture in RESNETS
        shipped = shipped_params().experiment("digits_rn1" if residual else "digits_t11")
        hidden = shipped.model.width if self.architecture in TWO_LAYER_MLPS else None
        changes: dict[str, Any] = {"architecture": self.architecture, "mlp_width": hidden}
        model = dataclasses.replace(shipped.model, **changes)
        spec = dataclasses.replace(
            shipped, model=model, epochs=epochs, log_every=epochs, batch_size=self.batch or "full"
        )
        return [Run("digits", self.depth, seed, spec) for seed in range(count)]


def batches(
    samples: TensorDataset, batch: int, device: torch.device, loaded: bool
) -> Iterator[tuple[Tensor, ...]]:
    """An epoch in a new order; of tensors that lie ready on the device, if there is no loader."""
    if not loaded:
        for part in DataLoader(samples, batch_size=batch, shuffle=True):
            yield tuple(tensor.to(device) for tensor in part)
    elif batch == len(samples):
        yield samples.tensors
    else:
        for part in torch.randperm(len(samples)).to(device).split(batch):
            yield tuple(tensor[part] for tensor in samples.tensors)


def plain_loop(setting: Setting, epochs: int, device: torch.device, loaded: bool) -> None:
    """One network: batches, the penalty in the loss, fused Adam. loaded: without a DataLoader."""
    (run,), data = setting.runs(1, epochs), setting.data
    model = run.spec.model
    network = build_model(model, input_shape(data, model), 10, run.depth, run.seed).to(device)
    roles = network.roles()
    matrices = [
        p for name, p in network.named_parameters() if is_penalised(roles[name], p.dim(), run.spec.penalty)
    ]
    optimizer = torch.optim.Adam(network.parameters(), 0.005, fused=True)
    tensors = reshape_inputs(data.train.inputs, data.kind, model), data.train.labels
    samples = TensorDataset(*(tensor.to(device) for tensor in tensors) if loaded else tensors)
    for _ in range(epochs):
        for inputs, labels in batches(samples, setting.batch or setting.samples, device, loaded):
            loss = F.cross_entropy(network(inputs), labels)
            loss = loss + 0.0025 * sum((matrix**2).sum() for matrix in matrices)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def ours(setting: Setting, epochs: int, count: int, compute: Compute) -> None:
    """As `ncpipe sweep` trains: as many runs side by side as fit into memory, a thread for each batch."""
    data, place = setting.data, prepare_device(compute)
    workers = worker_count(compute, place, None)
    fingerprints = [RunFingerprint(run, "", compute) for run in setting.runs(count, epochs)]
    need = bytes_per_run(fingerprints[0].run, data, place, torch.float32)
    parts = parts_of_each([fingerprints], workers, place)
    together = batches_that_fit(fingerprints, need, place, workers, parts)

    def work(batch: list[RunFingerprint]) -> None:
        prepare_device(compute)
        train_batch([fingerprint.run for fingerprint in batch], data, place, compute.precision)

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(work, together))


def steady(differences: Sequence[float]) -> float | None:
    """Their median; None unless it is positive and half of them lie within STEADY of it."""
    middle = statistics.median(differences)
    near = sum(abs(difference - middle) <= STEADY * middle for difference in differences)
    return middle if middle > 0 and 2 * near >= len(differences) else None


def timed_difference(less: Callable[[], float], more: Callable[[], float]) -> float | None:
    """Seconds of more() beyond those of less(), measured side by side until they are steady, or None."""
    differences: list[float] = []
    while len(differences) < MOST:
        differences.append(-less() + more())
        if len(differences) >= FEWEST and (found := steady(differences)) is not None:
            return found
    return None


def contend(name: str, setting: Setting, count: int, compute: Compute, threads: int, budget: float) -> None:
    """In a process of its own: prints the seconds of one epoch of one run, null where they cannot be told.

    threads: of a plain loop.
    """
    torch.set_num_threads(threads)
    device = torch.device("cuda" if compute.device == "cuda" else "cpu")
    torch.set_flush_denormal(True)

    def train(epochs: int) -> float:
        start = time.perf_counter()
        if name == "ours":
            ours(setting, epochs, count, compute)
        else:
            plain_loop(setting, epochs, device, name == "tensors")
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    first = WARM_UP + 2 if device.type == "cuda" else 1  # they warm up and record, in both trainings
    train(first)  # libraries set themselves up
    least = min(train(first) for _ in range(3))
    more = 1
    while (spent := train(first + more) - least) < budget / 10:
        more *= 2
    more = max(1, round(more * budget / FEWEST / spent))
    seconds = timed_difference(lambda: train(first), lambda: train(first + more))
    print(json.dumps(seconds and seconds / more / (count if name == "ours" else 1)))


def print_parts(setting: Setting, compute: Compute) -> None:
    """Print the shares of products, other operations and Python in the training of one batch."""
    place, runs = prepare_device(compute), setting.runs(3, 5)
    torch.set_num_threads(1)
    train_batch(runs, setting.data, place, compute.precision)
    with profile(activities=[ProfilerActivity.CPU]) as profiled, record_function("Python"):
        train_batch(runs, setting.data, place, compute.precision)
    taken = {event.key: event.self_cpu_time_total for event in profiled.key_averages()}
    whole, python = sum(taken.values()), taken.pop("Python")
    products = sum(time for name, time in taken.items() if name in PRODUCTS)
    print(json.dumps([products / whole, (sum(taken.values()) - products) / whole, python / whole]))


def child(name: str, setting: Setting, options: argparse.Namespace) -> Any:
    """What a contender prints: seconds of one epoch of one run, None where not measured; or shares."""
    arguments = {
        "--contender": name,
        "--architectures": setting.architecture,
        "--samples": setting.samples,
        "--batch-sizes": setting.batch or "full",
        "--depths": setting.depth,
        "--runs": options.runs,
        "--device": options.device,
        "--threads": options.threads,
        "--seconds": options.seconds,
    }
    command = [sys.executable, __file__, *(str(word) for pair in arguments.items() for word in pair)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout)


def cell(value: float, kind: str) -> str:
    """A formatted number, right-aligned; `-` where it is NaN."""
    return f"{'-':>{kind.partition('.')[0]}}" if math.isnan(value) else f"{value:{kind}}"


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


def least_work(setting: Setting) -> tuple[float, float]:
    """Operations and bytes of one epoch of one run; counted on few samples, both grow in step with them."""
    few, more = 20, 40
    (run,), data = setting.runs(1, 1), setting.data
    network = build_model(run.spec.model, input_shape(data, run.spec.model), 10, run.depth, run.seed)
    inputs = reshape_inputs(data.train.inputs[:few], data.kind, run.spec.model)
    with FlopCounterMode(display=False) as counter:
        F.cross_entropy(network(inputs), data.train.labels[:few]).backward()
    stack = Stack([network], CPU, torch.float32)
    kept_few, kept_more = (saved_bytes(stack, run, data, count) for count in (few, more))
    share = (kept_more - kept_few) / (more - few)
    kept = setting.steps * (kept_few - few * share) + setting.samples * share
    operations = counter.get_total_flops() / few * setting.samples
    return operations, 2 * kept + setting.steps * BUFFERS * stack.values.nbytes


def batch_size(text: str) -> int | None:
    return None if text == "full" else int(text)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--epochs", type=int, default=1500)
    parser.add_argument("--depths", type=int, nargs="+", default=[2, 3, 5, 8, 13])
    parser.add_argument("--samples", type=int, nargs="+", default=[500])
    parser.add_argument("--batch-sizes", type=batch_size, nargs="+", default=[None])
    parser.add_argument("--architectures", nargs="+", default=["L-RN1"], choices=RESNETS + TRANSFORMERS)
    parser.add_argument("--runs", type=int, default=6)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--contender", choices=["plain", "tensors", "ours", "parts"])
    options = parser.parse_args()
    compute = Compute(options.device, 1, "float32")
    grid = itertools.product(options.architectures, options.samples, options.batch_sizes, options.depths)
    settings = [Setting(*numbers) for numbers in grid]
    if options.contender == "parts":
        print_parts(settings[0], compute)
        return
    if options.contender:
        contend(options.contender, settings[0], options.runs, compute, options.threads, options.seconds)
        return
    operations, bandwidth = ceilings(torch.device(options.device))
    begin = min(start_up() for _ in range(3))
    print(
        f"width 64, {options.runs} runs, {options.epochs} epochs, {options.device}; "
        f"{options.threads} threads in (a) and (b)\n"
        f"ceilings {operations / 1e9:.0f} GFLOP/s, {bandwidth / 1e9:.1f} GB/s; start {begin:.1f} s\n"
        f"{'':<27}| ms a run and epoch      | times as long as (c) |\n{HEAD}"
    )
    for _, rows in itertools.groupby(settings, lambda setting: dataclasses.astuple(setting)[:3]):
        seconds = {"a": 0.0, "b": 0.0, "b'": 0.0, "c": 0.0}
        for setting in rows:
            found = (child(name, setting, options) for name in ("plain", "tensors", "ours"))
            plain, ready, together = (math.nan if taken is None else taken for taken in found)
            alone = plain + begin / options.epochs
            for name, taken in zip(seconds, (alone, plain, ready, together), strict=True):
                seconds[name] += taken
            work, moved = least_work(setting)
            share = max(work / operations, moved / bandwidth) / together
            batch = setting.batch or "full"
            parts = child("parts", setting, options) if options.device == "cpu" else []
            print(
                f"{setting.architecture:<7}{setting.samples:>7}{batch:>7}{setting.depth:>4}  "
                f"|{''.join(cell(1e3 * taken, '8.2f') for taken in (plain, ready, together))} "
                f"|{''.join(cell(taken / together, '7.1f') for taken in (alone, plain, ready))} "
                f"|{cell(share, '13.0%')} |{''.join(cell(part, '7.0%') for part in parts)}",
                flush=True,
            )
        a, b, ready, c = seconds.values()
        ratios = "".join(cell(taken / c, "7.1f") for taken in (a, b, ready))
        print(f"{'all depths':<27}|{'':>25}|{ratios} |", flush=True)
        if any(map(math.isnan, seconds.values())):
            print("-: not measured, the times differ too much; take more --seconds, or a quiet machine")


if __name__ == "__main__":
    main()
