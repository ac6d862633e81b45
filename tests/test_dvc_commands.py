"""DVC's own commands after `dvc repro`, at the root and in a study: each ends well and without a warning.

Each test's docstring ends with the fault that would turn it red.
"""

import csv
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pipeline import PARAMS, ROOT, Clone, Copy, Made, Output, shared

pytestmark = [
    pytest.mark.pipeline,
    pytest.mark.skipif(not (ROOT / ".git").exists(), reason="clones the repository, and this is no checkout"),
    pytest.mark.skipif(os.name == "nt", reason="the clone's programs are found by a POSIX path"),
]

CLEAN = "Data and pipelines are up to date."
TOLERANCE = "convergence.tolerance=1e-9"  # no run has converged
CHEAP = "slopes.seed={}"  # after that without an effect: only `aggregate` runs
# What `dvc gc` always says.
EXPECTED = "WARNING: This will remove all cache except items used in the workspace of the current repo."

SHOWN = {
    "status": ["status"],
    "dag": ["dag"],
    "exp list": ["exp", "list"],
    "exp show": ["exp", "show"],
    "exp diff": ["exp", "diff", "one", "two"],
    "metrics show": ["metrics", "show"],
    "metrics diff": ["metrics", "diff", "one", "two"],
    "plots show": ["plots", "show"],
    "plots diff": ["plots", "diff", "one", "two"],
}
CHANGED = {
    "exp apply": ["exp", "apply", "two"],
    "exp branch": ["exp", "branch", "two", "a-branch"],
    "exp remove": ["exp", "remove", "three"],
    "commit": ["commit", "-f"],
    "gc": ["gc", "-w", "-f"],
    "status, at last": ["status"],
}
RUN = ["exp run", "exp run --queue", "exp run --run-all", "exp run --temp"]


@dataclass
class Place:
    """A DVC project after `dvc repro`, committed; what each command then run in it said."""

    clone: Clone
    said: dict[str, Output] = field(default_factory=dict)

    def dvc(self, name: str, *command: str) -> None:
        self.said[name] = self.clone.run("dvc", *command, check=False)


