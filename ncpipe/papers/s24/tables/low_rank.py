"""Tabulate trained deep features models: ranks, the best run, how many lie below DNC."""

from typing import Any

import pandas as pd
from scipy import special

LEVEL = 0.95  # of intervals of a share
NUMBERS = (  # columns of `claim_numbers` that claims may be about
    *("first_rank", "last_rank", "rank_spread", "rank_spread_before", "rank_dip", "relu_rank", "mean_rank"),
    *("kept_over_dnc", "square", "triangular", "dnc1_layers", "nc1_layers", "fourth_share", "dnc_found"),
)


def run_keys(table: pd.DataFrame) -> list[str]:
    """Return the columns that identify a run."""
    return [key for key in ("experiment", "depth", "axis", "x", "seed") if key in table]


def with_ranks(runs: pd.DataFrame) -> pd.DataFrame:
    """Return runs with mean_rank, the mean rank of M_2, ..., M_{L-1} (of M_2 for L = 2), and `kept`.

    kept: the run ended finite, gives no class up and has no train error; others are reported but excluded
    from means. Two classes with the same features cost as much as one that is given up, without an output of
    0; single samples of a class may be given up.
    """
    kept = runs["finished"].astype(bool) & (runs["classes_given_up"] == 0) & (runs["train_error"] == 0)
    mean_rank = [sum(ranks) / len(ranks) for ranks in _inner(_ranks(runs["ranks"]))]
    return runs.assign(mean_rank=mean_rank, kept=kept)


def claim_numbers(runs: pd.DataFrame) -> pd.DataFrame:
    """Add the numbers that claims are about to the columns of `with_ranks`.

    All but dnc_found are NaN for a run that is not kept, and so is fourth_share of `layer_numbers`.

    mean_rank: as in `with_ranks`.
    first_rank, last_rank: of M_2 and of M_L.
    rank_spread: the largest rank of M_2, ..., M_{L-1} minus the least.
    rank_spread_before: the same for M~_2, ..., M~_{L-1}.
    relu_rank: the rank that the ReLU adds to M_{L-1}.
    rank_dip: of a head on data, the least rank of M_1 and M~_L less the least of M_2, ..., M_{L-1}; above 0
    there is a bottleneck in the middle.
    kept_over_dnc: the loss over L_DNC.
    square, triangular: 1 where M_{L-1} has the Gram matrix of the square, or that of SRG, else 0.
    dnc_found: 1 or 0; a run that loses classes has not found DNC.
    """
    runs = with_ranks(runs)
    after, before = (_ranks(runs[column]) for column in ("ranks", "ranks_before"))
    inner, inner_before = _inner(after), _inner(before)
    structure = runs["structure"].fillna("").astype(str)
    numbers: dict[str, Any] = {
        "mean_rank": runs["mean_rank"],
        "first_rank": [ranks[0] for ranks in after],
        "last_rank": [ranks[-1] for ranks in after],
        "rank_spread": [max(ranks) - min(ranks) for ranks in inner],
        "rank_spread_before": [max(ranks) - min(ranks) for ranks in inner_before],
        "relu_rank": [ranks[-1] - first[-1] for ranks, first in zip(inner, inner_before, strict=True)],
        "kept_over_dnc": runs["loss_over_dnc"],
        "square": (structure == "C_4").astype(float),
        "triangular": structure.str.match(r"SRG|T\(").astype(float),
    }
    if "rank_features" in runs:
        ends = zip(runs["rank_features"].astype(float), before, inner, strict=True)
        numbers["rank_dip"] = [min(first, last[-1]) - min(ranks) for first, last, ranks in ends]
    if "fourth_share" in runs:
        numbers["fourth_share"] = runs["fourth_share"]
    kept_numbers = pd.DataFrame(numbers, index=runs.index).where(runs["kept"])
    dnc_found = (runs["kept"] & runs["dnc_found"].eq(True)).astype(float)
    return runs.assign(**{name: kept_numbers[name] for name in numbers}, dnc_found=dnc_found)


