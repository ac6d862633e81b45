"""DVC's own commands after `dvc repro`: each ends well and without a warning, and shows what the docs say.

Each test's docstring ends with the fault that would turn it red.
"""

import csv
import json
import os
import re
import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pipeline import EPOCHS, ROOT, Clone, Copy, Made, Output, trains

from ncpipe.commands.cli import run_cli
from ncpipe.commands.compare import read_revision
from ncpipe.runs.differences import stale
from ncpipe.system.errors import InputError

pytestmark = [
    pytest.mark.pipeline,
    pytest.mark.skipif(not (ROOT / ".git").exists(), reason="clones the repository, and this is no checkout"),
    pytest.mark.skipif(os.name == "nt", reason="the clone's programs are found by a POSIX path"),
]

CLEAN = "Data and pipelines are up to date."
RATE = "experiments.alpha.optimizer.learning_rate"
PAGE = (ROOT / "docs/comparing.md").read_text(encoding="utf-8")
[ONLY_CHANGED] = re.findall(r"^dvc (exp show --only-changed .*?)(?:\s+#.*)?$", PAGE, re.MULTILINE)
OF_DVC = ("rev", "typ", "Created", "parent", "State", "Executor")  # columns of `dvc exp show`
# What `dvc gc` always says.
EXPECTED = "WARNING: This will remove all cache except items used in the workspace of the current repo."

RUN = {
    "exp run": ["exp", "run", "-n", "one", "-S", f"{RATE}=5e-2"],
    "exp run --queue": ["exp", "run", "--queue", "-n", "two", "-S", "slopes.seed=103"],
    "exp run --run-all": ["exp", "run", "--run-all", "-j", "1"],
}
SHOWN = {
    "exp show": [*shlex.split(ONLY_CHANGED), "--csv"],
    "metrics diff": ["metrics", "diff", "one", "HEAD", "--json"],
    "plots diff": ["plots", "diff", "one", "HEAD", "--json"],
}
CHANGED = {
    "exp apply": ["exp", "apply", "two"],
    "gc": ["gc", "-w", "-f"],
    "status": ["status"],
}


@dataclass
class Place:
    """`changed_first`, committed, after all commands; what each said, `ncpipe compare` among them."""

    clone: Clone
    said: dict[str, Output] = field(default_factory=dict)


@pytest.fixture(scope="module")
def place(changed_first: Made, tmp_path_factory: pytest.TempPathFactory) -> Place:
    at = Place(changed_first[0].copy(tmp_path_factory.mktemp("place") / "clone"))
    at.clone.commit()
    for name, command in (RUN | SHOWN).items():
        at.said[name] = at.clone.run("dvc", *command, check=False)
    before = at.clone.run("git", "status", "--porcelain").out
    at.said["compare"] = at.clone.run("ncpipe", "compare", "one", "HEAD")
    assert at.clone.run("git", "status", "--porcelain").out == before
    for name, command in CHANGED.items():
        at.said[name] = at.clone.run("dvc", *command, check=False)
    return at


def complaints(output: Output) -> list[str]:
    """Lines that DVC's warnings and errors are among; ours on standard error speak of train errors.

    In JSON there are pictures, each a line of its own, and no words of DVC's.
    """
    lines = output.err.splitlines() + ([] if output.out.startswith("{") else output.out.splitlines())
    signs = re.compile(r"^(?:WARNING|ERROR)|warning|[Ff]ailed|fatal")
    return [line for line in lines if signs.search(line) and line != EXPECTED]


@pytest.mark.parametrize("name", [*RUN, *SHOWN, *CHANGED])
def test_a_command_ends_well_and_complains_of_nothing(place: Place, name: str) -> None:
    """Red: the studies as part of the root's project; an output that DVC cannot load in an experiment."""
    output = place.said[name]
    assert output.code == 0, output.err
    assert complaints(output) == []
    if name in SHOWN:
        assert output.err == ""
    if name == "status":
        assert output.out.splitlines() == [CLEAN]


