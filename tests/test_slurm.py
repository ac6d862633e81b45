"""Jobs that pull runs from the store: by a stand-in for Slurm's commands, and by a real Slurm.

The latter, marker `slurm`, is Debian's on this machine alone, set up and taken down by .ci/slurm.
"""

import contextlib
import inspect
import os
import re
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
    Command,
    architecture,
    clear_code_digests,
    contents,
    experiment_tree,
    fingerprints,
    prepare_sweep,
    stored_runs,
    write_params,
)
from studies import POLY, TRAINING, changed

from ncpipe.commands import sweep
from ncpipe.commands.fill import fill_store
from ncpipe.commands.status import status
from ncpipe.commands.train import train
from ncpipe.config.params import load_params
from ncpipe.config.run import Compute
from ncpipe.runs.engines.arrays import JOB_LOGS, WORKDIR, Array, read_arrays
from ncpipe.runs.engines.options import Options, Rule, Settings, Slurm
from ncpipe.runs.engines.slurm import (
    MOST_LOSSES,
    check_resources,
    job_count,
    remove_finished,
    train_by_slurm,
)
from ncpipe.runs.engines.slurm_commands import (
    REQUEUE,
    array_states,
    batch_script,
    check_submission,
    has_ended,
    summary,
)
from ncpipe.runs.engines.slurm_job import main as work_on
from ncpipe.runs.fill import fill
from ncpipe.runs.fingerprint import RunFingerprint
from ncpipe.runs.run_claims import ClaimWriter, claimed, claims
from ncpipe.runs.store import (
    checkpoint_of,
    has,
    needs_training,
    saved_epochs,
)
from ncpipe.runs.store_layout import ALONE, verify_stored
from ncpipe.system.artifacts import JOBS, PREPARED
from ncpipe.system.errors import InputError

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
HERE = Slurm(array=2)
DRIVER = """
from ncpipe.config.params import load_params
from ncpipe.runs.engines.options import Rule, Settings, Slurm
from ncpipe.runs.engines.slurm import train_by_slurm
from ncpipe.runs.store import sweep_fingerprints
compute = load_params().compute
settings = Settings(compute, None, 600.0, True, 0)
train_by_slurm(sweep_fingerprints(load_params(), compute), {options!r}, settings, wait=False)
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
    subprocess.run(
        ["scancel", "--clusters=all", *(file.name for file in (place / "jobs").iterdir())], check=True
    )
    (place / "hold").unlink(missing_ok=True)  # else who starts the jobs would wait for ever


def settings(workers: int | None = None) -> Settings:
    return Settings(load_params().compute, workers, 600.0, True, len(fingerprints()))


def by_slurm(options: Slurm = HERE, wait: bool = True) -> set[str]:
    return train_by_slurm(fingerprints(), options, settings(), wait)


def untrained() -> list[RunFingerprint]:
    return [fingerprint for fingerprint in fingerprints() if needs_training(fingerprint)]


def until(happened: object, seconds: float = 90.0) -> None:
    end = time.monotonic() + seconds
    while not happened():  # type: ignore[operator]
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.1)


def check_bytes(some: list[RunFingerprint], tmp_path: Path) -> None:
    """What jobs put into the store is, to the byte, what trains here in a store of its own."""
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(PREPARED, elsewhere / PREPARED)
    with contextlib.chdir(elsewhere):
        assert fill(some, Settings(some[0].compute, 1, 600.0, True, 0)) == set()
    for fingerprint in some:
        verify_stored(ALONE / fingerprint.key(), fingerprint.key())
        assert contents(ALONE / fingerprint.key()) == contents(elsewhere / ALONE / fingerprint.key())


def told_state(stand_in: Path, job: str) -> str:
    return (stand_in / "jobs" / job).read_text()


def ended(array: Array) -> bool:
    return has_ended(array, array_states([array]))


@pytest.mark.long  # as test_twelve_runs_by_slurm, where there is no Slurm
def test_jobs_go_on_without_the_driver(
    folder: Path, stand_in: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One job is killed: what it trained is submitted again, once, and nothing else is.

    Red: what was killed never found; results that differ; a stage that trains beside them.
    """
    prepare_sweep([2], [0, 1], one=experiment_tree(epochs=2000), two=experiment_tree(epochs=2001))
    by_slurm(wait=False)
    [array] = read_arrays()
    assert (array.jobs, len(array.keys)) == (2, 4)
    with pytest.raises(InputError, match=r"array 1 of Slurm trains these runs .* --cancel ends it"):
        train("one", 2, 0)
    with pytest.raises(InputError, match="array 1 of Slurm trains these runs"):
        fill_store(None, 1, 60.0)
    until(lambda: any(claim.epoch for claim in claims()), 300)
    [victim, *_] = [psutil.Process(claim.process) for claim in claims() if claim.epoch]
    lost = {key for claim in claims() if claim.process == victim.pid for key in claim.keys}
    victim.kill()
    until(lambda: ended(array), 600)
    assert {fingerprint.key() for fingerprint in untrained()} <= lost
    capsys.readouterr()
    assert by_slurm() == set()
    said = capsys.readouterr().err
    if "submitted" in said:  # else the other job had trained them
        assert "sweep: array 1 ended without" in said
    assert said.count("of array") <= 1
    assert untrained() == []
    check_bytes(fingerprints(), tmp_path)
    assert read_arrays() == []
    assert not list(JOBS.iterdir())
    assert "  one L=2 seed=0: loss" in "".join(log.read_text() for log in JOB_LOGS.glob("1_*.log"))


