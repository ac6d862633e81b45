"""Time of the metrics against naive formulas, other packages and the memory's speed, side by side.

python benchmarks/metrics.py [threads] on a quiet machine. Everything runs in turns in this process; medians
of the turns count. Peers are timed where they are installed: uv run --group peers has kowalski and MONAI,
neural_collapse comes from its repository (see docs/metrics.md).

python benchmarks/metrics.py language [threads] [classes] [tokens] instead takes a vocabulary: features are
drawn on the fly, time is that of the metrics alone, memory that of the process.
"""

import importlib
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from ncpipe.metrics.collapse import cdnv
from ncpipe.metrics.ranks import weight_spectrum
from ncpipe.metrics.statistics import class_statistics
from ncpipe.metrics.table import measure
from ncpipe.metrics.uniformity import means_uniformity, weight_uniformity
from ncpipe.metrics.vocabulary import TokenPass, measure_vocabulary

SIZES = [
    (1_000_000, 64, 10),
    (100_000, 512, 10),
    (4_000_000, 64, 10),
    (200_000, 2048, 1000),
]  # samples, width, classes
NAIVE_ROWS = 500  # what holds rows x d x d entries sees only so many
BATCH = 65_536
TURNS = 5

LANGUAGE = 2, 50_000, 1_000_000  # threads, classes, tokens
WIDTH = 768
PASS = 4096  # tokens of a batch
PEER_ROWS, PEER_CLASSES, PEER_TOKENS, PEER_TILE = 256, 2000, 20_000, 64  # what a peer holds K x K numbers of

Found = TypeVar("Found")
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


def monai(features: Tensor, labels: Tensor, classes: int) -> float:
    """MONAI's two indicators, other quantities: cosines of class means, entropy rank of features."""
    compute = peer("monai.metrics.embedding_collapse").compute_embedding_collapse
    wanted = ["centroid_similarity", "effective_rank"]
    return float(compute(features, labels, include_indicators=wanted, reduction="none")[wanted[0]])


def our_statistics(features: Tensor, labels: Tensor, classes: int) -> float:
    """Counts, means and spread of every class: NC1 by traces, CDNV, NC2 of the means."""
    return float(class_statistics(features, labels, classes).squares.sum() / len(labels))


def our_metrics(features: Tensor, labels: Tensor, classes: int) -> float:
    """Every metric of the table, with a classifier: two passes."""
    weight = features[[int((labels == k).int().argmax()) for k in range(classes)]]
    return measure(features, labels, weight)["nc1_pinv"]


