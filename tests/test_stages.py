"""Stages, run columns and keys of a study's own: what its study.py adds beyond what an experiment names."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import (
    Command,
    clear_code_digests,
    experiment_tree,
    measure_runs,
    params_tree,
    refused_by,
    write_params,
)
from pipeline import ROOT
from ruamel.yaml import YAML
from studies import STAGES

from ncpipe.claims.evidence import Tables
from ncpipe.commands.code import write_code
from ncpipe.commands.fetch import fetch
from ncpipe.commands.grid import write_grid
from ncpipe.commands.json_schema import SCHEMA_FILE, schema_text
from ncpipe.commands.new import create_study
from ncpipe.commands.train import train
from ncpipe.config.params import load_params, make_run, parse_params
from ncpipe.config.run import as_json
from ncpipe.datasets.prepare import prepare
from ncpipe.features.trained_run import TrainedRun
from ncpipe.report.contents import contents
from ncpipe.runs.trained_runs import train_runs, trained_runs
from ncpipe.system.errors import InputError
from ncpipe.system.tensor_files import load_tensors
from ncpipe.tables.keys import rows_at
from ncpipe.tables.stage_tables import stage_table
from ncpipe.training.loop import starts_of

FURTHER = {"limit": 2.5}


@pytest.fixture(autouse=True)
def study(study_folder: Path) -> None:
    write_study()


def write_study(text: str = STAGES, **further: object) -> None:
    Path("study.py").write_text(text, encoding="utf-8")
    tree = params_tree([2], [0, 1], one=experiment_tree(), two=experiment_tree(loss="mse"))
    with Path("params.yaml").open("w", encoding="utf-8") as file:
        yaml = YAML()
        yaml.representer.ignore_aliases = lambda _: True
        yaml.dump(tree | (further or FURTHER), file)


@pytest.fixture
def measured() -> None:
    measure_runs("one", "two", depths=[2], seeds=[0, 1])


def test_a_stage_for_each_experiment_writes_its_rows(measured: None, command: Command) -> None:
    """The numbers are NumPy's, of stored weights. Red: another experiment's runs; an option that is lost."""
    for name in ("one", "two"):
        assert command("stage", "norms", "--experiment", name, "--power", "3") in (0, None)
    table = pd.read_csv("data/norms/two/norms.csv")
    assert list(table.columns) == ["experiment", "depth", "seed", "norm", "again", "samples"]
    for row in table.to_dict("records"):
        weight = load_tensors(Path(f"data/runs/two/L2/s{row['seed']}/model.safetensors"))["last.weight"]
        w = weight.double().numpy()
        assert row["norm"] == pytest.approx((np.abs(w) ** 3).sum() ** (1 / 3), rel=1e-6)
        assert row["again"] == pytest.approx(np.sqrt((w**2).sum()), rel=1e-12)
        assert (row["experiment"], row["samples"]) == ("two", 24)
    both = stage_table("norms")
    assert list(both["experiment"]) == ["one", "one", "two", "two"]
    pd.testing.assert_frame_equal(both[2:].reset_index(drop=True), table, check_dtype=False)
    tables = object.__new__(Tables)
    pd.testing.assert_frame_equal(tables.stage("norms"), both)
    shown = {grid.name: grid for grid in contents(None, [], [Path("data/norms")], {}).grids}
    assert list(shown) == ["norms-norms"]
    assert len(shown["norms-norms"].rows) == 4


def test_a_stage_computes_with_the_threads_of_params(
    command: Command, capfd: pytest.CaptureFixture[str]
) -> None:
    """Which decide the last digits of its sums. Red: a stage that takes as many as there are cores."""
    counted = '    print(__import__("torch").get_num_threads())\n    figure = Figure()'
    write_study(STAGES.replace("    figure = Figure()", counted))
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        assert command("stage", "limits", "--factor", "2") in (0, None)
    finally:
        torch.set_num_threads(before)
    assert capfd.readouterr().out.splitlines()[0] == str(load_params().compute.threads)


def test_a_trained_run_says_what_the_tables_say(measured: None) -> None:
    """Whole, and of the last layer alone. Red: weights, data or settings other than the pipeline's."""
    runs, metrics = (stage_table("metrics", name) for name in ("runs", "measurements"))
    for trained in trained_runs("one"):
        of_run = {"experiment": "one", **{key: trained.run.columns[key] for key in ("depth", "seed")}}
        row = rows_at(runs, of_run).iloc[0]
        numbers = {name: value for name, value in trained.row.items() if isinstance(value, float)}
        assert {name: row[name] for name in numbers} == pytest.approx(numbers, nan_ok=True)
        assert {*numbers} > {"loss", "inner_penalty", "loss_gap", "train_error"}
        by_hand = TrainedRun(trained.run, trained.weights, prepared=trained.data)
        assert {name: by_hand.row[name] for name in numbers} == pytest.approx(numbers, nan_ok=True)
        assert by_hand.measure(["nc1_trace_ratio"]) == trained.measure_layers(["nc1_trace_ratio"])["last"]
        for layer, values in trained.measure_layers(["nc1_trace_ratio", "rank_means"]).items():
            rows = rows_at(metrics, of_run | {"layer": layer, "split": "train"}).set_index("metric")["value"]
            for name in values.keys() & {*rows.index}:
                assert values[name] == pytest.approx(rows[name], rel=1e-12)
        samples = trained.samples(trained.data.train)
        wrong = trained.network(samples.inputs).argmax(1) != samples.labels
        assert wrong.double().mean().item() == trained.row["train_error"]