def test_a_learning_rate_reruns_its_own_runs(place: Place) -> None:
    """Red: `experiments` as a whole among the parameters of a stage."""
    output = place.said["exp run"]
    assert output.trained == trains(["alpha"], [2], [0, 7])
    trained = [name for name in output.ran if name.startswith("train")]
    assert sorted(trained) == output.trained
    after = ["extract@alpha", "measure@alpha", "aggregate", "claims"]
    assert output.ran == ["code", "fill", *trained, *after]


def test_the_documented_line_shows_what_changed_and_no_more(place: Place) -> None:
    """Red: a queued experiment that fails in the copy of the repository that DVC makes for it; metrics.json
    that dvc.yaml does not name, or whose keys carry no experiment; a metric for each split and each NC2."""
    shown = csv.DictReader(place.said["exp show"].out.splitlines())
    rows = {row["Experiment"] or row["rev"]: row for row in shown}
    [head] = rows.keys() - {"one", "two"}
    assert {name: float(row[RATE]) for name, row in rows.items()} == {"one": 0.05, "two": 0.05, head: 0.02}
    assert rows["two"]["slopes.seed"] == "103"
    assert place.clone.params()["slopes"]["seed"] == 103  # `exp apply` of two
    series = ("nc1_trace_ratio", "nc2_etf", "nc3_cosine")  # the gap is for `ncpipe compare`
    metrics = {f"alpha.deepest.log10_{name}" for name in series}  # one depth, so no slope
    assert rows["one"].keys() - {"Experiment", *OF_DVC} == metrics | {RATE, "slopes.seed"}
    assert all(rows["one"][name] != rows[head][name] for name in metrics)


def test_compare_reads_experiments_without_a_checkout(place: Place) -> None:
    """Red: results read from the workspace; a parameter of an experiment that is not in the sweep."""
    said = place.said["compare"]
    assert said.err == f"ncpipe: runs the code of {place.clone.folder.resolve() / 'ncpipe'}\n"
    without_intervals = re.sub(r" \[.*?\]", "", said.out)
    lines = [line.split() for line in without_intervals.splitlines()]
    assert lines[1] == [RATE, "0.05", "0.02"]
    theirs = json.loads(place.said["metrics diff"].out)["data/results/metrics.json"]
    gap = theirs["alpha.deepest.log10_loss_gap"]
    numbers = [f"{gap['old']:.2f}", f"{gap['new']:.2f}", f"{gap['diff']:+.2f}", "1", "of", "1"]
    [shown, *_] = [line for line in lines if line[:2] == ["log10", "loss_gap"]]
    assert shown[: 6 + len(numbers)] == ["log10", "loss_gap", "at", "L", "=", "2", *numbers]


