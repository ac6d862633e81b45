"""Choose the few series that represent an experiment: in sentences, `dvc metrics` and the first figure."""

import pandas as pd

from ncpipe.metrics.catalogue import entry

GAP = "loss_gap"
# What `dvc plots` draws against depth; the tables hold everything.
HEADLINES = (
    "nc1_trace_ratio",
    "nc2_etf",
    "nc2_identity",
    "nc3_cosine",
    "strong_test_collapse",
    GAP,
)


def paper_series(loss_name: str, last_bias: bool) -> tuple[tuple[str, str], ...]:
    """Return metric and split of NC1, NC2, NC3 of S25 Fig. 1 and 2.

    NC2 is the distance of W W^T to what the loss asks for (S25 Def. 3.4): a simplex ETF (NC2A) for
    cross-entropy and for MSE with a bias, the identity (NC2B) for MSE without one.
    """
    nc2 = "nc2_identity" if loss_name == "mse" and not last_bias else "nc2_etf"
    return ("nc1_trace_ratio", "train"), (nc2, "weights"), ("nc3_cosine", "train")


def headline_series(own: pd.DataFrame) -> dict[str, tuple[str, str]]:
    """Return by title the metric and split of an experiment's NC1, NC2, NC3 and, if any, loss gap.

    own: its runs, with loss_name, last_bias and loss_gap.
    """
    series = paper_series(str(own["loss_name"].iloc[0]), bool(own["last_bias"].iloc[0]))
    titled = {entry(metric).group: (metric, split) for metric, split in series}
    gap = {f"the {entry(GAP).label}": (GAP, "train")}
    return titled | gap if own[GAP].notna().any() else titled
