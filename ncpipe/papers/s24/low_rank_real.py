"""Run the stage low_rank_real: compare networks with S24's head on data with DNC and SRG [S24 6.2, 6.3]."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from ncpipe.papers.s24.figures.heads import (
    collapse_by_layer,
    gram_matrices,
    losses_by_value,
    ranks_by_value,
    singular_values,
    training,
)
from ncpipe.papers.s24.head_columns import gram_rows_of_head, means_of_head, singular_rows_of_head
from ncpipe.papers.s24.head_ranks import DATA_CUT, head_of
from ncpipe.papers.s24.tables.heads import LAMBDA, best_by_value, by_value, head_runs
from ncpipe.papers.s24.tables.low_rank import claim_numbers, run_keys
from ncpipe.study import InputError, Run, TrainedRun, load_params, stage_table, trained_runs

SPREAD = "nc1_trace_ratio"
LARGEST = {"dnc1_layers": "dnc1_trace_pinv", "nc1_layers": SPREAD}  # of all layers: columns of runs.csv
SETS = {"mnist": "MNIST", "cifar10": "CIFAR-10"}


def low_rank_real() -> dict[str, Any]:
    """Compare networks with a deep head on real data with deep neural collapse and low-rank solutions.

    Tables: runs, by_value, singular_values, gram, spreads; claimed, the runs with `claim_numbers`. Figures:
    rank_value, loss_value, collapse, gram, and for each experiment training_NAME and singular_values_NAME.
    """
    params = load_params()
    names = params.sweep.experiments
    if misfit := next((name for name in names if not _fits(params.experiments[name])), None):
        raise InputError(
            f"sweep.experiments: {misfit} is no network with a head under the squared error on data; "
            "this stage is about these"
        )
    if len(params.sweep.depths) > 1:
        raise InputError("sweep.depths: these figures are of one depth; list one")
    trained = {name: [*trained_runs(name)] for name in names}
    singular, gram, classes = _matrices([run for runs in trained.values() for run in runs])
    runs = head_runs(stage_table("results", "runs"), classes)
    runs = runs.sort_values("experiment", key=lambda column: column.map(names.index), kind="stable")
    history, metrics = stage_table("results", "history"), stage_table("metrics", "measurements")
    first = [runs[0].run for runs in trained.values()]
    spreads = pd.concat([_spreads(metrics, run, SPREAD) for run in first], ignore_index=True)
    for column, metric in LARGEST.items():
        layers = pd.concat([_spreads(metrics, run, metric) for run in first], ignore_index=True)
        largest = layers.groupby(run_keys(layers))["value"].max().rename(column).reset_index()
        runs = runs.merge(largest, on=run_keys(runs), how="left")
    label = r"$\lambda$" if params.sweep.axis in (None, LAMBDA) else str(params.sweep.axis)
    titles = {name: _title(params.experiments[name]) for name in names}
    best = best_by_value(runs)
    outputs: dict[str, Any] = {"runs": runs, "by_value": by_value(runs), "singular_values": singular}
    outputs |= {"gram": gram, "spreads": spreads, "claimed": claim_numbers(runs)}
    for name in names:
        group = runs[runs["experiment"] == name]
        title = f"Singular values of the head's class means: {titles[name]}"
        outputs[f"training_{name}"] = training(history, group, SPREAD, label, f"Training: {titles[name]}")
        outputs[f"singular_values_{name}"] = singular_values(singular, group, DATA_CUT, label, title)
    outputs["rank_value"] = ranks_by_value(runs, classes, label, titles)
    outputs["collapse"] = collapse_by_layer(spreads, runs, label, titles)
    if len(best):
        outputs["gram"] = gram, gram_matrices(gram, best, label, titles)
    if levelled := [name for name in names if runs[runs["experiment"] == name]["loss_dnc"].notna().all()]:
        outputs["loss_value"] = losses_by_value(runs, label, {name: titles[name] for name in levelled})
    return outputs


def _fits(spec: Any) -> bool:
    return bool(spec.model.has_head and not spec.model.has_free_features and spec.loss == "mse")


def _title(spec: Any) -> str:
    regularised = {"head": "DUFM-like", "all": "standard"}.get(spec.penalty.scope, "matrices")
    return f"{SETS.get(spec.data.source, spec.data.source)}, {regularised}"


def _matrices(runs: Sequence[TrainedRun]) -> tuple[pd.DataFrame, pd.DataFrame, int]:
    """Return singular values and Gram matrices of every run that ended finite, and K."""
    singular: list[dict[str, Any]] = []
    gram: list[dict[str, Any]] = []
    for trained in runs:
        key, means, classes = trained.run.columns, means_of_head(trained), len(trained.features.weight)
        singular += [key | row for row in singular_rows_of_head(means)]
        gram += [key | row for row in gram_rows_of_head(means)]
    return pd.DataFrame(singular), pd.DataFrame(gram), classes


def _spreads(table: pd.DataFrame, run: Run, metric: str) -> pd.DataFrame:
    """Return a metric of H_1, ..., H_L of each run of an experiment: layer (M1, ...) and value."""
    table = table[table["experiment"] == run.experiment]
    head = head_of(run)
    layers = {layer: f"M{at}" for at, layer in enumerate((head.input_layer, *head.after), start=1)}
    table = table[(table["metric"] == metric) & (table["split"] == "train") & table["layer"].isin(layers)]
    return table.assign(layer=table["layer"].map(layers))[[*run_keys(table), "layer", "value"]]
