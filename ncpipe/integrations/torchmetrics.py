"""Collapse as torchmetrics Metrics, for loops that have such; needs torchmetrics, the extra `doors`.

B  samples of a batch    N  of all    K  classes    d  feature width    P  processes
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from ncpipe.metrics.catalogue import one_of_a_spectrum
from ncpipe.metrics.meters import SampleMeter, SampleStatistics
from ncpipe.metrics.passes import same_samples
from ncpipe.metrics.statistics import ClassStatistics, StatisticsAccumulator
from ncpipe.metrics.table import measure_weights, one_pass_metrics, two_pass_metrics
from ncpipe.system.errors import InputError

MARGINS = "margins"  # the one state that grows with the samples: quantiles have no exact running form
OWN, TRAIN = "own_", "train_"


class ClassCollapse(Metric):
    """Every metric of docs/metrics.md that one pass over features and labels gives, by name.

    update(features (B, d), labels (B,)) in any batches; compute() -> values of all samples so far, merged
    over processes; raises InputError for a class without a sample. The state is float64 whatever the features
    are. What needs a second pass (`nc1_pinv`, decisions, margins) or weights is `SampleCollapse`'s.
    """

    full_state_update = True  # a batch of its own, which `forward` looks at, has no class statistics to add
    higher_is_better = None
    is_differentiable = False

    def __init__(self, classes: int, width: int, **options: Any) -> None:
        """options: torchmetrics' own."""
        super().__init__(**options)
        self.classes, self.width = classes, width
        for name, tensor in StatisticsAccumulator(classes, width).tensors().items():
            self.add_state(name, tensor, dist_reduce_fx=None)

    def update(self, features: Tensor, labels: Tensor) -> None:
        """Add samples."""
        held = _accumulator(self.metric_state)
        held.update(features.detach(), labels)
        self._hold(held)

    def compute(self) -> dict[str, float]:
        """Values by name, without singular values one by one."""
        return _values(one_pass_metrics(_accumulator(self.metric_state).result()))

    def statistics(self) -> ClassStatistics:
        """What the values follow from, merged over processes: what `SampleCollapse` is to be given."""
        if self._is_synced:
            return _accumulator(self.metric_state).result()
        with self.sync_context(dist_sync_fn=self.dist_sync_fn):
            state = self.metric_state
        return _accumulator(state).result()  # after the state is this process's again, should it raise

    def merge_state(self, incoming_state: "dict[str, Any] | Metric") -> None:
        """Add everything that another such metric, or its `metric_state`, has seen."""
        other = incoming_state.metric_state if isinstance(incoming_state, Metric) else incoming_state
        held = _accumulator(self.metric_state)
        held.merge(_accumulator(other))
        self._hold(held)
        self._computed = None

    def _hold(self, held: StatisticsAccumulator) -> None:
        for name, tensor in held.tensors().items():
            setattr(self, name, tensor)


