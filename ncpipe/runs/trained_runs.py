"""Iterate over the trained runs of an experiment, or train others, each with its network, data and features.

This is what a stage of a study's own begins with; `ncpipe.study` offers it.
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from ncpipe.config.params import load_params
from ncpipe.config.run import Compute, Device, Run, as_json
from ncpipe.datasets.prepare import prepare_data
from ncpipe.features.trained_run import TrainedRun, train
from ncpipe.runs.fingerprint import RunFingerprint, fingerprints_of
from ncpipe.runs.grid import read_grid
from ncpipe.runs.pool import process_count, share_among
from ncpipe.runs.run_folder import read_state
from ncpipe.system.artifacts import RUNS, digest_of

Result = TypeVar("Result")


def trained_runs(experiment: str, device: Device | None = None) -> Iterator[TrainedRun]:
    """Yield the runs of an experiment of the sweep, in the order of its table, with their weights and data.

    device: in place of `compute.device`. Raises InputError for a run that is missing or damaged.
    """
    params = load_params()
    compute = params.compute.double(device)
    for fingerprint in fingerprints_of(read_grid(params, experiment), params.compute):
        run = fingerprint.run
        yield TrainedRun(run, read_state(RUNS / run.path, fingerprint), compute)


def train_runs(
    runs: Sequence[Run], do: Callable[[TrainedRun], Result], workers: int | None = None
) -> list[Result]:
    """Train runs, in the sweep or not, and return what `do` makes of each; nothing is stored.

    Runs of one shape train side by side, in `workers` processes: by default as many as there are cores for
    `compute.threads`. do: a function of a module; each run that it gets has its `history` and `snapshots`.
    """
    compute = load_params().compute
    count = process_count(workers, compute.threads)
    groups: dict[str, list[int]] = {}  # places in `runs`: two of other keys may have one name
    for place, run in enumerate(runs):
        data = digest_of(as_json(run.spec.data))
        groups.setdefault(RunFingerprint(run, data, compute).batch_key(), []).append(place)
    parts = [part for group in groups.values() for start in range(count) if (part := group[start::count])]
    task = functools.partial(_trained, compute, do)
    several = min(count, len(parts))
    batches = [[runs[place] for place in part] for part in parts]
    results = share_among(several, task, batches) if several > 1 else map(task, batches)
    made = dict(zip(itertools.chain(*parts), itertools.chain(*results), strict=True))
    return [made[place] for place in range(len(runs))]


def _trained(compute: Compute, do: Callable[[TrainedRun], Result], runs: Sequence[Run]) -> list[Result]:
    data = prepare_data(as_json(runs[0].spec.data))
    return [do(trained) for trained in train(runs, data, compute, compute.double())]
