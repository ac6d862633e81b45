"""Run the stage low_rank: compare deep features models with DNC and SRG [S24 sec. 6]."""

import contextlib
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from ncpipe.papers.s24.dufm import LEAST_CLASSES, equal_decays, small_decay_ratio, srg_over_dnc
from ncpipe.papers.s24.dufm_runs import solution_split
from ncpipe.papers.s24.dufm_solutions import dnc_solution, srg_solution
from ncpipe.papers.s24.figures.study import RATIO_DECAY, RATIO_PER_CLASS, rows_of, study_figures
from ncpipe.papers.s24.head_columns import mean_rows, singular_rows, solution_rows
from ncpipe.papers.s24.params import Series, SeriesParams
from ncpipe.papers.s24.tables.low_rank import (
    best_runs,
    claim_numbers,
    layer_numbers,
    run_keys,
    with_ranks,
)
from ncpipe.study import InputError, Run, TrainedRun, load_params, stage_table, trained_runs

RATIO_DEPTHS, RATIO_POINTS = (3, 4, 5), range(4, 21)
EXAMPLE = equal_decays(10, 50, 4, 0.004)  # S24's, whose solutions are drawn
HISTORY = ("epoch", "loss", "penalty", "fit")


def low_rank() -> dict[str, Any]:
    """Compare deep unconstrained features models with deep neural collapse and low-rank solutions.

    runs, series: a row for each run of the sweep and of the series. history: losses through training, of the
    sweep's runs at their experiment's own penalty.value and of series without an axis. singular_values,
    class_means: of the runs of the lowest loss, and of all runs whose spread within classes was followed
    through training, which is `spread`. split, ratios, solutions: closed losses and matrices. claimed: runs
    and series with `claim_numbers`.

    `papers.s24.figures.study` draws these tables.
    """
    params = load_params()
    for name in params.sweep.experiments:
        spec = params.experiments[name]
        if not spec.model.has_free_features or spec.loss != "mse":
            raise InputError(
                f"sweep.experiments: {name} is no dufm under the squared error; this stage is about these"
            )
    if len(params.sweep.depths) > 1:
        raise InputError("sweep.depths: these figures are of one depth; list one")
    tables, trained = _sweep_tables(), _read_series()
    for name, series in typing.cast(SeriesParams, params).series.items():
        for kind, rows in _series_tables(name, series, trained).items():
            tables[kind] = pd.concat([tables[kind], rows], ignore_index=True) if kind in tables else rows
    figures = {name: draw() for name, draw in study_figures(tables).items()}
    both = {name: (tables[name], figures[name]) for name in tables.keys() & figures.keys()}
    claimed = pd.concat([tables[name] for name in ("runs", "series") if name in tables], ignore_index=True)
    return tables | figures | both | {"claimed": claim_numbers(claimed)}


def _sweep_tables() -> dict[str, pd.DataFrame]:
    """Return the tables of the sweep's runs and of the closed solutions."""
    params = load_params()
    history, runs = stage_table("results", "history"), with_ranks(stage_table("results", "runs"))
    data: dict[str, Any] = {name: params.experiments[name].data for name in params.sweep.experiments}
    classes = {name: source.classes for name, source in data.items()}
    penalties = {name: params.experiments[name].penalty.value for name in classes}
    runs["classes"] = runs["experiment"].map(classes)
    runs["own_penalty"] = runs["penalty_value"] == runs["experiment"].map(penalties)
    runs = runs.sort_values("experiment", key=lambda names: names.map(list(classes).index), kind="stable")
    base_runs = runs[runs["own_penalty"]]
    if missing := sorted(set(classes) - set(base_runs["experiment"])):
        raise InputError(
            f"sweep.values: {penalties[missing[0]]}, the value of {missing[0]}, is none of them; add it"
        )
    best = best_runs(base_runs)
    chosen = [
        params.run(row["experiment"], row["depth"], row["seed"], row.get("x"))
        for row in best.to_dict("records")
    ]
    singular, means = _matrices(chosen)
    keys = run_keys(base_runs)
    return {
        "runs": runs,
        "history": history.merge(base_runs[keys], on=keys)[[*_run_columns(history), *HISTORY]],
        "singular_values": singular,
        "class_means": means,
        "split": pd.DataFrame(_split(best, chosen)),
        "ratios": pd.DataFrame(_ratios()),
        "solutions": pd.DataFrame(_solutions()),
    }


