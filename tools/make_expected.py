"""Write what the metrics of the feature files are: python tools/make_expected.py [NAME ...]

expected.json: by file, split and metric the exact value and its ulp, as decimal strings. The ulp is the
largest change of the exact value in 8 draws in which every number of the file but labels moves up or down by
2^-52 of the largest number of its array; "0" where the value is not finite or a count, which must be met
exactly, or where there are too many classes for such draws. It takes a few minutes, and hours for 2,000
classes; where files are named, only these are computed anew.
"""

import json
import random
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from exact_metrics import COUNTS, EPS, Layer, Tokens, Vectors, all_metrics, read_layer
from mpmath import mp, mpf

HERE = Path(__file__).resolve().parents[1] / "ncpipe" / "metrics" / "conformance"
EXPECTED, FOLDER = HERE / "expected.json", HERE / "features"
FEWER = 1000  # classes of which draws can be made
UNBALANCED, ONE_CLASS = "unbalanced_1e5", "one_class"
# What compares classes, and so has no value for one class.
UNDEFINED = {
    "train": (
        "nc1_trace_ratio",
        "nc1_pinv",
        "dnc1_trace_pinv",
        "cdnv",
        "nc2_means",
        "nc2_equinorm_means",
        "nc2_equiangular_means",
        "nc3_duality",
    ),
    "weights": ("nc2_equiangular_weights",),
}
DRAWS = 8
DIGITS = 25
# Of arrays of norm 1, and 0 for some whatever their size: no smaller ulp than theirs.
OF_UNIT_SIZE = {"nc2_etf", "nc2_identity", "nc2_means", "nc3_duality"}
OF_PAIRS = tuple(f"gnc2_{kind}" for kind in ("energy", "spread", "cosine", "interference", "margin", "code"))
OF_UNIT_SIZE |= {
    f"{kind}_{of}" for kind in ("nc2_equinorm", "nc2_equiangular", *OF_PAIRS) for of in ("means", "weights")
}
OF_UNIT_SIZE |= {"unc3_cosine", "unc3_spread"}

Expected = dict[str, dict[str, list[str]]]  # split, metric -> value, ulp


def expected_of(name: str) -> Expected:
    if name == ONE_CLASS:
        return {split: {metric: ["nan", "0"] for metric in names} for split, names in UNDEFINED.items()}
    layer = layer_of(name)
    draws = DRAWS if max(getattr(layer, "labels", [0])) < FEWER else 0
    others = [all_metrics(moved(layer, random.Random(seed))) for seed in range(draws)]
    found: Expected = {}
    for (split, metric), value in all_metrics(layer).items():
        ulp = ulp_of(metric, value, [values[split, metric] for values in others])
        found.setdefault(split, {})[metric] = [text(value), mp.nstr(ulp, 5) if ulp else "0"]
    return found


def layer_of(name: str) -> Layer | Vectors | Tokens:
    if name == UNBALANCED:
        return unbalanced()
    with np.load(FOLDER / f"{name}.npz") as file:
        return read_layer(dict(file))


def unbalanced() -> Layer:
    """The formula that ncpipe/metrics/conformance/README.md states, in rational numbers."""
    means = [[mpf(2) * (axis == k - 1) for axis in range(3)] for k in range(4)]
    labels = [0] * 100_000 + [1, 2, 3]
    features = []
    for i, y in enumerate(labels):
        away = (2 * (37 * i % 64) - 63, 2 * (91 * i % 128) - 127, 2 * (i % 16) - 15)
        features.append([m + mpf(a) / 128 for m, a in zip(means[y], away, strict=True)])
    return Layer(features, labels, [[m - mpf(1) / 2 for m in mean] for mean in means])


def moved(layer: Any, draw: random.Random) -> Any:
    """Every number but labels up or down by 2^-52 of the largest of its array."""

    def size(values: Any) -> mpf:
        return max(map(size, values)) if isinstance(values, list) else abs(values)

    def shifted(values: Any, step: mpf) -> Any:
        if isinstance(values, list):
            return [shifted(each, step) for each in values]
        return values + (step if draw.random() < 0.5 else -step)

    arrays = {each.name: getattr(layer, each.name) for each in fields(layer) if "labels" not in each.name}
    given = {name: values for name, values in arrays.items() if values is not None}
    return replace(layer, **{name: shifted(values, EPS * size(values)) for name, values in given.items()})


def ulp_of(metric: str, value: mpf, others: list[mpf]) -> mpf:
    if metric in COUNTS or not mp.isfinite(value):
        return mpf(0)
    least = EPS if metric in OF_UNIT_SIZE else mpf(0)
    return max([least, *(abs(other - value) for other in others if mp.isfinite(other))])


def text(value: mpf) -> str:
    return mp.nstr(value, DIGITS) if mp.isfinite(value) else str(float(value))


def main() -> None:
    files = {path.stem for path in FOLDER.glob("*.npz")}
    names = sys.argv[1:] or sorted({UNBALANCED, *files})
    found = json.loads(EXPECTED.read_text()) if sys.argv[1:] else {}
    for name in names:
        print(name, flush=True)
        found[name] = expected_of(name)
    lines = [f"{json.dumps(name)}: {json.dumps(found[name])}" for name in sorted(found)]
    EXPECTED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
