"""ncpipe on the files of this folder, whose metrics are known exactly: see docs/metrics.md, Conformance."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from exact_metrics import all_metrics
from make_expected import EXPECTED, FOLDER, expected_of, layer_of, text
from peers import by_kind, by_package
from typer.testing import CliRunner, Result

from ncpipe.commands.cli import app
from ncpipe.datasets.array_files import read_arrays
from ncpipe.metrics import pairs, statistics
from ncpipe.metrics.conformance import suite
from ncpipe.metrics.conformance.suite import conforms
from ncpipe.metrics.file import NAMES as READ
from ncpipe.metrics.table import Measurement, measure
from ncpipe.system.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
NONE = "–"  # in the page's tables: no answer of this package
PAGE = (ROOT / "docs" / "conformance.md").read_text(encoding="utf-8")
SCORES = (ROOT / "docs" / "conformance_scores.md").read_text(encoding="utf-8")
ANSWERS: dict[str, dict[str, dict[str, list[str]]]] = json.loads(EXPECTED.read_text())
NAMES = sorted(ANSWERS)
HOURS = "many_k2000_d3"  # pairs one by one, which `make_expected.py many_k2000_d3` takes the time for
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
    arrays = suite.arrays_of(name)
    if name == suite.ONE_CLASS:
        with pytest.raises(InputError, match="1 class; collapse needs at least 2"):
            measure(*map(arrays.get, ORDER))
        return
    small = 3 if len(arrays["labels"]) < 1000 else 997
    monkeypatch.setattr(statistics, "can_compile", lambda: False)
    assert failures(name, measure(*map(arrays.get, ORDER))) == []
    assert failures(name, measure(*map(arrays.get, ORDER), batch_size=small)) == []
    pytest.importorskip("numba")
    monkeypatch.setattr(statistics, "can_compile", lambda: True)
    monkeypatch.setattr(statistics, "COMPILED_FROM", 0)
    if name not in suite.GENERATED:
        arrays, _ = read_arrays(FOLDER / f"{name}.npz", READ)
    assert failures(name, measure(*map(arrays.get, ORDER), batch_size=2 * small + 1)) == []


@pytest.mark.parametrize(
    ("name", "side"),
    [
        ("many_k40_d6_one_sample", 4),
        ("close_means_1e-09", 2),
    ],
)
def test_pairs_in_blocks_conform(name: str, side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red: a block left out; a product that loses digits."""
    monkeypatch.setattr(pairs, "TILE_ENTRIES", side**2)
    arrays = suite.arrays_of(name)
    assert failures(name, measure(*map(arrays.get, ORDER))) == []


def test_every_file_has_answers() -> None:
    """Red: a file that nothing is compared with."""
    assert sorted([*(path.stem for path in FOLDER.iterdir()), *suite.GENERATED]) == NAMES


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in NAMES if name != HOURS])
def test_the_answers_are_what_the_definitions_give(name: str) -> None:
    if name == suite.ONE_CLASS:
        assert {split: dict(found) for split, found in expected_of(name).items()} == ANSWERS[name]
        return
    stored = {key: value for key, (value, _) in answers(name).items()}
    assert {key: text(value) for key, value in all_metrics(layer_of(name)).items()} == stored


@pytest.mark.peers
@pytest.mark.parametrize(
    "package", ["kowalski", "neural_collapse", "nc_toolbox", "torchmetrics", "sklearn", "monai"]
)
@pytest.mark.filterwarnings("ignore")  # theirs
def test_the_pages_tables_are_what_their_script_prints(package: str) -> None:
    pytest.importorskip(package, exc_type=ImportError)
    lines = [line.strip("| ").split(" | ") for line in SCORES.splitlines() if line.startswith("|")]
    kinds = [line for line in lines if len(line) > 4]
    column = kinds[0].index(f"`{package}`")
    with np.errstate(all="ignore"):
        told = {line[0]: [line[column]] for line in kinds[1:] if line[column] != NONE}
        assert told == {kind: cells for kind, cells in by_kind([package]) if cells != [NONE]}
        [(_, cells)] = by_package([package])
    assert [f"`{package}`", *cells] in lines