def test_runs_of_any_keys_are_made_and_trained() -> None:
    """Red: a value that is not taken; a mistake without its key; another order of what comes back."""
    keys = as_json(load_params().experiments["one"])
    runs = [make_run("mine", 2, seed, keys, "penalty.value", 0.5) for seed in (1, 0)]
    assert {run.spec.penalty.value for run in runs} == {0.5}
    assert train_runs(runs, last_epoch, workers=1) == [(1, 0.5), (0, 0.5)]
    same_name = [make_run("mine", 2, 0, keys | {"epochs": epochs}) for epochs in (1, 3, 2)]
    assert train_runs(same_name, count_of_epochs, workers=1) == [1, 3, 2]
    with pytest.raises(InputError, match=r"^experiments\.mine\.epochs: 0 is out"):
        make_run("mine", 2, 0, keys | {"epochs": 0})
    with pytest.raises(InputError, match=r"^here\.values: experiments\.mine\.penalty\.value: -1 is out"):
        make_run("mine", 2, 0, keys, "penalty.value", -1, "here")


def count_of_epochs(trained: TrainedRun) -> int:
    return trained.history[-1].epoch


def last_epoch(trained: TrainedRun) -> tuple[int, float]:
    """Of a run that was just trained; its history is that of its epochs."""
    assert trained.history[-1].epoch == trained.run.spec.epochs
    return trained.run.seed, trained.run.spec.penalty.value


def test_columns_of_runs_are_the_studys(measured: None) -> None:
    """Red: columns that the package's rows lack or overwrite."""
    for name in ("one", "two"):
        runs = pd.read_csv(f"data/metrics/{name}/runs.csv")
        for _, row in runs.iterrows():
            w = load_tensors(Path(f"data/runs/{name}/L2/s{row['seed']}/model.safetensors"))["last.weight"]
            assert row["square"] == pytest.approx((w.double().numpy() ** 2).sum(), rel=1e-12)
            assert row["twice"] == 2 * row["square"]
            assert row["kind"] == {"one": "ce", "two": "mse"}[name]


def test_a_stage_of_the_sweep_reads_the_studys_keys(command: Command) -> None:
    """Its files are one folder, of equal bytes each time. Red: lost keys; a figure no report shows."""
    folders = []
    for _ in "ab":
        assert command("stage", "limits", "--factor", "2") in (0, None)
        folders.append({path.name: path.read_bytes() for path in Path("data/limits").iterdir()})
    assert folders[0] == folders[1]
    assert set(folders[0]) == {"limits.csv", "line.png", "line.svg"}
    assert folders[0]["limits.csv"] == b"limit\n5.0\n"
    page = contents(None, [], [Path("data/limits")], {})
    assert [picture.name for picture in page.pictures] == ["limits-line"]
    assert {name: stage.report for name, stage in load_params().study.stages.items()} == {
        "norms": True,
        "limits": False,
    }


