"""The loops of exact_metrics.py for layers of whole numbers and many classes: equal pairs are counted.

Products and squares of whole numbers are exact in int64 up to 2^63, so NumPy finds which pairs of classes are
alike; each kind is then evaluated once, in 120 digits.

N  samples    K  classes    d  width    L  a common multiple of the classes' numbers of samples
"""

import math
from collections.abc import Iterator

import numpy as np
from exact_metrics import EPS, Classes, Layer, Loops, Matrix, Vector, length
from mpmath import mp, mpf

LARGEST = 2**62
Numbers = np.ndarray  # of int64


class Counts(Loops):
    """For features, weights and biases that are whole numbers."""

    def nearest(self, classes: Classes, features: Matrix) -> list[int]:
        """By squared distances; two that differ do so by more than the cutoff, which is asserted."""
        multiple, means = whole_means(classes)
        found = []
        for rows in blocks(multiple * whole(features)):
            apart = squares(rows)[:, None] + squares(means) - 2 * rows @ means.T
            root = math.isqrt(int(apart.max())) + 1
            assert 2 * root * multiple * classes.cutoff < 1  # sqrt(a + 1) - sqrt(a) > 1/(2 sqrt(a + 1))
            found += apart.argmin(1).tolist()
        return found

    def cdnv_terms(self, classes: Classes) -> list[tuple[mpf, int]] | None:
        multiple, means = whole_means(classes)
        variances = whole([[v * multiple**2 for v in classes.variances]])[0]
        table: dict[tuple[int, int], int] = {}
        for i, j in pairs(len(means)):
            difference = means[i] - means[j]
            add(table, variances[i] + variances[j], squares(difference))
        if any(apart == 0 for _, apart in table):
            return None
        return [(mpf(spread) / (2 * apart), times) for (spread, apart), times in table.items()]

    def direction_pairs(self, vectors: Matrix, slack: Vector) -> list[tuple[mpf, mpf, int]] | None:
        """Directions are compared as whole vectors without a common factor."""
        scale = common_scale(vectors)
        rows = whole([[mp.nint(x * scale) for x in row] for row in vectors])
        rows //= np.gcd.reduce(rows, axis=1)[:, None]
        assert int(squares(rows).max()) ** 2 < LARGEST
        table: dict[tuple[int, int], int] = {}
        for i, j in pairs(len(rows)):
            add(table, (rows[i] * rows[j]).sum(1), squares(rows[i]) * squares(rows[j]))
        found, resolved = [], 4 * max(slack)
        for (product, lengths), times in table.items():
            cosine = product / mp.sqrt(lengths)
            if product > 0 and product**2 == lengths:
                return None
            apart = mp.sqrt(2 - 2 * cosine)
            assert apart > resolved
            found.append((apart, cosine, times))
        return found

    def decisions(self, layer: Layer, own: Classes) -> tuple[list[int], Vector]:
        """By whole logits; two that differ do so by more than their rounding, which is asserted."""
        assert layer.weight is not None
        weight, bias = whole(layer.weight), whole([layer.bias or [mpf(0)] * own.count])[0]
        size = max(map(length, layer.weight)) * max(map(length, own.features)) + int(np.abs(bias).max())
        assert max(weight.shape) * EPS * size < mpf(1) / 2
        labels = np.array(own.labels)
        decided: list[int] = []
        margins: Vector = []
        for start, rows in enumerate_blocks(whole(own.features)):
            logits = rows @ weight.T + bias
            decided += logits.argmax(1).tolist()
            places = np.arange(len(rows)), labels[start : start + len(rows)]
            right = logits[places].copy()
            logits[places] = -LARGEST
            margins += [mpf(int(x)) for x in right - logits.max(1)]
        return decided, margins


def is_whole(layer: Layer) -> bool:
    """Return whether every number of a layer is a whole one."""
    matrices = (layer.features, layer.weight or [], [layer.bias or []], layer.test_features or [])
    return all(x == int(x) for matrix in matrices for row in matrix for x in row)


def whole(rows: Matrix) -> Numbers:
    """Return rows of whole numbers as int64."""
    assert all(x == int(x) for row in rows for x in row)
    return np.array([[int(x) for x in row] for row in rows], dtype=np.int64)


def whole_means(classes: Classes) -> tuple[int, Numbers]:
    """Return L and L mu_k (K, d)."""
    multiple = math.lcm(*(classes.labels.count(k) for k in set(classes.labels)))
    means = [[mp.nint(x * multiple) for x in mean] for mean in classes.means]
    features = whole(classes.features)
    sums = np.zeros((classes.count, classes.width), dtype=np.int64)
    np.add.at(sums, np.array(classes.labels), features)
    counts = np.bincount(classes.labels)[:, None]
    assert np.array_equal(whole(means), multiple // counts * sums)
    return multiple, whole(means)


def common_scale(vectors: Matrix) -> int:
    """Return the least positive integer, up to 10^6, that makes every entry whole."""
    for scale in range(1, 10**6):
        if all(abs(x * scale - mp.nint(x * scale)) < mpf(10) ** -90 for row in vectors for x in row):
            return scale
    raise AssertionError("no whole multiple")


def squares(rows: Numbers) -> Numbers:
    return (rows**2).sum(-1)


def add(table: dict[tuple[int, int], int], first: Numbers, second: Numbers) -> None:
    """Count each pair of entries."""
    kinds, times = np.unique(np.stack([first, second], 1), axis=0, return_counts=True)
    for (a, b), count in zip(kinds.tolist(), times.tolist(), strict=True):
        table[a, b] = table.get((a, b), 0) + count


def pairs(classes: int) -> Iterator[tuple[Numbers, Numbers]]:
    """Yield every pair i < j once, those of some i at a time."""
    for start in range(0, classes, 100):
        first, second = np.triu_indices(min(100, classes - start), 1 + start, classes)
        yield first + start, second


def enumerate_blocks(rows: Numbers) -> Iterator[tuple[int, Numbers]]:
    return ((start, rows[start : start + 500]) for start in range(0, len(rows), 500))


def blocks(rows: Numbers) -> Iterator[Numbers]:
    return (part for _, part in enumerate_blocks(rows))
