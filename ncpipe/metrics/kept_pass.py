"""Run a network once over a loader, for metrics that read its features twice.

Metrics of single samples need the class means of all samples, so they read the features a second time. What
was read is kept for them in its own type while it fits into memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from ncpipe.metrics.sample_statistics import SampleAccumulator, SampleStatistics
from ncpipe.metrics.statistics import ClassStatistics, StatisticsAccumulator, check_statistics
from ncpipe.system.errors import InputError, shown, warn
from ncpipe.system.lazy_torch import Tensor, torch

Batch = tuple[dict[str, Tensor], Tensor]  # values (B, d) by layer, labels (B,)
Classifiers = Mapping[str, tuple[Tensor | None, Tensor | None]]  # weight (K, d) and bias (K,) by layer
# Relative errors of a deep network's features that other batches make, of TF32 products in some of them.
FLOAT32_ROUNDING, FLOAT64_ROUNDING = 1e-5, 1e-12
SUM_ROUNDING = 1e-9  # relative, of a sum of squares about class means
KEEP = 0.25  # of the free memory


@dataclass(frozen=True)
class LayerOnSplit:
    """One layer on one split: its classes, and how its samples lie about them and the train means."""

    statistics: ClassStatistics
    samples: SampleStatistics


class KeptPass:
    """Yield the batches of one pass as often as it is called; the network that they come from runs once.

    Args:
        run: starts a pass of the network.
        name: what is passed over, for messages.
        keep: share of the free memory that the batches may take: on their device, then on the host. Beyond it
            every call runs the network, with a MeasurementWarning. 0 keeps nothing.

    `runs` counts the passes of the network; `select` is what each call makes of the batches. Raises
    InputError for a `keep` that is no share, and for a pass without samples.
    """

    def __init__(self, run: Callable[[], Iterator[Batch]], name: str, keep: float = KEEP) -> None:
        if isinstance(keep, bool) or not isinstance(keep, int | float) or not 0 <= keep <= 1:
            raise InputError(f"keep: a share of the free memory, from 0 to 1, not {shown(keep)}")
        self._run, self._name, self._keep = run, name, keep
        self._batches: list[Batch] | None = None  # of a whole pass
        self.select: Callable[[Iterator[Batch]], Iterator[Batch]] = iter
        self.runs = 0

    def __call__(self) -> Iterator[Batch]:
        """Yield each batch's values by layer, and its labels."""
        return self.select(self._read())

    def _read(self) -> Iterator[Batch]:
        if self._batches is not None:
            yield from self._batches
            return
        self.runs += 1
        again = f"its features take more than {self._keep:g} of the free memory (`keep`)"
        if self.runs == 2 and self._keep:
            warn(f"{self._name}: {again}; the network runs over it again")
        batches: list[Batch] = []
        count, fits, room = 0, self.runs == 1 and self._keep > 0, dict[torch.device, float]()
        for batch in self._run():
            count += 1
            if fits and (stored := self._stored(batch, room)):
                batches.append(stored)
            elif fits:
                fits = False
                batches.clear()
            yield batch
        if not count and self.runs == 1:
            raise InputError(f"{self._name}: it gave no samples; there is nothing to measure")
        if not count:
            raise InputError(f"{self._name}: {again}, and it gives its batches once; give a DataLoader")
        self._batches = batches if fits else None

    def _stored(self, batch: Batch, room: dict[torch.device, float]) -> Batch | None:
        """Return the batch where it fits, on its device or on the host; None if it fits nowhere.

        room: bytes that are left for batches on each device.
        """
        from ncpipe.system.device_memory import free_bytes  # imports PyTorch

        values, labels = batch
        size = sum(tensor.nbytes for tensor in (*values.values(), labels))
        for device in dict.fromkeys((labels.device, torch.device("cpu"))):
            if device not in room:
                room[device] = self._keep * free_bytes(device)
            if size <= room[device]:
                room[device] -= size
                # Copies: a loader may fill its tensors again, and a part would keep the whole in memory.
                return {layer: _copy(value, device) for layer, value in values.items()}, _copy(labels, device)
        return None


def first_pass(batches: Iterable[Batch], classes: int, split: str = "") -> dict[str, ClassStatistics]:
    """Return each layer's ClassStatistics, in the layers' order; {} without batches.

    split: its name, if any, for the message. Raises InputError for an empty class, and for batches that
    `StatisticsAccumulator.update` refuses.
    """
    return {layer: accumulator.result(split) for layer, accumulator in accumulate(batches, classes).items()}