def test_the_page_says_how_many() -> None:
    counts = len(NAMES), sum(len(answers(name)) for name in NAMES)
    assert f"holds {counts[0]} small feature files" in PAGE
    given = sum(len(answers(name)) for name in NAMES if name != suite.ONE_CLASS)
    assert f"in all {given} values" in PAGE
    readme = (FOLDER.parent / "README.md").read_text(encoding="utf-8")
    assert readme.splitlines()[2].startswith(f"{counts[0]} small feature files")


OWN = """
def nc1(features, labels):
    means = [features[labels == k].mean(axis=0) for k in range(labels.max() + 1)]
    centre = sum(means) / len(means)
    within = sum(((h - means[y]) ** 2).sum() for h, y in zip(features, labels)) / len(labels)
    return within / (sum(((m - centre) ** 2).sum() for m in means) / len(means))

def unknown(features, labels):
    return {"nc1": 0.0}

def broken(features, labels):
    raise ValueError("no such thing")

def zero(features, labels):
    return 0.0
"""


# A collapsed file, ordinary ones, one beyond the range of squares, a generated one, one of a single class.
FEW = ("simplex_k3", "ordinary_k3_d3", "ordinary_k3_d16", "scale_1e200", "unbalanced_1e5", suite.ONE_CLASS)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions of one's own, that are tried on a few files."""
    some = [case for case in suite.cases() if case.name in FEW]
    monkeypatch.setattr("ncpipe.commands.conformance.cases", lambda: some)
    (tmp_path / "own_metrics.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


def scored(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["conformance", *arguments])


def row_of(result: Result, metric: str) -> list[str]:
    """Of all files how many conform, and how many to 1e-3; then what the table says of the others."""
    [row] = [line for line in result.stdout.splitlines() if line.startswith(metric)]
    return re.split(r"\s{2,}", row.strip())[1:]


def test_the_command_scores_ones_own_function(own: None) -> None:
    """The naive ratio is right on ordinary files. Red: files left out, a verdict turned round."""
    result = scored("own_metrics:nc1", "--metric", "nc1_trace_ratio")
    assert result.exit_code == 1
    wrong = ["inf", "scale_1e200: nan, exactly 0.144339", "scales 1e-310 to 1e300"]
    assert row_of(result, "nc1_trace_ratio") == ["5 of 6", "5 of 6", *wrong]


def test_a_command_in_any_language(own: None, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import sys, json; print(json.dumps({'tcv': 0.0}))")
    result = scored("--npz-command", f"{sys.executable} program.py {{}}", "--metric", "tcv")
    assert result.exit_code == 1
    assert row_of(result, "tcv")[0] == "1 of 5"  # the collapsed one; of one class the suite has no tcv


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give MODULE:FUNCTION or --npz-command"),
        (["own_metrics:none"], "own_metrics:none"),
        (["no_such_module:f"], "no_such_module"),
        (["own_metrics:unknown"], "nc1: not a metric of the suite"),
        (["own_metrics:nc1"], "name its metric with --metric"),
        (["own_metrics:nc1", "--metric", "nc9"], "--metric nc9: unknown"),
        (["--npz-command", "cat"], "write {} for"),
        (["--npz-command", "no-such-program {}"], "no-such-program: no such program"),
    ],
)
def test_mistakes_are_one_line(own: None, arguments: list[str], said: str) -> None:
    result = scored(*arguments)
    assert isinstance(result.exception, InputError)
    assert said in str(result.exception)


def test_a_number_for_one_class_is_wrong_and_an_error_right(own: None) -> None:
    (case,) = [case for case in suite.cases() if case.has_one_class]
    for found, right in ((0.0, False), (None, True)):
        assert suite.Verdict(case, "train", "cdnv", found).conforms is right
    assert row_of(scored("own_metrics:zero", "--metric", "cdnv"), "cdnv")[0] == "1 of 6"  # the collapsed one
    assert row_of(scored("own_metrics:broken", "--metric", "cdnv"), "cdnv")[0] == "1 of 6"  # one class
