"""Jobs that outlive who submitted them: by submitit's processes here, and by a real Slurm.

The latter, marker `slurm`, is Debian's on this machine alone, set up and taken down by .ci/slurm.
"""

import contextlib
import dataclasses
import os
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
from conftest import architecture, contents, experiment_tree, stored_runs, write_params
from pipeline import PARAMS, Clone

from ncpipe.commands import sweep
from ncpipe.commands.fetch import fetch
from ncpipe.commands.status import status
from ncpipe.commands.train import train
from ncpipe.config.params import load_params
from ncpipe.runs.engines.choice import works_of
from ncpipe.runs.engines.jobs import JOBS, Job, keys_in_jobs, read_jobs
from ncpipe.runs.engines.options import Options, Settings, Slurm
from ncpipe.runs.engines.protocol import drive
from ncpipe.runs.engines.queue import FILES, cancel, job_states, summary
from ncpipe.runs.engines.slurm import SlurmEngine, Task, arrays_before, check_jobs, deal
from ncpipe.runs.engines.work import Ended, Work
from ncpipe.runs.engines.worker import train_work
from ncpipe.runs.fingerprint import Stamp
from ncpipe.runs.folders import ALONE, check_stored
from ncpipe.runs.heartbeat import Life
from ncpipe.runs.store import is_missing, saved_epochs, sweep_stamps, write_beside
from ncpipe.system.artifacts import PREPARED
from ncpipe.system.errors import InputError

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
HERE = Slurm(cluster="local", array=2)
DRIVER = """
from ncpipe.config.params import load_params
from ncpipe.runs.engines.choice import works_of
from ncpipe.runs.engines.options import Options, Settings, Slurm
from ncpipe.runs.engines.protocol import drive
from ncpipe.runs.engines.slurm import SlurmEngine
from ncpipe.runs.store import sweep_stamps
compute = load_params().compute
settings = Settings(compute, None, 600.0, True, 0)
engine = SlurmEngine({options!r})
engine.submit(works_of(sweep_stamps(load_params(), compute), settings))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def stamps() -> list[Stamp]:
    return sweep_stamps(load_params(), load_params().compute)


def works() -> list[Work]:
    return works_of(stamps(), Settings(load_params().compute, None, 600.0, True, 0))


def submit_and_go(options: Slurm) -> None:
    """A driver that submits all runs and is gone."""
    program = DRIVER.format(options=options)
    subprocess.run([sys.executable, "-c", program], check=True, stderr=subprocess.DEVNULL)


def until(happened: object, seconds: float = 300.0) -> None:
    end = time.monotonic() + seconds
    while not happened():  # type: ignore[operator]
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.1)


def check_bytes(some: list[Stamp], tmp_path: Path) -> None:
    """What jobs put into the store is, to the byte, what a worker here trains in a store of its own."""
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(PREPARED, elsewhere / PREPARED)
    wanted = works_of(some, Settings(load_params().compute, 1, 600.0, True, 0))
    with contextlib.chdir(elsewhere):
        for work in wanted:
            assert train_work(work).state == "done"
    for stamp in some:
        check_stored(ALONE / stamp.key(), stamp.key())
        assert contents(ALONE / stamp.key()) == contents(elsewhere / ALONE / stamp.key())


def test_jobs_go_on_without_the_driver_and_are_collected(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One job is killed: what it had to do is submitted again, once, and nothing else is.

    Red: jobs known to who submitted them alone; what was killed never found; results that differ.
    """
    write_params([2], [0, 1], one=experiment_tree(), two=experiment_tree(epochs=21))
    for name in ("one", "two"):
        fetch(name)
    submit_and_go(HERE)
    first, second = read_jobs()
    victim = psutil.Process(int(first.id))
    for process in [victim, *victim.children(recursive=True)]:
        process.kill()
    assert set(keys_in_jobs()) == {stamp.key() for stamp in stamps()}
    killed = first.works[0].runs[0]["experiment"]
    with pytest.raises(InputError, match=rf"^{killed} L=2 seed=0: in job {first.id}; wait for it"):
        train(killed, 2, 0)
    until(lambda: job_states([first, second])[second.id].is_over)
    capsys.readouterr()
    engine = SlurmEngine(HERE)
    assert drive(engine, [], keep_going=True) == []
    said = capsys.readouterr().err
    assert "was lost" in said
    assert said.count("of job") == 1
    assert not [stamp for stamp in stamps() if is_missing(stamp)]
    check_bytes(stamps(), tmp_path)
    assert read_jobs() == []


