"""Stage low_rank: deep features models beside DNC and SRG [S24 sec. 6]."""

from collections.abc import Iterator
from typing import Any

import pandas as pd

from ncpipe.artifacts import FEATURES, LOW_RANK, RESULTS, publish_folder
from ncpipe.commands.grid import read_grid
from ncpipe.console import say
from ncpipe.errors import InputError
from ncpipe.features.files import read_features
from ncpipe.features.low_rank import gram_rows, singular_rows
from ncpipe.figures.low_rank import (
    gram_matrices,
    level_ratios,
    loss_curves,
    loss_split,
    ranks_by_penalty,
    singular_values_by_layer,
)
from ncpipe.figures.save import save_figure
from ncpipe.optima.dufm import LEAST_CLASSES, equal_decays, small_decay_ratio, srg_over_dnc
from ncpipe.optima.dufm_runs import solution_split
from ncpipe.params import Params, load_params
from ncpipe.specs import FreeData, Run
from ncpipe.tables.files import read_table
from ncpipe.tables.low_rank import best_runs, low_rank_sentence, with_ranks

RATIO_DEPTHS, RATIO_POINTS = (3, 4, 5), range(4, 21)
RATIO_PER_CLASS, RATIO_DECAY = 50, 5e-4


def low_rank() -> None:
    """data/results and data/features -> data/low_rank, tables and figures as PNG and SVG.

    loss_curves, singular_values, gram, rank_penalty, loss_split, level_ratios. Where one lambda is
    shown it is the experiment's own penalty.value, and where one run is, that of the lowest loss.
    """
    params = load_params()
    if others := [name for name in params.sweep.experiments if not _free(params, name)]:
        raise InputError(f"sweep.experiments: {others[0]} has no free features; this stage is about dufm")
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
    singular, gram = _matrices(params, best)
    split, ratios = pd.DataFrame(_split(params, best)), pd.DataFrame(_ratios())
    with publish_folder(LOW_RANK) as folder:
        tables = {"runs": runs, "singular_values": singular, "gram": gram, "split": split, "ratios": ratios}
        for name, table in tables.items():
            table.to_csv(folder / f"{name}.csv", index=False, lineterminator="\n")
        save_figure(loss_curves(history, at_own), folder, "loss_curves")
        save_figure(singular_values_by_layer(singular, best), folder, "singular_values")
        save_figure(gram_matrices(gram, best), folder, "gram")
        save_figure(ranks_by_penalty(runs), folder, "rank_penalty")
        save_figure(loss_split(split), folder, "loss_split")
        save_figure(level_ratios(ratios, RATIO_PER_CLASS, RATIO_DECAY), folder, "level_ratios")
    for name in classes:
        say(f"{name}: {low_rank_sentence(at_own[at_own['experiment'] == name])}")


def _free(params: Params, name: str) -> bool:
    return params.experiments[name].model.has_free_features


def _classes(params: Params, name: str) -> int:
    data = params.experiments[name].data
    assert isinstance(data, FreeData)
    return data.classes


def _run_of(params: Params, row: Any) -> Run:
    """The run of a row of runs.csv."""
    for run in read_grid(params, row["experiment"]):
        if (run.depth, run.seed) == (row["depth"], row["seed"]) and run.spec.penalty.value == row[
            "penalty_value"
        ]:
            return run
    raise InputError(
        f"{row['experiment']} L={row['depth']} seed={row['seed']}: not in the grid; run dvc repro"
    )


def _matrices(params: Params, best: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Singular values and Gram matrices of each experiment's best run."""
    singular: list[dict[str, Any]] = []
    gram: list[dict[str, Any]] = []
    for row in best.to_dict("records"):
        run = _run_of(params, row)
        features = read_features((FEATURES / run.path).with_suffix(".safetensors"))
        for table, rows in ((singular, singular_rows(run, features)), (gram, gram_rows(run, features))):
            table += [{"experiment": run.experiment} | cells for cells in rows]
    return pd.DataFrame(singular), pd.DataFrame(gram)


def _split(params: Params, best: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Error, W_L's penalty and the rest, of the best runs and of the solutions beside them."""
    for row in best.to_dict("records"):
        run = _run_of(params, row)
        place = {"experiment": row["experiment"], "classes": row["classes"]}
        parts = {
            "trained": (row["fit"], row["last_penalty"], row["inner_penalty"]),
            "DNC": solution_split(run, "dnc"),
        }
        if row["classes"] >= LEAST_CLASSES:
            parts["SRG"] = solution_split(run, "srg")
        for name, (fit, last, rest) in parts.items():
            yield place | {"solution": name, "fit": fit, "last_penalty": last, "rest": rest}


def _ratios() -> Iterator[dict[str, Any]]:
    """L_SRG/L_DNC and its limit for small lambda, for K = r(r-1)/2."""
    for depth in RATIO_DEPTHS:
        for points in RATIO_POINTS:
            model = equal_decays(points * (points - 1) // 2, RATIO_PER_CLASS, depth, RATIO_DECAY)
            limit = small_decay_ratio(points, depth)
            yield {"depth": depth, "points": points, "ratio": srg_over_dnc(model), "limit": limit}
