"""Train tasks in a worker, on any machine. It imports neither dvc nor typer.

A worker's current folder has the prepared data and, if the study has one, study.py. Finished runs go into
that folder's store.
"""

import threading
import traceback
from pathlib import Path

from ncpipe.config.records import read
from ncpipe.config.specs import AnyExperiment, Compute, Run
from ncpipe.config.study import load_study
from ncpipe.runs.batches import Batch, groups, parts_of_each, split_batch, train_batches, worker_count
from ncpipe.runs.engines.task import Task, TaskResult
from ncpipe.runs.fingerprint import RunFingerprint, fingerprint_of, fingerprints_of
from ncpipe.runs.store import has
from ncpipe.system.artifacts import PREPARED
from ncpipe.system.console import Progress, Unseen
from ncpipe.system.errors import InputError, NotEnoughMemory
from ncpipe.training.checkpoints import Stopped
from ncpipe.training.device import is_out_of_memory, prepare_device

LOOK = 0.5  # seconds between two looks at what other processes train


def fingerprints_of_task(task: Task) -> list[RunFingerprint]:
    """Return the fingerprints of a task's runs with the code and data of this machine.

    Raises InputError if code or data differ from the driver's.
    """
    load_study(Path())
    compute = Compute(**task.compute)
    runs = []
    for values in task.runs:
        spec = read(AnyExperiment, values["spec"], f"experiments.{values['experiment']}")
        runs.append(Run(**values | {"spec": spec}))
    readable = fingerprints_of(runs, compute)
    fingerprints = [fingerprint_of(each.run, each.data, compute) for each in readable]
    for fingerprint, key in zip(fingerprints, task.keys, strict=True):
        if fingerprint.data != task.data:
            raise InputError(f"{PREPARED / fingerprint.run.data}: differs from the data of the sweep")
        if fingerprint.key() != key:
            raise InputError(
                f"{fingerprint.run.name}: ncpipe's code differs between the worker and the sweep; "
                "install the same on both"
            )
    return fingerprints


def train_task(
    task: Task, stop: threading.Event | None = None, progress: Progress | Unseen | None = None
) -> TaskResult:
    """Train the runs that the store lacks, in batches that fit into the device's memory.

    Errors are reported in the result. Raises Stopped after `stop` is set and the checkpoints are written.
    """
    stop, left = stop or threading.Event(), list[RunFingerprint]()
    try:
        while left := [each for each in left or fingerprints_of_task(task) if not has(each.key())]:
            _train(left, task, stop, progress or Unseen())
            if not all(has(each.key()) for each in left) and stop.wait(LOOK):  # another process trains some
                raise Stopped
    except Stopped:
        raise
    except NotEnoughMemory as error:
        return _without_memory(task, str(error))
    except InputError as error:
        return TaskResult(task, "refused" if len(task.runs) == 1 else "failed", str(error))
    except Exception as error:
        reason = "".join(traceback.format_exception_only(error)).strip()
        return (
            _without_memory(task, reason) if is_out_of_memory(error) else TaskResult(task, "failed", reason)
        )
    return TaskResult(task, "done")


def _without_memory(task: Task, reason: str) -> TaskResult:
    """Return the result of a task that ran out of memory, which its halves may not; a single run has none."""
    return TaskResult(task, "memory" if len(task.runs) > 1 else "refused", reason)


def _train(
    fingerprints: list[RunFingerprint], task: Task, stop: threading.Event, progress: Progress | Unseen
) -> None:
    compute = fingerprints[0].compute
    device = prepare_device(compute)
    workers = worker_count(compute, device, task.workers)
    shapes = groups(fingerprints)
    parts = parts_of_each(shapes, workers, device)
    batches: list[Batch] = []
    for group in shapes:
        batches += split_batch(group, device, workers * task.shares, parts)[0]
    errors = train_batches(
        batches,
        workers,
        task.checkpoint_seconds,
        progress,
        lambda fingerprint: 1.0,
        keep_going=True,
        stop=stop,
    )
    if errors:
        raise next(iter(errors.values()))
