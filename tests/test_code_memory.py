"""Digests of code that an earlier process has taken: never those of other code, whatever happens to the file.

Each test's docstring ends with the fault that would turn it red.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import experiment_tree, write_params

from ncpipe import code, code_memory, stamps
from ncpipe.code_memory import MEMORY, forget_state, recall, remember
from ncpipe.commands.fetch import fetch
from ncpipe.commands.train import train
from ncpipe.params import load_params

CHOICES = (("architecture", "mlp"), ("loss", "ce"))
DIGEST = "0123456789abcdef" * 4


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of two modules whose files are old enough; one digest is remembered of it."""
    folder = tmp_path / "ncpipe"
    folder.mkdir()
    for name in ("one", "two"):
        (folder / f"{name}.py").write_text("X = 1\n")
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(code, "ROOT", tmp_path)
    monkeypatch.setattr(code_memory, "SETTLED", -1.0)
    forget_state()
    assert recall(CHOICES) is None
    remember({CHOICES: DIGEST})
    return folder


@pytest.fixture(autouse=True)
def _nothing_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stamps, "_taken", {})


def asked_anew() -> str | None:
    """What another process would recall."""
    forget_state()
    return recall(CHOICES)


def test_another_process_need_not_take_it_again() -> None:
    """Red: a state in which something of the process counts."""
    assert asked_anew() == DIGEST
    assert recall((("architecture", "mlp"), ("loss", "mse"))) is None
    source = (
        f"from ncpipe import code; from pathlib import Path; code.ROOT = Path.cwd()\n"
        f"from ncpipe.code_memory import recall; print(recall({CHOICES}))"
    )
    command = [sys.executable, "-c", source]
    paths = {"PYTHONPATH": str(Path(code_memory.__file__).parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | paths, check=True)
    assert done.stdout.strip() == DIGEST


def edited(package: Path) -> None:
    """Other content of the same size, and the time of the last change put back."""
    path = package / "one.py"
    before = path.stat()
    path.write_text("X = 2\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def replaced(package: Path) -> None:
    """By a file of the same size and time of change, moved there."""
    path, other = package / "one.py", package / "other"
    other.write_text("X = 2\n")
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    os.replace(other, path)


@pytest.mark.parametrize(
    "change",
    [
        edited,
        replaced,
        lambda package: (package / "three.py").write_text("X = 1\n"),
        lambda package: (package / "two.py").unlink(),
        lambda package: (package / "two.py").rename(package / "three.py"),
        lambda package: Path("study.py").write_text(""),
    ],
    ids=["edited", "replaced", "added", "deleted", "renamed", "study"],
)
def test_what_changed_is_asked_anew(change, package: Path) -> None:  # type: ignore[no-untyped-def]
    """Red: any of size, inode and both times that is left out; files that are not listed."""
    change(package)
    assert asked_anew() is None


def test_damage_gives_nothing_or_what_was_written() -> None:
    """A bit of each byte of the file, and every length of it. Red: a file without its seal."""
    whole = MEMORY.read_bytes()
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 7
        MEMORY.write_bytes(damaged)
        assert recall(CHOICES) in (None, DIGEST)
    for length in range(len(whole)):
        MEMORY.write_bytes(whole[:length])
        assert recall(CHOICES) is None
    for text in ("[]", "{}", "3", '{"state": 1, "digests": null, "seal": 1}', "[" * 5):
        MEMORY.write_text(text)
        assert recall(CHOICES) is None


def test_code_that_changes_while_it_is_read_is_not_remembered(package: Path) -> None:
    """Red: a state of after the reading, with a digest of before the edit."""
    MEMORY.unlink()
    forget_state()
    assert recall(CHOICES) is None
    edited(package)
    remember({CHOICES: DIGEST})
    assert not MEMORY.exists()


def test_code_that_was_just_written_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red: an edit within the tick of a clock in which the file was read."""
    MEMORY.unlink()
    monkeypatch.setattr(code_memory, "SETTLED", 60.0)
    forget_state()
    remember({CHOICES: DIGEST})
    assert not MEMORY.exists()


def test_where_nothing_can_be_written_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red: a full disk that stops a run for what only saves time."""
    before = MEMORY.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    remember({CHOICES: "another"})
    assert MEMORY.read_bytes() == before
    assert [path.name for path in MEMORY.parent.iterdir()] == [MEMORY.name]


def test_a_run_that_waits_is_claimed_without_a_syntax_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red: digests that are not written down, or not those of the runs that wait."""
    monkeypatch.setattr(code, "ROOT", Path(code.__file__).parents[1])
    write_params([2], [0, 1], one=experiment_tree(epochs=2, log_every=1))
    stamps.forget_code()
    fetch("one")
    train("one", 2, 0, workers=1)
    taken = stamps.code_digest(load_params().experiments["one"])
    stamps.forget_code()
    monkeypatch.setattr(stamps, "training_digests", None)
    train("one", 2, 1, workers=1)
    assert Path("data/runs/one/L2/s1/run.json").is_file()
    assert stamps.code_digest(load_params().experiments["one"]) == taken