def test_a_signal_saves_and_the_next_goes_on_to_the_same_bytes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red: a job that hears nothing while it trains; one that begins anew."""
    write_params([2], [0, 1], one=experiment_tree(epochs=100, log_every=20))
    fetch("one")
    task = Task(str(folder), [dataclasses.replace(work, workers=1) for work in works()])
    found: list[object] = []

    def hear(number: int, frame: object) -> None:
        found.append(task.checkpoint())
        raise InterruptedError

    def at(life: Life, epoch: int, whole: float | None) -> None:
        if epoch == 30 and not found:
            os.kill(os.getpid(), signal.SIGUSR2)
            until(lambda: found or task._stop.is_set())

    monkeypatch.setattr(Life, "at", at)
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR2, signal.SIGTERM)}
    signal.signal(signal.SIGUSR2, hear)
    try:
        with pytest.raises(InterruptedError):
            task()
        assert {saved_epochs(stamp) for stamp in stamps()} == {31}
        again = found[0].function  # type: ignore[attr-defined]
        assert [ended.state for ended in again()] == ["done"]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    check_bytes(stamps(), tmp_path)


def test_a_run_that_two_finish_is_taken_once(folder: Path) -> None:
    """Red: a second writer that clears away what the first one is writing, or that fails."""
    write_params([2], [0], one=experiment_tree())
    fetch("one")
    [stamp] = stamps()
    target = ALONE / stamp.key()
    order: list[str] = []

    def write(own: Path) -> None:
        order.append("first")
        own.mkdir(parents=True)
        (own / "run.json").write_text("half")
        assert train_work(works()[0]).state == "done"  # another process, as far as the disk can tell
        before.update(contents(target))
        (own / "run.json").write_text("whole")

    before: dict[str, str] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ncpipe.runs.store.socket.gethostname", lambda: "two" if order else "one")
        write_beside(target, write)
    assert contents(target) == before
    assert [path.name for path in stored_runs()] == [stamp.key()]
    assert not list(ALONE.glob(f".{stamp.key()}*"))
    check_stored(target, stamp.key())


def test_status_tells_of_jobs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_params([2], [0, 1, 2], one=experiment_tree())
    fetch("one")
    monkeypatch.setenv("PATH", str(folder))
    (folder / "squeue").write_text(
        "#!/bin/sh\necho '7_0|RUNNING|None'; echo '7_1|PENDING|PartitionTimeLimit'\n"
    )
    (folder / "squeue").chmod(0o755)
    for index, work in enumerate(works()[0].in_parts(3)):
        Job(f"7_{index}", (work,), Slurm()).write()
    capsys.readouterr()
    status(watch=False)
    said = capsys.readouterr().out
    assert "3 queued (in a job, and not begun)" in said
    assert "1 job running (1 runs), 1 job waiting (1 runs), 1 job ended, to be collected (1 runs)" in said
    assert "; Slurm: PartitionTimeLimit" in said
    (folder / "squeue").unlink()
    monkeypatch.setattr("ncpipe.commands.status.ASK_JOBS", 1e-9)
    status(watch=False)
    assert "jobs: engine slurm: no squeue here" in capsys.readouterr().out


def made(runs: int, depth: int = 2, epochs: int = 10) -> Work:
    plain = {"experiment": "one", "depth": depth, "seed": 0, "axis": None, "spec": {"epochs": epochs}}
    compute = {"device": "cpu", "threads": 1, "precision": "float32"}
    return Work((plain,) * runs, tuple(f"{depth}-{at}" for at in range(runs)), "", compute, 60.0, 1)


def test_runs_are_dealt_out_evenly() -> None:
    """Every run is in one task; no more tasks than asked for; none much longer than the others."""
    for shapes, runs, most in ((4, 250, 100), (28, 36, 100), (28, 36, 8), (1, 3, 100), (3, 1, 1)):
        given = [made(runs, depth) for depth in range(2, 2 + shapes)]
        tasks = deal(given, most)
        assert len(tasks) <= most
        assert all(tasks)
        keys = [key for task in tasks for work in task for key in work.keys]
        assert sorted(keys) == sorted(key for work in given for key in work.keys)
        costs = [sum(len(work.runs) * work.runs[0]["depth"] for work in task) for task in tasks]
        if runs * shapes > 10 * most:
            assert max(costs) <= 3 * sum(costs) / most


@pytest.mark.parametrize(
    ("device", "options", "said"),
    [
        ("mps", Slurm(), "compute.device: mps is for one machine"),
        ("cuda", Slurm(), "slurm.gpus: 0, and compute.device is cuda"),
        ("cuda", Slurm(gpus=1), None),
        ("cuda", Slurm(sbatch=("--gres=gpu:a100:1",)), None),
        ("auto", Slurm(gpus=1), None),
        ("cpu", Slurm(gpus=1, cpus=2), "slurm.gpus: 1, and compute.device is cpu"),
        ("cpu", Slurm(), "slurm.cpus: 1, and compute.threads is 2; make it as many"),
        ("auto", Slurm(cpus=2), None),
    ],
)
def test_what_jobs_get_has_to_do_for_the_runs(device: str, options: Slurm, said: str | None) -> None:
    compute = {"device": device, "threads": 2, "precision": "float32"}
    with contextlib.nullcontext() if said is None else pytest.raises(InputError, match=f"^{said}"):
        check_jobs(compute, options)


def test_no_more_tasks_than_asked_for_run_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An array that could make them more waits for those before it, of an earlier driver too."""
    jobs = [Job(job_id, (made(1),), Slurm()) for job_id in ("7_0", "7_1", "8", "9")]
    states = "7_0|RUNNING|None\n7_1|PENDING|None\n8|RUNNING|None\n9|COMPLETED|None\n"
    monkeypatch.setattr("ncpipe.runs.engines.queue._ask", lambda *rest, **options: states)
    assert arrays_before(jobs, 2, Slurm(at_once=4)) == ["7", "8"]
    assert arrays_before(jobs, 1, Slurm(at_once=4)) == []
    assert arrays_before(jobs[3:], 4, Slurm(at_once=4)) == []
    assert arrays_before(jobs, 9, Slurm(at_once=4, cluster="local")) == []


