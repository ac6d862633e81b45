"""Write docs/results/README.md from README.md.jinja and the published tables beside it.

    uv run python docs/results/render.py

Every number about a published run comes from its folder: the template calls the methods of `Panel`, so after
`ncpipe publish` into a folder one call renews the text. What the sentences around the numbers say is for the
author to check. A test fails if README.md is not what this writes, or if the template's prose has a number of
its own.
"""

import json
import math
from collections.abc import Callable, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pandas as pd
import yaml
from continued import COLUMNS, ends
from image_numbers import DEPTHS, METRICS, by_images

from ncpipe.tables.compare import WeightedRuns, difference_interval, slope_combination
from ncpipe.tables.floors import float32_level_of
from ncpipe.tables.points import LAST
from ncpipe.tables.rates import p_text, power
from ncpipe.tables.slopes import Replicates, least_squares_line
from ncpipe.tables.summary import in_two_groups

FOLDER = Path(__file__).resolve().parent
TEMPLATE = "README.md.jinja"
SERIES = {
    "NC1": ("nc1_trace_ratio", "train"),
    "NC2": ("nc2_etf", "weights"),
    "NC3": ("nc3_cosine", "train"),
    "NC1, test": ("nc1_trace_ratio", "test"),
    "gap": ("loss_gap", "train"),
    "last layer": ("gap_gufm", "train"),
    "inner penalty": ("inner_penalty", "weights"),
}
RUN_COLUMNS = {"loss": "loss", "gap": "loss_gap", "last layer": "gap_gufm", "inner penalty": "inner_penalty"}
LEVEL = 0.95
NOTHING = "–"
SAMPLES = {
    "imdb": ("reviews", 0),
    "cifar10": ("images", 32),
    "mnist": ("images", 28),
    "digits": ("digits", 8),
}
GROWN = 2  # the ratio of two gradient norms from which the page says that they differ


