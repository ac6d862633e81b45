"""Name the tables that a choice of params.yaml picks from: the package's own and those of study.py.

`ncpipe.runs.code_digests` follows them to find the code that a choice runs. `ncpipe.config.study` reads
study.py's tables.
"""

from collections.abc import Mapping

STUDY = "study"  # the module study.py beside params.yaml, if there is one

Definition = tuple[str, str]  # module, name at its top
Choices = Mapping[str, str]
# The choices that pick from a table (a dict whose keys are text, or records) or from a union of records.
TABLES: Mapping[Definition, tuple[str, ...]] = {
    ("ncpipe.training.objective", "FITS"): ("loss",),
    ("ncpipe.training.session", "METHODS"): ("optimizer",),
    ("ncpipe.datasets.prepare", "SOURCES"): ("source", "target"),
    ("ncpipe.models.build", "FAMILIES"): ("architecture",),
    ("ncpipe.runs.batches", "STARTS"): ("start",),
    ("ncpipe.config.specs", "Data"): ("source",),
    ("ncpipe.config.specs", "SIDES"): ("source",),
    ("ncpipe.config.specs", "Model"): ("architecture",),
    (STUDY, "NETWORKS"): ("NETWORKS",),
    (STUDY, "DATA"): ("DATA",),
    (STUDY, "LOSSES"): ("LOSSES",),
    (STUDY, "OPTIMIZERS"): ("OPTIMIZERS",),
    (STUDY, "TRAININGS"): ("TRAININGS",),
}
# The tables of study.py, and the field of an entry's spec that params.yaml selects it by. Their choices have
# other names than the package's: code of study.py may look up any entry of a table of the package.
STUDY_TABLES: Mapping[str, str] = {
    "NETWORKS": "architecture",
    "DATA": "source",
    "LOSSES": "name",
    "OPTIMIZERS": "name",
    "TRAININGS": "name",
    "METRICS": "",
}
# The choice (`ncpipe.runs.fingerprint.choices_of`) that picks from each of them.
PICKED_BY: Mapping[str, str] = {
    "NETWORKS": "architecture",
    "DATA": "source",
    "LOSSES": "loss",
    "OPTIMIZERS": "optimizer",
    "TRAININGS": "training",
}
