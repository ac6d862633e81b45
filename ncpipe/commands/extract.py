"""Stage extract: last-layer features of an experiment's runs, and statistics of every layer."""

import dataclasses
import functools

from tqdm import tqdm

from ncpipe.artifacts import AHEAD, FEATURES, PREPARED, RUNS, publish_folder, remove
from ncpipe.commands.grid import read_grid
from ncpipe.console import say
from ncpipe.datasets.prepared import read_prepared
from ncpipe.features.files import features_at, write_features
from ncpipe.features.passes import extract, last_layer_of
from ncpipe.params import load_params
from ncpipe.specs import Device
from ncpipe.stamps import Stamp
from ncpipe.training.device import prepare_device
from ncpipe.training.run_folder import read_kept, read_state


def extract_experiment(experiment: str, device: Device | None = None) -> None:
    """data/runs/EXPERIMENT, the runs of the grid -> data/features/EXPERIMENT, a .safetensors for each.

    Those of weights that were kept on the way have a folder beside it.
    """
    params = load_params()
    runs = read_grid(params, experiment)
    read = functools.lru_cache(maxsize=1)(read_prepared)  # runs of one depth and value stand side by side
    double = dataclasses.replace(params.compute, device=device or params.compute.device, precision="float64")
    if double.device == "mps":  # has no float64
        double = dataclasses.replace(double, device="cpu")
    place = prepare_device(double)
    say(f"extract {experiment}: {len(runs)} runs on {place}, float64")
    stamps = []
    with publish_folder(FEATURES / experiment) as folder:
        for run in tqdm(runs, desc=experiment, unit="run", disable=None, leave=False):
            data = read(PREPARED / run.data)
            stamp, path = Stamp(run, data.checksum, params.compute), folder / run.path.relative_to(experiment)
            stamps.append(stamp)
            state = read_state(RUNS / run.path, stamp)
            write_features(path.with_suffix(".safetensors"), extract(run, state, data, place))
            for epoch, state in read_kept(RUNS / run.path, stamp).items():
                write_features(features_at(path, epoch), last_layer_of(extract(run, state, data, place)))
    for stamp in stamps:  # whoever asks for features has taken all of the runs
        remove(AHEAD / stamp.key())
