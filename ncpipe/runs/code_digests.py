"""Digest the code that a result depends on, by stage, as DVC and the store compare it.

A stage's digest covers the module that the stage runs and every module of the package that it reaches by
`import` statements (`ncpipe.runs.closures`), and the study's own code (`ncpipe.runs.study_code`). The files
that dvc.yaml lists for the stage `code` count too; `ncpipe.config.study_files` refuses whatever else a study
reads. Data count by their checksums. Of other packages, neither files nor versions count.

Digests are of the files as this process first read them, the package's as this module is imported: an edit
while a command runs does not change them. A new `Reading` has the files as they are now.
"""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from ncpipe.config.choices import TRAININGS, Choices
from ncpipe.config.study_files import FILE, PACKAGE, PIPELINE, listed_files, study_modules
from ncpipe.runs import closures
from ncpipe.runs.closures import Reading, closure, module_files
from ncpipe.runs.study_code import study_digests
from ncpipe.system.errors import InputError

# The module that each stage of every sweep runs: stages of the whole sweep, then of an experiment.
SWEEP_STAGES: Mapping[str, str] = {
    stage: f"{PACKAGE}.commands.{stage}" for stage in ("grid", "aggregate", "plot", "claims", "report")
}
EXPERIMENT_STAGES: Mapping[str, str] = {
    stage: f"{PACKAGE}.commands.{stage}" for stage in ("fetch", "extract", "measure")
}
# The modules that decide a run's numbers and files, but not those that decide which runs train, and when.
TRAIN = "train"
TRAINING = ("ncpipe.training.loop", "ncpipe.training.starts", "ncpipe.runs.run_folder")
OWN_TRAINING = ("ncpipe.training.own_loop", "ncpipe.runs.run_folder")  # where a loop of study.py trains
# Modules that decide no number of any stage: they print, schedule, store and repair.
SERVICES = frozenset(
    f"{PACKAGE}.{room}.{name}"
    for room, names in (
        ("commands", ("options",)),
        ("system", ("console", "errors", "machine")),
        ("runs", ("batches", "closures", "code_digests", "dvc", "dvc_repair", "pool", "run_claims")),
        ("runs", ("results", "store", "store_layout", "study_code", "training_log")),
    )
    for name in names
)
# Modules that read and check params.yaml and records, whose values are in a run's identity themselves.
READERS = frozenset(
    {f"ncpipe.config.{name}" for name in ("bounds", "choices", "params", "records", "study", "study_files")}
    | {f"ncpipe.{name}" for name in ("config.unions", "config.yaml_file", "runs.fingerprint")}
    | {"ncpipe.system.artifacts"}
)
# Files that a stage reads from the package besides its modules: every byte of them counts.
TEMPLATES: Mapping[str, str] = {"report": "report/templates"}
# The tables of study.py that a stage reads; further stages of an experiment read those of `train`.
READ: Mapping[str, tuple[str, ...]] = {
    "fetch": ("DATA", TRAININGS),
    "measure": ("NETWORKS", "LOSSES", "OPTIMIZERS", TRAININGS, "METRICS"),
    TRAIN: ("NETWORKS", "LOSSES", "OPTIMIZERS", TRAININGS),
}
_at_start = Reading()


def at_start() -> Reading:
    """Return the reading of this process: of the code that it runs."""
    return _at_start


def sweep_digests(further: Mapping[str, str] = MappingProxyType({})) -> dict[str, dict[str, str]]:
    """Return the digests of the stages that run once for a sweep, by stage and file.

    further: the modules of a study's stages besides those of every sweep.
    """
    study = study_digests(None, (), at_start(), SERVICES)
    return {
        stage: closure([module], None, SERVICES, at_start()) | study | _template_digests(stage)
        for stage, module in (*SWEEP_STAGES.items(), *further.items())
    }


def _template_digests(stage: str) -> dict[str, str]:
    files = _template_files(stage) if stage in TEMPLATES else []
    contents = {path.relative_to(closures.ROOT).as_posix(): at_start().content(path) for path in files}
    return {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}


def _template_files(stage: str) -> list[Path]:
    return sorted((closures.ROOT / PACKAGE / TEMPLATES[stage]).glob("*.*"))


def experiment_digests(
    choices: Choices, further: Mapping[str, str] = MappingProxyType({})
) -> dict[str, dict[str, str]]:
    """Return the digests of the stages of one experiment, `train` among them, by stage and file."""
    stages = {
        stage: closure([module], choices, SERVICES | READERS, at_start())
        | study_digests(choices, READ.get(stage, READ[TRAIN]), at_start(), SERVICES | READERS)
        for stage, module in (*EXPERIMENT_STAGES.items(), *further.items())
    }
    return stages | {TRAIN: training_digests(choices, at_start())}


def training_digests(choices: Choices, reading: Reading) -> dict[str, str]:
    """Return the digests of the code that decides a run's numbers, by file."""
    without = SERVICES | READERS
    roots = OWN_TRAINING if any(table == TRAININGS for table, _ in choices.own) else TRAINING
    return closure(roots, choices, without, reading) | study_digests(choices, READ[TRAIN], reading, without)


def files_digest() -> str:
    """Return the digest of every byte of the files that digests depend on, comments included."""
    digest = hashlib.sha256()
    for path in (*_package_files(), *_study_files()):
        name = path.relative_to(closures.ROOT) if path.is_relative_to(closures.ROOT) else path
        digest.update(f"{name}\0".encode())
        digest.update(hashlib.sha256(at_start().content(path)).digest())
    return digest.hexdigest()


def code_contents() -> dict[str, bytes]:
    """Return the code as it was first read, by paths in a folder that has all of it.

    The code is the package's files, study.py, the files listed with it and the dvc.yaml that lists them.
    Raises InputError if a file lies outside the study's folder.
    """
    package = {path.relative_to(closures.ROOT).as_posix(): path for path in _package_files()}
    files = _study_files()
    for path in files:
        if not Path(os.path.normpath(path)).resolve().is_relative_to(Path.cwd()):
            raise InputError(f"{path}: lies outside the study's folder, so jobs cannot have a copy")
    files += [PIPELINE] if files and PIPELINE.is_file() else []
    study = {path.as_posix(): path for path in files}
    return {name: at_start().content(path) for name, path in (package | study).items()}


def _package_files() -> list[Path]:
    """Return the package's modules and page templates."""
    return [*module_files(), *(path for stage in TEMPLATES for path in _template_files(stage))]


def _study_files() -> list[Path]:
    """Return study.py, if there is one, its modules and the files listed with it."""
    study = Path(FILE)
    return [study, *sorted({*study_modules(), *listed_files()})] if study.is_file() else []


for _path in _package_files():  # now, before most modules are imported: no older code runs than is digested
    _at_start.content(_path)
