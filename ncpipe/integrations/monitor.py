"""Measure a model every few epochs or steps of its training; the callbacks of both trainers use this."""

import math
from collections.abc import Callable, Iterable, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any

from torch import nn

from ncpipe.metrics.catalogue import one_of_a_spectrum
from ncpipe.metrics.causal import measure_causal_lm
from ncpipe.metrics.checks import check_count
from ncpipe.metrics.hooks import measure_model
from ncpipe.metrics.loaders import Forward
from ncpipe.metrics.measurements import Measurements
from ncpipe.metrics.plots import plot_history
from ncpipe.system.errors import InputError, shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class CollapseMonitor:
    """Measure a classifier every `every` epochs, in a training loop of one's own.

    Args:
        classifier: the last linear layer or its name, as in `measure_model`.
        loader: batches of the training samples, likewise.
        test_loader: batches of held-out samples, likewise.
        every: epochs from one measurement to the next.
        measure: `measure_regression_model` or `measure_multilabel_model`, in place of `measure_model`.
        prefix: what the names of values begin with; two callbacks of one trainer need different ones.
        options: its further arguments (`select`, `layers`, ...).

    Raises InputError unless `every` is a whole number above 0.
    """

    def __init__(
        self,
        classifier: str | nn.Module,
        loader: Iterable[Any],
        test_loader: Iterable[Any] | None = None,
        every: int = 1,
        measure: Callable[..., Measurements] = measure_model,
        prefix: str = "nc",
        **options: Any,
    ) -> None:
        check_count("every", every, "epochs")
        self.prefix = prefix
        self.classifier, self.loader, self.test_loader = classifier, loader, test_loader
        self.every, self.measure, self.options = every, measure, options
        self.history: dict[float, dict[str, float]] = {}

    def due(self, epoch: float) -> bool:
        """Return whether to measure after this many epochs."""
        return epoch == round(epoch) and round(epoch) % self.every == 0

    def values(
        self, model: nn.Module, forward: Forward | None = None, *, epoch: float | None = None
    ) -> dict[str, float]:
        """Return every metric but single singular values, by `nc/LAYER/SPLIT/METRIC` (nc: the prefix).

        forward: replaces that of `options`. epoch: where to keep the values in `history`, for `plot`.
        """
        if epoch is not None and not (isinstance(epoch, Real) and math.isfinite(epoch)):
            raise InputError(f"epoch: a number, not {shown(epoch)}")
        options = self.options if forward is None else self.options | {"forward": forward}
        rows = self.measure(model, self.classifier, self.loader, self.test_loader, **options)
        values = {
            f"{self.prefix}/{row.layer}/{row.split}/{row.metric}": float(row.value)
            for row in rows
            if not one_of_a_spectrum(row.metric)
        }
        if epoch is not None:
            self.history[epoch] = dict(values)
        return values

    def plot(self, metrics: Sequence[str] | None = None) -> "Figure":
        """Return a matplotlib figure of metrics against the epochs in `history`.

        metrics: their names; NC1 to NC4 by default.
        """
        return plot_history(self.history, metrics)


class CausalCollapseMonitor(CollapseMonitor):
    """Measure a causal language model every `every` epochs, or every `steps` training steps.

    Args:
        loader: as in `measure_causal_lm`.
        every: epochs from one measurement to the next; not used where `steps` is given.
        steps: training steps from one measurement to the next.
        test_loader: as in `measure_causal_lm`. prefix: as in `CollapseMonitor`.
        options: further arguments of `measure_causal_lm`.

    Raises InputError unless both are whole numbers above 0.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        every: int = 1,
        steps: int | None = None,
        test_loader: Iterable[Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__("", loader, test_loader, every, _measure_next_tokens, **options)
        if steps is not None:
            check_count("steps", steps, "training steps")
        self.steps = steps

    def due(self, epoch: float) -> bool:
        return self.steps is None and super().due(epoch)

    def due_at_step(self, step: int) -> bool:
        """Return whether to measure after this many training steps."""
        return self.steps is not None and step % self.steps == 0


def _measure_next_tokens(
    model: nn.Module,
    classifier: str,
    loader: Iterable[Any],
    test_loader: Iterable[Any] | None,
    **options: Any,
) -> Measurements:
    return measure_causal_lm(model, loader, test_loader, **options)


def check_prefixes(monitors: Iterable[CollapseMonitor]) -> None:
    """Raise InputError if two monitors of one trainer give their values the same names."""
    prefixes = [monitor.prefix for monitor in monitors]
    if double := {prefix for prefix in prefixes if prefixes.count(prefix) > 1}:
        raise InputError(f"two callbacks log {min(double)}/...; give one of them another prefix=")
