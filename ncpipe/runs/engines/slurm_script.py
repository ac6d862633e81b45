"""The batch script of a job array, and the options with which it is submitted."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from ncpipe.runs.engines.options import Slurm
from ncpipe.runs.store_layout import store_folder
from ncpipe.system.artifacts import JOBS

MODULE = "ncpipe.runs.engines.slurm_worker"
# The shell stays while the worker runs: a container has no scontrol, so it is the shell that queues the job
# again. `wait` returns at each signal, so the shell waits until the worker has really ended.
SCRIPT = """#!/bin/bash
{setup}
job={folder}/$SLURM_ARRAY_TASK_ID
rm -f "$job.refused" "$job.again"
{command} "$job" &
worker=$!
trap 'kill -USR2 $worker' USR2
trap 'kill -TERM $worker' TERM
while kill -0 $worker 2>/dev/null; do wait $worker; done
wait $worker
code=$?
if [ -e "$job.again" ]; then
    rm -f "$job.again"
    scontrol requeue "$SLURM_JOB_ID" 2>"$job.refused"
    exit
fi
exit $code
"""


def batch_script(array: str, options: Slurm) -> str:
    """Return the script. It runs in the folder of the sweep, from which it was submitted."""
    command = shlex.join([*container_command(options), *python_command(options)])
    return SCRIPT.format(setup="\n".join(options.setup), folder=JOBS / array, command=command)


def python_command(options: Slurm) -> list[str]:
    """Return the worker's command, less the place of its job's files."""
    default = sys.executable if options.container is None else "python3"
    return [options.python or default, "-m", MODULE]


def container_command(options: Slurm) -> list[str]:
    """Return the command that runs another one in the container, with the sweep's folder and the store."""
    if options.container is None:
        return []
    here, store = Path.cwd(), store_folder().absolute()
    folders = [str(here), *([] if store.is_relative_to(here) else [str(store)])]
    own = options.container
    uses_gpu = bool(options.gpus) or "gpu" in (options.gres or "")
    if own.runtime == "apptainer":
        binds = [word for folder in folders for word in ("--bind", folder)]
        gpu = ["--nv"] if uses_gpu else []
        return ["apptainer", "exec", *gpu, *binds, "--pwd", str(here), *own.options, own.image]
    mounts = [word for folder in folders for word in ("--mount", f"{folder}:{folder}")]
    names = ("SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU", "SLURM_CPUS_ON_NODE", "SLURM_RESTART_COUNT")
    told = [word for name in names for word in ("--env", name)]
    enter = ["sh", "-c", 'cd "$0" && exec "$@"', str(here)]
    return ["enroot", "start", *mounts, *told, *own.options, own.image, *enter]


def sbatch_options(array: str, count: int, options: Slurm, before: Sequence[str] = ()) -> list[str]:
    """Return the options of sbatch for an array of so many tasks. before: arrays that have to end first.

    They stand on the command line, where they win over variables such as SBATCH_PARTITION. `--requeue` wins
    over `JobRequeue=0` of the site; a `--no-requeue` of the user's wins over that.
    """
    limit = round(60 * options.limit)
    given = {
        "job-name": f"ncpipe-{array}",
        "output": f"{JOBS / array}/%a.log",
        "open-mode": "append",
        "array": f"0-{count - 1}%{options.at_once}",
        "signal": f"B:USR2@{options.signal_seconds}",
        "time": f"{limit // 3600}:{limit // 60 % 60:02d}:{limit % 60:02d}",
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
    own = list(options.sbatch)
    if before:
        ended = f"afterany:{':'.join(before)}"
        further = [line.partition("=")[2] for line in own if line.startswith("--dependency=")]
        own = [line for line in own if not line.startswith("--dependency=")]
        own.append(f"--dependency={','.join([*further, ended])}")
    return [
        *(f"--{name}={value}" for name, value in given.items() if value is not None),
        "--requeue",
        *own,
    ]
