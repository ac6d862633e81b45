"""Runs are claimed while they train: one claim a run, dropped with its process; two fills share the work."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import experiment_tree, fingerprints, prepare_sweep, stored_runs

from ncpipe.commands.train import train
from ncpipe.runs import run_claims
from ncpipe.runs.run_claims import FOLDER, Claim, claimed, claimed_keys, claims
from ncpipe.runs.store_layout import store_folder

FILL = [sys.executable, "-m", "ncpipe", "fill", "--workers", "2", "--checkpoint-seconds", "0"]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    prepare_sweep([2], [0, 1], one=experiment_tree())
    return tmp_path


def left_behind() -> list[str]:
    return sorted(path.name for path in (store_folder() / FOLDER).iterdir() if path.name != ".clock")


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


def test_the_claim_of_a_killed_process_is_dropped(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red: a process number that another process has by now; runs that nobody trains any more; this machine's
    clock for the disk of another."""
    first, second = fingerprints()
    with claimed([first, second]) as writer:
        writer.beat(3)
        assert [claim.epoch for claim in claims()] == [3]
        written = json.loads(writer.file.read_text())
        assert written["process"] == os.getpid()
        elsewhere = written | {"host": "elsewhere", "process": 1}
        writer.file.write_text(json.dumps(elsewhere))
        assert claimed_keys() == {first.key(), second.key()}  # there nobody can be asked
        monkeypatch.setattr(time, "time", lambda: 0.0)
        assert claimed_keys() == {first.key(), second.key()}
        monkeypatch.undo()
        monkeypatch.chdir(project)
        os.utime(writer.file, (0, time.time() - run_claims.STALE - 1))
        assert claims() == []
        assert left_behind() == []
        for change in ({"born": 1.0}, {"process": 2**22 + 1}):
            writer.file.write_text(json.dumps(written | change))
            (writer.folder / first.key()).symlink_to(writer.file.name)
            with claimed([first]) as again:
                assert again.claim.keys == (first.key(),)
            assert left_behind() == []
        (writer.folder / first.key()).symlink_to("gone.json")
        with claimed([first]) as again:
            assert again.claim.keys == (first.key(),)
        (writer.folder / "a.json").write_text('{"keys": ["')
        assert claims() == []


def test_a_job_that_is_queued_again_takes_back_its_runs(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On another machine, whose claims otherwise count for ten minutes. Red: a job that ends without them."""
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "7")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "0")
    with claimed(fingerprints()) as writer:
        written = json.loads(writer.file.read_text())
        writer.file.write_text(json.dumps(written | {"host": "elsewhere", "job": "7_1"}))
        assert len(claims()) == 1
        writer.file.write_text(json.dumps(written | {"host": "elsewhere"}))
        assert claims() == []


def test_a_long_epoch_renews_its_claim(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_claims, "RENEWAL", 0.01)
    with claimed(fingerprints()) as writer:
        os.utime(writer.file, (0, 0))
        end = time.monotonic() + 30
        while writer.file.stat().st_mtime < 1:
            assert time.monotonic() < end
            time.sleep(0.01)


def test_a_full_disk_stops_no_training(project: Path) -> None:
    with claimed(fingerprints()) as writer:
        shutil.rmtree(writer.folder)
        writer.beat(3)


def test_the_time_left_is_at_the_pace_since_it_began() -> None:
    claim = Claim(("a",), epochs=100, host="", process=0, born=0.0, epoch=30, began=10, seconds=40.0)
    assert claim.left == pytest.approx(140)
    assert Claim(("a",), 100, "", 0, 0.0, epoch=10, began=10).left is None


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
