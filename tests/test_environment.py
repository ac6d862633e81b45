"""Variables of the shell that are meant for other programs, or for another place."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ncpipe.__main__ import main
from ncpipe.system.environment import clean_environment

LOCAL = subprocess.run(["git", "rev-parse", "--local-env-vars"], capture_output=True, text=True, check=True)
ELSEWHERE = (*LOCAL.stdout.split(), "GIT_CEILING_DIRECTORIES", "GIT_DEFAULT_HASH", "GIT_QUARANTINE_PATH")
WHO = ("GIT_AUTHOR_NAME", "GIT_COMMITTER_EMAIL", "GIT_CONFIG_GLOBAL", "GIT_SSH_COMMAND")
HIDDEN = ("SQUEUE_PARTITION", "SQUEUE_FORMAT", "SQUEUE_STATES", "SCANCEL_INTERACTIVE", "SBATCH_WAIT")
SUBMITTED = ("SBATCH_ACCOUNT", "SLURM_CONF", "SLURM_MEM_PER_NODE", "SLURM_ARRAY_JOB_ID")
BACKEND = """
import sys
from ncpipe.__main__ import main
sys.argv = ["ncpipe", "--version"]
try:
    main()
finally:
    import matplotlib
    assert matplotlib.get_backend() == "agg"
"""


@pytest.fixture
def other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one file in one commit, whose hook runs now."""
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "file").touch()
    for words in (["init", "--quiet"], ["add", "file"]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", *who, "commit", "--quiet", "-m", "first"], cwd=folder, check=True)
    for name, value in (("DIR", ""), ("INDEX_FILE", "index"), ("OBJECT_DIRECTORY", "objects")):
        monkeypatch.setenv(f"GIT_{name}", str(folder / ".git" / value))
    monkeypatch.setenv("GIT_WORK_TREE", str(folder))
    return folder


def log(folder: Path) -> list[str]:
    """The subjects of a repository's commits, and its changed files."""
    words = (["log", "--format=%s"], ["status", "--porcelain"])
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    runs = [
        subprocess.run(["git", *own], cwd=folder, env=environment, capture_output=True, text=True, check=True)
        for own in words
    ]
    return [line for run in runs for line in run.stdout.splitlines()]


def test_a_study_is_committed_where_it_is(
    other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a hook, or in `git rebase --exec`. Red: a commit in the repository whose hook runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["ncpipe", "new", "./new"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code
    assert log(other) == ["first"]
    assert log(tmp_path / "new") == ["Begin the study new"]


def test_variables_for_another_place_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no others. Red: a variable that newer versions of git list and this one keeps; jobs that
    squeue hides, so that they are submitted again; an account that is lost."""
    for name in (*ELSEWHERE, *WHO, *HIDDEN, *SUBMITTED):
        monkeypatch.setenv(name, "given")
    monkeypatch.setenv("SLURM_CLUSTERS", "wice")
    monkeypatch.delenv("SBATCH_CLUSTERS", raising=False)
    clean_environment()
    assert {*ELSEWHERE, *HIDDEN, "SLURM_CLUSTERS"}.isdisjoint(os.environ)
    assert {*WHO, *SUBMITTED} <= {*os.environ}
    assert os.environ.pop("SBATCH_CLUSTERS") == "wice"


def test_figures_are_drawn_without_the_backend_of_a_notebook(tmp_path: Path) -> None:
    """Which is not installed here. Red: an error after all training."""
    environment = os.environ | {"MPLBACKEND": "module://matplotlib_inline.backend_inline"}
    subprocess.run([sys.executable, "-c", BACKEND], cwd=tmp_path, env=environment, check=True)
