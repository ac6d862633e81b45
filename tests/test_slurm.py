"""Jobs that outlive the driver: by a stand-in for Slurm's commands, and by a real Slurm.

The latter, marker `slurm`, is Debian's on this machine alone, set up and taken down by .ci/slurm.
"""

import contextlib
import dataclasses
import json
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import slurm_stand_in
from conftest import (
    architecture,
    clear_code_digests,
    contents,
    experiment_tree,
    stored_runs,
    write_params,
)
from pipeline import PARAMS, Clone

from ncpipe.commands import stale, sweep
from ncpipe.commands.fetch import fetch
from ncpipe.commands.fill import fill_store
from ncpipe.commands.logs import logs
from ncpipe.commands.status import status
from ncpipe.commands.train import train
from ncpipe.config.params import load_params
from ncpipe.runs.engines.choice import tasks_of
from ncpipe.runs.engines.engine import run_tasks, tasks_to_retry
from ncpipe.runs.engines.job_log import JOB_LOGS
from ncpipe.runs.engines.jobs import (
    LOG,
    RESULT,
    WORKDIR,
    Job,
    jobs_elsewhere,
    keys_in_jobs,
    read_jobs,
    write_array,
    write_number,
)
from ncpipe.runs.engines.options import Options, Rule, Settings, Slurm
from ncpipe.runs.engines.slurm import (
    SlurmEngine,
    arrays_to_wait_for,
    check_resources,
    distribute,
    dry_run,
)
from ncpipe.runs.engines.slurm_commands import JobState, cancel, job_states, summary
from ncpipe.runs.engines.slurm_script import batch_script, check_submission, sbatch_options, submission
from ncpipe.runs.engines.slurm_worker import REQUEUE
from ncpipe.runs.engines.slurm_worker import main as work_on
from ncpipe.runs.engines.task import Task, TaskResult, from_json, to_json
from ncpipe.runs.engines.worker import train_task
from ncpipe.runs.fill import fill
from ncpipe.runs.fingerprint import RunFingerprint
from ncpipe.runs.run_claims import ClaimWriter, claimed, claims
from ncpipe.runs.store import needs_training, saved_epochs, sweep_fingerprints, write_beside
from ncpipe.runs.store_layout import ALONE, store_folder, verify_stored
from ncpipe.system.artifacts import JOBS, PREPARED
from ncpipe.system.errors import InputError
from ncpipe.training.checkpoints import Stopped

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
HERE = Slurm(array=2)
DRIVER = """
from ncpipe.config.params import load_params
from ncpipe.runs.engines.choice import tasks_of
from ncpipe.runs.engines.options import Options, Rule, Settings, Slurm
from ncpipe.runs.engines.slurm import SlurmEngine
from ncpipe.runs.store import sweep_fingerprints
compute = load_params().compute
settings = Settings(compute, None, 600.0, True, 0)
engine = SlurmEngine({options!r})
engine.submit(tasks_of(sweep_fingerprints(load_params(), compute), settings))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "sweep"
    place.mkdir()
    monkeypatch.chdir(place)
    return place


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder by which the stand-in for Slurm is told how to behave. What runs at the end is ended."""
    place = tmp_path / "slurm"
    for name, value in slurm_stand_in.install(place).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("ncpipe.runs.engines.slurm.POLL", 0.1)
    monkeypatch.setattr("ncpipe.runs.engines.slurm.DISK_DELAY", 0.0)
    yield place
    (place / "scancel").unlink(missing_ok=True)
    subprocess.run(["scancel", *(file.name for file in (place / "jobs").iterdir())], check=True)


def fingerprints() -> list[RunFingerprint]:
    return sweep_fingerprints(load_params(), load_params().compute)


def tasks() -> list[Task]:
    return tasks_of(fingerprints(), Settings(load_params().compute, None, 600.0, True, 0))


def submit_and_go(options: Slurm) -> None:
    """A driver that submits all runs and is gone."""
    program = DRIVER.format(options=options)
    subprocess.run([sys.executable, "-c", program], check=True, stderr=subprocess.DEVNULL)


def until(happened: object, seconds: float = 90.0) -> None:
    end = time.monotonic() + seconds
    while not happened():  # type: ignore[operator]
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.1)


def check_bytes(some: list[RunFingerprint], tmp_path: Path) -> None:
    """What jobs put into the store is, to the byte, what a worker here trains in a store of its own."""
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(PREPARED, elsewhere / PREPARED)
    wanted = tasks_of(some, Settings(load_params().compute, 1, 600.0, True, 0))
    with contextlib.chdir(elsewhere):
        for task in wanted:
            assert train_task(task).state == "done"
    for fingerprint in some:
        verify_stored(ALONE / fingerprint.key(), fingerprint.key())
        assert contents(ALONE / fingerprint.key()) == contents(elsewhere / ALONE / fingerprint.key())