def test_keys_of_the_study_are_read_checked_and_explained() -> None:
    """As the package's own. Red: a key that params.yaml may not have; a schema without it."""
    params = load_params()
    assert (params.limit, params.word) == (2.5, "norm")  # type: ignore[attr-defined]
    schema = json.loads(schema_text("params.schema.json", params.study))["$defs"]["Params"]
    assert schema["properties"]["limit"]["description"] == "largest norm."
    assert "limit" in schema["required"]
    assert "limit" not in json.loads((ROOT / SCHEMA_FILE).read_text())["$defs"]["Params"]["properties"]
    with pytest.raises(InputError, match=r"^limit: unknown key; "):
        parse_params(params_tree([2], [0], one=experiment_tree()) | FURTHER)


@pytest.mark.parametrize(
    ("further", "words"),
    [
        ({"word": "x"}, r"^params\.yaml: limit: missing; add it$"),
        ({"limit": -1.0}, r"^params\.yaml: limit: -1.0 is out of range; it must be > 0.0 \(line \d+\)$"),
        ({"limit": 11.0}, r"^params\.yaml: limit: too large for us \(line \d+\)$"),
        ({"limit": 1.0, "wort": "x"}, r"^params\.yaml: wort: unknown key; did you mean 'word'\?"),
    ],
)
def test_a_mistake_in_the_studys_keys_is_one_line(further: dict[str, object], words: str) -> None:
    write_study(**further)
    with pytest.raises(InputError, match=words):
        load_params()


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        (STAGES, ["norm"], r"^ncpipe: stage: unknown 'norm'; did you mean 'norms'\?"),
        ("", ["norms"], r"^ncpipe: stage: unknown 'norms'; study\.py beside params\.yaml has no table S"),
        (STAGES, ["limits", "--factor", "-1"], r"^ncpipe: --factor: -1\.0 is out of range; it must be > 0"),
        ("    return 1 / 0", ["limits"], r"^ncpipe: study\.py: line \d+: limits: ZeroDivisionError: "),
        ("    return 7", ["limits"], r"^ncpipe: study\.py: line \d+: limits gives int; return rows"),
        ("    return None", ["limits"], r"^ncpipe: study\.py: line \d+: limits gives NoneType; return rows"),
        ("    return [1]", ["limits"], r"^ncpipe: study\.py: line \d+: limits gives a row of type int; "),
        (STAGES, ["norms", "--experiment", "../runs"], r"^ncpipe: --experiment: unknown '\.\./runs'; "),
        ("    return {}", ["limits"], r"^ncpipe: study\.py: line \d+: limits gives nothing; return rows"),
        ("    import torch\n    return [{'a': torch.ones(2)}]", ["limits"], r".* Tensor \(2,\) in a row"),
        ("    return []", ["limits"], r"^ncpipe: study\.py: line \d+: limits gives no rows for limits, so "),
        ("    return {'a b': []}", ["limits"], r"^ncpipe: study\.py: line \d+: limits gives the name 'a b'"),
        ("    yield {'a': 1}\n    1 / 0", ["limits"], r"^ncpipe: study\.py: line \d+: limits: ZeroDivision"),
    ],
)  # fmt: skip
def test_a_stage_that_fails_is_one_line_and_writes_nothing(
    text: str, words: list[str], message: str, command: Command
) -> None:
    """Red: a traceback; a folder that is half written, or an older one that is gone."""
    Path("data/limits").mkdir(parents=True)
    Path("data/limits/old.csv").touch()
    if text.startswith("    "):
        text = STAGES.partition("def limits")[0] + f"def limits():\n{text}\n\n\nPARAMS = Limits\n"
        text += "STAGES = {'limits': Stage(limits)}\n"
    write_study(text, **({} if text else {"about": {}}))
    assert re.match(message, str(command("stage", *words)))
    assert [path.name for path in Path("data/limits").iterdir()] == ["old.csv"]


