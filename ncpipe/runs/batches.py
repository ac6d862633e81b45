"""Trains batches of runs into folders, several batches at a time where there are cores for it."""

import concurrent.futures
import functools
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import torch

from ncpipe.config.architectures.architecture import Architecture
from ncpipe.config.architectures.conv_net import ConvNetModel
from ncpipe.config.architectures.dufm import DufmModel
from ncpipe.config.architectures.mlp import MLPModel
from ncpipe.config.architectures.resnet import ResNetModel
from ncpipe.config.architectures.resnet_cifar import CifarResNetModel
from ncpipe.config.architectures.transformer import TransformerModel
from ncpipe.config.bounds import usable_cores
from ncpipe.config.specs import Compute, Run
from ncpipe.config.study import own_mistakes
from ncpipe.datasets.prepared import Prepared, read_prepared
from ncpipe.runs.fingerprint import RunFingerprint, check_code
from ncpipe.runs.heartbeat import HeartbeatWriter
from ncpipe.runs.run_folder import write_run
from ncpipe.runs.store import checkpoint_of, stored, write_beside
from ncpipe.runs.training_log import FINISHED, STOPPED, log_failures, log_time
from ncpipe.system.artifacts import PREPARED
from ncpipe.system.console import Progress, Unseen, say
from ncpipe.system.errors import InputError, NotEnoughMemory
from ncpipe.training.checkpoints import Checkpoints, epochs_done
from ncpipe.training.cost import LEVERS, bytes_per_run, check_memory
from ncpipe.training.device import DTYPES, free_bytes, is_out_of_memory, prepare_device
from ncpipe.training.loop import Stopped, train_batch
from ncpipe.training.session import Trained

MEMORY_SHARE = 0.7  # of what is free, for all runs that train at once

Batch = list[RunFingerprint]


