"""The command line: a mistake or a damaged file is one line that names it, and nothing is written."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from conftest import Command, experiment_tree
from conftest import write_params as write_small_params
from ruamel.yaml import YAML

from ncpipe.__main__ import PIPELINE, main
from ncpipe.config.study import load_study
from ncpipe.tables.files import TEXT

ROOT = Path(__file__).resolve().parent.parent
SWEPT = YAML(typ="safe").load(ROOT / "dvc.yaml")["stages"]  # of every sweep
TRAIN = "train --experiment one --depth"
STEPS = (
    "grid",
    "fetch --experiment one",
    f"{TRAIN} 2 --seed 0",
    f"{TRAIN} 2 --seed 1",
    "extract --experiment one",
    "measure --experiment one",
    "aggregate",
)

Fail = Callable[[str], str]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder data after every step but plot. To be copied."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_params()
        for step in STEPS:
            succeed(patch, step)
    return folder / "data"


def succeed(patch: pytest.MonkeyPatch, arguments: str) -> None:
    patch.setattr(sys, "argv", ["ncpipe", *arguments.split()])
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code, f"{arguments}: {stop.value.code}"


@pytest.fixture
def in_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with params.yaml, the working directory."""
    monkeypatch.chdir(tmp_path)
    write_params()


@pytest.fixture
def fail(in_sweep: None, command: Command, capsys: pytest.CaptureFixture[str]) -> Fail:
    """The one line that `ncpipe ARGUMENTS` says when it fails; checks that it writes nothing below data."""

    def fail_arguments(arguments: str) -> str:
        before = files()
        line: str = command(*arguments.split())  # what Python prints on standard error, and ends with 1
        assert line.startswith("ncpipe: ")
        assert "\n" not in line
        assert capsys.readouterr().out == ""
        assert files() == before
        return line

    return fail_arguments


def write_params() -> None:
    write_small_params([2], [0, 1], one=experiment_tree())


def files() -> dict[str, bytes]:
    paths = (path for path in Path("data").rglob("*") if path.is_file())
    return {str(path): path.read_bytes() for path in paths if path.suffix != ".lock"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("fetch --experiment onne", "experiment 'onne' is not in params.yaml; did you mean 'one'"),
        ("fetch --experiment a;b", "experiment 'a;b' is not in params.yaml"),
        ("train --experiment onne", "experiment 'onne' is not in params.yaml; did you mean 'one'"),
        (f"{TRAIN} 1 --seed 0", "depth: 1 does not suit one"),
        (f"{TRAIN} 0 --seed 0", "depth: 0 is out of range"),
        (f"{TRAIN} 2 --seed 4294967296", "seed: 4294967296 is out of range; it must be <= 4294967295"),
        (f"{TRAIN}=2 --seed -1", "seed: -1 is out of range"),  # a negative number is no option
        (f"{TRAIN} 2 --value 0.5 --seed 0", "value 0.5: sweep.axis"),
        (f"{TRAIN} -2", "train one depth=-2: no such runs"),
        (f"{TRAIN} 2 --seed 0", "data/prepared/one/facts.json: not found"),
        ("extract --experiment one", "data/grid/one.csv: not found"),
        ("measure --experiment one", "data/grid/one.csv: not found"),
        ("aggregate", "data/grid/one.csv: not found"),
        ("plot", "data/results/runs.csv: not found"),
        ("fill", "fill: the data of one are not prepared; run dvc repro fetch"),
        ("report --to .", ".: is a folder; give a file"),
    ],
)
def test_what_is_missing_or_wrong_is_named(arguments: str, message: str, fail: Fail) -> None:
    assert message in fail(arguments)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("data/prepared/one/tensors.safetensors", f"{TRAIN} 2 --seed 7"),  # that has no result yet
        ("data/prepared/one/facts.json", f"{TRAIN} 2 --seed 0"),
        ("data/prepared/one/tensors.safetensors", "extract --experiment one"),
        ("data/grid/one.csv", "extract --experiment one"),
        ("data/features/one/L2/s1.safetensors", "measure --experiment one"),
        ("data/metrics/one/measurements.csv", "aggregate"),
        ("data/metrics/one/history.csv", "aggregate"),
        ("data/results/points.csv", "plot"),
        ("data/results/runs.csv", "plot"),
    ],
)
@pytest.mark.parametrize("content", [b"\xff\xfe\x00", None])
def test_a_damaged_file_is_named(
    name: str, arguments: str, content: bytes | None, finished: Path, fail: Fail
) -> None:
    """Or a missing one, where nothing is left of it."""
    shutil.copytree(finished, "data")
    if arguments.startswith("train"):  # as DVC does before it asks for a run
        shutil.rmtree("data/runs/one/L2/s0")
    Path(name).unlink()
    if content is not None:
        Path(name).write_bytes(content)
    assert name in fail(arguments)


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "{}",
        '{"checksum": 3}',
        '{"checksum": "%s", "kind": "vector", "classes": "3", "vocabulary": null, "facts": {}}' % ("0" * 64),
        '{"checksum": "SUM", "kind": "vector", "classes": 7, "vocabulary": null, "facts": {}}',
        '{"checksum": "SUM", "kind": "tokens", "classes": 3, "vocabulary": 9, "facts": {}}',
        "[" * 100_000,
        "FLIPPED",
    ],
    ids=range(8),
)
def test_facts_of_a_wrong_kind_are_damaged(content: str, finished: Path, fail: Fail) -> None:
    """Red: a KeyError, or a network with three classes too few."""
    shutil.copytree(finished, "data")
    path = Path("data/prepared/one/facts.json")
    whole = path.read_text()
    flipped = whole.replace('"classes": 3', '"classes": 2')
    assert flipped != whole
    path.write_text(content.replace("SUM", json.loads(whole)["checksum"]).replace("FLIPPED", flipped))
    for arguments in (f"{TRAIN} 2 --seed 7", "extract --experiment one"):
        assert "data/prepared/one/facts.json: damaged" in fail(arguments)


