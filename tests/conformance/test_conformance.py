"""ncpipe on the files of this folder, whose metrics are known exactly: see docs/metrics.md, Conformance."""

import ast
import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from exact_metrics import all_metrics
from make_expected import COUNTS, EXPECTED, read_file, text
from make_features import FOLDER, write

from ncpipe.commands.metrics import read_arrays
from ncpipe.metrics import statistics
from ncpipe.metrics.table import Measurement, measure_arrays

RELATIVE, ULPS = Fraction(1, 10**9), 10
LEAST = Fraction(2) ** -1074  # of float64's positive numbers
ANSWERS: dict[str, dict[str, dict[str, list[str]]]] = json.loads(EXPECTED.read_text())
NAMES = sorted(ANSWERS)
ORDER = ("features", "labels", "weight", "bias", "test_features", "test_labels")


def conforms(metric: str, found: float, value: str, ulp: str) -> bool:
    """Equal where not finite or a count, else to 1e-9 of the value or 10 of its ulps."""
    nearest = float(value)
    if metric in COUNTS or not math.isfinite(nearest) or not math.isfinite(found):
        return found == nearest or (math.isnan(found) and math.isnan(nearest))
    error = abs(Fraction(found) - Fraction(value))
    return error <= max(RELATIVE * abs(Fraction(value)), ULPS * Fraction(ulp), LEAST)


def answers(name: str) -> dict[tuple[str, str], list[str]]:
    """Value and ulp by split and metric."""
    return {(split, metric): pair for split, found in ANSWERS[name].items() for metric, pair in found.items()}


def failures(name: str, rows: list[Measurement]) -> list[str]:
    found, wanted = {(row.split, row.metric): row.value for row in rows}, answers(name)
    assert found.keys() == wanted.keys()
    return [
        f"{split} {metric}: {found[split, metric]!r}, exactly {value} (ulp {ulp})"
        for (split, metric), (value, ulp) in wanted.items()
        if not conforms(metric, found[split, metric], value, ulp)
    ]


@pytest.mark.parametrize("name", NAMES)
def test_ncpipe_conforms(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By PyTorch's operations, the compiled loop and in batches; of arrays, and as the command reads them."""
    path = FOLDER / f"{name}.npz"
    with np.load(path) as file:
        arrays = dict(file)
    monkeypatch.setattr(statistics, "COMPILER", False)
    assert failures(name, measure_arrays(*map(arrays.get, ORDER))) == []
    assert failures(name, measure_arrays(*map(arrays.get, ORDER), batch_size=3)) == []
    pytest.importorskip("numba")
    monkeypatch.setattr(statistics, "COMPILER", True)
    monkeypatch.setattr(statistics, "COMPILED_FROM", 0)
    tensors, _ = read_arrays(path)
    assert failures(name, measure_arrays(*map(tensors.get, ORDER), batch_size=7)) == []


def test_the_files_are_what_their_script_writes(tmp_path: Path) -> None:
    write(tmp_path)
    written = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert written == {path.name: path.read_bytes() for path in FOLDER.iterdir()}
    assert [Path(name).stem for name in sorted(written)] == NAMES
    assert len(NAMES) >= 60


@pytest.mark.parametrize("names", [NAMES[start::8] for start in range(8)], ids=str)
def test_the_answers_are_what_the_definitions_give(names: list[str]) -> None:
    for name in names:
        exact = all_metrics(read_file(FOLDER / f"{name}.npz"))
        stored = {key: value for key, (value, _) in answers(name).items()}
        assert {key: text(value) for key, value in exact.items()} == stored, name


def test_the_answers_share_no_code_with_the_package() -> None:
    for module in ("exact_metrics", "make_expected", "make_features"):
        tree = ast.parse((EXPECTED.parent / f"{module}.py").read_text())
        names = {
            alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
        }
        names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not any(name.split(".")[0] in ("ncpipe", "reference_metrics", "torch") for name in names)
