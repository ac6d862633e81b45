"""Measure collapse where classes are the tokens of a vocabulary: many, unbalanced, some never seen.

A class is a token that is the next one often enough. One pass over the positions is all that is read; what
needs the final class means is taken on positions that this pass kept, drawn at random [WP24].

V  tokens of the vocabulary    K  classes among them    N  positions    m  kept ones    d  feature width
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ncpipe.datasets.tensors import Array
from ncpipe.metrics.checks import (
    as_tensors,
    by_split,
    check_count,
    check_finite,
    check_integers,
    check_widths,
    is_count,
)
from ncpipe.metrics.measurements import Measurement, Measurements, rows_of
from ncpipe.metrics.powers_of_two import times_two_to, unit_of
from ncpipe.metrics.sample_statistics import SampleAccumulator, check_classifier
from ncpipe.metrics.selection import IGNORE_INDEX, measured_entries, renumber
from ncpipe.metrics.statistics import ClassStatistics, StatisticsAccumulator, check_statistics
from ncpipe.metrics.table import (
    LAST_LAYER,
    OF_SAMPLES,
    OF_STATISTICS,
    OF_WEIGHT,
    TEST,
    TRAIN,
    WEIGHTS,
    values_of,
)
from ncpipe.system.errors import InputError

DECISIONS = 2000  # positions that NC4 is taken on: its 95 % interval is at most 4.4 points wide
QUANTILE = 1.959963984540054  # of the normal distribution, at 97.5 %
BATCH_SIZE = 8192  # positions of arrays at a time
ARRAYS_AT_PEAK = 7  # of V x d float64 numbers, at the height of a measurement


class TokenPass:
    """Accumulate one split's positions: statistics of every token, and a random sample of positions.

    Memory is a few times V x d numbers, of which those of tokens that never occur are never touched, and
    `decisions` x d. Which positions are kept depends on the seed and the positions' order alone.
    """

    def __init__(
        self,
        vocabulary: int,
        width: int,
        device: torch.device | str = "cpu",
        decisions: int | None = DECISIONS,
        seed: int = 0,
    ) -> None:
        """Keep `decisions` positions, drawn with `seed`; None keeps all."""
        if decisions is not None and not is_count(decisions):
            raise InputError(f"decisions: a whole number, 1 or more, or None for all, not {decisions!r}")
        check_memory(vocabulary, width, torch.device(device))
        self.accumulator = StatisticsAccumulator(vocabulary, width, device)
        self.ignored, self.masked = 0, 0
        self._limit = math.inf if decisions is None else decisions
        self._generator = np.random.default_rng(seed)
        self._keys = np.empty(0)
        self._features: list[Tensor] = []
        self._labels: list[Tensor] = []

    def update(self, features: Tensor, labels: Tensor, ignored: int = 0, masked: int = 0) -> None:
        """Add features (n, d) whose next tokens are labels (n,) in 0..V-1.

        ignored, masked: positions of the same batch that are left out, to be counted.
        """
        self.accumulator.update(features, labels)
        self.ignored, self.masked = self.ignored + ignored, self.masked + masked
        keys = self._generator.random(len(labels))
        least = self._keys.min() if len(self._keys) >= self._limit else -1.0
        chosen = np.flatnonzero(keys > least)
        if not len(chosen):
            return
        index = torch.from_numpy(chosen).to(features.device)
        self._keys = np.concatenate([self._keys, keys[chosen]])
        self._features.append(features.detach()[index])
        self._labels.append(labels[index])
        if len(self._keys) > self._limit:  # the largest keys stay, in the order of the positions
            kept = np.sort(np.argpartition(-self._keys, int(self._limit) - 1)[: int(self._limit)])
            self._keys = self._keys[kept]
            index = torch.from_numpy(kept).to(features.device)
            self._features = [torch.cat(self._features)[index]]
            self._labels = [torch.cat(self._labels)[index]]

    @property
    def kept(self) -> tuple[Tensor, Tensor]:
        """Features (m, d) and labels (m,) of the drawn positions."""
        return torch.cat(self._features), torch.cat(self._labels)


def check_memory(vocabulary: int, width: int, device: torch.device) -> None:
    """Raise InputError if the statistics of so many tokens do not fit into the device's free memory."""
    from ncpipe.system.device_memory import free_bytes  # only here: the metrics need PyTorch and NumPy alone

    need = ARRAYS_AT_PEAK * 8 * vocabulary * width
    free = free_bytes(device)
    if need > free:
        raise InputError(
            f"class statistics of {vocabulary} tokens of width {width} take up to {need / 1e9:.3g} GB, and "
            f"{free / 1e9:.3g} GB are free on {device}; measure on another device, or with fewer tokens"
        )


