"""Time of the metrics against naive formulas, other packages and the memory's speed, side by side.

python benchmarks/metrics.py [threads] on a quiet machine. Everything runs in turns in this process; medians
of the turns count. Peers are timed where they are installed: uv run --group peers has kowalski,
neural_collapse comes from its repository (see docs/metrics.md).
"""

import importlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from ncpipe.metrics import statistics as statistics_module
from ncpipe.metrics.statistics import class_statistics
from ncpipe.metrics.table import measure_arrays

SIZES = [
    (1_000_000, 64, 10),
    (100_000, 512, 10),
    (4_000_000, 64, 10),
    (200_000, 2048, 1000),
]  # samples, width, classes
NAIVE_ROWS = 500  # what holds rows x d x d entries sees only so many
BATCH = 65_536
TURNS = 5

Case = tuple[Tensor, Tensor, int]  # features (N, d) float32, labels (N,), K


def samples(rows: int, width: int, classes: int) -> Case:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(classes, (rows,), generator=generator)
    means = torch.randn(classes, width, generator=generator)
    return means[labels].add_(torch.randn(rows, width, generator=generator), alpha=0.1), labels, classes


def class_loop(features: Tensor, labels: Tensor, classes: int) -> float:
    """tr(Sigma_W) by a mask per class."""
    total = 0.0
    for k in range(classes):
        rows = features[labels == k].double()
        total += float((rows - rows.mean(0)).square().sum())
    return total / len(labels)


def outer_products(features: Tensor, labels: Tensor, classes: int) -> float:
    """tr(Sigma_W) from one outer product a sample."""
    rows, wanted = features[:NAIVE_ROWS].double(), labels[:NAIVE_ROWS]
    means = torch.stack([rows[wanted == k].mean(0) for k in range(classes)])
    centred = rows - means[wanted]
    return float((centred[:, :, None] * centred[:, None, :]).mean(0).trace())


def one_hot(features: Tensor, labels: Tensor, classes: int) -> float:
    """tr(Sigma_W Sigma_B^+)/K in NumPy, by one-hot products and a pseudoinverse."""
    rows, wanted = features.numpy().astype(np.float64), np.eye(classes)[labels.numpy()]
    means = (wanted.T @ rows) / wanted.sum(0)[:, None]
    rows -= wanted @ means
    centred = means - means.mean(0)
    return float(np.trace(rows.T @ rows / len(rows) @ np.linalg.pinv(centred.T @ centred / classes, 1e-10)))


def rhubarb(features: Tensor, labels: Tensor, classes: int) -> float:
    """Both NC1 of neural_collapse, in float64: means in a first pass, the covariance in a second."""
    accumulate, measure = peer("neural_collapse.accumulate"), peer("neural_collapse.measure")
    shape = classes, features.shape[1]
    means = accumulate.MeanAccumulator(*shape, dtype=torch.float64)
    for rows, wanted in batches(features, labels):
        means.accumulate(rows, wanted)
    centres, middle = means.compute()
    within = accumulate.CovarAccumulator(*shape, M=centres, dtype=torch.float64)
    for rows, wanted in batches(features, labels):
        within.accumulate(rows, wanted, centres)
    ratio = measure.covariance_ratio
    found = [ratio(within.compute(), centres, middle, kind) for kind in ("pinv", "quotient")]
    return float(found[0])


def kowalski(features: Tensor, labels: Tensor, classes: int) -> float:
    """kowalski's NC1, which is another quantity, in float64, from outer products too."""
    by_class = peer("kowalski").to_per_class_list(features[:NAIVE_ROWS].double(), labels[:NAIVE_ROWS])
    return float(peer("kowalski.neural_collapse").within_class_variability(by_class))


def our_statistics(features: Tensor, labels: Tensor, classes: int) -> float:
    """Counts, means and spread of every class: NC1 by traces, CDNV, NC2 of the means."""
    return float(class_statistics(features, labels, classes).squares.sum() / len(labels))


def our_tensors(features: Tensor, labels: Tensor, classes: int) -> float:
    """The same by PyTorch's operations, as without numba."""
    with patch.object(statistics_module, "COMPILER", False):
        return our_statistics(features, labels, classes)


def our_metrics(features: Tensor, labels: Tensor, classes: int) -> float:
    """Every metric of the table, with a classifier: two passes."""
    weight = features[[int((labels == k).int().argmax()) for k in range(classes)]]
    return {row.metric: row.value for row in measure_arrays(features, labels, weight)}["nc1_pinv"]


FEW_ROWS = {outer_products, kowalski}
CONTENDERS: dict[str, Callable[[Tensor, Tensor, int], float]] = {
    "ours: class statistics, one pass": our_statistics,
    "ours: the same without numba": our_tensors,
    "ours: every metric, two passes": our_metrics,
    "class loop: tr Sigma_W": class_loop,
    "outer products: tr Sigma_W": outer_products,
    "NumPy one-hot: NC1": one_hot,
    "neural_collapse: NC1": rhubarb,
    "kowalski: NC1": kowalski,
}


def peer(name: str) -> ModuleType:
    return importlib.import_module(name)


def batches(features: Tensor, labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(features.split(BATCH), labels.split(BATCH), strict=True)


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def race(case: Case) -> dict[str, list[float]]:
    """Seconds of every turn, of a copy, a read and the contenders; of those that run here."""
    target = torch.empty_like(case[0])
    racers: dict[str, Callable[[], object]] = {
        "a copy": lambda: target.copy_(case[0]),
        "a read (their sum in float32)": lambda: case[0].sum(),
    }
    for name, function in CONTENDERS.items():
        try:
            function(*case)
        except ImportError as error:
            print(f"left out: {name} ({error})")
        else:
            racers[name] = lambda function=function: function(*case)  # type: ignore[misc]
    took: dict[str, list[float]] = {name: [] for name in racers}
    for _ in range(TURNS):
        for name, racer in racers.items():
            took[name].append(seconds(racer))
    return took


def main() -> None:
    torch.set_num_threads(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
    for rows, width, classes in SIZES:
        case = samples(rows, width, classes)
        took = race(case)
        size = case[0].numel() * case[0].element_size() / 1e9
        copy = 2 * size / statistics.median(took.pop("a copy"))
        print(f"\n{rows:,} x {width} float32, {classes} classes; {TURNS} turns; a copy moves {copy:.1f} GB/s")
        print(f"{'':34}{'median s':>9}{'least s':>9}{'read GB/s':>11}{'of copy':>9}")
        for name, times in took.items():
            median = statistics.median(times)
            seen = NAIVE_ROWS if CONTENDERS.get(name) in FEW_ROWS else rows
            rate = size / median * seen / rows
            note = "" if seen == rows else f"  {seen} rows only"
            print(f"{name:34}{median:9.3f}{min(times):9.3f}{rate:11.3f}{rate / copy:9.1%}{note}")


if __name__ == "__main__":
    main()
