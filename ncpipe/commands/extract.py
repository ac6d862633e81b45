"""Stage extract: last-layer features of an experiment's runs, and statistics of every layer."""

import dataclasses
import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ncpipe.config.params import load_params
from ncpipe.config.specs import Compute, Device
from ncpipe.datasets.prepared import Prepared, read_prepared
from ncpipe.features.files import features_at, write_features
from ncpipe.features.passes import extract, last_layer_of
from ncpipe.runs.fingerprint import RunFingerprint, fingerprints_of
from ncpipe.runs.grid import read_grid
from ncpipe.runs.run_folder import read_kept, read_state
from ncpipe.system.artifacts import FEATURES, PREPARED, RUNS, publish_folder
from ncpipe.system.console import say
from ncpipe.training.device import prepare_device


@dataclass(frozen=True)
class Part:
    """One run to extract. double: what with. path: of its file of features, without suffix."""

    fingerprint: RunFingerprint
    double: Compute
    path: Path


def extract_experiment(
    experiment: str,
    device: Device | None = None,
    each: Callable[..., Iterable[Any]] = map,
) -> None:
    """Write data/features/EXPERIMENT, a .safetensors file for each run of the grid in data/runs.

    Those of weights that were kept on the way have a folder beside it. each: calls a function for each run,
    as `map` does; no run needs another.
    """
    params = load_params()
    runs = read_grid(params, experiment)
    fingerprints = fingerprints_of(runs, params.compute)
    double = double_compute(params.compute, device)
    place = prepare_device(double)
    say(f"extract {experiment}: {len(runs)} runs on {place}, float64")
    _data.cache_clear()
    with publish_folder(FEATURES / experiment) as folder:
        parts = [
            Part(fingerprint, double, folder / fingerprint.run.path.relative_to(experiment))
            for fingerprint in fingerprints
        ]
        with tqdm(total=len(parts), desc=experiment, unit="run", disable=None, leave=False) as done:
            for _ in each(extract_run, parts):
                done.update()


def double_compute(compute: Compute, device: Device | None) -> Compute:
    """Return how features are computed: in float64, on a device that has it."""
    double = dataclasses.replace(compute, device=device or compute.device, precision="float64")
    return dataclasses.replace(double, device="cpu") if double.device == "mps" else double


def extract_run(part: Part) -> None:
    """Write a run's features, and those of the weights that it kept during training."""
    fingerprint, run, place = part.fingerprint, part.fingerprint.run, prepare_device(part.double)
    data = _data(PREPARED / run.data, fingerprint.data)
    state = read_state(RUNS / run.path, fingerprint)
    write_features(part.path.with_suffix(".safetensors"), extract(run, state, data, place))
    for epoch, state in read_kept(RUNS / run.path, fingerprint).items():
        write_features(features_at(part.path, epoch), last_layer_of(extract(run, state, data, place)))


@functools.lru_cache(maxsize=1)  # runs of one depth and value stand side by side
def _data(folder: Path, checksum: str) -> Prepared:
    return read_prepared(folder)