@pytest.mark.parametrize(
    ("revisions", "message"),
    [
        (["one", "onne"], "onne: neither a git revision nor a DVC experiment"),
        (["one", "HEAD~1"], "HEAD~1: data/results/points.csv: not in the revision"),
        (["one"], "compare: give at least two"),
    ],
)
def test_what_cannot_be_compared_is_one_line(
    revisions: list[str], message: str, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red: a traceback of DVC's; a table of nothing."""
    monkeypatch.chdir(place.clone.folder)
    monkeypatch.setenv("DVC_SITE_CACHE_DIR", place.clone.environment["DVC_SITE_CACHE_DIR"])
    monkeypatch.setattr(sys, "argv", ["ncpipe", "compare", *revisions])
    with pytest.raises(SystemExit, match=f"^ncpipe: {re.escape(message)}.*$") as stop:
        run_cli()
    assert "\n" not in str(stop.value.code)


def test_tables_of_another_branch_are_stale(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after git checkout without dvc checkout. Red: tables beside params.yaml of another branch."""
    monkeypatch.chdir(place.clone.folder)
    monkeypatch.setenv("DVC_SITE_CACHE_DIR", place.clone.environment["DVC_SITE_CACHE_DIR"])
    lock, path = Path("dvc.lock").read_text(encoding="utf-8"), Path("data/results/rates.txt")
    assert stale(lock) == ""
    kept = path.rename("kept.txt")
    path.write_text("of another branch", encoding="utf-8")
    for stage in ("aggregate", "claims"):
        assert stale(lock, [stage]).startswith(f"the stage {stage} is stale: data/results is not")
    kept.replace(path)
    assert stale(lock) == ""


def plotted(output: Output, name: str) -> list[dict[str, str]]:
    """The rows that one of DVC's plots is drawn from."""
    [plot] = json.loads(output.out)["data"][name]
    return plot["content"]["data"]["values"]


def test_plots(place: Place) -> None:
    """Red: dvc.yaml without the data of NC against depth; histories in a format that DVC does not plot, or
    without their epochs."""
    rows = plotted(place.said["plots diff"], "data/results/depth/alpha.csv")
    assert {row["rev"] for row in rows} == {"one", "HEAD"}
    assert len({row["nc1_trace_ratio"] for row in rows}) == 2
    curves = plotted(place.said["plots diff"], "data/results/curves/alpha-L2.csv")
    history = [row for row in curves if row["rev"] == "HEAD"]
    steps = [int(row["epoch"]) for row in history]
    assert steps == sorted(set(steps))
    assert (steps[0], steps[-1]) == (0, EPOCHS)
    assert float(history[-1]["loss"]) < float(history[0]["loss"])


def test_push_and_pull_into_a_second_clone(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the pull, `ncpipe compare` finds no results there. Red: an output outside DVC's cache; a result
    that depends on where its clone lies; a traceback of DVC's index."""
    clone = place.clone
    clone.commit()
    clone.run("git", "clone", "--quiet", str(clone.folder), str(tmp_path / "second"))
    second = Clone(tmp_path / "second")
    monkeypatch.chdir(second.folder)
    with pytest.raises(InputError, match=r"^HEAD: data/results/points\.csv: not .*; .*dvc pull"):
        read_revision("HEAD")
    for repository in (clone, second):
        (repository.folder / ".dvc/config.local").write_text(
            f"[core]\n    remote = folder\n['remote \"folder\"']\n    url = {tmp_path / 'remote'}\n"
        )
    pushed, pulled = clone.run("dvc", "push"), second.run("dvc", "pull")
    assert complaints(pushed) == complaints(pulled) == []
    output = second.repro()
    assert output.ran == output.restored == []
    assert second.digests("data/results", "data/claims") == clone.digests("data/results", "data/claims")


def test_a_study_takes_what_the_root_has_trained(swept: Clone, own_copy: Copy) -> None:
    """Without `dvc init`, and apart from the root; its experiments keep the link to the package.

    Red: a file below .dvc that git does not keep; a cache that is not the root's; a stage that differs; a
    command that reads the root's params.yaml; a commit of DVC's with a copy of what the link leads to."""
    clone = own_copy(swept)
    study = clone.study("smoke")
    study.write_params(clone.params())
    clone.commit()
    clone.run("git", "clean", "--quiet", "-xdf", "--exclude=/data", "--exclude=/.dvc")
    output = study.repro()
    assert (output.ran, output.trained) == (["fill"], [])
    assert "train@alpha-2-0" in output.restored
    assert study.digests("data/results") == clone.digests("data/results")
    assert clone.run("dvc", "stage", "list", "--all", "--name-only").out.count("grid") == 1
    assert clone.run("git", "status", "--porcelain").out == "?? stages/smoke/dvc.lock\n"
    assert clone.stale() == []
    study.run("dvc", "exp", "run", "-n", "one", "-S", "sweep.seeds=[0]", "grid")
    [experiment] = clone.run("git", "for-each-ref", "--format=%(objectname)", "refs/exps/*/*/one").out.split()
    assert clone.run("git", "ls-tree", experiment, "stages/smoke/ncpipe").out.startswith("120000 blob ")