@pytest.fixture(scope="session")
def root_and_study(swept: Clone, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The root after `dvc repro`, then stages/smoke after its own, on the same parameters; committed."""

    def make(folder: Path) -> Made:
        clone = swept.copy(folder)
        study = clone.study("smoke")
        study.write_params(PARAMS)
        output = study.repro()
        clone.commit()
        return clone, output

    return shared(tmp_path_factory, "commands", make)


@pytest.fixture(scope="module", params=["root", pytest.param("study", marks=pytest.mark.long)])
def place(
    request: pytest.FixtureRequest,
    root_and_study: Made,
    tmp_path_factory: pytest.TempPathFactory,
) -> Place:
    clone = root_and_study[0].copy(tmp_path_factory.mktemp(request.param) / "clone")
    at = Place(clone if request.param == "root" else clone.study("smoke"))
    at.dvc("exp run", "exp", "run", "-n", "one", "-S", TOLERANCE)
    for name in ("two", "three"):
        option = CHEAP.format(100 + len(name))
        at.dvc("exp run --queue", "exp", "run", "--queue", "-n", name, "-S", option)
    at.dvc("exp run --run-all", "exp", "run", "--run-all", "-j", "2")
    at.dvc("exp run --temp", "exp", "run", "--temp", "-n", "four", "-S", CHEAP.format(5))
    for name, command in (SHOWN | CHANGED).items():
        at.dvc(name, *command)
    return at


def complaints(output: Output) -> list[str]:
    """Lines that DVC's warnings and errors are among; ours on standard error speak of train errors."""
    lines = re.findall(
        r"^(?:WARNING|ERROR).*|.*(?:warning|[Ff]ailed|fatal).*", f"{output.out}\n{output.err}", re.M
    )
    return [line for line in lines if line != EXPECTED]


@pytest.mark.parametrize("name", [*RUN, *SHOWN, *CHANGED])
def test_a_command_ends_well_and_complains_of_nothing(place: Place, name: str) -> None:
    """Red: the studies as part of the root's project; an output that DVC cannot load in an experiment."""
    output = place.said[name]
    assert output.code == 0, output.err
    assert complaints(output) == []
    if name in SHOWN:
        assert output.err == ""
    if name.startswith("status"):
        assert output.out.splitlines() == [CLEAN]


def test_experiments_are_all_there(place: Place) -> None:
    """Red: a queued experiment that fails in the copy of the repository that DVC makes for it."""
    names = ("one", "two", "three", "four")
    assert all(f"[{name}]" in place.said["exp list"].out for name in names)
    rows = place.clone.run("dvc", "exp", "show", "--csv", "--all-branches").out.splitlines()
    found = {row["Experiment"]: row for row in csv.DictReader(rows)}
    assert set(names) - {"three"} <= set(found)
    assert {found[name]["slopes.seed"] for name in ("two", "four")} == {"103", "5"}
    assert place.clone.params()["slopes"]["seed"] == 103  # `exp apply` of two


def test_push_and_pull_into_a_second_clone(
    place: Place, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Red: an output outside DVC's cache; a result that depends on where its clone lies."""
    clone = place.clone
    inside = clone.folder.relative_to(clone.top)
    clone.run("dvc", "remote", "add", "--default", "folder", str(tmp_path / "remote"))
    clone.commit()
    pushed = clone.run("dvc", "push")
    clone.run("git", "clone", "--quiet", str(clone.top), str(tmp_path / "second"))
    second = Clone(tmp_path / "second" / inside, tmp_path / "second")
    pulled = second.run("dvc", "pull")
    assert complaints(pushed) == complaints(pulled) == []
    output = second.repro()
    assert output.ran == output.restored == []
    assert second.run("dvc", "status").out.splitlines() == [CLEAN]
    assert second.digests("data/results", "data/figures") == clone.digests("data/results", "data/figures")


class TestStudies:
    def test_the_root_does_not_see_them(self, root_and_study: Made) -> None:
        """Red: a study without a .dvc of its own."""
        clone, _ = root_and_study
        assert clone.run("dvc", "stage", "list", "--all", "--name-only").out.count("grid") == 1
        assert clone.run("git", "status", "--porcelain").out == ""

    def test_they_take_what_the_root_has_trained(self, root_and_study: Made) -> None:
        """The study has the root's parameters. Red: a cache that is not the root's; a stage that differs."""
        clone, output = root_and_study
        assert (output.ran, output.trained) == (["fill"], [])
        assert "train@alpha-2-0" in output.restored
        assert clone.study("smoke").digests("data/results") == clone.digests("data/results")

    def test_a_fresh_clone_needs_no_dvc_init(self, root_and_study: Made, own_copy: Copy) -> None:
        """Red: a file below .dvc that git does not keep; a command that reads the root's params.yaml."""
        clone = own_copy(root_and_study[0])
        clone.run("git", "clean", "--quiet", "-xdf", "--exclude=/data", "--exclude=/.dvc")
        study = clone.study("warm_start")
        output = clone.run("dvc", "--cd", "stages/warm_start", "repro", "grid")
        assert output.ran == ["code", "grid"]
        assert list(study.folder.glob("data/grid/*.csv"))
        assert clone.run("git", "status", "--porcelain").out == "?? stages/warm_start/dvc.lock\n"
        assert clone.stale() == []
        for path in (clone.folder / "ncpipe/commands", clone.folder / "ncpipe/models"):
            (path / "__pycache__").mkdir(exist_ok=True)
            (path / "__pycache__/any.pyc").write_bytes(b"compiled")
        assert "code" not in study.stale()

    def test_a_copied_package_is_refused(self, root_and_study: Made, own_copy: Copy) -> None:
        """Red: a study whose dependencies are a copy of the package that nothing runs."""
        study = own_copy(root_and_study[0]).study("smoke")
        (study.folder / "ncpipe").unlink()
        study.run("cp", "-R", "../../ncpipe", "ncpipe")
        output = study.run("ncpipe", "code", check=False)
        assert (output.code, output.out) == (1, "")
        _, line = output.err.splitlines()  # the first says whose code runs
        assert line.startswith("ncpipe: ncpipe: is a copy of the package")