def _read_series() -> dict[str, pd.DataFrame]:
    """Return the tables of all series; `spread` is there if one of them has it."""
    names = ("runs", "history", "singular_values", "class_means")
    tables = {name: stage_table("series", name) for name in names}
    with contextlib.suppress(InputError):
        tables["spread"] = stage_table("series", "spread")
    return tables


def _series_tables(name: str, series: Series, read: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Return a series' part of each table."""
    parts = {kind: table[table["experiment"] == name] for kind, table in read.items()}
    tables = {kind: part.reset_index(drop=True) for kind, part in parts.items() if len(part)}
    if "runs" not in tables:
        raise InputError(f"data/series/{name}/runs.csv: not found; run dvc repro (stage series)")
    finite = tables["runs"]["finished"].astype(bool)
    runs = tables["runs"].assign(converged=finite, selected=finite)
    runs = layer_numbers(runs, tables["singular_values"], tables.get("spread")).assign(axis=series.axis)
    if series.axis:
        return {"series": runs}
    history, singular, means = (tables[kind] for kind in ("history", "singular_values", "class_means"))
    best = best_runs(runs).iloc[0].to_dict()
    result = {"series": runs, "class_means": rows_of(means, best)}
    if "spread" in tables:  # whose figure has every run
        result |= {"history": history, "singular_values": singular, "spread": tables["spread"]}
    else:
        result |= {"history": rows_of(history, best), "singular_values": rows_of(singular, best)}
    return result | {"history": result["history"][[*_run_columns(history), *HISTORY]]}


def _run_columns(table: pd.DataFrame) -> list[str]:
    """Return the columns that name a run and are in this table."""
    return [name for name in ("experiment", "depth", "x", "seed") if name in table]


def _trained_run(run: Run) -> TrainedRun:
    return next(trained for trained in trained_runs(run.experiment) if trained.run == run)


def _matrices(chosen: Sequence[Run]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return singular values and class means of each run."""
    singular: list[dict[str, Any]] = []
    means: list[dict[str, Any]] = []
    for run in chosen:
        trained = _trained_run(run)
        key = {"experiment": run.experiment} | ({} if run.value is None else {"x": run.value})
        key |= {"seed": run.seed}
        singular += [key | row for row in singular_rows(trained)]
        means += [key | row for row in mean_rows(trained)]
    return pd.DataFrame(singular), pd.DataFrame(means)


def _split(best: pd.DataFrame, chosen: Sequence[Run]) -> Iterator[dict[str, Any]]:
    """Yield error, W_L's penalty and the rest, of the best runs and of the closed solutions."""
    for row, run in zip(best.to_dict("records"), chosen, strict=True):
        key = {"experiment": row["experiment"], "classes": row["classes"]}
        parts = {
            "trained": (row["fit"], row["last_penalty"], row["inner_penalty"]),
            "DNC": solution_split(run, "dnc"),
        }
        if row["classes"] >= LEAST_CLASSES:
            parts["SRG"] = solution_split(run, "srg")
        for name, (fit, last, rest) in parts.items():
            yield key | {"solution": name, "fit": fit, "last_penalty": last, "rest": rest}


def _solutions() -> Iterator[dict[str, Any]]:
    """Yield class means of S24's example, constructed."""
    for name, solution in (("SRG", srg_solution(EXAMPLE)), ("DNC", dnc_solution(EXAMPLE))):
        yield from ({"experiment": name} | row for row in solution_rows(solution))


def _ratios() -> Iterator[dict[str, Any]]:
    """Yield L_SRG/L_DNC and its limit for small lambda, for K = r(r-1)/2."""
    for depth in RATIO_DEPTHS:
        for points in RATIO_POINTS:
            model = equal_decays(points * (points - 1) // 2, RATIO_PER_CLASS, depth, RATIO_DECAY)
            limit = small_decay_ratio(points, depth)
            yield {"depth": depth, "points": points, "ratio": srg_over_dnc(model), "limit": limit}
