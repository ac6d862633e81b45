"""Describe a metric beside the function that computes it, so that a new metric is one function.

    @metric("NC1", "0", "within-class over between-class variance", "tr Σ_W / tr Σ_B", "[0, ∞]", order=2)
    def nc1_trace_ratio(statistics: ClassStatistics) -> float:
        return ratio(within_trace(statistics), between_trace(statistics))

The function's name is the metric's. Its parameters say what it is computed of, from which follow layers and
splits, who calls it, and the arguments of its twin in `nc.functional`:

    weight       (K, d), the classifier's        statistics  ClassStatistics of the samples
    train        ClassStatistics of the training samples, of held-out samples alone
    samples      SampleStatistics, and any of its fields (spread, wrong, nearest, mismatched, ...)
    axes         DecisionAxes, for a number of shots too (`ncpipe.metrics.few_shot`)

`ncpipe.metrics.catalogue` names the modules and has all entries. Formulas and symbols are those of
docs/metrics.md.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import ModuleType
from typing import Any, Literal, TypeVar

EVERY, LAST, WEIGHTS, TEST = "every, both", "last, both", "last, weights", "every, test"
MANY = "; K > d + 1 alone"
OF_CLASSIFIER = frozenset({"weight", "mismatched", "misalignment", "margins"})
S25, S24, P20, WP24 = "S25 Def. 3.4", "S24 sec. 6", "P20", "WP24"


@dataclass(frozen=True)
class Metric:
    """name: the column `metric`. group: the property it measures, NC1 to NC4 or another heading.

    collapse: its value at collapse. meaning: one line for a printed report. formula, interval (of values),
    source and where (layers and splits): for the page, in its notation.
    scale: log for what falls as a power, linear for shares, ranks, margins.
    order: the power of the distance from collapse in which it vanishes; None where it does not.
    rounding: what it carries: `features` to that power, the `loss` of which it is a difference, or no floor
    that can be told (none). label: what figures call it, in mathtext. headline: whether pages show it first,
    and `dvc plots` draws it against depth; of the package's metrics alone.
    """

    name: str
    group: str
    collapse: str
    meaning: str
    formula: str
    interval: str
    source: str = ""
    where: str = ""
    scale: Literal["log", "linear"] = "log"
    order: int | None = None
    rounding: Literal["features", "loss", "none"] = "none"
    label: str = ""
    headline: bool = False

    @property
    def title(self) -> str:
        """Title of an axis or panel that shows the metric on its scale."""
        name = self.label or self.name.replace("_", " ")
        return rf"$\log_{{10}}$ {name}" if self.scale == "log" else name

    @property
    def direction(self) -> str:
        """Where collapse lies: `lower` or `higher` if its value is an end of the interval, else ''."""
        ends = self.interval.strip("[](){} ").replace("..", ",").split(",")
        low, high = ends[0].strip(), ends[-1].strip()
        collapse = self.collapse.replace("-", "−").replace("inf", "∞")
        if not collapse:  # of counts
            return ""
        return "lower" if collapse in (low, "least") else "higher" if collapse == high else ""


@dataclass(frozen=True)
class Family:
    """A function with the entries of the values that it returns; a value that is a list is numbered.

    many: whether its values are of more classes than a simplex of this width has corners, K > d + 1.
    """

    function: Callable[..., Any]
    entries: tuple[Metric, ...]
    many: bool

    @cached_property
    def needs(self) -> frozenset[str]:
        """Names of what it is computed of."""
        return frozenset(inspect.signature(self.function).parameters)

    def result(self, arguments: Mapping[str, Any]) -> Any:
        """Return the function's result, of those arguments that it needs."""
        return self.function(**{name: arguments[name] for name in self.needs})

    def values(self, arguments: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
        """Yield (metric, value) of arguments by name."""
        result = self.result(arguments)
        values = result if isinstance(result, tuple) else (result,)
        for entry, value in zip(self.entries, values, strict=True):
            if isinstance(value, list):
                yield from ((f"{entry.name}_{place:03d}", number) for place, number in enumerate(value, 1))
            else:
                yield entry.name, value


_FAMILIES: list[Family] = []
Function = TypeVar("Function", bound=Callable[..., Any])


def metric(
    group: str,
    collapse: str,
    meaning: str,
    formula: str,
    interval: str,
    source: str = "",
    *,
    where: str = "",
    note: str = "",
    many: bool = False,
    **fields: Any,
) -> Callable[[Function], Function]:
    """Return a decorator that enters a function as the metric of its name; `Metric` has the arguments.

    where: unless the parameters tell it. note: what follows it on the page. many: as in `Family`. rounding is
    `features` unless told, where there is an order.
    """
    if "order" in fields:
        fields = {"rounding": "features"} | fields

    def enter(function: Function) -> Function:
        entry = Metric(
            function.__name__, group, collapse, meaning, formula, interval, source, where, **fields
        )
        function.__doc__ = function.__doc__ or f"Return {meaning}."
        return family(entry, note=note, many=many)(function)

    return enter


def family(*entries: Metric, note: str = "", many: bool = False) -> Callable[[Function], Function]:
    """Return a decorator that enters a function which returns a tuple of values, one for each entry."""

    def enter(function: Function) -> Function:
        where = _layers_and_splits(inspect.signature(function).parameters) + (MANY if many else "") + note
        complete = tuple(entry if entry.where else replace(entry, where=where) for entry in entries)
        _FAMILIES.append(Family(function, complete, many))
        return function

    return enter


def families_of(modules: Sequence[ModuleType], groups: Sequence[str]) -> tuple[Family, ...]:
    """Return what was entered in these modules, in the order of the groups, then of the modules."""
    names = [module.__name__ for module in modules]
    families = [family for family in _FAMILIES if family.function.__module__ in names]
    families.sort(key=lambda f: (groups.index(f.entries[0].group), names.index(f.function.__module__)))
    return tuple(families)


def _layers_and_splits(needs: Mapping[str, object]) -> str:
    """Return the layers and splits of a metric that is computed of this."""
    if needs.keys() == {"weight"}:
        return WEIGHTS
    if "train" in needs:
        return TEST
    return EVERY if OF_CLASSIFIER.isdisjoint(needs) else LAST
