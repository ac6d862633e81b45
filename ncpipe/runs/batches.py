"""Train batches of runs into the store, several batches at the same time if there are cores.

`plan` decides on the batches; `ncpipe.runs.engines` starts this on other machines.
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
from ncpipe.runs.store import checkpoint_of, lacking, saved_epochs
from ncpipe.runs.training_log import FINISHED, STOPPED, failure_log, log_failure, log_time
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
BATCHES_PER_WORKER = 2  # of several jobs, so that few are idle while the last batches end
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


def plan(
    missing: Sequence[RunFingerprint],
    device: torch.device,
    workers: int,
    keep_going: bool,
    jobs: int | None = None,
) -> tuple[list[Batch], set[str]]:
    """Return batches that fit into memory, those with most work first so that workers end at similar times.

    And the fingerprints of runs that fail; unless keep_going, the first error is raised. jobs: processes that
    share these runs, if they are started together, each with as many workers.
    """
    planned, failed = list[Batch](), set[str]()
    shapes = groups(missing)
    parts = parts_of_each(shapes, workers, device)
    if jobs is not None:
        parts = -(-BATCHES_PER_WORKER * jobs * workers // max(1, len(shapes)))
    for group in shapes:
        try:
            with study_errors():
                planned += split_batch(group, device, workers, parts)
        except InputError as error:
            if not keep_going:
                raise
            say(f"ncpipe: {error}")
            log_failure(group, error)
            failed |= {fingerprint.key() for fingerprint in group}
    return sorted(planned, key=lambda batch: -work_of(batch)[1]), failed


def work_of(batch: Batch) -> tuple[int, int]:
    """Return the work of a batch that is done, by its checkpoints, and that is left."""
    done = sum(saved_epochs(fingerprint) * work_per_epoch(fingerprint) for fingerprint in batch)
    whole = sum(fingerprint.run.spec.epochs * work_per_epoch(fingerprint) for fingerprint in batch)
    return done, whole - done


def train_batches(
    batches: Sequence[Batch],
    workers: int,
    checkpoint_seconds: float,
    progress: Progress,
    keep_going: bool = False,
    stop: threading.Event | None = None,
) -> set[str]:
    """Train every batch, `workers` at the same time, and put the runs' folders into the store.

    Runs that another process trains, or has trained by now, are left out. progress: by `work_per_epoch`.
    keep_going: whether to print an error, train the other batches and return the fingerprints of the runs
    that failed. Otherwise the first error is raised, after the batches in training have written checkpoints.
    stop: when it is set, batches write checkpoints and Stopped is raised. Ctrl-C does the same.
    """
    stop = stop or threading.Event()
    if any(batch[0].run.spec.training for batch in batches):  # each takes a GPU for itself
        device = prepare_device(batches[0][0].compute)
        workers = min(workers, gpu_count(device)) if device.type != "cpu" else workers
    failed, said = set[str](), set[str]()
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
                    if str(error) not in said:  # an edit of the code ends every batch
                        say(f"ncpipe: {error}")
                    said.add(str(error))
                    failed |= {fingerprint.key() for fingerprint in lacking(futures[future])}
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    return failed


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
                tried = todo
                try:
                    with study_errors():
                        todo = self._train_some(todo, claim)
                except Exception as error:
                    if not isinstance(error, Stopped):
                        log_failure(tried, error)
                    raise
                for fingerprint in tried:
                    failure_log(fingerprint.run).unlink(missing_ok=True)

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
