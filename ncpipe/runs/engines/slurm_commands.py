"""Call Slurm's commands to submit, watch and cancel jobs. Needs no torch, for `ncpipe status`."""

import os
import shlex
import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from ncpipe.runs.engines.arrays import WORKDIR, Array, read_arrays
from ncpipe.runs.engines.options import Slurm
from ncpipe.system.artifacts import JOBS
from ncpipe.system.console import plural
from ncpipe.system.errors import InputError, cut

TIMEOUT = 300  # seconds that a command of Slurm may take
RUNNING = ("RUNNING", "COMPLETING")
GONE = "GONE"  # our name for a job that has left the queue
ENDED = (
    GONE, "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "REVOKED", "TIMEOUT",
)  # fmt: skip
# Reasons for waiting that need no attention.
USUAL_REASONS = ("", "None", "Priority", "Resources", "JobArrayTaskLimit", "Dependency", "BeginTime")
REQUEUE = 75  # exit code of a worker: to be queued again
MODULE = "ncpipe.runs.engines.slurm_job"
# sbatch's message if a job would wait until nodes are repaired, which is no mistake in its request.
NODES_DOWN = "node not available"
# The shell, not the worker, requeues the job, because `python` may lead into a container, without scontrol.
# `wait` returns at each signal, so the shell waits in a loop until the worker has ended; after a `set -e` of
# `setup` it would end at the first one.
SCRIPT = """#!/bin/bash
{setup}
set +e
{command} &
worker=$!
trap 'kill -USR2 $worker' USR2
trap 'kill -TERM $worker' TERM
while kill -0 $worker 2>/dev/null; do wait $worker; done
wait $worker
code=$?
if [ $code = {requeue} ]; then
    scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID" && exit
fi
exit $code
"""

States = dict[str, dict[int, tuple[str, str]]]  # by `Array.id` and index: a job's state and why it waits


def array_states(arrays: Sequence[Array]) -> States:
    """Return the states of arrays' jobs, GONE if they have left the queue.

    Raises InputError if Slurm does not answer.
    """
    if not arrays:
        return {}
    states: States = {array.id: dict.fromkeys(range(array.jobs), (GONE, "")) for array in arrays}
    ids = {f"ncpipe-{array.name}": array.id for array in arrays}
    options = ["--me", "--array", "--noheader", "--states=all", "--format=%i|%j|%T|%r"]
    for cluster in dict.fromkeys(map(_on_cluster, arrays)):
        queue = run_command(["squeue", *cluster, *options])
        if queue.returncode:
            raise InputError(f"slurm: squeue: {last_line(queue.stderr)}; jobs continue, try again later")
        for line in queue.stdout.splitlines():
            job_id, name, state, reason = [*line.strip().split("|"), "", "", ""][:4]
            index = job_id.rpartition("_")[2]
            if name in ids and index.isdecimal():
                states[ids[name]][int(index)] = state, reason
    return states


def _on_cluster(array: Array) -> tuple[str, ...]:
    """Return the option that names an array's cluster to Slurm's commands."""
    return (f"--clusters={array.cluster}",) if array.cluster else ()


def has_ended(array: Array, states: States) -> bool:
    """Return whether all jobs of an array have ended."""
    return all(state in ENDED for state, _ in states[array.id].values())


def summary(states: States) -> str:
    """Return how many jobs run, wait and have ended, and why some wait."""
    jobs = [job for of_array in states.values() for job in of_array.values()]
    running, ended = (sum(state in kind for state, _ in jobs) for kind in (RUNNING, ENDED))
    counts = {"running": running, "waiting": len(jobs) - running - ended, "ended": ended}
    reasons = {reason for state, reason in jobs if state not in (*RUNNING, *ENDED)} - set(USUAL_REASONS)
    line = ", ".join(f"{plural(count, 'job')} {kind}" for kind, count in counts.items() if count)
    return (line or "none") + (f"; Slurm: {', '.join(sorted(reasons))}" if reasons else "")


def active_arrays() -> list[Array]:
    """Return the arrays of this folder that wait or run; all recorded ones if Slurm does not answer.

    None where there is no Slurm: claims alone keep other machines from training the same runs.
    """
    arrays = read_arrays()
    try:
        return _active_arrays(arrays)
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


