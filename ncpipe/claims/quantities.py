"""Define the quantities of claims.yaml: the keys of each, and how it answers a claim.

A further one is a record here and a name in `AnyClaim`.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pandas as pd

from ncpipe.claims.calls import Call, Functions, arguments_of
from ncpipe.claims.claim import Claim, RunClaim, Verdict
from ncpipe.claims.evidence import (
    Answer,
    NoNumberError,
    Points,
    Side,
    Split,
    Tables,
    When,
    at_depth,
    count_text,
    estimate,
    exact,
    mean,
    points_by_epoch,
    points_by_layer,
    used_rows,
    without_logarithm,
)
from ncpipe.claims.run_calls import RUN_CALLS
from ncpipe.config.bounds import Count, Index, Number
from ncpipe.config.study import mistake
from ncpipe.config.unions import TaggedBy
from ncpipe.metrics.study_metrics import entry
from ncpipe.system.errors import InputError, cut, shown, suggest
from ncpipe.tables.compare import (
    Combination,
    WeightedRuns,
    drift_combination,
    size_difference_interval,
    slope_combination,
)
from ncpipe.tables.intervals import standard_error
from ncpipe.tables.keys import run_keys, symbol, x_column
from ncpipe.tables.points import LAST
from ncpipe.tables.ranks import rank_correlation
from ncpipe.tables.rates import p_text
from ncpipe.tables.slopes import FEWEST_DEPTHS, Replicates, replicates, turns_back

OVER_DEPTHS = ("slope", "bend")  # kinds of difference that are computed over all depths


@dataclass(frozen=True, kw_only=True)
class Trend(RunClaim):
    """A trend with the depth, with the study's axis, or across experiments.

    over: experiments, in place of one, each with the number that it stands for; at one depth.
    x: what these numbers are: a key of the experiments, as data.per_class, or a word where none is meant.
    """

    over: dict[str, Number] = field(default_factory=dict)
    x: str = ""

    @property
    def side(self) -> Side:
        """The runs and their metric; `sides` has those of each experiment."""
        side = super().side
        return side._replace(experiment=f"{', '.join(self.over)} by {self.x}") if self.over else side

    def sides(self) -> list[Side]:
        return [self.side._replace(experiment=name) for name in self.over or [self.experiment]]

    def mistakes(self) -> Iterator[str]:
        yield from super().mistakes()
        if bool(self.over) != bool(self.x):
            yield "over: goes together with x, which says what its numbers are; give both or neither"
        elif self.over:
            if len(set(self.over.values())) < 2:
                yield "over: name at least two experiments, with different numbers"
            for key in ("experiment", "value", "without"):
                if getattr(self, key, None):
                    yield f"{key}: does not go together with over; remove it"

    def values(self, tables: Tables) -> pd.DataFrame:
        """Return the runs with their values; across experiments, x is the number of each."""
        if not self.over:
            return super().values(tables)
        parts = [
            side.values(tables).assign(x=float(self.over[side.experiment]), axis=self.x)
            for side in self.sides()
        ]
        return pd.concat(parts, ignore_index=True)

    def over_x(self, runs: pd.DataFrame, tables: Tables) -> Points:
        """Return the runs over the depth, the axis or the numbers of the experiments."""
        return Points("number", self.side, runs.assign(at=runs[x_column(runs)], name=""), symbol(runs))

    def points(self, tables: Tables) -> list[Points]:
        """Return what a panel shows of the claim: the runs over x."""
        return [self.over_x(self.values(tables), tables)]


def _few_depths(used: pd.DataFrame, without: int = 0) -> str:
    """Return that a trend over depths or values of the axis has fewer than it takes; nothing if not."""
    x = x_column(used)
    return _fewer_than_a_trend(used[x].nunique() - without, "depths" if x == "depth" else "values")


def _fewer_than_a_trend(count: int, noun: str = "depths") -> str:
    """Return that these are fewer than a trend takes; nothing if not."""
    return f"{count} {noun}, a trend takes {FEWEST_DEPTHS}" if count < FEWEST_DEPTHS else ""


def _used_series(claim: RunClaim, table: pd.DataFrame, tables: Tables, without: int) -> Replicates:
    """Return the used runs of a table by x; raise NoNumberError where slopes.csv has no fit of them."""
    used, x = used_rows(table, "used", without), x_column(table)
    if x != "depth" and used["depth"].nunique() > 1:
        raise NoNumberError("a study with an axis has a slope for each depth; name one")
    if entry(claim.metric).scale == "linear" or used["log10"].isna().any():
        raise NoNumberError(f"{claim.metric} follows no power law: it has no slope")
    series = replicates(used.sort_values([x, "seed"]), tables.rule)
    least = FEWEST_DEPTHS if without else 2
    if len(series.depths) - without < least or series.depths[0] <= 0:
        raise NoNumberError(f"too few values of {symbol(table)} above 0 with runs that are used for a slope")
    return series


def _fitted(series: Replicates, without: int) -> tuple[Answer, dict[str, Any]]:
    """Return the slope without the smallest depths, and the columns FIT and TEST of slopes.csv."""
    fit = series.fit(without)
    error, freedom = standard_error(series.weights(without)[without:], series.groups[without:])
    ends = fit["slope"], fit["low"], fit["high"]
    return Answer(*ends, f"{fit['n_used']} runs", error=error, freedom=freedom), fit


@dataclass(frozen=True, kw_only=True)
class Slope(Trend):
    """The slope of log10 metric on log10 L, or on the study's axis or across experiments at one depth.

    without: how many of the smallest depths are left out.
    """

    quantity: Literal["slope"]
    without: Index = 0

    def mistakes(self) -> Iterator[str]:
        yield from super().mistakes()
        if self.over and min(self.over.values()) <= 0:
            yield "over: a number that is not above 0 has no logarithm; take `quantity: spearman`"

    def answer(self, tables: Tables) -> Answer:
        """Return the slope of the used runs: that of slopes.csv, or of experiments or onsets."""
        table = self.values(tables)
        table = at_depth(table, self.depth) if self.over else table
        series, used = _used_series(self, table, tables, self.without), table[table["used"]]
        number, fit = _fitted(series, self.without)
        if self.over or self.when:
            number = number._replace(runs=count_text(used, table))
        elif not self.expect.between:
            number = number._replace(turns=_turns(series, fit, self.without, symbol(used)))
        return number._replace(few="" if self.over else _few_depths(used, self.without))


def _turns(series: Replicates, fit: dict[str, Any], without: int, name: str) -> str:
    """Return that a line is rejected and that the means turn back at large x; nothing if not."""
    x, means = series.depths[without:], [float(values.mean()) for values in series.groups[without:]]
    if not fit["rejected"] or not turns_back(means, fit["slope"]):
        return ""
    higher = "above" if fit["slope"] < 0 else "below"
    middle = x[(len(x) - 1) // 2]
    return f"a line is rejected, and the mean at {name} = {x[-1]:g} is {higher} that at {name} = {middle:g}"


@dataclass(frozen=True, kw_only=True)
class Line(RunClaim):
    """The slope of log10 metric on log10 L at large depths, and whether the means there lie on a line.

    without: how many of the smallest depths are left out.
    """

    quantity: Literal["line"]
    without: Count

    def mistakes(self) -> Iterator[str]:
        """Yield a line if `expect` has no `within`, or the number is no row of a table of slopes."""
        if self.expect.within is None:
            yield "expect: a line takes `within`, the largest half-width of its slope's interval"
        if self.when:
            yield "when: a line is of the last epoch; take `quantity: slope`"

    def answer(self, tables: Tables) -> Answer:
        """Return the fit of slopes_leave_out.csv, with the test of the line."""
        series = _used_series(self, self.side.values(tables), tables, self.without)
        number, fit = _fitted(series, self.without)
        test = {"p_value": fit["p_value"], "rejected": fit["rejected"]}
        return number._replace(**test, error=math.nan, freedom=math.nan)  # the test decides, not the slope

    def decision(self, number: Answer) -> Verdict:
        """Return `disagrees` if a line is rejected, `agrees` if the slope is known to within `expect.within`.

        Noise hides curvature, so a line that is not rejected agrees only if the slope's interval is narrow.
        """
        if number.rejected:
            return "disagrees"
        assert self.expect.within is not None
        tested = not math.isnan(number.p_value)
        return "agrees" if tested and _half_width(number) <= self.expect.within else "undecided"

    def expected(self, number: Answer) -> str:
        """Return what a line has to be."""
        return f"a line, its slope known to ±{self.expect.within:g}"

    def result(self, number: Answer) -> str:
        """Return the result of the test and how well the slope is known."""
        if number.missing:
            return number.missing
        if math.isnan(number.p_value):
            return "too few runs to test a line"
        if number.rejected:
            return f"a line is rejected ({p_text(number.p_value)})"
        text = f"not rejected ({p_text(number.p_value)})"
        if math.isnan(number.low):
            return f"{text}, its slope without an interval, because a depth has one run"
        text += f", its slope known to ±{_half_width(number):.2g}"
        return text + (f", where ±{self.expect.within:g} is asked for" * (self.decision(number) != "agrees"))


def _half_width(number: Answer) -> float:
    return (number.high - number.low) / 2


@dataclass(frozen=True, kw_only=True)
class Spearman(Trend):
    """The rank correlation of the metric with L, with the study's axis or across experiments.

    layer: of which the metric is, where it is not the last: of ncc_error alone.
    along: another metric of the same runs, in place of L or the axis.
    along_split: the split of that; without it the claim's.
    """

    quantity: Literal["spearman"]
    layer: str = ""
    along: str = ""
    along_split: Split | None = None

    @property
    def side(self) -> Side:
        return super().side._replace(layer=self.layer)

    @property
    def side_along(self) -> Side:
        """The runs and the metric of `along`."""
        return self.side._replace(metric=self.along, split=self.along_split or self.split)

    def sides(self) -> list[Side]:
        return super().sides() + [self.side_along] * bool(self.along)

    def about(self) -> str:
        """Return the runs and their metric, and the other metric."""
        return self.side.words(f"with {self.side_along.series}" * bool(self.along))

    def mistakes(self) -> Iterator[str]:
        yield from super().mistakes()
        if self.along_split and not self.along:
            yield "along_split: belongs to `along`, which is missing; name a metric or remove it"
        if self.along and (self.over or self.layer):
            yield "along: replaces over and layer; remove one of them"
        if self.expect.within is None and 0 not in (self.expect.above, self.expect.below):
            yield "expect: only the sign of a rank correlation is tested; give above: 0 or below: 0"
        if self.layer:
            yield from only_ncc_error(self)

    def answer(self, tables: Tables) -> Answer:
        """Return `ranks.rank_correlation` of the runs, of every depth and value with `along`."""
        table = at_depth(self.values(tables), self.depth) if self.over else self.values(tables)
        used = used_rows(table, "counted").sort_values([x_column(table), "seed"])
        if x_column(used) != "depth" and not self.along and used["depth"].nunique() > 1:
            raise NoNumberError("a study with an axis has a correlation for each depth; name one")
        points = self.over_x(used, tables)
        name = [self.experiment, LAST, self.split, self.metric]
        name += [self.side_along.split, self.along] * bool(self.along)
        values = [np.array([value]) for value in points.table["value"]]
        rho, p_value = rank_correlation(points.table["at"].to_numpy(), values, "|".join(name), tables.rule)
        if math.isnan(rho):
            raise NoNumberError(f"all values of {self.metric} or of {points.label} are equal")
        few = "" if self.over or self.along else _few_depths(used)
        rejected = p_value < 1 - tables.rule.level
        return Answer(rho, runs=count_text(used, table), p_value=p_value, rejected=rejected, few=few)

    def over_x(self, runs: pd.DataFrame, tables: Tables) -> Points:
        """Return the runs over the depth, the axis or the numbers of the experiments, or the other metric."""
        if not self.along:
            return super().over_x(runs, tables)
        keys = run_keys(runs)
        at = self.side_along.values(tables)[[*keys, "value"]].rename(columns={"value": "at"})
        both = runs.merge(at, on=keys).sort_values(keys).dropna(subset=["value", "at"])
        return Points("metric", self.side, both.assign(name=""), self.along)

    def points(self, tables: Tables) -> list[Points]:
        """Return what a panel shows of the claim: the runs over x, or the errors of all layers."""
        if self.layer:
            return [points for side in self.sides() for points in points_by_layer(side, tables)]
        return super().points(tables)


def only_ncc_error(claim: RunClaim) -> Iterator[str]:
    """Yield a line if the metric of a claim about layers before the last is not measured there."""
    if (claim.metric, claim.split) != ("ncc_error", "train"):
        yield "metric: layers before the last have only ncc_error on the training samples; use that"


@dataclass(frozen=True, kw_only=True)
class Value(RunClaim):
    """The mean over the seeds of one setting, at the deepest L by default."""

    quantity: Literal["value"]


@dataclass(frozen=True, kw_only=True)
class Extreme(RunClaim):
    """The least or largest value of all runs, a diverged one with its last finite weights; an exact number.

    minus: another metric of the same split, which is subtracted from an extreme first.
    """

    depends_on_selection: ClassVar[bool] = False

    quantity: Literal["minimum", "maximum"]
    minus: str = ""

    def sides(self) -> list[Side]:
        return [self.side] + [self.side._replace(metric=self.minus)] * bool(self.minus)

    def answer(self, tables: Tables) -> Answer:
        """Return the extreme."""
        parts = [side.values(tables) for side in self.sides()]
        value, *minus = (part.set_index(run_keys(part))["value"] for part in parts)
        values = (value - minus[0] if minus else value).dropna()
        if values.empty:
            raise NoNumberError("no run has a value")
        extreme = values.min() if self.quantity == "minimum" else values.max()
        return exact(float(extreme), f"{len(values)} runs")


@dataclass(frozen=True)
class OtherSide:
    """The other side of a difference; keys that are left out are those of the claim's own runs.

    experiment: a name of params.yaml.
    depth: L.
    value: of the study's axis.
    metric: another one.
    split: another one.
    when: another one.
    """

    experiment: str | None = None
    depth: Count | None = None
    value: Number | None = None
    metric: str | None = None
    split: Split | None = None
    when: When | None = None

    def __post_init__(self) -> None:
        if not self.keys():
            raise ValueError("names nothing; give another experiment, depth, value, metric, split or when")

    def keys(self) -> dict[str, Any]:
        """Return the keys that are given."""
        return {key: value for key, value in vars(self).items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class Difference(RunClaim):
    """A number of one setting minus that of another; runs of one seed are pairs.

    versus: the other side of a difference.
    of: what differs: the slope on L, the size of its drift (bend), the mean of log10 metric of one setting,
    or the mean of the metric.
    without: how many of the smallest depths are left out.
    """

    quantity: Literal["difference"]
    versus: OtherSide
    of: Literal["slope", "bend", "log10", "value"]
    without: Index = 0

    def sides(self) -> list[Side]:
        return [self.side._replace(**self.versus.keys()), self.side]

    def mistakes(self) -> Iterator[str]:
        yield from super().mistakes()
        if self.of in OVER_DEPTHS and (self.depth or self.versus.depth):
            yield f"of: a {self.of} is over all depths; leave out depth, or take log10 or value"
        if len(set(self.sides())) == 1:
            yield "versus: is the setting of the claim itself; name another"
        if (self.of == "bend") != (self.without > 0):
            yield "without: a bend needs the number of depths to leave out, 1 or more; others take none"

    def answer(self, tables: Tables) -> Answer:
        """Return `compare.difference_interval`, or that of the sizes of two drifts."""
        base, terms = (self._terms(side, tables) for side in self.sides())
        counts = [sum(len(term.values) for term in combination) for combination in (terms, base)]
        runs = f"{counts[0]} against {counts[1]} runs"
        if self.of == "bend":
            return Answer(*size_difference_interval(base, terms, tables.rule.level), runs)
        few = _fewer_than_a_trend(min(len(base), len(terms))) if self.of == "slope" else ""
        return estimate(base, terms, tables.rule, runs)._replace(few=few)

    def _terms(self, side: Side, tables: Tables) -> Combination:
        """Return the runs of one side's number with their weights; one depth, 0, if it is not over depths."""
        table = side.values(tables)
        if self.of not in OVER_DEPTHS:
            table = at_depth(table, side.depth)
        try:
            used = used_rows(table, "counted" if self.of == "value" else "used", self.without)
        except NoNumberError as why:
            raise NoNumberError(f"{side.words()}: {why}") from None
        used = used.sort_values(["depth", "seed"])
        if used.duplicated(["depth", "seed"]).any():
            raise NoNumberError("a study with an axis has a number for each value; name one")
        column = "value" if self.of == "value" else "log10"
        if used[column].isna().any():
            raise NoNumberError(f"{side.metric} has no logarithm here; take of: value")
        values = used.set_index("seed")
        groups: dict[Any, pd.Series] = dict(list(values.groupby("depth")[column]))
        if self.of not in OVER_DEPTHS:  # so that runs of one seed are pairs
            return [WeightedRuns(0, 1.0, values) for values in groups.values()]
        terms = drift_combination(groups, self.without) if self.of == "bend" else slope_combination(groups)
        if not terms:
            raise NoNumberError(f"too few depths with runs that are used for a {self.of}")
        return terms


