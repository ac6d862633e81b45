"""Measure what frozen features tell of classes that no classifier has, by episodes of a few shots."""

import functools
import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from ncpipe.metrics import few_shot
from ncpipe.metrics.statistics import class_statistics
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
    statistics = class_statistics(rows, labels, int(labels.max()) + 1)
    axes = few_shot.decision_axes(rows, labels, statistics)
    yield "directional_cdnv", few_shot.directional_cdnv(axes)
    errors: dict[str, Callable[..., float]] = {
        "ncc": few_shot.transfer_ncc_error,
        "ridge": functools.partial(few_shot.transfer_ridge_error, ridge=ridge or 0.0),
    }
    for count in shots:
        for head in heads:
            draws = (rows, labels, count, episodes, episode_generator(seed, count))
            yield f"transfer_{head}_error_{count:03d}", errors[head](*draws) if finite else math.nan
        bound = few_shot.transfer_bound(statistics, count) if finite else math.nan
        yield f"transfer_bound_{count:03d}", bound
        yield f"transfer_directional_bound_{count:03d}", few_shot.transfer_directional_bound(axes, count)


def episode_generator(seed: int, shots: int) -> torch.Generator:
    """Return the draws of the episodes with so many shots, the same for every head."""
    return seeded_generator(seed, f"transfer episodes {shots}")
