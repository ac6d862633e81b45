"""Compute collapse metrics as Metrics of torchmetrics (the extra `integrations`).

B  samples of a batch    N  all samples    K  classes    K'  measured classes    d  feature width
T  positions of a sequence    P  processes
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

import torch
from torch import Tensor
from torchmetrics import Metric

from ncpipe.metrics.catalogue import one_of_a_spectrum
from ncpipe.metrics.kept_pass import same_samples
from ncpipe.metrics.sample_statistics import SampleAccumulator, SampleStatistics
from ncpipe.metrics.selection import IGNORE_INDEX, Classes, measured_entries, select_classes, widened
from ncpipe.metrics.statistics import ClassStatistics, StatisticsAccumulator
from ncpipe.metrics.table import measure_weights, one_pass_metrics, two_pass_metrics
from ncpipe.system.errors import InputError

MARGINS = "margins"  # the only state that grows with the samples, because quantiles need all margins
OWN, TRAIN = "own_", "train_"
MEASURED = "measured"
UNSHARED = "unshared"  # NaN, which is close to nothing


class _Float64Metric(Metric):
    """Keep the types of the state, float64, when a model that holds the metric is cast.

    No two such metrics share their states in a MetricCollection: its compute groups join those whose states
    are close after the first batch, though arguments may tell them apart in the next ones.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.add_state(UNSHARED, torch.tensor(torch.nan, dtype=torch.float64, device="cpu"), _first)

    def forward(self, *arguments: Any, **options: Any) -> Any:
        """Add a batch and return its own values; nothing is added where these cannot be computed."""
        alone = self.clone()
        alone.reset()
        alone.sync_on_compute = alone._to_sync = False
        alone.update(*arguments, **options)
        values = alone.compute()
        self.update(*arguments, **options)
        self._forward_cache = values  # which Lightning logs
        return values

    def _apply(self, fn: Callable[[Tensor], Tensor], *arguments: Any, **options: Any) -> Self:
        """Move the state to where `fn` puts a tensor; torchmetrics passes `.to(dtype)` on to it."""

        def moved(tensor: Tensor) -> Tensor:
            result = fn(tensor)
            return result if result.dtype == tensor.dtype else tensor.to(result.device)

        super()._apply(moved, *arguments, **options)
        return self


class ClassCollapse(_Float64Metric):
    """Compute every metric of docs/metrics.md that one pass over features and labels gives.

    `update` takes features (B, d) and labels (B,), or (B, T, d) and (B, T), in any batches. `compute` returns
    values by name of all samples so far, merged over processes; it raises InputError for a measured class
    without a sample. The state is float64 for every type of features, and stays so where a model that holds
    the metric is cast, and after `set_dtype`. `SampleCollapse` has what needs a second pass or weights
    (`nc1_pinv`, decisions, margins).
    """

    full_state_update = True  # otherwise `forward` would add statistics of single batches
    higher_is_better = None
    is_differentiable = False

    def __init__(
        self,
        num_classes: int,
        width: int,
        classes: Classes = "all",
        ignore_index: int = IGNORE_INDEX,
        **options: Any,
    ) -> None:
        """Start without samples.

        Args:
            num_classes: K, of the classifier; labels are below it.
            width: d.
            classes: which of them count, as in `measure_model`: `all`, `present` or numbers.
            ignore_index: label of samples, or positions, that do not count.
            options: those of torchmetrics.
        """
        super().__init__(**options)
        self.num_classes, self.width, self.ignore_index = num_classes, width, ignore_index
        present = isinstance(classes, str) and classes == "present"
        self.classes = classes if present else _numbers(classes, num_classes)
        for name, tensor in StatisticsAccumulator(num_classes, width).tensors().items():
            self.add_state(name, tensor, dist_reduce_fx=None)

    def update(self, features: Tensor, labels: Tensor, mask: Tensor | None = None) -> None:
        """Add samples; mask: of the labels' shape, 0 where one does not count."""
        features, labels = _counted_samples(features.detach(), labels, self.ignore_index, mask)
        if len(labels):
            accumulator = _accumulator(self.metric_state)
            accumulator.update(features, labels)
            self._store(accumulator)

    def compute(self) -> dict[str, float]:
        """Return values by name, without single singular values."""
        return _values(one_pass_metrics(self._result(_accumulator(self.metric_state))))

    def statistics(self) -> ClassStatistics:
        """Return the K' classes' statistics, merged over processes, which `SampleCollapse` needs."""
        return self._result(self._merged_accumulator())

    def measured_classes(self) -> list[int]:
        """Return the numbers (K') of the measured classes, ascending: `present` ones of all processes."""
        return self._class_numbers(self._merged_accumulator())

    def _merged_accumulator(self) -> StatisticsAccumulator:
        if self._is_synced:
            return _accumulator(self.metric_state)
        with self.sync_context(dist_sync_fn=self.dist_sync_fn):
            state = self.metric_state
        return _accumulator(state)  # after the block, so that an error keeps the state of this process

    def _class_numbers(self, accumulator: StatisticsAccumulator) -> list[int]:
        if isinstance(self.classes, str):
            return _numbers(accumulator.counts.nonzero().flatten().tolist(), self.num_classes)
        return list(self.classes)

    def _result(self, accumulator: StatisticsAccumulator) -> ClassStatistics:
        numbers = self._class_numbers(accumulator)
        if len(numbers) == self.num_classes:
            return accumulator.result()
        places = torch.tensor(numbers, device=accumulator.device)
        if empty := places[accumulator.counts[places] == 0].tolist():
            raise InputError(f"class {empty[0]} has no samples; leave it out of `classes`")
        return accumulator.result_of(places)

    def merge_state(self, incoming_state: "dict[str, Any] | Metric") -> None:
        """Add everything that another such metric, or its `metric_state`, has seen."""
        state = incoming_state.metric_state if isinstance(incoming_state, Metric) else incoming_state
        accumulator = _accumulator(self.metric_state)
        accumulator.merge(_accumulator(state))
        self._store(accumulator)
        self._computed = None

    def _store(self, accumulator: StatisticsAccumulator) -> None:
        for name, tensor in accumulator.tensors().items():
            setattr(self, name, tensor)


