"""Run the stage series: train and measure further runs of one deep features model [S24 sec. 6]."""

import dataclasses
import typing
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import pandas as pd

from ncpipe.config.run import Compute, Run
from ncpipe.config.sources.free import FreeData
from ncpipe.datasets.free import prepare_free
from ncpipe.datasets.prepared import Prepared
from ncpipe.features.extraction import Features, extract
from ncpipe.features.run_metrics import objective_of
from ncpipe.metrics.losses import prediction_error
from ncpipe.papers.s24.head_columns import mean_rows, singular_rows, spread_rows
from ncpipe.papers.s24.head_ranks import rank_columns
from ncpipe.papers.s24.params import SeriesParams
from ncpipe.papers.s24.tables.low_rank import best_runs, with_ranks
from ncpipe.runs.pool import executor, process_count
from ncpipe.study import InputError, load_params
from ncpipe.training.device import prepare_device
from ncpipe.training.loop import train_batch
from ncpipe.training.session import Trained

ONE_SHAPE = ("optimizer.learning_rate", "penalty.value")  # axes whose runs train side by side
Rows = dict[str, list[dict[str, Any]]]


def series(experiment: str, workers: int | None = None) -> dict[str, pd.DataFrame]:
    """Train and measure the runs that `series` in params.yaml adds to an experiment.

    runs: final state of each, as in the sweep's runs.csv. history: losses through training. spread: DNC1 of
    every layer at the epochs in the experiment's `history`, where samples of a class differ. singular_values:
    of every layer's class means. class_means: of the run of the lowest loss at each value.
    """
    params = load_params()
    runs = typing.cast(SeriesParams, params).series_runs(experiment)
    if not runs[0].spec.model.has_free_features:
        raise InputError(f"series.{experiment}: the experiment has no free features; series are of dufm")
    ends = train_series(runs, params.compute, workers)
    tables = {
        name: [row for end in ends for row in end[name]] for name in ("history", "spread", "singular_values")
    }
    table = with_ranks(pd.DataFrame([end["runs"][0] for end in ends]).assign(place=range(len(ends))))
    best = [best_runs(own)["place"].iloc[0] for _, own in table.groupby("x", dropna=False)]
    frames = {name: pd.DataFrame(rows) for name, rows in tables.items() if rows}
    frames["runs"] = table.drop(columns="place")
    frames["class_means"] = pd.DataFrame([row for place in best for row in ends[place]["class_means"]])
    return frames


def train_series(runs: Sequence[Run], compute: Compute, workers: int | None) -> list[Rows]:
    """Return the rows of each run; runs of one shape train side by side, in `workers` processes."""
    count = process_count(workers, compute.threads)
    shapes: dict[object, list[Run]] = {}
    for run in runs:
        shapes.setdefault(None if run.axis in ONE_SHAPE else run.value, []).append(run)
    parts = [part for own in shapes.values() for at in range(count) if (part := own[at::count])]
    if len(parts) == 1 or count == 1:
        found = [_trained(part, compute) for part in parts]
    else:
        with executor(min(count, len(parts))) as pool:
            try:
                found = [*pool.map(_trained, parts, [compute] * len(parts))]
            except BrokenProcessPool:
                raise InputError(f"{runs[0].experiment}: a process was killed; run dvc repro again") from None
    ends = [rows for part in found for rows in part]
    by_run = dict(zip((run.name for part in parts for run in part), ends, strict=True))
    return [by_run[run.name] for run in runs]


def _trained(runs: Sequence[Run], compute: Compute) -> list[Rows]:
    device = prepare_device(compute)
    return [
        _measured(trained, compute)
        for trained in train_batch(runs, _data(runs[0]), device, compute.precision)
    ]


def _data(run: Run) -> Prepared:
    assert isinstance(run.spec.data, FreeData)
    return prepare_free(run.spec.data)


def _measured(trained: Trained, compute: Compute) -> Rows:
    """Return a run's rows of each table, from features in float64."""
    double = prepare_device(dataclasses.replace(compute, device="cpu", precision="float64"))
    run, data = trained.run, _data(trained.run)
    key = {"experiment": run.experiment, "depth": run.depth, "x": run.value, "seed": run.seed}
    features = extract(run, trained.state, data, double)
    rows = {
        "runs": [_ending(trained, features)],
        "history": [dataclasses.asdict(point) for point in trained.history],
        "spread": [
            {"epoch": epoch} | row
            for epoch, state in trained.snapshots.items()
            for row in spread_rows(run, extract(run, state, data, double))
        ],
        "singular_values": singular_rows(run, features),
        "class_means": mean_rows(run, features),
    }
    return {name: [key | row for row in own] for name, own in rows.items()}


def _ending(trained: Trained, features: Features) -> dict[str, Any]:
    """Return a run's row: its loss by terms and its comparison with DNC and SRG, from features in float64."""
    run, data = trained.run, trained.run.spec.data
    assert isinstance(data, FreeData)
    last = (features.train.inputs, features.train.labels, features.weight, features.bias)
    objective = objective_of(run, features)
    return {
        "classes": data.classes,
        "penalty_value": run.spec.penalty.value,
        "finished": trained.diverged_at is None,
        "diverged_at_epoch": trained.diverged_at,
        "loss": objective.loss,
        **dataclasses.asdict(objective),
        "gradient_norm": features.gradient_norm,
        "train_error": prediction_error(*last),
        **rank_columns(run, features),
    }
