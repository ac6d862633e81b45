"""`ncpipe new`: a study like the others below stages/, or a project of its own that runs to its figures."""

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pipeline import ROOT, Clone, without

from ncpipe.claims.ledger import load_claims
from ncpipe.commands import new as command
from ncpipe.commands.cli import run_cli
from ncpipe.commands.new import Kind, create_study, render
from ncpipe.config.params import load_params
from ncpipe.config.study import load_study
from ncpipe.config.yaml_file import parse_yaml, read_yaml
from ncpipe.datasets.arrays import prepare_arrays
from ncpipe.system.errors import InputError

TEMPLATE = ROOT / "stages/smoke"
VECTORS = np.random.default_rng(0).random((12, 4))
FILES = {
    "params.yaml", "claims.yaml", "dvc.yaml", ".dvcignore", ".dvc/config", ".dvc/.gitignore",
    ".dvc/plots/log_x.json", ".dvc/plots/log_y.json",
}  # fmt: skip
ALONE = FILES | {".gitignore", "README.md", "results.ipynb", "params.schema.json", "claims.schema.json"}


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a folder needs to be taken for this checkout; the working directory."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "ncpipe").symlink_to(ROOT / "ncpipe")
    (folder / "pyproject.toml").touch()
    (folder / "data").mkdir()
    monkeypatch.setattr(command, "ROOT", folder)
    monkeypatch.chdir(folder / "data")
    return folder


def files(folder: Path) -> set[str]:
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if (path.is_symlink() or not path.is_dir()) and ".git/" not in path.as_posix() + "/"
    }


def below_head(path: Path) -> str:
    return "\nsweep:" + path.read_text(encoding="utf-8").partition("\nsweep:")[2]


def test_a_study_of_the_checkout_is_like_the_template(checkout: Path) -> None:
    """Red: a file that the shipped studies have and this one lacks; a head that still names the template."""
    create_study("wide")
    study = checkout / "stages/wide"
    assert [path.name for path in study.parent.iterdir()] == ["wide"]
    assert files(study) == FILES | {"ncpipe"}
    shipped = subprocess.run(["git", "ls-files"], cwd=TEMPLATE, capture_output=True, text=True, check=False)
    assert shipped.returncode or set(shipped.stdout.split()) - {"dvc.lock"} == FILES | {"ncpipe"}
    for name in FILES - {"params.yaml", "claims.yaml"}:
        assert (study / name).read_bytes() == (TEMPLATE / name).read_bytes(), name
    assert os.readlink(study / "ncpipe") == os.readlink(TEMPLATE / "ncpipe")
    assert below_head(study / "params.yaml") == below_head(TEMPLATE / "params.yaml")
    head = (study / "params.yaml").read_text(encoding="utf-8").splitlines()[:2]
    assert head[0] == (TEMPLATE / "params.yaml").read_text(encoding="utf-8").splitlines()[0]
    assert head[1].startswith("# wide: ")
    assert "`dvc --cd stages/wide repro`" in head[1]


