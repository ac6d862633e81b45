"""Take the values of runs from the tables of `aggregate`, and compute numbers with their intervals.

`ncpipe.claims.quantities` has what each quantity of claims.yaml does with them.
"""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from ncpipe.config.bounds import Number
from ncpipe.config.params import Slopes
from ncpipe.metrics.catalogue import series_name
from ncpipe.tables.compare import Combination, WeightedRuns, difference_error, difference_interval
from ncpipe.tables.keys import rows_at, run_keys, setting_keys, symbol, x_column
from ncpipe.tables.points import LAST
from ncpipe.tables.stage_tables import stage_table

FEWEST = 2  # runs of each setting that a number needs, or all that there are
Split = Literal["train", "test", "weights", "true_labels", "target", "ood"]


class NoNumberError(Exception):
    """Says why no number answers a claim; the claim then does not apply."""


@dataclass(frozen=True)
class Tables:
    """Holds the tables that `aggregate` writes, and the rule by which slopes are fitted.

    `stage` has those of the study's own stages.
    """

    points: pd.DataFrame
    runs: pd.DataFrame
    separation: pd.DataFrame
    effective_depth: pd.DataFrame
    layer_errors: pd.DataFrame
    history: pd.DataFrame
    rule: Slopes

    def stage(self, name: str, table: str | None = None) -> pd.DataFrame:
        """Return a table of a stage of the study, by default the one that is named as the stage."""
        return stage_table(name, table)


class Answer(NamedTuple):
    """Holds the number that answers a claim with its interval; NaN stands for missing ones, and low = high
    for an exact number.

    runs: the runs that it is computed from, as '15 of 15 runs'.
    missing: why there is no number.
    target: the number that `within` compares it with.
    p_value: of a test that the number is 0, which replaces the interval; for a line, of the test of the line.
    rejected: whether the test rejects at 1 - `slopes.level`.
    error, freedom: standard error and degrees of freedom of Student's interval; NaN for other intervals.
    turns: that a line is rejected, and that the means turn back at large x; then the slope decides nothing.
    depends: which selections of runs give which verdict, if they differ (`ncpipe.claims.selections`).
    few: why the number is of too few depths for a verdict.
    """

    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    runs: str = ""
    missing: str = ""
    target: float = math.nan
    p_value: float = math.nan
    rejected: bool = False
    turns: str = ""
    depends: str = ""
    error: float = math.nan
    freedom: float = math.nan
    few: str = ""


@dataclass(frozen=True)
class When:
    """The first logged epoch at which a metric of `history` has fallen to a level: the onset of collapse.

    metric: of history.metrics, or loss, train_error or test_error.
    at_most: the level.
    split: of the metric.
    """

    metric: str
    at_most: Number
    split: Split = "train"

    def __str__(self) -> str:
        return f"{series_name(self.split, self.metric)} <= {self.at_most:g}"