@dataclass(frozen=True, kw_only=True)
class Called(Claim):
    """A number by a function.

    call: name of a function (docs/claims.md).
    args: its arguments.
    """

    study_calls: ClassVar[Functions] = MappingProxyType({})  # of study.py, by `check_calls`
    call: str
    args: dict[str, Any] = field(default_factory=dict)

    def package_calls(self) -> Functions:
        """Return the package's functions, whose names a study's may not have."""
        return RUN_CALLS

    def checked(self) -> tuple[Call, dict[str, Any]]:
        """Return the call and its arguments; raise InputError with a line for each mistake."""
        package = self.package_calls()
        for name in package.keys() & self.study_calls.keys():
            raise mistake("CALLS", f"the call {name!r} exists already, in the package; rename it")
        calls = {**package, **self.study_calls}
        if self.call not in calls:
            self._refuse("call", f"unknown {shown(self.call)}; {suggest(self.call, calls)}")
        call = Call(*calls[self.call])
        if call.of_runs != isinstance(self, RunClaim):
            other = "computed" if call.of_runs else "theory"
            self._refuse("quantity", f"{self.call} is a call of `quantity: {other}`")
        return call, arguments_of(call.number, self.args, f"claims.yaml: {self.id}.args")

    def _refuse(self, key: str, problem: str) -> None:
        raise InputError(cut(f"claims.yaml: {self.id}.{key}: {problem}"))


