"""Tabulate networks with a head on data with the levels of their features model: runs, counts by lambda."""

import pandas as pd

from ncpipe.papers.s24.tables.low_rank import with_ranks

LAMBDA = "penalty.value"  # the axis whose values are lambda, by the penalty's rule
SETTING = ["experiment", "at"]


def head_runs(runs: pd.DataFrame, classes: int) -> pd.DataFrame:
    """Return runs with mean_rank and kept (`tables.low_rank.with_ranks`), at, low_rank and below_dnc.

    at: lambda of the inner layers, or the axis's value where that is another key. low_rank: kept, with a mean
    rank below K. below_dnc: kept, with a loss below L_DNC; never where there is no such level.
    """
    runs = with_ranks(runs)
    of_lambda = "axis" not in runs or runs["axis"].iloc[0] == LAMBDA
    over = runs["depth"].where(runs["penalty_rule"] == "over_depth", 1)
    at = runs["penalty_value"] / over if of_lambda else runs["x"]
    return runs.assign(
        at=at,
        low_rank=runs["kept"] & (runs["mean_rank"] < classes),
        below_dnc=runs["kept"] & (runs["loss_over_dnc"] < 1),
    )


def by_value(runs: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each experiment and value of `at`: counts of runs, and means of those that are kept.

    runs, lost (give classes up, merge some, or diverge), low_rank, low_rank_below_dnc, mean_rank with
    rank_low and rank_high, loss_over_dnc with loss_low and loss_high, srg_over_dnc, test_error.
    """
    rows = []
    for (experiment, at), group in runs.groupby(SETTING, sort=False):
        kept = group[group["kept"]]
        rows.append(
            {
                "experiment": experiment,
                "at": at,
                "runs": len(group),
                "lost": len(group) - len(kept),
                "low_rank": int(group["low_rank"].sum()),
                "low_rank_below_dnc": int((group["low_rank"] & group["below_dnc"]).sum()),
                "mean_rank": kept["mean_rank"].mean(),
                "rank_low": kept["mean_rank"].min(),
                "rank_high": kept["mean_rank"].max(),
                "loss_over_dnc": kept["loss_over_dnc"].mean(),
                "loss_low": kept["loss_over_dnc"].min(),
                "loss_high": kept["loss_over_dnc"].max(),
                "srg_over_dnc": (group["loss_srg"] / group["loss_dnc"]).iloc[0],
                "test_error": kept["test_error"].mean(),
            }
        )
    return pd.DataFrame(rows)


def best_by_value(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the run of the lowest loss of each experiment and value, of those that keep their classes."""
    kept = runs[runs["kept"]]
    return kept.loc[kept.groupby(SETTING, sort=False)["loss"].idxmin()]