def layer_numbers(
    runs: pd.DataFrame, singular_values: pd.DataFrame, spread: pd.DataFrame | None
) -> pd.DataFrame:
    """Add fourth_share to a series' runs and, where samples of a class differ, dnc1_layers and nc1_layers.

    fourth_share: the fourth singular value of M_{L-1} over the first. dnc1_layers, nc1_layers: the largest
    `dnc1_trace_pinv` and `nc1_trace_ratio` of all layers at the last epoch of `spread`.
    """
    keys = run_keys(runs)
    inner = runs[keys].assign(layer="M" + (runs["depth"] - 1).astype(str))
    inner_values = inner.merge(singular_values, on=[*keys, "layer"])
    first, fourth = (inner_values.loc[inner_values["place"] == place, [*keys, "value"]] for place in (1, 4))
    both = fourth.merge(first, on=keys, suffixes=("", "_first"))
    both = both.assign(fourth_share=both["value"] / both["value_first"])[[*keys, "fourth_share"]]
    runs = runs.merge(both, on=keys, how="left")
    if spread is None:
        return runs
    end = spread[spread["epoch"] == spread["epoch"].max()]
    largest = end.groupby(keys, as_index=False, dropna=False).agg(
        dnc1_layers=("dnc1_trace_pinv", "max"), nc1_layers=("nc1_trace_ratio", "max")
    )
    return runs.merge(largest, on=keys, how="left")


def _ranks(joined: pd.Series) -> list[list[float]]:
    """Return ranks of each layer from '5-5-10'; NaN where there are none."""
    parts = joined.fillna("nan").astype(str).str.split("-")
    return [[float(rank) for rank in ranks] for ranks in parts]


def _inner(ranks_by_run: list[list[float]]) -> list[list[float]]:
    """Return those of M_2, ..., M_{L-1}, or of M_2 for L = 2."""
    return [ranks[:-1] or ranks for ranks in ranks_by_run]


def best_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """Return each experiment's run of the lowest loss, of those that keep their classes."""
    chosen = [
        (group[group["kept"]] if group["kept"].any() else group).nsmallest(1, "loss")
        for _, group in runs.groupby("experiment", sort=False)
    ]
    return pd.concat(chosen, ignore_index=True)


def counts_by_value(runs: pd.DataFrame) -> pd.DataFrame:
    """Return per x the runs, kept, below L_DNC, DNC found, its share with low and high, their mean rank.

    The interval is Clopper and Pearson's: it covers the probability at least 95 times in 100. A run that
    loses classes or diverges has not found DNC. mean_rank: over runs that are kept.
    """
    rows: list[dict[str, Any]] = []
    for x, group in runs.groupby("x"):
        kept = group[group["kept"]]
        dnc = kept["dnc_found"].astype(bool)
        dnc_runs = int(dnc.sum())
        low, high = share_interval(dnc_runs, len(group))
        rows.append(
            {
                "x": x,
                "runs": len(group),
                "kept": len(kept),
                "below_dnc": int(((kept["loss_over_dnc"] < 1) & ~dnc).sum()),
                "dnc_found": dnc_runs,
                "share": dnc_runs / len(group),
                "low": low,
                "high": high,
                "mean_rank": kept["mean_rank"].mean(),
                "loss_over_dnc": kept["loss_over_dnc"].mean(),
            }
        )
    return pd.DataFrame(rows)


def share_interval(hits: int, total: int) -> tuple[float, float]:
    """Return Clopper and Pearson's 95 % interval of a probability, from `hits` of `total` draws."""
    tail = (1 - LEVEL) / 2
    low = 0.0 if hits == 0 else float(special.betaincinv(hits, total - hits + 1, tail))
    high = 1.0 if hits == total else float(special.betaincinv(hits + 1, total - hits, 1 - tail))
    return low, high
