"""What a scheduler says of jobs, and ending them. Needs no torch, for `ncpipe status`."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from ncpipe.runs.engines.jobs import Job
from ncpipe.system.artifacts import JOBS
from ncpipe.system.errors import InputError

FILES = JOBS / "files"  # what submitit writes: jobs, their results and their logs
TAIL = 15  # lines of a log that are told
OVER = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED",
    "REVOKED", "TIMEOUT",
}  # fmt: skip
GONE = "GONE"  # neither in the queue nor known to have ended
RUNNING = ("RUNNING", "COMPLETING")
USUAL = ("", "None", "Priority", "Resources", "JobArrayTaskLimit", "Dependency", "BeginTime")  # to wait


@dataclass(frozen=True)
class State:
    """What Slurm calls a job's state, GONE where it knows none, and why it waits."""

    name: str
    reason: str = ""

    @property
    def is_over(self) -> bool:
        return self.name in (GONE, *OVER)


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


def job_states(jobs: Sequence[Job]) -> dict[str, State]:
    """By id."""
    states = {job.id: State(GONE) for job in jobs}
    if any(job.options.cluster == "slurm" for job in jobs):
        listed = _ask(
            ["squeue", "--me", "--array", "--noheader", "--states=all", "--format=%i|%T|%r"], answer=True
        )
        for line in listed.splitlines():
            job_id, state, reason = [*line.strip().split("|"), "", ""][:3]
            if job_id in states:
                states[job_id] = State(state, reason)
    for job in jobs:
        if job.options.cluster == "local" and _process(job.id) is not None:
            states[job.id] = State(RUNNING[0])
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


def summary(jobs: Sequence[Job], states: Mapping[str, State]) -> str:
    """How many jobs run, wait and have ended, and of how many runs; and why one waits."""
    kinds: dict[str, list[Job]] = {"running": [], "waiting": [], "ended, to be collected": []}
    for job in jobs:
        state = states[job.id]
        kinds[list(kinds)[2 if state.is_over else 0 if state.name in RUNNING else 1]].append(job)
    said = [
        f"{len(some)} {'job' if len(some) == 1 else 'jobs'} {kind} ({sum(len(j.keys) for j in some)} runs)"
        for kind, some in kinds.items()
        if some
    ]
    why = {states[job.id].reason for job in kinds["waiting"]} - set(USUAL)
    return (", ".join(said) or "none") + (f"; Slurm: {', '.join(sorted(why))}" if why else "")


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
