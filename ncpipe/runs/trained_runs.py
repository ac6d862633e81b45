"""Iterate over the trained runs of an experiment, each with its network, data and features.

This is what a stage of a study's own begins with; `ncpipe.study` offers it.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ncpipe.config.experiment import AnyExperiment
from ncpipe.config.params import load_params
from ncpipe.config.records import read
from ncpipe.config.run import Compute, Device, Run, as_json
from ncpipe.datasets.prepared import Prepared, read_prepared
from ncpipe.features.extraction import Features, extract
from ncpipe.features.forward import load_network
from ncpipe.features.own_network import extract_own
from ncpipe.features.run_metrics import last_layer_metrics
from ncpipe.runs.fingerprint import fingerprints_of
from ncpipe.runs.grid import read_grid
from ncpipe.runs.run_folder import read_state
from ncpipe.system.artifacts import PREPARED, RUNS
from ncpipe.system.errors import InputError
from ncpipe.training.device import prepare_device
from ncpipe.training.loop import train_batch
from ncpipe.training.own_loop import build_own
from ncpipe.training.session import HistoryRow


@dataclass(frozen=True)
class TrainedRun:
    """Holds a trained run with its data.

    run: its `experiment`, `depth`, `seed`, `spec` (the keys of params.yaml) and `columns`, which name it in
    tables. weights: by name, as they were trained. compute: how `features` and `train_further` are computed.
    """

    run: Run
    weights: dict[str, Tensor]
    compute: Compute

    @property
    def data(self) -> Prepared:
        """The prepared data, with `train` and `test`; InputError for a training loop, which has loaders."""
        if self.run.spec.training:
            raise InputError(f"{self.run.name}: a loop of study.py trained it; take the data of its loaders")
        return _data(PREPARED / self.run.data)

    @property
    def network(self) -> nn.Module:
        """The network with its weights, in eval mode: in float64, or of a training loop as it was built."""
        device = prepare_device(self.compute)
        if not self.run.spec.training:
            return load_network(self.run, self.weights, self.data, device)
        model = build_own(self.run)
        model.load_state_dict(self.weights)
        return model.to(device).eval()

    @functools.cached_property
    def features(self) -> Features:
        """What the network's layers look like on the data, in float64 (`ncpipe.features.extraction`)."""
        device = prepare_device(self.compute)
        if self.run.spec.training:
            return extract_own(self.run, self.weights, device)
        return extract(self.run, self.weights, self.data, device)

    def measure(self, metrics: Sequence[str]) -> dict[str, float]:
        """Return metrics of the last layer by name; those on the test split end in `_test`.

        Raises InputError for a name that docs/metric_tables.md does not have.
        """
        return last_layer_metrics(self.run, self.features, metrics, f"{self.run.name}, measure")

    def train_further(self, **keys: Any) -> Iterator[tuple[HistoryRow, "TrainedRun"]]:
        """Train from these weights on, with other keys of the experiment, such as `optimizer` and `epochs`.

        Yields the rows of the history at the epochs in `history.at`, each with the run at that epoch. Nothing
        is stored. Raises InputError, with a line for each mistake in the keys.
        """
        experiment = self.run.experiment
        spec = read(AnyExperiment, as_json(self.run.spec) | keys, f"experiments.{experiment}")
        run = dataclasses.replace(self.run, spec=spec)
        device = prepare_device(self.compute)
        starts = [self.weights]
        (further,) = train_batch([run], self.data, device, self.compute.precision, starts=starts)
        for row in further.history:
            if row.epoch in further.snapshots:
                yield row, dataclasses.replace(self, run=run, weights=further.snapshots[row.epoch])


def trained_runs(experiment: str, device: Device | None = None) -> Iterator[TrainedRun]:
    """Yield the runs of an experiment of the sweep, in the order of its table, with their weights and data.

    device: in place of `compute.device`. Raises InputError for a run that is missing or damaged.
    """
    params = load_params()
    compute = params.compute.double(device)
    for fingerprint in fingerprints_of(read_grid(params, experiment), params.compute):
        run = fingerprint.run
        yield TrainedRun(run, read_state(RUNS / run.path, fingerprint), compute)


@functools.lru_cache(maxsize=1)  # consecutive runs have the same data
def _data(folder: Path) -> Prepared:
    return read_prepared(folder)
