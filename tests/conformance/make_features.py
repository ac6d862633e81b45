"""Write the feature files of the conformance suite: python tests/conformance/make_features.py [FOLDER]

Every file is drawn by its own seed from Python's random.random, whose sequence is promised to stay, with sums
and products of float64 alone; so the bytes are the same everywhere.

K  classes    d  width
"""

import math
import random
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).resolve().parents[2] / "ncpipe" / "metrics" / "conformance" / "features"
Arrays = dict[str, np.ndarray]


class Draw:
    """Numbers of one seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def normal(self, *shape: int) -> np.ndarray:
        """Nearly normal: twelve uniform numbers less six."""
        count = int(np.prod(shape))
        values = [sum(self._random.random() for _ in range(12)) - 6 for _ in range(count)]
        return np.array(values).reshape(shape)

    def order(self, count: int) -> np.ndarray:
        keys = [self._random.random() for _ in range(count)]
        return np.array(sorted(range(count), key=keys.__getitem__), dtype=int)


def labels_of(counts: list[int], draw: Draw | None = None) -> np.ndarray:
    """Labels by class, or shuffled with each class's first sample first."""
    labels = np.repeat(np.arange(len(counts)), counts)
    if draw is not None:
        labels = np.concatenate([np.arange(len(counts)), labels[draw.order(len(labels))]])
    return labels


def ordinary(
    seed: int, counts: list[int], width: int, spread: float = 0.3, offset: float = 0.0, bias: bool = True
) -> Arrays:
    """Classes about normal means, a held-out split, and a classifier near the means."""
    draw = Draw(seed)
    labels, held_out = labels_of(counts, draw), labels_of([2] * len(counts))
    means = draw.normal(len(counts), width)
    arrays = {
        "features": offset + means[labels] + spread * draw.normal(len(labels), width),
        "labels": labels,
        "weight": means + 0.2 * draw.normal(len(counts), width),
        "test_features": offset + means[held_out] + 1.5 * spread * draw.normal(len(held_out), width),
        "test_labels": held_out,
    }
    return arrays | ({"bias": draw.normal(len(counts))} if bias else {})


def without(arrays: Arrays, *names: str) -> Arrays:
    return {name: array for name, array in arrays.items() if name not in names}


def scaled(arrays: Arrays, features: float, weight: float = 1.0, test: float | None = None) -> Arrays:
    """Times factors; without a bias, which has no scale of its own here."""
    factors = {"features": features, "test_features": features if test is None else test, "weight": weight}
    rest = without(arrays, *factors, "bias")
    return rest | {name: factor * arrays[name] for name, factor in factors.items() if name in arrays}


def about(means: np.ndarray, per_class: int, weight: np.ndarray | None = None) -> Arrays:
    """Every sample at its class's mean, on both splits."""
    labels = labels_of([per_class] * len(means))
    arrays = {
        "features": means[labels],
        "labels": labels,
        "test_features": means,
        "test_labels": labels[::per_class],
    }
    return arrays if weight is None else arrays | {"weight": weight}


def simplex(classes: int) -> np.ndarray:
    """Rows of E = I - 11^T/K, to float64's rounding."""
    return np.eye(classes) - 1 / classes


def near_collapse(seed: int, spread: float, offset: float = 0.0) -> Arrays:
    draw, means = Draw(seed), 2 * simplex(4) @ np.eye(4, 6)
    labels = labels_of([5] * 4)
    features = offset + means[labels] + spread * draw.normal(len(labels), 6)
    test = offset + means + spread * draw.normal(4, 6)
    weight = means + spread * draw.normal(4, 6)
    return {
        "features": features,
        "labels": labels,
        "weight": weight,
        "test_features": test,
        "test_labels": np.arange(4),
    }


def dead(seed: int, classes: int, width: int) -> Arrays:
    """Every sample the same."""
    draw = Draw(seed)
    labels = labels_of([3] * classes)
    features = np.tile(draw.normal(width), (len(labels), 1))
    weight = draw.normal(classes, width)
    return {
        "features": features,
        "labels": labels,
        "weight": weight,
        "test_features": features[:classes],
        "test_labels": np.arange(classes),
    }


