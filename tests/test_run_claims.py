"""Runs are claimed while they train: one claim a run, dropped with its process; two fills share the work."""

import errno
import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import before_calls, experiment_tree, fingerprints, prepare_sweep, stored_runs

from ncpipe.commands.clean import clean
from ncpipe.commands.status import sweep_states
from ncpipe.commands.train import train
from ncpipe.config.params import load_params
from ncpipe.runs import fill as fill_module
from ncpipe.runs import run_claims
from ncpipe.runs.engines.options import Settings
from ncpipe.runs.fill import fill
from ncpipe.runs.run_claims import FOLDER, STALE, ClaimWriter, claimed, claimed_keys, claims, machine
from ncpipe.runs.store_layout import begin_store, store_folder
from ncpipe.training.checkpoints import Stopped

FILL = [sys.executable, "-m", "ncpipe", "fill", "--workers", "2", "--checkpoint-seconds", "0"]
ELSEWHERE = "e15e"  # no machine has this digest


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    prepare_sweep([2], [0, 1], one=experiment_tree())
    return tmp_path


def left_behind() -> list[str]:
    return sorted(path.name for path in (store_folder() / FOLDER).iterdir())


def claims_folder() -> Path:
    folder = begin_store() / FOLDER
    folder.mkdir(exist_ok=True)
    return folder


def put_claim(key: str, name: str, age: float = 0.0, text: str | None = None) -> Path:
    """A claim of this name with a link of the run, last renewed `age` seconds ago."""
    file = claims_folder() / name
    file.write_text(text or json.dumps({"epochs": 20, "host": "elsewhere", "process": 1}))
    set_age(file, age)
    (file.parent / key).symlink_to(name)
    return file


def set_age(path: Path, age: float) -> None:
    then = time.time() - age
    os.utime(path, (then, then), follow_symlinks=False)


def name_of(place: str = ELSEWHERE, process: int = 1, born: int = 1, job: str = "") -> str:
    return f"{next(NUMBERS):016x}-{place}-{process}-{born}-{job}"


NUMBERS = itertools.count()


def test_a_run_has_one_claim(project: Path) -> None:
    """Red: a second process that trains it too; a claim, or a link of one, that stays."""
    first, second = fingerprints()
    with claimed([first]) as one, claimed([first, second]) as two:
        assert one.claim.keys == (first.key(),)
        assert two.claim.keys == (second.key(),)
        assert claimed_keys() == {first.key(), second.key()}
        with claimed([first, second]) as three:
            assert three.claim.keys == ()
    assert claims() == []
    assert left_behind() == []
    train("one", 2, 0, workers=1)
    with claimed([first, second]) as four:  # one of which is stored by now
        assert four.claim.keys == (second.key(),)
    assert left_behind() == []


def of_ended_process() -> tuple[int, int]:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    born = run_claims._born(ended.pid) or 1
    ended.wait()
    return ended.pid, born


OWN = os.getpid()
# By what a claim's name says and its age: whether it counts.
NAMES: dict[str, tuple[Callable[[], str], float, bool]] = {
    "of this process": (lambda: name_of(machine(), OWN, run_claims._born(OWN) or 0), 10 * STALE, True),
    "of a process whose number another has by now": (lambda: name_of(machine(), OWN, 1), 0, False),
    "of a process that has ended": (lambda: name_of(machine(), *of_ended_process()), 0, False),
    "of a number that no process has": (lambda: name_of(machine(), 10**10 - 1), 0, False),
    "of another machine": (name_of, 0, True),
    "of another machine, late": (name_of, STALE - 60, True),
    "of another machine, too late": (name_of, STALE + 60, False),
    "of another machine, whose clock is ahead": (name_of, -(STALE - 60), True),
    "of another machine, from the future": (name_of, -(STALE + 60), False),
    "of a machine that does not know itself": (lambda: name_of("", OWN), 0, True),
    "of the job that this is, elsewhere": (lambda: name_of(job="7_0_0"), 0, False),
    "of another task of this job": (lambda: name_of(job="7_0_1"), 0, True),
    "of another job": (lambda: name_of(job="7_1_0"), 0, True),
}


