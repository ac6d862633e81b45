"""Run the stage extract: compute the features of an experiment's runs and statistics of every layer.

`ncpipe.features.extraction` computes them for one run; `ncpipe.commands.measure` computes metrics from them.
"""

import functools
from pathlib import Path

from torch import Tensor
from tqdm import tqdm

from ncpipe.commands.options import Device, Experiment, Processes
from ncpipe.config.params import load_params
from ncpipe.config.run import Compute
from ncpipe.datasets.prepared import Prepared, read_prepared
from ncpipe.features.extraction import Features, extract, last_layer_of
from ncpipe.features.files import features_at, write_features
from ncpipe.features.own_network import extract_own
from ncpipe.metrics.kept_pass import KEEP
from ncpipe.runs.fingerprint import RunFingerprint, fingerprints_of
from ncpipe.runs.grid import read_grid
from ncpipe.runs.measured import Kept, taken_too
from ncpipe.runs.pool import process_count, share
from ncpipe.runs.run_folder import read_snapshots, read_state
from ncpipe.runs.store import link_to_dvc_cache
from ncpipe.runs.store_layout import link_cached
from ncpipe.system.artifacts import FEATURES, PREPARED, RUNS, md5_of, publish_folder
from ncpipe.system.console import plural, say
from ncpipe.training.device import prepare_device


def extract_experiment(experiment: Experiment, device: Device = None, workers: Processes = None) -> None:
    """Compute the features and layer statistics of an experiment's networks on both splits, in float64.

    data/features/EXPERIMENT has a .safetensors file for each run. Features of weights that were kept during
    training are in a folder with the run's name. What was extracted before is taken from DVC's cache
    (`ncpipe.runs.measured`).
    """
    params = load_params()
    runs = read_grid(params, experiment)
    fingerprints = fingerprints_of(runs, params.compute)
    compute = params.compute.double(device)
    place = prepare_device(compute).type
    processes = process_count(workers, compute.threads) if place == "cpu" else 1  # which a GPU has
    kept = Kept("extract", params.experiments[experiment], params.study)
    _data.cache_clear()
    with publish_folder(FEATURES / experiment) as folder:
        missing = []
        for fingerprint in fingerprints:
            subject = kept.subject(fingerprint, place)
            files = kept.take(subject)
            if files is None or not link_cached(files, folder):
                missing.append((fingerprint, subject))
        say(
            f"extract {experiment}: {plural(len(missing), 'run')} on {place}, float64"
            f"{taken_too(len(runs) - len(missing))}"
        )
        at_a_time = max(1, min(processes, len(missing)))  # each keeps its share of the free memory
        extract_one = functools.partial(extract_run, compute, folder, KEEP / at_a_time)
        with tqdm(total=len(missing), desc=experiment, unit="run", disable=None, leave=False) as bar:
            written = []
            for files in share(extract_one, [fingerprint for fingerprint, _ in missing], processes):
                written.append(files)
                bar.update()
    kept.keep(zip([subject for _, subject in missing], written, strict=True))
    link_to_dvc_cache(experiment)  # DVC's cache has the runs by now


def extract_run(compute: Compute, folder: Path, keep: float, fingerprint: RunFingerprint) -> dict[str, str]:
    """Write a run's features, and those of the weights that were kept during training, to a folder.

    keep: share of the free memory, as in `KeptPass`. Returns the MD5 of each file by its path there.
    """
    run, device = fingerprint.run, prepare_device(compute)
    path = folder / run.path.relative_to(run.experiment)

    def features(state: dict[str, Tensor]) -> Features:
        if run.spec.training:
            return extract_own(run, state, device, keep)
        return extract(run, state, _data(PREPARED / run.data, fingerprint.data), device, keep)

    state = read_state(RUNS / run.path, fingerprint)
    files = [path.with_suffix(".safetensors")]
    write_features(files[0], features(state))
    for epoch, state in read_snapshots(RUNS / run.path, fingerprint).items():
        files.append(features_at(path, epoch))
        write_features(files[-1], last_layer_of(features(state)))
    return {file.relative_to(folder).as_posix(): md5_of(file) for file in files}


@functools.lru_cache(maxsize=1)  # consecutive runs have the same data
def _data(folder: Path, checksum: str) -> Prepared:
    return read_prepared(folder)
