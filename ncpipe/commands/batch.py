"""Trains a batch of runs into folders: the first to its own place, the others to the store."""

import csv
from collections.abc import Sequence

import psutil
import torch

from ncpipe.artifacts import AHEAD, LOGS, PREPARED, RUNS
from ncpipe.commands.console import EpochProgress, say
from ncpipe.datasets.prepared import Prepared, read_prepared
from ncpipe.errors import InputError
from ncpipe.stamps import Stamp
from ncpipe.training.device import prepare_device
from ncpipe.training.loop import DTYPES, Trained, train_batch
from ncpipe.training.memory import bytes_per_run
from ncpipe.training.run_folder import write_run

MEMORY_SHARE = 0.7  # of what is free, for the runs of one batch


def train_batch_into_folders(first: Stamp, mates: Sequence[Stamp]) -> None:
    """Train `first` and as many of its mates as fit in memory, and write a folder for each.

    Mates that do not fit are left to a later call. Raises InputError if not even one run fits.
    """
    data = read_prepared(PREPARED / first.run.experiment)
    place = prepare_device(first.compute)
    stamps = [first, *mates]
    stamps = stamps[: _how_many_fit(stamps, data, place)]
    results, seconds = _train(stamps, data, place)
    while results is None:
        if len(stamps) == 1:
            raise InputError(f"{first.run.name}: one run does not fit on {place}; make batch_size smaller")
        stamps = stamps[: len(stamps) // 2]
        say(f"train {first.run.name}: out of memory on {place}, trying {len(stamps)} at once")
        results, seconds = _train(stamps, data, place)
    for stamp, trained in reversed(list(zip(stamps, results, strict=True))):
        folder = RUNS / stamp.run.path if stamp is first else AHEAD / stamp.key()
        write_run(folder, trained, stamp, place.type)
        say(_outcome(trained))
    _log_time(stamps, place.type, seconds)


def _how_many_fit(stamps: Sequence[Stamp], data: Prepared, place: torch.device) -> int:
    if len(stamps) == 1:
        return 1
    need = bytes_per_run(stamps[0].run, data, place, DTYPES[stamps[0].compute.precision])
    free = torch.cuda.mem_get_info(place)[0] if place.type == "cuda" else psutil.virtual_memory().available
    fit = max(1, int(MEMORY_SHARE * free / need))
    if fit < len(stamps):
        say(
            f"train {stamps[0].run.name}: {fit} of {len(stamps)} runs at once, each takes "
            f"{need / 1e9:.1f} GB of the {free / 1e9:.1f} GB free"
        )
    return fit


def _train(
    stamps: Sequence[Stamp], data: Prepared, place: torch.device
) -> tuple[list[Trained] | None, float]:
    """Results and seconds; None for the results if the device ran out of memory."""
    say(_announcement(stamps, data, str(place)))
    progress = EpochProgress(stamps[0].run.name, stamps[0].run.spec.epochs)
    try:
        runs = [stamp.run for stamp in stamps]
        return train_batch(runs, data, place, stamps[0].compute.precision, progress), progress.seconds()
    except torch.OutOfMemoryError:
        return None, progress.seconds()
    finally:
        progress.close()


def _announcement(stamps: Sequence[Stamp], data: Prepared, device: str) -> str:
    run, compute = stamps[0].run, stamps[0].compute
    batch = "full batch" if run.spec.batch_size == "full" else f"batches of {run.spec.batch_size}"
    mates = ", ".join(f"{s.run.experiment} seed {s.run.seed}" for s in stamps[1:])
    return (
        f"train {run.name}{f' together with {mates}' if mates else ''}: {run.spec.model.architecture} on "
        f"{device} ({compute.threads} threads, {compute.precision}), {len(data.train)} samples, {batch}, "
        f"{run.spec.epochs} epochs"
    )


def _outcome(trained: Trained) -> str:
    if trained.diverged_at is not None:
        return (
            f"  {trained.run.name}: diverged at epoch {trained.diverged_at}, kept with its last finite "
            "weights and counted as not converged"
        )
    end = trained.history[-1]
    return (
        f"  {trained.run.name}: loss {end.loss:.6g}, train error {end.train_error:.3g}, "
        f"test error {end.test_error:.3g}"
    )


def _log_time(stamps: Sequence[Stamp], device: str, seconds: float) -> None:
    """Wall-clock times go to a log that no stage reads: a cached result has none."""
    LOGS.mkdir(parents=True, exist_ok=True)
    path = LOGS / "train_seconds.csv"
    fresh = not path.exists()
    run = stamps[0].run
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        if fresh:
            writer.writerow(["experiment", "depth", "runs", "device", "seconds"])
        writer.writerow([run.experiment, run.depth, len(stamps), device, f"{seconds:.2f}"])
