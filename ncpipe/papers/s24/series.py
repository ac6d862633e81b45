"""Run the stage series: train and measure further runs of one deep features model [S24 sec. 6]."""

import dataclasses
import typing
from typing import Any

import pandas as pd

from ncpipe.papers.s24.head_columns import mean_rows, singular_rows, spread_rows
from ncpipe.papers.s24.head_ranks import rank_columns
from ncpipe.papers.s24.params import SeriesParams
from ncpipe.papers.s24.tables.low_rank import best_runs, with_ranks
from ncpipe.study import InputError, TrainedRun, load_params, train_runs

Rows = dict[str, list[dict[str, Any]]]
ENDING = (  # columns of the package
    *("penalty_value", "finished", "diverged_at_epoch", "loss", "fit", "last_penalty", "inner_penalty"),
    *("gradient_norm", "train_error"),
)


def series(experiment: str, workers: int | None = None) -> dict[str, pd.DataFrame]:
    """Train and measure the runs that `series` in params.yaml adds to an experiment.

    runs: final state of each, as in the sweep's runs.csv. history: losses through training. spread: DNC1 of
    every layer at the epochs in the experiment's `history`, where samples of a class differ. singular_values:
    of every layer's class means. class_means: of the run of the lowest loss at each value.
    """
    runs = typing.cast(SeriesParams, load_params()).series_runs(experiment)
    if not runs[0].spec.model.has_free_features:
        raise InputError(f"series.{experiment}: the experiment has no free features; series are of dufm")
    ends = train_runs(runs, measured, workers)
    tables = {
        name: [row for end in ends for row in end[name]] for name in ("history", "spread", "singular_values")
    }
    table = with_ranks(pd.DataFrame([end["runs"][0] for end in ends]).assign(place=range(len(ends))))
    best = [best_runs(group)["place"].iloc[0] for _, group in table.groupby("x", dropna=False)]
    frames = {name: pd.DataFrame(rows) for name, rows in tables.items() if rows}
    frames["runs"] = table.drop(columns="place")
    frames["class_means"] = pd.DataFrame([row for place in best for row in ends[place]["class_means"]])
    return frames


def measured(trained: TrainedRun) -> Rows:
    """Return a run's rows of each table, from features in float64."""
    run = trained.run
    key = {"experiment": run.experiment, "depth": run.depth, "x": run.value, "seed": run.seed}
    rows = {
        "runs": [_ending(trained)],
        "history": [dataclasses.asdict(point) for point in trained.history],
        "spread": [
            {"epoch": epoch} | row for epoch in trained.snapshots for row in spread_rows(trained.at(epoch))
        ],
        "singular_values": singular_rows(trained),
        "class_means": mean_rows(trained),
    }
    return {name: [key | row for row in table_rows] for name, table_rows in rows.items()}


def _ending(trained: TrainedRun) -> dict[str, Any]:
    """Return a run's row: its loss by terms and its comparison with DNC and SRG."""
    data: Any = trained.run.spec.data
    row = trained.row
    return {"classes": data.classes} | {name: row[name] for name in ENDING} | rank_columns(trained)
