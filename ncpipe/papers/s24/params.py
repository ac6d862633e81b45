"""Define the key `series` of S24's study of deep features models in params.yaml."""

import typing
from dataclasses import dataclass

from ncpipe.config.bounds import Depth, Index, Number
from ncpipe.config.experiment import Experiment
from ncpipe.config.params import Params, varied
from ncpipe.config.run import Run
from ncpipe.system.errors import InputError, shown, suggest


@dataclass(frozen=True)
class Series:
    """Further runs of one experiment, trained and measured in one stage, in a study that has it.

    depth: L.
    seeds: seeds of the initial weights.
    axis: a key of the experiment to vary, as model.width; without it nothing is varied.
    values: numbers that it takes.
    """

    depth: Depth
    seeds: tuple[Index, ...]
    axis: str | None = None
    values: tuple[Number, ...] = ()

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
        known = typing.cast(Params, self).experiments
        for name in self.series:
            if name not in known:
                raise ValueError(f"series.{name}: no experiment of this name; {suggest(name, known)}")
            for run in self.series_runs(name):
                if problem := run.spec.depth_incompatibility(run.depth):
                    raise ValueError(f"series.{name}.depth: {run.depth} does not suit {name}: {problem}")

    def series_runs(self, name: str) -> tuple[Run, ...]:
        """Return the runs of a series, by value and seed; raise InputError if there is no such series."""
        if name not in self.series:
            raise InputError(f"series: unknown {shown(name)}; {suggest(name, self.series)}")
        own, spec = self.series[name], typing.cast(Params, self).experiments[name]
        specs: dict[Number | None, Experiment] = {None: spec}
        if own.axis:
            found = {value: varied(name, spec, own.axis, value, f"series.{name}") for value in own.values}
            if mistakes := [line for _, lines in found.values() for line in lines]:
                raise InputError(mistakes[0])
            specs = {value: typing.cast(Experiment, found[value][0]) for value in sorted(found)}
        return tuple(
            Run(name, own.depth, seed, each, own.axis, value)
            for value, each in specs.items()
            for seed in sorted(own.seeds)
        )


PARAMS = SeriesParams
