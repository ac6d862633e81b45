"""study.py beside params.yaml: what it defines is known by its names, and what is wrong in it is one line."""

import json
import re
from operator import attrgetter
from pathlib import Path
from typing import Any

import jsonschema
import pandas as pd
import pytest
import torch
from conftest import Command, experiment_tree, refused_by, write_params
from ruamel.yaml import YAML
from studies import RINGS, WHOLE, changed

from ncpipe.commands.claims import claims
from ncpipe.commands.code import write_code
from ncpipe.commands.fetch import fetch
from ncpipe.commands.grid import write_grid
from ncpipe.commands.json_schema import write_schema
from ncpipe.commands.plot import _figures
from ncpipe.config.params import load_params
from ncpipe.config.study import load_study
from ncpipe.datasets.prepare import prepare
from ncpipe.metrics.study_metrics import entry, own_metrics
from ncpipe.runs.batches import plan, train_batches
from ncpipe.runs.pool import executor
from ncpipe.runs.store import sweep_fingerprints
from ncpipe.system.artifacts import CLAIMS
from ncpipe.system.console import Progress
from ncpipe.system.errors import InputError

SCHEMA = Path(__file__).resolve().parent.parent / "params.schema.json"

OWN: dict[str, Any] = experiment_tree(data=RINGS) | {
    "model": {"architecture": "square", "width": 8},
    "epochs": 100,
    "log_every": 5,
    "history": {"metrics": ["spread"], "at": [0, 1]},
}


@pytest.fixture(autouse=True)
def study(study_folder: Path) -> None:
    write_params([2], [0, 1], own=OWN)


def write_study(text: str = WHOLE) -> None:
    Path("study.py").write_text(text, encoding="utf-8")


def line_of(text: str, words: str) -> int:
    return 1 + text[: text.index(words)].count("\n")


# --- what it defines is known -------------------------------------------------------------------------


def test_names_of_study_py_are_known_in_params_yaml_and_only_there() -> None:
    with pytest.raises(InputError, match=r"'rings' is unknown"):
        load_params()
    write_study()
    spec = load_params().experiments["own"]
    assert (type(spec.model).__name__, type(spec.data).__name__) == ("SquareModel", "RingsData")
    assert load_params().experiments["own"] == spec  # read again, still the same classes
    assert entry("spread").group == "NC1"
    Path("dvc.yaml").write_text("- a list")
    load_study(Path())  # DVC says what is wrong with it
    Path("dvc.yaml").write_text("stages: {")
    with pytest.raises(InputError, match=r"dvc\.yaml: not valid YAML: line 2"):
        load_study(Path())
    Path("dvc.yaml").unlink()
    Path("study.py").unlink()
    with pytest.raises(InputError, match=r"'square' is unknown"):
        load_params()
    assert load_study(Path()).records == ()
    assert entry("spread").name == ""


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("model", {"architecture": "sqare", "width": 8}, "model.architecture: 'sqare' .* 'square'"),
        ("data", RINGS | {"noise": -1.0}, "data.noise: -1.0 is out of range"),
        ("history", {"metrics": ["sprad"], "at": [1]}, "history.metrics: unknown 'sprad'; did you mean 'sp"),
    ],
)
def test_mistakes_in_keys_of_ones_own_are_those_of_any_key(key: str, value: Any, words: str) -> None:
    write_study()
    tree = {name: part for name, part in OWN.items() if name != key} | {key: value}
    write_params([2], [0], own=tree)
    with pytest.raises(InputError, match=words):
        write_grid()


def test_a_network_of_ones_own_says_what_does_not_suit_it() -> None:
    write_study()
    write_params([3], [0], own=OWN)
    assert "sweep.depths: 3 does not suit own: square needs L = 2" in refused_by(load_params)
    images = {"source": "digits", "per_class": 5, "test_per_class": 5, "seed": 0, "normalisation": "unit"}
    write_params([2], [0], own=OWN | {"data": images})
    assert "square takes vectors, digits has none" in refused_by(load_params)


