"""Choose the few series that represent an experiment: in texts, `dvc metrics` and the first figure."""

import pandas as pd

from ncpipe.metrics.catalogue import CATALOGUE
from ncpipe.metrics.study_metrics import entry

GAP = "loss_gap"
GNC2 = "gnc2_spread_weights"
# The metrics of `paper_series`.
PAPER_METRICS = ("nc1_trace_ratio", "nc2_etf", "nc2_identity", GNC2, "nc3_cosine")
# The same where the targets are vectors.
REGRESSION_SERIES = (("nrc1", "train"), ("nrc2", "train"), ("nrc3", "weights"))
# What joins them where a sample may have several classes.
TAG_SERIES = ("tags_angle", "train")
# The metrics that `dvc plots` draws against depth; the tables have all.
HEADLINES = tuple(name for name, metric in CATALOGUE.items() if metric.headline)


def nc2_of(loss_name: str, last_bias: bool) -> str:
    """Return the NC2 metric that compares W W^T with its optimum for the loss [S25 Def. 3.4].

    A simplex ETF (NC2A) for cross-entropy and for MSE with a bias, the identity (NC2B) for MSE without one.
    """
    return "nc2_identity" if loss_name == "mse" and not last_bias else "nc2_etf"


def paper_series(runs: pd.DataFrame, measured: pd.DataFrame) -> tuple[tuple[str, str], ...]:
    """Return metric and split of NC1, NC2 and NC3 of S25 Fig. 1 and 2 for one experiment.

    runs: the experiment's, with loss_name and last_bias. measured: points, summary or slopes, of any
    experiments. Where the targets are vectors it is NRC1, NRC2 and NRC3; where they are tags the tag average
    is the fourth. K > d + 1 classes have no simplex ETF: GNC2 [WP24], measured only there, takes the place
    of NC2.
    """
    experiment, loss_name, last_bias = runs[["experiment", "loss_name", "last_bias"]].iloc[0]
    metrics = measured.loc[measured["experiment"] == experiment, "metric"]
    if (metrics == "nrc1").any():
        return REGRESSION_SERIES
    nc2 = GNC2 if (metrics == GNC2).any() else nc2_of(str(loss_name), bool(last_bias))
    series = ("nc1_trace_ratio", "train"), (nc2, "weights"), ("nc3_cosine", "train")
    return (*series, TAG_SERIES) if (metrics == TAG_SERIES[0]).any() else series


def headline_series(runs: pd.DataFrame, measured: pd.DataFrame) -> dict[str, tuple[str, str]]:
    """Return by title the metric and split of an experiment's NC1, NC2, NC3 and loss gap, if it has one.

    runs: the experiment's, with loss_name, last_bias and loss_gap. measured: as for `paper_series`.
    """
    series = paper_series(runs, measured)
    titled = {entry(metric).group: (metric, split) for metric, split in series}
    gap = {f"the {entry(GAP).label}": (GAP, "train")}
    return titled | gap if runs[GAP].notna().any() else titled