class Panel:
    """The published tables of one experiment, and what the text says of them.

    Means are geometric, over the runs that fit the data.
    """

    def __init__(self, folder: str, experiment: str = "") -> None:
        self.name = experiment or folder
        self._folder = FOLDER / folder

    def _table(self, name: str) -> pd.DataFrame:
        table = published(self._folder.name, name)
        return table[table["experiment"] == self.name]

    @cached_property
    def runs(self) -> pd.DataFrame:
        return self._table("runs")

    @cached_property
    def points(self) -> pd.DataFrame:
        return self._table("points")

    @property
    def depths(self) -> list[int]:
        return sorted(self.runs["depth"].unique())

    @cached_property
    def _params(self) -> dict[str, Any]:
        return yaml.safe_load((self._folder / "params.yaml").read_text(encoding="utf-8"))

    def values(self, title: str, depth: int) -> pd.Series:
        """Return the values by seed that a mean at one depth is of."""
        runs = self.runs[self.runs["depth"] == depth].set_index("seed")
        counted = runs[runs["selected"]]
        if title in RUN_COLUMNS or title in runs:
            return counted[RUN_COLUMNS.get(title, title)]
        metric, split = SERIES[title]
        own = self.points[(self.points["metric"] == metric) & (self.points["split"] == split)]
        values = own[own["depth"] == depth].set_index("seed")["value"]
        return values[values.index.isin(counted.index)]

    def mean(self, title: str, depth: int) -> float:
        """Return the geometric mean at one depth."""
        values = self.values(title, depth)
        return _geometric_mean(values) if len(values) else math.nan

    def mean_cell(self, title: str, depth: int, digits: int = 2) -> str:
        """Return the geometric mean at one depth, or the ranges of the two groups that the runs fall into."""
        values = np.sort(self.values(title, depth).to_numpy())
        if not (values > 0).all() or not in_two_groups(np.log10(values)):
            return short(self.mean(title, depth), digits)
        split = 2 + int(np.argmax(np.diff(np.log10(values))[1:-1]))
        return " and ".join(_between(own[0], own[-1], digits) for own in (values[:split], values[split:]))

    def span(self, title: str, depth: int) -> str:
        """Return the least and the largest value of the runs at one depth."""
        values = self.values(title, depth)
        return f"{short(values.min())} to {short(values.max())}"

    def over_tests(self) -> str:
        """Return the least and the largest mean test error of a depth."""
        means = self.runs[self.runs["selected"]].groupby("depth")["test_error"].mean()
        return f"{short(means.min())} to {short(means.max())}"

    def over_optimum(self, title: str = "loss") -> str:
        """Return the range over depths of a mean over the optimum of the features model.

        Depths at which no run counts are left out.
        """
        optima = self.runs.groupby("depth")["loss_optimum"].first()
        shares = [self.mean(title, depth) / optima[depth] for depth in self.depths]
        return f"{short(np.nanmin(shares))} to {short(np.nanmax(shares))}"

    def optimum(self) -> str:
        """Return the optimum of the features model, or its range from the smallest to the largest depth."""
        optima = self.runs.sort_values("depth")["loss_optimum"]
        ends = [f"{optima.iloc[place]:.3g}" for place in (0, -1)]
        return (
            ends[0] if ends[0] == ends[1] else f"{ends[0]} at the smallest depth to {ends[1]} at the largest"
        )

    def _fit(self, title: str, without: int) -> pd.Series:
        table = self._table("slopes_leave_out" if without else "slopes")
        metric, split = SERIES[title]
        rows = table[(table["metric"] == metric) & (table["split"] == split) & (table["layer"] == LAST)]
        if without:
            rows = rows[rows["n_left_out"] == without]
        (row,) = rows.to_dict("records")
        return pd.Series(row)

    def trend(self, title: str) -> str:
        """Return how the means go from each depth to the next."""
        means = {depth: self.mean(title, depth) for depth in self.depths}
        steps = np.diff(list(means.values()))
        for verb, goes in (("falls", steps < 0), ("rises", steps > 0)):
            if goes.all():
                return f"{verb} from each depth to the next"
        low, high = (f"L = {end(means, key=means.__getitem__)}" for end in (min, max))
        return f"is lowest at {low} and highest at {high}"

    def moved(self, title: str) -> str:
        """Return by how many per cent a metric fell in the last tenth of training, over all runs."""
        metric = SERIES[title][0]
        rows = self._table("history").dropna(subset=[metric])
        last = rows["epoch"].max()
        values = rows.pivot_table(index=["depth", "seed"], columns="epoch", values=metric)
        falls = 100 * (1 - values[last] / values[round(0.9 * last)])
        return f"{falls.min():.1f} to {falls.max():.1f} %"

    def slope(self, title: str, without: int = 0) -> str:
        """Return the power of L with its interval, as `L^-0.63 [-0.65, -0.61]`."""
        fit = self._fit(title, without)
        if math.isnan(fit["slope"]):
            return "no power of L (no run fits the data)"
        return power(fit["slope"], fit["low"], fit["high"])

    def cell(self, title: str, without: int = 0) -> str:
        """Return the power and its interval for a table: bold if it worsens, with † if a line is rejected."""
        fit = self._fit(title, without)
        values = pd.concat([self.values(title, depth) for depth in self.depths])
        if (values <= float32_level_of(SERIES[title][0])).all():
            return "rounding"
        return "" if math.isnan(fit["slope"]) else _power_cell(fit)

    def cell_at(self, title: str, depths: tuple[int, ...]) -> str:
        """Return the power and its interval over some of the depths, for a table."""
        return _power_cell(_fit_of({depth: self.values(title, depth) for depth in depths}))

    def p(self, title: str, without: int = 0) -> str:
        """Return the p-value of the test that the means lie on a line."""
        value = self._fit(title, without)["p_value"]
        return NOTHING if math.isnan(value) else p_text(value)

    def bound(self, of: Callable[[np.ndarray], np.ndarray]) -> str:
        """Return the power of a bound, fitted to the same depths and runs as the slope of the gap."""
        used = self.points[(self.points["metric"] == "loss_gap") & self.points["used"]]
        depths = used["depth"].to_numpy(dtype=float)
        return f"L^{least_squares_line(np.log10(depths), np.log10(of(depths)))[0]:z.2f}"

    def idle(self, depth: int, at: int) -> str:
        """Return the least loss of the runs at one depth, were they made deeper by idle blocks at no cost."""
        runs = self.runs[self.runs["depth"] == depth]
        scaled = depth / at if runs["penalty_rule"].iloc[0] == "over_depth" else 1.0
        last = 1.0 if runs["penalty_last_layer"].notna().any() else scaled
        losses = runs["fit"] + last * runs["last_penalty"] + scaled * runs["inner_penalty"]
        return short(losses.min(), 3)

    def losses(self, depth: int) -> str:
        """Return the least and the largest loss at one depth, converged or not."""
        losses = self.runs.loc[self.runs["depth"] == depth, "loss"]
        return f"{short(losses.min(), 3)} to {short(losses.max(), 3)}"

    def converged(self) -> str:
        """Return how many runs converged, by how much the others moved at which depths, who is left out."""
        failed = self.runs[~self.runs["converged"] & self.runs["selected"]]
        if failed.empty:
            return f"All {len(self.runs)} runs converged.{self._unfit()}"
        ends = [f"{100 * failed['loss_moved'].agg(end):.1f}" for end in ("min", "max")]
        rule = self._params["convergence"]
        moved = (
            f"moved by {' to '.join(dict.fromkeys(ends))} % over the last {100 * rule['window']:g} % of the "
            f"epochs, where {100 * rule['tolerance']:g} % is allowed.\nHollow points are such runs."
            f"{self._unfit()}"
        )
        if len(failed) == len(self.runs):
            return f"None of the {len(failed)} runs converged: their loss {moved}"
        counts = failed.groupby("depth").size()
        places = ", ".join(f"{count} at L = {depth}" for depth, count in counts.items())
        done = int(self.runs["converged"].sum())
        return f"{done} of {len(self.runs)} runs converged.\nThe loss of the rest ({places}) {moved}"

    def _unfit(self) -> str:
        left_out = int((~self.runs["selected"]).sum())
        return f"\n{left_out} runs do not fit the data and enter no mean." if left_out else ""

    def inputs(self) -> str:
        """Return how many samples there were, and of what: images of patches, reviews of tokens and words."""
        experiment = self._params["experiments"][self.name]
        data, patch = experiment["data"], experiment["model"].get("patch")
        samples, side = SAMPLES[data["source"]]
        if data["source"] == "imdb":
            return f"{2 * data['per_class']} {samples}, {data['context']} tokens, {data['vocabulary']} words"
        patches = f", {(side // patch) ** 2} patches" if patch else ""
        return f"{10 * data['per_class']} {samples}{patches}"

    def size(self) -> str:
        """Return the inputs, and how many depths, seeds and epochs there were."""
        experiment, sweep = self._params["experiments"][self.name], self._params["sweep"]
        return (
            f"{self.inputs()}, depths {', '.join(map(str, sweep['depths']))}, "
            f"{len(sweep['seeds'])} seeds, {experiment['epochs']} epochs"
        )

    def hours(self) -> str:
        """Return the hours of one core that training took in all batches."""
        record = json.loads((self._folder / "provenance.json").read_text(encoding="utf-8"))
        batches = f"{record['training'][self.name]['batch_hours']:.1f} hours in all batches"
        cards = [name.split("(")[1].rstrip(")") for name in record["trained_with"]["device"] if "(" in name]
        return f"{batches}, several at a time on {cards[0]}" if cards else f"{batches} of one core"

    def by_depth(self) -> str:
        """Return a table of the means at each depth."""
        titles = [
            "NC1",
            "NC2",
            "NC3",
            "NC1, test",
            "test_error",
            "loss",
            "gap",
            "last layer",
            "inner penalty",
        ]
        heads = ["L", "converged", *(title.replace("_", " ") for title in titles), "gradient norm"]
        rows = []
        for depth in self.depths:
            own = self.runs[self.runs["depth"] == depth]
            shown = [self.mean_cell(title, depth, 3 if title in RUN_COLUMNS else 2) for title in titles]
            norms = _between(own["gradient_norm"].min(), own["gradient_norm"].max())
            rows.append([str(depth), f"{own['converged'].sum()} of {len(own)}", *shown, norms])
        return table(heads, rows)

    def rates(self) -> str:
        """Return a table of the powers of L over all depths and, if one remains, without the two smallest."""
        fitted = [depth for depth in self.depths if len(self.values("loss", depth))]
        heads = ["", "all depths", "line", f"without L = {fitted[0]}, {fitted[1]}", "line"]
        rows = [[title, self.cell(title), self.p(title)] for title in SERIES]
        if 2 not in set(self._table("slopes_leave_out")["n_left_out"]):
            return table(heads[:3], rows)
        return table(heads, [[*row, self.cell(row[0], 2), self.p(row[0], 2)] for row in rows])

    def by_selection(self) -> str:
        """Return a table of the powers of L over each selection of runs, with their numbers."""
        fits = self._table("slopes_by_selection")
        fits = fits[fits["layer"] == LAST]
        names = list(fits["selection"].unique())
        rows, counts = [], dict.fromkeys(names, "0")
        for title, (metric, split) in SERIES.items():
            own = fits[(fits["metric"] == metric) & (fits["split"] == split)].set_index("selection")
            cells = []
            for name in names:
                fit = own.loc[name]
                counts[name] = f"{fit['n_used']}"
                ends = fit["slope"], fit["low"], fit["high"]
                cells.append(NOTHING if math.isnan(fit["slope"]) else with_interval(*ends))
            rows.append([title, *cells])
        heads = [f"{name.replace('<=', '≤')} ({counts[name]} runs)" for name in names]
        return table(["", *heads], rows)

    def unconverged(self) -> str:
        """Return which runs that did not converge end below the mean loss of those that did."""
        runs = self.runs
        means = runs[runs["converged"]].groupby("depth")["loss"].mean()
        failed = runs[~runs["converged"] & runs["depth"].isin(means.index)]
        lower = failed[failed["loss"] < failed["depth"].map(means)]
        if failed.empty:
            return ""
        named = ", ".join(f"L = {row.depth} seed {row.seed}" for row in lower.itertuples())
        return (
            f"{len(lower)} of the {len(failed)} runs that did not converge, at depths where others did, have "
            f"a lower loss than the mean of those{f': {named}' if named else ''}."
        )

    def gradients(self) -> str:
        """Return by how much the gradient norm at the end grows with depth; nothing if it hardly does."""
        means = np.exp(np.log(self.runs["gradient_norm"]).groupby(self.runs["depth"]).mean())
        growth = means.iloc[-1] / means.iloc[0]
        if growth < GROWN:
            return ""
        return (
            f"**The gradient norm at the end grows with depth**, {short(growth)}-fold from "
            f"L = {self.depths[0]} to L = {self.depths[-1]}: deep runs stop farther from a stationary point."
        )