def reordered(seed: int, mirrored: bool) -> Arrays:
    """The same samples in every class, in other orders; mirrored: with their negatives, so about 0."""
    draw = Draw(seed)
    samples = draw.normal(5, 7)
    if mirrored:
        samples = np.concatenate([samples, -samples])
    features = np.concatenate([samples[draw.order(len(samples))] for _ in range(4)])
    labels = labels_of([len(samples)] * 4)
    held_out = {"test_features": features[::2], "test_labels": labels[::2]}
    return {"features": features, "labels": labels, "weight": draw.normal(4, 7)} | held_out


def coinciding(seed: int, same: list[int]) -> Arrays:
    """Means of which those in `same` are one; every class the same way about its mean, in quarters."""
    draw = Draw(seed)
    means = np.round(4 * draw.normal(5, 6)) / 4
    means[same] = means[same[0]]
    steps = np.round(4 * draw.normal(2, 6)) / 16
    around = np.concatenate([steps, -steps])
    labels = labels_of([4] * 5)
    features = means[labels] + np.tile(around, (5, 1))
    return {"features": features, "labels": labels, "weight": draw.normal(5, 6)}


def close_means(seed: int, distance: float, offset: float = 0.0) -> Arrays:
    """Two of four means much closer than the others, tighter still within."""
    draw = Draw(seed)
    means = np.stack(
        [0 * draw.normal(5), distance * draw.normal(5), 1 + 0.2 * draw.normal(5), -1 + 0.2 * draw.normal(5)]
    )
    labels = labels_of([4] * 4)
    noise = distance / 128 * draw.normal(len(labels), 5)
    test = offset + means[labels] + distance / 64 * draw.normal(len(labels), 5)
    features = offset + means[labels] + noise
    return {"features": features, "labels": labels, "test_features": test, "test_labels": labels}


def halfway(order: list[int]) -> Arrays:
    """Held-out samples at equal distances from several means, which are exact, and at equal logits."""
    means = np.array([[1.0, 2.0, 3.0], [3.0, 1.0, 2.0], [2.0, 3.0, 1.0], [-4.0, -4.0, -4.0]])[order] / 8
    points = (
        np.array([[0, 0, 0], [1, 1, 1], [3, 3, 3], [-1, -1, -1], [1, 2, 3], [2, 1.5, 2.5], [-4, -4, -4]]) / 8
    )
    features = np.concatenate([means, means])
    return {
        "features": features,
        "labels": np.arange(8) % 4,
        "weight": 8 * means,
        "test_features": np.concatenate([points, points]),
        "test_labels": np.arange(14) % 4,
    }


def lattice(seed: int) -> Arrays:
    """Integer points between the corners of a cube: halfway everywhere."""
    means = np.array([[1.0, 1, 1], [-1, -1, 1], [-1, 1, -1], [1, -1, -1]])
    points = np.array([[x, y, z] for x in (-1.0, 0, 1) for y in (-1, 0, 1) for z in (-1, 0, 1)])
    labels = labels_of([2] * 4)
    weight = means + np.array([[0.0, 0, 0], [0, 0, 0], [0, 1, 0], [0, 0, 0]])
    away = 0.25 * np.tile([[1.0, 0, 0], [-1.0, 0, 0]], (4, 1))
    test_labels = np.arange(len(points)) % 4
    return {
        "features": means[labels] + away,
        "labels": labels,
        "weight": weight,
        "bias": np.array([0.5, 0.5, 0.25, 0.5]),
        "test_features": points,
        "test_labels": test_labels,
    }


def lengths_apart(seed: int) -> Arrays:
    """Samples of lengths from 1e-300 to 1, which a cosine does not see."""
    arrays = ordinary(seed, [3] * 3, 5, bias=False)
    factors = np.array(
        [1.0, 1.0, 1.0] + [float(f"1e-{power}") for power in (1, 10, 30, 100, 160, 170, 200, 250, 300)]
    )
    return without(arrays, "test_features", "test_labels") | {
        "features": arrays["features"] * factors[:, None]
    }


