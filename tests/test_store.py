"""The store of runs: where it lies, what is taken from it, what it takes up, what is damaged, what it costs.

Each test's docstring ends with the fault that would turn it red.
"""

import contextlib
import errno
import hashlib
import json
import os
import random
import re
import secrets
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import (
    Command,
    before_calls,
    contents,
    experiment_tree,
    fingerprints,
    flip_byte,
    linked,
    refused_by,
    stored_runs,
    write_params,
)
from dvc.config import Config
from dvc.repo import Repo

from ncpipe.commands.clean import clean
from ncpipe.commands.code import write_code
from ncpipe.commands.extract import extract_experiment
from ncpipe.commands.fetch import fetch
from ncpipe.commands.fill import fill_store
from ncpipe.commands.grid import write_grid
from ncpipe.commands.measure import measure
from ncpipe.commands.train import train
from ncpipe.config.params import load_params
from ncpipe.runs import batches, store_layout
from ncpipe.runs.fast_path import take_stored
from ncpipe.runs.fingerprint import key_of_record
from ncpipe.runs.store import (
    import_runs,
    link_to_dvc_cache,
    restore,
    stored,
)
from ncpipe.runs.store_layout import VERSION_FILE, materialise, store_folder, verify_stored
from ncpipe.system.artifacts import (
    CODE,
    MANIFEST,
    PREPARED,
    RUNS,
    md5_of,
    publish_file,
    publish_folder,
    read_json,
    remove,
    write_manifest,
)
from ncpipe.system.errors import InputError

RUN = RUNS / "one/L2/s1"
WORDS = ["--experiment", "one", "--depth", "2", "--seed", "1"]


def prepare(tree: dict[str, object] | None = None) -> None:
    write_params([2], [0, 1], one=experiment_tree() if tree is None else tree)
    fetch("one")
    write_grid()
    write_code()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs in the store, none in its place. Not to be changed."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        prepare()
        train("one", 2, workers=1)
        shutil.rmtree(RUNS)
    return folder