def _power_cell(fit: Mapping[str, Any] | pd.Series) -> str:
    bold = "**" * (fit["low"] > 0)
    return f"{with_interval(fit['slope'], fit['low'], fit['high'], bold)}{'†' * bool(fit['rejected'])}"


def pairs(one: Panel, other: Panel, title: str) -> str:
    """Return the other's slope less the one's, with its interval, runs of one seed as pairs."""
    value, low, high = _difference(one, other, title)
    return f"{value:z.3f} [{low:z.3f}, {high:z.3f}]"


def excluding_zero(places: list[tuple[Panel, Panel]], titles: list[str]) -> str:
    """Return how many of the paired differences of slopes exclude 0."""
    ends = [_difference(one, other, title)[1:] for one, other in places for title in titles]
    return f"{sum(low > 0 or high < 0 for low, high in ends)} of the {len(ends)}"


def _difference(one: Panel, other: Panel, title: str) -> tuple[float, float, float]:
    metric, split = SERIES[title]
    sides: list[list[WeightedRuns]] = []
    for panel in (one, other):
        own = panel.points[(panel.points["metric"] == metric) & (panel.points["split"] == split)]
        used = own[own["used"]].sort_values(["depth", "seed"])
        groups = {d: used[used["depth"] == d].set_index("seed")["log10"] for d in panel.depths}
        sides.append(slope_combination(groups))
    return difference_interval(sides[0], sides[1], LEVEL)


