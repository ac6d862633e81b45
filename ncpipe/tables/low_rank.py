"""Trained deep features models in numbers: ranks, the best run, how many lie below DNC."""

from typing import Any

import pandas as pd
from scipy import special

LEVEL = 0.95  # of intervals of a share


def with_ranks(runs: pd.DataFrame) -> pd.DataFrame:
    """runs with mean_rank, the mean rank of M_2, ..., M_{L-1} (of M_2 for L = 2), and `kept`.

    kept: the run ended finite, gives no class up and errs on no training sample; others are reported and
    enter no mean. Two classes with the same features cost as much as one that is given up, with no output 0;
    of a class single samples may be given up.
    """
    ranks = runs["ranks"].fillna("").astype(str).str.split("-")
    means = [[float(rank) for rank in own[:-1] or own if rank] for own in ranks]
    kept = runs["finished"].astype(bool) & (runs["classes_given_up"] == 0) & (runs["train_error"] == 0)
    mean_rank = [sum(own) / len(own) if own else float("nan") for own in means]
    return runs.assign(mean_rank=mean_rank, kept=kept)


def best_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """The run of the lowest loss of each experiment, in their order, among those that are kept if any is."""
    chosen = [
        (own[own["kept"]] if own["kept"].any() else own).nsmallest(1, "loss")
        for _, own in runs.groupby("experiment", sort=False)
    ]
    return pd.concat(chosen, ignore_index=True)


def counts_by_value(runs: pd.DataFrame) -> pd.DataFrame:
    """Runs at each x: how many, kept, below L_DNC, DNC found; its share with low and high; their mean rank.

    The interval is Clopper and Pearson's: it covers the probability at least 95 times in 100. What a run that
    loses classes or diverges has found is no DNC. mean_rank: over runs that are kept.
    """
    rows: list[dict[str, Any]] = []
    for x, own in runs.groupby("x"):
        kept = own[own["kept"]]
        dnc = kept["dnc_found"].astype(bool)
        found = int(dnc.sum())
        low, high = share_interval(found, len(own))
        rows.append(
            {
                "x": x,
                "runs": len(own),
                "kept": len(kept),
                "below_dnc": int(((kept["loss_over_dnc"] < 1) & ~dnc).sum()),
                "dnc_found": found,
                "share": found / len(own),
                "low": low,
                "high": high,
                "mean_rank": kept["mean_rank"].mean(),
                "loss_over_dnc": kept["loss_over_dnc"].mean(),
            }
        )
    return pd.DataFrame(rows)


def share_interval(found: int, of: int, level: float = LEVEL) -> tuple[float, float]:
    """Clopper and Pearson's interval of a probability of which `found` of `of` draws tell."""
    tail = (1 - level) / 2
    low = 0.0 if found == 0 else float(special.betaincinv(found, of - found + 1, tail))
    high = 1.0 if found == of else float(special.betaincinv(found + 1, of - found, 1 - tail))
    return low, high


def low_rank_sentence(runs: pd.DataFrame) -> str:
    """Counts of one experiment's runs and what the best of them is."""
    kept = runs[runs["kept"]]
    best = best_runs(runs).iloc[0]
    found = f"{int((kept['loss_over_dnc'] < 1).sum())} of {len(runs)} runs below L_DNC"
    gave_up = len(runs) - len(kept)
    if gave_up:
        found += f", {gave_up} lost classes or samples, or diverged"
    name = f"ranks {best['ranks']}, {best['structure']}"
    return f"{found}; the lowest at {best['loss_over_dnc']:.4f} L_DNC ({name})"
