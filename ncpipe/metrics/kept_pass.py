"""Run a network once over a loader, for metrics that read its features twice.

Metrics of single samples need the class means of all samples, so they read the features a second time. What
was read is kept for them in its own type while it fits into memory.
"""

from collections.abc import Callable, Iterator, Mapping

from ncpipe.metrics.sample_statistics import (
    FLOAT32_ROUNDING,
    Classifiers,
    LayerOnSplit,
    first_pass,
    same_samples,
    second_pass,
)
from ncpipe.metrics.statistics import ClassStatistics, check_statistics
from ncpipe.system.errors import InputError, shown, warn
from ncpipe.system.lazy_torch import Tensor, torch

Batch = tuple[dict[str, Tensor], Tensor]  # values by layer, labels
KEEP = 0.25  # of the free memory


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


def both_passes(
    runs: Mapping[str, KeptPass],
    learned: Mapping[str, ClassStatistics],
    classifiers: Classifiers,
    again: str,
    rounding: float = FLOAT32_ROUNDING,
    by_sample: bool = False,
) -> dict[str, dict[str, LayerOnSplit]]:
    """Return by layer and split what two passes over each run find; `test` about the train means.

    learned: the first pass over `train`. again: what a message says of a split whose second pass had other
    samples, and what to do. rounding, by_sample: as in `same_samples` and `second_pass`.
    """
    layers: dict[str, dict[str, LayerOnSplit]] = {layer: {} for layer in learned}
    classes = next(iter(learned.values())).classes
    for split, run in runs.items():
        by_layer = learned if split == "train" else first_pass(run(), classes, split)
        for layer, statistics in by_layer.items():
            check_statistics(split, layer, statistics)
        samples = second_pass(run(), by_layer, classifiers, learned if split == "test" else None, by_sample)
        for layer, statistics in by_layer.items():
            if run.runs > 1 and not same_samples(statistics, samples[layer], rounding):
                raise InputError(again.format(split))
            layers[layer][split] = LayerOnSplit(statistics, samples[layer])
    return layers


def _copy(values: Tensor, device: torch.device) -> Tensor:
    return values.detach().to(device, copy=True)
