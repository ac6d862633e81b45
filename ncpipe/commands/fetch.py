"""Run the stage fetch: prepare an experiment's data set (`ncpipe.datasets.prepare`)."""

from pathlib import Path
from typing import Annotated

import typer

from ncpipe.commands.options import Experiment, Value
from ncpipe.config.bounds import Number
from ncpipe.config.params import Params, load_params
from ncpipe.config.reading import Reading
from ncpipe.config.run import data_path
from ncpipe.config.sources.arrays import ArraysData
from ncpipe.config.study_files import CODE, FETCH, check_reruns, listed_paths
from ncpipe.system.artifacts import PREPARED, RAW
from ncpipe.system.console import say
from ncpipe.system.errors import InputError


def fetch(
    experiment: Experiment,
    mirror: Annotated[
        Path | None,
        typer.Option(
            envvar="NCPIPE_MIRROR", help="Folder with the official files, which are then not downloaded."
        ),
    ] = None,
    value: Value = None,
) -> None:
    """Download an experiment's data set or read it from a mirror; check, balance, normalise and store it.

    They go to data/prepared/EXPERIMENT, in a study with an axis to data/prepared/EXPERIMENT/x<value>. Of an
    own training loop, write what its loaders give to measure on, of the smallest seed: labels and a digest.
    """
    params = load_params()
    for last in (False, True):  # a second time after a download into a listed folder
        reading = Reading()
        for path in [*listed_paths(CODE), *listed_paths(FETCH)]:
            reading.mark(path)
        line = _fetch(params, experiment, mirror, value)
        try:
            reading.check()
        except InputError:
            if last:
                raise
        else:
            break
    say(line)


def _fetch(params: Params, experiment: str, mirror: Path | None, value: Number | None) -> str:
    """Write an experiment's data set; return the line that reports it."""
    keys = params.experiment(experiment, value)
    if keys.training:
        from ncpipe.datasets.own_loaders import store_loaders

        run = params.run(experiment, min(params.sweep.depths), min(params.sweep.seeds), value)
        sizes = store_loaders(PREPARED / run.data, run)
        counts = ", ".join(f"{size} {name} samples" for name, size in sizes.items())
        return f"fetch {run.data}: {counts} to measure on, from the loaders of study.py"
    spec = keys.data
    if isinstance(spec, ArraysData):
        check_reruns("fetch", spec.file)
    from ncpipe.datasets.prepare import prepare
    from ncpipe.datasets.prepared import write_prepared

    path = data_path(experiment, value)
    data = prepare(spec, RAW, mirror, progress=True)
    write_prepared(PREPARED / path, data)
    test = "no" if data.test is None else len(data.test)
    count = data.classes
    predicted = f"targets of {count} numbers" if spec.targets == "vectors" else f"{count} classes"
    return f"fetch {path}: {spec.source}, {len(data.train)} training and {test} test samples, {predicted}"
