"""Seeds trained together against the loop a user would write: one network after another, torch.optim.

Run with `python benchmarks/training.py` on a quiet machine. Both train the shipped digits_rn1 (500
samples, full batch, Adam, width 64) in float32 in this process, in turns; the median of the turns counts.
The plain loop is charged neither for starting Python nor for loading data.
"""

import dataclasses
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

from ncpipe.datasets.prepared import Prepared, Split
from ncpipe.models.build import arrange, build_model, input_shape, penalised
from ncpipe.params import load_params
from ncpipe.specs import Run
from ncpipe.training.loop import train_batch

CPU = torch.device("cpu")
STEPS, TURNS = 60, 3
PARAMS = Path(__file__).resolve().parent.parent / "params.yaml"


def plain_loop(runs: list[Run], data: Prepared) -> None:
    """One network after another; the penalty in the loss, fused Adam."""
    for run in runs:
        network = build_model(run.spec.model, input_shape(data, run.spec.model), 10, run.depth, run.seed)
        samples = arrange(data.train, data.kind, run.spec.model, CPU, torch.float32)
        matrices = [p for name, p in network.named_parameters() if penalised(name)]
        optimizer = torch.optim.Adam(network.parameters(), 0.005, fused=True)
        for _ in range(STEPS):
            loss = F.cross_entropy(network(samples.inputs), samples.labels)
            loss = loss + 0.0025 * sum((matrix**2).sum() for matrix in matrices)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def together(runs: list[Run], data: Prepared) -> None:
    train_batch(runs, data, CPU, "float32")


def milliseconds_per_step(
    train: Callable[[list[Run], Prepared], None], runs: list[Run], data: Prepared
) -> float:
    start = time.perf_counter()
    train(runs, data)
    return (time.perf_counter() - start) / STEPS / len(runs) * 1000


def main() -> None:
    torch.set_flush_denormal(True)
    shipped = load_params(PARAMS).experiment("digits_rn1")
    spec = dataclasses.replace(shipped, epochs=STEPS, log_every=STEPS)
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(10).repeat_interleave(50)
    train = Split(torch.randn(500, 1, 8, 8, generator=generator), labels)
    data = Prepared("image", 10, None, train, train[torch.arange(0, 500, 10)], {})
    print(f"L-RN1, 500 samples, width 64, {torch.get_num_threads()} threads: ms per step and run")
    print(f"{'L':>3} {'runs':>5} {'plain loop':>11} {'together':>9} {'ratio':>6}")
    for depth in (2, 5, 13):
        for seeds in (1, 3, 5):
            runs = [Run("digits", depth, seed, spec) for seed in range(seeds)]
            turns = [
                (milliseconds_per_step(plain_loop, runs, data), milliseconds_per_step(together, runs, data))
                for _ in range(TURNS)
            ]
            plain, ours = (statistics.median(column) for column in zip(*turns, strict=True))
            print(f"{depth:>3} {seeds:>5} {plain:>11.2f} {ours:>9.2f} {plain / ours:>6.2f}")


if __name__ == "__main__":
    main()
