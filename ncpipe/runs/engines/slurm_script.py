"""Check and submit job arrays of Slurm, with their batch script and their options of sbatch."""

import math
import os
import shlex
import sys
from pathlib import Path

from ncpipe.runs.engines.arrays import WORKDIR
from ncpipe.runs.engines.options import Slurm, minutes_of
from ncpipe.runs.engines.slurm_commands import last_line, run_command
from ncpipe.runs.engines.slurm_job import REQUEUE
from ncpipe.system.artifacts import JOBS
from ncpipe.system.errors import InputError, cut

MODULE = "ncpipe.runs.engines.slurm_job"
# sbatch's message if a job would wait until nodes are repaired, which is no mistake in its request.
NODES_DOWN = "node not available"
# The shell, not the worker, requeues the job, because `python` may lead into a container, without scontrol.
# `wait` returns at each signal, so the shell waits in a loop until the worker has ended.
SCRIPT = """#!/bin/bash
{setup}
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


def submit(array: str, count: int, options: Slurm) -> str:
    """Submit an array of `count` jobs and return its number in Slurm. Raises InputError if Slurm refuses."""
    done = run_command(submission(array, count, options), script=batch_script(array, options))
    if done.returncode:
        raise InputError(f"slurm: sbatch refused the jobs ({last_line(done.stderr)}); see engine.yaml")
    return last_line(done.stdout).partition(";")[0]  # number;cluster


def submission(array: str, count: int, options: Slurm) -> list[str]:
    """Return the command that submits an array of `count` jobs; it reads the batch script as its input."""
    return ["sbatch", "--parsable", *sbatch_options(array, count, options)]


def check_submission(options: Slurm) -> None:
    """Raise InputError if Slurm would refuse jobs with these options, or never start them."""
    arguments = sbatch_options("check", options.array, options)
    done = run_command(["sbatch", "--test-only", *arguments], script=batch_script("check", options))
    message = last_line(done.stderr)
    if done.returncode and NODES_DOWN not in message.lower():
        reason = message.removeprefix("allocation failure: ").removeprefix("sbatch: error: ")
        shown = " ".join(each for each in arguments if not each.startswith(("--output", "--job-name")))
        raise InputError(
            f"slurm: sbatch would refuse the jobs: {reason}; see engine.yaml ({cut(shown, 160)})"
        )
    limit = partition_limit(options.partition)
    if limit is not None and options.limit > limit[1]:
        raise InputError(
            f"slurm.time: {options.limit:g} minutes, but the partition {limit[0]} allows {limit[1]:g}, so "
            "the jobs would never start; make it shorter"
        )


def partition_limit(partition: str | None) -> tuple[str, float] | None:
    """Return a job's partition with the longest time limit, and that limit in minutes; None if unknown.

    partition: names with commas, as for sbatch; None for the default one, which sinfo marks by `*`.
    """
    done = run_command(["sinfo", "--noheader", "--format=%R|%P|%l"])
    limits = []
    names = partition.split(",") if partition else None
    for line in done.stdout.splitlines():
        name, marked, limit = [*line.split("|"), "", ""][:3]
        if marked.endswith("*") if names is None else name in names:
            try:
                limits.append((name, minutes_of(limit.strip())))
            except ValueError:  # n/a
                return None
    return max(limits, key=lambda named: named[1], default=None)


def batch_script(array: str, options: Slurm) -> str:
    """Return the script of an array, which starts in the sweep's folder.

    The worker runs in the folder with the array's copy of the code; `python -m` imports from there.
    """
    folder, python = Path.cwd() / JOBS / array, options.python or sys.executable
    if os.sep in python:
        python = os.path.abspath(python)
    change_folder = ["sh", "-c", 'cd "$0" && exec "$@"', str(folder / WORKDIR)]
    command = shlex.join([*change_folder, python, "-m", MODULE, str(folder)])
    return SCRIPT.format(setup="\n".join(options.setup), command=command, requeue=REQUEUE)


def sbatch_options(array: str, count: int, options: Slurm) -> list[str]:
    """Return the options of sbatch for an array of `count` jobs.

    On the command line these options override variables such as SBATCH_PARTITION. `--requeue` overrides the
    site's `JobRequeue=0`, and a `--no-requeue` in engine.yaml overrides `--requeue`.
    """
    limit = "unlimited" if math.isinf(options.limit) else _clock(round(60 * options.limit))
    values = {
        "job-name": f"ncpipe-{array}",
        "output": f"{JOBS / array}/%a.log",
        "open-mode": "append",
        "array": f"0-{count - 1}%{options.at_once}",
        "signal": f"B:USR2@{options.signal_seconds}",
        "time": limit,
        "nodes": "1",
        "ntasks": "1",
        "cpus-per-task": str(options.cpus),
        "mem": None if options.megabytes is None else f"{options.megabytes}M",
        "gpus-per-node": str(options.gpus) if options.gpus else None,
        "gres": options.gres,
        "partition": options.partition,
        "account": options.account,
        "qos": options.qos,
        "constraint": options.constraint,
    }
    return [
        *(f"--{name}={value}" for name, value in values.items() if value is not None),
        "--requeue",
        *options.sbatch,
    ]


def _clock(seconds: int) -> str:
    """Return a time as hours:minutes:seconds."""
    return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