def measure_vocabulary(
    train: TokenPass,
    test: TokenPass | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    min_per_class: int = 1,
) -> Measurements:
    """Return every metric of the positions that a pass has seen, with counts of those left out.

    weight (V, d), bias (V,): the unembedding. Classes are the tokens with at least min_per_class positions in
    `train`; of the test split those of them with as many there, but its positions are decided among all.
    Raises InputError where fewer than two tokens are left, a feature or weight is not finite, or the
    unembedding is not of the vocabulary.
    """
    check_count("min_per_class", min_per_class)
    counts = train.accumulator.counts
    check_classifier(len(counts), train.accumulator.width, weight, bias)
    for title, tensor in (("weight", weight), ("bias", bias)):
        check_finite(f"the unembedding's {title}", tensor)
    classes = _frequent_tokens(counts, min_per_class, TRAIN)
    learned = train.accumulator.result_of(classes)
    rows: list[Measurement] = []
    if weight is not None:
        class_rows = weight[classes.to(weight.device)].to(learned.means.device)
        rows += rows_of(LAST_LAYER, WEIGHTS, values_of(OF_WEIGHT, weight=class_rows))
    for split, positions in ((TRAIN, train), (TEST, test)):
        if positions is None:
            continue
        accumulator, tokens = positions.accumulator, classes
        if split == TEST:
            tokens = classes[_frequent_tokens(accumulator.counts[classes], min_per_class, TEST)]
        statistics = learned if split == TRAIN else accumulator.result_of(tokens)
        check_statistics(split, LAST_LAYER, statistics)
        arguments: dict[str, Any] = {"statistics": statistics}
        if weight is not None:
            arguments["weight"] = weight[tokens.to(weight.device)].to(statistics.means.device)
        values = {
            "classes": statistics.classes,
            "tokens": statistics.samples,
            "left_out_rare": int(accumulator.counts.sum()) - statistics.samples,
            "left_out_ignored": positions.ignored,
            "left_out_masked": positions.masked,
            **dict(values_of((*OF_STATISTICS, *OF_SAMPLES), **arguments)),
            **_decision_values(positions, classes, learned, weight, bias),
        }
        rows += rows_of(LAST_LAYER, split, ((metric, float(value)) for metric, value in values.items()))
    return Measurements(rows)


def measure_token_arrays(
    features: Array,
    labels: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    test_features: Array | None = None,
    test_labels: Array | None = None,
    min_per_class: int = 1,
    decisions: int | None = DECISIONS,
) -> Measurements:
    """Return what `measure_vocabulary` does of features (N, d), labels (N,) and an unembedding (V, d), (V,).

    Labels need not name every token; those that are -100 are left out. V is the weight's number of
    rows, or 1 + the largest label. decisions: positions of each split that NC4 is taken on, None for all.
    """
    splits = by_split(features, labels, test_features, test_labels)
    for name, (inputs, tokens) in splits.items():
        if inputs.dim() != 2 or not inputs.numel() or tokens.shape != inputs.shape[:1]:
            shapes = f"{tuple(inputs.shape)} and {tuple(tokens.shape)}"
            raise InputError(f"{name} features and labels must be (N, d) and (N,), not {shapes}")
        check_integers(tokens)
    check_widths([inputs for inputs, _ in splits.values()])
    largest = max(int(tokens.max()) for _, tokens in splits.values())
    weight, bias = as_tensors(weight=weight, bias=bias)
    rows = max(largest + 1, 1) if weight is None or not weight.dim() else len(weight)
    passes = {name: _pass_over(*pair, rows, decisions) for name, pair in splits.items()}
    return measure_vocabulary(passes[TRAIN], passes.get(TEST), weight, bias, min_per_class)


