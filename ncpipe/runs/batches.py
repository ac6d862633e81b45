"""Train batches of runs into the store, several batches at the same time if there are cores.

`ncpipe.runs.plan` decides on the batches; `ncpipe.runs.engines` starts this on other machines.
"""

import concurrent.futures
import functools
import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ncpipe.config.reading import Reading, at_start
from ncpipe.config.run import Compute
from ncpipe.config.study import study_errors
from ncpipe.datasets.prepared import Prepared, read_prepared
from ncpipe.runs.fingerprint import RunFingerprint, check_code
from ncpipe.runs.own_runs import train_elsewhere
from ncpipe.runs.pool import completed, process_count
from ncpipe.runs.results import store_results
from ncpipe.runs.run_claims import ClaimWriter, claimed
from ncpipe.runs.store import checkpoint_of, has
from ncpipe.runs.training_log import FINISHED, STOPPED, log_failures, log_time
from ncpipe.system.artifacts import PREPARED
from ncpipe.system.console import Progress, plural, say
from ncpipe.system.device_memory import free_bytes
from ncpipe.system.errors import InputError, NotEnoughMemory
from ncpipe.training.checkpoints import Checkpoints, Stopped, epochs_done
from ncpipe.training.cost import LEVERS, check_memory
from ncpipe.training.device import DTYPES, gpu_count, is_out_of_memory, prepare_device, take_gpu
from ncpipe.training.loop import starts_of, train_batch
from ncpipe.training.session import Trained

MEMORY_SHARE = 0.7  # of the free memory, for all runs that train at the same time
BATCHES_PER_GPU = 4  # at the same time, each on a stream of its own: one small batch leaves a GPU idle

Batch = list[RunFingerprint]


def worker_count(compute: Compute, device: torch.device, wanted: int | None) -> int:
    """Return how many batches train at the same time: `wanted`, or a few on each GPU, or cores / threads."""
    if device.type == "cpu":
        return process_count(wanted, compute.threads)
    return wanted or (BATCHES_PER_GPU * gpu_count(device) if device.type == "cuda" else 1)


def work_per_epoch(fingerprint: RunFingerprint) -> int:
    """Return layers x samples of a run; 1 of an own loop, of which nothing is known before it runs."""
    run = fingerprint.run
    return 1 if run.spec.training else run.depth * _samples(PREPARED / run.data, fingerprint.data)


@functools.lru_cache(maxsize=64)
def _samples(folder: Path, checksum: str) -> int:
    return len(read_prepared(folder).train)


def groups(fingerprints: Sequence[RunFingerprint]) -> list[Batch]:
    """Group runs that can train together: equal shape, and equal number of epochs done."""
    by_shape: dict[tuple[str, int], Batch] = {}
    for fingerprint in fingerprints:
        shape = fingerprint.batch_key(), epochs_done(checkpoint_of(fingerprint))
        by_shape.setdefault(shape, []).append(fingerprint)
    return list(by_shape.values())


def parts_of_each(batches: Sequence[Batch], workers: int, device: torch.device) -> int:
    """Return into how many parts to split each group at least, so that few groups leave no worker idle.

    On GPUs, so that none is left idle: one takes the runs of a group at once as fast as in parts.
    """
    if device.type == "cuda":
        workers = min(workers, gpu_count(device))
    return workers if len(batches) < 2 * workers else 1


