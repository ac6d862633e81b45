"""Run the stage low_rank: compare deep features models with DNC and SRG [S24 sec. 6]."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from ncpipe.config.params import Params, Series, load_params
from ncpipe.config.specs import FreeData, Run
from ncpipe.features.files import read_features
from ncpipe.papers.outputs import LOW_RANK, SERIES
from ncpipe.papers.s24.figures.class_means import class_means, run_figure
from ncpipe.papers.s24.figures.low_rank import (
    level_ratios,
    loss_curves,
    loss_split,
    ranks_by_penalty,
    singular_values_by_layer,
)
from ncpipe.papers.s24.figures.low_rank_series import against_axis, through_training
from ncpipe.papers.s24.head_columns import mean_rows, singular_rows, solution_rows
from ncpipe.papers.s24.tables.low_rank import (
    best_runs,
    counts_by_value,
    layer_numbers,
    low_rank_sentence,
    with_ranks,
)
from ncpipe.runs.figure_pool import DrawFigure, draw
from ncpipe.runs.grid import read_grid
from ncpipe.system.artifacts import FEATURES, RESULTS, publish_folder
from ncpipe.system.console import say
from ncpipe.system.errors import InputError
from ncpipe.tables.files import read_table
from ncpipe.tables.keys import rows_at
from ncpipe.theory.dufm import LEAST_CLASSES, equal_decays, small_decay_ratio, srg_over_dnc
from ncpipe.theory.dufm_runs import solution_split
from ncpipe.theory.dufm_solutions import dnc_solution, srg_solution

RATIO_DEPTHS, RATIO_POINTS = (3, 4, 5), range(4, 21)
RATIO_PER_CLASS, RATIO_DECAY = 50, 5e-4
EXAMPLE = equal_decays(10, 50, 4, 0.004)  # S24's, whose solutions are drawn
AXES = {"model.width": "width", "optimizer.learning_rate": "learning rate", "penalty.value": r"$\lambda$"}


def low_rank() -> None:
    """Write tables and figures to data/low_rank, from data/results and data/features.

    Figures of the sweep: loss_curves, singular_values, class_means, rank_penalty, loss_split and
    run_EXPERIMENT, the run of the lowest loss. Of the theory: level_ratios, solutions. Of each series NAME
    with an axis: against_axis_NAME; of others: run_NAME and, with snapshots, through_training_NAME. A figure
    of one lambda takes the experiment's own penalty.value.

    The tables runs and series have a row for each run of the sweep and of the series.
    """
    params = load_params()
    for name in params.sweep.experiments:
        if not params.experiments[name].model.has_free_features:
            raise InputError(f"sweep.experiments: {name} has no free features; this stage is about dufm")
    if len(params.sweep.depths) > 1:
        raise InputError("sweep.depths: these figures are of one depth; list one")
    history = read_table(RESULTS / "history.csv", "aggregate")
    runs = with_ranks(read_table(RESULTS / "runs.csv", "aggregate"))
    classes = {name: _classes(params, name) for name in params.sweep.experiments}
    runs["classes"] = runs["experiment"].map(classes)
    runs = runs.sort_values("experiment", key=lambda names: names.map(list(classes).index), kind="stable")
    own = {name: params.experiments[name].penalty.value for name in classes}
    at_own = runs[runs["penalty_value"] == runs["experiment"].map(own)]
    if missing := sorted(set(classes) - set(at_own["experiment"])):
        raise InputError(
            f"sweep.values: {own[missing[0]]}, the value of {missing[0]}, is none of them; add it"
        )
    best = best_runs(at_own)
    chosen = [_run_of(params, row) for row in best.to_dict("records")]
    singular, means = _matrices(chosen)
    split = pd.DataFrame(_split(best, chosen))
    ratios, solutions = pd.DataFrame(_ratios()), pd.DataFrame(_solutions())
    tables = {
        "runs": runs,
        "singular_values": singular,
        "class_means": means,
        "split": split,
        "ratios": ratios,
    }
    if params.series:
        tables["series"] = pd.concat([_series_runs(name) for name in params.series], ignore_index=True)
    with publish_folder(LOW_RANK) as folder:
        for name, table in tables.items():
            table.to_csv(folder / f"{name}.csv", index=False, lineterminator="\n")
        figures: dict[str, DrawFigure] = {
            "loss_curves": partial(loss_curves, history, at_own),
            "singular_values": partial(singular_values_by_layer, singular, best),
            "rank_penalty": partial(ranks_by_penalty, runs),
            "loss_split": partial(loss_split, split),
            "level_ratios": partial(level_ratios, ratios, RATIO_PER_CLASS, RATIO_DECAY),
        }
        title = "Closed solutions: class means (columns are classes) and their Gram matrices"
        figures["solutions"] = partial(class_means, solutions, {"SRG": "SRG", "DNC": "DNC"}, title)
        rows = {row["experiment"]: _row_label(row) for row in best.to_dict("records")}
        title = "Class means (columns are classes) of the runs of the lowest loss, and their Gram matrices"
        figures["class_means"] = partial(class_means, means, rows, title)
        for row in best.to_dict("records"):
            figures[f"run_{row['experiment']}"] = partial(
                run_figure, _of(history, row), _of(singular, row), _of(means, row), row
            )
        for name, series in (params.series or {}).items():
            figures |= _series_figures(name, series, folder)
        draw(folder, figures)
    for name in classes:
        say(f"{name}: {low_rank_sentence(at_own[at_own['experiment'] == name])}")


def _series_tables(name: str) -> dict[str, pd.DataFrame]:
    tables = {path.stem: read_table(path, "series") for path in sorted((SERIES / name).glob("*.csv"))}
    if "runs" not in tables:
        raise InputError(f"{SERIES / name / 'runs.csv'}: not found; run dvc repro (stage series)")
    return tables


def _series_runs(name: str) -> pd.DataFrame:
    """Return a series' runs with the columns of `layer_numbers`; finite ones are used."""
    tables = _series_tables(name)
    runs = tables["runs"]
    finite = runs["finished"].astype(bool)
    runs = runs.assign(converged=finite, selected=finite)
    return layer_numbers(runs, tables["singular_values"], tables.get("spread"))


