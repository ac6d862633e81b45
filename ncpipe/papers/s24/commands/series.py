"""Run the stage series: train and measure further runs of one deep features model [S24 sec. 6]."""

import dataclasses
from typing import Any

import pandas as pd
from tqdm import tqdm

from ncpipe.config.params import load_params
from ncpipe.config.run import Compute, Device
from ncpipe.config.sources.free import FreeData
from ncpipe.features.extraction import Features, extract
from ncpipe.features.head_ranks import head_rank_columns
from ncpipe.features.objective import fit_of
from ncpipe.metrics.losses import prediction_error
from ncpipe.papers.outputs import SERIES
from ncpipe.papers.s24.head_columns import mean_rows, singular_rows, spread_rows
from ncpipe.papers.s24.series_training import data_of, train_series
from ncpipe.papers.s24.tables.low_rank import best_runs, with_ranks
from ncpipe.system.artifacts import publish_folder
from ncpipe.system.console import say
from ncpipe.system.errors import InputError
from ncpipe.training.device import prepare_device
from ncpipe.training.session import Trained


def series(
    experiment: str,
    device: Device | None = None,
    workers: int | None = None,
    checkpoint_seconds: float = 60.0,
) -> None:
    """Train the runs of series.EXPERIMENT and write their tables to data/series/EXPERIMENT.

    runs: final state of each, as in the sweep's runs.csv. history: losses through training. spread: DNC1 of
    every layer at the epochs in the experiment's `history`, where samples of a class differ. singular_values:
    of every layer's class means. class_means: of the run of the lowest loss at each value.
    """
    params = load_params()
    runs = params.series_runs(experiment)
    if not runs[0].spec.model.has_free_features:
        raise InputError(f"series.{experiment}: the experiment has no free features; series are of dufm")
    compute = params.compute_on(device)
    say(f"series {experiment}: {len(runs)} runs")
    with tqdm(total=len(runs), desc=experiment, unit="run", disable=None, leave=False) as bar:
        ends = train_series(runs, compute, workers, checkpoint_seconds, _measured, bar.update)
    tables = {
        name: [row for end in ends for row in end[name]] for name in ("history", "spread", "singular_values")
    }
    table = with_ranks(pd.DataFrame([end["runs"][0] for end in ends]).assign(place=range(len(ends))))
    best = [best_runs(own)["place"].iloc[0] for _, own in table.groupby("x", dropna=False)]
    frames = {name: pd.DataFrame(rows) for name, rows in tables.items() if rows}
    frames["runs"] = table.drop(columns="place")
    frames["class_means"] = pd.DataFrame([row for place in best for row in ends[place]["class_means"]])
    with publish_folder(SERIES / experiment) as folder:
        for name, frame in frames.items():
            frame.to_csv(folder / f"{name}.csv", index=False, lineterminator="\n")


def _measured(trained: Trained, compute: Compute) -> dict[str, list[dict[str, Any]]]:
    """Return a run's rows of each table, from features in float64."""
    double = prepare_device(dataclasses.replace(compute, device="cpu", precision="float64"))
    run, data = trained.run, data_of(trained.run.spec.data)
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
    fit = fit_of(run, features.train, features.weight, features.bias)
    loss = fit + features.last_penalty + features.inner_penalty
    return {
        "classes": data.classes,
        "penalty_value": run.spec.penalty.value,
        "finished": trained.diverged_at is None,
        "diverged_at_epoch": trained.diverged_at,
        "loss": loss,
        "fit": fit,
        "last_penalty": features.last_penalty,
        "inner_penalty": features.inner_penalty,
        "gradient_norm": features.gradient_norm,
        "train_error": prediction_error(*last),
        **head_rank_columns(run, features, loss),
    }
