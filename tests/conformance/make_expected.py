"""Write what the metrics of the feature files are: python tests/conformance/make_expected.py [NAME ...]

expected.json: by file, split and metric the exact value and its ulp, as decimal strings. The ulp is the
largest change of the exact value in 8 draws in which every number of the file but labels moves up or down by
2^-52 of the largest number of its array; "0" where the value is not finite or a count, which must be met
exactly. It takes a few minutes; where files are named, only these are computed anew.
"""

import json
import random
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from exact_metrics import COUNTS, EPS, Layer, Matrix, all_metrics, read_layer
from mpmath import mp, mpf

HERE = Path(__file__).resolve().parents[2] / "ncpipe" / "metrics" / "conformance"
EXPECTED = HERE / "expected.json"
DRAWS = 8
DIGITS = 25
# Of arrays of norm 1, and 0 for some whatever their size: no smaller ulp than theirs.
OF_UNIT_SIZE = {"nc2_etf", "nc2_identity", "nc2_means", "nc3_duality"}
OF_PAIRS = ("gnc2_energy", "gnc2_spread", "gnc2_cosine", "gnc2_interference")
OF_UNIT_SIZE |= {
    f"{kind}_{of}" for kind in ("nc2_equinorm", "nc2_equiangular", *OF_PAIRS) for of in ("means", "weights")
}
OF_UNIT_SIZE |= {"unc3_cosine", "unc3_spread"}

Expected = dict[str, dict[str, list[str]]]  # split, metric -> value, ulp


def expected_of(path: Path) -> Expected:
    layer = read_file(path)
    others = [all_metrics(moved(layer, random.Random(seed))) for seed in range(DRAWS)]
    found: Expected = {}
    for (split, metric), value in all_metrics(layer).items():
        ulp = ulp_of(metric, value, [values[split, metric] for values in others])
        found.setdefault(split, {})[metric] = [text(value), mp.nstr(ulp, 5) if ulp else "0"]
    return found


def read_file(path: Path) -> Layer:
    with np.load(path) as file:
        return read_layer(dict(file))


def moved(layer: Layer, draw: random.Random) -> Layer:
    """Every number up or down by 2^-52 of the largest of its array."""

    def rows(matrix: Matrix) -> Matrix:
        step = EPS * max(abs(x) for row in matrix for x in row)
        return [[x + (step if draw.random() < 0.5 else -step) for x in row] for row in matrix]

    found = replace(layer, features=rows(layer.features))
    if layer.weight is not None:
        found = replace(found, weight=rows(layer.weight))
    if layer.bias is not None:
        found = replace(found, bias=rows([layer.bias])[0])
    if layer.test_features is not None:
        found = replace(found, test_features=rows(layer.test_features))
    return found


def ulp_of(metric: str, value: mpf, others: list[mpf]) -> mpf:
    if metric in COUNTS or not mp.isfinite(value):
        return mpf(0)
    least = EPS if metric in OF_UNIT_SIZE else mpf(0)
    return max([least, *(abs(other - value) for other in others if mp.isfinite(other))])


def text(value: mpf) -> str:
    return mp.nstr(value, DIGITS) if mp.isfinite(value) else str(float(value))


def main() -> None:
    names = sys.argv[1:] or sorted(path.stem for path in (HERE / "features").glob("*.npz"))
    found = json.loads(EXPECTED.read_text()) if sys.argv[1:] else {}
    for name in names:
        print(name, flush=True)
        found[name] = expected_of(HERE / "features" / f"{name}.npz")
    lines = [f"{json.dumps(name)}: {json.dumps(found[name])}" for name in sorted(found)]
    EXPECTED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
