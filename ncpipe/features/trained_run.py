"""Hold a trained run with its network, data and features; `ncpipe.study` offers it to stages of studies.

`ncpipe.runs.trained_runs` has those of an experiment.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ncpipe.config.experiment import AnyExperiment
from ncpipe.config.records import read
from ncpipe.config.run import Compute, Run, as_json
from ncpipe.datasets.prepared import Prepared, Split, read_prepared
from ncpipe.features.extraction import Features, extract
from ncpipe.features.forward import load_network
from ncpipe.features.own_network import extract_own, own_network
from ncpipe.features.run_metrics import describe, last_layer_metrics, layer_metrics
from ncpipe.models.build import prepare_split
from ncpipe.system.artifacts import PREPARED
from ncpipe.system.errors import InputError
from ncpipe.training.device import prepare_device
from ncpipe.training.loop import starts_of, train_batch
from ncpipe.training.session import HistoryRow

ON_CPU = Compute("cpu", 1, "float64")


@dataclass(frozen=True)
class TrainedRun:
    """Holds a trained run, or a run with any other weights, with its data.

    run: its `experiment`, `depth`, `seed`, `spec` (the keys of params.yaml) and `columns`, which name it in
    tables. weights: by name, as they were trained. compute: how `features` and `train_further` are computed;
    without it on the CPU. prepared: its data, in place of those in data/prepared. seen: its features, where
    they are known. diverged_at: the epoch in which its loss was no longer finite. history,
    snapshots: rows, and weights by epoch, of runs that were just trained.
    """

    run: Run
    weights: dict[str, Tensor]
    compute: Compute | None = None
    prepared: Prepared | None = None
    seen: Features | None = None
    diverged_at: int | None = None
    history: tuple[HistoryRow, ...] = ()
    snapshots: Mapping[int, dict[str, Tensor]] = field(default_factory=dict)

    def _device(self) -> torch.device:
        return torch.device("cpu") if self.compute is None else prepare_device(self.compute)

    @property
    def data(self) -> Prepared:
        """The prepared data, with `train` and `test`; InputError for a training loop, which has loaders."""
        if self.run.spec.training:
            raise InputError(f"{self.run.name}: a loop of study.py trained it; take the data of its loaders")
        return self.prepared or _data(PREPARED / self.run.data)

    def samples(self, split: Split) -> Split:
        """Return samples of the data as `network` reads them: inputs in its shape, in float64."""
        device = self._device()
        return prepare_split(split, self.data.kind, self.run.spec.model, device, torch.float64)

    @property
    def network(self) -> nn.Module:
        """The network with its weights, in eval mode: in float64, or of a training loop as it was built."""
        device = self._device()
        if not self.run.spec.training:
            return load_network(self.run, self.weights, self.data, device)
        return own_network(self.run, self.weights).to(device).eval()

    @functools.cached_property
    def features(self) -> Features:
        """What the network's layers look like on the data, in float64 (`ncpipe.features.extraction`)."""
        return self.seen or self._extracted(last=False)

    @functools.cached_property
    def _last_layer(self) -> Features:
        """What its last layer looks like, which of a deep network is found much sooner."""
        return self.features if self.seen or "features" in vars(self) else self._extracted(last=True)

    def _extracted(self, *, last: bool) -> Features:
        device = self._device()
        if self.run.spec.training:
            return extract_own(self.run, self.weights, device)
        return extract(self.run, self.weights, self.data, device, last=last)

    @functools.cached_property
    def row(self) -> Mapping[str, Any]:
        """The package's columns of runs.csv: loss by its terms, gap to the optimum, errors, in float64."""
        outcome = {"finished": self.diverged_at is None, "diverged_at_epoch": self.diverged_at}
        return describe(self.run, self._last_layer, outcome)

    def measure(self, metrics: Sequence[str]) -> dict[str, float]:
        """Return metrics of the last layer by name; those on the test split end in `_test`.

        Raises InputError for a name that docs/metric_tables.md does not have.
        """
        return last_layer_metrics(self.run, self._last_layer, metrics, f"{self.run.name}, measure")

    def measure_layers(self, metrics: Sequence[str]) -> dict[str, dict[str, float]]:
        """Return the same of each layer, by its name; without those that a layer does not have."""
        return layer_metrics(self.features, metrics)

    def at(self, epoch: int) -> "TrainedRun":
        """Return the run with its weights after an epoch of `snapshots`."""
        weights = self.snapshots[epoch]
        return dataclasses.replace(self, weights=weights, diverged_at=None, history=(), snapshots={})

    def train_further(self, **keys: Any) -> Iterator[tuple[HistoryRow, "TrainedRun"]]:
        """Train from these weights on, with other keys of the experiment, such as `optimizer` and `epochs`.

        Yields the rows of the history at the epochs in `history.at`, each with the run at that epoch. Nothing
        is stored. Raises InputError, with a line for each mistake in the keys.
        """
        experiment = self.run.experiment
        spec = read(AnyExperiment, as_json(self.run.spec) | keys, f"experiments.{experiment}")
        run = dataclasses.replace(self.run, spec=spec)
        compute = self.compute or ON_CPU
        (further,) = train([run], self.data, compute, compute, [self.weights])
        for row in further.history:
            if row.epoch in further.snapshots:
                yield row, further.at(row.epoch)


def train(
    runs: Sequence[Run],
    data: Prepared,
    compute: Compute,
    double: Compute,
    starts: Sequence[Mapping[str, Tensor]] | None = None,
) -> list[TrainedRun]:
    """Train runs of one shape side by side; double: how their features are computed.

    starts: initial weights; without them those that the key `start` names.
    """
    starts = starts or starts_of(runs, data)
    trained = train_batch(runs, data, prepare_device(compute), compute.precision, starts=starts)
    return [
        TrainedRun(one.run, one.state, double, data, None, one.diverged_at, one.history, one.snapshots)
        for one in trained
    ]


@functools.lru_cache(maxsize=1)  # consecutive runs have the same data
def _data(folder: Path) -> Prepared:
    return read_prepared(folder)
