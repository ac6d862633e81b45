"""Time of the class statistics against naive formulas and against the memory's speed, side by side.

python benchmarks/metrics.py [threads]
"""

import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ncpipe.metrics.statistics import class_statistics
from ncpipe.metrics.table import measure_arrays

SIZES = [(1_000_000, 64, 10), (100_000, 512, 10)]  # samples, width, classes
NAIVE_ROWS = 500  # the naive covariance holds rows x d x d entries


def samples(rows: int, width: int, classes: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(classes, (rows,), generator=generator)
    means = torch.randn(classes, width, generator=generator)
    return means[labels].add_(torch.randn(rows, width, generator=generator), alpha=0.1), labels


def class_loop(features: Tensor, labels: Tensor, classes: int) -> float:
    """tr(Sigma_W) by a mask per class."""
    total = 0.0
    for k in range(classes):
        rows = features[labels == k].double()
        total += float((rows - rows.mean(0)).square().sum())
    return total / len(labels)


def covariance(features: Tensor, labels: Tensor, classes: int) -> float:
    """tr(Sigma_W) from one outer product a sample; on the first rows only, which is all that memory holds."""
    rows, wanted = features[:NAIVE_ROWS].double(), labels[:NAIVE_ROWS]
    means = torch.stack([rows[wanted == k].mean(0) for k in range(classes)])
    centred = rows - means[wanted]
    return float((centred[:, :, None] * centred[:, None, :]).mean(0).trace())


def one_hot(features: Tensor, labels: Tensor, classes: int) -> float:
    """tr(Sigma_W) and the scatter matrix in NumPy, by a one-hot product."""
    rows, wanted = features.numpy().astype(np.float64), np.eye(classes)[labels.numpy()]
    means = (wanted.T @ rows) / wanted.sum(0)[:, None]
    centred = rows - wanted @ means
    return float(np.trace(centred.T @ centred) / len(rows))


def ours(features: Tensor, labels: Tensor, classes: int, scatter: bool) -> float:
    return float(class_statistics(features, labels, classes, scatter).squares.sum() / len(labels))


def all_metrics(features: Tensor, labels: Tensor, classes: int) -> float:
    """Every metric of the table, with a classifier: two passes."""
    weight = features[[int((labels == k).int().argmax()) for k in range(classes)]]
    return {row.metric: row.value for row in measure_arrays(features, labels, weight)}["nc1_trace_ratio"]


def seconds(function: Callable[[], object], repeats: int = 2) -> float:
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - start)
    return best


def main() -> None:
    torch.set_num_threads(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
    for rows, width, classes in SIZES:
        features, labels = samples(rows, width, classes)
        size = features.numel() * features.element_size() / 1e9
        target = torch.empty_like(features)
        read = size / seconds(lambda a=features, b=target: b.copy_(a), 5) * 2  # a copy reads and writes
        print(f"\n{rows:,} x {width} float32, {classes} classes; a copy moves {read:.1f} GB/s")
        print(f"{'':34}{'seconds':>9}{'GB/s':>8}{'of copy':>9}{'GFLOP/s':>9}")
        given = (features, labels, classes)
        contenders: list[tuple[str, Callable[[], object], float, float]] = [
            ("class loop, no scatter", lambda g=given: class_loop(*g), size, 0),
            ("ours, no scatter", lambda g=given: ours(*g, False), size, 0),
            (
                f"outer products, first {NAIVE_ROWS:,} rows",
                lambda g=given: covariance(*g),
                size * NAIVE_ROWS / rows,
                width,
            ),
            ("NumPy one-hot, scatter", lambda g=given: one_hot(*g), size, width),
            ("ours, scatter", lambda g=given: ours(*g, True), size, width),
            ("ours, every metric", lambda g=given: all_metrics(*g), size, width),
        ]
        for name, function, moved, products in contenders:
            took = seconds(function)
            flops = 2 * products * moved / 4 / took
            print(f"{name:34}{took:9.3f}{moved / took:8.2f}{moved / took / read:9.1%}{flops:9.1f}")


if __name__ == "__main__":
    main()