POINTS: dict[str, Callable[[Side, Tables], list[Points]]] = {  # of calls that a panel shows in another way
    "since_fit": points_by_epoch,
    "layer_rise": points_by_layer,
}


@dataclass(frozen=True, kw_only=True)
class Computed(RunClaim, Called):
    """A number of each run, and its mean, or one number, by a function of the tables."""

    quantity: Literal["computed"]

    @property
    def number(self) -> str:
        return self.call

    def mistakes(self) -> Iterator[str]:
        yield from super().mistakes()
        if self.call == "layer_rise":
            yield from only_ncc_error(self)

    def answer(self, tables: Tables) -> Answer:
        """Return the function's number, or the mean of its values."""
        result = self.computed(tables)
        if isinstance(result, float):
            return exact(result)
        return mean(at_depth(result, self.depth), tables.rule)

    def computed(self, tables: Tables) -> pd.DataFrame | float:
        """Return the function's values of runs, or its number of them all."""
        runs = self.side.runs(tables)
        call, arguments = self.checked()
        result = call.number(claim=self, tables=tables, **arguments)
        if not isinstance(result, pd.DataFrame):
            return float(result)
        if result.empty:
            raise NoNumberError(f"{self.about()}: {self.call} finds no run with what it takes")
        keys = run_keys(tables.runs)
        return without_logarithm(
            runs[[*keys, "selected"]].merge(result[[*keys, "value"]], on=keys, how="left")
        )

    def points(self, tables: Tables) -> list[Points]:
        """Return the values of runs beside each other, or what else the call is seen by."""
        if self.call in POINTS:
            return POINTS[self.call](self.side, tables)
        result = self.computed(tables)
        if isinstance(result, float):
            return []
        table = at_depth(result, self.depth).assign(at=math.nan, name=self.experiment)
        return [Points("slope" if self.call == "layer_slope" else "place", self.side, table)]


