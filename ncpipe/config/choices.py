"""Name the tables that a choice of params.yaml picks from: the package's own and those of study.py.

`ncpipe.runs.code_digests` counts the chosen entry alone. `ncpipe.config.study` reads study.py's tables.
"""

from collections.abc import Mapping
from dataclasses import dataclass

# Dicts of the package whose keys are names of params.yaml or records, by module and name. A study's code may
# look up any entry.
TABLES = (
    ("ncpipe.training.objective", "FITS"),
    ("ncpipe.training.steps", "METHODS"),
    ("ncpipe.training.starts", "STARTS"),
    ("ncpipe.datasets.prepare", "SOURCES"),
    ("ncpipe.models.build", "FAMILIES"),
    ("ncpipe.config.specs", "SIDES"),
)
# Unions of records, by which params.yaml is read.
UNIONS = (
    ("ncpipe.config.specs", "Data"),
    ("ncpipe.config.specs", "Model"),
    ("ncpipe.config.specs", "Optimizer"),
    ("ncpipe.config.loss_specs", "Loss"),
)
TRAININGS = "TRAININGS"
# The tables of study.py that params.yaml picks from, by the part of an experiment that names an entry.
STUDY_TABLES: Mapping[str, str] = {
    "model": "NETWORKS",
    "data": "DATA",
    "loss": "LOSSES",
    "optimizer": "OPTIMIZERS",
    "training": TRAININGS,
}


@dataclass(frozen=True)
class Choices:
    """Holds what an experiment picks from tables.

    words: names of params.yaml and classes of records, which are keys of the package's tables.
    own: the tables of study.py that it picks from, each with the class of its entry's record.
    """

    words: frozenset[str]
    own: tuple[tuple[str, str], ...] = ()
