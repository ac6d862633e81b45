"""Collapse of a model every few epochs of its training, as values by name: what the callbacks log."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from ncpipe.metrics.catalogue import one_of_a_spectrum
from ncpipe.metrics.causal import measure_causal_lm
from ncpipe.metrics.hooks import measure_model
from ncpipe.metrics.table import Measurement
from ncpipe.system.errors import InputError, shown


@dataclass(frozen=True)
class Watch:
    """What is measured and how often.

    classifier, loader, test_loader: as in `measure_model`; options: its others (`select`, `layers`, ...).
    every: epochs from one measurement to the next. Raises InputError where that is no whole number above 0.
    """

    classifier: str | nn.Module
    loader: Iterable[Any]
    test_loader: Iterable[Any] | None = None
    every: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_period("every", self.every, "epochs")

    def due(self, epoch: float) -> bool:
        """Whether to measure when so many epochs are done."""
        return epoch == round(epoch) and round(epoch) % self.every == 0

    def values(self, model: nn.Module) -> dict[str, float]:
        """Every metric but singular values one by one, under `nc/LAYER/SPLIT/METRIC`."""
        return named(measure_model(model, self.classifier, self.loader, self.test_loader, **self.options))


@dataclass(frozen=True)
class CausalWatch:
    """The same of a causal language model.

    loader, options: of `measure_causal_lm`. every: epochs, or steps: training steps, from one measurement to
    the next. Raises InputError where one of them is no whole number above 0.
    """

    loader: Iterable[Any]
    every: int = 1
    steps: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_period("every", self.every, "epochs")
        if self.steps is not None:
            check_period("steps", self.steps, "training steps")

    def due(self, epoch: float) -> bool:
        """Whether to measure when so many epochs are done."""
        return self.steps is None and epoch == round(epoch) and round(epoch) % self.every == 0

    def due_at_step(self, step: int) -> bool:
        """Whether to measure when so many training steps are done."""
        return self.steps is not None and step % self.steps == 0

    def values(self, model: nn.Module) -> dict[str, float]:
        """Every metric and count but singular values one by one, under `nc/LAYER/SPLIT/METRIC`."""
        return named(measure_causal_lm(model, self.loader, **self.options))


def check_period(name: str, value: object, unit: str) -> None:
    """Raise InputError unless the argument `name` is a whole number above 0."""
    if not isinstance(value, int) or value < 1:
        raise InputError(f"{name}: a whole number of {unit}, 1 or more, not {shown(value)}")


def named(rows: Iterable[Measurement]) -> dict[str, float]:
    """The values but singular ones under `nc/LAYER/SPLIT/METRIC`."""
    return {
        f"nc/{row.layer}/{row.split}/{row.metric}": float(row.value)
        for row in rows
        if not one_of_a_spectrum(row.metric)
    }