def lower(places: list[tuple[Panel, Panel]]) -> str:
    """Return in how many pairs of runs with the same depth and seed the second of two ends lower."""
    keys = ["depth", "seed"]
    less = [one.runs.set_index(keys)["loss"] > other.runs.set_index(keys)["loss"] for one, other in places]
    return f"{sum(map(sum, less))} of {sum(map(len, less))}"


def ratios(one: Panel, other: Panel, title: str, digits: int = 2) -> str:
    """Return the range over depths of the second's mean over the first's."""
    shares = [other.mean(title, depth) / one.mean(title, depth) for depth in one.depths]
    return f"{short(min(shares), digits)} to {short(max(shares), digits)}"


def images() -> str:
    """Return a table of means at two depths and of powers of L by the number of training images."""
    rows = []
    for source, count, values in by_images():
        cells = []
        for groups in values.values():
            fit = Replicates(np.array(DEPTHS), groups, LEVEL).fit(0)
            ends = " → ".join(short(10 ** float(group.mean())) for group in groups)
            cells.append(f"{ends}: {with_interval(fit['slope'], fit['low'], fit['high'])}")
        rows.append([source, str(count), *cells])
    heads = [f"{title}, L = {DEPTHS[0]} → {DEPTHS[1]}: power" for title in METRICS]
    return table(["", "images of 4 patches", *heads], rows)