def accumulate(batches: Iterable[Batch], classes: int) -> dict[str, StatisticsAccumulator]:
    """Return each layer's accumulator of all batches, on the device of the layer's first one."""
    accumulators: dict[str, StatisticsAccumulator] = {}
    for layers, labels in batches:
        for layer, features in layers.items():
            if layer not in accumulators:
                accumulators[layer] = StatisticsAccumulator(classes, features.shape[-1], features.device)
            accumulators[layer].update(features, labels)
    return accumulators


def both_passes(
    runs: Mapping[str, KeptPass],
    learned: Mapping[str, ClassStatistics],
    classifiers: Classifiers,
    by_sample: bool = False,
) -> dict[str, dict[str, LayerOnSplit]]:
    """Return by layer and split what two passes over each run find; `test` about the train means.

    learned: the first pass over `train`. by_sample: as in `SampleAccumulator`.
    """
    layers: dict[str, dict[str, LayerOnSplit]] = {layer: {} for layer in learned}
    classes = next(iter(learned.values())).classes
    for split, run in runs.items():
        by_layer = learned if split == "train" else first_pass(run(), classes, split)
        about = learned if split == "test" else {}
        accumulators = {
            layer: SampleAccumulator(
                statistics, *classifiers.get(layer, (None, None)), about.get(layer), by_sample=by_sample
            )
            for layer, statistics in by_layer.items()
        }
        for values, labels in run():
            for layer, features in values.items():
                accumulators[layer].update(features, labels)
        for layer, accumulator in accumulators.items():
            layers[layer][split] = LayerOnSplit(by_layer[layer], accumulator.result())
    return layers


def check_passes(
    runs: Mapping[str, KeptPass],
    layers: Mapping[str, Mapping[str, LayerOnSplit]],
    again: str,
    rounding: float = FLOAT32_ROUNDING,
) -> None:
    """Raise InputError for features that are not finite, and for runs whose second pass gave other samples.

    again: what the message says of such a split, and what to do. rounding: as in `same_samples`.
    """
    for split, run in runs.items():
        for layer, by_split in layers.items():
            seen = by_split[split]
            check_statistics(split, layer, seen.statistics)
            if run.runs > 1 and not same_samples(seen.statistics, seen.samples, rounding):
                raise InputError(again.format(split))


def same_samples(seen: ClassStatistics, again: SampleStatistics, rounding: float = FLOAT32_ROUNDING) -> bool:
    """Return whether both passes had the same samples: the same N and sum |h - mu_y|^2.

    rounding: relative size of the errors e of features h that come in other batches. They change the sum by
    2 (h - mu_y) e + |e|^2, at most 2 sqrt(sum |h - mu_y|^2 sum |e|^2) + sum |e|^2 (Cauchy-Schwarz). So the
    tolerance falls with the spread within classes: random augmentation of a collapsed network is more than
    it, though little beside the features themselves.
    """
    within = seen.squares.sum()
    errors = rounding**2 * (within + (seen.counts * seen.means.square().sum(1)).sum())
    allowed = SUM_ROUNDING * within + 2 * (within.clamp(min=0) * errors).sqrt() + errors
    return bool(again.samples == seen.samples) and not bool((again.within - within).abs() > allowed)


def pass_rounding(eps: float) -> float:
    """Return the relative error of a network's features in other batches, of its coarsest type's epsilon.

    Most samples round alike in a batch of the same size, so that errors of coarse types are rare.
    """
    return FLOAT64_ROUNDING if eps < 2.0**-40 else max(FLOAT32_ROUNDING, eps / 8)


def joined(batches: Iterable[Batch], *layers: str) -> tuple[dict[str, Tensor], Tensor]:
    """Return the values of all batches by layer, and their labels, on the CPU; of all layers by default."""
    parts = [({name: values[name].cpu() for name in layers or values}, y.cpu()) for values, y in batches]
    features = {name: torch.cat([values[name] for values, _ in parts]) for name in parts[0][0]}
    return features, torch.cat([y for _, y in parts])


def _copy(values: Tensor, device: torch.device) -> Tensor:
    return values.detach().to(device, copy=True)