def test_an_installed_package_has_the_template(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As pyproject.toml puts it there, instead of stages/smoke. Red: a file of it that is not installed."""
    installed = tmp_path / "installed"
    lines = (ROOT / "pyproject.toml").read_text(encoding="utf-8").splitlines()
    start = lines.index("[tool.hatch.build.targets.wheel.force-include]") + 1
    for line in lines[start : lines.index("", start)]:
        source, target = (part.strip().strip('"') for part in line.split("="))
        (installed / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / source, installed / target)
    monkeypatch.setattr(command, "TEMPLATES", (tmp_path / "none", installed / "ncpipe/template"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("UV_RUN_RECURSION_DEPTH", raising=False)
    create_study("./apart")
    assert files(tmp_path / "apart") == ALONE
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=tmp_path / "apart", capture_output=True, text=True, check=True
    )
    assert set(tracked.stdout.split()) == ALONE
    assert len((tmp_path / "apart/README.md").read_text(encoding="utf-8").splitlines()) <= 10
    assert load_params(tmp_path / "apart/params.yaml").sweep.experiments == ("mixture_rn1",)
    head = (tmp_path / "apart/params.yaml").read_text(encoding="utf-8").splitlines()[0]
    assert head == "# yaml-language-server: $schema=params.schema.json"
    assert capsys.readouterr().err.endswith("/apart; edit its params.yaml, then run dvc repro there\n")


def test_who_starts_by_uv_is_told_the_command_of_uv(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Red: `dvc ...`, which a shell without the environment does not find; a folder outside without it."""
    (checkout / "ncpipe").unlink()
    shutil.copytree(ROOT / "ncpipe/commands/starters", checkout / "ncpipe/commands/starters")
    (checkout / "ncpipe/__main__.py").touch()
    outside = checkout.parent / "outside"
    for depth, start in ((None, ""), ("1", "uv run "), ("1", f"uv run --project {checkout} ")):
        monkeypatch.delenv("UV_RUN_RECURSION_DEPTH", raising=False)
        if depth:
            monkeypatch.setenv("UV_RUN_RECURSION_DEPTH", depth)
        separate = "--project" in start
        create_study(f"{outside}/apart" if separate else f"study{depth or 0}")
        then = "dvc repro there" if separate else f"dvc --cd stages/study{depth or 0} repro"
        assert capsys.readouterr().err.endswith(f"then run {start}{then}\n")


def test_own_code_is_watched_and_reads(checkout: Path) -> None:
    """Red: a study.py that DVC does not watch; claims about the template's experiment."""
    create_study("mine", own_code=True)
    study = checkout / "stages/mine"
    assert files(study) == FILES | {"ncpipe", "study.py"}
    assert read_yaml(study / "dvc.yaml")["stages"]["code"]["deps"] == ["ncpipe", "study.py"]
    alone = parse_yaml(render("dvc.yaml", {"kind": "own", "separate": True}))["stages"]["code"]
    assert (alone["always_changed"], alone["deps"]) == (True, ["study.py"])
    params = load_params(study / "params.yaml")
    assert params.sweep.experiments == ("sine", "patches")
    claims = load_claims(study / "claims.yaml", lambda: params)
    assert [claim.id for claim in claims] == ["fits-sine", "fits-patches", "collapses"]
    load_study(checkout)


@pytest.mark.parametrize("own_code", [False, True])
def test_an_axis_has_values_and_a_matrix(checkout: Path, own_code: bool) -> None:
    """As the shipped study with an axis has it. Red: data of one value where another's are read."""
    create_study("wider", own_code=own_code, axis="model.width")
    study = checkout / "stages/wider"
    params = load_params(study / "params.yaml")
    assert (params.sweep.axis, params.sweep.values) == ("model.width", (16, 32) if own_code else (8, 16))
    assert "Cost: a minute" in (study / "params.yaml").read_text(encoding="utf-8")  # twice the runs
    stages, shipped = (
        read_yaml(path)["stages"] for path in (study / "dvc.yaml", ROOT / "stages/penalty/dvc.yaml")
    )
    for name in ("fetch", "train"):
        assert stages[name] == shipped[name]
    plots = (study / "dvc.yaml").read_text(encoding="utf-8")
    assert "data/results/x" in plots
    assert "x_label: model.width" in plots
    assert "results/depth" not in plots
    load_claims(study / "claims.yaml", lambda: params)
    load_study(checkout)


def a_file(folder: Path, inputs: np.ndarray, name: str = "mine.npz") -> Path:
    np.savez(folder / name, inputs=inputs, labels=np.arange(len(inputs)) % 3)
    return folder / name


@pytest.mark.parametrize(
    ("inputs", "kind", "expected"),
    [
        (VECTORS, None, "vector"),
        (VECTORS > 0.5, "vector", "vector"),
        ((9 * VECTORS).astype(np.uint8), "vector", "vector"),
        ((9 * VECTORS).astype(np.int64), "tokens", "tokens"),
        ((9 * VECTORS).astype(np.uint8).reshape(12, 1, 2, 2), None, "image"),
    ],
)
def test_data_of_every_kind_make_a_study_that_reads_them(
    inputs: np.ndarray, kind: Kind | None, expected: str, checkout: Path, tmp_path: Path
) -> None:
    """Red: a mistake of a file that the user has not written; a network that does not take tokens."""
    create_study("filed", data=a_file(tmp_path, inputs), kind=kind)
    study = checkout / "stages/filed"
    experiment = load_params(study / "params.yaml").experiments["mixture_rn1"]
    assert experiment.data.kind == expected
    assert experiment.model.architecture == ("L-T11" if expected == "tokens" else "L-RN1")
    with contextlib.chdir(study):
        assert prepare_arrays(experiment.data).kind == expected


def test_a_study_asks_its_own_questions(checkout: Path, tmp_path: Path) -> None:
    """Red: the template's question; a claim that no paper makes; one that no sweep of an axis answers."""
    create_study("filed", data=a_file(tmp_path, np.zeros((12, 5))))
    create_study("wider", axis="model.width")
    create_study("smoothed", axis="schedule.final")
    create_study("sines", own_code=True, axis="model.width")
    questions, last_claims = {}, {}
    for name in ("filed", "wider", "smoothed", "sines"):
        params = load_params(checkout / f"stages/{name}/params.yaml")
        claims = load_claims(checkout / f"stages/{name}/claims.yaml", lambda params=params: params)
        questions[name] = next(iter((params.about or {}).values())).question
        last_claims[name] = (claims[-1].quantity, claims[-1].metric, claims[-1].depth)
        assert (claims[-1].ref, claims[-1].author) == (name, "yours")
        assert {(claim.ref, claim.author) for claim in claims} <= {
            (name, "yours"),
            ("S25 Lemma 4.2", "paper"),
        }
    assert "mine.npz" in questions["filed"]
    assert "model.width" in questions["wider"]
    assert last_claims == {
        "filed": ("slope", "nc1_trace_ratio", None),
        "wider": ("slope", "nc1_trace_ratio", 4),
        "smoothed": ("spearman", "nc1_trace_ratio", 4),
        "sines": ("slope", "spread_between_means", 3),
    }
    load_study(checkout)


@pytest.mark.parametrize(
    ("axis", "values"),
    [
        ("optimizer.beta1", (0.45, 0.9)),
        ("schedule.final", (0.0, 1.0)),
        ("data.seed", (0, 1)),
    ],
)
def test_an_axis_has_two_values_in_its_range(axis: str, values: tuple[float, float], checkout: Path) -> None:
    """Red: a value out of the range, or the same twice."""
    create_study("varied", axis=axis)
    assert load_params(checkout / "stages/varied/params.yaml").sweep.values == values


@pytest.mark.parametrize(
    "name", ["a, b.npz", "a: #b.npz", "a\\1.npz", "- x.npz", "mine (1).npz", "{x}.npz", "é.npz"]
)
def test_any_name_of_a_file_of_data_is_written_as_it_is(checkout: Path, tmp_path: Path, name: str) -> None:
    """Red: a traceback of re, or a mistake of params.yaml that the user has not made."""
    create_study("filed", data=a_file(tmp_path, VECTORS, name))
    study = checkout / "stages/filed"
    assert name in read_yaml(study / "dvc.yaml")["stages"]["fetch"]["deps"]
    data = load_params(study / "params.yaml").experiments["mixture_rn1"].data
    assert (data.source, data.file) == ("arrays", name)


WHOLE_NUMBERS = np.zeros((12, 5), np.uint8)
MAPS = np.zeros((12, 8, 8))


@pytest.mark.parametrize(
    ("wanted", "inputs", "name", "line"),
    [
        ({"axis": "model.depht"}, None, "", "--axis: model.depht is not a number of the experiment; give a"),
        ({"axis": "loss"}, None, "", "--axis: loss is not a number"),
        ({"data": Path("none.npz")}, None, "", "none.npz: not found"),
        ({"data": Path("none.csv")}, None, "", "none.csv: unknown extension '.csv'"),
        ({"kind": "image"}, None, "", "--kind: is of --data, which is missing"),
        ({"own_code": True, "axis": "data.noise"}, None, "",
         r"^new: the template does not suit this: sweep\.axis: experiments\.patches\.data\.noise: unknown"),
        ({}, WHOLE_NUMBERS, "m.npz", r"m\.npz: inputs \(12, 5\) are whole numbers; add --kind tokens"),
        ({}, MAPS, "m.npz", r"m\.npz: inputs has shape \(12, 8, 8\); give vectors \(N, D\), im"),
        ({"kind": "image"}, MAPS, "m.npz", r"m\.npz: inputs has shape .*; kind: image takes \(N, channels"),
        ({"kind": "tokens"}, VECTORS, "m.npz", r"m\.npz: inputs is of type float64; token ids are whole"),
        ({"own_code": True, "kind": "tokens"}, WHOLE_NUMBERS, "m.npz", "--own-code: its network reads no"),
        ({}, VECTORS, "${x}.npz", "DVC does not take this name literally; rename the file"),
        ({}, VECTORS, "a\n.npz", "DVC does not take this name literally; rename the file"),
    ],
)  # fmt: skip
def test_a_wish_that_cannot_be_had_leaves_nothing(
    wanted: dict[str, Any], inputs: np.ndarray | None, name: str, line: str, checkout: Path, tmp_path: Path
) -> None:
    """Red: a study that fails at fetch; a mistake of the removed params.yaml, by its line."""
    data = {} if inputs is None else {"data": a_file(tmp_path, inputs, name)}
    with pytest.raises(InputError, match=line) as caught:
        create_study("none", **wanted, **data)
    assert "params.yaml" not in str(caught.value)
    assert not list((checkout / "stages").glob("*"))


@pytest.mark.parametrize(
    ("place", "line"),
    [
        ("9x", "9x: a study's name has letters, digits and _"),
        ("a-b", "a-b: a study's name has letters"),
        ("", ": a study's name has letters"),
        ("..", "..: a study's name has letters"),
        ("{outside}/a b", "{outside}/a b: a study's name has letters"),
        ("old", "{checkout}/stages/old: exists already; choose another name"),
        ("gone", "{checkout}/stages/gone: exists already"),
        ("{outside}/old", "{outside}/old: exists already"),
        ("./inside", "./inside: lies in {checkout}, a checkout of ncpipe; choose a folder outside, or "
         "create a study of the checkout (ncpipe new inside)"),
        ("../../x/../checkout/inside", "../../x/../checkout/inside: lies in {checkout}"),
    ],
)  # fmt: skip
def test_what_is_refused(
    place: str, line: str, checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one line. Red: a check that is left out; a folder that is begun before it."""
    (checkout / "stages/old").mkdir(parents=True)
    (checkout / "stages/gone").symlink_to("nowhere")
    outside = tmp_path / "outside"
    (outside / "old").mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    names = {"checkout": checkout, "outside": outside}
    assert said(monkeypatch, place.format(**names)).startswith(f"ncpipe: {line.format(**names)}")
    assert sorted(tmp_path.rglob("*")) == before


def said(monkeypatch: pytest.MonkeyPatch, place: str) -> str:
    monkeypatch.setattr(sys, "argv", ["ncpipe", "new", place])
    with pytest.raises(SystemExit) as stop:
        run_cli()
    assert isinstance(stop.value.code, str)
    assert "\n" not in stop.value.code
    return stop.value.code


def test_a_name_needs_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "(ncpipe new ./apart) to create a separate project" in said(monkeypatch, "apart")
    assert list(tmp_path.iterdir()) == []


def test_without_git_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red: a folder that is written in its place, or left beside it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert said(monkeypatch, "./apart") == "ncpipe: git: not found; install it, because DVC needs it"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.pipeline
@pytest.mark.skipif(os.name == "nt", reason="the project's programs are found by a POSIX path")
def test_a_project_of_its_own_runs_to_its_tables(tmp_path: Path) -> None:
    """With an axis: one value is trained by `dvc repro`, one more by `ncpipe sweep`, which names stages as
    DVC does and runs all that follow. Figures and the page, which take longest, are left out.

    Red: a stage that needs the package beside params.yaml; an output that git sees; digests that change from
    one `dvc repro` to the next, or that DVC does not ask for anew; a new value that trains the others again.
    """
    project = Clone(tmp_path / "apart")
    Clone(tmp_path).run("ncpipe", "new", "./apart", "--axis", "model.width")
    project.edit_pipeline(lambda pipeline: without(pipeline, "plot", "report"))
    short = {"depths": [2], "seeds": [0], "values": [8]}
    project.edit_params("sweep", project.params()["sweep"] | short)
    project.edit_params("experiments.mixture_rn1.epochs", 100)
    assert project.repro("train").ran[0] == "code"
    before = project.digests("data/runs")
    assert (project.folder / "data/runs/mixture_rn1/L2/x8/s0").is_dir()
    project.edit_params("sweep.values", [16, 8])
    assert "1 run to train in 1 batch" in project.run("ncpipe", "sweep").err
    assert before.items() <= project.digests("data/runs").items()
    assert project.repro().ran == ["code"]  # always, in a project of its own
    table = pd.read_csv(project.folder / "data/results/runs.csv")
    assert table[["axis", "x"]].values.tolist() == [["model.width", x] for x in (8, 16)]
    project.run("git", "add", "--all")
    tracked = project.run("git", "ls-files").out.split()
    assert set(tracked) == ALONE | {"dvc.lock"}