def test_a_stage_that_is_stopped_says_so_by_its_exit_code(command: Command) -> None:
    """Red: 0, after which `ncpipe stage a && ncpipe stage b` goes on."""
    text = (
        STAGES.partition("def limits")[0]
        + "def limits():\n    raise KeyboardInterrupt\n\n\nPARAMS = Limits\n"
    )
    write_study(text + "STAGES = {'limits': Stage(limits)}\n")
    assert command("stage", "limits") == 130
    assert not Path("data/limits").exists()


def test_options_after_the_name_are_the_functions(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    """Red: the help of `ncpipe stage` itself; a misspelt option that is passed over."""
    assert command("stage", "norms", "--help") in (0, None)
    assert "--power" in capsys.readouterr().out
    assert command("stage", "norms", "--experiment", "one", "--powr", "3") == 2


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ('{"loss": square}', "RUN_COLUMNS: the column 'loss' exists already; take another name"),
        ('{"square": lambda trained: trained.features.weight}', "<lambda> gives Tensor for one L=2 seed=0"),
        ('{("a", "b"): lambda trained: {"a": 1}}', "gives dict for one L=2 seed=0; return a dict with"),
        ('{("a", "b"): lambda trained: 1.0}', "gives float for one L=2 seed=0; return a dict with a"),
        ('{"square": lambda trained: 1 / 0}', "<lambda>: ZeroDivisionError: division by zero"),
    ],
)  # fmt: skip
def test_a_wrong_column_is_one_line(columns: str, words: str) -> None:
    write_study(re.sub(r"RUN_COLUMNS = .*", f"RUN_COLUMNS = {columns}", STAGES))
    with pytest.raises(InputError, match=r"^study\.py: line \d+: ") as caught:
        measure_runs("one", depths=[2], seeds=[0, 1])
    assert words.removeprefix("RUN_COLUMNS: ").removeprefix("<lambda>: ") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_digest_of_a_stage_is_of_its_code() -> None:
    """A stage counts by its function's file. Red: an edit that no stage runs for, or that trains again."""
    Path("dvc.yaml").write_text("stages:\n  code: {cmd: ncpipe code, always_changed: true}\n")
    Path("ours.py").write_text("def limits(factor: float):\n    return [{'limit': factor}]\n")
    text = STAGES.replace("def limits(", "def unused(").replace(
        "STAGES =", "from ours import limits\n\nSTAGES ="
    )

    def digests() -> tuple[str, ...]:
        clear_code_digests()
        write_code()
        paths = ("sweep/limits", "experiments/one/norms", "experiments/one/train", "experiments/one/measure")
        return tuple(Path(f"data/code/{path}.txt").read_text() for path in paths)

    write_study(text)
    before = digests()
    Path("ours.py").write_text("def limits(factor: float):\n    return [{'limit': 2 * factor}]\n")
    of_module = digests()
    assert before[0] != of_module[0]
    assert before[2] == of_module[2]
    write_study(text.replace("STAGES = {", 'STAGES = {"again": Stage(limits), '))
    assert Path("data/code/sweep/limits.txt").is_file()
    assert digests()[2] == before[2]
    assert Path("data/code/sweep/again.txt").is_file()
    write_study(text.replace("features.weight.square", "features.weight.mul(2).square"))
    assert digests()[3] != before[3]


