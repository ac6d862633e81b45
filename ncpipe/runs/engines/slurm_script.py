"""Write the batch script of a job array and the options of sbatch (`ncpipe.runs.engines.slurm` submits)."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from ncpipe.runs.engines.options import Slurm
from ncpipe.runs.store_layout import store_folder
from ncpipe.system.artifacts import JOBS

MODULE = "ncpipe.runs.engines.slurm_worker"
# The shell, not the worker, requeues the job, because a container has no scontrol. `wait` returns at each
# signal, so the shell waits in a loop until the worker has ended.
SCRIPT = """#!/bin/bash
{setup}
job={folder}/$SLURM_ARRAY_TASK_ID
rm -f "$job.refused" "$job.requeue"
{command} "$job" &
worker=$!
trap 'kill -USR2 $worker' USR2
trap 'kill -TERM $worker' TERM
while kill -0 $worker 2>/dev/null; do wait $worker; done
wait $worker
code=$?
if [ -e "$job.requeue" ]; then
    rm -f "$job.requeue"
    scontrol requeue "$SLURM_JOB_ID" 2>"$job.refused"
    exit
fi
exit $code
"""


def batch_script(array: str, options: Slurm) -> str:
    """Return the script of an array. It runs in the folder from which it is submitted."""
    command = shlex.join([*container_command(options), *python_command(options)])
    return SCRIPT.format(setup="\n".join(options.setup), folder=JOBS / array, command=command)


def python_command(options: Slurm) -> list[str]:
    """Return the worker's command without its argument, the path of the job's files."""
    default = sys.executable if options.container is None else "python3"
    return [options.python or default, "-m", MODULE]


def container_command(options: Slurm) -> list[str]:
    """Return the prefix that runs a command in the container, with the sweep's folder and store mounted."""
    if options.container is None:
        return []
    here, store = Path.cwd(), store_folder().absolute()
    folders = [str(here), *([] if store.is_relative_to(here) else [str(store)])]
    container = options.container
    if container.runtime == "apptainer":
        binds = [word for folder in folders for word in ("--bind", folder)]
        gpu = ["--nv"] if options.uses_gpu else []
        return ["apptainer", "exec", *gpu, *binds, "--pwd", str(here), *container.options, container.image]
    mounts = [word for folder in folders for word in ("--mount", f"{folder}:{folder}")]
    names = ("SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU", "SLURM_CPUS_ON_NODE", "SLURM_RESTART_COUNT")
    variables = [word for name in names for word in ("--env", name)]
    change_folder = ["sh", "-c", 'cd "$0" && exec "$@"', str(here)]
    return ["enroot", "start", *mounts, *variables, *container.options, container.image, *change_folder]


def sbatch_options(array: str, count: int, options: Slurm, wait_for: Sequence[str] = ()) -> list[str]:
    """Return the options of sbatch for an array of `count` jobs.

    wait_for: numbers of the arrays that have to end first.

    On the command line these options override variables such as SBATCH_PARTITION. `--requeue` overrides the
    site's `JobRequeue=0`, and a `--no-requeue` in engine.yaml overrides `--requeue`.
    """
    limit = round(60 * options.limit)
    values = {
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
    further = list(options.sbatch)
    if wait_for:
        dependencies = [line.partition("=")[2] for line in further if line.startswith("--dependency=")]
        dependencies.append(f"afterany:{':'.join(wait_for)}")
        further = [line for line in further if not line.startswith("--dependency=")]
        further.append(f"--dependency={','.join(dependencies)}")
    return [
        *(f"--{name}={value}" for name, value in values.items() if value is not None),
        "--requeue",
        *further,
    ]
