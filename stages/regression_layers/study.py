"""Targets of low rank: numbers that a network with two narrow hidden layers makes of normal inputs."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from ncpipe.study import Count, Index, OwnData


@dataclass(frozen=True)
class LowRankData(OwnData):
    """rank: width of the network's hidden layers. length: numbers of a target, of that rank together."""

    kind: ClassVar = "vector"
    targets: ClassVar = "vectors"
    source: Literal["low_rank"]
    dimension: Count
    rank: Count
    length: Count
    samples: Count
    test_samples: Count
    seed: Index


def low_rank(spec):
    draw = np.random.default_rng(spec.seed)
    inputs = draw.standard_normal((spec.samples + spec.test_samples, spec.dimension))
    first = draw.standard_normal((spec.dimension, spec.rank)) / spec.dimension**0.5
    second, last = (
        draw.standard_normal((spec.rank, spec.rank)),
        draw.standard_normal((spec.rank, spec.length)),
    )
    targets = np.tanh(np.tanh(2 * inputs @ first) @ second) @ last
    targets = (targets - targets[: spec.samples].mean(0)) / targets[: spec.samples].std(0)
    cut = spec.samples
    return {
        "inputs": inputs[:cut],
        "targets": targets[:cut],
        "test_inputs": inputs[cut:],
        "test_targets": targets[cut:],
    }


DATA = {LowRankData: low_rank}