def test_jobs_go_on_without_the_driver_and_are_collected(
    folder: Path, stand_in: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One job is killed: what it had to do is submitted again, once, and nothing else is.

    Red: jobs known to who submitted them alone; what was killed never found; results that differ.
    """
    write_params([2], [0, 1], one=experiment_tree(), two=experiment_tree(epochs=21))
    for name in ("one", "two"):
        fetch(name)
    submit_and_go(HERE)
    first, second = read_jobs()
    until(lambda: told_state(stand_in, first).startswith("RUNNING"))
    victim = psutil.Process(int(told_state(stand_in, first).split()[1]))
    for process in [victim, *victim.children(recursive=True)]:
        process.kill()
    assert set(keys_in_jobs()) == {fingerprint.key() for fingerprint in fingerprints()}
    killed = first.tasks[0].runs[0]["experiment"]
    with pytest.raises(InputError, match=rf"^{killed} L=2 seed=0: is in job {first.id}; wait for it"):
        train(killed, 2, 0)
    until(lambda: job_states([first, second])[second.id].has_ended)
    capsys.readouterr()
    engine = SlurmEngine(HERE)
    assert run_tasks(engine, [], keep_going=True) == []
    said = capsys.readouterr().err
    assert "was lost (job 1_0: it ended without a result (FAILED)); tried again" in said
    assert said.count("of array") == 1
    assert not [fingerprint for fingerprint in fingerprints() if needs_training(fingerprint)]
    check_bytes(fingerprints(), tmp_path)
    assert read_jobs() == []
    assert not list(JOBS.iterdir())
    assert sorted(file.stem for file in JOB_LOGS.glob("*.runs")) == ["1_0", "1_1", "2_0"]
    capsys.readouterr()
    logs(killed, 2, 0)
    told = capsys.readouterr().out
    assert [f"==> slurm {job} (" in told for job in ("1_0", "1_1", "2_0")] == [True, False, True]
    assert f"  {killed} L=2 seed=0: loss" in told


def told_state(stand_in: Path, job: Job) -> str:
    return (stand_in / "jobs" / job.id).read_text()


def test_a_driver_that_dies_before_it_knows_the_number_loses_no_job(
    folder: Path, stand_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red: a job that is found by its number alone; jobs submitted twice."""
    write_params([2], [0], one=experiment_tree())
    fetch("one")

    def die(*rest: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("ncpipe.runs.engines.slurm.write_number", die)
        with pytest.raises(KeyboardInterrupt):
            SlurmEngine(HERE).submit(tasks())
    [job] = read_jobs()
    assert job.number == ""
    assert run_tasks(SlurmEngine(HERE), [], keep_going=True) == []
    assert len(list((stand_in / "jobs").iterdir())) == 1
    assert not [fingerprint for fingerprint in fingerprints() if needs_training(fingerprint)]


def test_a_signal_saves_and_the_next_start_goes_on_to_the_same_bytes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the time limit the job asks to be queued again; when it is cancelled it does not; and a job
    that made no progress says so, and does not queue again for ever.

    Red: a job that hears nothing while it trains; one that begins anew; a job that only ever starts.
    """
    write_params([2], [0, 1], one=experiment_tree(epochs=100, log_every=20))
    fetch("one")
    [job] = write_array([[dataclasses.replace(task, workers=1) for task in tasks()]], HERE)
    place = str(job.file(""))
    wanted: list[tuple[int, int]] = []

    def beat(writer: ClaimWriter, epoch: int, whole: float | None) -> None:
        if wanted and epoch == wanted[0][1]:
            os.kill(os.getpid(), wanted.pop()[0])
            time.sleep(0.2)

    def make_no_progress(task: Task, stop: threading.Event) -> TaskResult:
        os.kill(os.getpid(), signal.SIGUSR2)
        assert stop.wait(10)
        raise Stopped

    monkeypatch.setattr(ClaimWriter, "beat", beat)
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR2, signal.SIGTERM)}
    try:
        wanted.append((signal.SIGUSR2, 30))
        assert work_on(place) == 0
        assert {saved_epochs(fingerprint) for fingerprint in fingerprints()} == {31}
        assert job.file(REQUEUE).is_file()
        job.file(REQUEUE).unlink()
        wanted.append((signal.SIGTERM, 60))
        assert work_on(place) == 128 + signal.SIGTERM
        assert {saved_epochs(fingerprint) for fingerprint in fingerprints()} == {61}
        assert not job.file(REQUEUE).exists()
        assert not job.file(RESULT).exists()
        with monkeypatch.context() as patch:
            patch.setattr("ncpipe.runs.engines.worker.train_task", make_no_progress)
            assert work_on(place) == 0
        assert "no epoch was finished within the time limit" in job.file(RESULT).read_text()
        assert not job.file(REQUEUE).exists()
        job.file(RESULT).unlink()
        assert work_on(place) == 0
        assert [each["state"] for each in json.loads(job.file(RESULT).read_text())["results"]] == ["done"]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    check_bytes(fingerprints(), tmp_path)


def test_a_run_that_two_finish_is_taken_once(folder: Path) -> None:
    """Red: a second writer that clears away what the first one is writing, or that fails."""
    write_params([2], [0], one=experiment_tree())
    fetch("one")
    [fingerprint] = fingerprints()
    target = ALONE / fingerprint.key()

    def write(own: Path) -> None:
        own.mkdir(parents=True)
        (own / "run.json").write_text("half")
        assert train_task(tasks()[0]).state == "done"  # another process, as far as the disk can tell
        before.update(contents(target))
        (own / "run.json").write_text("whole")

    before: dict[str, str] = {}
    write_beside(target, write)
    assert contents(target) == before
    assert [path.name for path in stored_runs()] == [fingerprint.key()]
    assert not list(ALONE.glob(f".{fingerprint.key()}*"))
    verify_stored(target, fingerprint.key())


def test_status_tells_of_jobs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_params([2], [0, 1, 2], one=experiment_tree())
    fetch("one")
    monkeypatch.setenv("PATH", str(folder))
    name = record([[part] for part in tasks()[0].split(3)])[0].array
    lines = [f"7_0|ncpipe-{name}|RUNNING|None", f"7_1|ncpipe-{name}|PENDING|PartitionTimeLimit"]
    (folder / "squeue").write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines))
    (folder / "squeue").chmod(0o755)
    capsys.readouterr()
    status(watch=False)
    said = capsys.readouterr().out
    assert "3 queued (in a job that waits)" in said
    assert "1 job running (1 run), 1 job waiting (1 run), 1 job ended, to be collected (1 run)" in said
    assert "; Slurm: PartitionTimeLimit" in said
    (folder / "squeue").unlink()
    monkeypatch.setattr("ncpipe.commands.status.JOBS_SECONDS", 1e-9)
    status(watch=False)
    assert "jobs: engine slurm: no squeue here" in capsys.readouterr().out


def record(pieces: list[list[Task]], options: Slurm = HERE, number: str = "7") -> list[Job]:
    """Jobs as if they had been submitted."""
    return write_number(write_array(pieces, options), number)


def made(runs: int, depth: int = 2, epochs: int = 10) -> Task:
    plain = {"experiment": "one", "depth": depth, "seed": 0, "axis": None, "value": None}
    plain["spec"] = {"epochs": epochs}
    compute = {"device": "cpu", "threads": 1, "precision": "float32"}
    return Task((plain,) * runs, tuple(f"{depth}-{at}" for at in range(runs)), "", compute, 60.0, 1)


def test_runs_are_dealt_out_evenly() -> None:
    """Every run is in one task; no more tasks than asked for; none much longer than the others."""
    for shapes, runs, most in ((4, 250, 100), (28, 36, 100), (28, 36, 8), (1, 3, 100), (3, 1, 1)):
        given = [made(runs, depth) for depth in range(2, 2 + shapes)]
        jobs = distribute(given, most)
        assert len(jobs) <= most
        assert all(jobs)
        keys = [key for job in jobs for task in job for key in task.keys]
        assert sorted(keys) == sorted(key for task in given for key in task.keys)
        costs = [sum(len(task.runs) * task.runs[0]["depth"] for task in job) for job in jobs]
        if runs * shapes > 10 * most:
            assert max(costs) <= 3 * sum(costs) / most


@pytest.mark.parametrize(
    ("device", "options", "said"),
    [
        ("mps", Slurm(), "compute.device: mps is for one machine"),
        ("cuda", Slurm(), "slurm.gpus: 0, but compute.device is cuda"),
        ("cuda", Slurm(gpus=1), None),
        ("cuda", Slurm(gres="gpu:a100:1"), None),
        ("cuda", Slurm(sbatch=("--gpus=a100:1",)), None),
        ("auto", Slurm(gpus=1), None),
        ("cpu", Slurm(gpus=1, cpus=2), "slurm.gpus: 1, but compute.device is cpu"),
        ("cpu", Slurm(), "slurm.cpus: 1, but compute.threads is 2; make them equal"),
        ("auto", Slurm(cpus=2), None),
    ],
)
def test_what_jobs_get_has_to_do_for_the_runs(device: str, options: Slurm, said: str | None) -> None:
    compute = {"device": device, "threads": 2, "precision": "float32"}
    with contextlib.nullcontext() if said is None else pytest.raises(InputError, match=f"^{said}"):
        check_resources(compute, options)


def test_no_more_tasks_than_asked_for_run_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An array that could make them more waits for those before it, of an earlier driver too."""
    jobs = [
        *record([[made(1)], [made(1)]], number="7"),
        *record([[made(1)]], number="8"),
        *record([[made(1)]], number="9"),
    ]
    states = zip(jobs, ("RUNNING", "PENDING", "RUNNING", "COMPLETED"), strict=True)
    queue = "".join(f"{job.id}|ncpipe-{job.array}|{state}|None\n" for job, state in states)
    monkeypatch.setattr("ncpipe.runs.engines.slurm_commands.output_of", lambda command: queue)
    assert arrays_to_wait_for(jobs, 2, Slurm(at_once=4)) == ["7", "8"]
    assert arrays_to_wait_for(jobs, 1, Slurm(at_once=4)) == []
    assert arrays_to_wait_for(jobs[3:], 4, Slurm(at_once=4)) == []


def test_a_plan_says_what_would_be_submitted(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Red: batches and times of this machine; a job that is made, or forgotten, by asking."""
    write_params([2, 3], [0, 1, 2], one=experiment_tree(), two=experiment_tree())
    for name in ("one", "two"):
        fetch(name)
    monkeypatch.setattr(stale, "stale_stages", lambda: {"train@one-2-0"})
    monkeypatch.setenv("PATH", str(folder))
    record([tasks_of(fingerprints()[:1], Settings(load_params().compute, None, 600.0, True, 0))])
    before = contents(folder)
    capsys.readouterr()
    sweep.print_plan(
        stale.find_stale(load_params(), None),
        None,
        Options("slurm", Slurm(array=4, at_once=3, partition="p", mem="2G")),
    )
    assert contents(folder) == before
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "1 job of an earlier sweep still in the queue or running"
    assert [line.split() for line in lines[1:4]] == [
        ["shape", "runs", "epochs", "jobs"],
        ["one", "and", "1", "more", "L=2", "5", "20", "1"],
        ["one", "and", "1", "more", "L=3", "6", "20", "2"],
    ]
    for told in (
        "Slurm: 11 runs in an array of 3 jobs, 3 at a time",
        "each job: 1 core, 2 GB, partition p; 240 minutes, then it queues again",
        "batch size, memory and time depend on the node's device",
        "not checked: engine slurm: no sbatch here; run this where you run sbatch",
    ):
        assert told in lines
    assert lines[-1] == "other stages (features, metrics, tables, figures) are to run"


@pytest.mark.parametrize(
    ("state", "wanted", "why"),
    [
        ("OUT_OF_MEMORY", "memory", "it needed more memory than it had"),
        ("NODE_FAIL", "lost", "its node failed"),
        ("TIMEOUT", "lost", "it reached its time limit"),
        ("PREEMPTED", "preempted", "it was preempted"),
        ("CANCELLED", "lost", "it was cancelled"),
        ("FAILED", "lost", "it ended without a result"),
        ("", "lost", "Slurm no longer knows how it ended"),
    ],
)
def test_how_a_job_ended_is_what_slurm_says(
    state: str, wanted: str, why: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of its tasks, the one that it was at is blamed; those behind it did not begin.

    Red: the word "bloom" in a log that counts as "oom"; halves of a batch that never began.
    """
    monkeypatch.setenv("PATH", str(folder))
    [job] = record([[made(2, 7), made(3, 8)]])
    job.file(LOG).write_text("slurmstepd: error: *** JOB 7 ON bloom01 CANCELLED ***\nlast words: oom\n")
    line = f"{job.id}|ncpipe-{job.array}|{state}|None" if state else ""
    monkeypatch.setattr("ncpipe.runs.engines.slurm_commands.output_of", lambda command: line)
    monkeypatch.setattr("ncpipe.runs.engines.slurm.DISK_DELAY", 0.0)
    [[first, second]] = SlurmEngine(job.options).watch(wait=False)
    assert first.state == wanted
    assert first.reason.startswith(f"one L=7 seed=0 and 1 more: job 7_0: {why}")
    assert first.reason.endswith("last words: oom")
    assert (second.state, second.reason) == (
        "preempted",
        "one L=8 seed=0 and 2 more: job 7_0 ended before it began",
    )
    assert read_jobs() == []
    assert job.collected_log.read_text().endswith("last words: oom\n")


def test_the_accounting_knows_what_left_the_queue(folder: Path, stand_in: Path) -> None:
    """Red: a job that ran out of memory taken for one that was lost."""
    (stand_in / "accounting").touch()
    jobs = record([[made(2)], [made(2)]])
    (stand_in / "array-7").write_text(f"ncpipe-{jobs[0].array}")
    for job, state in zip(jobs, ("OUT_OF_MEMORY", "CANCELLED by 1000"), strict=True):
        (stand_in / "jobs" / job.id).write_text(state)
    [results] = SlurmEngine(HERE).watch(wait=False)
    assert [result.state for result in results] == ["memory", "lost"]
    said = [job.collected_log.with_suffix(".runs").read_text().splitlines()[0] for job in jobs]
    assert said == ["slurm 7_0 (OUT_OF_MEMORY)", "slurm 7_1 (CANCELLED)"]


def arguments(stand_in: Path, number: str) -> dict[str, str]:
    """What sbatch was given."""
    return slurm_stand_in.options((stand_in / f"array-{number}").read_text().split("\n"))


def test_what_is_lost_with_progress_is_tried_for_ever_and_else_three_times(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red: a run of four time limits that counts as failed; one that no limit is long enough for."""
    task = dataclasses.replace(made(2), epochs_before=4, tries=3)
    for epochs, tries in ((5, [0]), (4, [])):
        monkeypatch.setattr(Task, "epochs_done", lambda task, epochs=epochs: epochs)
        assert [each.tries for each in tasks_to_retry(TaskResult(task, "lost"))] == tries
        assert [each.tries for each in tasks_to_retry(TaskResult(task, "preempted"))] == [0]


def test_where_slurm_does_not_queue_again_the_driver_submits_what_is_left(
    folder: Path,
    stand_in: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Time limits as often as it takes, each with a line; the bytes of a local run.

    Red: a traceback; single runs; a run that begins anew.
    """
    (stand_in / "no_requeue").write_text("Requested operation is presently disabled for job 1")
    warned: list[int] = []

    def warn() -> None:
        while len(warned) < 2:
            for sign in claims():
                if sign.epoch and sign.process not in warned:
                    warned.append(sign.process)
                    (stand_in / "warn").touch()
            time.sleep(0.1)

    threading.Thread(target=warn, daemon=True).start()
    write_params([2], [0, 1], one=experiment_tree(epochs=15_000, log_every=10))
    fetch("one")
    assert run_tasks(SlurmEngine(Slurm(array=1)), tasks(), keep_going=True) == []
    said = capsys.readouterr().err
    refused = "was lost (job 1_0: it reached its time limit and Slurm does not queue it again (Requested "
    assert refused in said
    assert "tried again from its checkpoints" in said
    assert "Traceback" not in said
    assert said.count("of array") == 3
    assert not [fingerprint for fingerprint in fingerprints() if needs_training(fingerprint)]
    logs = "".join(file.read_text() for file in JOB_LOGS.glob("*.log"))
    assert ", from the checkpoint after " in logs
    assert "together with" in logs
    check_bytes(fingerprints(), tmp_path)


def test_a_job_queues_itself_again_and_no_other(folder: Path, stand_in: Path) -> None:
    """The last job of an array has the array's number. Red: that number requeued, and with it ended jobs."""
    write_params([2], [0], one=experiment_tree(), two=experiment_tree(epochs=6_000, log_every=10))
    for name in ("one", "two"):
        fetch(name)
    engine = SlurmEngine(HERE)
    engine.submit(tasks())
    first, second = read_jobs()
    assert second.tasks[0].runs[0]["experiment"] == "two"
    until(lambda: told_state(stand_in, first) == "COMPLETED")
    until(lambda: any(sign.epoch for sign in claims()))
    (stand_in / "warn").touch()
    assert run_tasks(engine, [], keep_going=True) == []
    assert (stand_in / "started").read_text().split() == ["1_0", "1_1", "1_1"]
    assert not [fingerprint for fingerprint in fingerprints() if needs_training(fingerprint)]


STUDY = """
from dataclasses import dataclass
from typing import Literal
from ncpipe.config.specs import OwnLoss

@dataclass(frozen=True)
class Poly(OwnLoss):
    name: Literal["poly"]

def poly(logits, labels, spec):
    return -(logits.log_softmax(-1) ** 1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)

LOSSES = {Poly: poly}
"""


def test_jobs_run_the_code_that_they_were_submitted_with(
    folder: Path, stand_in: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is edited before they begin, the package's too. Red: jobs that are cancelled, fail or are forgotten,
    and runs of the edited code under the old name."""
    Path("study.py").write_text(STUDY)
    write_params([2], [0], one=experiment_tree(loss={"name": "poly"}))
    fetch("one")
    before = fingerprints()
    settings = Settings(load_params().compute, None, 600.0, True, 1)
    (stand_in / "hold").touch()
    SlurmEngine(HERE).submit(tasks())
    [job] = read_jobs()
    Path("study.py").write_text(STUDY.replace("** 1", "** 3"))
    worker = JOBS / job.array / WORKDIR / "ncpipe/runs/engines/slurm_worker.py"
    worker.write_text(
        worker.read_text().replace("    results = _train(", "    print('its own')\n    results = _train(")
    )
    clear_code_digests()
    [edited] = fingerprints()
    settings = dataclasses.replace(settings, keys=frozenset([edited.key()]))
    slurm = Options("slurm", HERE)
    assert sweep._handle_jobs([], settings, slurm, "collect") == 0
    assert run_tasks(SlurmEngine(HERE, keys=settings.keys), [], keep_going=True) == []  # does not wait
    assert read_jobs() == [job]
    (stand_in / "hold").unlink()
    until(lambda: job_states([job])[job.id].has_ended)
    assert sweep._handle_jobs([], settings, slurm, "collect") == 0
    assert "its own" in job.collected_log.read_text()
    assert read_jobs() == []
    assert [path.name for path in stored_runs()] == [before[0].key()]
    verify_stored(ALONE / before[0].key(), before[0].key())
    assert needs_training(edited)
    clear_code_digests()


def test_folders_with_one_store_train_each_run_once(
    tmp_path: Path, stand_in: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One has jobs that wait, the other fills its store; and the other way about.

    Red: jobs that only their own folder knows; runs that are submitted while another process trains them."""
    for name in ("here", "there"):
        (tmp_path / name / ".dvc").mkdir(parents=True)
        (tmp_path / name / ".dvc/config").write_text(f"[cache]\n    dir = {tmp_path / 'cache'}\n")
        monkeypatch.chdir(tmp_path / name)
        write_params([2], [0, 1], one=experiment_tree())
        fetch("one")
    (stand_in / "hold").touch()
    detached = Settings(load_params().compute, None, 600.0, True, 2)
    with claimed(fingerprints()):  # as while the other folder trains
        assert fill(fingerprints(), detached, Options("slurm", HERE), wait=False) == set()
    assert read_jobs() == []
    assert "left 2 runs to another process that trains them" in capsys.readouterr().err
    assert fill(fingerprints(), detached, Options("slurm", HERE), wait=False) == set()
    jobs = read_jobs()
    assert len({key for job in jobs for key in job.keys}) == 2
    monkeypatch.chdir(tmp_path / "here")
    with monkeypatch.context() as patch:
        patch.setattr("ncpipe.runs.batches.train_batch", None)
        fill_store(None, 1, 60.0)
        assert "fill: 0 of 2 runs are trained, 2 are in jobs of Slurm" in capsys.readouterr().err
        with pytest.raises(InputError, match=rf"seed=1: is in job 1_\d of {tmp_path / 'there'}; wait for it"):
            train("one", 2, 1)
        (stand_in / "hold").unlink()
        until(lambda: all(state.has_ended for state in job_states(jobs).values()))
        train("one", 2, 1)
    assert run_tasks(SlurmEngine(HERE), [], keep_going=True) == []
    assert len(jobs_elsewhere()) == len(jobs)
    monkeypatch.chdir(tmp_path / "there")
    assert run_tasks(SlurmEngine(HERE), [], keep_going=True) == []
    assert jobs_elsewhere() == read_jobs() == []
    assert not list((store_folder() / "jobs").iterdir())


def test_cancel_believes_scancel_only_when_it_succeeds(folder: Path, stand_in: Path) -> None:
    """Red: a job that runs on, and that nobody knows."""
    write_params([2], [0, 1], one=experiment_tree(epochs=10**7, log_every=10**6))
    fetch("one")
    SlurmEngine(HERE).submit(tasks())
    (stand_in / "scancel").write_text("Kill job error on job id 1_0: Access/permission denied")
    with pytest.raises(InputError, match=r"2 jobs may still run \(scancel: .* denied\); .* or scancel 1"):
        sweep.cancel_jobs()
    assert len(read_jobs()) == 2
    (stand_in / "scancel").unlink()
    sweep.cancel_jobs()
    assert read_jobs() == []
    assert {file.read_text() for file in (stand_in / "jobs").iterdir()} == {"CANCELLED"}


def test_what_slurm_would_refuse_is_refused_before(
    folder: Path, stand_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red: jobs that wait for ever; a plan that looks well."""
    write_params([2], [0], one=experiment_tree())
    fetch("one")
    monkeypatch.setattr(stale, "stale_stages", lambda: {"train@one-2-0"})
    (stand_in / "partitions").write_text("test|test*|1:00:00\nlong|long|5-00:00:00\n")
    over = r"^slurm.time: 120 minutes, but the partition test allows 60, so the jobs would never start"
    with pytest.raises(InputError, match=over):
        sweep.print_plan(stale.find_stale(load_params(), None), None, Options("slurm", Slurm(time="120")))
    with pytest.raises(InputError, match=over):
        SlurmEngine(Slurm(time="2:00:00")).submit(tasks())
    check_submission(Slurm(time="120", partition="long"))
    (stand_in / "refuse").write_text("Invalid account or account/partition combination specified")
    with pytest.raises(InputError, match=r"sbatch would refuse the jobs: Invalid account .*account=a"):
        sweep.print_plan(
            stale.find_stale(load_params(), None), None, Options("slurm", Slurm(account="a", time="10"))
        )
    with pytest.raises(InputError, match="Invalid account"):
        SlurmEngine(Slurm(time="10")).submit(tasks())
    assert read_jobs() == []
    (stand_in / "refuse").write_text("Required node not available (down, drained or reserved)")
    check_submission(Slurm(time="10"))


def test_a_job_may_have_no_time_limit_and_no_checkpoints(folder: Path, stand_in: Path) -> None:
    """Red: OverflowError of a time that engine.yaml takes, and ValueError of --checkpoint-seconds inf."""
    write_params([2], [0], one=experiment_tree())
    fetch("one")
    assert "--time=unlimited" in sbatch_options("check", 2, Slurm(time="infinite"))
    assert "; no time limit" in dry_run(tasks(), Slurm(time="unlimited")).lines[1]
    rarely = [dataclasses.replace(task, checkpoint_seconds=math.inf) for task in tasks()]
    assert from_json(to_json(rarely)) == rarely


def test_a_dry_run_prints_what_sbatch_is_given(folder: Path, stand_in: Path) -> None:
    """And one line if cores would idle: a job trains as many runs at a time as it has, each on one thread."""
    write_params([2], [0, 1, 2, 3], one=experiment_tree())
    fetch("one")
    options = Slurm(time="10", cpus=2, setup=("module load cuda",))
    lines = dry_run(tasks(), options).lines
    assert f"submitted by: {shlex.join(submission('ARRAY', 4, options))}" in lines
    assert "--array=0-3%256" in submission("ARRAY", 4, options)
    assert lines[-1].endswith(batch_script("ARRAY", options))
    assert "\nmodule load cuda\n" in lines[-1]
    [idle] = [line for line in lines if "idle" in line]
    assert idle == (
        "idle cores: a job has 2 and its runs use 1 at most (1 thread a run); give -o cpus=1, or -o array=2 "
        "for more runs in a job"
    )
    for enough in (
        Slurm(time="10"),
        dataclasses.replace(options, array=2),
        Slurm(time="10", cpus=4, array=1),
    ):
        assert "idle" not in "".join(dry_run(tasks(), enough).lines)


def test_each_run_gets_the_resources_of_its_rule(folder: Path, stand_in: Path) -> None:
    """And `--collect` submits again with the options that a job had."""
    deep = Rule(min_depth=3, partition="long", time="1-00:00:00", cpus=2)
    two = Rule(experiments=("two",), qos="high")
    options = Slurm(time="30", rules=(deep, two), array=3, mem="2G")
    (stand_in / "partitions").write_text("test|test*|infinite\nlong|long|infinite\n")
    write_params([2, 3], [0], one=experiment_tree(), two=experiment_tree())
    for name in ("one", "two"):
        fetch(name)
    engine = SlurmEngine(options)
    engine.submit(tasks())
    found = {}
    for job in engine.jobs.values():
        run, given = job.tasks[0].runs[0], arguments(stand_in, job.number)
        asked = [given.get(name) for name in ("partition", "time", "cpus-per-task", "qos", "mem")]
        found[run["experiment"], run["depth"]] = asked
    assert found == {
        ("one", 2): [None, "0:30:00", "1", None, "2048M"],
        ("one", 3): ["long", "24:00:00", "2", None, "2048M"],
        ("two", 2): [None, "0:30:00", "1", "high", "2048M"],
        ("two", 3): ["long", "24:00:00", "2", "high", "2048M"],
    }
    [job, _] = [job for job in engine.jobs.values() if job.tasks[0].runs[0]["depth"] == 3]
    later = SlurmEngine(Slurm(), keep_options=True)
    later._results([job], {job.id: JobState("FAILED")})
    later.submit(list(job.tasks))
    assert arguments(stand_in, "5")["partition"] == "long"


def test_a_worker_runs_by_the_python_that_is_named(folder: Path, stand_in: Path) -> None:
    """A script beside engine.yaml, as one that starts Python in a container. Red: one sought on the PATH."""
    write_params([2], [0], one=experiment_tree())
    fetch("one")
    program = folder / "python.sh"
    program.write_text(f'#!/bin/sh\necho "$PWD $@" > {stand_in}/given\nexec {sys.executable} "$@"\n')
    program.chmod(0o755)
    assert run_tasks(SlurmEngine(Slurm(python="./python.sh")), tasks(), keep_going=True) == []
    assert not [fingerprint for fingerprint in fingerprints() if needs_training(fingerprint)]
    assert f"/{WORKDIR} -m ncpipe.runs.engines.slurm_worker {folder}" in (stand_in / "given").read_text()


def test_what_slurm_does_not_say_is_a_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(folder))
    record([[made(2)]])
    with pytest.raises(InputError, match="no squeue here; run this where you run sbatch"):
        list(SlurmEngine(Slurm()).watch())
    with pytest.raises(InputError, match="no sbatch here"):
        SlurmEngine(Slurm()).submit([made(2)])
    (folder / "squeue").write_text("#!/bin/sh\necho cannot reach the controller >&2; exit 1\n")
    (folder / "squeue").chmod(0o755)
    with pytest.raises(InputError, match="squeue: cannot reach the controller; jobs continue"):
        list(SlurmEngine(Slurm()).watch())
    with pytest.raises(InputError, match="squeue: cannot reach the controller; jobs continue"):
        sweep.cancel_jobs()
    assert len(read_jobs()) == 1


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    if missing := [name for name in PROGRAMS if shutil.which(name, path="/usr/sbin:/usr/bin:/sbin") is None]:
        pytest.skip(f"no {', '.join(missing)} here (Debian: munge slurmctld slurmd slurm-client)")
    if os.geteuid():
        pytest.skip("Slurm's daemons are started by root alone")
    folder = tmp_path_factory.mktemp("slurm")
    script = str(ROOT / ".ci" / "slurm")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
        try:
            up = subprocess.run([script, "up", str(folder)], check=False, stderr=subprocess.PIPE, text=True)
            if up.returncode:
                pytest.skip(f"Slurm does not start on this machine: {' '.join(up.stderr.split())[:200]}")
            yield
        finally:
            subprocess.run([script, "down", str(folder)], check=True)


def running() -> list[str]:
    """Ids of the jobs that run."""
    command = ["squeue", "--noheader", "--array", "--states=RUNNING", "--format=%i"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


@pytest.mark.slurm
def test_thirty_runs_by_slurm(
    cluster: None,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In an array of which four tasks may run at a time; the driver is gone, one job is killed.

    Red: jobs that only their driver knows; lost runs that stay lost; what is submitted again as a fifth.
    """
    monkeypatch.setattr("ncpipe.runs.engines.slurm.DISK_DELAY", 0.0)  # while the others still run
    # Long enough for all four tasks to be seen side by side, though each loads PyTorch first
    two = experiment_tree(model=architecture("L-RN2", "pre"), epochs=4000)
    three = experiment_tree(epochs=4001)
    write_params([2, 3], [*range(5)], one=experiment_tree(epochs=4000), two=two, three=three)
    for name in ("one", "two", "three"):
        fetch(name)
    submit_and_go(Slurm(array=6, at_once=4))
    jobs = read_jobs()
    assert len(jobs) == 6
    assert len(keys_in_jobs(jobs)) == 30
    until(lambda: len(running()) == 4)
    [victim, *_] = running()
    subprocess.run(["scancel", "--signal=KILL", victim], check=True)
    engine = SlurmEngine(Slurm(array=6, at_once=4))
    seen: list[int] = []

    def count() -> None:
        while engine.jobs:
            seen.append(len(running()))
            time.sleep(0.3)

    counting = threading.Thread(target=count)
    counting.start()
    assert run_tasks(engine, [], keep_going=True) == []
    counting.join()
    assert max(seen) == 4
    assert "was lost" in capsys.readouterr().err
    check_bytes(fingerprints(), tmp_path)
    assert read_jobs() == []


@pytest.mark.slurm
@pytest.mark.long
@pytest.mark.parametrize("site", ["--requeue", "--no-requeue"])
def test_a_time_limit_queues_a_job_again(
    site: str, cluster: None, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Slurm tells the job a minute before its limit of one; it goes on from its checkpoint. The site's
    `JobRequeue=0` does not matter; where the job may not be queued again, the driver submits it again.

    Red: no signal heard, no requeue, a beginning anew, a traceback.
    """
    write_params([2], [0], one=experiment_tree(epochs=50_000, log_every=10))
    fetch("one")
    engine = SlurmEngine(Slurm(time="1", signal_seconds=40, sbatch=(site,)))
    engine.submit(tasks())
    [job] = engine.jobs.values()
    assert run_tasks(engine, [], keep_going=True) == []
    jobs = {file.stem: file.read_text() for file in JOB_LOGS.glob("*.log")}
    assert ", from the checkpoint after " in "".join(jobs.values())
    assert (set(jobs) == {job.id}) == (site == "--requeue")
    said = capsys.readouterr().err
    assert ("Slurm does not queue it again (" in said) == (site == "--no-requeue")
    assert "Traceback" not in said
    [fingerprint] = fingerprints()
    verify_stored(ALONE / fingerprint.key(), fingerprint.key())


@pytest.mark.slurm
def test_jobs_are_counted_and_cancelled(cluster: None, folder: Path) -> None:
    write_params([2], [0, 1], one=experiment_tree(epochs=10**7, log_every=10**6))
    fetch("one")
    engine = SlurmEngine(Slurm(array=2, at_once=1))
    engine.submit(tasks())
    jobs = read_jobs()
    told = "1 job running (1 run), 1 job waiting (1 run)"
    until(lambda: summary(jobs, job_states(jobs)) == told)  # another test's job may end meanwhile
    cancel(jobs)
    until(lambda: not running())
    assert read_jobs() == []


@pytest.mark.long
@pytest.mark.pipeline
def test_jobs_give_what_dvc_repro_gives(swept: Clone, tmp_path: Path) -> None:
    """Submitted by one command, collected by two others, a part at a time: every output to the byte, and the
    digests in dvc.lock.

    Red: runs that are taken before they are there, or that train again.
    """
    clone = Clone.of_working_tree(tmp_path / "clone", PARAMS)
    outputs = ("data/runs", "data/metrics", "data/results", "data/figures")
    place = tmp_path / "slurm"
    told = slurm_stand_in.install(place) | {"PATH": f"{place / 'bin'}:{clone.environment['PATH']}"}
    engine = ("--engine", "slurm", "-o", "array=2", "-o", "at_once=1")

    def states() -> list[str]:
        return sorted(file.read_text().split()[0] for file in (place / "jobs").glob("[0-9]*"))

    clone.run("ncpipe", "sweep", *engine, "--detach", env=told)
    until(lambda: states() == ["PENDING", "RUNNING"])
    (place / "hold").touch()  # however long the next command takes to begin
    until(lambda: states() == ["COMPLETED", "PENDING"], 600)
    output = clone.run("ncpipe", "sweep", "--collect", env=told)
    assert f"{8 - finished(clone)} runs not finished yet" in output.err
    assert 0 < finished(clone) < 8
    (place / "hold").unlink()
    until(lambda: states() == ["COMPLETED", "COMPLETED"], 600)
    clone.run("ncpipe", "sweep", "--collect", env=told)
    assert clone.stale() == []
    assert clone.digests(*outputs) == swept.digests(*outputs)
    assert clone.lock() == swept.lock()


def finished(clone: Clone) -> int:
    """Runs in its store."""
    return len([path for path in clone.store.glob("*") if len(path.name) == 64])