class Side(NamedTuple):
    """Names runs and the metric of each that a claim is about, by keys of the claim.

    layer: of which the metric is, where it is not the last. when: the epoch of the metric, where it is not
    the last; the metric `epoch` is its number.
    """

    experiment: str
    metric: str
    split: Split = "train"
    depth: int | None = None
    value: float | None = None
    layer: str = ""
    when: When | None = None

    @property
    def series(self) -> str:
        """The metric with its split, if that is not train."""
        return self.metric if self.split == "train" else f"{self.metric} ({self.split})"

    def words(self, more: str = "") -> str:
        """Return what the side is, in a few words, with `more` behind the metric."""
        parts = [self.experiment, self.series]
        parts += [f"layer {self.layer}"] if self.layer else []
        parts += [f"at {self.when}"] if self.when else []
        parts += [more] if more else []
        parts += [f"L = {self.depth}"] if self.depth else []
        parts += [f"x = {self.value:g}"] if self.value is not None else []
        return ", ".join(parts)

    def rows(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return the rows of the experiment, at the depth and value of the axis if the side names them."""
        keys = {"experiment": self.experiment, "depth": self.depth, "x": self.value}
        return rows_at(table, {key: value for key, value in keys.items() if value is not None})

    def of_metric(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return the rows of the metric and split, at the last layer."""
        layer = {"layer": LAST} if "layer" in table else {}
        return rows_at(table, {"metric": self.metric, "split": self.split} | layer)

    def values(self, tables: Tables) -> pd.DataFrame:
        """Return the runs with their values; raise NoNumberError if there are none.

        The columns besides the runs' keys are value, log10, used (whether log10 counts) and counted (whether
        the value counts).
        """
        runs = self.runs(tables)
        if self.when:
            return self._at_onset(runs, tables.history, self.when)
        if self.layer:
            errors = rows_at(self.rows(tables.layer_errors), {"layer": self.layer})
            if errors.empty:
                raise NoNumberError(f"{self.words()}: no such layer")
            return without_logarithm(errors)
        points = self.of_metric(self.rows(tables.points))
        if len(points):
            return points.assign(counted=points["selected"] & np.isfinite(points["value"]))
        keys = run_keys(runs)
        if self.metric not in runs and self.metric in tables.effective_depth:
            runs = runs.merge(tables.effective_depth[[*keys, self.metric]], on=keys, how="left")
        splits = tables.points.loc[tables.points["metric"] == self.metric, "split"].unique()
        if self.metric not in runs or len(splits):
            hint = f"; it is of split {', '.join(splits)}" if len(splits) else ""
            raise NoNumberError(f"{self.words()} was not measured{hint}")
        # test_error may say that it is of test
        if self.split not in ("train", self.metric.partition("_")[0]):
            raise NoNumberError(f"{self.words()}: it is of the run, not of a split; leave out `split`")
        try:
            values = runs[self.metric].astype(float)
        except ValueError:
            raise NoNumberError(f"{self.words()} is no number") from None
        return without_logarithm(runs[[*keys, "selected"]].assign(value=values))

    def _at_onset(self, runs: pd.DataFrame, history: pd.DataFrame, when: When) -> pd.DataFrame:
        """Return runs with the metric at the onset; of `epoch` also low, the logged epoch before, and high.

        Raises NoNumberError if the history lacks a metric, or a selected run its onset.
        """
        keys, level = run_keys(runs), series_name(when.split, when.metric)
        column = self.metric if self.metric == "epoch" else series_name(self.split, self.metric)
        for name in (level, column):
            if name not in history or self.rows(history)[name].isna().all():
                raise NoNumberError(f"{self.words()}: no {name} in history.csv; name it in history.metrics")
        logged = self.rows(history).dropna(subset=[level, column]).sort_values([*keys, "epoch"])
        logged = logged.assign(low=logged.groupby(keys)["epoch"].shift(fill_value=0), high=logged["epoch"])
        reached = logged[logged[level] <= when.at_most].groupby(keys, as_index=False).first()
        ends = ["low", "high"] if column == "epoch" else []
        reached = reached.assign(value=reached[column])[[*keys, "value", *ends]]
        onsets = runs[[*keys, "selected"]].merge(reached, on=keys, how="left")
        if late := int((onsets["selected"] & onsets["value"].isna()).sum()):
            raise NoNumberError(f"{late} of {len(onsets)} runs of {self.experiment} do not reach {when}")
        log10 = np.log10(onsets["value"].where(onsets["value"] > 0))
        counted = onsets["selected"] & onsets["value"].notna()
        return onsets.assign(log10=log10, used=counted & log10.notna(), counted=counted)

    def runs(self, tables: Tables) -> pd.DataFrame:
        """Return the rows of runs.csv; raise NoNumberError if there are none."""
        runs = self.rows(tables.runs)
        if runs.empty:
            raise NoNumberError(f"no run of {self.words()} in the sweep")
        return runs


class Points(NamedTuple):
    """Holds values behind a claim for a panel of data/claims/panels.png.

    kind: the meaning of x (`ncpipe.claims.panels`).
    table: with the columns value and selected, x in the column `at` and a name of each x in `name`.
    label: of x. series: name of the line, where it is not that of the metric.
    """

    kind: str
    side: Side
    table: pd.DataFrame
    label: str = ""
    series: str = ""


def without_logarithm(table: pd.DataFrame) -> pd.DataFrame:
    """Return runs with the columns log10, used and counted, for values that only means are taken of."""
    used = table["selected"] & table["value"].notna()
    return table.assign(log10=math.nan, used=used, counted=used)


def at_depth(table: pd.DataFrame, depth: int | None) -> pd.DataFrame:
    """Return the rows at a depth, by default the largest."""
    return table[table["depth"] == (depth or table["depth"].max())]


def used_rows(table: pd.DataFrame, column: str, without: int = 0) -> pd.DataFrame:
    """Return the rows whose column `used` or `counted` is true.

    Raises NoNumberError with the settings at which these are fewer than FEWEST, or than there are. without:
    how many of the smallest depths may have fewer.
    """
    used = table[table[column]]
    if used.empty:
        raise NoNumberError(f"0 of {len(table)} runs have a number that is used")
    x = x_column(table)
    required = table[~table[x].isin(sorted(table[x].unique())[:without])]
    keys = setting_keys(required)
    counts = required.groupby(keys).size()
    used_counts = used.groupby(keys).size().reindex(counts.index, fill_value=0)
    if len(few := used_counts[used_counts < counts.clip(upper=FEWEST)].index.unique(x).sort_values()):
        values = ", ".join(f"{value:g}" for value in few)
        problem = f"fewer than {FEWEST} runs have a number that is used"
        raise NoNumberError(f"{problem} at {symbol(required)} = {values}")
    return used


def count_text(used: pd.DataFrame, table: pd.DataFrame) -> str:
    """Return how many runs are used, as '14 of 15 runs'."""
    return f"{len(used)} of {len(table)} runs"


def exact(value: float, runs: str = "") -> Answer:
    """Return a number without uncertainty."""
    return Answer(value, value, value, runs)


def estimate(base: Combination, other: Combination, rule: Slopes, runs: str) -> Answer:
    """Return `compare.difference_interval` as a number, with its standard error."""
    value, low, high = difference_interval(base, other, rule.level)
    error, freedom = difference_error(base, other)
    return Answer(value, low, high, runs, error=error, freedom=freedom)


def mean(table: pd.DataFrame, rule: Slopes) -> Answer:
    """Return the mean over the seeds of one setting; raise NoNumberError if the axis has several.

    A single run has the interval in its columns low and high, if there are these.
    """
    used = used_rows(table, "counted")
    if "x" in table and table["x"].nunique() > 1:
        raise NoNumberError("a study with an axis has a mean for each value; name one")
    depth = int(table["depth"].iloc[0])
    if len(used) == 1 and "low" in used:
        value, low, high = (float(used[part].iloc[0]) for part in ("value", "low", "high"))
        return Answer(value, low, high, f"1 run at L = {depth}")
    terms = [WeightedRuns(depth, 1.0, used.sort_values("seed").set_index("seed")["value"])]
    return estimate([], terms, rule, f"{count_text(used, table)} at L = {depth}")


def points_by_epoch(side: Side, tables: Tables) -> list[Points]:
    """Return the metric through training and, as its own series, the first epochs without a train error."""
    history = tables.history[tables.history["experiment"] == side.experiment]
    column = series_name(side.split, side.metric)
    if column not in history:
        return []
    history = history[history[column].notna()].assign(selected=True, name="")
    fitted = history[history["train_error"] == 0].groupby("seed", as_index=False)["epoch"].min()
    first = fitted.assign(at=fitted["epoch"], value=0.0, selected=True, name="")
    return [
        Points("epoch", side, history.assign(at=history["epoch"], value=history[column]), "epoch"),
        Points("epoch", side._replace(metric="train_error", split="train"), first, "epoch"),
    ]


def points_by_layer(side: Side, tables: Tables) -> list[Points]:
    """Return the classification errors of class means, by layer."""
    errors = tables.layer_errors[tables.layer_errors["experiment"] == side.experiment]
    return [Points("layer", side, errors.assign(at=errors["position"], name=""), "layer", side.experiment)]
