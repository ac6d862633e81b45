"""Run the stage extract: compute the features of an experiment's runs and statistics of every layer.

`ncpipe.features.passes` computes them for one run; `ncpipe.commands.measure` computes metrics from them.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torch import Tensor
from tqdm import tqdm

from ncpipe.config.params import load_params
from ncpipe.config.specs import Compute, Device, own_loop
from ncpipe.datasets.prepared import Prepared, read_prepared
from ncpipe.features.files import features_at, write_features
from ncpipe.features.own_network import extract_own
from ncpipe.features.passes import Features, extract, last_layer_of
from ncpipe.runs.fingerprint import RunFingerprint, fingerprints_of
from ncpipe.runs.grid import read_grid
from ncpipe.runs.run_folder import read_snapshots, read_state
from ncpipe.system.artifacts import FEATURES, PREPARED, RUNS, publish_folder
from ncpipe.system.console import plural, say
from ncpipe.training.device import prepare_device


def extract_experiment(
    experiment: str,
    device: Device | None = None,
    map_runs: Callable[..., Iterable[Any]] = map,
) -> None:
    """Write data/features/EXPERIMENT, with a .safetensors file for each run.

    Features of weights that were kept during training are in a folder with the run's name. map_runs: calls a
    function for each run, like `map`, in any order.
    """
    params = load_params()
    runs = read_grid(params, experiment)
    fingerprints = fingerprints_of(runs, params.compute)
    compute = double_compute(params.compute, device)
    say(f"extract {experiment}: {plural(len(runs), 'run')} on {prepare_device(compute)}, float64")
    _data.cache_clear()
    with publish_folder(FEATURES / experiment) as folder:
        extract_one = functools.partial(extract_run, compute, folder)
        with tqdm(total=len(runs), desc=experiment, unit="run", disable=None, leave=False) as bar:
            for _ in map_runs(extract_one, fingerprints):
                bar.update()


def double_compute(compute: Compute, device: Device | None) -> Compute:
    """Return how features are computed: in float64, on a device that supports it."""
    double = dataclasses.replace(compute, device=device or compute.device, precision="float64")
    return dataclasses.replace(double, device="cpu") if double.device == "mps" else double


def extract_run(compute: Compute, folder: Path, fingerprint: RunFingerprint) -> None:
    """Write a run's features, and those of the weights that were kept during training, to a folder."""
    run, device = fingerprint.run, prepare_device(compute)
    path = folder / run.path.relative_to(run.experiment)

    def features(state: dict[str, Tensor]) -> Features:
        if own_loop(run.spec):
            return extract_own(run, state, device)
        return extract(run, state, _data(PREPARED / run.data, fingerprint.data), device)

    state = read_state(RUNS / run.path, fingerprint)
    write_features(path.with_suffix(".safetensors"), features(state))
    for epoch, state in read_snapshots(RUNS / run.path, fingerprint).items():
        write_features(features_at(path, epoch), last_layer_of(features(state)))


@functools.lru_cache(maxsize=1)  # consecutive runs have the same data
def _data(folder: Path, checksum: str) -> Prepared:
    return read_prepared(folder)
