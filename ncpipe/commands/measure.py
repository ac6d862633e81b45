"""Stage measure: every metric of an experiment's runs, with their histories and how they ended."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pandas as pd
import torch

from ncpipe.artifacts import FEATURES, METRICS, RUNS, publish_folder, read_json
from ncpipe.commands.grid import read_grid
from ncpipe.features import Features, read_features
from ncpipe.figures.labels import row_label
from ncpipe.metrics.losses import prediction_error, unregularised_loss
from ncpipe.metrics.table import Measurement, measure_split, measure_weights
from ncpipe.params import load_params
from ncpipe.specs import Run
from ncpipe.stamps import RUN_RECORD
from ncpipe.training.run_folder import read_history


def measure(experiment: str) -> None:
    """Features and histories of EXPERIMENT -> data/metrics/EXPERIMENT/{measurements,runs,history}.csv."""
    params = load_params()
    torch.set_num_threads(params.compute.threads)
    measurements: list[dict[str, Any]] = []
    runs: list[dict[str, Any]] = []
    history: list[dict[str, Any]] = []
    for run in read_grid(params, experiment):
        key = {"experiment": run.experiment, "depth": run.depth, "seed": run.seed}
        features = read_features((FEATURES / run.path).with_suffix(".safetensors"))
        measurements += [key | asdict(row) for row in _measure(features)]
        runs.append(key | _describe(run, features))
        history += [key | row for row in read_history(RUNS / run.path)]
    with publish_folder(METRICS / experiment) as folder:
        for name, rows in (("measurements", measurements), ("runs", runs), ("history", history)):
            pd.DataFrame(rows).to_csv(folder / f"{name}.csv", index=False, lineterminator="\n")


def _measure(features: Features) -> Iterator[Measurement]:
    yield from measure_weights(features.weight)
    for name, split in (("train", features.train), ("test", features.test)):
        yield from measure_split(name, split.inputs, split.labels, features.weight)


def _describe(run: Run, features: Features) -> dict[str, Any]:
    """One run's row: what it is, how it ended, its objective and errors from the features in float64."""
    outcome = read_json(RUNS / run.path / RUN_RECORD)["outcome"]
    layer = (features.weight, features.bias)
    train, test = features.train, features.test
    fit = unregularised_loss(train.inputs, train.labels, *layer, run.spec.loss)
    return {
        "label": row_label(run.spec),
        "architecture": run.spec.model.architecture,
        "norm": run.spec.model.norm,
        "source": run.spec.data.source,
        "loss_name": run.spec.loss,
        "last_bias": run.spec.model.last_bias,
        "finished": outcome["finished"],
        "diverged_at_epoch": outcome["diverged_at_epoch"],
        "loss": fit + features.last_penalty + features.inner_penalty,
        "fit": fit,
        "last_penalty": features.last_penalty,
        "inner_penalty": features.inner_penalty,
        "train_error": prediction_error(train.inputs, train.labels, *layer),
        "test_error": prediction_error(test.inputs, test.labels, *layer),
    }