def low_rank(seed: int, singular: list[float]) -> Arrays:
    """Class means of given singular values: axes, mixed by a Hadamard matrix."""
    mixing = np.array([[1.0, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]]) / 2
    means = mixing @ (np.array(singular)[:, None] * np.eye(4, 6))
    draw = Draw(seed)
    labels = labels_of([4] * 4)
    noise = 0.1 * draw.normal(len(labels) // 2, 6)
    features = means[labels].copy()
    features[::2] += noise
    features[1::2] -= noise
    return {
        "features": features,
        "labels": labels,
        "weight": mixing[:, ::-1] @ (np.array(singular)[:, None] * np.eye(4, 6)),
    }


def as_type(kind: str, arrays: Arrays) -> Arrays:
    """Every array but labels rounded to a NumPy type."""
    return {n: a.astype(kind) if a.dtype.kind == "f" else a for n, a in arrays.items()}


def as_bfloat16(arrays: Arrays) -> Arrays:
    """Every array but labels cut to 8 significant bits; float32, since NumPy has no bfloat16."""
    whole = {n: a.astype("f4").view("u4") & 0xFFFF0000 for n, a in arrays.items() if a.dtype.kind == "f"}
    return arrays | {n: a.astype("u4").view("f4") for n, a in whole.items()}


def duplicated(arrays: Arrays, times: int, draw: Draw) -> Arrays:
    """Every sample so many times, in a shuffled order."""
    order = np.concatenate([np.arange(len(arrays["labels"]))] * times)
    order = order[draw.order(len(order))]
    return arrays | {name: arrays[name][order] for name in ("features", "labels")}


def lattice_directions(count: int) -> np.ndarray:
    """`count` points of the integer lattice (count, 3), no two in one direction, each with its negative."""
    side = range(-9, 10)
    points = [(x, y, z) for x in side for y in side for z in side if math.gcd(x, y, z) == 1]
    half = sorted((p for p in points if p > (0, 0, 0)), key=lambda p: (p[0] ** 2 + p[1] ** 2 + p[2] ** 2, p))
    chosen = np.array(half[: count // 2], dtype=np.int64)
    return np.concatenate([chosen, -chosen])


def many_whole(classes: int) -> Arrays:
    """Two samples a class about the lattice's points, far from 0; whole numbers, which float16 holds."""
    points = lattice_directions(classes)[(1237 * np.arange(classes)) % classes]
    k = np.arange(classes)
    steps = np.stack([1 + k % 5, k % 3, 8 * (k % 7 == 0)], 1)
    means = 8 * points + np.array([40, -25, 10])
    return {
        "features": np.concatenate([means + steps, means - steps]).astype("f2"),
        "labels": np.concatenate([k, k]).astype("u2"),
        "weight": ((3 + k % 3)[:, None] * points[:, [1, 0, 2]]).astype("f2"),
        "bias": (k % 9 - 4).astype("f2"),
    }


def cases() -> dict[str, Callable[[], Arrays]]:
    """Arrays by the file's name; the seed is written out at each."""
    same = [0.0, 0.0, 0.0, 0.0, 0.0]
    tetrahedron = np.array([[1.0, 1, 1], [-1, -1, 1], [-1, 1, -1], [1, -1, -1]])
    return {
        "ordinary_k2_d1": lambda: ordinary(1, [4, 4], 1),
        "ordinary_k2_d2": lambda: ordinary(2, [5, 5], 2),
        "ordinary_k2_d9": lambda: ordinary(3, [6, 6], 9),
        "ordinary_k3_d3": lambda: ordinary(4, [5, 5, 5], 3),
        "ordinary_k3_d16": lambda: ordinary(5, [5, 5, 5], 16),
        "ordinary_k4_d6_noisy": lambda: ordinary(6, [6] * 4, 6, spread=2.0),
        "ordinary_k5_d2": lambda: ordinary(7, [4] * 5, 2),
        "ordinary_k5_d8": lambda: ordinary(8, [4] * 5, 8),
        "ordinary_k10_d4": lambda: ordinary(9, [3] * 10, 4),
        "ordinary_k10_d12": lambda: ordinary(10, [3] * 10, 12),
        "ordinary_k12_d24": lambda: ordinary(11, [2] * 12, 24),
        "ordinary_without_bias": lambda: ordinary(12, [5] * 4, 7, bias=False),
        "ordinary_without_classifier": lambda: without(ordinary(13, [5] * 4, 7), "weight", "bias"),
        "ordinary_without_test": lambda: without(ordinary(14, [5] * 4, 7), "test_features", "test_labels"),
        "ordinary_large_bias": lambda: ordinary(15, [5] * 4, 7) | {"bias": 50 * Draw(115).normal(4)},
        "unbalanced_k3": lambda: ordinary(16, [1, 5, 20], 4),
        "unbalanced_k6": lambda: ordinary(17, [0, 1, 2, 4, 8, 16], 5),
        "one_sample_a_class": lambda: without(ordinary(18, [0] * 5, 4), "bias"),
        "float32": lambda: {
            n: a.astype("f4") if a.dtype.kind == "f" else a for n, a in ordinary(19, [5] * 4, 6).items()
        },
        "float16": lambda: {
            n: a.astype("f2") if a.dtype.kind == "f" else a for n, a in ordinary(20, [5] * 4, 6).items()
        },
        "big_endian_uint16": lambda: {
            n: a.astype(">f8" if a.dtype.kind == "f" else ">u2") for n, a in ordinary(21, [4] * 3, 5).items()
        },
        "axes_k2": lambda: about(np.eye(2, 4), 3, np.eye(2, 4)),
        "axes_k5": lambda: about(3 * np.eye(5, 7), 2, np.eye(5, 7)),
        "axes_k10": lambda: about(np.eye(10), 2, simplex(10)),
        "tetrahedron": lambda: about(tetrahedron, 3, 2 * tetrahedron),
        "tetrahedron_away_from_0": lambda: about(tetrahedron + 5, 3, tetrahedron),
        "tetrahedron_other_classifier": lambda: about(tetrahedron, 3, np.eye(4, 3)),
        "simplex_k3": lambda: about(simplex(3), 4, simplex(3)),
        "simplex_k7": lambda: about(4 * simplex(7), 2, 0.1 * simplex(7)),
        "simplex_k10": lambda: about(simplex(10), 2, simplex(10) + 1),
        "antipodal_k2": lambda: about(
            np.array([[0.3, -0.7, 0.1], [-0.3, 0.7, -0.1]]), 3, np.array([[1.0, 2, 3], [0, 1, 0]])
        ),
        "near_collapse_1e-01": lambda: near_collapse(31, 1e-1),
        "near_collapse_1e-03": lambda: near_collapse(32, 1e-3),
        "near_collapse_1e-06": lambda: near_collapse(33, 1e-6),
        "near_collapse_1e-09": lambda: near_collapse(34, 1e-9),
        "near_collapse_1e-12": lambda: near_collapse(35, 1e-12),
        "near_collapse_1e-15": lambda: near_collapse(36, 1e-15),
        "offset_1e3": lambda: near_collapse(37, 1e-2, 1e3),
        "offset_1e6": lambda: near_collapse(38, 1e-2, 1e6),
        "offset_1e9": lambda: near_collapse(39, 1e-2, 1e9),
        "scale_1e-310": lambda: scaled(ordinary(41, [4] * 3, 5), 1e-310),
        "scale_1e-290": lambda: scaled(ordinary(42, [4] * 3, 5), 1e-290),
        "scale_1e-200": lambda: scaled(ordinary(43, [4] * 3, 5), 1e-200),
        "scale_1e-160": lambda: scaled(ordinary(44, [4] * 3, 5), 1e-160),
        "scale_1e-090": lambda: scaled(ordinary(45, [4] * 3, 5), 1e-90),
        "scale_1e080": lambda: scaled(ordinary(46, [4] * 3, 5), 1e80),
        "scale_1e155": lambda: scaled(ordinary(47, [4] * 3, 5), 1e155),
        "scale_1e200": lambda: scaled(ordinary(48, [4] * 3, 5), 1e200),
        "scale_1e300": lambda: scaled(ordinary(49, [4] * 3, 5), 1e300),
        "scale_of_weights_1e200": lambda: scaled(ordinary(50, [4] * 3, 5), 1.0, 1e200),
        "scale_of_weights_1e-200": lambda: scaled(ordinary(51, [4] * 3, 5), 1.0, 1e-200),
        "scale_of_both_1e200_1e-200": lambda: scaled(ordinary(52, [4] * 3, 5), 1e200, 1e-200),
        "scale_test_1e-120_of_train": lambda: scaled(ordinary(53, [4] * 3, 5), 1e-40, 1.0, 1e-160),
        "scale_test_1e100_of_train": lambda: scaled(ordinary(54, [4] * 3, 5), 1e100, 1.0, 1e200),
        "lengths_apart": lambda: lengths_apart(55),
        "rows_of_weights_apart": lambda: (
            ordinary(56, [4] * 3, 5, bias=False)
            | {"weight": Draw(156).normal(3, 5) * np.array([[1.0], [1e-5], [1e5]])}
        ),
        "dead_k2": lambda: dead(61, 2, 5),
        "dead_k3": lambda: dead(62, 3, 5),
        "dead_k5": lambda: dead(63, 5, 6),
        "dead_k8": lambda: dead(64, 8, 3),
        "dead_k10": lambda: dead(65, 10, 12),
        "dead_k100": lambda: dead(66, 100, 4),
        "dead_at_0": lambda: about(np.array([same] * 3), 3, Draw(67).normal(3, 5)),
        "reordered": lambda: reordered(68, mirrored=False),
        "reordered_about_0": lambda: reordered(69, mirrored=True),
        "two_means_coincide": lambda: coinciding(70, [1, 3]),
        "three_means_coincide": lambda: coinciding(71, [0, 2, 4]),
        "a_mean_at_the_centre": lambda: about(
            np.array([[-1.0], [0], [1]]) * Draw(72).normal(1, 5) + 0.1, 3, Draw(172).normal(3, 5)
        ),
        "weights_0": lambda: ordinary(73, [4] * 3, 5) | {"weight": np.zeros((3, 5))},
        "a_row_of_weights_0": lambda: (
            ordinary(74, [4] * 3, 5) | {"weight": Draw(174).normal(3, 5) * np.array([[1.0], [0], [1]])}
        ),
        "equal_rows_of_weights": lambda: (
            ordinary(75, [4] * 3, 5)
            | {"weight": np.tile(Draw(175).normal(5), (3, 1)), "bias": np.full(3, 0.7)}
        ),
        "a_feature_0": lambda: (
            ordinary(76, [4] * 3, 5, bias=False)
            | {"features": ordinary(76, [4] * 3, 5)["features"] * (np.arange(15) != 4)[:, None]}
        ),
        "close_means_1e-06": lambda: close_means(77, 1e-6),
        "close_means_1e-09": lambda: close_means(78, 1e-9),
        "close_means_1e-11": lambda: close_means(79, 1e-11),
        "close_means_away_from_0": lambda: close_means(80, 1e-4, 1e6),
        "halfway": lambda: halfway([0, 1, 2, 3]),
        "halfway_relabelled": lambda: halfway([3, 2, 0, 1]),
        "halfway_everywhere": lambda: lattice(83),
        "many_k40_d6_one_sample": lambda: without(ordinary(90, [0] * 40, 6), "bias"),
        "many_k200_d10": lambda: as_type(
            "f4", without(ordinary(91, [2] * 200, 10), "test_features", "test_labels")
        ),
        "many_k2000_d3": lambda: many_whole(2000),
        "float16_large": lambda: as_type("f2", scaled(ordinary(92, [4] * 3, 5), 15000.0)),
        "float16_subnormal": lambda: as_type("f2", scaled(ordinary(93, [4] * 3, 5), 1e-5)),
        "float32_large": lambda: as_type("f4", scaled(ordinary(94, [4] * 3, 5), 5e37)),
        "float32_subnormal": lambda: as_type("f4", scaled(ordinary(95, [4] * 3, 5), 1e-41)),
        "bfloat16": lambda: as_bfloat16(ordinary(96, [5] * 4, 6)),
        "subnormal": lambda: scaled(ordinary(97, [4] * 3, 5), 1e-321),
        "one_class": lambda: ordinary(98, [5], 4),
        "duplicated": lambda: duplicated(ordinary(99, [3] * 4, 6), 5, Draw(199)),
        "duplicated_unevenly": lambda: duplicated(
            duplicated(ordinary(100, [1, 2, 5], 6), 3, Draw(200)), 2, Draw(201)
        ),
        "means_of_rank_3": lambda: low_rank(84, [2.0, 1.0, 0.5, 0.0]),
        "means_of_rank_2_and_a_bit": lambda: low_rank(85, [2.0, 0.0025, 0.0015, 1e-9]),
    }


def write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in cases().items():
        np.savez(folder / f"{name}.npz", **make())


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
