"""Draw the figures of a study of deep features models from its tables [S24 sec. 6]."""

from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from ncpipe.papers.s24.figures.class_means import class_means, run_figure
from ncpipe.papers.s24.figures.low_rank import (
    level_ratios,
    loss_split,
    ranks_by_penalty,
)
from ncpipe.papers.s24.figures.low_rank_series import against_axis, through_training
from ncpipe.papers.s24.tables.low_rank import best_runs, counts_by_value

RATIO_PER_CLASS, RATIO_DECAY = 50, 5e-4  # of the table `ratios`
DrawFigure = Callable[[], Figure]
AXES = {"model.width": "width", "optimizer.learning_rate": "learning rate", "penalty.value": r"$\lambda$"}


def study_figures(tables: Mapping[str, pd.DataFrame]) -> dict[str, DrawFigure]:
    """Return the figures of the tables in data/low_rank, by name; `papers.s24.low_rank` has the tables.

    Of the sweep: class_means, rank_penalty, loss_split, and run_EXPERIMENT, the run of the lowest loss. Of
    the theory: level_ratios, solutions. Of each series NAME with an axis: against_axis_NAME; of others:
    run_NAME and, with snapshots, through_training_NAME.
    """
    runs, means = tables["runs"], tables["class_means"]
    best = best_runs(runs[runs["own_penalty"]])
    names = {row["experiment"]: _row_label(row) for row in best.to_dict("records")}
    figures: dict[str, DrawFigure] = {
        "rank_penalty": partial(ranks_by_penalty, runs),
        "loss_split": partial(loss_split, tables["split"]),
        "level_ratios": partial(level_ratios, tables["ratios"], RATIO_PER_CLASS, RATIO_DECAY),
        "solutions": partial(
            class_means,
            tables["solutions"],
            {"SRG": "SRG", "DNC": "DNC"},
            "Closed solutions: class means (columns are classes) and their Gram matrices",
        ),
        "class_means": partial(
            class_means,
            means,
            names,
            "Class means (columns are classes) of the runs of the lowest loss, and their Gram matrices",
        ),
    }
    for row in best.to_dict("records"):
        figures[f"run_{row['experiment']}"] = _run_figure(tables, row)
    if "series" in tables:
        for name, series_runs in tables["series"].groupby("experiment", sort=False):
            figures |= _series_figures(str(name), series_runs, tables)
    return figures


def _series_figures(
    name: str, runs: pd.DataFrame, tables: Mapping[str, pd.DataFrame]
) -> dict[str, DrawFigure]:
    first = runs.iloc[0]
    setting = rf"$K = {first['classes']}$, $L = {first['depth']}$"
    if not pd.isna(first["axis"]):
        label = AXES.get(first["axis"], first["axis"])
        counts = counts_by_value(runs)
        title = f"{setting}, {counts['runs'].max()} runs at each {label}"
        return {f"against_axis_{name}": partial(against_axis, runs, counts, label, title)}
    figures = {f"run_{name}": _run_figure(tables, best_runs(runs).iloc[0].to_dict())}
    spread = tables.get("spread")
    if spread is not None and (spread["experiment"] == name).any():
        title = rf"{setting}, $\lambda = {first['penalty_value']:g}$, {len(runs)} runs"
        history, spread, spectra = (
            table[table["experiment"] == name]
            for table in (tables["history"], spread, tables["singular_values"])
        )
        figures[f"through_training_{name}"] = partial(through_training, history, spread, spectra, runs, title)
    return figures


def _run_figure(tables: Mapping[str, pd.DataFrame], row: Mapping[Hashable, Any]) -> DrawFigure:
    history, singular, means = (
        rows_of(tables[name], row) for name in ("history", "singular_values", "class_means")
    )
    return partial(run_figure, history, singular, means, row)


def rows_of(table: pd.DataFrame, row: Mapping[Hashable, Any]) -> pd.DataFrame:
    """Return the rows of one run."""
    keys = [key for key in ("experiment", "seed", "x") if key in table and not pd.isna(row.get(key))]
    for key in keys:
        table = table[table[key] == row[key]]
    return table


def _row_label(row: Mapping[Hashable, Any]) -> str:
    return f"$K = {row['classes']}$\n{row['ranks']}\n{row['loss_over_dnc']:.3f} DNC\n{row['structure']}"