def test_a_plan_says_what_would_be_submitted(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Red: batches and times of this machine; a job that is made, or forgotten, by asking."""
    write_params([2, 3], [0, 1, 2], one=experiment_tree(), two=experiment_tree())
    for name in ("one", "two"):
        fetch(name)
    monkeypatch.setattr(sweep, "stale_stages", lambda: {"train@one-2-0"})
    monkeypatch.setenv("PATH", str(folder))
    work = works_of(stamps()[:1], Settings(load_params().compute, None, 600.0, True, 0))[0]
    Job("7", (work,), Slurm()).write()
    before = contents(folder)
    capsys.readouterr()
    sweep.print_plan(None, None, Options("slurm", Slurm(array=4, at_once=3, partition="p", memory_gb=2)))
    assert contents(folder) == before
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "1 job of an earlier sweep go on"
    assert [line.split() for line in lines[1:4]] == [
        ["shape", "runs", "epochs", "tasks"],
        ["one", "and", "1", "more", "L=2", "5", "20", "1"],
        ["one", "and", "1", "more", "L=3", "6", "20", "2"],
    ]
    assert lines[-5:-1] == [
        "11 runs to submit to Slurm: 3 tasks of a job array, 3 of them at a time",
        "a task: 1 core, 2 GB, partition p; 240 minutes, then it queues again",
        "how many of a task's runs train side by side, in what memory and time, its node's device decides",
        "not from here: engine slurm: no srun here; run this where you run sbatch",
    ]
    assert lines[-1].startswith("the rest (DVC, features, metrics, tables, figures): about ")


def test_what_a_job_left_says_how_it_ended(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a job that is gone without a result: the system's word for too little memory, or none."""
    monkeypatch.setattr("ncpipe.runs.engines.queue._ask", lambda *rest, **options: "7|OUT_OF_MEMORY|None")
    monkeypatch.setattr("ncpipe.runs.engines.slurm.SETTLED", 0.0)
    options = Slurm()
    for job_id in ("7", "8", "9"):
        Job(job_id, (made(2, int(job_id)),), options).write()
    FILES.mkdir()
    (FILES / "8_0_log.err").write_text("slurmstepd: error: Detected 1 oom_kill event in StepId=8.0\n")
    (FILES / "9_0_log.err").write_text("one\n\nlast\n")
    (JOBS / "10.json").write_text("{")
    ends: list[Ended] = list(SlurmEngine(options).watch(wait=False))
    assert [end.state for end in ends] == ["memory", "memory", "lost"]
    assert ends[2].reason.endswith("job 9 ended (GONE) without a word\none\n\nlast")


def test_what_slurm_does_not_say_is_a_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(folder))
    Job("7", (made(2),), Slurm()).write()
    with pytest.raises(InputError, match="no squeue here; run this where you run sbatch"):
        list(SlurmEngine(Slurm()).watch())
    with pytest.raises(InputError, match="no srun here"):
        SlurmEngine(Slurm()).submit([made(2)])
    (folder / "squeue").write_text("#!/bin/sh\necho cannot reach the controller >&2; exit 1\n")
    (folder / "squeue").chmod(0o755)
    with pytest.raises(InputError, match="squeue: cannot reach the controller; its jobs go on"):
        list(SlurmEngine(Slurm()).watch())
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
    monkeypatch.setattr("ncpipe.runs.engines.slurm.SETTLED", 0.0)  # while the others still run
    two = experiment_tree(model=architecture("L-RN2", "pre"))
    write_params([2, 3], [*range(5)], one=experiment_tree(), two=two, three=experiment_tree(epochs=21))
    for name in ("one", "two", "three"):
        fetch(name)
    submit_and_go(Slurm(array=6, at_once=4))
    jobs = read_jobs()
    assert len(jobs) == 6
    assert len(keys_in_jobs(jobs)) == 30
    until(lambda: len(running()) == 4)  # each takes seconds to load PyTorch, so all four are seen
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
    assert drive(engine, [], keep_going=True) == []
    counting.join()
    assert max(seen) <= 4
    assert "was lost" in capsys.readouterr().err
    check_bytes(stamps(), tmp_path)
    assert read_jobs() == []