@dataclass(frozen=True, kw_only=True)
class Theory(Called):
    """A number of the theory, without any run.

    against: for `within`: a number, or `numerical` for the same number computed independently.
    """

    quantity: Literal["theory"]
    against: Literal["numerical"] | float | None = None

    def about(self) -> str:
        """Return the call with its arguments."""
        return f"{self.call}({', '.join(f'{key} = {value}' for key, value in self.args.items())})"

    def mistakes(self) -> Iterator[str]:
        """Yield a line if one of `within` and `against` is missing."""
        if (self.expect.within is None) != (self.against is None):
            yield "expect: `within` and `against` belong together; give both or neither"

    def package_calls(self) -> Functions:
        """Return the package's functions, those of runs too."""
        from ncpipe.claims.theory_calls import THEORY_CALLS  # imports torch

        return {**super().package_calls(), **THEORY_CALLS}

    def checked(self) -> tuple[Call, dict[str, Any]]:
        call, arguments = super().checked()
        if self.against == "numerical" and call.check is None:
            self._refuse("against", f"{self.call} has no numerical check; give a number")
        return call, arguments

    def expected(self, number: Answer) -> str:
        """Return the expected range, as `< 0` or `within 0.001 of 0.5`."""
        if self.expect.within is None:
            return super().expected(number)
        check = ", computed independently" * (self.against == "numerical")  # it may be a closed form
        return f"within {self.expect.within:g} of {number.target:.6g}{check}"

    def answer(self, tables: object = None) -> Answer:
        """Return the exact number of the call; its `target` is the number of `against`.

        Raises InputError, which begins with the claim's id, for a mistake in the call, for arguments outside
        the theory's range and for those whose number is not finite.
        """
        call, arguments = self.checked()
        try:
            number = exact(_finite(call.number, arguments))
            if self.against is None:
                return number
            if self.against == "numerical":
                assert call.check is not None
                return number._replace(target=_finite(call.check, arguments))
            return number._replace(target=self.against)
        except InputError as error:
            raise InputError(cut(f"claims.yaml: {self.id}.args: {error}")) from None


def _finite(function: Callable[..., float], arguments: dict[str, Any]) -> float:
    """Return a function's number; raise InputError if the arguments are too extreme to compute it."""
    try:
        value = function(**arguments)
    except InputError:
        raise
    except (ArithmeticError, ValueError, RuntimeError) as error:  # of solvers, beyond the range of float64
        text = " ".join(str(error).split())
        raise InputError(f"too extreme, the number cannot be computed ({text}); give others") from None
    if not math.isfinite(value):
        raise InputError(f"the number is {value:g} with these; give others")
    return value


def check_calls(claims: Iterable[Claim], study_calls: Functions) -> None:
    """Raise InputError with one line per mistake in the calls, before evaluating them takes minutes.

    From here on, claims find a study's functions too, the entries of CALLS.
    Only `answer` finds arguments outside the theory's range.
    """
    mistakes = []
    for claim in claims:
        try:
            if isinstance(claim, Called):
                object.__setattr__(claim, "study_calls", study_calls)
                claim.checked()
        except InputError as error:
            mistakes.append(str(error))
    if mistakes:
        raise InputError("\n".join(mistakes))


AnyClaim = Annotated[
    Slope | Line | Spearman | Value | Extreme | Difference | Computed | Theory, TaggedBy("quantity")
]
