"""Two of scikit-learn's digits side by side, in random order; or one, beside an empty half."""

from dataclasses import dataclass
from itertools import combinations
from typing import ClassVar, Literal

import numpy as np
from sklearn.datasets import load_digits

from ncpipe.study import Count, Index, OwnData

CLASSES = 10
PARTS = {
    "": (slice(0, 1000), 1.0),
    "test_": (slice(1000, None), 0.5),
}  # images of a split, share of its samples


@dataclass(frozen=True)
class DigitPairsData(OwnData):
    """single, pair: training samples of each digit alone and of each pair; half as many test samples."""

    kind: ClassVar = "vector"
    targets: ClassVar = "tags"
    source: Literal["digit_pairs"]
    single: Count
    pair: Count
    seed: Index


def digit_pairs(spec):
    pixels, labels = load_digits(return_X_y=True)
    draw, found = np.random.default_rng(spec.seed), {}
    for split, (part, share) in PARTS.items():
        images, digits = pixels[part].reshape(-1, 8, 8) / 16, labels[part]
        sets = [((k,), spec.single) for k in range(CLASSES)]
        sets += [(pair, spec.pair) for pair in combinations(range(CLASSES), 2)]
        inputs, tags = [], []
        for own, count in sets:
            for _ in range(round(count * share)):
                halves = [images[draw.choice(np.flatnonzero(digits == k))] for k in own]
                order = draw.permutation(2)
                both = [*halves, np.zeros((8, 8))][:2]
                inputs.append(np.hstack([both[order[0]], both[order[1]]]).ravel())
                tags.append(np.isin(np.arange(CLASSES), own))
        found |= {f"{split}inputs": np.stack(inputs), f"{split}tags": np.stack(tags)}
    return found


DATA = {DigitPairsData: digit_pairs}