def _series_figures(name: str, series: Series, folder: Path) -> dict[str, DrawFigure]:
    """Return a series' figures; write the table of its counts and print a line for each value."""
    tables = _series_tables(name)
    runs = tables["runs"]
    setting = rf"$K = {runs['classes'].iloc[0]}$, $L = {series.depth}$"
    if series.axis:
        label = AXES.get(series.axis, series.axis)
        counts = counts_by_value(runs)
        counts.to_csv(folder / f"against_axis_{name}.csv", index=False, lineterminator="\n")
        title = f"{setting}, {counts['runs'].max()} runs at each {label}"
        for row in counts.to_dict("records"):
            say(
                f"{name} {series.axis}={row['x']:g}: DNC found by {row['dnc_found']} of {row['runs']} runs, "
                f"share in [{row['low']:.2f}, {row['high']:.2f}], mean rank {row['mean_rank']:.2f}"
            )
        return {f"against_axis_{name}": partial(against_axis, runs, counts, label, title)}
    figures: dict[str, DrawFigure] = {}
    say(f"{name}: {low_rank_sentence(runs.assign(experiment=name))}")
    if "spread" in tables:
        title = rf"{setting}, $\lambda = {runs['penalty_value'].iloc[0]:g}$, {len(runs)} runs"
        figures[f"through_training_{name}"] = partial(
            through_training, tables["history"], tables["spread"], tables["singular_values"], runs, title
        )
    best = best_runs(runs).iloc[0].to_dict()
    history, singular, means = (
        _of(tables[table], best) for table in ("history", "singular_values", "class_means")
    )
    return figures | {f"run_{name}": partial(run_figure, history, singular, means, best)}


def _of(table: pd.DataFrame, row: dict[Any, Any]) -> pd.DataFrame:
    """Return the rows of one run."""
    keys = [key for key in ("experiment", "seed", "x") if key in table and not pd.isna(row.get(key))]
    return rows_at(table, {key: row[key] for key in keys})


def _row_label(row: dict[Any, Any]) -> str:
    return f"$K = {row['classes']}$\n{row['ranks']}\n{row['loss_over_dnc']:.3f} DNC\n{row['structure']}"


def _classes(params: Params, name: str) -> int:
    data = params.experiments[name].data
    assert isinstance(data, FreeData)
    return data.classes


def _run_of(params: Params, row: Any) -> Run:
    """Return the run of a row of runs.csv."""
    for run in read_grid(params, row["experiment"]):
        if (run.depth, run.seed) == (row["depth"], row["seed"]) and run.spec.penalty.value == row[
            "penalty_value"
        ]:
            return run
    raise InputError(
        f"{row['experiment']} L={row['depth']} seed={row['seed']}: not in the grid; run dvc repro"
    )


def _matrices(chosen: Sequence[Run]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return singular values and class means of each run."""
    singular: list[dict[str, Any]] = []
    means: list[dict[str, Any]] = []
    for run in chosen:
        features = read_features((FEATURES / run.path).with_suffix(".safetensors"))
        key = {"experiment": run.experiment} | ({} if run.value is None else {"x": run.value})
        key |= {"seed": run.seed}
        singular += [key | row for row in singular_rows(run, features)]
        means += [key | row for row in mean_rows(run, features)]
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
    for name, found in (("SRG", srg_solution(EXAMPLE)), ("DNC", dnc_solution(EXAMPLE))):
        yield from ({"experiment": name} | row for row in solution_rows(found))


def _ratios() -> Iterator[dict[str, Any]]:
    """Yield L_SRG/L_DNC and its limit for small lambda, for K = r(r-1)/2."""
    for depth in RATIO_DEPTHS:
        for points in RATIO_POINTS:
            model = equal_decays(points * (points - 1) // 2, RATIO_PER_CLASS, depth, RATIO_DECAY)
            limit = small_decay_ratio(points, depth)
            yield {"depth": depth, "points": points, "ratio": srg_over_dnc(model), "limit": limit}
