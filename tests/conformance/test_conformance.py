"""ncpipe on the files of this folder, whose metrics are known exactly: see docs/metrics.md, Conformance."""

import ast
import json
from pathlib import Path

import numpy as np
import pytest
from conforming import conforms
from exact_metrics import all_metrics
from make_expected import EXPECTED, read_file, text
from make_features import FOLDER, write
from peers import rows

from ncpipe.commands.metrics import NAMES as READ
from ncpipe.datasets.array_files import read_arrays
from ncpipe.metrics import statistics
from ncpipe.metrics.table import Measurement, measure_arrays

PAGE = (EXPECTED.parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
ANSWERS: dict[str, dict[str, dict[str, list[str]]]] = json.loads(EXPECTED.read_text())
NAMES = sorted(ANSWERS)
ORDER = ("features", "labels", "weight", "bias", "test_features", "test_labels")


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
    tensors, _ = read_arrays(path, READ)
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


@pytest.mark.peers
@pytest.mark.parametrize("package", ["kowalski", "neural_collapse", "nc_toolbox"])
@pytest.mark.filterwarnings("ignore")  # theirs
def test_the_pages_table_is_what_its_script_prints(package: str) -> None:
    pytest.importorskip(package, exc_type=ImportError)
    table = PAGE.split("## Conformance")[1].split("\n## ")[0]
    lines = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("|")]
    column = lines[0].index(f"`{package}`")
    with np.errstate(all="ignore"):
        assert {line[0]: [line[column]] for line in lines[2:]} == dict(rows([package]))


def test_the_page_says_how_many() -> None:
    counts = len(NAMES), sum(len(answers(name)) for name in NAMES)
    assert f"holds {counts[0]} small feature files" in PAGE
    assert f"in all {counts[1]} values" in PAGE


def test_the_answers_share_no_code_with_the_package() -> None:
    for module in ("conforming", "exact_metrics", "make_expected", "make_features"):
        tree = ast.parse((EXPECTED.parent / f"{module}.py").read_text())
        names = {
            alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
        }
        names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not any(name.split(".")[0] in ("ncpipe", "reference_metrics", "torch") for name in names)
