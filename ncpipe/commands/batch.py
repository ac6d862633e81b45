"""Trains a batch of runs into folders: the first to its own place, the others to the store."""

import csv
from collections.abc import Sequence

from ncpipe.artifacts import AHEAD, LOGS, PREPARED, RUNS
from ncpipe.commands.console import EpochProgress, say
from ncpipe.datasets.prepared import Prepared, read_prepared
from ncpipe.stamps import Stamp
from ncpipe.training.device import prepare_device
from ncpipe.training.loop import Trained, train_batch
from ncpipe.training.run_folder import write_run


def train_batch_into_folders(first: Stamp, mates: Sequence[Stamp]) -> None:
    """Train `first` and its mates side by side, and write a folder for each."""
    stamps = [first, *mates]
    data = read_prepared(PREPARED / first.run.experiment)
    place = prepare_device(first.compute)
    say(_announcement(stamps, data, str(place)))
    progress = EpochProgress(first.run.name, first.run.spec.epochs)
    try:
        results = train_batch([s.run for s in stamps], data, place, first.compute.precision, progress)
    finally:
        seconds = progress.close()
    for stamp, trained in reversed(list(zip(stamps, results, strict=True))):
        folder = RUNS / stamp.run.path if stamp is first else AHEAD / stamp.key()
        write_run(folder, trained, stamp, place.type)
        say(_outcome(trained))
    _log_time(stamps, place.type, seconds)


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