def test_a_schema_written_beside_study_py_has_its_keys() -> None:
    write_study()
    write_schema()
    validator = jsonschema.Draft202012Validator(json.loads(Path("params.schema.json").read_text()))
    tree = YAML(typ="safe").load(Path("params.yaml"))
    assert list(validator.iter_errors(tree)) == []
    tree["experiments"]["own"]["model"]["widht"] = 3
    assert list(validator.iter_errors(tree)) != []
    Path("study.py").unlink()
    write_schema()
    assert Path("params.schema.json").read_bytes() == SCHEMA.read_bytes()


def test_a_run_has_its_study_with_it_in_another_process() -> None:
    """Functions without a name too. Red: no columns or metrics there; an entry that cannot be pickled."""
    write_study(WHOLE + "\nRUN_COLUMNS = {'two': lambda trained: 2}\n")
    run = load_params().run("own", 2, 0)
    with executor(1) as process:
        assert process.submit(attrgetter("study.columns"), run).result() == ("two",)
    Path("study.py").unlink()
    assert not load_study(Path()).metrics
    assert [metric.name for metric in own_metrics(run.study)] == ["spread"]


# --- what is wrong in it is one line ------------------------------------------------------------------


def test_a_network_without_a_method_is_one_line_with_its_place() -> None:
    """Its class may be the builder itself. Red: the TypeError of Python, with all its lines."""
    text = changed(WHOLE, ("def parameter_groups", "def groups"), ("(flatten, build)", "(flatten, Square)"))
    write_study(text)
    line = line_of(text, "class Square(")
    said = f"study.py: line {line}: Square lacks parameter_groups, which a Network defines"
    assert refused_by(load_params) == said


def test_a_mistake_in_a_module_beside_study_py_is_told_with_its_line_there() -> None:
    """Red: line 1 of study.py."""
    function = WHOLE[WHOLE.index("def rings") : WHOLE.index("DATA = ")]
    write_study(WHOLE.replace(function, "from helper import rings\n"))
    Path("helper.py").write_text("\n\ndef rings(spec):\n    return [1]\n")
    with pytest.raises(InputError, match=r"^helper\.py: line 3: what rings gives is of type list"):
        fetch("own")


def test_a_kind_that_no_array_has_is_one_line() -> None:
    text = WHOLE.replace('kind: ClassVar[str] = "vector"', 'kind: ClassVar[str] = "vectors"')
    write_study(text.replace('if kind == "vector" else', "if True else"))
    with pytest.raises(
        InputError, match=r"^study\.py: line \d+: the kind of RingsData has to be one of vector, image"
    ):
        prepare(load_params().experiments["own"].data, Path("raw"), None, progress=False)


