"""Call Slurm's commands to watch, count and cancel jobs. Needs no torch, for `ncpipe status`."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ncpipe.runs.engines.jobs import Job, jobs_elsewhere, keys_in_jobs
from ncpipe.system.console import plural
from ncpipe.system.errors import InputError

TIMEOUT = 300  # seconds that a command of Slurm may take
ENDED = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED",
    "REVOKED", "TIMEOUT",
}  # fmt: skip
GONE = "GONE"  # our name for a job that is neither in the queue nor in the accounting
RUNNING = ("RUNNING", "COMPLETING")
# Reasons for waiting that need no attention.
USUAL_REASONS = ("", "None", "Priority", "Resources", "JobArrayTaskLimit", "Dependency", "BeginTime")


@dataclass(frozen=True)
class JobState:
    """Holds the state of a job by Slurm's name, or GONE, and why it waits."""

    name: str
    reason: str = ""

    @property
    def has_ended(self) -> bool:
        return self.name in (GONE, *ENDED)


def job_states(jobs: Sequence[Job]) -> dict[str, JobState]:
    """Return the states of jobs by `Job.id`, from the queue or, for jobs that left it, from the accounting.

    Raises InputError if Slurm does not answer.
    """
    if not jobs:
        return {}
    names = {(f"ncpipe-{job.array}", job.index): job for job in jobs}
    states: dict[str, JobState] = {}
    queue = output_of(["squeue", "--me", "--array", "--noheader", "--states=all", "--format=%i|%j|%T|%r"])
    for line in queue.splitlines():
        job_id, name, state, reason = [*line.strip().split("|"), "", "", ""][:4]
        index = job_id.rpartition("_")[2]
        if index.isdecimal() and (job := names.get((name, int(index)))) is not None:
            states[job.id] = JobState(state, reason)
    gone = [job for job in jobs if job.id not in states]
    accounted = {
        row["JobID"]: JobState(row["State"].split(" ")[0])  # CANCELLED by 1000
        for row in _sacct(gone, "JobID,State")
        if "." not in row["JobID"]
    }
    return states | {job.id: accounted.get(job.id, JobState(GONE)) for job in gone}


def keys_elsewhere() -> dict[str, Job]:
    """Return the jobs of other folders with this store that wait or run, by the fingerprints of their runs.

    If Slurm does not answer here, jobs are believed to wait or run until they are collected.
    """
    jobs = jobs_elsewhere()
    try:
        return keys_in_jobs(_active(jobs))
    except InputError:
        return keys_in_jobs(jobs)


def _sacct(jobs: Sequence[Job], columns: str) -> list[dict[str, str]]:
    """Return columns of the accounting; no rows if there is none, or it does not answer."""
    numbers = sorted({job.number for job in jobs if job.number})
    if not numbers:
        return []
    command = ["sacct", "--noheader", "--parsable2", "--array", "--duplicates", f"--format={columns}"]
    try:
        done = run_command([*command, f"--jobs={','.join(numbers)}"], {"SLURM_TIME_FORMAT": "%s"})
    except InputError:
        return []
    names = columns.split(",")
    rows = [dict(zip(names, line.split("|"), strict=False)) for line in done.stdout.splitlines()]
    return [row for row in rows if len(row) == len(names)] if not done.returncode else []


def cancel(jobs: Sequence[Job]) -> tuple[int, str]:
    """Cancel jobs, which then save checkpoints, and remove their records.

    Returns the number of cancelled jobs, and a line about those that may still run, if there are any. If
    Slurm does not answer, raises InputError and keeps all records.
    """
    active, error = _active(jobs), ""
    if active:
        arguments = [job.id if job.number else f"--jobname=ncpipe-{job.array}" for job in active]
        done = run_command(["scancel", *dict.fromkeys(arguments)])
        if done.returncode:
            error = last_line(done.stderr) or f"exit code {done.returncode}"
        active = _active(jobs) if done.returncode else []
    active_ids = {job.id for job in active}
    for job in jobs:
        if job.id not in active_ids:
            job.remove()
    if not active:
        return len(jobs), ""
    names = sorted({job.number or f"ncpipe-{job.array}" for job in active})
    return len(jobs) - len(active), (
        f"{plural(len(active), 'job')} may still run (scancel: {error}); run ncpipe sweep --cancel again, or "
        f"scancel {' '.join(names)}"
    )


def _active(jobs: Sequence[Job]) -> list[Job]:
    """Return the jobs that have not ended."""
    states = job_states(jobs)
    return [job for job in jobs if not states[job.id].has_ended]


def summary(jobs: Sequence[Job], states: Mapping[str, JobState]) -> str:
    """Return how many jobs run, wait and have ended, with their numbers of runs, and why some wait."""
    kinds: dict[str, list[Job]] = {"running": [], "waiting": [], "ended, to be collected": []}
    for job in jobs:
        state = states[job.id]
        kinds[list(kinds)[2 if state.has_ended else 0 if state.name in RUNNING else 1]].append(job)
    counts = [
        f"{plural(len(same), 'job')} {kind} ({plural(sum(len(job.keys) for job in same), 'run')})"
        for kind, same in kinds.items()
        if same
    ]
    reasons = {states[job.id].reason for job in kinds["waiting"]} - set(USUAL_REASONS)
    return (", ".join(counts) or "none") + (f"; Slurm: {', '.join(sorted(reasons))}" if reasons else "")


def last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]


def output_of(command: Sequence[str]) -> str:
    """Return the output of a command of Slurm. Raises InputError if it fails."""
    done = run_command(command)
    if done.returncode:
        raise InputError(f"slurm: {command[0]}: {last_line(done.stderr)}; jobs continue, try again later")
    return done.stdout


class NotInstalled(InputError):
    """Raised where this machine has no commands of Slurm."""


def run_command(
    command: Sequence[str], environment: Mapping[str, str] | None = None, script: str = ""
) -> "subprocess.CompletedProcess[str]":
    """Run a command of Slurm with a script as its input. Raises NotInstalled if there is none here."""
    options: Any = {"capture_output": True, "text": True, "check": False, "timeout": TIMEOUT}
    try:
        return subprocess.run(command, env={**os.environ, **(environment or {})}, input=script, **options)
    except FileNotFoundError:
        raise NotInstalled(f"engine slurm: no {command[0]} here; run this where you run sbatch") from None
    except subprocess.TimeoutExpired:
        raise InputError(
            f"slurm: {command[0]} did not answer in {TIMEOUT} s; jobs continue, try again later"
        ) from None