@pytest.fixture
def project(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it to work in."""
    shutil.copytree(trained, tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


def nothing_may_train(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "train_batch", None)


def test_what_the_sweep_no_longer_has_leaves_the_folders_that_stages_depend_on(project: Path) -> None:
    """The run stays in the store. Red: stages that are stale in a fresh clone; a run that is lost."""
    train("one", 2, 0)
    train("one", 2, 1)
    for path in ("data/metrics/one", "data/metrics/old", "data/prepared/old", "data/runs/old/L2/s0"):
        Path(path).mkdir(parents=True)
    shutil.rmtree(store_folder() / key_of_record(read_json(RUN / "run.json")))
    write_params([2], [0], one=experiment_tree())
    write_grid()
    folders = [path.relative_to("data").as_posix() for path in Path("data").glob("*/*") if path.is_dir()]
    assert sorted(folder for folder in folders if folder.startswith(("metrics", "prepared", "runs"))) == [
        "metrics/one", "prepared/one", "runs/one",
    ]  # fmt: skip
    assert [path.name for path in Path("data/runs/one/L2").iterdir()] == ["s0"]
    assert len(stored_runs()) == 2


# Where it lies

SETTINGS: dict[str, dict[str, str]] = {
    "none": {},
    "the project": {".dvc/config": "[cache]\n    dir = ../elsewhere\n    type = copy\n"},
    "absolute": {".dvc/config": '[core]\n    analytics = false\n[cache]\n    dir = "/a b/c"\n'},
    "the home": {".dvc/config": "[cache]\n    dir = ~/cache\n"},
    "local over the project": {
        ".dvc/config": "[cache]\n    dir = one\n",
        ".dvc/config.local": "['remote \"x\"']\n    url = /r\n[cache]\n    dir = two\n",
    },
    "the user": {"user/config": "[cache]\n    dir = three\n"},
    "the system": {"system/config": "[cache]\n    dir = four\n"},
    "the user over the system": {
        "user/config": "[cache]\n    dir = three\n",
        "system/config": "[cache]\n    dir = four\n",
    },
    "the project over the user": {
        ".dvc/config": "[cache]\n    dir = one\n",
        "user/config": "[cache]\n    dir = three\n",
    },
}


@pytest.mark.parametrize("name", SETTINGS)
def test_it_lies_where_dvc_says_its_cache_is(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red: a file of settings left out, or in another order; a path from another folder."""
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DVC_GLOBAL_CONFIG_DIR", str(tmp_path / "user"))
    monkeypatch.setenv("DVC_SYSTEM_CONFIG_DIR", str(tmp_path / "system"))
    monkeypatch.setenv("DVC_SITE_CACHE_DIR", str(tmp_path / "site"))
    Repo.init(no_scm=True).close()
    for path, text in SETTINGS[name].items():
        Path(path).parent.mkdir(exist_ok=True)
        Path(path).write_text(text)
    config = Config.from_cwd()
    dvcs = config["cache"].get("dir", Path(config.dvc_dir, "cache"))  # as `dvc cache dir` prints it
    monkeypatch.chdir("below")
    assert os.path.normpath(store_folder()) == os.path.normpath(Path(tmp_path, dvcs) / "ncpipe")


def test_a_users_own_folders_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without DVC's variables. Red: a store beside the cache of a user who has one for all projects."""
    for name in ("DVC_GLOBAL_CONFIG_DIR", "DVC_SYSTEM_CONFIG_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".dvc").mkdir()
    (tmp_path / "home/dvc").mkdir(parents=True)
    (tmp_path / "home/dvc/config").write_text("[cache]\n    dir = /shared\n")
    assert store_folder() == Path("/shared/ncpipe")


# What is taken from it


def test_a_stage_takes_a_stored_run_at_once(project: Path) -> None:
    """With the standard library alone, what the long way takes. Red: a fingerprint that is not the run's."""
    code = (
        f"import sys; from ncpipe.runs.fast_path import take_stored; assert take_stored({WORDS!r}); "
        "heavy = {'typer', 'pydantic', 'numpy', 'torch', 'yaml', 'tqdm', 'psutil'}; "
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert [path.parent for path in RUNS.rglob("run.json")] == [RUN]
    fast = contents(RUNS)
    shutil.rmtree(RUNS)
    train("one", 2, 1, workers=1)
    assert contents(RUNS) == fast


@pytest.mark.parametrize("value", ["1", "1e-05"])
def test_a_stage_of_a_study_with_an_axis_too(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red: the value at another place, or as another number than in run.json."""
    monkeypatch.chdir(tmp_path)
    write_params([2], [0], one=experiment_tree(epochs=2, log_every=1))
    text = Path("params.yaml").read_text()
    axis = f"sweep:\n  axis: penalty.value\n  values: [{value}]\n"
    Path("params.yaml").write_text(text.replace("sweep:\n", axis, 1))
    number = load_params().values()[0]
    fetch("one", None, number)
    write_grid()
    write_code()
    train("one", 2, 0, value=number)
    whole = contents(RUNS)
    shutil.rmtree(RUNS)
    assert take_stored(["--experiment", "one", "--depth", "2", "--value", str(number), "--seed", "0"])
    assert contents(RUNS) == whole


@pytest.mark.parametrize("linked", [True, False])
def test_a_run_is_on_the_disk_before_it_has_its_place(
    linked: bool, project: Path, monkeypatch: pytest.MonkeyPatch, disk_log: list[int | str]
) -> None:
    """A linked file is on the disk already, and its new folder has to be; a copy of a file has to be too.

    Red: a place that a power loss leaves with empty files, or without some.
    """

    def fail(source: str, target: str) -> None:
        raise OSError(errno.EXDEV, "another file system")

    if not linked:
        monkeypatch.setattr(os, "link", fail)
    assert take_stored(WORDS)
    before = disk_log[: disk_log.index("renamed")]
    files = {path for path in RUN.rglob("*") if path.is_file()}
    needed = {RUN, *RUN.rglob("*")} - (files if linked else set())
    assert sorted(before, key=str) == sorted((path.stat().st_ino for path in needed), key=str)
    assert {path.stat().st_nlink for path in files} == {2 if linked else 1}


def another_key(path: Path, key: str, value: object) -> None:
    path.write_text(json.dumps(read_json(path) | {key: value}))


CHANGES: dict[str, Callable[[], object]] = {
    "other code": lambda: _edit(CODE / "experiments/one/train.txt", "a", "b"),
    "other parameters": lambda: _edit(CODE / "experiments/one/train.txt", "0.005", "0.006"),
    "no digests": lambda: (CODE / "experiments/one/train.txt").unlink(),
    "other data": lambda: another_key(PREPARED / "one/facts.json", "checksum", 64 * "a"),
    "no data": lambda: shutil.rmtree(PREPARED),
    "damage": lambda: flip_byte(_one() / "model.safetensors", -9),
    "nothing": lambda: shutil.rmtree(store_folder()),
    "another version": lambda: (store_folder() / VERSION_FILE).write_text("2\n"),
    "something in its place": lambda: RUN.mkdir(parents=True),
}


def _one(seed: int = 1) -> Path:
    return next(path for path in stored_runs() if read_json(path / "run.json")["inputs"]["seed"] == seed)


def _edit(path: Path, old: str, new: str) -> None:
    path.write_text(path.read_text().replace(old, new, 1))


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_not_as_it_was_is_left_to_the_long_way(name: str, project: Path) -> None:
    """Red: a run taken by its name, or by what the file system says of it."""
    store_layout._store.cache_clear()
    CHANGES[name]()
    store_layout._store.cache_clear()
    before = contents(project)
    assert not take_stored(WORDS)
    assert contents(project) == before
    store_layout._store.cache_clear()


def test_words_of_another_kind_are_left_to_the_long_way(project: Path) -> None:
    for words in ([], WORDS[:4], WORDS[2:], [*WORDS, "--workers"], [*WORDS, "--workers", "1"]):
        assert not take_stored(words)
    assert not take_stored(["--experiment", "../one", *WORDS[2:]])
    assert not RUNS.exists()


def test_another_device_and_another_torch_are_no_reason_to_train(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finished run is the result, whoever trained it. Red: a device or a version in the fingerprint."""
    nothing_may_train(monkeypatch)
    one = _one()
    record = read_json(one / "run.json")
    record["computed_with"]["torch"] = "1.0"
    (one / "run.json").write_text(json.dumps(record))
    (one / MANIFEST).unlink()
    write_manifest(one, one.name)
    train("one", 2, 1, device="cuda")
    assert read_json(RUN / "run.json")["computed_with"] == record["computed_with"]


def test_runs_of_the_grid_by_some_of_their_names(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red: an option that is not asked of the grid; no word where nothing is meant."""
    nothing_may_train(monkeypatch)
    train("one", seed=1)
    assert [path.parent for path in RUNS.rglob("run.json")] == [RUN]
    train("one")
    assert len(list(RUNS.rglob("run.json"))) == 2
    with pytest.raises(InputError, match=r"^train one depth=5: no such runs in the sweep of params\.yaml$"):
        train("one", depth=5)


# What it takes up


def test_a_run_that_lies_in_its_place_is_taken_up(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the stage `code`, which runs before DVC removes anything. Red: a seed added after `dvc pull` that
    trains all of the experiment."""
    for seed in (0, 1):
        train("one", 2, seed)
    whole = contents(RUNS)
    shutil.rmtree(store_folder())
    for path in list(RUNS.rglob("model.safetensors")):  # as with symbolic links into DVC's cache
        path.rename(project / path.parent.name)
        path.symlink_to(project / path.parent.name)
    write_code()
    shutil.rmtree(RUNS)
    nothing_may_train(monkeypatch)
    for seed in (0, 1):
        train("one", 2, seed)
    assert contents(RUNS) == whole
    before = stored_runs()
    import_runs()
    assert stored_runs() == before


def test_what_dvcs_cache_alone_has_is_not_trained_again(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As after `ncpipe clean`, where DVC restores it only after `fill`; or in a fresh clone, by a remote.

    Red: hours of training; a run of other code that is taken; a hint to pull what is out of date."""
    train("one", 2, workers=1)
    whole, cache, stages = contents(RUNS), Path(".dvc/cache/files/md5"), {}

    def cached(content: bytes, suffix: str = "") -> str:
        md5 = hashlib.md5(content, usedforsecurity=False).hexdigest() + suffix
        (cache / md5[:2]).mkdir(parents=True, exist_ok=True)
        (cache / md5[:2] / md5[2:]).write_bytes(content)
        return md5

    code = CODE / "experiments/one/train.txt"
    for seed in (0, 1):
        folder = RUNS / f"one/L2/s{seed}"
        listing = [
            {"md5": cached(file.read_bytes()), "relpath": file.relative_to(folder).as_posix()}
            for file in folder.rglob("*")
            if file.is_file()
        ]
        md5 = cached(json.dumps(listing).encode(), ".dir")
        deps = [{"path": code.as_posix(), "md5": md5_of(code)}]
        stages[f"train@one-2-{seed}"] = {"deps": deps, "outs": [{"path": folder.as_posix(), "md5": md5}]}
    Path("dvc.lock").write_text(json.dumps({"stages": stages}))  # which is YAML
    shutil.rmtree(store_folder())
    shutil.rmtree(RUNS)
    store_layout._store.cache_clear()
    missing = fingerprints()
    with monkeypatch.context() as patch:
        nothing_may_train(patch)
        fill_store()
        train("one", 2)
    assert contents(RUNS) == whole
    shutil.rmtree(store_folder())
    (cache / md5[:2] / md5[2:]).unlink()
    capsys.readouterr()
    assert restore(missing) == missing[1:]
    assert (
        "dvc.lock has 1 of the 1 run to train, and DVC's cache does not; if a remote"
        in capsys.readouterr().err
    )
    shutil.rmtree(store_folder(), ignore_errors=True)
    whole_list = [
        {"md5": file["md5"], "relpath": f"L2/s1/{file['relpath']}"} for file in listing
    ]  # a stage for each experiment; and a list that is cut
    for content in (json.dumps(whole_list).encode(), b"[{"):
        out = {"path": "data/runs/one", "md5": cached(content, ".dir")}
        Path("dvc.lock").write_text(json.dumps({"stages": {"train@one": {"deps": deps, "outs": [out]}}}))
        left = restore(missing)
        assert left == (missing if content == b"[{" else [run for run in missing if run.run.seed == 0])
        said = capsys.readouterr().err
        assert ("dvc.lock has 2 of the 2 runs" in said) == (content == b"[{")
        shutil.rmtree(store_folder(), ignore_errors=True)
    code.write_text("edited")
    assert restore(missing[1:]) == missing[1:]
    assert capsys.readouterr().err == ""


def test_damage_is_not_taken_up(project: Path) -> None:
    """Red: a store of what merely looks like a run."""
    train("one", 2, 1)
    shutil.rmtree(store_folder())
    path = RUN / "history.csv"
    path.write_text(path.read_text() + " ")
    import_runs()
    assert stored_runs() == []


# What is damaged


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
    shutil.copytree(_one(0), folder)


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "a missing model": (lambda f: (f / "model.safetensors").unlink(), "model.safetensors: missing"),
    "one file more": (lambda f: (f / "more").touch(), "more: not part of it"),
    "a file": (to_a_file, "not found"),
    "another run's": (to_another_run, "of another result"),
    "a link to a folder": (linked, "symbolic link"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_waiting_run_is_trained_again(
    name: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Red: a claim that asks whether the folder exists, as it does for all of these."""
    damage, reason = DAMAGES[name]
    folder = _one()
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
    train("one", 2, 0, workers=1)  # the other still waits
    assert "taken from the store" in capsys.readouterr().err


def test_every_flipped_bit_is_seen(project: Path) -> None:
    """In every file of a run's folder. Red: a seal that leaves a file out, or does not cover itself."""
    folder, chance = _one(), random.Random(0)
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) == 4
    verify_stored(folder, folder.name)
    for path in files:
        for bit in chance.sample(range(8 * path.stat().st_size), 20):
            flip(path, bit)
            with pytest.raises(InputError, match=folder.name):
                verify_stored(folder, folder.name)
            flip(path, bit)
    verify_stored(folder, folder.name)


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
    train("one", 2, workers=1)
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


@pytest.mark.parametrize("publish", [publish_folder, publish_file])
def test_a_full_disk_names_what_was_being_written(publish: Any, tmp_path: Path) -> None:
    """Red: pandas writes into an open file, whose errors have no name."""
    with pytest.raises(OSError, match="No space left") as caught, publish(tmp_path / "results"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert caught.value.filename == str(tmp_path / "results")


def test_what_a_killed_dvc_tried_links_by_goes(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red: it stays in data/runs/NAME, which counts to what `extract` depends on, for good."""
    monkeypatch.chdir(tmp_path)
    folders = ["runs", "runs/one", "runs/one/L2", "runs/one/L2/x0.1", "metrics", "series", "constructed"]
    name = ".Rf22zXYH0J-2ytw2vqcZ_g.tmp"
    kept = ["runs/one/L2/.mine.tmp", "runs/one/L2/s0/" + name, "runs/one/" + name[1:]]
    kept += [f"{folder}/{name}" for folder in ("results", "figures", "claims", "raw")]
    gone = [f"{folder}/{name}" for folder in folders]
    for file in (*gone, *kept):
        path = Path("data", file)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (0, 0))
    young = Path("data/metrics/.Zf22zXYH0J-2ytw2vqcZ_g.tmp")
    young.touch()
    os.utime(young, (time.time() + 600,) * 2)  # however long the test takes
    for dvc in (False, True):
        if dvc:
            monkeypatch.setenv("DVC_STAGE", "dvc.yaml:aggregate")
            monkeypatch.setattr("ncpipe.commands.cli.install_signal_handlers", lambda: None)
        command("schema", "--help")
        left = {path.relative_to("data").as_posix() for path in Path("data").rglob("*") if path.is_file()}
        assert left == {*kept, "metrics/" + young.name, *([] if dvc else gone)}


# What it costs


def test_a_file_that_dvc_has_takes_no_room_of_its_own(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red: three copies of a run: in its place, in DVC's cache and here; a name for other bytes; a temporary
    file in the folder, which is damage to others."""
    train("one", 2, 1)
    shutil.copytree(RUN, "copy")  # what DVC leaves in a place, on a disk without links
    shutil.rmtree(RUN)
    Path("copy").rename(RUN)
    cache = Path(".dvc/cache/files/md5")
    store = stored(_one().name)
    Path(".dvc/cache").mkdir(parents=True)
    store.parent.rename(".dvc/cache/ncpipe")
    store_layout._store.cache_clear()
    [store] = [path for path in stored_runs() if path.name == store.name]
    files = [path for path in RUN.rglob("*") if path.is_file()]
    objects = {}
    for file in files:
        md5 = hashlib.md5(file.read_bytes(), usedforsecurity=False).hexdigest()
        objects[file] = cache / md5[:2] / md5[2:]
        objects[file].parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, objects[file])
        objects[file].chmod(0o444)
    weights = RUN / "model.safetensors"
    objects[weights].chmod(0o644)
    flip_byte(objects[weights], -9)
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda handle: flushed.append(os.fstat(handle).st_ino))
    os.utime(store, (time.time() - 40 * 86400,) * 2)

    def linked(source: Path, target: Path, link: Callable[..., None] = os.link) -> None:
        link(source, target)
        verify_stored(store, store.name)  # another process may just look for damage

    monkeypatch.setattr(os, "link", linked)
    link_to_dvc_cache()
    assert not list(store.parent.glob(f".{store.name}*"))
    assert store.stat().st_mtime < time.time() - 39 * 86400  # which is no use, for `ncpipe clean`
    inodes = {path.stat().st_ino for file, path in objects.items() if file != weights}
    assert inodes <= set(flushed)  # else a power loss may empty what the store had on the disk
    for file in files:
        stored_file = store / file.relative_to(RUN)
        assert stored_file.samefile(objects[file]) == (file != weights)
        assert stored_file.read_bytes() == file.read_bytes()


def test_clean_removes_what_nobody_has_used_for_long(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red: a run of now that goes, or its result; a listing that removes; an age that is taken for 0."""
    one = _one()
    for path in stored_runs():
        os.utime(path, (time.time() - 40 * 86400,) * 2)
    assert take_stored(WORDS)  # which is a use
    (store_folder() / f"{64 * 'b'}-cpu.checkpoint").write_text("")
    (store_folder() / ".half").mkdir()
    clean("30d", True)
    clean(None, False)
    listed = capsys.readouterr().out.splitlines()
    assert len(stored_runs()) == 2
    assert len({line.partition("  ")[0] for line in listed if line.startswith("one L=2 seed=")}) == 2
    for dry_run in (True, False):
        with pytest.raises(InputError, match="--experiment 'other': no such runs are stored"):
            clean("0h", dry_run, "other")
    clean("0h", True, "one")
    assert len(capsys.readouterr().out.splitlines()) == 2
    clean("99d", True, "one")  # none as old, which is no mistake
    assert not capsys.readouterr().out
    os.utime(one, (time.time() + 86400,) * 2)  # by a file server whose clock is ahead
    clean("0h", True, "one")
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert [len(listed), len([line for line in listed if " run " in line])] == [4, 3]
    for text in ("30", "d", "-3d", "3 d"):
        with pytest.raises(InputError, match="write a number with h, d or w, for example 30d"):
            clean(text, False)
    clean("30d", False)
    assert stored_runs() == [one]
    gone = store_folder() / f"{64 * 'c'}-cpu.checkpoint"
    gone.symlink_to("nowhere")  # as one that is renamed meanwhile
    clean(None, False)
    gone.unlink()
    clean("0h", False)
    assert sorted(path.name for path in store_folder().iterdir()) == [".half", "claims", VERSION_FILE]
    assert (RUN / MANIFEST).is_file()


# What goes wrong


CALLS = ((os, "replace"), (os, "rename"), (os, "link"), (shutil, "copytree"), (shutil, "rmtree"))


@pytest.mark.parametrize("there", [False, True])
def test_two_take_a_run_at_once(there: bool, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process takes it before each of the calls that put it into its place, which may have a former
    result. Red: one that ends with an error, since its temporary folder or its place was the other's too."""
    store = _one()
    for at in range(99):
        shutil.rmtree(RUN, ignore_errors=True)
        if there:
            RUN.mkdir(parents=True)
            (RUN / "former").touch()
        acts = iter([False] * at + [True])
        with monkeypatch.context() as patch:
            before_calls(patch, CALLS, lambda acts=acts: next(acts, False) and materialise(store, RUN))
            materialise(store, RUN)
        verify_stored(RUN, store.name)
        assert list(Path("data/.partial").iterdir()) == []
        if next(acts, False):  # there were fewer calls
            break
    assert 5 < at < 98


def test_an_old_half_of_a_folder_is_removed(project: Path) -> None:
    """What a kill left; a younger one may be another process's. Red: a disk that fills with each kill."""
    halves = [Path(f"data/.partial/runs-one-L2-s1.{name}") for name in ("old", "young", "old-former")]
    for half in halves:
        half.mkdir(parents=True)
        if "old" in half.name:
            os.utime(half, (0, 0))
    assert take_stored(WORDS)
    assert [half.exists() for half in halves] == [False, True, False]


def test_a_folder_in_which_a_process_still_writes_is_removed(tmp_path: Path) -> None:
    """A cancelled job of Slurm does, until it has ended. Red: "Directory not empty", and half a folder."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "module.py").touch()
    end = time.monotonic() + 1

    def write() -> None:
        with contextlib.suppress(FileNotFoundError):  # the folder is gone
            while time.monotonic() < end:
                (folder / secrets.token_hex(8)).touch()

    writer = threading.Thread(target=write)
    writer.start()
    remove(folder)
    writer.join()
    assert not folder.exists()


def test_files_have_the_mode_that_the_umask_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red: weights that no other user of a shared store may read."""
    monkeypatch.chdir(tmp_path)
    before = os.umask(0o027)
    try:
        prepare()
        train("one", 2, workers=1)
        extract_experiment("one")
    finally:
        os.umask(before)
    modes = {str(path): path.stat().st_mode & 0o777 for path in Path("data").rglob("*") if path.is_file()}
    assert {name: mode for name, mode in modes.items() if mode != 0o640} == {}
    assert len([name for name in modes if name.endswith(".safetensors")]) == 7


def test_a_store_of_another_version_is_one_line(project: Path, command: Command) -> None:
    """Red: runs taken from what another version means by them; the first stage ends well, before it."""
    store_layout._store.cache_clear()
    (store_folder() / VERSION_FILE).write_text("2\n")
    store_layout._store.cache_clear()
    for words in (["code"], ["train", *WORDS]):
        said = command(*words)
        assert re.fullmatch(r"ncpipe: data/\.store: has version '2', but this ncpipe reads .*", said)
    store_layout._store.cache_clear()


@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOSPC])
def test_a_store_that_cannot_be_written_is_one_line(
    number: int, project: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stored run is taken from it all the same. Red: a traceback; a folder that is half a run."""
    rename = os.rename

    def fail(source: Path, target: Path) -> None:
        if Path(target).parent == store_folder():
            raise OSError(number, os.strerror(number), str(target))
        rename(source, target)

    monkeypatch.setattr(os, "rename", fail)
    train("one", 2, 1)
    write_params([2], [0, 1, 2], one=experiment_tree())
    before = stored_runs()
    said = command("train", *WORDS[:-1], "2", "--workers", "1")
    assert said.startswith("ncpipe: data/.store/")
    assert os.strerror(number) in said
    assert stored_runs() == before
    assert not [path for path in store_folder().rglob(".*") if path.is_dir() and any(path.iterdir())]


def test_a_run_is_taken_from_a_read_only_disk(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There unlink fails even if there is no such file. Red: a run that is stored and cannot be taken."""
    unlink = Path.unlink

    def fail(path: Path, missing_ok: bool = False) -> None:
        if path.parent == store_folder():
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", fail)
    train("one", 2, 1)
    assert (RUN / MANIFEST).is_file()
