"""Compare metric values with the exact ones of the feature files beside this module. NumPy alone.

K  classes    d  width    N  samples
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).resolve().parent
FEATURES, EXPECTED = FOLDER / "features", FOLDER / "expected.json"
ARRAYS = ("features", "labels", "weight", "bias", "test_features", "test_labels")
RELATIVE, ULPS = Fraction(1, 10**9), 10
ROUGHLY = Fraction(1, 1000)
LEAST = Fraction(2) ** -1074  # of float64's positive numbers
COUNTS = frozenset({"nc1_pinv_rank", "rank_means", "rank_weights", "ncc_error", "nc4_mismatch"})
# What makes a file hard, by how its name begins; the first kind that fits.
KINDS = {
    "unbalanced by 1e5": ("unbalanced_1e5",),
    "up to 2,000 classes": ("many",),
    "float16, bfloat16, subnormals": ("float16_", "float32_", "bfloat16", "subnormal"),
    "one class, one sample a class, duplicates": ("one_", "duplicated"),
    "ordinary, unbalanced, float16 to 64": ("ordinary", "unbalanced", "float", "big_", "means_of"),
    "exact collapse": ("axes", "tetrahedron", "simplex", "antipodal"),
    "nearly collapsed, far from 0": ("near", "offset"),
    "scales 1e-310 to 1e300": ("scale", "lengths", "rows"),
    "coinciding means, dead networks": ("dead", "reordered", "two_", "three_", "a_mean"),
    "zero rows, close means, ties": ("weights_0", "a_row", "equal", "a_feature", "close", "halfway"),
}
ONE_CLASS = "one_class"


def unbalanced() -> dict[str, np.ndarray]:
    """Return 100,000 samples of class 0 and one each of classes 1 to 3; every number is exact in float32.

    Sample i has h_i = m_y + ((37 i mod 64) - 31.5, (91 i mod 128) - 63.5, (i mod 16) - 7.5)/64, where m_0 = 0
    and m_1, m_2, m_3 are 2 along one axis each. W_k = m_k - 1/2.
    """
    i = np.arange(100_003)
    labels = np.maximum(0, i - 99_999)
    means = np.concatenate([np.zeros((1, 3)), 2 * np.eye(3)])
    away = np.stack([37 * i % 64 - 31.5, 91 * i % 128 - 63.5, i % 16 - 7.5], 1) / 64
    return {"features": means[labels] + away, "labels": labels, "weight": means - 0.5}


# Files that would be large follow from a formula.
GENERATED = {"unbalanced_1e5": unbalanced}


@dataclass(frozen=True)
class Case:
    """Hold a file's arrays as stored, and for each (split, metric) the exact value and its ulp as text.

    arrays: features (N, d), labels (N,); where there are any, weight (K, d), bias (K,), test_features and
    test_labels. A split is train, test or weights.
    """

    name: str
    arrays: dict[str, np.ndarray]
    answers: dict[tuple[str, str], tuple[str, str]]

    @property
    def has_one_class(self) -> bool:
        """Whether an error, NaN or an infinity is right: nothing that compares classes is defined."""
        return self.name == ONE_CLASS

    @property
    def kind(self) -> str:
        return next(kind for kind, begin in KINDS.items() if self.name.startswith(begin))


@dataclass(frozen=True)
class Verdict:
    """Compare a value with the exact one. found: None if the implementation failed, with the reason."""

    case: Case
    split: str
    metric: str
    found: float | None
    reason: str = ""

    @property
    def size(self) -> int:
        """The number of feature entries of the file."""
        return int(self.case.arrays["features"].size)

    @property
    def exact(self) -> str:
        return self.case.answers[self.split, self.metric][0]

    @property
    def conforms(self) -> bool:
        return self.within(RELATIVE)

    @property
    def roughly(self) -> bool:
        """Whether the value is right to 1e-3."""
        return self.within(ROUGHLY)

    def within(self, relative: Fraction) -> bool:
        if self.case.has_one_class:
            return self.found is None or not math.isfinite(self.found)
        value, ulp = self.case.answers[self.split, self.metric]
        return self.found is not None and conforms(self.metric, self.found, value, ulp, relative)

    @property
    def error(self) -> float:
        """The relative error; infinite where one value is finite and the other is not, or none was found."""
        exact = float(self.exact)
        if self.found is None or math.isfinite(self.found) != math.isfinite(exact):
            return math.inf
        if self.found == exact or (math.isnan(self.found) and math.isnan(exact)):
            return 0.0
        return abs(self.found - exact) / abs(exact) if exact and math.isfinite(exact) else math.inf

    @property
    def shown(self) -> str:
        """A wrong value and the exact one, or the error if six digits do not show it."""
        file = self.case.name + (", test" if self.split == "test" else "")
        if self.found is None:
            return f"{file}: failed"
        if self.roughly:
            return f"{file}: error {self.error:.1e}"
        return f"{file}: {self.found:.6g}, exactly {float(self.exact):.6g}"


def cases() -> list[Case]:
    """Return every file of the suite, small ones first."""
    answers = json.loads(EXPECTED.read_text(encoding="utf-8"))
    found = []
    for name in sorted(answers):
        own = {
            (split, metric): (value, ulp)
            for split, metrics in answers[name].items()
            for metric, (value, ulp) in metrics.items()
        }
        found.append(Case(name, arrays_of(name), own))
    return sorted(found, key=lambda case: (case.arrays["features"].size, case.name))


def arrays_of(name: str) -> dict[str, np.ndarray]:
    """Return the arrays of a file by its name."""
    if name in GENERATED:
        return GENERATED[name]()
    with np.load(FEATURES / f"{name}.npz") as file:
        return dict(file)


def conforms(metric: str, found: float, value: str, ulp: str, relative: Fraction = RELATIVE) -> bool:
    """Return whether `found` is the exact `value`, up to rounding.

    Counts, infinities and NaN have to be equal. Others may differ by `relative` of the value, by 10 ulps, or
    by the least positive float64.
    """
    nearest = float(value)
    if metric in COUNTS or not math.isfinite(nearest) or not math.isfinite(found):
        return found == nearest or (math.isnan(found) and math.isnan(nearest))
    error = abs(Fraction(found) - Fraction(value))
    return error <= max(relative * abs(Fraction(value)), ULPS * Fraction(ulp), LEAST)


def judge(case: Case, found: Mapping[str, float]) -> Iterator[Verdict]:
    """Yield a verdict for each value, by `metric` or `split/metric`.

    A bare metric is of the training split or of the weights. A metric that this file does not define is left
    out. Raises KeyError for a name that the suite does not have.
    """
    for key, value in found.items():
        split, _, metric = key.rpartition("/")
        if metric not in METRICS:
            raise KeyError(metric)
        for own in [split] if split else ["train", "weights"]:
            if (own, metric) in case.answers:
                yield Verdict(case, own, metric, float(value))


def _metrics() -> frozenset[str]:
    answers = json.loads(EXPECTED.read_text(encoding="utf-8"))
    return frozenset(metric for file in answers.values() for metrics in file.values() for metric in metrics)


METRICS = _metrics()


def score_rows(verdicts: list[Verdict]) -> list[list[str]]:
    """Return a table with a row for each metric, in the order of their names, below its head.

    Of values that do not conform it has the largest error, and the smallest file, among those beyond 1e-3
    where there are any.
    """
    rows = [["metric", "conform", "to 1e-3", "largest error", "smallest wrong file", "kinds of wrong files"]]
    for metric in sorted({verdict.metric for verdict in verdicts}):
        own = [verdict for verdict in verdicts if verdict.metric == metric]
        wrong = [verdict for verdict in own if not verdict.conforms]
        roughly = sum(verdict.roughly for verdict in own)
        counts = [f"{number} of {len(own)}" for number in (len(own) - len(wrong), roughly)]
        largest = smallest = ""
        if wrong:
            largest = f"{max(verdict.error for verdict in wrong):.1e}"
            smallest = min(wrong, key=lambda verdict: (verdict.roughly, verdict.size)).shown
        kinds = [kind for kind in KINDS if any(verdict.case.kind == kind for verdict in wrong)]
        rows.append([metric, *counts, largest, smallest, "; ".join(kinds)])
    return rows
