"""What a scheduler says of jobs, and ending them. Needs no torch, for `ncpipe status`."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from ncpipe.errors import InputError
from ncpipe.scheduling.engines.jobs import JOBS, Job

FILES = JOBS / "files"  # what submitit writes: jobs, their results and their logs
TAIL = 15  # lines of a log that are told
OVER = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED",
    "REVOKED", "TIMEOUT",
}  # fmt: skip
GONE = "GONE"  # neither in the queue nor known to have ended
RUNNING = ("RUNNING", "COMPLETING")


def cancel(jobs: Sequence[Job]) -> None:
    """End jobs; what trains is told to save its checkpoints."""
    queued = [job.id for job in jobs if job.options.cluster == "slurm"]
    if queued:
        _ask(["scancel", *queued])
    for job in jobs:
        if job.options.cluster == "local" and (process := _process(job.id)) is not None:
            process.terminate()
        job.forget()


def paths_of(job: Job) -> Any:
    """Where submitit has a job's result and logs."""
    from submitit.core.utils import JobPaths

    return JobPaths(FILES, job.id)


def with_result(jobs: Sequence[Job]) -> set[str]:
    """Ids of those that have said how they ended. Listing the folder brings a shared disk's news here."""
    names = set(os.listdir(FILES)) if FILES.is_dir() else set()
    return {job.id for job in jobs if paths_of(job).result_pickle.name in names}


def job_states(jobs: Sequence[Job]) -> dict[str, str]:
    """Id -> what Slurm calls a job's state; GONE where it knows none."""
    states = {job.id: GONE for job in jobs}
    if any(job.options.cluster == "slurm" for job in jobs):
        listed = _ask(
            ["squeue", "--me", "--array", "--noheader", "--states=all", "--format=%i|%T"], answer=True
        )
        for line in listed.splitlines():
            job_id, _, state = line.strip().partition("|")
            if job_id in states:
                states[job_id] = state
    for job in jobs:
        if job.options.cluster == "local" and _process(job.id) is not None:
            states[job.id] = "RUNNING"
    return states


def _process(job_id: str) -> psutil.Process | None:
    """Of a job on this machine: submitit's, that looks after it."""
    try:
        process = psutil.Process(int(job_id))
        own = "submitit.local._local" in process.cmdline() or process.ppid() == os.getpid()
        if own and process.status() != psutil.STATUS_ZOMBIE:
            return process
    except psutil.Error:
        pass
    return None


def summary(jobs: Sequence[Job], states: dict[str, str]) -> str:
    """How many jobs run and wait, and of how many runs, in a line."""
    running = [job for job in jobs if states[job.id] in RUNNING]
    waiting = [job for job in jobs if states[job.id] not in (*RUNNING, GONE, *OVER)]
    said = [
        f"{len(some)} {'job' if len(some) == 1 else 'jobs'} {how} ({sum(len(job.keys) for job in some)} runs)"
        for some, how in ((running, "running"), (waiting, "waiting"))
        if some
    ]
    return ", ".join(said) or "no job runs or waits"


def last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]


def tail(path: Path) -> str:
    """The end of a log."""
    try:
        return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL:])
    except OSError:
        return "it wrote no log"


def _ask(command: list[str], answer: bool = False) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    except FileNotFoundError:
        raise InputError(f"engine slurm: no {command[0]} here; run this where you run sbatch") from None
    except subprocess.TimeoutExpired:
        raise InputError(f"slurm: {command[0]} does not answer; its jobs go on, try again later") from None
    if done.returncode and answer:
        raise InputError(f"slurm: {command[0]}: {last_line(done.stderr)}; its jobs go on, try again later")
    return done.stdout