def further() -> str:
    """Return a table of what L-BFGS makes of trained networks: losses, gradient norms and powers of L."""
    rows = []
    for name, by_end in ends().items():
        before, after = by_end.values()
        falls = 100 * (1 - after["loss"] / before["loss"])
        cells = [f"`{name}`", f"{falls.min():.1f} to {falls.max():.1f} %"]
        cells += [
            _between(rows_of["gradient_norm"].min(), rows_of["gradient_norm"].max())
            for rows_of in (before, after)
        ]
        for title in METRICS:
            fits = [_fit_of(dict(iter(own[COLUMNS[title]].groupby("depth")))) for own in (before, after)]
            cells.append(" → ".join(map(_power_cell, fits)))
        rows.append(cells)
    return table(["", "loss falls by", "gradient norm, before", "after", *METRICS], rows)


def iterations() -> str:
    """Return how many iterations of L-BFGS the runs were continued for."""
    return str(published("stationary", "continued")["iterations"].max())


def _fit_of(by_depth: Mapping[Any, pd.Series]) -> dict[str, Any]:
    """Return the fit of a power of L to the values of several depths."""
    groups = [np.log10(values.to_numpy()) for values in by_depth.values()]
    return Replicates(np.array(list(by_depth)), groups, LEVEL).fit(0)


def _geometric_mean(values: pd.Series) -> float:
    return float(np.exp(np.log(values).mean()))


