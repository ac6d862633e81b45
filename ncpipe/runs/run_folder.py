"""A finished run on disk, with everything that says where its numbers come from.

seal.json                  SHA-256 of every other file: damage is seen
model.safetensors          weights by name
run.json                   the resolved run, its data's checksum, how it was computed, how it ended
metrics.json               last row of the history      } the layout of DVCLive, which
plots/metrics/<name>.tsv   history, a file per column    } `dvc plots` and the editors' extensions read
kept/e<epoch>.safetensors  weights on the way, if `history` asks for them

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
from ncpipe.runs.dvc_repair import drop_damaged
from ncpipe.runs.fingerprint import RUN_RECORD, Stamp, check_run, check_whole, code_digest, seal_key
from ncpipe.system.artifacts import publish_folder, read_json, seal, write_json
from ncpipe.system.errors import InputError
from ncpipe.system.tensor_files import load_tensors
from ncpipe.training.session import Point, Trained

TEST_ERROR = "test_error"
COLUMNS = tuple(field.name for field in dataclasses.fields(Point) if field.name != "epoch")


def write_run(folder: Path, trained: Trained, stamp: Stamp, device: str) -> None:
    """Write a trained run as `folder`, whole or not at all. device: what it was computed on."""
    penalty = trained.run.spec.penalty
    with publish_folder(folder) as partial:
        save_file(trained.state, partial / "model.safetensors")
        for epoch, state in trained.kept.items():
            path = _kept(partial, epoch)
            path.parent.mkdir(exist_ok=True)
            save_file(state, path)
        record = {
            "inputs": stamp.inputs(),
            "resolved": {
                "lambda": penalty.inner_strength(trained.run.depth),
                "lambda_last": penalty.last_strength(trained.run.depth),
                "parameters": sum(tensor.numel() for tensor in trained.state.values()),
            },
            "computed_with": {
                "code": code_digest(stamp.run.spec),
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
        seal(partial, seal_key(record))


def read_state(folder: Path, stamp: Stamp) -> dict[str, Tensor]:
    """Weights of a finished run; InputError if the folder is missing, another run's result or damaged.

    A damaged one is dropped, for DVC to see that it is not there, and with it damaged copies in DVC's cache.
    """
    if not folder.exists():
        raise InputError(f"{folder}: not found; run dvc repro")
    try:
        check_whole(folder)
    except InputError as error:
        more = drop_damaged(folder)
        raise InputError(f"{error}; {folder} is dropped{more}; run dvc repro") from None
    check_run(folder, stamp)
    return _read_weights(folder, folder / "model.safetensors")


def read_kept(folder: Path, stamp: Stamp) -> dict[int, dict[str, Tensor]]:
    """Weights on the way, by epoch: as many as `history` asks for, up to where the run diverged."""
    diverged = check_run(folder, stamp)["outcome"]["diverged_at_epoch"]
    epochs = [epoch for epoch in stamp.run.spec.kept_epochs() if diverged is None or epoch < diverged]
    return {epoch: _read_weights(folder, _kept(folder, epoch)) for epoch in epochs}


def _kept(folder: Path, epoch: int) -> Path:
    return folder / "kept" / f"e{epoch}.safetensors"


def _read_weights(folder: Path, path: Path) -> dict[str, Tensor]:
    try:
        return load_tensors(path)
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path}: damaged ({error}); run ncpipe repair {folder}") from None


def read_history(folder: Path) -> list[dict[str, float]]:
    """The history as one mapping per logged epoch: `epoch` and the columns of `Point`."""
    ended = read_json(folder / "metrics.json")
    columns: dict[str, dict[int, float]] = {}
    for column in _columns(ended):
        path = folder / "plots" / "metrics" / f"{column}.tsv"
        try:
            lines = path.read_text(encoding="utf-8").splitlines()[1:]
            cells = [line.split("\t") for line in lines]
            columns[column] = {int(step): float(value) for step, value in cells}
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: damaged ({error}); run ncpipe repair {folder}") from None
    epochs = list(columns[COLUMNS[0]])
    last = ended.get("step")
    for column, rows in columns.items():
        if list(rows) != epochs or (epochs or [0])[-1] != last:
            raise InputError(
                f"{folder / 'plots' / 'metrics' / column}.tsv: cut short; run ncpipe repair {folder}"
            )
    nothing = dict.fromkeys(COLUMNS, math.nan)
    return [
        {"epoch": epoch} | nothing | {name: column[epoch] for name, column in columns.items()}
        for epoch in epochs
    ]


def _last_row(trained: Trained) -> dict[str, float]:
    if not trained.history:
        return {"step": 0}
    point = dataclasses.asdict(trained.history[-1])
    if math.isnan(point[TEST_ERROR]):
        del point[TEST_ERROR]
    return {"step": point.pop("epoch")} | point


def _columns(last: dict[str, float]) -> list[str]:
    """Columns of a history by its last row, as `metrics.json` has it; all of one without rows."""
    without = {TEST_ERROR} - last.keys() if last.get("step") != 0 or len(last) > 1 else set()
    return [column for column in COLUMNS if column not in without]
