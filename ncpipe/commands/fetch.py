"""Stage fetch: an experiment's data set, downloaded or read from a mirror, balanced and normalised."""

from pathlib import Path

from ncpipe.commands.watched import check_watched
from ncpipe.config.bounds import Number
from ncpipe.config.params import load_params
from ncpipe.config.specs import ArraysData, Data, FreeData, data_path
from ncpipe.system.artifacts import PREPARED, RAW
from ncpipe.system.console import say


def fetch(experiment: str, mirror: Path | None = None, value: Number | None = None) -> None:
    """Write data/prepared/EXPERIMENT, the data that experiments.EXPERIMENT.data of params.yaml names.

    In a study with an axis, at one of its values -> data/prepared/EXPERIMENT/x<value>.
    """
    spec = load_params().experiment(experiment, value).data
    if isinstance(spec, ArraysData):
        check_watched("fetch", spec.file)
    place = data_path(experiment, value)
    if isinstance(spec, FreeData):  # nothing to read, and nothing that needs torch
        from ncpipe.datasets.free import store_free

        train, test, classes = store_free(PREPARED / place, spec), 0, spec.classes
    else:
        train, test, classes = _store(PREPARED / place, spec, mirror)
    say(f"fetch {place}: {spec.source}, {train} training and {test or 'no'} test samples, {classes} classes")


def _store(folder: Path, spec: Data, mirror: Path | None) -> tuple[int, int, int]:
    """Prepare and write a data set; return its numbers of training samples, test samples and classes."""
    from ncpipe.datasets.prepare import prepare
    from ncpipe.datasets.prepared import write_prepared

    data = prepare(spec, RAW, mirror, progress=True)
    write_prepared(folder, data)
    return len(data.train), 0 if data.test is None else len(data.test), data.classes
