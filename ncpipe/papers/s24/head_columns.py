"""Yield what figures show of a head, layer by layer: class means, singular values, Gram matrices, spreads.

`ncpipe.papers.s24.head_ranks` has the ranks.

K  classes    d  width    L  the head's matrices
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from ncpipe.papers.s24.dufm_solutions import Solution, layers
from ncpipe.papers.s24.head_ranks import class_means, head_of
from ncpipe.study import TrainedRun

SPREADS = ("dnc1_trace_pinv", "nc1_trace_ratio")


def means_of_head(trained: TrainedRun) -> Mapping[str, Tensor]:
    """Return class means (K, d) on the training samples, about 0: M1, ~M2, ..., ~ML, M2, ..., ML.

    ~M2, ..., ~ML are before the ReLU, M2, ..., ML behind it.
    """
    head = head_of(trained.run)
    names = {"M1": head.input_layer}
    names |= {f"~M{at}": layer for at, layer in enumerate(head.before, start=2)}
    names |= {f"M{at}": layer for at, layer in enumerate(head.after, start=2)}
    return {name: class_means(trained, layer) for name, layer in names.items()}


def singular_rows_of_head(means: Mapping[str, Tensor]) -> Iterator[dict[str, Any]]:
    """Return singular values of M1, M~2, ..., M~L and of ML: layer, place from 1, value."""
    first, *inner = means
    return _singular_rows(means, [first, *inner[: len(inner) // 2], inner[-1]])


def gram_rows_of_head(means: Mapping[str, Tensor]) -> Iterator[dict[str, Any]]:
    """Yield the Gram matrix of M_{L-1} over its mean diagonal: layer, row, column, value."""
    name = [name for name in means if not name.startswith("~")][-2]
    gram = means[name] @ means[name].T
    for row, line in enumerate((gram / gram.diagonal().mean()).tolist()):
        for column, value in enumerate(line):
            yield {"layer": name, "row": row, "column": column, "value": value}


def singular_rows(trained: TrainedRun) -> Iterator[dict[str, Any]]:
    """Return singular values of M~_2, ..., M~_L, M_{L-1}, M_L: layer (`~M2`, ..., `M4`), place from 1, value.

    Before the last two layers the ReLU changes little; M_{L-1} is left out where L = 2.
    """
    means = means_of_head(trained)
    inner = list(means)[1:]
    half = len(inner) // 2
    return _singular_rows(means, [*inner[:half], *inner[half:][-2:]])


def mean_rows(trained: TrainedRun) -> Iterator[dict[str, Any]]:
    """Yield class means: layer (`~M2`, ..., `~M4`, `M2`, ..., `M4`), class, unit, value."""
    means = means_of_head(trained)
    for name in list(means)[1:]:
        yield from _entries(name, means[name])


def solution_rows(solution: Solution) -> Iterator[dict[str, Any]]:
    """Yield the same of built matrices."""
    for at, before in enumerate(layers(solution.features, solution.weights)[:-1], start=2):
        yield from _entries(f"~M{at}", before)
        yield from _entries(f"M{at}", before.clamp(min=0))


def _singular_rows(means: Mapping[str, Tensor], names: Iterable[str]) -> Iterator[dict[str, Any]]:
    for name in names:
        matrix = means[name]
        finite = bool(matrix.isfinite().all())  # not of a run that diverged
        values = torch.linalg.svdvals(matrix).tolist() if finite else [math.nan] * min(matrix.shape)
        for place, value in enumerate(values, 1):
            yield {"layer": name, "place": place, "value": value}


def _entries(layer: str, means: Tensor) -> Iterator[dict[str, Any]]:
    for number, row in enumerate(means.tolist()):
        yield from (
            {"layer": layer, "class": number, "unit": unit, "value": value} for unit, value in enumerate(row)
        )


def spread_rows(trained: TrainedRun) -> Iterator[dict[str, Any]]:
    """Yield how samples lie about their class means: layer (`H1`, ...) and two forms of DNC1.

    dnc1_trace_pinv: tr(Sigma_W)/tr(Sigma_B^+), as S24 prints it; nc1_trace_ratio: tr(Sigma_W)/tr(Sigma_B).
    """
    head, metrics = head_of(trained.run), trained.measure_layers(SPREADS)
    for at, name in enumerate((head.input_layer, *head.after), start=1):
        yield {"layer": f"H{at}"} | metrics[name]
