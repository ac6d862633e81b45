"""Collapse of a model every few epochs of its training, as values by name: what the callbacks log."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from ncpipe.errors import InputError, shown
from ncpipe.metrics.catalogue import one_of_a_spectrum
from ncpipe.metrics.hooks import measure_model


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
        if not isinstance(self.every, int) or self.every < 1:
            raise InputError(f"every: a whole number of epochs, 1 or more, not {shown(self.every)}")

    def due(self, epoch: float) -> bool:
        """Whether to measure when so many epochs are done."""
        return epoch == round(epoch) and round(epoch) % self.every == 0

    def values(self, model: nn.Module) -> dict[str, float]:
        """Every metric but singular values one by one, under `nc/LAYER/SPLIT/METRIC`."""
        rows = measure_model(model, self.classifier, self.loader, self.test_loader, **self.options)
        return {
            f"nc/{row.layer}/{row.split}/{row.metric}": float(row.value)
            for row in rows
            if not one_of_a_spectrum(row.metric)
        }
