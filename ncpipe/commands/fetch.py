"""Stage fetch: an experiment's data set, downloaded or read from a mirror, balanced and normalised."""

from pathlib import Path

from ncpipe.artifacts import PREPARED, RAW
from ncpipe.bounds import Number
from ncpipe.commands.watched import check_watched
from ncpipe.console import say
from ncpipe.datasets.prepare import prepare
from ncpipe.datasets.prepared import write_prepared
from ncpipe.params import load_params
from ncpipe.specs import ArraysData, data_place


def fetch(experiment: str, mirror: Path | None = None, value: Number | None = None) -> None:
    """experiments.EXPERIMENT.data of params.yaml -> data/prepared/EXPERIMENT.

    In a study with an axis, at one of its values -> data/prepared/EXPERIMENT/x<value>.
    """
    spec = load_params().experiment(experiment, value).data
    if isinstance(spec, ArraysData):
        check_watched("fetch", spec.file)
    data = prepare(spec, RAW, mirror, progress=True)
    place = data_place(experiment, value)
    write_prepared(PREPARED / place, data)
    test = "no" if data.test is None else len(data.test)
    say(
        f"fetch {place}: {spec.source}, {len(data.train)} training and {test} test samples, "
        f"{data.classes} classes"
    )