def test_a_driver_that_dies_before_it_knows_the_number_loses_no_job(
    folder: Path, stand_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red: a job that is found by its number alone; jobs submitted twice."""
    prepare_sweep([2], [0], one=experiment_tree())

    def die(*rest: object, **changes: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("ncpipe.runs.engines.slurm.replace", die)
        with pytest.raises(KeyboardInterrupt):
            by_slurm()
    [array] = read_arrays()
    assert array.number == ""
    until(lambda: ended(array), 300)
    assert by_slurm() == set()
    assert len(list((stand_in / "jobs").iterdir())) == 1
    assert untrained() == []


def test_a_signal_saves_and_the_next_start_goes_on_to_the_same_bytes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the time limit the job asks to be queued again; when it is cancelled it does not; and a job
    that made no progress says so, and does not queue again for ever.

    Red: a job that hears nothing while it trains; one that begins anew; a job that only ever starts.
    """
    prepare_sweep([2], [0, 1], one=experiment_tree(epochs=100, log_every=20))
    array = record()
    expected: list[tuple[int, int]] = []

    def beat(writer: ClaimWriter, epoch: int, whole: float | None) -> None:
        if expected and epoch == expected[0][1]:
            number = expected.pop()[0]
            stop = inspect.getclosurevars(signal.getsignal(number)).nonlocals["stop"]  # type: ignore[arg-type]
            os.kill(os.getpid(), number)
            assert stop.wait(60)  # the handler runs in the main thread

    monkeypatch.setattr(ClaimWriter, "beat", beat)
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR2, signal.SIGTERM)}
    try:
        expected.append((signal.SIGUSR2, 30))
        assert work_on(array.folder) == REQUEUE
        assert {saved_epochs(fingerprint) for fingerprint in fingerprints()} == {31, 0}
        expected.append((signal.SIGTERM, 60))
        assert work_on(array.folder) == 128 + signal.SIGTERM
        assert 61 in {saved_epochs(fingerprint) for fingerprint in fingerprints()}
        assert claims() == []
        with monkeypatch.context() as patch:
            patch.setattr("ncpipe.runs.store.epochs_of", lambda some: 0)
            expected.append((signal.SIGUSR2, 80))
            assert work_on(array.folder) == 1
        assert "no epoch was finished within the time limit" in capsys.readouterr().err
        assert work_on(array.folder) == 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    check_bytes(fingerprints(), tmp_path)