def worker_count(compute: Compute, place: torch.device, wanted: int | None) -> int:
    """Batches that train at a time: as many as there are cores for, one on a GPU, unless `wanted` says."""
    if wanted is not None:
        return wanted
    if place.type != "cpu":
        return 1
    return max(1, usable_cores() // compute.threads)


def groups(fingerprints: Sequence[RunFingerprint]) -> list[Batch]:
    """Runs that can train together: of one shape, and after as many epochs."""
    found: dict[tuple[str, int], Batch] = {}
    for fingerprint in fingerprints:
        found.setdefault((fingerprint.batch_key(), epochs_done(checkpoint_of(fingerprint))), []).append(
            fingerprint
        )
    return list(found.values())


def parts_of_each(found: Sequence[Batch], workers: int) -> int:
    """Batches that a group is to be cut into at least: few groups alone would leave workers idle."""
    return workers if len(found) < 2 * workers else 1


def batches_that_fit(
    fingerprints: Batch, need: int, place: torch.device, workers: int, parts: int
) -> list[Batch]:
    """Runs that take `need` bytes each, in even batches of which `workers` fit into memory at a time.

    There are at least `parts` of them, if there are as many runs.
    """
    free = free_bytes(place)
    fit = max(1, int(MEMORY_SHARE * free / workers / need))
    if fit < len(fingerprints):
        say(
            f"train {fingerprints[0].run.name}: {fit} of {len(fingerprints)} runs in a batch, each takes "
            f"{need / 1e9:.1f} GB of the {free / 1e9:.1f} GB free"
        )
    size = -(-len(fingerprints) // max(parts, -(-len(fingerprints) // fit)))
    return [fingerprints[start : start + size] for start in range(0, len(fingerprints), size)]


def in_memory(fingerprints: Batch, place: torch.device, workers: int) -> list[Batch]:
    """Runs of one shape in as many batches as there are workers, and as many as memory asks for."""
    run, dtype = fingerprints[0].run, DTYPES[fingerprints[0].compute.precision]
    data = read_prepared(PREPARED / run.data)
    check_memory(run, data, place, dtype)
    if len(fingerprints) == 1:
        return [fingerprints]
    return batches_that_fit(
        fingerprints, bytes_per_run(run, data, place, dtype), place, workers, parts=workers
    )


def train_batches(
    batches: Sequence[Batch],
    workers: int,
    checkpoint_seconds: float,
    progress: Progress | Unseen,
    work_per_epoch: Callable[[RunFingerprint], float],
    keep_going: bool = False,
    stop: threading.Event | None = None,
) -> list[InputError]:
    """Train every batch, `workers` at a time, and put the runs' folders into the store.

    Returns what went wrong, if it is to keep going; else the first thing that goes wrong is raised, after
    the other batches in training have been saved in checkpoints. So are they on Ctrl-C, and once `stop` is
    set, with Stopped.
    """
    stop = stop or threading.Event()
    errors = []

    def work(batch: Batch) -> None:
        todo = batch
        while todo:
            with log_failures([fingerprint.run for fingerprint in todo], Stopped), own_mistakes():
                todo = _train_some(todo, checkpoint_seconds, progress, work_per_epoch, stop)

    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        try:
            futures = [pool.submit(work, batch) for batch in batches]
            for future in concurrent.futures.as_completed(futures):
                try:
                    future.result()
                except InputError as error:
                    if not keep_going:
                        raise
                    say(f"ncpipe: {error}")
                    errors.append(error)
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    return errors


def _train_some(
    fingerprints: Batch,
    checkpoint_seconds: float,
    progress: Progress | Unseen,
    work_per_epoch: Callable[[RunFingerprint], float],
    stop: threading.Event,
) -> Batch:
    """Train the runs, or half of them as often as the device runs out of memory; those that are left."""
    data = read_prepared(PREPARED / fingerprints[0].run.data)
    if data.checksum != fingerprints[0].data:
        raise InputError(f"{PREPARED / fingerprints[0].run.data}: made anew meanwhile; start it again")
    place = prepare_device(fingerprints[0].compute)  # each thread has its own settings
    say(f"train {_announcement(fingerprints, data, str(place))}")
    checkpoints = Checkpoints(
        [checkpoint_of(fingerprint) for fingerprint in fingerprints], checkpoint_seconds
    )
    start = progress.seconds()
    work = sum(work_per_epoch(fingerprint) for fingerprint in fingerprints)
    name, epochs, seen, heartbeat = (
        fingerprints[0].run.name,
        fingerprints[0].run.spec.epochs,
        None,
        HeartbeatWriter(fingerprints),
    )

    def on_epoch(epoch: int, loss: Callable[[], float]) -> None:
        nonlocal seen
        heartbeat.beat(epoch, progress.left())
        new = 0 if seen is None else max(epoch - seen, 0)  # line searches begin anew with each run
        progress.add(work * new, name, f"{epoch} of {epochs}", loss)
        seen = epoch

    runs, precision = [fingerprint.run for fingerprint in fingerprints], fingerprints[0].compute.precision
    results = None
    try:
        starts = starts_of(runs, data)
        results = train_batch(runs, data, place, precision, on_epoch, checkpoints, stop.is_set, starts)
    except Stopped:
        log_time(fingerprints, place.type, progress.seconds() - start, STOPPED)
        raise
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise  # else leave: the error holds the frame that holds the memory
    finally:
        heartbeat.stop()
    if results is None:
        if len(fingerprints) == 1:
            raise NotEnoughMemory(f"{runs[0].name}: one run does not fit on {place}; make {LEVERS} smaller")
        half = len(fingerprints) // 2
        say(f"train {runs[0].name}: out of memory on {place}, trying {half} at once")
        left = _train_some(fingerprints[:half], checkpoint_seconds, progress, work_per_epoch, stop)
        return left + fingerprints[half:]
    check_code(fingerprints[0].run.spec)
    for fingerprint, trained in zip(fingerprints, results, strict=True):
        write_beside(stored(fingerprint.key()), functools.partial(_write, trained, fingerprint, place.type))
        say(_outcome(trained))
    checkpoints.remove()
    progress.finish(name, len(fingerprints))
    log_time(fingerprints, place.type, progress.seconds() - start, FINISHED)
    return []


def _write(trained: Trained, fingerprint: RunFingerprint, device: str, folder: Path) -> None:
    write_run(folder, trained, fingerprint, device)


def starts_of(runs: Sequence[Run], data: Prepared) -> list[dict[str, torch.Tensor]] | None:
    """Weights that the runs start from; None where these are drawn."""
    model = runs[0].spec.model
    start = STARTS.get(type(model))  # none of a network of study.py
    if start is None or not model.starts_built:
        return None
    return [start(run, data) for run in runs]


def _construction(run: Run, data: Prepared) -> dict[str, torch.Tensor]:
    from ncpipe.theory.constructions.networks import WARM_START, constructed_state

    return constructed_state(run, data, WARM_START)


def _solution(run: Run, data: Prepared) -> dict[str, torch.Tensor]:
    from ncpipe.theory.dufm_runs import solution_state

    return solution_state(run)


# Weights that a run may start from in place of drawn ones.
STARTS: Mapping[type[Architecture], Callable[[Run, Prepared], dict[str, torch.Tensor]] | None] = (
    MappingProxyType(
        {
            ResNetModel: _construction,
            TransformerModel: _construction,
            MLPModel: None,
            CifarResNetModel: None,
            ConvNetModel: None,
            DufmModel: _solution,
        }
    )
)


def _announcement(fingerprints: Batch, data: Prepared, device: str) -> str:
    run, compute = fingerprints[0].run, fingerprints[0].compute
    batch = "full batch" if run.spec.batch_size == "full" else f"batches of {run.spec.batch_size}"
    mates = ", ".join(f"{s.run.experiment} seed {s.run.seed}" for s in fingerprints[1:])
    done = epochs_done(checkpoint_of(fingerprints[0]))
    return (
        f"{run.name}{f' together with {mates}' if mates else ''}: {run.spec.model.architecture} on "
        f"{device} ({compute.threads} {'thread' if compute.threads == 1 else 'threads'}, "
        f"{compute.precision}), {len(data.train)} samples, {batch}, {run.spec.epochs} epochs"
        f"{f', from the checkpoint after {done}' if done else ''}"
    )


def _outcome(trained: Trained) -> str:
    if trained.diverged_at is not None:
        return (
            f"  {trained.run.name}: diverged at epoch {trained.diverged_at}, kept with its last finite "
            "weights and counted as not converged"
        )
    end = trained.history[-1]
    said = f"  {trained.run.name}: loss {end.loss:.6g}, train error {end.train_error:.3g}"
    return said if math.isnan(end.test_error) else f"{said}, test error {end.test_error:.3g}"
