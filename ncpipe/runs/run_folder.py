"""Write and read the folder of a finished run. `ncpipe.runs.store` keeps these folders.

manifest.json              SHA-256 of every other file, to detect damage
model.safetensors          weights by name
run.json                   the resolved run, checksum of its data, how it was computed, how it ended
metrics.json               last row of the history      } the layout of DVCLive, which
plots/metrics/<name>.tsv   history, a file per column   } `dvc plots` and editor extensions read
kept/e<epoch>.safetensors  weights during training, if `history` asks for them

Without a test split the history has no test_error.
"""

import dataclasses
import math
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from ncpipe import __version__
from ncpipe.runs.dvc_repair import remove_damaged
from ncpipe.runs.fingerprint import (
    RUN_RECORD,
    RunFingerprint,
    check_run,
    code_digest,
    key_of_record,
    verify_run,
)
from ncpipe.system.artifacts import publish_folder, read_json, write_json, write_manifest
from ncpipe.system.errors import InputError
from ncpipe.system.tensor_files import load_tensors
from ncpipe.training.session import HistoryRow, Trained

TEST_ERROR = "test_error"
COLUMNS = tuple(field.name for field in dataclasses.fields(HistoryRow) if field.name != "epoch")


def write_run(folder: Path, trained: Trained, fingerprint: RunFingerprint, device: str) -> None:
    """Write a trained run to `folder`, completely or not at all. device: on which it was trained."""
    penalty = trained.run.spec.penalty
    with publish_folder(folder) as partial:
        save_file(trained.state, partial / "model.safetensors")
        for epoch, state in trained.snapshots.items():
            path = _snapshot_path(partial, epoch)
            path.parent.mkdir(exist_ok=True)
            save_file(state, path)
        record = {
            "inputs": fingerprint.inputs(),
            "resolved": {
                "lambda": penalty.inner_strength(trained.run.depth),
                "lambda_last": penalty.last_strength(trained.run.depth),
                "parameters": sum(tensor.numel() for tensor in trained.state.values()),
            },
            "computed_with": {
                "code": code_digest(fingerprint.run.spec),
                "device": device,
                "torch": torch.__version__,
                "ncpipe": __version__,
            },
            "outcome": {
                "finished": trained.diverged_at is None,
                "diverged_at_epoch": trained.diverged_at,
            },
        }
        write_json(partial / RUN_RECORD, record)
        plots = partial / "plots" / "metrics"
        plots.mkdir(parents=True)
        last = _last_row(trained)
        for column in _columns(last):
            rows = [f"{point.epoch}\t{getattr(point, column)!r}" for point in trained.history]
            (plots / f"{column}.tsv").write_text("\n".join([f"step\t{column}", *rows]) + "\n")
        write_json(partial / "metrics.json", last)
        write_manifest(partial, key_of_record(record))


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
    return _read_weights(folder, folder / "model.safetensors")


def read_snapshots(folder: Path, fingerprint: RunFingerprint) -> dict[int, dict[str, Tensor]]:
    """Return by epoch the weights that were kept during training, until the run diverged."""
    diverged = check_run(folder, fingerprint)["outcome"]["diverged_at_epoch"]
    epochs = [
        epoch for epoch in fingerprint.run.spec.snapshot_epochs() if diverged is None or epoch < diverged
    ]
    return {epoch: _read_weights(folder, _snapshot_path(folder, epoch)) for epoch in epochs}


def _snapshot_path(folder: Path, epoch: int) -> Path:
    return folder / "kept" / f"e{epoch}.safetensors"


def _read_weights(folder: Path, path: Path) -> dict[str, Tensor]:
    try:
        return load_tensors(path)
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path}: damaged ({error}); run ncpipe repair {folder}") from None


def read_history(folder: Path) -> list[dict[str, float]]:
    """Return the history: for each logged epoch a dict with `epoch` and the columns of `HistoryRow`."""
    last_row = read_json(folder / "metrics.json")
    columns: dict[str, dict[int, float]] = {}
    for column in _columns(last_row):
        path = folder / "plots" / "metrics" / f"{column}.tsv"
        try:
            lines = path.read_text(encoding="utf-8").splitlines()[1:]
            cells = [line.split("\t") for line in lines]
            columns[column] = {int(step): float(value) for step, value in cells}
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: damaged ({error}); run ncpipe repair {folder}") from None
    epochs = list(columns[COLUMNS[0]])
    for column, rows in columns.items():
        if list(rows) != epochs or (epochs or [0])[-1] != last_row.get("step"):
            raise InputError(
                f"{folder / 'plots' / 'metrics' / column}.tsv: truncated; run ncpipe repair {folder}"
            )
    missing = dict.fromkeys(COLUMNS, math.nan)
    return [
        {"epoch": epoch} | missing | {name: column[epoch] for name, column in columns.items()}
        for epoch in epochs
    ]


def _last_row(trained: Trained) -> dict[str, float]:
    if not trained.history:
        return {"step": 0}
    row = dataclasses.asdict(trained.history[-1])
    if math.isnan(row[TEST_ERROR]):
        del row[TEST_ERROR]
    return {"step": row.pop("epoch")} | row


def _columns(last_row: dict[str, float]) -> list[str]:
    """Return the columns of a history from its last row (`metrics.json`); all columns if it has no rows."""
    absent = {TEST_ERROR} - last_row.keys() if last_row.get("step") != 0 or len(last_row) > 1 else set()
    return [column for column in COLUMNS if column not in absent]
