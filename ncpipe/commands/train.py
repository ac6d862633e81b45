"""Stage train: one run of the grid."""

import csv
import dataclasses

from ncpipe.artifacts import LOGS, PREPARED, RUNS
from ncpipe.commands.console import EpochProgress, say
from ncpipe.datasets.prepared import Prepared, read_prepared
from ncpipe.params import load_params
from ncpipe.specs import Compute, Device, Run
from ncpipe.training.device import prepare_device
from ncpipe.training.loop import Trained, train_batch
from ncpipe.training.run_folder import Stamp, write_run


def train(experiment: str, depth: int, seed: int, device: Device | None = None) -> None:
    """One run of params.yaml on data/prepared/EXPERIMENT -> data/runs/EXPERIMENT/L<depth>/s<seed>.

    device: in place of compute.device. A run that diverges is a result too: its folder says so.
    """
    params = load_params()
    run = params.run(experiment, depth, seed)
    compute = params.compute if device is None else dataclasses.replace(params.compute, device=device)
    data = read_prepared(PREPARED / experiment)
    place = prepare_device(compute)
    say(_announcement(run, data, compute, str(place)))
    progress = EpochProgress(run.name, run.spec.epochs)
    try:
        (trained,) = train_batch([run], data, place, compute.precision, progress)
    finally:
        seconds = progress.close()
    write_run(RUNS / run.path, trained, Stamp(run, data.checksum, compute, place.type))
    _log_time(run, place.type, seconds)
    say(_outcome(trained, seconds))


def _announcement(run: Run, data: Prepared, compute: Compute, device: str) -> str:
    batch = "full batch" if run.spec.batch_size == "full" else f"batches of {run.spec.batch_size}"
    return (
        f"train {run.name}: {run.spec.model.architecture} on {device} ({compute.threads} threads, "
        f"{compute.precision}), {len(data.train)} samples, {batch}, {run.spec.epochs} epochs"
    )


def _outcome(trained: Trained, seconds: float) -> str:
    if trained.diverged_at is not None:
        return (
            f"train {trained.run.name}: diverged at epoch {trained.diverged_at}, kept with its last finite "
            "weights and counted as not converged"
        )
    end = trained.history[-1]
    return (
        f"train {trained.run.name}: loss {end.loss:.6g}, train error {end.train_error:.3g}, "
        f"test error {end.test_error:.3g}, {seconds:.1f} s"
    )


def _log_time(run: Run, device: str, seconds: float) -> None:
    """Wall-clock times go to a log that no stage reads: a cached result has none."""
    LOGS.mkdir(parents=True, exist_ok=True)
    path = LOGS / "train_seconds.csv"
    fresh = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        if fresh:
            writer.writerow(["experiment", "depth", "seed", "device", "seconds"])
        writer.writerow([run.experiment, run.depth, run.seed, device, f"{seconds:.2f}"])