def changed(name: str, title: str, depth: int) -> str:
    """Return the geometric mean of a panel at a depth, before and after L-BFGS."""
    means = [_geometric_mean(own.loc[depth, COLUMNS[title]]) for own in ends()[name].values()]
    return " → ".join(short(mean) for mean in means)


def earlier() -> str:
    """Return a table of the powers of L of panels that are no longer published, with their commits."""
    rows = [
        [
            row["data"], row["setting"], row["inputs"], str(row["runs"]),
            *(with_interval(row[title], row[f"{title} low"], row[f"{title} high"]) for title in METRICS),
            f"`{row['commit']}`",
        ]
        for row in published("transformers_images", "earlier").to_dict("records")
    ]  # fmt: skip
    return table(["", "earlier panel", "inputs", "runs", *METRICS, "commit"], rows)


def earlier_start(source: str) -> str:
    """Return the mean NC1 at L = 2 of the earlier panel on the fewest images."""
    rows = published("transformers_images", "earlier")
    (value,) = rows.loc[(rows["data"] == source) & rows["setting"].str.startswith("250 "), "NC1 at L = 2"]
    return short(value)


def few_images(source: str) -> str:
    """Return the mean NC1 at L = 2 on the fewest images of stages/transformers_images."""
    _, _, values = next(row for row in by_images() if row[0] == source)
    return short(10 ** float(values["NC1"][0].mean()))


def with_interval(value: float, low: float, high: float, mark: str = "") -> str:
    """Return a number, between two marks, with its interval if that is known."""
    shown = f"{mark}{value:z.2f}{mark}"
    return shown if math.isnan(low) else f"{shown} [{low:z.2f}, {high:z.2f}]"


def by_value(folder: str) -> str:
    """Return a table of the runs at each value of a study's axis: lost classes, ranks, losses."""
    rows = [
        [
            row["experiment"], f"{row['at']:g}", f"{row['lost']} of {row['runs']}",
            _between(row["rank_low"], row["rank_high"]), _between(row["loss_low"], row["loss_high"], 3),
            short(row["srg_over_dnc"], 3), short(row["test_error"]),
        ]
        for row in published(folder, "by_value").to_dict("records")
    ]  # fmt: skip
    heads = ["experiment", "λ", "lose classes", "mean rank", "loss / L_DNC", "SRG / L_DNC", "test error"]
    return table(heads, rows)


def _between(low: float, high: float, digits: int = 2) -> str:
    ends = dict.fromkeys((short(low, digits), short(high, digits)))
    return " to ".join(ends)


def counted(folder: str) -> str:
    """Return how many runs a folder has, and how many of them converged."""
    runs = published(folder, "runs")
    return f"{runs['converged'].sum()} of all {len(runs)} runs converged"


@cache
def published(folder: str, name: str) -> pd.DataFrame:
    """Return a table of a published folder."""
    return pd.read_csv(FOLDER / folder / f"{name}.csv")


def table(heads: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in [heads, ["---"] * len(heads), *rows])


def short(value: float, digits: int = 2) -> str:
    """Return a number with two significant digits."""
    return NOTHING if math.isnan(value) else f"{float(f'{value:.{digits}g}'):g}"


def rendered() -> str:
    """Return the text of README.md."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER), undefined=jinja2.StrictUndefined, keep_trailing_newline=True,
        trim_blocks=True, autoescape=False,
    )  # fmt: skip
    names = {
        "Panel": Panel, "pairs": pairs, "excluding_zero": excluding_zero, "lower": lower, "ratios": ratios,
        "counted": counted, "images": images, "earlier": earlier,
        "earlier_start": earlier_start, "few_images": few_images,
        "by_value": by_value, "short": short,
        "further": further, "changed": changed,
        "iterations": iterations,
        "log_over": lambda depths: np.log(depths) / depths,
    }  # fmt: skip
    return environment.get_template(TEMPLATE).render(names)


if __name__ == "__main__":
    (FOLDER / "README.md").write_text(rendered(), encoding="utf-8")