@pytest.mark.slurm
@pytest.mark.long
def test_a_time_limit_queues_a_job_again(
    cluster: None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm tells the job a minute before its limit of one; it goes on from its checkpoint.

    Red: no signal heard, no requeue, a beginning anew.
    """
    monkeypatch.setattr("ncpipe.runs.engines.slurm._tidy", lambda job: None)
    write_params([2], [0], one=experiment_tree(epochs=50_000, log_every=10))
    fetch("one")
    engine = SlurmEngine(Slurm(minutes=1, signal_seconds=50))
    engine.submit(works())
    [job] = engine.jobs.values()
    assert drive(engine, [], keep_going=True) == []
    log = (FILES / f"{job.id}_0_log.err").read_text()
    assert ", from the checkpoint after " in log
    [stamp] = stamps()
    check_stored(ALONE / stamp.key(), stamp.key())


@pytest.mark.slurm
def test_jobs_are_counted_and_cancelled(cluster: None, folder: Path) -> None:
    write_params([2], [0, 1], one=experiment_tree(epochs=10**7, log_every=10**6))
    fetch("one")
    engine = SlurmEngine(Slurm(array=2, at_once=1))
    engine.submit(works())
    jobs = read_jobs()
    told = "1 job running (1 runs), 1 job waiting (1 runs)"
    until(lambda: summary(jobs, job_states(jobs)) == told)  # another test's job may end meanwhile
    cancel(jobs)
    until(lambda: not running())
    assert read_jobs() == []


@pytest.mark.long
@pytest.mark.pipeline
def test_jobs_give_what_dvc_repro_gives(swept: Clone, tmp_path: Path) -> None:
    """Submitted by one command, collected by two others, a part at a time: every output and dvc.lock, to the
    byte.

    Red: runs that are taken before they are there, or that train again.
    """
    clone = Clone.of_working_tree(tmp_path / "clone", PARAMS)
    outputs = ("data/runs", "data/metrics", "data/results", "data/figures")
    engine = ("--engine", "slurm", "--option", "cluster=local", "--option", "array=2")
    clone.run("ncpipe", "sweep", *engine, "--detach")
    until(lambda: finished(clone) > 1)
    clone.run("ncpipe", "sweep", "--collect")
    until(lambda: finished(clone) == 8)
    clone.run("ncpipe", "sweep", "--collect")
    assert clone.stale() == []
    assert clone.digests(*outputs) == swept.digests(*outputs)
    assert (clone.folder / "dvc.lock").read_bytes() == (swept.folder / "dvc.lock").read_bytes()


def finished(clone: Clone) -> int:
    """Runs in its store."""
    return len([path for path in clone.store.glob("*") if len(path.name) == 64])
