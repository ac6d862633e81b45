"""Measure what frozen features tell of classes that no classifier has, by episodes of a few shots."""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ncpipe.metrics.checks import is_count
from ncpipe.metrics.few_shot import (
    decision_axes,
    directional_cdnv,
    transfer_bound,
    transfer_directional_bound,
    transfer_ncc_error,
    transfer_ridge_error,
)
from ncpipe.metrics.statistics import class_statistics
from ncpipe.system.errors import InputError
from ncpipe.system.randomness import seeded_generator

EPISODES = 100


def transfer_metrics(
    features: Tensor,
    labels: Tensor,
    shots: Sequence[int],
    episodes: int,
    heads: Sequence[str],
    ridge: float | None,
    seed: int,
) -> Iterator[tuple[str, float]]:
    """Yield directional CDNV, and for each number of shots the errors of the heads and their bounds.

    features (N, d), labels (N,) in 0..t-1. All heads see the same episodes. NaN of NaN features.
    """
    rows, labels = features.double().cpu(), labels.long().cpu()
    finite = bool(rows.isfinite().all())
    seen = class_statistics(rows, labels, int(labels.max()) + 1)
    axes = decision_axes(rows, labels, seen)
    yield "directional_cdnv", directional_cdnv(axes)
    for count in shots:
        for head in heads:
            error = math.nan
            if finite:
                draws = (rows, labels, count, episodes, episode_generator(seed, count))
                error = (
                    transfer_ncc_error(*draws)
                    if head == "ncc"
                    else transfer_ridge_error(*draws, ridge or 0.0)
                )
            yield f"transfer_{head}_error_{count:03d}", error
        yield f"transfer_bound_{count:03d}", transfer_bound(seen, count) if finite else math.nan
        yield f"transfer_directional_bound_{count:03d}", transfer_directional_bound(axes, count)


def episode_generator(seed: int, shots: int) -> torch.Generator:
    """Return the draws of the episodes with so many shots, the same for every head."""
    return seeded_generator(seed, f"transfer episodes {shots}")


def check_shots(shots: Sequence[int], episodes: int, labels: Tensor) -> None:
    """Raise InputError unless each class has more samples than there are shots, and there are episodes."""
    counts = torch.bincount(labels.long())
    least = int(counts.argmin())
    for count in shots:
        if not is_count(count):
            raise InputError(f"shots: whole numbers, 1 or more, not {count!r}")
        if count >= counts[least]:
            raise InputError(
                f"shots: class {least} has {int(counts[least])} samples; {count} shots leave none to decide"
            )
    if not is_count(episodes):
        raise InputError(f"episodes: a whole number, 1 or more, not {episodes!r}")