NAMED = """\
- id: "NA"
  ref: "null"
  statement: "nan"
  quantity: slope
  experiment: {}
  metric: nc1_trace_ratio
  expect: {{below: 0}}
"""


def test_every_command_reads_an_experiment_that_is_called_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Red: a name that some table is read with as a missing value, after all training; a column of text that
    `tables.files` does not know, which would be read as numbers if its names look so."""
    monkeypatch.chdir(tmp_path)
    name = "None"
    write_small_params([2, 3], [0, 1], **{name: experiment_tree()})
    Path("claims.yaml").write_text(NAMED.format(json.dumps(name)))
    steps = ["code", "grid", "fetch --experiment None", "fill", "train --experiment None"]
    steps += [
        "extract --experiment None",
        "measure --experiment None",
        "aggregate",
        "plot",
        "claims",
        "report",
    ]
    for step in (*steps, "publish published", "plot --from published --to figures", "status"):
        succeed(monkeypatch, step)
    assert re.search(rf"^{name} +2 +2 +2$", capsys.readouterr().out, re.M)
    assert f"curves_{name}.svg" in os.listdir("data/figures")
    assert f">{name}<" in Path("data/report.html").read_text()
    for path in [*Path("data/metrics").rglob("*.csv"), *Path("data").glob("[rc]*/*.csv")]:
        cells = pd.read_csv(path, dtype="str", keep_default_na=False)
        for column in cells.columns[[not is_numeric(cells[column]) for column in cells]]:
            assert column in TEXT or (path.name, column) == ("claims.csv", "runs"), f"{path}: {column}"


def is_numeric(cells: pd.Series) -> bool:
    return all(re.fullmatch(r"|True|False|-?inf|-?\d+(\.\d+)?(e[-+]?\d+)?", cell) for cell in cells)


# The program itself


@pytest.mark.parametrize("words", ["code", "report", "clean", "sweep --cancel", "status", "grid"])
def test_a_folder_without_a_study_is_one_line(
    words: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red: an empty page, digests or a list of nothing, and success."""
    monkeypatch.chdir(tmp_path)
    said = command(*words.split())
    assert said.startswith("ncpipe: params.yaml: not found; run this beside a params.yaml")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments",
    [
        "train --experiment one --depth",
        "train one",
        "train --experiment one --seed two",
        "train --depth 2",
        "fetch --experiment",
    ],
)
def test_arguments_named_amiss_are_no_traceback(
    arguments: str, in_sweep: None, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    """Red: a name that counts as its value, or one argument given twice."""
    assert command(*arguments.split()) == 2
    assert "rror" in capsys.readouterr().err


@pytest.fixture
def shown(
    command: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """What `ncpipe ARGUMENTS` prints."""
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments: str) -> str:
        assert not command(*arguments)
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize("name", ["theory", "low_rank", "low_rank_real", "regimes_models", "stationary"])
def test_the_further_stages_of_a_study_are_those_of_its_study_py(name: str, tmp_path: Path) -> None:
    """Red: a stage that dvc.yaml starts and study.py does not have."""
    stages = YAML(typ="safe").load(ROOT / f"stages/{name}/dvc.yaml")["stages"]
    assert {*load_study(ROOT / f"stages/{name}").stages} == {*stages} - {*SWEPT}
    load_study(tmp_path / "nowhere")


def test_no_switch_is_said_to_take_a_value(shown: Callable[..., str]) -> None:
    """Of the program and of a command, whose switches two classes show."""
    assert "--version" in shown("--help")
    assert "--keep-going" in shown("sweep", "--help")
    assert "<bool>" not in shown("--help") + shown("sweep", "--help")


def test_the_shell_completes_commands_and_experiments(
    in_sweep: None, monkeypatch: pytest.MonkeyPatch, shown: Callable[..., str]
) -> None:
    monkeypatch.setenv("_NCPIPE_COMPLETE", "complete_bash")
    for words, offered in (
        ("ncpipe swe", "sweep"),
        ("ncpipe train --experiment o", "one"),
        ("ncpipe train --experiment x", ""),
    ):
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
        assert shown().strip() == offered
    Path("params.yaml").unlink()
    monkeypatch.setenv("COMP_WORDS", "ncpipe train --experiment o")
    assert shown().strip() == ""


@pytest.mark.parametrize("interrupted", [True, False])
def test_ctrl_c_while_a_lock_is_taken_back_is_an_interrupt(
    interrupted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It comes out of Python's own `threading` as an error of the lock; one without Ctrl-C stays an error."""

    def wait(**_: Any) -> None:
        try:
            if interrupted:
                raise KeyboardInterrupt
        finally:
            raise RuntimeError("release unlocked lock")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ncpipe.commands.cli.app", wait)
    monkeypatch.setattr("ncpipe.commands.cli.install_signal_handlers", lambda: None)
    monkeypatch.setattr("sys.argv", ["ncpipe", "train"])
    with pytest.raises(SystemExit if interrupted else RuntimeError) as stop:
        main()
    if interrupted:
        assert stop.value.code == 130
        assert "interrupted; finished runs are kept, run dvc repro to go on" in capsys.readouterr().err


# Python hears Ctrl-C in these, also where a shell's background job, as pytest may be, ignores it.
LOST = """
import atexit, os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from ncpipe import __main__
from ncpipe.commands import cli

class Slow:
    def __del__(self):
        os.kill(os.getpid(), {number})
        time.sleep(0.01)  # where it is raised, and dropped

def stage():
    {body}

cli.run_cli = stage
sys.argv[1:] = ["aggregate"]
__main__.main()
"""


@pytest.mark.skipif(os.name == "nt", reason="signals")
@pytest.mark.parametrize(
    ("number", "body", "ends"),
    [
        (2, "pass", (0,)),
        (2, "made = Slow(); del made", (130,)),
        (15, "made = Slow(); del made", (130,)),
        (15, "atexit.register(lambda: (os.kill(os.getpid(), {number}), time.sleep(60)))", (-2, -15)),
    ],
)
def test_a_ctrl_c_that_python_drops_ends_a_stage(
    number: int, body: str, ends: tuple[int, ...], tmp_path: Path
) -> None:
    """Red: exit code 0, after which DVC goes on with the next stage."""
    body = f"cli.install_signal_handlers(); {body.format(number=number)}"
    done = subprocess.run(
        [sys.executable, "-c", LOST.format(number=number, body=body)],
        env=os.environ | {"DVC_STAGE": "dvc.yaml:aggregate"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert done.returncode in ends, done.stderr
    assert ("ncpipe: interrupted" in done.stderr) == (done.returncode == 130)


TWICE = """
import os, signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from ncpipe.system import signals

signals.note_ctrl_c()
signals.install_signal_handlers()
for now in {times}:
    signals.time.monotonic = lambda: now
    try:
        os.kill(os.getpid(), {number})
        time.sleep(0.05)
    except KeyboardInterrupt:
        print("interrupt")
    print("saved")
"""


@pytest.mark.skipif(os.name == "nt", reason="signals")
@pytest.mark.parametrize(
    ("number", "times", "interrupts"),
    [(2, (0, 1.9), 1), (2, (0, 2.1), 2), (2, (0, 1.5, 3), 2), (15, (0, 1.9), 1)],
)
def test_a_stop_that_arrives_twice_is_one(number: int, times: tuple[float, ...], interrupts: int) -> None:
    """Red: the second, which `uv run` passes on, ends the checkpoint that the first began to write; Ctrl-C
    every second, which never ends a command that hangs."""
    script = TWICE.format(number=number, times=times)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split().count("interrupt") == interrupts
    assert done.stdout.split()[-1] == "saved"


@pytest.mark.parametrize("missing", ["typer", "yaml"])
def test_without_the_extra_a_command_is_one_line(missing: str, tmp_path: Path) -> None:
    """Red: a traceback that names a module."""
    script = f"""
import sys
sys.modules[{missing!r}] = None  # as if it were not installed
sys.argv = ["ncpipe", "grid"]
from ncpipe.__main__ import main
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (
        1,
        f"ncpipe: commands need {missing}, which is not installed: pip install 'ncpipe[pipeline]'\n",
    )


def test_the_extra_is_what_the_refusal_knows() -> None:
    """Red: a new requirement of the pipeline that ends in a traceback where it is missing."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    modules = {"pyyaml": "yaml", "scikit-learn": "sklearn", "vl-convert-python": "vl_convert"}
    names = [re.split("[><=]", line)[0] for line in project["optional-dependencies"]["pipeline"]]
    assert {modules.get(name, name.replace("-", "_")) for name in names} == PIPELINE
    base = {re.split("[><=]", line)[0] for line in project["dependencies"]}
    assert base == {"numpy", "psutil", "safetensors", "torch"}
