"""Write and read the folder of a finished run. `ncpipe.runs.store` keeps these folders.

manifest.json              SHA-256 of every other file, to detect damage
model.safetensors          weights by name
run.json                   the resolved run, checksum of its data, how it was computed, how it ended
history.csv                a row per logged epoch, with all digits
kept/e<epoch>.safetensors  weights during training, if `history` asks for them

The files are few, because DVC looks at each of them. The history has no column of what is NaN in all rows, as
test_error is without a test split, and both errors are where the targets are vectors.
"""

import csv
import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from ncpipe import __version__
from ncpipe.runs.dvc_repair import remove_damaged
from ncpipe.runs.fingerprint import (
    RUN_RECORD,
    RunFingerprint,
    check_run,
    key_of_record,
    verify_run,
)
from ncpipe.system.artifacts import reach_disk, write_json, write_manifest
from ncpipe.system.errors import InputError
from ncpipe.system.tensor_files import load_tensors, save_tensors
from ncpipe.training.session import HistoryRow, Trained

HISTORY = "history.csv"
COLUMNS = tuple(field.name for field in dataclasses.fields(HistoryRow))


def write_run(folder: Path, trained: Trained, fingerprint: RunFingerprint, device: str) -> None:
    """Write a trained run to the new folder `folder`, whose files are then on the disk.

    `ncpipe.runs.store.write_beside` renames it when it is complete. device: on which the run was trained.
    """
    resolved: dict[str, float] = {"parameters": sum(tensor.numel() for tensor in trained.state.values())}
    if not trained.run.spec.training:
        penalty, depth = trained.run.spec.penalty, trained.run.depth
        lambdas = {"lambda": penalty.inner_strength(depth), "lambda_last": penalty.last_strength(depth)}
        resolved = lambdas | resolved
    folder.mkdir(parents=True)
    save_tensors(trained.state, folder / "model.safetensors")
    for epoch, state in trained.snapshots.items():
        path = _snapshot_path(folder, epoch)
        path.parent.mkdir(exist_ok=True)
        save_tensors(state, path)
    record = {
        "inputs": fingerprint.inputs(),
        "resolved": resolved,
        "computed_with": {
            "code": fingerprint.code,
            "device": device,
            "torch": torch.__version__,
            "ncpipe": __version__,
        },
        "outcome": {
            "finished": trained.diverged_at is None,
            "diverged_at_epoch": trained.diverged_at,
        },
    }
    write_json(folder / RUN_RECORD, record)
    _write_history(folder / HISTORY, trained.history)
    write_manifest(folder, key_of_record(record))
    reach_disk([*folder.rglob("*"), folder])


def read_state(folder: Path, fingerprint: RunFingerprint) -> dict[str, Tensor]:
    """Return a finished run's weights; raise InputError if the folder is missing, damaged or of another run.

    A damaged folder is removed, with its damaged copies in DVC's cache, so that `dvc repro` restores it.
    """
    if not folder.exists():
        raise InputError(f"{folder}: not found; run dvc repro")
    try:
        verify_run(folder)
    except InputError as error:
        copies = remove_damaged(folder)
        raise InputError(f"{error}; {folder} was removed{copies}; run dvc repro") from None
    check_run(folder, fingerprint)
    return load_tensors(folder / "model.safetensors")


def read_snapshots(folder: Path, fingerprint: RunFingerprint) -> dict[int, dict[str, Tensor]]:
    """Return by epoch the weights that were kept during training, until the run diverged."""
    diverged = check_run(folder, fingerprint)["outcome"]["diverged_at_epoch"]
    epochs = [
        epoch for epoch in fingerprint.run.spec.snapshot_epochs() if diverged is None or epoch < diverged
    ]
    return {epoch: load_tensors(_snapshot_path(folder, epoch)) for epoch in epochs}


def _snapshot_path(folder: Path, epoch: int) -> Path:
    return folder / "kept" / f"e{epoch}.safetensors"


def read_history(folder: Path) -> list[dict[str, float]]:
    """Return the history: for each logged epoch a dict with the fields of `HistoryRow`."""
    absent = dict.fromkeys(COLUMNS, math.nan)
    with (folder / HISTORY).open(newline="", encoding="utf-8") as file:
        rows = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
    return [absent | row | {"epoch": int(row["epoch"])} for row in rows]


def _write_history(path: Path, history: Sequence[HistoryRow]) -> None:
    columns = [
        column
        for column in COLUMNS
        if not (history and all(math.isnan(getattr(row, column)) for row in history))
    ]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([getattr(row, column) for column in columns] for row in history)
