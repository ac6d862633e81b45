"""Damaged results: what was not written as it lies there is seen, said in one line, dropped and made again.

Each test's docstring ends with the fault that would turn it red.
"""

import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import contents, experiment_tree, fingerprints, linked, refused_by, write_params

from ncpipe.__main__ import main
from ncpipe.commands.extract import extract_experiment
from ncpipe.commands.fetch import fetch
from ncpipe.commands.grid import write_grid
from ncpipe.commands.measure import measure
from ncpipe.commands.train import train
from ncpipe.runs.store_layout import ALONE, verify_stored
from ncpipe.system.artifacts import MANIFEST, RUNS, publish_file, publish_folder
from ncpipe.system.errors import InputError

RUN = RUNS / "one/L2/s1"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seed 0 of three is in its place, 1 and 2 wait in the store. Not to be changed."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_params([2], [0, 1, 2], one=experiment_tree())
        write_grid()
        fetch("one")
        train("one", 2, workers=1)
        for seed in (1, 2):
            shutil.rmtree(RUNS / f"one/L2/s{seed}")
    return folder


@pytest.fixture
def project(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it to work in."""
    shutil.copytree(trained, tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


def waiting(seed: int = 1) -> Path:
    return next(ALONE / one.key() for one in fingerprints() if one.run.seed == seed)


def flip(path: Path, bit: int) -> None:
    """One bit, the negative ones from the end, behind the back of whoever looks at times."""
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def to_a_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("a file")


def to_another_run(folder: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(waiting(2), folder)


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "a flipped weight": (lambda f: flip(f / "model.safetensors", -100), "model.safetensors: damaged"),
    "a missing model": (lambda f: (f / "model.safetensors").unlink(), "model.safetensors: missing"),
    "one file more": (lambda f: (f / "more").touch(), "more: not part of it"),
    "a file": (to_a_file, "not found"),
    "another run's": (to_another_run, "of another result"),
    "a link to a folder": (linked, "symbolic link"),
    "no seal": (lambda f: (f / MANIFEST).unlink(), f"{MANIFEST}: not found"),
    "an emptied seal": (lambda f: (f / MANIFEST).write_bytes(b"") and None, f"{MANIFEST}: damaged"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_waiting_run_is_trained_again(
    name: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Red: a claim that asks whether the folder exists, as it does for all of these."""
    damage, reason = DAMAGES[name]
    folder = waiting()
    whole = contents(folder)
    damage(folder)
    capsys.readouterr()
    train("one", 2, 1, workers=1)
    said = capsys.readouterr().err.splitlines()
    [line] = [line for line in said if "was removed" in line]
    assert line.startswith("one L=2 seed=1: ")
    assert reason in line
    assert contents(RUN) == whole
    assert not RUN.is_symlink()
    train("one", 2, 2, workers=1)  # the others still wait
    assert "taken from the store" in capsys.readouterr().err


def test_every_flipped_bit_is_seen(project: Path) -> None:
    """In every file of a run's folder. Red: a seal that leaves a file out, or does not cover itself."""
    [one] = [fingerprint for fingerprint in fingerprints() if fingerprint.run.seed == 1]
    folder, chance = waiting(), random.Random(0)
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) == 4
    verify_stored(folder, one.key())
    for path in files:
        for bit in chance.sample(range(8 * path.stat().st_size), 20):
            flip(path, bit)
            with pytest.raises(InputError, match=folder.name):
                verify_stored(folder, one.key())
            flip(path, bit)
    verify_stored(folder, one.key())


@pytest.mark.parametrize(
    ("command", "name", "bit"),
    [
        (extract_experiment, "model.safetensors", 9),
        (measure, MANIFEST, None),
    ],
)
def test_a_damaged_finished_run_is_not_measured(
    command: Callable[[str], None], name: str, bit: int | None, project: Path
) -> None:
    """bit: the one that is flipped, or the whole file is missing. Red: weights that load as others."""
    for seed in (1, 2):
        train("one", 2, seed, workers=1)
    if command is measure:
        extract_experiment("one")
    whole = contents(RUN)
    if bit is None:
        (RUN / name).unlink()
    else:
        flip(RUN / name, bit)
    message = refused_by(command, "one")
    assert message.startswith(str(RUN))
    assert message.endswith(f"{RUN} was removed; run dvc repro")
    assert not RUN.exists()
    train("one", 2, 1, workers=1)
    assert contents(RUN) == whole
    command("one")


def test_all_of_a_folder_is_on_the_disk_before_it_is_in_its_place(
    tmp_path: Path, disk_log: list[int | str]
) -> None:
    """Red: a rename that a power loss may find before what is in the folder."""
    with publish_folder(tmp_path / "folder") as folder:
        (folder / "below").mkdir()
        for name in ("a", "below/b"):
            (folder / name).write_text("content")
    moment = disk_log.index("renamed")
    paths = [tmp_path / "folder", *(tmp_path / "folder").rglob("*")]
    assert sorted(disk_log[:moment], key=str) == sorted((path.stat().st_ino for path in paths), key=str)
    assert disk_log[moment + 1 :] == [tmp_path.stat().st_ino]
    disk_log.clear()
    with publish_file(tmp_path / "file") as path:
        path.write_text("content")
    assert disk_log == [(tmp_path / "file").stat().st_ino, "renamed", tmp_path.stat().st_ino]


def test_what_a_killed_dvc_tried_links_by_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Red: it stays in data/runs/NAME, which counts to what `extract` depends on, for good."""
    monkeypatch.chdir(tmp_path)
    folders = ["runs", "runs/one", "runs/one/L2", "runs/one/L2/x0.1", "metrics", "series", "constructed"]
    name = ".Rf22zXYH0J-2ytw2vqcZ_g.tmp"
    kept = ["runs/one/L2/.mine.tmp", "runs/one/L2/s0/" + name, "runs/one/" + name[1:]]
    kept += [f"{folder}/{name}" for folder in ("results", "figures", "claims", "raw")]
    gone = [f"{folder}/{name}" for folder in folders]
    for each in (*gone, *kept):
        path = Path("data", each)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (0, 0))
    young = Path("data/metrics/.Zf22zXYH0J-2ytw2vqcZ_g.tmp")
    young.touch()
    os.utime(young, (time.time() + 600,) * 2)  # however long the test takes
    monkeypatch.setattr("sys.argv", ["ncpipe", "schema", "--help"])
    for dvc in (False, True):
        if dvc:
            monkeypatch.setenv("DVC_STAGE", "dvc.yaml:aggregate")
            monkeypatch.setattr("ncpipe.commands.cli.install_signal_handlers", lambda: None)
        with pytest.raises(SystemExit):
            main()
        left = {path.relative_to("data").as_posix() for path in Path("data").rglob("*") if path.is_file()}
        assert left == {*kept, "metrics/" + young.name, *([] if dvc else gone)}
    capsys.readouterr()