def cancel(arrays: Sequence[Array]) -> tuple[int, str]:
    """Cancel arrays, whose jobs then save checkpoints, and remove their records.

    Returns the number of cancelled arrays, and a line about those that may still run, if there are any. If
    Slurm does not answer, raises InputError and keeps all records.
    """
    active, error = list[Array](), ""
    for array in _active_arrays(arrays):
        result = run_command(_cancelling(array))
        if result.returncode:
            error = last_line(result.stderr) or f"exit code {result.returncode}"
            active += _active_arrays([array])
    for array in arrays:
        if array not in active:
            array.remove()
    if not active:
        return len(arrays), ""
    return len(arrays) - len(active), (
        f"{plural(len(active), 'array')} may still run (scancel: {error}); run ncpipe sweep --cancel again, "
        f"or {' && '.join(shlex.join(_cancelling(array)) for array in active)}"
    )


def _cancelling(array: Array) -> list[str]:
    """Return the command that cancels an array, by its name, which it has before its number is known."""
    return ["scancel", *_on_cluster(array), f"--jobname=ncpipe-{array.name}"]


def _active_arrays(arrays: Sequence[Array]) -> list[Array]:
    """Return the arrays that have not ended."""
    states = array_states(arrays)
    return [array for array in arrays if not has_ended(array, states)]


def submit(array: str, count: int, options: Slurm) -> tuple[str, str]:
    """Submit an array of `count` jobs; return its number, and its cluster if sbatch chose or was given one.

    Raises InputError if Slurm refuses.
    """
    done = run_command(submission(array, count, options), batch_script(array, options))
    if done.returncode:
        raise InputError(f"slurm: sbatch refused the jobs ({last_line(done.stderr)}); see engine.yaml")
    number, _, cluster = last_line(done.stdout).partition(";")
    return number, cluster


def check_submission(options: Slurm) -> None:
    """Raise InputError if Slurm would refuse jobs with these options."""
    command = [*submission("check", options.array, options), "--test-only"]
    done = run_command(command, batch_script("check", options))
    message = last_line(done.stderr)
    if done.returncode and NODES_DOWN not in message.lower():
        reason = message.removeprefix("allocation failure: ").removeprefix("sbatch: error: ")
        shown = " ".join(word for word in command[2:] if not word.startswith(("--output", "--job-name")))
        raise InputError(
            f"slurm: sbatch would refuse the jobs: {reason}; see engine.yaml ({cut(shown, 160)})"
        )


def submission(array: str, count: int, options: Slurm) -> list[str]:
    """Return the command that submits an array of `count` jobs; it reads the batch script as its input.

    On the command line these options override variables such as SBATCH_PARTITION. `--requeue` overrides the
    site's `JobRequeue=0`, and a `--no-requeue` in engine.yaml overrides `--requeue`.
    """
    values = {
        "job-name": f"ncpipe-{array}",
        "output": f"{JOBS / array}/%a.log",
        "open-mode": "append",
        "array": f"0-{count - 1}%{options.at_once}",
        "signal": f"B:USR2@{options.signal_seconds}",
        "time": options.time,
        "nodes": "1",
        "ntasks": "1",
        "cpus-per-task": str(options.cpus),
        "mem": options.mem,
        "gpus-per-node": str(options.gpus) if options.gpus else None,
        "gres": options.gres,
        "partition": options.partition,
        "account": options.account,
        "qos": options.qos,
        "constraint": options.constraint,
    }
    words = [f"--{name}={value}" for name, value in values.items() if value is not None]
    return ["sbatch", "--parsable", *words, "--requeue", *options.sbatch]


def batch_script(array: str, options: Slurm) -> str:
    """Return the script of an array, which starts in the sweep's folder.

    The worker runs in the folder with the array's copy of the code; `python -m` imports from there.
    """
    folder, python = Path.cwd() / JOBS / array, options.python or sys.executable
    if os.sep in python:
        python = os.path.abspath(os.path.expanduser(python))
    change_folder = ["sh", "-c", 'cd "$0" && exec "$@"', str(folder / WORKDIR)]
    command = shlex.join([*change_folder, python, "-m", MODULE, str(folder)])
    return SCRIPT.format(setup="\n".join(options.setup), command=command, requeue=REQUEUE)


def last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]


class NotInstalled(InputError):
    """Raised where this machine has no commands of Slurm."""


def run_command(command: Sequence[str], script: str = "") -> "subprocess.CompletedProcess[str]":
    """Run a command of Slurm with a script as its input. Raises NotInstalled if there is none here."""
    options: Any = {"capture_output": True, "text": True, "check": False, "timeout": TIMEOUT}
    try:
        return subprocess.run(command, input=script, **options)
    except FileNotFoundError:
        raise NotInstalled(f"engine slurm: no {command[0]} here; run this where you run sbatch") from None
    except subprocess.TimeoutExpired:
        raise InputError(
            f"slurm: {command[0]} did not answer in {TIMEOUT} s; jobs continue, try again later"
        ) from None