FEW_ROWS = {outer_products, kowalski}
CONTENDERS: dict[str, Callable[[Tensor, Tensor, int], float]] = {
    "ours: class statistics, one pass": our_statistics,
    "ours: every metric, two passes": our_metrics,
    "class loop: tr Sigma_W": class_loop,
    "outer products: tr Sigma_W": outer_products,
    "NumPy one-hot: NC1": one_hot,
    "neural_collapse: NC1": rhubarb,
    "kowalski: NC1": kowalski,
    "MONAI: centroids and rank": monai,
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


class Language:
    """Tokens by Zipf's law, each class at least once, with features about a mean of its own: drawn anew."""

    def __init__(self, classes: int, width: int, tokens: int) -> None:
        self.classes, self.width, self.tokens = classes, width, tokens
        draw = torch.Generator().manual_seed(0)
        self.means = torch.randn(classes, width, generator=draw)
        self.weight = self.means + 0.5 * torch.randn(classes, width, generator=draw)
        self.shares = 1 / torch.arange(1, classes + 1).double()

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The same ones each time, of PASS tokens; the first ones have every class."""
        draw = torch.Generator().manual_seed(1)
        every = torch.randperm(self.classes, generator=draw)
        for start in range(0, self.tokens, PASS):
            count = min(PASS, self.tokens - start)
            labels = torch.multinomial(self.shares, count, True, generator=draw)
            some = every[start : start + count]
            labels[: len(some)] = some
            noise = torch.randn(count, self.width, generator=draw)
            yield self.means[labels].add_(noise, alpha=0.3), labels


def language(classes: int, tokens: int) -> None:
    """Time and memory of a vocabulary's metrics, ours and neural_collapse's."""
    text = Language(classes, WIDTH, tokens)
    next(text.batches())  # draws are not to be seen in the memory
    print(f"{classes:,} classes, width {WIDTH}, {tokens:,} tokens, {torch.get_num_threads()} threads")
    print(f"{'':52}{'wall s':>9}{'CPU s':>9}{'peak GiB':>10}")
    print(f"{'(at the start: features are drawn, W is there)':52}{'':18}{peak():10.2f}")
    seen = TokenPass(classes, WIDTH)
    timed("ours: class statistics, one pass", lambda: one_pass(seen, text), seen_by=text)
    one_by_one(seen, text)
    found = timed("ours: everything after the pass", lambda: measure_vocabulary(seen, None, text.weight))
    values = {row.metric: row.value for row in found if row.split == "train"}
    try:
        beside(text, values)
    except ImportError as error:
        print(f"left out: neural_collapse ({error})")


def one_by_one(seen: TokenPass, text: Language) -> None:
    """What takes most of the time after the pass, each on its own."""
    learned = seen.accumulator.result_of(torch.arange(text.classes))
    timed("ours: singular values of the means and of W", lambda: spectra(learned.means, text.weight))
    timed("ours: CDNV and its logarithm, every pair", lambda: cdnv(learned))
    timed("ours: uniformity of the means, every pair", lambda: means_uniformity(learned))
    timed("ours: uniformity of W, every pair", lambda: weight_uniformity(text.weight))


def beside(text: Language, ours: dict[str, float]) -> None:
    """neural_collapse's on some tokens of the same features, and on a subset of the classes for pairs."""
    accumulate, measure = peer("neural_collapse.accumulate"), peer("neural_collapse.measure")
    kernels = peer("neural_collapse.kernels")
    few = Language(PEER_CLASSES, WIDTH, PEER_TOKENS)
    means = accumulate.MeanAccumulator(text.classes, WIDTH)
    rows, labels = next(text.batches())
    took = seconds(lambda: means.accumulate(rows[:PEER_ROWS], labels[:PEER_ROWS]))
    print(f"neural_collapse: means, {took / PEER_ROWS * 1e3:.3g} ms a token at {text.classes:,} classes")
    means = accumulate.MeanAccumulator(PEER_CLASSES, WIDTH)
    for part, wanted in few.batches():
        means.accumulate(part, wanted)
    centres, middle = means.compute()
    spread = accumulate.VarNormAccumulator(PEER_CLASSES, WIDTH, M=centres)
    for part, wanted in few.batches():
        spread.accumulate(part, wanted, centres)
    variances, _ = spread.compute()
    seen = TokenPass(PEER_CLASSES, WIDTH)
    one_pass(seen, few)
    learned = seen.accumulator.result_of(torch.arange(PEER_CLASSES))
    pairs = PEER_CLASSES * (PEER_CLASSES - 1) // 2
    theirs: dict[str, Callable[[], float]] = {
        "CDNV": lambda: measure.variability_cdnv(variances, centres, tile_size=PEER_TILE),
        "spread of log inverse distances": lambda: (
            kernels.kernel_stats(centres, middle, kernels.log_kernel, tile_size=PEER_TILE)[1] ** 0.5
        ),
    }
    own: dict[str, Callable[[], float]] = {
        "CDNV": lambda: cdnv(replace(learned)),
        "spread of log inverse distances": lambda: means_uniformity(learned)[1],
    }
    print(f"\nevery pair of {PEER_CLASSES:,} classes{'':24}{'ours':>12}{'neural_collapse':>18}")
    for name, function in theirs.items():
        values, times = [], []
        for each in (own[name], function):
            start = time.perf_counter()
            values.append(each())
            times.append(time.perf_counter() - start)
        print(f"{name:46}{values[0]:12.6f}{values[1]:18.6f}")
        print(f"{'  ns a pair':46}{times[0] / pairs * 1e9:12.3g}{times[1] / pairs * 1e9:18.3g}")


def one_pass(seen: TokenPass, text: Language) -> None:
    for rows, labels in text.batches():
        seen.update(rows, labels)


def spectra(*matrices: Tensor) -> list[object]:
    return [weight_spectrum(matrix) for matrix in matrices]


def timed(name: str, function: Callable[[], Found], seen_by: Language | None = None) -> Found:
    """Run it, and print wall and CPU seconds, less those of drawing the features, and the peak of memory."""
    drawing = (0.0, 0.0)
    if seen_by is not None:
        start = time.perf_counter(), time.process_time()
        for _ in seen_by.batches():
            pass
        drawing = time.perf_counter() - start[0], time.process_time() - start[1]
    start = time.perf_counter(), time.process_time()
    found = function()
    wall, cpu = time.perf_counter() - start[0] - drawing[0], time.process_time() - start[1] - drawing[1]
    print(f"{name:52}{wall:9.1f}{cpu:9.1f}{peak():10.2f}", flush=True)
    return found


def peak() -> float:
    """Most memory that this process has held so far, GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    if sys.argv[1:2] == ["language"]:
        threads, classes, tokens = (*map(int, sys.argv[2:]), *LANGUAGE[len(sys.argv) - 2 :])
        torch.set_num_threads(threads)
        language(classes, tokens)
        return
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
