"""Compare metric values with the exact ones of the feature files beside this module. NumPy alone.

K  classes    d  width    N  samples
"""

import json
import math
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).resolve().parent
FEATURES, EXPECTED = FOLDER / "features", FOLDER / "expected.json"
ARRAYS = ("features", "labels", "weight", "bias", "test_features", "test_labels")
KINDS = ("classes", "vectors", "tokens")
RELATIVE, ULPS = Fraction(1, 10**9), 10
LEAST = Fraction(2) ** -1074  # of float64's positive numbers
COUNTS = frozenset({"nc1_pinv_rank", "rank_means", "rank_weights", "ncc_error", "nc4_mismatch"})
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
    test_labels. Of vectors, targets (N, t) in place of labels; of tokens, features (N, C, d). A split is
    train, test or weights.
    """

    name: str
    arrays: dict[str, np.ndarray]
    answers: dict[tuple[str, str], tuple[str, str]]

    @property
    def has_one_class(self) -> bool:
        """Whether an error, NaN or an infinity is right: nothing that compares classes is defined."""
        return self.name == ONE_CLASS

    def conforms(self, split: str, metric: str, result: float) -> bool:
        """Return whether a value is right. Raises KeyError for a metric that this file does not define."""
        value, ulp = self.answers[split, metric]
        return not math.isfinite(result) if self.has_one_class else conforms(metric, result, value, ulp)


def cases(kind: str = "classes") -> list[Case]:
    """Return every file of a kind of targets, small ones first: of `classes`, `vectors` or `tokens`."""
    if kind not in KINDS:
        raise ValueError(f"kind: {kind!r} is unknown; take {', '.join(KINDS)}")
    answers = json.loads(EXPECTED.read_text(encoding="utf-8"))
    matches = []
    for name in sorted(answers):
        if kind_of(name) != kind:
            continue
        case_answers = {
            (split, metric): (value, ulp)
            for split, metrics in answers[name].items()
            for metric, (value, ulp) in metrics.items()
        }
        matches.append(Case(name, arrays_of(name), case_answers))
    return sorted(matches, key=lambda case: (case.arrays["features"].size, case.name))


def kind_of(name: str) -> str:
    """Return the kind of a file, which begins its name unless it has classes."""
    return next((kind for kind in KINDS if name.startswith(f"{kind}_")), "classes")


def arrays_of(name: str) -> dict[str, np.ndarray]:
    """Return the arrays of a file by its name."""
    if name in GENERATED:
        return GENERATED[name]()
    with np.load(FEATURES / f"{name}.npz") as file:
        return dict(file)


def conforms(metric: str, result: float, value: str, ulp: str) -> bool:
    """Return whether `result` is the exact `value`, up to rounding.

    Counts, infinities and NaN have to be equal. Others may differ by `RELATIVE` of the value, by 10 ulps, or
    by the least positive float64.
    """
    nearest = float(value)
    if metric in COUNTS or not math.isfinite(nearest) or not math.isfinite(result):
        return result == nearest or (math.isnan(result) and math.isnan(nearest))
    error = abs(Fraction(result) - Fraction(value))
    return error <= max(RELATIVE * abs(Fraction(value)), ULPS * Fraction(ulp), LEAST)
