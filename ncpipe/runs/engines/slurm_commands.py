"""Slurm's commands: states, submission, cancelling, accounting. Needs no torch, for `ncpipe status`."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ncpipe.runs.engines.jobs import Job
from ncpipe.runs.engines.options import minutes_of
from ncpipe.system.errors import InputError, cut

PATIENCE = 300  # seconds that a command of Slurm's may take
OVER = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED",
    "REVOKED", "TIMEOUT",
}  # fmt: skip
GONE = "GONE"  # neither in the queue nor in the accounting
RUNNING = ("RUNNING", "COMPLETING")
USUAL = ("", "None", "Priority", "Resources", "JobArrayTaskLimit", "Dependency", "BeginTime")  # to wait
# A job would wait until somebody takes care of the nodes, which is no mistake in what it asks for.
FOR_NOW = "node not available"
USAGE = "JobID,State,ElapsedRaw,AllocCPUS,AllocTRES,MaxRSS,Submit,Start"


@dataclass(frozen=True)
class JobState:
    """Slurm's name of a job's state, GONE where it knows none, and why the job waits."""

    name: str
    reason: str = ""

    @property
    def is_over(self) -> bool:
        return self.name in (GONE, *OVER)


@dataclass(frozen=True)
class Usage:
    """What a job took, all its starts added up.

    cores, gpus: that it had. seconds: that it ran. waited: seconds in the queue. memory_used, memory_asked:
    megabytes, None where nobody says. requeued: how often it was queued again.
    """

    cores: int
    gpus: int
    seconds: float
    waited: float | None
    memory_used: float | None
    memory_asked: float | None
    requeued: int


def job_states(jobs: Sequence[Job]) -> dict[str, JobState]:
    """Return the states of jobs by `Job.id`, from the queue and, for those that left it, from the accounting.

    InputError if Slurm does not answer.
    """
    if not jobs:
        return {}
    names = {(f"ncpipe-{job.array}", job.index): job for job in jobs}
    states: dict[str, JobState] = {}
    queue = answer(["squeue", "--me", "--array", "--noheader", "--states=all", "--format=%i|%j|%T|%r"])
    for line in queue.splitlines():
        job_id, name, state, reason = [*line.strip().split("|"), "", "", ""][:4]
        index = job_id.rpartition("_")[2]
        if index.isdecimal() and (job := names.get((name, int(index)))) is not None:
            states[job.id] = JobState(state, reason)
    gone = [job for job in jobs if job.id not in states]
    known = _accounted(gone) if gone else {}
    return states | {job.id: known.get(job.id, JobState(GONE)) for job in gone}


def _accounted(jobs: Sequence[Job]) -> dict[str, JobState]:
    """Return the states of jobs that sacct knows; none where there is no accounting."""
    found = {}
    for row in _sacct(jobs, "JobID,State"):
        if "." not in row["JobID"]:
            found[row["JobID"]] = JobState(row["State"].split(" ")[0])  # CANCELLED by 1000
    return found


def usages(jobs: Sequence[Job]) -> dict[str, Usage]:
    """Return what jobs took by `Job.id`, from sacct; none where there is no accounting."""
    rows: dict[str, list[dict[str, str]]] = {}
    for row in _sacct(jobs, USAGE):
        rows.setdefault(row["JobID"].partition(".")[0], []).append(row)
    return {job_id: _usage(own) for job_id, own in rows.items()}


def _usage(rows: Sequence[Mapping[str, str]]) -> Usage:
    starts = [row for row in rows if "." not in row["JobID"]]
    tres = dict(each.partition("=")[::2] for each in starts[-1]["AllocTRES"].split(",") if each)
    used = [_megabytes(row["MaxRSS"]) for row in rows if row["MaxRSS"]]
    waits = [int(row["Start"]) - int(row["Submit"]) for row in starts if row["Start"].isdecimal()]
    return Usage(
        cores=int(starts[-1]["AllocCPUS"] or 0),
        gpus=int(tres.get("gres/gpu", 0)),
        seconds=float(sum(int(row["ElapsedRaw"] or 0) for row in starts)),
        waited=float(sum(max(0, wait) for wait in waits)),
        memory_used=max(used, default=None),
        memory_asked=_megabytes(tres["mem"]) if "mem" in tres else None,
        requeued=len(starts) - 1,
    )


def _megabytes(text: str) -> float:
    """Read an amount of sacct's, 1.50G or 1234K; without a unit it is bytes."""
    unit = {"K": 2**-10, "M": 1.0, "G": 2.0**10, "T": 2.0**20}.get(text[-1:])
    return float(text) / 2**20 if unit is None else float(text[:-1]) * unit


def _sacct(jobs: Sequence[Job], columns: str) -> list[dict[str, str]]:
    """Ask the accounting; no rows where there is none, or none that answers."""
    numbers = sorted({job.number for job in jobs if job.number})
    if not numbers:
        return []
    command = ["sacct", "--noheader", "--parsable2", "--array", "--duplicates", f"--format={columns}"]
    try:
        done = run([*command, f"--jobs={','.join(numbers)}"], {"SLURM_TIME_FORMAT": "%s"})
    except InputError:
        return []
    names = columns.split(",")
    rows = [dict(zip(names, line.split("|"), strict=False)) for line in done.stdout.splitlines()]
    return [row for row in rows if len(row) == len(names)] if not done.returncode else []


