"""What figures say: row labels, column titles and the text of a fitted slope."""

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pandas as pd

from ncpipe.metrics.study_metrics import entry
from ncpipe.system.errors import InputError
from ncpipe.tables.headlines import paper_series
from ncpipe.tables.rates import p_text

DATA_NAMES = {
    "digits": "digits",
    "mnist": "MNIST",
    "fashion_mnist": "Fashion-MNIST",
    "kmnist": "KMNIST",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "svhn": "SVHN",
    "imdb": "IMDB",
    "gaussian_mixture": "Gaussian mixture",
    "teacher": "teacher",
    "modular": "modular addition",
    "markov": "a Markov source",
    "text": "own text",
    "arrays": "own data",
    "free": "free features",
}
NORM_NAMES = {"pre": "pre-LN ", "batch": "batch-norm "}
NETWORK_NAMES = {
    "conv_net": "conv net",
    "dufm": "DUFM",
    "mlp": "MLP",
    "resnet_cifar": "ResNet",
}  # the others have the names of their formulas
LOSS_NAMES = {  # CE goes without
    "mse": "MSE",
    "pick_all": "pick-all CE",
    "supcon": "SupCon",
    "dot_regression": "dot regression",
    "focal": "focal",
    "ldam": "LDAM",
    "logit_adjusted": "logit-adjusted",
}
LINE = 24  # characters of a row label that are as long as a row is high


@dataclass(frozen=True)
class Column:
    """One column of a figure: a last-layer metric on one split."""

    metric: str
    split: str

    @property
    def title(self) -> str:
        return entry(self.metric).title + f", {self.split}" * (self.split in ("test", "target", "ood"))


def paper_columns(runs: pd.DataFrame, measured: pd.DataFrame) -> tuple[Column, ...]:
    """Return the columns of S25 Fig. 1 and 2; arguments as of `headlines.paper_series`."""
    return tuple(Column(*series) for series in paper_series(runs, measured))


# The gap to L*_GUFM and its two parts, neither of which can be negative.
GAP_COLUMNS = (
    Column("loss_gap", "train"),
    Column("gap_gufm", "train"),
    Column("inner_penalty", "weights"),
)


def caption(run: Mapping[Any, Any]) -> str:
    """Return a figure's title: the network and, below it, the rest of the setting; mathtext."""
    return f"{' '.join(_network(run))}\n{', '.join(_rest(run))}".rstrip()


def row_label(run: Mapping[Any, Any]) -> str:
    """Return the caption with lines broken that are longer than a row is high."""
    return "\n".join([*_lines(_network(run), " "), *_lines(_rest(run), ", ")])


def scale_lines(scale: str) -> str:
    """Return a scale such as `reduced, 250 images` with lines as long as those of a row label."""
    return "\n".join(_lines(scale.split(", "), ", "))


def by_experiment(
    label: Callable[[Mapping[Any, Any]], str],
    runs: pd.DataFrame,
    names: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, str]:
    """Return a label for each name in `experiment` (`x_axis.with_lines` too), in the order of `runs`.

    Where several would have the same one, their names stand above it, or what `names` has for them. That
    stands alone for an own loop, of whose data and network nothing is known.
    InputError where another version made the table.
    """
    first = runs.drop_duplicates("experiment").set_index("experiment")
    try:
        labels = {str(name): label(run) for name, run in first.to_dict("index").items()}
        shared = {text for text, times in Counter(labels.values()).items() if times > 1}
        own_loops = set(first.index[first["source"] == "own loaders"]) & names.keys()
        return {
            name: names[name]
            if name in own_loops
            else f"{names.get(name, name)}\n{text}"
            if text in shared
            else text
            for name, text in labels.items()
        }
    except KeyError as error:
        raise InputError(f"runs: no column {error}; run the stages measure and aggregate again") from None


def slope_label(slope: float, low: float, high: float, symbol: str = "L") -> str:
    """Return a fitted power of L, or of another symbol, with its interval; mathtext."""
    power = rf"${symbol}^{{{slope:z.2f}}}$"
    # braces keep a minus after the comma from being set as a binary operator
    return power if math.isnan(low) else rf"{power} $[{{{low:z.2f}}},\,{{{high:z.2f}}}]$"


def interval_label(low: float, high: float, symbol: str = "L") -> str:
    """Return that a power of L, or of another symbol, is only known to lie in an interval; mathtext."""
    return rf"${symbol}^p$, $p \in [{{{low:z.2f}}},\,{{{high:z.2f}}}]$"


def rank_label(rho: float, p_value: float) -> str:
    """Return Spearman's rho with the p-value of its sign, in mathtext."""
    return rf"$\rho_S = {rho:z.2f}$ (${p_text(p_value)}$)"


def _network(run: Mapping[Any, Any]) -> list[str]:
    norm, name = NORM_NAMES.get(run["norm"], ""), run["architecture"]
    return [f"{norm}{NETWORK_NAMES.get(name, name)} on", DATA_NAMES.get(run["source"], run["source"])]


def _strengths(run: Mapping[Any, Any]) -> list[str]:
    over, last = "/L" if run["penalty_rule"] == "over_depth" else "", run["penalty_last_layer"]
    strengths = {}
    if not math.isnan(run["penalty_value"]):  # as in an own loop
        strengths["penalty.value"] = rf"$\lambda = {run['penalty_value']:g}{over}$"
    if last is not None and not math.isnan(last):
        strengths["penalty.last_layer"] = rf"$\lambda_L = {last:g}$"
    return [strength for key, strength in strengths.items() if key != run.get("axis")]


def _rest(run: Mapping[Any, Any]) -> list[str]:
    place = [f"$L = {run['depth']}$"] if "axis" in run else []  # one line of several, each against the axis
    return [*place, *_strengths(run), *_exceptions(run)]


def _exceptions(run: Mapping[Any, Any]) -> list[str]:
    said = {
        "biases too": run["penalty_biases"],
        "all parameters": run.get("penalty_scope") == "all",
        "all weights": run.get("penalty_scope") == "weights",
        "head and features": run.get("penalty_scope") == "head",
        LOSS_NAMES.get(run["loss_name"], ""): run["loss_name"] in LOSS_NAMES,
        "built start": run["initialisation"] == "construction",
    }
    return [words for words, holds in said.items() if holds]


def _lines(pieces: Sequence[str], separator: str) -> list[str]:
    """Return the pieces, as many on a line as LINE characters hold; a comma stays behind its piece."""
    lines = list(pieces[:1])
    for piece in pieces[1:]:
        longer = f"{lines[-1]}{separator}{piece}"
        if len(re.sub(r"[$\\]|ambda", "", longer)) <= LINE:
            lines[-1] = longer
        else:
            lines[-1] += separator.rstrip()
            lines.append(piece)
    return lines