class SampleCollapse(_Float64Metric):
    """Compute the metrics of docs/metrics.md that need the final class means or the classifier.

    `update` takes the samples that the means are of once more, features (B, d) and labels (B,), in any
    batches and any order. `compute` returns `nc1_pinv` and `ncc_error`; with a weight NC0, NC2 of the
    weights, NC3, NC4 and margins; with `train` both test collapses. The state holds counts, sums and one
    margin a sample, so merging over processes is exact. `compute` raises InputError unless it has seen all
    samples, so `forward` on a single batch fails.
    """

    full_state_update = False
    higher_is_better = None
    is_differentiable = False
    margins: list[Tensor]  # one tensor where torchmetrics has gathered them
    measured: Tensor  # (K') numbers of classes, where not all are measured

    def __init__(
        self,
        statistics: ClassStatistics,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        train: ClassStatistics | None = None,
        classes: Sequence[int] | None = None,
        ignore_index: int = IGNORE_INDEX,
        **options: Any,
    ) -> None:
        """Store the given tensors in the state, so that a loaded state keeps its own means.

        Args:
            statistics: of these samples, from `ClassCollapse.statistics`, of all processes.
            weight, bias: the last layer, (K, d) and (K,).
            train: statistics of the training samples, where `statistics` are of held-out ones.
            classes: numbers of the classes that `statistics` has, from `ClassCollapse.measured_classes`;
                samples of others, and their rows of weight and bias, do not count. None: it has all.
            ignore_index: as in `ClassCollapse`.
            options: those of torchmetrics.
        """
        super().__init__(**options)
        self.ignore_index = ignore_index
        rows: Any = slice(None) if classes is None else sorted(classes)
        arguments = _tensors(OWN, statistics) | ({} if train is None else _tensors(TRAIN, train))
        if weight is not None:
            arguments["weight"] = weight.detach().double()[rows]
        if bias is not None:
            arguments["bias"] = bias.detach().double()[rows]
        if classes is not None:
            arguments[MEASURED] = torch.tensor(rows, device=statistics.means.device)
        self._argument_names = tuple(arguments)
        for name, tensor in arguments.items():
            self.add_state(name, tensor.clone(), dist_reduce_fx=_equal_ones)
        self._accumulator_arguments: dict[str, Tensor] = {}
        empty = self._accumulator().result().tensors()
        self._sum_names = tuple(name for name in empty if name != MARGINS)
        for name in self._sum_names:
            self.add_state(name, empty[name], dist_reduce_fx="sum")
        if MARGINS in empty:
            self.add_state(MARGINS, [], dist_reduce_fx="cat")
            self.margins.append(empty[MARGINS])

    def update(self, features: Tensor, labels: Tensor, mask: Tensor | None = None) -> None:
        """Add samples, as in `ClassCollapse.update`."""
        features, labels = _counted_samples(features, labels, self.ignore_index, mask)
        if not len(labels):
            return
        if MEASURED in self._argument_names:
            measured = self.measured.to(labels.device)
            places = torch.searchsorted(measured, labels).clamp(max=len(measured) - 1)
            kept = measured[places] == labels
            features, labels = features[kept.to(features.device)], places[kept]
        accumulator = self._accumulator()
        accumulator.start()
        accumulator.update(features, labels)
        sums = accumulator.result().tensors()
        for name in self._sum_names:
            setattr(self, name, getattr(self, name) + sums[name])
        if MARGINS in sums:
            self.margins.append(sums[MARGINS])

    def compute(self) -> dict[str, float]:
        """Return values by name, without single singular values."""
        tensors = {name: getattr(self, name) for name in self._sum_names}
        if MARGINS in self._defaults:
            tensors[MARGINS] = torch.cat(self.margins) if isinstance(self.margins, list) else self.margins
        statistics, train, weight, _ = self._arguments()
        samples = SampleStatistics(**tensors)
        if not same_samples(statistics, samples):
            raise InputError(
                f"the means are of {statistics.samples} samples, and {int(samples.samples)} were given, or "
                "others: update with every sample of the first pass once, then compute"
            )
        values = _values(two_pass_metrics(statistics, samples, train or statistics, weight))
        if weight is not None:
            values |= _values((row.metric, row.value) for row in measure_weights(weight))
        return values

    def reset(self) -> None:
        """Forget all samples but keep the means, also loaded ones."""
        kept = {name: getattr(self, name) for name in self._argument_names}
        super().reset()
        for name, tensor in kept.items():
            setattr(self, name, tensor)
        if MARGINS in self._defaults:  # float64 in a process without samples too
            self.margins.append(torch.empty(0, dtype=torch.float64, device=self.device))

    def _arguments(self) -> tuple[ClassStatistics, ClassStatistics | None, Tensor | None, Tensor | None]:
        tensors = {name: getattr(self, name) for name in self._argument_names}
        statistics, train = (
            {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
            for prefix in (OWN, TRAIN)
        )
        return (
            ClassStatistics.from_tensors(**statistics),
            ClassStatistics.from_tensors(**train) if train else None,
            tensors.get("weight"),
            tensors.get("bias"),
        )

    def _accumulator(self) -> SampleAccumulator:
        """Return an accumulator for the tensors in the state; loading or moving the state replaces them."""
        tensors = {name: getattr(self, name) for name in self._argument_names}
        same = self._accumulator_arguments and all(
            old.device == tensors[name].device and torch.equal(old, tensors[name])
            for name, old in self._accumulator_arguments.items()
        )
        if not same:
            statistics, train, weight, bias = self._arguments()
            self._held_accumulator = SampleAccumulator(statistics, weight, bias, train)
            self._accumulator_arguments = {name: tensor.clone() for name, tensor in tensors.items()}
        return self._held_accumulator


def _numbers(classes: Classes, total: int) -> list[int]:
    numbers: list[int] = select_classes(classes, total).tolist()
    return numbers


def _counted_samples(
    features: Tensor, labels: Tensor, ignore_index: int, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return features (n, d) and labels (n,) of what counts, of (B, d) and (B,) or (B, T, d) and (B, T)."""
    if features.shape[:-1] != labels.shape:
        return features, labels  # whoever reads them names the mistake
    kept = measured_entries(labels, ignore_index, mask)
    return features[kept.to(features.device)], widened(labels[kept])


def _values(metrics: Iterable[tuple[str, float]]) -> dict[str, float]:
    return {metric: value for metric, value in metrics if not one_of_a_spectrum(metric)}


def _accumulator(state: dict[str, Any]) -> StatisticsAccumulator:
    """Return the accumulator of a state, or of gathered states (a leading axis of processes, or lists)."""
    shared = {name: v for name, v in state.items() if name != UNSHARED}
    tensors = {name: torch.stack(v) if isinstance(v, list) else v for name, v in shared.items()}
    if tensors["counts"].dim() == 1:
        return StatisticsAccumulator.from_tensors(**tensors)
    first, *others = (
        StatisticsAccumulator.from_tensors(**{name: tensor[place] for name, tensor in tensors.items()})
        for place in range(len(tensors["counts"]))
    )
    for other in others:
        first.merge(other)
    return first


def _tensors(prefix: str, statistics: ClassStatistics) -> dict[str, Tensor]:
    shares = {name: torch.tensor(0.0, device="cpu") for name in ("rounding", "entry_rounding")}
    zeros = {"exponent": torch.tensor(0, device="cpu")} | shares
    tensors = zeros | statistics.tensors()
    return {f"{prefix}{name}": tensor.to(statistics.means.device) for name, tensor in tensors.items()}


def _first(gathered: Tensor) -> Tensor:
    """Return the value of the first of P processes (P, ...)."""
    return gathered[0]


def _equal_ones(gathered: Tensor) -> Tensor:
    """Return the common value (...) of P equal tensors (P, ...)."""
    first = gathered[0]
    if not all(torch.equal(first.nan_to_num(), other.nan_to_num()) for other in gathered):
        raise InputError(
            "the processes were given different means or weights: give each those of all, as "
            "ClassCollapse.statistics() returns them"
        )
    return first