def submit(arguments: Sequence[str], script: str) -> str:
    """Submit a script and return its number. InputError, in one line, if Slurm refuses."""
    done = run(["sbatch", "--parsable", *arguments], script=script)
    if done.returncode:
        raise InputError(f"slurm: sbatch refuses ({last_line(done.stderr)}); see engine.yaml")
    return last_line(done.stdout).partition(";")[0]  # number;cluster


def check_submission(arguments: Sequence[str], script: str, partition: str | None, minutes: float) -> None:
    """Raise InputError, in one line, if Slurm would refuse these jobs, or would let them wait for ever."""
    done = run(["sbatch", "--test-only", *arguments], script=script)
    said = last_line(done.stderr)
    if done.returncode and FOR_NOW not in said.lower():
        why = said.removeprefix("allocation failure: ").removeprefix("sbatch: error: ")
        asked = " ".join(each for each in arguments if not each.startswith(("--output", "--job-name")))
        raise InputError(f"slurm: sbatch would refuse the jobs: {why}; see engine.yaml ({cut(asked, 160)})")
    limit = partition_limit(partition)
    if limit is not None and minutes > limit[1]:
        raise InputError(
            f"slurm.time: {minutes:g} minutes, and the partition {limit[0]} allows {limit[1]:g}; such jobs "
            "would wait for ever: make it smaller"
        )


def partition_limit(partition: str | None) -> tuple[str, float] | None:
    """Return the largest time limit, in minutes, of the partitions of a job; None if Slurm tells none."""
    done = run(["sinfo", "--noheader", "--format=%R|%P|%l"])
    found = []
    wanted = partition.split(",") if partition else None
    for line in done.stdout.splitlines():
        name, marked, limit = [*line.split("|"), "", ""][:3]
        if marked.endswith("*") if wanted is None else name in wanted:
            try:
                found.append((name, minutes_of(limit.strip())))
            except ValueError:  # n/a
                return None
    return max(found, key=lambda each: each[1], default=None)


def cancel(jobs: Sequence[Job]) -> tuple[list[Job], str]:
    """End jobs; what trains there saves its checkpoints. Return those that may still run, and why.

    The others are forgotten. InputError if Slurm does not answer; nothing is forgotten then.
    """
    states = job_states(jobs)
    going = [job for job in jobs if not states[job.id].is_over]
    said = ""
    if going:
        named = [job.id if job.number else f"--jobname=ncpipe-{job.array}" for job in going]
        done = run(["scancel", *dict.fromkeys(named)])
        if done.returncode:
            said = last_line(done.stderr) or f"exit code {done.returncode}"
            states = job_states(jobs)
            going = [job for job in jobs if not states[job.id].is_over]
        else:
            going = []
    left = {job.id for job in going}
    for job in jobs:
        if job.id not in left:
            job.forget()
    return going, said


def still_running(jobs: Sequence[Job], why: str) -> str:
    """Return a line on jobs that were to be cancelled, and may still run."""
    names = sorted({job.number or f"ncpipe-{job.array}" for job in jobs})
    return (
        f"{len(jobs)} jobs may still run (scancel: {why}); they stay recorded. Run ncpipe sweep "
        f"--cancel again, or scancel {' '.join(names)}"
    )


def summary(jobs: Sequence[Job], states: Mapping[str, JobState]) -> str:
    """Return how many jobs run, wait and have ended, with how many runs, and why some wait."""
    kinds: dict[str, list[Job]] = {"running": [], "waiting": [], "ended, to be collected": []}
    for job in jobs:
        state = states[job.id]
        kinds[list(kinds)[2 if state.is_over else 0 if state.name in RUNNING else 1]].append(job)
    counted = [
        f"{len(some)} {'job' if len(some) == 1 else 'jobs'} {kind} ({sum(len(j.keys) for j in some)} runs)"
        for kind, some in kinds.items()
        if some
    ]
    why = {states[job.id].reason for job in kinds["waiting"]} - set(USUAL)
    return (", ".join(counted) or "none") + (f"; Slurm: {', '.join(sorted(why))}" if why else "")


def last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]


def answer(command: Sequence[str]) -> str:
    """Return what a command of Slurm's prints. InputError if it fails."""
    done = run(command)
    if done.returncode:
        raise InputError(f"slurm: {command[0]}: {last_line(done.stderr)}; its jobs go on, try again later")
    return done.stdout


def run(
    command: Sequence[str], environment: Mapping[str, str] | None = None, script: str = ""
) -> "subprocess.CompletedProcess[str]":
    """Run a command of Slurm's, with a script on its standard input. InputError if there is none here."""
    options: Any = {"capture_output": True, "text": True, "check": False, "timeout": PATIENCE}
    try:
        return subprocess.run(command, env={**os.environ, **(environment or {})}, input=script, **options)
    except FileNotFoundError:
        raise InputError(f"engine slurm: no {command[0]} here; run this where you run sbatch") from None
    except subprocess.TimeoutExpired:
        raise InputError(f"slurm: {command[0]} does not answer; its jobs go on, try again later") from None
