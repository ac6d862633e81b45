"""What figures say: row labels, column titles and the text of a fitted slope."""

import math
from dataclasses import dataclass

from ncpipe.specs import Experiment, Penalty

DATA_NAMES = {
    "digits": "digits",
    "mnist": "MNIST",
    "cifar10": "CIFAR-10",
    "imdb": "IMDB",
    "gaussian_mixture": "Gaussian mixture",
}


@dataclass(frozen=True)
class Column:
    """One column of a figure: a last-layer metric on one split, and its title."""

    title: str
    metric: str
    split: str


def paper_columns(loss_name: str, last_bias: bool) -> tuple[Column, Column, Column]:
    """log10 NC1, NC2, NC3 of S25 Fig. 1 and 2.

    NC2 is the distance of W W^T to what the loss asks for (S25 Def. 3.4): a simplex ETF (NC2A) for
    cross-entropy and for MSE with a bias, the identity (NC2B) for MSE without one.
    """
    nc2 = Column(r"$\log_{10}$ NC2 (ETF)", "nc2_etf", "weights")
    if loss_name == "mse" and not last_bias:
        nc2 = Column(r"$\log_{10}$ NC2 (identity)", "nc2_identity", "weights")
    return (
        Column(r"$\log_{10}$ NC1", "nc1_trace_ratio", "train"),
        nc2,
        Column(r"$\log_{10}$ NC3", "nc3_cosine", "train"),
    )


GAP_COLUMNS = (
    Column(r"$\log_{10}$ loss gap", "loss_gap", "train"),
    Column(r"$\log_{10}$ gap in $h$ and $W_L$", "gap_gufm", "train"),
    Column(r"$\log_{10}$ gap in inner layers", "inner_penalty", "weights"),
)


def gap_columns(loss_name: str, last_bias: bool) -> tuple[Column, ...]:
    """The gap to L*_GUFM and its two parts, neither of which can be negative."""
    return GAP_COLUMNS


def row_label(spec: Experiment) -> str:
    """Two lines, as 'pre-LN L-T11 on IMDB' and the penalty; also the loss where it is not cross-entropy, and
    the start where it is not drawn."""
    norm = "pre-LN " if spec.model.norm == "pre" else ""
    loss = "" if spec.loss == "ce" else f", {spec.loss.upper()}"
    start = ", built start" if spec.model.initialisation == "construction" else ""
    data = DATA_NAMES[spec.data.source]
    return f"{norm}{spec.model.architecture} on {data}\n{_penalty_label(spec.penalty)}{loss}{start}"


def slope_label(slope: float, low: float, high: float) -> str:
    """Mathtext of a fitted power of L with its interval."""
    # braces keep a minus after the comma from being set as a binary operator
    power = rf"$L^{{{slope:z.2f}}}$"
    return power if math.isnan(low) else rf"{power} $[{{{low:z.2f}}},\,{{{high:z.2f}}}]$"


def _penalty_label(penalty: Penalty) -> str:
    over = "/L" if penalty.rule == "over_depth" else ""
    label = rf"$\lambda = {penalty.value:g}{over}$"
    if penalty.last_layer is not None:
        label += rf", $\lambda_L = {penalty.last_layer:g}$"
    return f"{label}, biases too" if penalty.biases else label
