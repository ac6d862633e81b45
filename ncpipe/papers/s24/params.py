"""Define the key `series` of S24's study of deep features models in params.yaml."""

from dataclasses import dataclass
from typing import Annotated, Any

from ncpipe.study import Bound, Index, InputError, Run, make_run


@dataclass(frozen=True)
class Series:
    """Further runs of one experiment, trained and measured in one stage, in a study that has it.

    depth: L.
    seeds: seeds of the initial weights.
    axis: a key of the experiment to vary, as model.width; without it nothing is varied.
    values: numbers that it takes.
    """

    depth: Annotated[int, Bound(1, 10_000)]
    seeds: tuple[Index, ...]
    axis: str | None = None
    values: tuple[int | float, ...] = ()

    def __post_init__(self) -> None:
        for key, needed in (("seeds", True), ("values", self.axis is not None)):
            listed = getattr(self, key)
            if needed and not listed:
                raise ValueError(f"{key}: empty, so there is nothing to run; list at least one")
            if len(set(listed)) < len(listed):
                raise ValueError(f"{key}: one is listed twice; remove it")
        if self.values and self.axis is None:
            raise ValueError("values without an axis; name the key whose values these are, or remove them")


@dataclass(frozen=True)
class SeriesParams:
    """Adds the key `series` to params.yaml.

    series: further runs of an experiment, by its name.
    """

    series: dict[str, Series]

    def __post_init__(self) -> None:
        for name in self.series:
            if name not in self._experiments():
                known = ", ".join(self._experiments())
                raise ValueError(f"series.{name}: no experiment of this name; allowed: {known}")
            for run in self.series_runs(name):
                if problem := run.spec.depth_incompatibility(run.depth):
                    raise ValueError(f"series.{name}.depth: {run.depth} does not suit {name}: {problem}")

    def series_runs(self, name: str) -> tuple[Run, ...]:
        """Return the runs of a series, by value and seed; raise InputError if there is no such series."""
        if name not in self.series:
            raise InputError(f"series: unknown {name!r}; allowed: {', '.join(self.series)}")
        series, spec = self.series[name], self._experiments()[name]
        return tuple(
            make_run(name, series.depth, seed, spec, series.axis, value, f"series.{name}")
            for value in sorted(series.values) or (None,)
            for seed in sorted(series.seeds)
        )

    def _experiments(self) -> dict[str, Any]:
        """Return those of params.yaml, of which the package knows."""
        experiments: dict[str, Any] = vars(self)["experiments"]
        return experiments


PARAMS = SeriesParams