@pytest.mark.parametrize("moment", ["before it reads", "while it reads params.yaml"])
def test_a_job_that_is_cancelled_as_it_starts_says_so(
    moment: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its folder is removed then. Red: a traceback in its log."""
    prepare_sweep([2], [0], one=experiment_tree())
    array = record()
    capsys.readouterr()

    def cancelled(*arguments: object) -> None:
        array.remove()
        raise FileNotFoundError("params.yaml")

    if moment == "before it reads":
        array.remove()
    else:
        monkeypatch.setattr("ncpipe.runs.fill.runs_of_keys", cancelled)
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR2, signal.SIGTERM)}
    try:
        assert work_on(array.folder) == 128 + signal.SIGTERM
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    [line] = capsys.readouterr().err.splitlines()
    assert line == f"ncpipe: {array.folder} is gone, as its array was cancelled"


def record(number: str = "7", jobs: int = 1, losses: int = 0, epochs: int = 0) -> Array:
    """An array of all runs as if it had been submitted."""
    keys = tuple(fingerprint.key() for fingerprint in fingerprints())
    array = Array(f"a{number}", jobs, keys, "cpu", 1, 600.0, epochs, losses, number)
    array.write()
    return array


def test_status_tells_of_jobs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare_sweep([2], [0, 1, 2], one=experiment_tree())
    monkeypatch.setenv("PATH", str(folder))
    record(jobs=3)
    lines = ["7_0|ncpipe-a7|RUNNING|None", "7_1|ncpipe-a7|PENDING|PartitionTimeLimit"]
    (folder / "squeue").write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines))
    (folder / "squeue").chmod(0o755)
    capsys.readouterr()
    status()
    said = capsys.readouterr().out
    assert "3 queued (left to jobs of Slurm)" in said
    assert "1 job running, 1 job waiting, 1 job ended; Slurm: PartitionTimeLimit" in said
    (folder / "squeue").unlink()
    status()
    assert "jobs: engine slurm: no squeue here" in capsys.readouterr().out


def test_an_array_has_no_job_without_a_run_for_each_worker() -> None:
    assert [job_count(runs, workers, Slurm(array=100)) for runs, workers in ((250, 1), (36, 1), (36, 4))] == [
        100,
        36,
        9,
    ]


def test_a_plan_says_what_would_be_submitted(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Red: batches and times of this machine; an array that is made, or forgotten, by asking."""
    prepare_sweep([2, 3], [0, 1, 2], one=experiment_tree(), two=experiment_tree())
    monkeypatch.setenv("PATH", str(folder))
    Array("a7", 1, (fingerprints()[0].key(),), "cpu", 1, 600.0, number="7").write()
    before = contents(folder)
    capsys.readouterr()
    params = load_params()
    sweep.print_plan(
        params,
        params.compute,
        None,
        Options("slurm", Slurm(array=4, at_once=3, partition="p", mem="2G", setup=("module load cuda",))),
    )
    assert contents(folder) == before
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "1 array of an earlier sweep still in the queue or running"
    rows = {tuple(line.split()) for line in lines[2:6]}
    assert rows == {("one", "2", "2"), ("two", "2", "3"), ("one", "3", "3"), ("two", "3", "3")}
    for line in (
        "Slurm: 11 runs in an array of 4 jobs, submitted by",
        "module load cuda",
        "not checked: engine slurm: no sbatch here; run this where you run sbatch",
    ):
        assert line in lines
    [words] = [shlex.split(line) for line in lines if line.startswith("sbatch --parsable ")]
    assert {"--array=0-3%3", "--time=4:00:00", "--partition=p", "--mem=2G", "--requeue"} <= {*words}


def test_what_jobs_get_has_to_do_for_the_runs() -> None:
    cuda, two = Compute("cuda", 1, "float32"), Compute("cpu", 2, "float32")
    for options in (Slurm(gpus=1), Slurm(gres="gpu:a100:1"), Slurm(sbatch=("--gpus=a100:1",))):
        check_resources(cuda, options)
    check_resources(two, Slurm(cpus=2))
    with pytest.raises(InputError, match=r"^slurm\.gpus: 0, but compute\.device is cuda"):
        check_resources(cuda, Slurm())
    with pytest.raises(InputError, match=r"^slurm\.cpus: 1, but compute\.threads is 2; make them equal"):
        check_resources(two, Slurm())
    with pytest.raises(InputError, match=r"^slurm\.gpus: 1, but compute\.device is cpu, so the GPU would be"):
        check_resources(two, Slurm(gpus=1, cpus=2))


@pytest.mark.parametrize("state", ["OUT_OF_MEMORY", "GONE"])
def test_what_is_lost_again_and_again_fails(
    state: str,
    folder: Path,
    stand_in: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Unless there was progress. Red: a run of four time limits that counts as failed; one that no limit is
    long enough for; jobs that left the queue and are believed to run."""
    prepare_sweep([2], [0], one=experiment_tree())
    array = record(losses=MOST_LOSSES - 1)
    (array.folder / "0.log").write_text("last words\n")
    (stand_in / "array-7").write_text("ncpipe-a7")
    if state != "GONE":
        (stand_in / "jobs/7_0").write_text(state)
    assert by_slurm() == {fingerprint.key() for fingerprint in fingerprints()}
    said = f"array 7 ended without 1 run, as one L=2 seed=0 ({state}); see data/logs/jobs/7_*.log"
    assert said in capsys.readouterr().err
    assert (JOB_LOGS / "7_0.log").read_text() == "last words\n"
    assert read_arrays() == []
    record(losses=MOST_LOSSES - 1)
    monkeypatch.setattr("ncpipe.runs.engines.slurm.epochs_of", lambda some: 1)
    (stand_in / "hold").touch()
    assert by_slurm(wait=False) == set()
    [again] = read_arrays()
    assert again.losses == 0


def test_what_slurm_would_refuse_is_refused_before(
    folder: Path, stand_in: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A plan shows the script all the same. Red: jobs that wait for ever."""
    prepare_sweep([2], [0], one=experiment_tree())
    (stand_in / "refuse").write_text("Invalid account or account/partition combination specified")
    with pytest.raises(InputError, match=r"sbatch would refuse the jobs: Invalid account .*account=a"):
        by_slurm(Slurm(account="a"))
    assert read_arrays() == []
    params = load_params()
    with pytest.raises(InputError, match="would refuse the jobs: Invalid account"):
        sweep.print_plan(params, params.compute, None, Options("slurm", HERE))
    assert "#!/bin/bash" in capsys.readouterr().out
    (stand_in / "refuse").write_text("Required node not available (down, drained or reserved)")
    check_submission(Slurm())


def arguments(stand_in: Path, number: str) -> dict[str, str]:
    """What sbatch was given."""
    return slurm_stand_in.options((stand_in / f"array-{number}").read_text().split("\n"))


def test_a_run_that_fails_is_named_and_not_submitted_again(
    folder: Path, stand_in: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("study.py").write_text(changed(TRAINING, (POLY, "    raise ValueError('a mistake')\n")))
    prepare_sweep([2], [0], one=experiment_tree(loss={"name": "poly", "epsilon": 1.0}), two=experiment_tree())
    [bad, good] = fingerprints()
    assert by_slurm(Slurm(array=1)) == {bad.key()}
    assert has(good.key())
    said = capsys.readouterr().err
    assert "ncpipe: study.py: line " in said
    assert said.count("of array") == 1
    clear_code_digests()


def test_where_slurm_does_not_queue_again_the_driver_submits_what_is_left(
    folder: Path, stand_in: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Red: a traceback; a run that begins anew."""
    (stand_in / "no_requeue").write_text("Requested operation is presently disabled for job 1")

    def warn() -> None:
        while not any(claim.epoch for claim in claims()):
            time.sleep(0.1)
        (stand_in / "warn").touch()

    threading.Thread(target=warn, daemon=True).start()
    prepare_sweep([2], [0], one=experiment_tree(epochs=6_000, log_every=10))
    assert by_slurm(Slurm(array=1)) == set()
    said = capsys.readouterr().err
    assert "sweep: array 1 ended without 1 run, as one L=2 seed=0 (FAILED)" in said
    assert "Traceback" not in said
    assert said.count("of array") == 2
    assert untrained() == []
    logs = "".join(file.read_text() for file in JOB_LOGS.glob("*.log"))
    assert ", from the checkpoint after " in logs
    assert "Requested operation is presently disabled" in logs


def test_a_job_queues_itself_again_and_no_other(folder: Path, stand_in: Path) -> None:
    """The last job of an array has the array's number. Red: that number requeued, and with it ended jobs; a
    shell that `set -e` ends at the signal."""
    prepare_sweep([2], [0], one=experiment_tree(), two=experiment_tree(epochs=6_000, log_every=10))
    by_slurm(Slurm(array=2, setup=("set -e",)), wait=False)
    until(lambda: [claim for claim in claims() if claim.epochs == 6000 and claim.epoch], 300)
    until(lambda: "COMPLETED" in (told_state(stand_in, "1_0"), told_state(stand_in, "1_1")), 300)
    (stand_in / "warn").touch()
    assert by_slurm() == set()
    began = (stand_in / "started").read_text().split()
    assert len(began) == 3
    assert len(set(began)) == 2
    assert untrained() == []


def test_jobs_run_the_code_that_they_were_submitted_with(folder: Path, stand_in: Path) -> None:
    """It is edited before they begin. Red: jobs that are cancelled, fail or are forgotten, and runs of the
    edited code under the old name."""
    Path("study.py").write_text(TRAINING)
    prepare_sweep([2], [0], one=experiment_tree(loss={"name": "poly", "epsilon": 1.0}))
    [before] = fingerprints()
    (stand_in / "hold").touch()
    by_slurm(wait=False)
    [array] = read_arrays()
    Path("study.py").write_text(changed(TRAINING, (POLY, "    return -3 * own\n")))
    job = array.folder / WORKDIR / "ncpipe/runs/engines/slurm_job.py"
    text = job.read_text()
    job.write_text(text.replace("    array = read_array(", "    print('its own')\n    array = read_array("))
    clear_code_digests()
    [edited] = fingerprints()
    remove_finished({edited.key()})
    assert read_arrays() == [array]
    (stand_in / "hold").unlink()
    until(lambda: ended(array), 300)
    remove_finished({edited.key()})
    assert read_arrays() == []
    assert "its own" in (JOB_LOGS / "1_0.log").read_text()
    assert [path.name for path in stored_runs()] == [before.key()]
    verify_stored(ALONE / before.key(), before.key())
    assert needs_training(edited)
    clear_code_digests()


def test_jobs_find_what_loops_read(folder: Path) -> None:
    """What is listed for `fetch`, by links. Red: a loop that trains here and not in jobs."""
    Path("study.py").write_text(TRAINING)
    Path("images").mkdir()
    Path("images/one.txt").write_text("1")
    Path("data/raw").mkdir(parents=True, exist_ok=True)
    Path("data/raw/words.txt").write_text("a word")  # of `code`, and below data, where the link leads
    code = "code: {cmd: ncpipe code, deps: [data/raw/words.txt]}"
    fetch = "fetch: {cmd: ncpipe fetch, deps: [images, ../elsewhere]}"
    Path("dvc.yaml").write_text(f"stages: {{{code}, {fetch}}}\n")
    (folder / "../elsewhere").mkdir()
    write_params([2], [0], one=experiment_tree())
    array = Array("a", 1, (), "cpu", None, 60.0)
    array.prepare()
    assert (array.folder / WORKDIR / "data/raw/words.txt").read_text() == "a word"
    assert (array.folder / WORKDIR / "images/one.txt").read_text() == "1"
    assert not (array.folder / "elsewhere").exists()
    array.remove()
    assert Path("images/one.txt").exists()


def test_a_python_below_ones_home_is_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red: a folder named `~` below the sweep's."""
    monkeypatch.setenv("HOME", "/home/me")
    assert " /home/me/bin/python -m " in batch_script("a", Slurm(python="~/bin/python"))


def test_jobs_are_cancelled_whatever_engine_yaml_says(folder: Path, command: Command) -> None:
    """Red: its mistake in place of `scancel`, which takes no options."""
    write_params([2], [0], one=experiment_tree())
    Path("engine.yaml").write_text("engine: sloorm\n")
    assert command("sweep", "--cancel") in (0, None)
    assert "unknown" in str(command("sweep", "--dry-run"))


@pytest.mark.parametrize(
    ("options", "said", "asked"),
    [
        (Options(), "1 run failed, see above; the others are kept", [("repro", "--keep-going")]),
        (Options("slurm"), "1 run failed, see above; the others are kept; dvc repro would", []),
    ],
    ids=["local", "slurm"],
)
def test_runs_that_failed_are_the_last_word_of_a_sweep(
    options: Options,
    said: str,
    asked: list[tuple[str, ...]],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Red: the advice of a DVC that was killed, or runs that Slurm has lost trained here by `dvc repro`."""
    prepare_sweep([2], [0], one=experiment_tree())
    seen: list[tuple[str, ...]] = []

    def stop(*words: str, quiet: bool = False) -> None:
        if not quiet:
            seen.append(words)
            raise InputError("dvc failed")

    monkeypatch.setattr(sweep, "dvc", stop)
    monkeypatch.setattr(sweep, "load_options", lambda engine: options)
    monkeypatch.setattr(sweep, "_train", lambda missing, *_: [run.key() for run in missing])
    with pytest.raises(InputError, match=re.escape(said)):
        sweep.sweep(keep_going=True)
    assert seen == asked


def test_folders_with_one_store_train_each_run_once(
    tmp_path: Path, stand_in: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Jobs of one fill the store of both. Red: runs that are submitted while another process trains them;
    jobs that train what is stored by now."""
    for name in ("here", "there"):
        (tmp_path / name / ".dvc").mkdir(parents=True)
        (tmp_path / name / ".dvc/config").write_text(f"[cache]\n    dir = {tmp_path / 'cache'}\n")
        monkeypatch.chdir(tmp_path / name)
        prepare_sweep([2], [0, 1], one=experiment_tree())
    with claimed(fingerprints()):  # as while the other folder trains
        assert by_slurm(wait=False) == set()
    assert read_arrays() == []
    assert "left 2 runs to another process that trains them" in capsys.readouterr().err
    (stand_in / "hold").touch()
    by_slurm(wait=False)
    [array] = read_arrays()
    monkeypatch.chdir(tmp_path / "here")
    train("one", 2, 1)  # while they wait
    (stand_in / "hold").unlink()
    monkeypatch.chdir(tmp_path / "there")
    until(lambda: ended(array), 300)
    assert by_slurm() == set()
    logs = [file.read_text() for file in (tmp_path / "there").glob("data/logs/jobs/*.log")]
    assert "".join(logs).count(": loss ") == 1
    assert not read_arrays()


@pytest.mark.parametrize(
    ("given", "variable", "dies"),
    [
        (["--clusters=genius,wice"], "", False),
        (["--cluster=wice"], "", True),
        ([], "wice", True),
    ],
)
def test_jobs_are_watched_and_cancelled_on_their_cluster(
    given: list[str], variable: str, dies: bool, folder: Path, stand_in: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Beside an array of the default cluster; also where the driver died before it knew the number (dies).

    Red: jobs that wait there and count as ended, so that they are submitted again; jobs that are not
    cancelled and that nobody knows."""
    (stand_in / "hold").touch()
    prepare_sweep([2], [0, 1], one=experiment_tree())
    by_slurm(wait=False)
    prepare_sweep([2], [2, 3], one=experiment_tree())
    monkeypatch.setenv("SBATCH_CLUSTERS", variable)
    elsewhere = Slurm(array=2, sbatch=tuple(given))
    if dies:
        monkeypatch.setattr("ncpipe.runs.engines.slurm.replace", lambda array, **changes: array)
    by_slurm(elsewhere, wait=False)
    monkeypatch.setenv("SBATCH_CLUSTERS", "")
    by_slurm(elsewhere, wait=False)
    arrays = read_arrays()
    assert len(arrays) == 2
    assert ("1", "") in {(array.number, array.cluster) for array in arrays}
    assert summary(array_states(arrays)) == "4 jobs waiting"
    (stand_in / "scancel").write_text("no")
    with pytest.raises(InputError, match="2 arrays may still run") as refused:
        sweep.cancel_jobs()
    (stand_in / "scancel").unlink()
    advised = str(refused.value).partition(", or ")[2]
    subprocess.run(["sh", "-c", advised], check=True)
    assert {file.read_text() for file in (stand_in / "jobs").iterdir()} == {"CANCELLED"}
    sweep.cancel_jobs()
    assert "cancelled 2 arrays" in capsys.readouterr().err
    assert read_arrays() == []


def test_each_run_gets_the_resources_of_its_rule(folder: Path, stand_in: Path) -> None:
    """In an array for each kind of jobs."""
    deep = Rule(min_depth=3, partition="long", time="1-00:00:00", cpus=2)
    two = Rule(experiments=("two",), qos="high")
    options = Slurm(time="30", rules=(deep, two), array=3, mem="2G")
    (stand_in / "hold").touch()
    prepare_sweep([2, 3], [0], one=experiment_tree(), two=experiment_tree())
    by_slurm(options, wait=False)
    runs = {fingerprint.key(): fingerprint.run for fingerprint in fingerprints()}
    resources = {}
    for array in read_arrays():
        flags = arguments(stand_in, array.number)
        values = [flags.get(name) for name in ("partition", "time", "cpus-per-task", "qos", "mem")]
        resources |= {(runs[key].experiment, runs[key].depth): [*values, array.workers] for key in array.keys}
    assert resources == {
        ("one", 2): [None, "30", "1", None, "2G", 1],
        ("one", 3): ["long", "1-00:00:00", "2", None, "2G", 2],
        ("two", 2): [None, "30", "1", "high", "2G", 1],
        ("two", 3): ["long", "1-00:00:00", "2", "high", "2G", 2],
    }


def test_a_worker_runs_by_the_python_that_is_named(folder: Path, stand_in: Path) -> None:
    """A script beside engine.yaml, as one that starts Python in a container. Red: one sought on the PATH."""
    prepare_sweep([2], [0], one=experiment_tree())
    program = folder / "python.sh"
    program.write_text(f'#!/bin/sh\necho "$PWD $@" > {stand_in}/given\n')
    program.chmod(0o755)
    by_slurm(Slurm(python="./python.sh"), wait=False)
    until(lambda: (stand_in / "given").is_file() and (stand_in / "given").read_text())
    assert f"/{WORKDIR} -m ncpipe.runs.engines.slurm_job {folder}" in (stand_in / "given").read_text()


def test_what_slurm_does_not_say_is_a_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare_sweep([2], [0], one=experiment_tree())
    monkeypatch.setenv("PATH", str(folder))
    with pytest.raises(InputError, match="no sbatch here"):
        by_slurm()
    record()
    with pytest.raises(InputError, match="no squeue here; run this where you run sbatch"):
        by_slurm()
    (folder / "squeue").write_text("#!/bin/sh\necho cannot reach the controller >&2; exit 1\n")
    (folder / "squeue").chmod(0o755)
    with pytest.raises(InputError, match="squeue: cannot reach the controller; jobs continue"):
        by_slurm()
    with pytest.raises(InputError, match="squeue: cannot reach the controller; jobs continue"):
        sweep.cancel_jobs()
    remove_finished(set())
    assert len(read_arrays()) == 1


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
def test_twelve_runs_by_slurm(
    cluster: None, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an array of which four jobs may run at a time; the driver is gone, one job is killed.

    Red: jobs that only their driver knows; lost runs that stay lost; what is submitted again as a fifth.
    """
    monkeypatch.setattr("ncpipe.runs.engines.slurm.DISK_DELAY", 0.0)
    # Long enough for four jobs to be seen side by side
    two = experiment_tree(model=architecture("L-RN2", "pre"), epochs=1500)
    three = experiment_tree(epochs=1501)
    prepare_sweep([2, 3], [0, 1], one=experiment_tree(epochs=1500), two=two, three=three)
    options = Slurm(array=6, at_once=4)
    subprocess.run([sys.executable, "-c", DRIVER.format(options=options)], check=True)
    [array] = read_arrays()
    assert (array.jobs, len(array.keys)) == (6, 12)
    until(lambda: len(running()) == 4, 300)
    [victim, *_] = running()
    subprocess.run(["scancel", "--signal=KILL", victim], check=True)
    seen: list[int] = []
    done = threading.Event()

    def count() -> None:
        while not done.wait(0.3):
            seen.append(len(running()))

    counting = threading.Thread(target=count)
    counting.start()
    assert by_slurm(options) == set()
    done.set()
    counting.join()
    assert max(seen) == 4
    check_bytes(fingerprints()[::4], tmp_path)
    assert read_arrays() == []


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
    prepare_sweep([2], [0], one=experiment_tree(epochs=50_000, log_every=10))
    assert by_slurm(Slurm(time="1", signal_seconds=40, sbatch=(site,))) == set()
    texts = {file.stem: file.read_text() for file in JOB_LOGS.glob("*.log")}
    assert ", from the checkpoint after " in "".join(texts.values())
    said = capsys.readouterr().err
    assert (said.count("of array") == 1) == (site == "--requeue")
    assert "Traceback" not in said
    [fingerprint] = fingerprints()
    verify_stored(ALONE / fingerprint.key(), fingerprint.key())
    assert not checkpoint_of(fingerprint).exists()


@pytest.mark.slurm
def test_jobs_are_counted_and_cancelled(cluster: None, folder: Path) -> None:
    prepare_sweep([2], [0, 1], one=experiment_tree(epochs=10**7, log_every=10**6))
    by_slurm(Slurm(array=2, at_once=1), wait=False)
    counts = "1 job running, 1 job waiting"
    until(lambda: summary(array_states(read_arrays())) == counts)  # another test's job may end meanwhile
    sweep.cancel_jobs()
    until(lambda: not running())
    assert read_arrays() == []
