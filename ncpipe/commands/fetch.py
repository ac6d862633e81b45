"""Stage fetch: an experiment's data set, downloaded or read from a mirror, balanced and normalised."""

import os
from pathlib import Path

from ncpipe.artifacts import PREPARED, RAW
from ncpipe.bounds import Number
from ncpipe.console import say
from ncpipe.datasets.prepare import prepare
from ncpipe.datasets.prepared import write_prepared
from ncpipe.errors import InputError
from ncpipe.params import load_params
from ncpipe.specs import ArraysData, data_place
from ncpipe.yamlfile import read_yaml

PIPELINE = Path("dvc.yaml")
STAGE = "fetch"


def fetch(experiment: str, mirror: Path | None = None, value: Number | None = None) -> None:
    """experiments.EXPERIMENT.data of params.yaml -> data/prepared/EXPERIMENT.

    In a study with an axis, at one of its values -> data/prepared/EXPERIMENT/x<value>.
    """
    spec = load_params().experiment(experiment, value).data
    if isinstance(spec, ArraysData):
        check_watched(spec.file)
    data = prepare(spec, RAW, mirror, progress=True)
    place = data_place(experiment, value)
    write_prepared(PREPARED / place, data)
    test = "no" if data.test is None else len(data.test)
    say(
        f"fetch {place}: {spec.source}, {len(data.train)} training and {test} test samples, "
        f"{data.classes} classes"
    )


def check_watched(file: str) -> None:
    """InputError unless DVC, where it is in use, prepares the data anew when their file changes.

    DVC takes a stage's dependencies from dvc.yaml, and not from what an experiment in params.yaml says.
    """
    if not PIPELINE.is_file():
        return
    stages = read_yaml(PIPELINE)["stages"]
    if os.path.normpath(file) not in map(os.path.normpath, stages.get(STAGE, {}).get("deps", [])):
        raise InputError(
            f"{PIPELINE}: DVC would not see a change of {file}; add the line `- {file}` to the deps of the "
            f"stage {STAGE}"
        )
