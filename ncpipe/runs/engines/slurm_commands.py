"""Call Slurm's commands to watch, count and cancel jobs. Needs no torch, for `ncpipe status`."""

import os
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ncpipe.runs.engines.arrays import Array, read_arrays
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


States = dict[str, dict[int, JobState]]  # by `Array.id` and the job's index


def array_states(arrays: Sequence[Array]) -> States:
    """Return the states of arrays' jobs, from the queue or, for jobs that left it, from the accounting.

    Raises InputError if Slurm does not answer.
    """
    if not arrays:
        return {}
    states: States = {array.id: {} for array in arrays}
    ids = {f"ncpipe-{array.name}": array.id for array in arrays}
    queue = output_of(["squeue", "--me", "--array", "--noheader", "--states=all", "--format=%i|%j|%T|%r"])
    for line in queue.splitlines():
        job_id, name, state, reason = [*line.strip().split("|"), "", "", ""][:4]
        index = job_id.rpartition("_")[2]
        if name in ids and index.isdecimal():
            states[ids[name]][int(index)] = JobState(state, reason)
    gone = [array for array in arrays if len(states[array.id]) < array.jobs]
    for row in _sacct(gone, "JobID,State"):
        number, _, task = row["JobID"].partition("_")
        if task.isdecimal():
            states.get(number, {}).setdefault(int(task), JobState(row["State"].split(" ")[0]))
    for array in gone:
        for job in range(array.jobs):
            states[array.id].setdefault(job, JobState(GONE))
    return states


def active_arrays() -> list[Array]:
    """Return the arrays of this folder that wait or run; all recorded ones if Slurm does not answer.

    None where there is no Slurm: claims alone keep other machines from training the same runs.
    """
    arrays = read_arrays()
    try:
        return _active(arrays)
    except NotInstalled:
        return []
    except InputError:
        return arrays


def check_no_jobs(keys: Collection[str]) -> None:
    """Raise InputError if jobs of this folder will train any of these runs."""
    for array in active_arrays():
        if not {*keys}.isdisjoint(array.keys):
            raise InputError(
                f"array {array.id} of Slurm trains these runs (ncpipe status); ncpipe sweep waits for it, "
                "ncpipe sweep --cancel ends it"
            )


def _sacct(arrays: Sequence[Array], columns: str) -> list[dict[str, str]]:
    """Return columns of the accounting; no rows if there is none, or it does not answer."""
    numbers = sorted({array.number for array in arrays if array.number})
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


def cancel(arrays: Sequence[Array]) -> tuple[int, str]:
    """Cancel arrays, whose jobs then save checkpoints, and remove their records.

    Returns the number of cancelled arrays, and a line about those that may still run, if there are any. If
    Slurm does not answer, raises InputError and keeps all records.
    """
    active, error = _active(arrays), ""
    if active:
        arguments = [array.number or f"--jobname=ncpipe-{array.name}" for array in active]
        done = run_command(["scancel", *arguments])
        if done.returncode:
            error = last_line(done.stderr) or f"exit code {done.returncode}"
        active = _active(arrays) if done.returncode else []
    for array in arrays:
        if array not in active:
            array.remove()
    if not active:
        return len(arrays), ""
    return len(arrays) - len(active), (
        f"{plural(len(active), 'array')} may still run (scancel: {error}); run ncpipe sweep --cancel again, "
        f"or scancel {' '.join(array.id for array in active)}"
    )


def _active(arrays: Sequence[Array]) -> list[Array]:
    """Return the arrays that have not ended."""
    states = array_states(arrays)
    return [array for array in arrays if not has_ended(array, states)]


def has_ended(array: Array, states: States) -> bool:
    """Return whether all jobs of an array have ended."""
    return all(state.has_ended for state in states[array.id].values())


def summary(states: States) -> str:
    """Return how many jobs run, wait and have ended, and why some wait."""
    jobs = [state for own in states.values() for state in own.values()]
    waiting = [job for job in jobs if not job.has_ended and job.name not in RUNNING]
    counts = {
        "running": sum(job.name in RUNNING for job in jobs),
        "waiting": len(waiting),
        "ended": sum(job.has_ended for job in jobs),
    }
    reasons = {job.reason for job in waiting} - set(USUAL_REASONS)
    line = ", ".join(f"{plural(count, 'job')} {kind}" for kind, count in counts.items() if count)
    return (line or "none") + (f"; Slurm: {', '.join(sorted(reasons))}" if reasons else "")


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