def test_a_study_with_a_stage_is_created_and_runs(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red: a starter whose stage fails; a stage that dvc.yaml does not name."""
    Path("study.py").unlink()
    create_study("./lbfgs", with_stage=True)
    monkeypatch.chdir("lbfgs")
    clear_code_digests()
    measure_runs("mixture_rn1", depths=[2, 4], seeds=[0, 1])
    write_code()
    assert command("stage", "longer", "--experiment", "mixture_rn1") in (0, None)
    assert list(stage_table("longer")["epoch"]) == [0, 20] * 4
    stages = YAML(typ="safe").load(Path("dvc.yaml"))["stages"]
    assert stages["longer"]["outs"] == ["data/longer/${item.experiment}"]
    assert "data/longer" in stages["report"]["deps"]
    assert Path("data/code/experiments/mixture_rn1/longer.txt").is_file()


@pytest.mark.parametrize("further", [{"own_code": True}, {"own_loop": True}])
def test_one_study_py_is_made(further: dict[str, bool]) -> None:
    with pytest.raises(InputError, match=r"^--stage: has a study\.py of its own; leave out"):
        create_study("./both", with_stage=True, **further)


START = """
import torch


def halves(run, data):
    shapes = {"lin0.weight": (8, 6), "lin0.bias": (8,), "last.weight": (data.classes, 8)}
    shapes |= {"blocks.0.lin.weight": (8, 8), "blocks.0.lin.bias": (8,)}
    return {name: torch.full(shape, 0.5 + run.seed) for name, shape in shapes.items()}


STARTS = {"halves": halves}
"""


def start_from(text: str, start: str = "halves") -> None:
    Path("study.py").write_text(text, encoding="utf-8")
    history = {"metrics": ["nc2_etf"], "at": [0, 1]}
    write_params([2], [0, 1], one=experiment_tree(start=start, history=history))


def test_runs_start_from_the_weights_of_the_study() -> None:
    """Each from its own. Red: random weights; those of another seed."""
    start_from(START)
    write_grid()
    fetch("one")
    train("one", 2, workers=1)
    for seed in (0, 1):
        weights = load_tensors(Path(f"data/runs/one/L2/s{seed}/kept/e0.safetensors"))
        assert {float(value) for weight in weights.values() for value in weight.flatten()} == {0.5 + seed}
    assert json.loads(Path("data/runs/one/L2/s0/run.json").read_text())["inputs"]["spec"]["start"] == "halves"


def test_runs_of_a_stage_start_from_them_too() -> None:
    """Red: `train_runs` that begins at random, without a word."""
    start_from(START)
    params = load_params()
    assert train_runs([params.run("one", 2, seed) for seed in (0, 1)], first_weight, 1) == [0.5, 1.5]
    keys = as_json(params.experiments["one"])
    assert refused_by(train_runs, [make_run("mine", 2, 0, keys)], first_weight, 1) == (
        "mine L=2 seed=0: no study has the start 'halves'; take a run of load_params()"
    )


def first_weight(trained: TrainedRun) -> float:
    return float(trained.snapshots[0]["lin0.bias"][0])


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (
            '"halves": halves',
            '"half": halves',
            r"experiments\.one\.start: unknown 'halves'; did you mean",
        ),
        ("STARTS", "OTHERS", r"experiments\.one\.start: unknown 'halves'; no study\.py beside this file"),
        ('"halves": halves', '"halves": 3', r"line \d+: STARTS\[halves\] is of type int, no function"),
        ("(8, 6)", "(6, 8)", r"line \d+: halves gives \(6, 8\) for lin0\.weight of one L=2 seed=0; expected"),
        (
            '"last.weight"',
            '"lost.weight"',
            r"line \d+: halves gives nothing for last\.weight of one",
        ),
        ("    return {", "    {", r"line \d+: halves gives NoneType for one L=2 seed=0; return tensors"),
        ("    return {", "    1 / 0\n    return {", r"line \d+: halves: ZeroDivisionError: division by zero"),
    ],
)
def test_a_start_that_does_not_fit_is_one_line(before: str, after: str, words: str) -> None:
    assert before in START
    start_from(START.replace(before, after))
    with pytest.raises(InputError, match=rf"^(params\.yaml|study\.py): {words}[^\n]*$"):
        starts_of_sweep()


def starts_of_sweep() -> None:
    runs = load_params().runs_of("one")
    starts_of(runs, prepare(runs[0].spec.data, Path("raw"), None, progress=False))