def batches_that_fit(
    fingerprints: Batch, need: int, device: torch.device, workers: int, parts: int
) -> list[Batch]:
    """Split runs that need `need` bytes each into even batches, of which `workers` fit into memory together.

    Returns at least `parts` batches, but no empty ones. The workers share out the machine's GPUs.
    """
    free = free_bytes(device)
    sharing = -(-workers // gpu_count(device))
    fit = max(1, int(MEMORY_SHARE * free / sharing / need))
    if fit < len(fingerprints):
        say(
            f"train {fingerprints[0].run.name}: batches of {fit} of {len(fingerprints)} runs, because each "
            f"run needs {need / 1e9:.1f} GB and {free / 1e9:.1f} GB are free"
        )
    size = -(-len(fingerprints) // max(parts, -(-len(fingerprints) // fit)))
    return [fingerprints[start : start + size] for start in range(0, len(fingerprints), size)]


def split_batch(fingerprints: Batch, device: torch.device, workers: int, parts: int) -> list[Batch]:
    """Return `batches_that_fit` of runs of one shape.

    Raises NotEnoughMemory if one run takes more memory than is free.
    """
    run, dtype = fingerprints[0].run, DTYPES[fingerprints[0].compute.precision]
    if run.spec.training:  # of which nothing is known before it runs
        return [[fingerprint] for fingerprint in fingerprints]
    data = read_prepared(PREPARED / run.data)
    need = check_memory(run, data, device, dtype)
    return batches_that_fit(fingerprints, need, device, workers, parts)


def train_batches(
    batches: Sequence[Batch],
    workers: int,
    checkpoint_seconds: float,
    progress: Progress,
    keep_going: bool = False,
    stop: threading.Event | None = None,
) -> dict[str, InputError]:
    """Train every batch, `workers` at the same time, and put the runs' folders into the store.

    Runs that another process trains, or has trained by now, are left out. progress: by `work_per_epoch`.
    keep_going: whether to train the other batches after an error and return the errors, by the fingerprints
    of the runs. Otherwise the first error is raised, after the batches in training have written checkpoints.
    stop: when it is set, batches write checkpoints and Stopped is raised. Ctrl-C does the same.
    """
    stop = stop or threading.Event()
    if any(batch[0].run.spec.training for batch in batches):  # each takes a GPU for itself
        device = prepare_device(batches[0][0].compute)
        workers = min(workers, gpu_count(device)) if device.type != "cpu" else workers
    errors: dict[str, InputError] = {}
    trainer = _Trainer(checkpoint_seconds, progress, stop)
    numbers = itertools.count()

    def start() -> None:
        take_gpu(next(numbers), batches[0][0].compute)

    with concurrent.futures.ThreadPoolExecutor(workers, initializer=start) as pool:
        try:
            futures = {pool.submit(trainer.train, batch): batch for batch in batches}
            for future in completed(futures):
                try:
                    future.result()
                except InputError as error:
                    if not keep_going:
                        raise
                    if str(error) not in map(str, errors.values()):  # an edit of the code ends every batch
                        say(f"ncpipe: {error}")
                    errors |= {
                        fingerprint.key(): error
                        for fingerprint in futures[future]
                        if not has(fingerprint.key())
                    }
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    return errors


@dataclass(frozen=True)
class _Trainer:
    """Trains batches into the store; fields are arguments of `train_batches`."""

    checkpoint_seconds: float
    progress: Progress
    stop: threading.Event

    def train(self, batch: Batch) -> None:
        """Train the runs of a batch that no other process trains."""
        with claimed(batch) as claim:
            todo = [fingerprint for fingerprint in batch if fingerprint.key() in claim.claim.keys]
            while todo:
                with log_failures([fingerprint.run for fingerprint in todo], Stopped), study_errors():
                    todo = self._train_some(todo, claim)

    def _train_some(self, fingerprints: Batch, claim: ClaimWriter) -> Batch:
        """Train the runs, or half of them while the device runs out of memory; return those left to train."""
        first, run = fingerprints[0], fingerprints[0].run
        check_code(first, Reading())  # whoever edited the code wants no more runs of the code before
        if run.spec.training:
            train_elsewhere(first, self.checkpoint_seconds, self.progress, self.stop, claim)
            return []
        data = read_prepared(PREPARED / run.data)
        if data.checksum != first.data:
            raise InputError(f"{PREPARED / run.data}: changed while the command ran; start it again")
        device = prepare_device(first.compute)  # settings are per thread
        say(f"train {_announcement(fingerprints, data, str(device))}")
        files = [checkpoint_of(fingerprint) for fingerprint in fingerprints]
        checkpoints = Checkpoints(files, self.checkpoint_seconds, at_start().check)
        start = self.progress.seconds()
        results = None
        try:
            results = self._train_batch(fingerprints, data, device, checkpoints, claim)
        except Stopped:
            log_time(fingerprints, device.type, self.progress.seconds() - start, STOPPED)
            raise
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise  # otherwise leave the block, because the error keeps the frame's memory alive
        if results is None:
            if len(fingerprints) == 1:
                raise NotEnoughMemory(f"{run.name}: one run does not fit on {device}; make {LEVERS} smaller")
            half = len(fingerprints) // 2
            say(f"train {run.name}: out of memory on {device}, retrying with batches of {half}")
            return self._train_some(fingerprints[:half], claim) + fingerprints[half:]
        for line in store_results(fingerprints, results, device, checkpoints):
            say(line)
        self.progress.finish(run.name, len(fingerprints))
        log_time(fingerprints, device.type, self.progress.seconds() - start, FINISHED)
        return []

    def _train_batch(
        self,
        fingerprints: Batch,
        data: Prepared,
        device: torch.device,
        checkpoints: Checkpoints,
        claim: ClaimWriter,
    ) -> list[Trained]:
        """Train runs side by side, and report each epoch to the claim and to the progress."""
        runs = [fingerprint.run for fingerprint in fingerprints]
        work = sum(map(work_per_epoch, fingerprints))
        last_epoch = None

        def on_epoch(epoch: int, loss: Callable[[], float]) -> None:
            nonlocal last_epoch
            claim.beat(epoch, self.progress.left())
            epochs = 0 if last_epoch is None else epoch - last_epoch
            self.progress.add(work * epochs, runs[0].name, f"{epoch} of {runs[0].spec.epochs}", loss)
            last_epoch = epoch

        starts, precision = starts_of(runs, data), fingerprints[0].compute.precision
        return train_batch(runs, data, device, precision, on_epoch, checkpoints, self.stop.is_set, starts)


def _announcement(fingerprints: Batch, data: Prepared, device: str) -> str:
    run, compute = fingerprints[0].run, fingerprints[0].compute
    batch = "full batch" if run.spec.batch_size == "full" else f"batches of {run.spec.batch_size}"
    others = ", ".join(f"{other.run.experiment} seed {other.run.seed}" for other in fingerprints[1:])
    done = epochs_done(checkpoint_of(fingerprints[0]))
    return (
        f"{run.name}{f' together with {others}' if others else ''}: {run.spec.model.architecture} on "
        f"{device} ({plural(compute.threads, 'thread')}, {compute.precision}), {len(data.train)} samples, "
        f"{batch}, {run.spec.epochs} epochs{f', from the checkpoint after {done}' if done else ''}"
    )