@pytest.mark.parametrize("name", NAMES)
def test_a_claim_counts_while_its_process_may_train(
    name: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red: a process number alone; ten minutes for what this machine knows to have ended; this machine's
    clock for the disk of another; a job that is queued again and ends without its runs."""
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "7")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "0")
    first, second = fingerprints()
    make, age, counts = NAMES[name]
    put_claim(first.key(), make(), age)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert claimed_keys() == ({first.key()} if counts else set())
    assert [claim.keys for claim in claims()] == ([(first.key(),)] if counts else [])
    with claimed([second]):  # which also drops what no longer counts
        assert len(left_behind()) == (4 if counts else 2)
    with claimed([first]) as again:
        assert again.claim.keys == (() if counts else (first.key(),))


def test_a_clock_that_is_set_ends_no_claim(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red: a time of birth by the wall clock, which psutil computes from the boot's."""
    with claimed(fingerprints()):
        born = psutil.Process().create_time()
        monkeypatch.setattr(psutil.Process, "create_time", lambda self: born + 1)
        assert len(claimed_keys()) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="namespaces of Linux")
def test_two_containers_leave_each_other_their_runs(project: Path) -> None:
    """One host name, one store, process numbers of their own. Red: the other's process asked after here."""
    first, _ = fingerprints()
    code = f"""
import time
from ncpipe.runs.run_claims import ClaimWriter, claimed_keys
print(*claimed_keys())
writer = ClaimWriter(1)
writer.take({[first.key()]})
print(*writer.claim.keys, flush=True)
input()
"""
    options = ["--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    command = ["unshare", *options, sys.executable, "-c"]
    if subprocess.run([*command, ""], capture_output=True, check=False).returncode:
        pytest.skip("may not make a namespace")

    def container() -> "subprocess.Popen[str]":
        return subprocess.Popen([*command, code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    with container() as one:
        assert one.stdout is not None
        assert [one.stdout.readline().strip() for _ in "ab"] == ["", first.key()]
        with container() as two:
            assert two.communicate("\n")[0].split() == [first.key()]  # what the one claims, and nothing more
        with claimed([first]) as here:
            assert here.claim.keys == ()
        one.communicate("\n")


def a_file(link: Path) -> None:
    link.write_text("")


def a_folder(link: Path) -> None:
    link.mkdir()
    (link / "file").touch()


def a_link(target: str) -> Callable[[Path], None]:
    return lambda link: link.symlink_to(target)


# What may lie in the place of a link, or be linked to, that no ncpipe of this version has made.
OTHERS: dict[str, Callable[[Path], None]] = {
    "a file": a_file,
    "a folder": a_folder,
    "a link to what is not there": a_link("gone.json"),
    "a link out of the folder": a_link("../../params.yaml"),
    "a link to a device": a_link("/dev/zero"),
    "a claim of process -5": a_link(f"{0:016x}-{ELSEWHERE}--5-1-"),
    "a claim of a process without end": a_link(f"{0:016x}-{ELSEWHERE}-{'9' * 99}-1-"),
}


class Looks(threading.Event):
    """Is set after so many waits."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def wait(self, timeout: float | None = None) -> bool:
        self.most -= 1
        return self.most < 0 or super().wait(0)


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_claim_counts_until_it_is_old(
    name: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red: a fill that says for ever that there is a run to train; one that trains what may be in training;
    a claim that stays for good."""
    first, second = fingerprints()
    link, said = claims_folder() / first.key(), list[str]()
    OTHERS[name](link)
    monkeypatch.setattr(fill_module, "say", said.append)
    settings = Settings(load_params().compute, 1, 60.0, True, 1, "fill")
    with pytest.raises(Stopped):
        fill([first], settings, stop=Looks(20))
    [line] = said
    assert line.startswith("fill: waiting for 1 run ")
    assert str(link.parent) in line
    assert claims() == []
    set_age(link, STALE + 60)
    assert claimed_keys() == set()
    with claimed([first, second]) as writer:
        assert writer.claim.keys == (first.key(), second.key())
        assert left_behind() == sorted([writer.file.name, first.key(), second.key()])
    assert left_behind() == []


WHOLE: dict[str, Any] = {"epochs": 20, "host": "elsewhere", "process": 1, "epoch": 3}
TEXTS: dict[str, str | bytes] = {
    "nothing": "",
    "NUL": bytes(64),
    "no text": b"\xff\xfe",
    "a list": "[]",
    "levels without end": "[" * 10**5,
    "of a newer version": json.dumps(WHOLE | {"gpu": 1}),
    **{
        f"{key}: {json.dumps(value)[:20]}": json.dumps(WHOLE | {key: value})
        for key, value in (
            ("epochs", "a"), ("epochs", 10**400), ("epoch", -5), ("left", float("nan")), ("host", None),
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_what_a_claim_says_decides_nothing(name: str, project: Path) -> None:
    """A power loss cuts it, another version writes more. Red: a claim that no longer counts, or for ever."""
    first, _ = fingerprints()
    file = put_claim(first.key(), name_of())
    text = TEXTS[name]
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    assert claimed_keys() == {first.key()}
    states, lines = sweep_states()
    assert [*states.values()] == ["training", "waiting"]
    assert lines == []
    set_age(file, STALE + 60)
    with claimed([first]) as writer:
        assert writer.claim.keys == (first.key(),)
        assert not file.exists()


def test_a_claim_that_cannot_be_read_counts(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user's, of mode 600. Red: an error of `status`."""
    first, _ = fingerprints()
    put_claim(first.key(), name_of())

    def refuse(path: Path) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert claimed_keys() == {first.key()}
    assert claims() == []


def test_another_users_process_may_be_hidden(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by the option hidepid of /proc. Red: a run that two users train."""
    first, _ = fingerprints()
    put_claim(first.key(), name_of(machine(), 10**10 - 1))
    assert claimed_keys() == set()
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert claimed_keys() == {first.key()}


# Races


def gone(key: str) -> None:
    (claims_folder() / key).symlink_to(name_of())


def ended(key: str) -> None:
    put_claim(key, name_of(), 2 * STALE)


def half_taken(key: str) -> None:
    """By a process that was killed as it replaced a link to an ended claim."""
    name, right = name_of(), name_of()
    put_claim(key, name, 2 * STALE)
    (claims_folder() / f"{key}.{name[:16]}").symlink_to(right)


def nothing(key: str) -> None:
    claims_folder()


def other_file(key: str) -> None:
    (claims_folder() / key).write_text("")
    set_age(claims_folder() / key, 2 * STALE)


BEFORE = (nothing, gone, ended, half_taken, other_file)
CALLS = ("symlink", "readlink", "replace", "unlink", "lstat")


@pytest.mark.parametrize("before", BEFORE, ids=lambda before: before.__name__)
@pytest.mark.parametrize("rivals", ["claims", "claims and releases", "releases, and another claims"])
def test_two_that_claim_at_once(
    before: Callable[[str], None], rivals: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rival acts before each of the calls by which a process claims a run. Red: a link that is removed or
    replaced though it is no longer the one that was looked at."""
    first, _ = fingerprints()
    key, finished = first.key(), False
    for at in itertools.count():
        shutil.rmtree(claims_folder())
        before(key)
        writer, held = ClaimWriter(1), list[ClaimWriter]()
        calls = itertools.count()
        acting = False

        def act(held: list[ClaimWriter] = held) -> None:
            one, two = ClaimWriter(1), ClaimWriter(1)
            one.take([key])
            if rivals != "claims":
                one.release()
            if rivals == "releases, and another claims":
                two.take([key])
            held += [one, two]

        def step(calls: Any = calls, at: int = at) -> None:
            nonlocal acting, finished
            if not acting and next(calls) == at:
                acting, finished = True, False
                act()
                acting = False

        finished = True
        with monkeypatch.context() as patch:
            before_calls(patch, ((os, name) for name in CALLS), step)
            writer.take([key])
        holders = [peer for peer in (writer, *held) if key in peer.claim.keys and not peer.released.is_set()]
        assert len(holders) <= 1, at
        if holders:
            assert claimed_keys() == {key}
            assert os.readlink(claims_folder() / key) == holders[0].file.name
        for peer in (writer, *held):
            peer.release()
        with claimed([first]) as last:  # nothing is left that keeps a run from being claimed
            assert last.claim.keys == (key,)
        assert left_behind() == [], at
        if finished:  # all of its calls were preceded
            break
    assert at > 1


# Faults of the disk


def test_a_long_epoch_renews_its_claim(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_claims, "RENEWAL", 0.01)
    with claimed(fingerprints()) as writer:
        os.utime(writer.file, (0, 0))
        end = time.monotonic() + 30
        while writer.file.stat().st_mtime < 1:
            assert time.monotonic() < end
            time.sleep(0.01)


def test_a_removed_folder_stops_no_training(project: Path) -> None:
    """Its claims are dropped, as the docs say. Red: an error; a file that stays."""
    with claimed(fingerprints()) as writer:
        shutil.rmtree(writer.folder)
        writer.beat(3)
        assert claimed_keys() == set()
        with claimed(fingerprints()) as other:
            assert len(other.claim.keys) == 2
    assert left_behind() == []
    assert not list(store_folder().glob(".*"))


@pytest.mark.parametrize("call", ["write_text", "symlink_to"])
def test_a_full_disk_leaves_no_part_of_a_claim(
    call: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red: files that no command removes."""
    original = getattr(Path, call)

    def fill_disk(path: Path, *arguments: Any, **more: Any) -> None:
        original(path, *arguments, **more)
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, call, fill_disk)
        with pytest.raises(OSError, match="No space"), claimed(fingerprints()):
            pass
    assert not list(store_folder().glob(".*"))
    with claimed(fingerprints()) as writer:
        assert len(writer.claim.keys) == 2
    assert left_behind() == []


def test_clean_lists_what_a_kill_left_of_a_claim(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with claimed(fingerprints()) as writer, pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", lambda *names: None)
        writer._write()
        [left] = [path for path in store_folder().glob(".*") if path.is_file()]
    set_age(left, 7200)
    clean("0h", False)
    assert left.name[:16] in capsys.readouterr().out
    assert not left.exists()


def test_a_system_without_proc_goes_by_age(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red: a traceback; a claim that ends at once, since its process is not seen."""
    machine.cache_clear()

    def without_proc(original: Callable[..., Any]) -> Callable[..., Any]:
        def read(path: Path, *arguments: Any, **more: Any) -> Any:
            if path.is_relative_to("/proc"):
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
            return original(path, *arguments, **more)

        return read

    try:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "platform", "linux")
            for name in ("read_text", "read_bytes"):
                patch.setattr(Path, name, without_proc(getattr(Path, name)))
            writer = ClaimWriter(1)
            writer.take(["0" * 64])
            assert claimed_keys() == {"0" * 64}
            set_age(writer.file, STALE + 60)
            assert claimed_keys() == set()
            writer.release()
    finally:
        machine.cache_clear()


def test_the_time_left_is_at_the_pace_since_it_began(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_claims, "INTERVAL", 0.0)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with claimed(fingerprints()[:1]) as writer:  # of 20 epochs
        writer.beat(4)
        assert claims()[0].left is None
        now += 30.0
        writer.beat(10)
        assert claims()[0].left == pytest.approx(50.0)


def test_two_fills_of_one_store_train_each_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two clones with one cache, at once. Red: no claims, with which both train all; claims in the clone."""
    places = [tmp_path / name for name in ("one", "two")]
    for place in places:
        (place / ".dvc").mkdir(parents=True)
        (place / ".dvc/config").write_text(f"[cache]\n    dir = {tmp_path / 'cache'}\n")
        monkeypatch.chdir(place)
        trees = {f"e{index}": experiment_tree(epochs=200 + index, log_every=50) for index in range(4)}
        prepare_sweep([2], [0, 1], **trees)
    processes = [subprocess.Popen(FILL, cwd=place, stderr=subprocess.DEVNULL) for place in places]
    assert [process.wait(900) for process in processes] == [0, 0]
    assert len(stored_runs()) == 8
    logs = [log.read_text() for place in places if (log := place / "data/logs/batches.csv").is_file()]
    trained = [
        digest for log in logs for row in log.splitlines()[1:] for digest in row.split(",")[-1].split()
    ]
    assert len(trained) == len(set(trained)) == 8
    assert left_behind() == []
