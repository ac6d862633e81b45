"""Figures of the papers' own stages from made-up tables, for `figure_cases.py`."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ncpipe.papers.s24.figures import heads, low_rank
from ncpipe.papers.s24.figures.class_means import class_means, run_figure
from ncpipe.papers.s24.figures.low_rank_series import against_axis, through_training
from ncpipe.papers.s24.tables.heads import head_runs
from ncpipe.papers.s24.tables.low_rank import best_runs, counts_by_value, with_ranks
from ncpipe.papers.s25.proof_networks import constructed_gap, counterexample, trained_and_constructed
from ncpipe.tables.keys import RUN

ALL = range(5)  # seeds


# Deep features models: of five runs one gives classes up, and one merges two


def dufm_runs(depth: int = 4) -> pd.DataFrame:
    runs = pd.DataFrame(
        {
            "seed": ALL, "loss": [0.20, 0.24, 0.45, 0.30, 0.19], "classes_given_up": [0, 0, 9, 0, 0],
            "ranks": ["5-5-10", "7-5-10", "1-1-1", "10-10-10", "9-9-9"], "train_error": [0, 0, 0.9, 0, 0.1],
        }
    )  # fmt: skip
    same = {
        "experiment": "k10", "depth": depth, "classes": 10, "penalty_value": 0.004, "finished": True,
        "loss_dnc": 0.25, "loss_srg": 0.18, "structure": "other",
    }  # fmt: skip
    return with_ranks(runs.assign(**same, loss_over_dnc=runs["loss"] / 0.25))


def along_axis() -> pd.DataFrame:
    """Runs at two values of an axis, one of which finds DNC."""
    runs = pd.concat([dufm_runs().assign(x=10), dufm_runs().query("seed == 0").assign(x=20)])
    runs["dnc_found"] = runs["ranks"] == "10-10-10"
    runs.loc[runs["dnc_found"], "loss_over_dnc"] = 1 - 1e-7  # DNC, to rounding
    return runs


def at_epochs(depth: int = 4) -> pd.DataFrame:
    """Losses by terms, and spreads of two layers."""
    rows = [("k10", depth, seed, epoch, (seed + 2) / epoch) for seed in ALL for epoch in (1, 2, 10)]
    table = pd.DataFrame(rows, columns=[*RUN, "epoch", "loss"])
    return table.assign(penalty=table["loss"] / 4, fit=0.75 * table["loss"])


def spreads() -> pd.DataFrame:
    rows = [
        (seed, epoch, f"H{layer}", 10.0 ** -(seed + layer), 10.0 ** -(2 * seed))
        for seed in ALL
        for epoch in (1, 10)
        for layer in (1, 2)
    ]
    return pd.DataFrame(rows, columns=["seed", "epoch", "layer", "dnc1_trace_pinv", "nc1_trace_ratio"])


def layer_names(depth: int) -> list[str]:
    return [*(f"~M{at}" for at in range(2, depth + 1)), f"M{depth - 1}", f"M{depth}"]


def singular(depth: int = 4, seeds: range = range(1)) -> pd.DataFrame:
    rows = [
        ("k10", depth, seed, layer, place, 4.0 / (place + at))
        for seed in seeds
        for at, layer in enumerate(layer_names(depth))
        for place in (1, 2, 3)
    ]
    return pd.DataFrame(rows, columns=[*RUN, "layer", "place", "value"])


MEANS = np.array([[0, 1, 1], [0, 0, 1e-5], [2, 0, 0], [0, 1, 1.1], [0, 0, -3]])  # (units, classes)


def means(depth: int = 4) -> pd.DataFrame:
    rows = [
        ("k10", layer, group, unit, (at + 1) * MEANS[unit, group])
        for at, layer in enumerate(layer_names(depth))
        for unit, group in np.ndindex(MEANS.shape)
    ]
    return pd.DataFrame(rows, columns=["experiment", "layer", "class", "unit", "value"])


def one_run(depth: int) -> Figure:
    (row,) = best_runs(dufm_runs(depth)).to_dict("records")
    return run_figure(at_epochs(depth).query("seed == 0"), singular(depth), means(depth), row)


def split() -> Figure:
    rows = [("k10", 10, "trained", 0.1, 0.03, 0.07), ("k10", 10, "DNC", 0.12, 0.05, 0.08)]
    columns = ["experiment", "classes", "solution", "fit", "last_penalty", "rest"]
    return low_rank.loss_split(pd.DataFrame(rows, columns=columns))


def ratios() -> Figure:
    rows = [(depth, points, 1 / points, 0.9 / depth) for depth in (3, 4) for points in (4, 5, 9)]
    table = pd.DataFrame(rows, columns=["depth", "points", "ratio", "limit"])
    return low_rank.level_ratios(table, 50, 5e-4)


# Heads on data: at the larger lambda one run gives classes up, and one merges two


def headed_runs() -> pd.DataFrame:
    runs = pd.DataFrame(
        {
            "seed": [0, 1, 2] * 2, "penalty_value": [0.005] * 3 + [0.01] * 3, "penalty_rule": "constant",
            "loss": [0.15, 0.18, 0.165, 0.45, 0.28, 0.33],  # the third below L_DNC at full rank
            "ranks": ["5-5-10", "7-5-10", "10-10-10", "1-1-1", "4-4-4", "9-9-9"],
            "classes_given_up": [0, 0, 0, 9, 0, 0], "train_error": [0, 0, 0, 0.9, 0, 0.1],
        }
    )  # fmt: skip
    levels = runs["penalty_value"].map({0.005: 0.17, 0.01: 0.335})
    return runs.assign(
        experiment="like", depth=4, finished=True, loss_dnc=levels, loss_srg=0.8 * levels,
        loss_over_dnc=runs["loss"] / levels, test_error=0.1, rank_features=5.0, ranks_before=runs["ranks"],
    )  # fmt: skip


HEADS, LABEL, NAMES = head_runs(headed_runs(), 10), r"$\lambda$", {"like": "MNIST"}


# Networks of S25's proofs, whose powers of L are -1 and 0


def made_networks() -> pd.DataFrame:
    rows = []
    for name, power in (("one", -1.0), ("two", 0.0)):
        for depth in (32, 64, 128):
            for kind, scale in (("printed", 100.0), ("sharp", 1.0), ("shifts", 0.0)):
                value = scale * depth**power
                row: dict[str, Any] = {"experiment": name, "kind": kind, "depth": depth}
                row |= {"inner_penalty": value, "loss_gap": value or -1e-17, "loss_optimum": 0.02}
                row |= {"stage_one_penalty": value / 2, "stage_two_penalty": value / 2}
                row |= {"stage_one_bound": 10 * value, "stage_two_bound": 10 * value}
                row |= {"nc1_trace_ratio": value / 10, "nc3_cosine": value / 20}
                rows.append(row | {"nc2_etf": 1e-16, "nc2_identity": 0.5})
    return pd.DataFrame(rows)


LABELS = {"one": "L-RN1\n$\\lambda$", "two": "L-RN2\n$\\lambda/L$"}


def beside_trained() -> Figure:
    metrics = ("loss_gap", "nc1_trace_ratio", "nc2", "nc3_cosine")
    rows = [
        (name, depth, metric, -1.0 - depth / 10, 0.1)
        for name in LABELS
        for depth in (4, 2)
        for metric in metrics
    ]
    trained = pd.DataFrame(rows, columns=["experiment", "depth", "metric", "log10_mean", "log10_std"])
    networks = made_networks()
    return trained_and_constructed(networks.assign(nc2=networks["nc2_identity"]), trained, LABELS)


def price_and_gain() -> Figure:
    rows = [
        (place, regime, size, depth, size**2, size / depth, 1 / (1 + depth * size))
        for place in ("within", "beside")
        for regime in ("constant", "uniform", "theorem_4_6")
        for size, depth in ((0.1, 10), (0.01, 10), (0.1, 40))
    ]
    columns = ["place", "regime", "size", "depth", "motionless_gap", "price", "kept_share"]
    return counterexample(pd.DataFrame(rows, columns=columns))


PAPER_CASES: Mapping[str, Callable[[], Figure]] = {
    "dufm ranks": lambda: low_rank.ranks_by_penalty(
        pd.concat([dufm_runs(), dufm_runs().assign(penalty_value=0.008)])
    ),
    "dufm split": split,
    "dufm ratios": ratios,
    "dufm axis": lambda: against_axis(along_axis(), counts_by_value(along_axis()), "width", "Widths"),
    "dufm training": lambda: through_training(
        at_epochs(), spreads(), singular(seeds=ALL), dufm_runs(), "Runs"
    ),
    "dufm class means": lambda: class_means(means(), {"k10": "$K = 10$"}, "Means"),
    "dufm run": partial(one_run, 4),
    "dufm run, deep": partial(one_run, 7),
    "heads ranks": lambda: heads.ranks_by_value(HEADS, 10, LABEL, NAMES),
    "heads losses": lambda: heads.losses_by_value(HEADS, LABEL, NAMES),
    "proofs gap": lambda: constructed_gap(made_networks(), LABELS),
    "proofs trained": beside_trained,
    "proofs counterexample": price_and_gain,
}  # fmt: skip