def test_a_network_that_fails_is_one_line(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    """By `ncpipe train` and in a sweep, below PyTorch's own calls too. Red: a traceback; the line of another
    file; what went wrong in one experiment that takes a sweep's others with it."""
    text = WHOLE.replace("self.first(x).square()", "self.first(x[:, :1]).square()")
    write_study(text)
    fetch("own")
    line = line_of(text, 'yield Layer("last"')
    mistake = rf"study\.py: line {line}: Square\.layers: RuntimeError: .+"
    assert re.fullmatch(f"ncpipe: {mistake}", command("train", "--experiment", "own", "--workers", "1"))
    params = load_params()
    fingerprints = sweep_fingerprints(params, params.compute_on(None))
    planned, failures = plan(fingerprints, torch.device("cpu"), 1, keep_going=True)
    assert planned == []
    assert failures == {fingerprint.key() for fingerprint in fingerprints}
    assert train_batches([fingerprints], 1, 60.0, Progress("train", 2, 1.0), keep_going=True) == failures
    assert re.fullmatch(f"(.*\n)*ncpipe: {mistake}\n(.*\n)*ncpipe: {mistake}\n", capsys.readouterr().err)


# --- what has to be told of it -------------------------------------------------------------------------


def test_dvc_has_to_watch_study_py() -> None:
    write_study()
    text = "stages:\n  code:\n    cmd: ncpipe code\n    deps:\n      - ncpipe\n"
    Path("dvc.yaml").write_text(text)
    with pytest.raises(InputError, match=r"^dvc\.yaml: .*add the line `- study\.py` to the deps .* code$"):
        write_code()
    Path("dvc.yaml").write_text(text + "      - study.py\n")
    write_code()
    Path("dvc.yaml").write_text(text.replace("deps:", "always_changed: true\n    deps:"))
    write_code()


# --- its claims' calls and its figures ----------------------------------------------------------------

PAPER = """
from matplotlib.figure import Figure
from ncpipe.config.bounds import Count


def halves(count: Count, start=1.0):
    return start / 2**count


def by_products(count, start):
    for _ in range(count):
        start = start / 2
    return start


def lines(table):
    figure = Figure()
    figure.subplots().plot(table("points")["value"])
    return figure


CALLS = {"halves": (halves, by_products), "halves.alone": (halves,)}
FIGURES = {"lines": lines}
"""
CLAIM = """- {id: halved, ref: x, statement: y, quantity: theory, call: halves, args: {count: 3, start: 4.0},
  against: numerical, expect: {within: 1.0e-12}}
"""


def test_a_claim_calls_a_function_of_the_study() -> None:
    """Red: an unknown call; one that hides the package's; a traceback."""
    write_study(PAPER)
    Path("claims.yaml").write_text(CLAIM)
    claims()
    table = pd.read_csv(CLAIMS / "claims.csv")
    assert table[["id", "value", "verdict"]].to_numpy().tolist() == [["halved", 0.5, "agrees"]]
    for text, words in (
        (CLAIM.replace("count: 3", "count: 0"), "halved.args.count"),
        (CLAIM.replace("count: 3, start: 4.0", "count: 3, begin: 4.0"), "halved.args.begin: unknown"),
        (CLAIM.replace("call: halves", "call: halves.alone"), "halves.alone has no numerical check"),
    ):
        Path("claims.yaml").write_text(text)
        with pytest.raises(InputError, match=words):
            claims()
    Path("claims.yaml").write_text(CLAIM)
    for before, after, words in (
        ("start / 2**count", "{}[count]", r"study\.py: line 7: halves: KeyError: 3"),
        ('"halves.alone"', '"gufm.value"', "the call 'gufm.value' exists already"),
        ('"halves.alone"', '"since_fit"', "the call 'since_fit' exists already"),
        ("(halves,)", "halves", "has to be a tuple of one function, or of two"),
    ):
        write_study(PAPER.replace(before, after))
        with pytest.raises(InputError, match=words):
            claims()


def test_a_figure_of_the_study_is_drawn_from_its_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = {"points": pd.DataFrame({"value": [1.0, 3.0]})}
    monkeypatch.setattr("ncpipe.commands.plot.read_table", lambda path, _: tables[path.stem])
    monkeypatch.setattr("ncpipe.commands.plot.sweep_figures", lambda *_: {})
    write_study(PAPER)
    write_params([2], [0], plain=experiment_tree())
    (line,) = _figures()["lines"]().axes[0].get_lines()
    assert list(line.get_ydata()) == [1.0, 3.0]
    for before, after, words in (
        ("return figure", "return 3", r"study\.py: line 16: lines gives int; return a matplotlib Figure"),
        ('{"lines"', '{"a/b"', r"study\.py: line 23: the figure 'a/b' exists already, or is no name"),
        ('table("points")["value"]', 'table("points")["values"]', r"line 18: lines: KeyError: 'values'"),
    ):
        write_study(PAPER.replace(before, after))
        with pytest.raises(InputError, match=words):
            _figures()["lines"]()