def _pass_over(features: Tensor, labels: Tensor, vocabulary: int, decisions: int | None) -> TokenPass:
    positions = TokenPass(vocabulary, features.shape[1], features.device, decisions)
    for rows, tokens in zip(features.split(BATCH_SIZE), labels.split(BATCH_SIZE), strict=True):
        measured = measured_entries(tokens, IGNORE_INDEX)
        count = int((~measured).sum())
        positions.update(rows[measured] if count else rows, tokens[measured] if count else tokens, count)
    return positions


def wilson_interval(count: int, total: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share seen `count` times out of `total`; in [0, 1]."""
    share, square = count / total, QUANTILE**2
    middle = (share + square / (2 * total)) / (1 + square / total)
    half = QUANTILE / (1 + square / total) * math.sqrt(share * (1 - share) / total + square / (4 * total**2))
    return middle - half if count else 0.0, middle + half if count < total else 1.0


def _frequent_tokens(counts: Tensor, least: int, split: str) -> Tensor:
    """Return the places in `counts` of tokens with at least `least` positions in the split.

    counts: of all tokens, or in the test split of the train split's classes. Raises InputError for fewer than
    two such tokens.
    """
    tokens = torch.nonzero(counts >= least).flatten()
    if len(tokens) < 2:
        most = int(counts.max()) if len(counts) else 0
        among = f" of the train split's {len(counts)}" if split == TEST else ""
        raise InputError(
            f"classes that occur at least {least} times in the {split} split: {len(tokens)}{among} (the most "
            f"frequent one {most} times); collapse needs 2: lower min_per_class or add samples"
        )
    return tokens


def _decision_values(
    tokens: TokenPass,
    classes: Tensor,
    learned: ClassStatistics,
    weight: Tensor | None,
    bias: Tensor | None,
) -> dict[str, float]:
    """Return NC4, NC3 and margins of the kept positions, among the classes (K,) and by the train means."""
    features, labels = tokens.kept
    device = learned.means.device
    labels = renumber(labels.to(device), classes, len(tokens.accumulator.counts))
    features, labels = features.to(device)[labels >= 0], labels[labels >= 0]
    if not len(labels):
        return {"decisions": 0}
    features = features.double()
    check_finite("features that decisions are taken of", features)  # of rare tokens too
    about = learned.in_unit(max(learned.exponent, unit_of(features)))  # test features may be far larger
    accumulator = SampleAccumulator(
        _with_wide_spreads(about, features, labels),
        None if weight is None else weight[classes.to(weight.device)],
        None if bias is None else bias[classes.to(bias.device)],
        train=learned,  # whose own spreads say what is rounding
        spread=False,
    )
    accumulator.update(features, labels)
    samples = accumulator.result()
    values = {"decisions": float(samples.samples)}
    arguments: dict[str, Any] = samples.tensors() | {"samples": samples}
    for metric, value in values_of(OF_SAMPLES, **arguments):
        values[metric] = value
        if metric in ("ncc_error", "nc4_mismatch"):
            low, high = wilson_interval(round(value * len(labels)), len(labels))
            values |= {f"{metric}_low": low, f"{metric}_high": high}
    return values


def _with_wide_spreads(learned: ClassStatistics, features: Tensor, labels: Tensor) -> ClassStatistics:
    """Return the statistics with spreads large enough to include these samples (m, d)."""
    rows = times_two_to(features, -learned.exponent)
    furthest = (rows - learned.means[labels]).square().sum(1).max()
    return replace(learned, squares=learned.squares.clamp(min=furthest))
