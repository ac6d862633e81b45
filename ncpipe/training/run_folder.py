"""A finished run on disk, with everything that says where its numbers come from.

model.safetensors          weights by name
run.json                   the resolved run, its data's checksum, how it was computed, how it ended
metrics.json               last row of the history      } the layout of DVCLive, which
plots/metrics/<name>.tsv   history, a file per column    } `dvc plots` and the editors' extensions read
"""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ncpipe import __version__
from ncpipe.artifacts import publish_folder, read_json, write_json
from ncpipe.errors import InputError
from ncpipe.specs import Compute, Run
from ncpipe.training.loop import Point, Trained

COLUMNS = tuple(field.name for field in dataclasses.fields(Point) if field.name != "epoch")


@dataclass(frozen=True)
class Stamp:
    """What a run's result depends on, and what it was computed with."""

    run: Run
    data: str
    compute: Compute
    device: str

    def inputs(self) -> dict[str, object]:
        """The part that has to agree for a folder to be the result of this run."""
        return {
            "experiment": self.run.experiment,
            "depth": self.run.depth,
            "seed": self.run.seed,
            "spec": json.loads(json.dumps(dataclasses.asdict(self.run.spec))),
            "data_checksum": self.data,
            "threads": self.compute.threads,
            "precision": self.compute.precision,
        }


def write_run(folder: Path, trained: Trained, stamp: Stamp) -> None:
    """Write a trained run as `folder`, whole or not at all."""
    penalty = trained.run.spec.penalty
    with publish_folder(folder) as partial:
        save_file(trained.state, partial / "model.safetensors")
        write_json(
            partial / "run.json",
            {
                "inputs": stamp.inputs(),
                "resolved": {
                    "lambda": penalty.inner_strength(trained.run.depth),
                    "lambda_last": penalty.last_strength(trained.run.depth),
                    "parameters": sum(tensor.numel() for tensor in trained.state.values()),
                },
                "computed_with": {"device": stamp.device, "torch": torch.__version__, "ncpipe": __version__},
                "outcome": {
                    "finished": trained.diverged_at is None,
                    "diverged_at_epoch": trained.diverged_at,
                },
            },
        )
        plots = partial / "plots" / "metrics"
        plots.mkdir(parents=True)
        for column in COLUMNS:
            rows = [f"{point.epoch}\t{getattr(point, column)!r}" for point in trained.history]
            (plots / f"{column}.tsv").write_text("\n".join([f"step\t{column}", *rows]) + "\n")
        write_json(partial / "metrics.json", _last_row(trained))


def read_state(folder: Path, stamp: Stamp) -> dict[str, Tensor]:
    """Weights of a finished run; InputError if the folder is missing, damaged or another run's result."""
    check_run(folder, stamp)
    path = folder / "model.safetensors"
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path}: damaged ({error}); delete {folder} and run dvc repro") from None


def check_run(folder: Path, stamp: Stamp) -> dict[str, dict[str, object]]:
    """The run.json of a folder, if it is the result of this very run; else InputError names what differs."""
    facts = read_json(folder / "run.json")
    found, wanted = facts["inputs"], stamp.inputs()
    for key, value in wanted.items():
        if found.get(key) != value:
            raise InputError(f"{folder}: trained with another {key}; run dvc repro to train it anew")
    return facts


def read_history(folder: Path) -> list[dict[str, float]]:
    """The history as one mapping per logged epoch: `epoch` and the columns of `Point`."""
    columns: dict[str, dict[int, float]] = {}
    for column in COLUMNS:
        path = folder / "plots" / "metrics" / f"{column}.tsv"
        try:
            lines = path.read_text(encoding="utf-8").splitlines()[1:]
            cells = [line.split("\t") for line in lines]
            columns[column] = {int(step): float(value) for step, value in cells}
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: damaged ({error}); delete {folder} and run dvc repro") from None
    epochs = list(columns[COLUMNS[0]])
    return [{"epoch": epoch} | {name: column[epoch] for name, column in columns.items()} for epoch in epochs]


def _last_row(trained: Trained) -> dict[str, float]:
    if not trained.history:
        return {"step": 0}
    point = dataclasses.asdict(trained.history[-1])
    return {"step": point.pop("epoch")} | point