class SampleCollapse(Metric):
    """The other metrics of docs/metrics.md, which need final class means, and the classifier's, by name.

    update(features (B, d), labels (B,)) with the samples that the means are of, once more, in any batches and
    any order; compute() -> `nc1_pinv`, `ncc_error`, with a weight NC2 of the weights, NC3, NC4 and margins,
    with `train` both test collapses. Merged over processes, exactly: what is held are counts, sums, and a
    margin a sample. compute() raises InputError unless all samples were there, which `forward` on a single
    batch never has.
    """

    full_state_update = False
    higher_is_better = None
    is_differentiable = False
    margins: list[Tensor]  # one tensor where torchmetrics has gathered them

    def __init__(
        self,
        own: ClassStatistics,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        train: ClassStatistics | None = None,
        **options: Any,
    ) -> None:
        """own: of these samples, as `ClassCollapse.statistics` gives them, of all processes. weight (K, d),
        bias (K,): the last layer. train: the training samples', where `own` are held-out ones. options:
        torchmetrics' own. What is given is part of the state, so that no state is read about other means.
        """
        super().__init__(**options)
        given = _given(OWN, own) | ({} if train is None else _given(TRAIN, train))
        if weight is not None:
            given["weight"] = weight.detach().double()
        if bias is not None:
            given["bias"] = bias.detach().double()
        self._given_names = tuple(given)
        for name, tensor in given.items():
            self.add_state(name, tensor.clone(), dist_reduce_fx=_equal_ones)
        self._meter_of: dict[str, Tensor] = {}
        empty = self._meter().result().tensors()
        self._summed = tuple(name for name in empty if name != MARGINS)
        for name in self._summed:
            self.add_state(name, empty[name], dist_reduce_fx="sum")
        if MARGINS in empty:
            self.add_state(MARGINS, [], dist_reduce_fx="cat")
            self.margins.append(empty[MARGINS])

    def update(self, features: Tensor, labels: Tensor) -> None:
        """Add samples."""
        meter = self._meter()
        meter.start()
        meter.update(features, labels)
        found = meter.result().tensors()
        for name in self._summed:
            setattr(self, name, getattr(self, name) + found[name])
        if MARGINS in found:
            self.margins.append(found[MARGINS])

    def compute(self) -> dict[str, float]:
        """Values by name, without singular values one by one."""
        held = {name: getattr(self, name) for name in self._summed}
        if MARGINS in self._defaults:
            held[MARGINS] = torch.cat(self.margins) if isinstance(self.margins, list) else self.margins
        own, train, weight, _ = self._given()
        samples = SampleStatistics(**held)
        if not same_samples(own, samples):
            raise InputError(
                f"the means are of {own.samples} samples, and {int(samples.samples)} were given, or others: "
                "update with every sample of the first pass once, then compute"
            )
        values = _values(two_pass_metrics(own, samples, own if train is None else train, weight))
        if weight is not None:
            values |= _values((row.metric, row.value) for row in measure_weights(weight))
        return values

    def reset(self) -> None:
        """Forget all samples; the means stay."""
        super().reset()
        if MARGINS in self._defaults:  # of float64 also in a process that sees no sample
            self.margins.append(torch.empty(0, dtype=torch.float64, device=self.device))

    def _given(self) -> tuple[ClassStatistics, ClassStatistics | None, Tensor | None, Tensor | None]:
        held = {name: getattr(self, name) for name in self._given_names}
        own, train = (
            {name.removeprefix(prefix): tensor for name, tensor in held.items() if name.startswith(prefix)}
            for prefix in (OWN, TRAIN)
        )
        return (
            ClassStatistics.from_tensors(**own),
            ClassStatistics.from_tensors(**train) if train else None,
            held.get("weight"),
            held.get("bias"),
        )

    def _meter(self) -> SampleMeter:
        """A meter about what is given now: a state that was loaded, or moved, brings its own."""
        held = {name: getattr(self, name) for name in self._given_names}
        same = self._meter_of and all(
            old.device == held[name].device and torch.equal(old, held[name])
            for name, old in self._meter_of.items()
        )
        if not same:
            own, train, weight, bias = self._given()
            self._held_meter = SampleMeter(own, weight, bias, train)
            self._meter_of = held
        return self._held_meter


def _values(metrics: Iterable[tuple[str, float]]) -> dict[str, float]:
    return {metric: value for metric, value in metrics if not one_of_a_spectrum(metric)}


def _accumulator(state: dict[str, Any]) -> StatisticsAccumulator:
    """Of a state, or of states that were gathered: each has an axis of processes in front, or is a list."""
    held = {name: torch.stack(v) if isinstance(v, list) else v for name, v in state.items()}
    if held["counts"].dim() == 1:
        return StatisticsAccumulator.from_tensors(**held)
    first, *others = (
        StatisticsAccumulator.from_tensors(**{name: tensor[place] for name, tensor in held.items()})
        for place in range(len(held["counts"]))
    )
    for other in others:
        first.merge(other)
    return first


def _given(prefix: str, statistics: ClassStatistics) -> dict[str, Tensor]:
    tensors = {"exponent": torch.tensor(0)} | statistics.tensors()
    return {f"{prefix}{name}": tensor.to(statistics.means.device) for name, tensor in tensors.items()}


def _equal_ones(gathered: Tensor) -> Tensor:
    """The one (...) of P equal tensors (P, ...)."""
    first = gathered[0]
    if not all(torch.equal(first.nan_to_num(), other.nan_to_num()) for other in gathered):
        raise InputError(
            "the processes were given different means or weights: give each those of all, as "
            "ClassCollapse.statistics() returns them"
        )
    return first
