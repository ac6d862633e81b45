"""Digest the code that a result depends on, by stage, as DVC and the store compare it.

A stage's digest covers the module that the stage runs and every module of the package that it reaches by
`import` statements (`ncpipe.runs.closures`), and the study's own code (`ncpipe.runs.study_code`). The files
that dvc.yaml lists for the stage `code` count too; `ncpipe.config.study_files` refuses whatever else a study
reads. Data count by their checksums. Of other packages, neither files nor versions count.

Digests are of the files as this process first read them and runs them (`ncpipe.config.reading`): an edit
while a command runs does not change them. A new `Reading` has the files as they are now.
"""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from ncpipe.config.choices import TRAININGS, Choices
from ncpipe.config.reading import PACKAGE, Reading, at_start
from ncpipe.config.stages import Stage
from ncpipe.config.study_files import CODE, FILE, PIPELINE, listed_digests, study_modules
from ncpipe.runs import closures
from ncpipe.runs.closures import closure, module_files
from ncpipe.runs.study_code import MEASURED, study_digests
from ncpipe.system.artifacts import digest_of
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
    {f"ncpipe.config.{name}" for name in ("bounds", "choices", "params", "reading", "records", "study")}
    | {f"ncpipe.config.{name}" for name in ("study_files", "unions", "yaml_file")}
    | {"ncpipe.runs.fingerprint"}
    | {"ncpipe.system.artifacts"}
)
# Files that a stage reads from the package besides its modules: every byte of them counts.
TEMPLATES: Mapping[str, str] = {"report": "report/templates"}
# The tables of study.py that a stage reads; further stages of an experiment read those of `train`.
READ: Mapping[str, tuple[str, ...]] = {
    "fetch": ("DATA", TRAININGS),
    "measure": ("NETWORKS", "LOSSES", "OPTIMIZERS", TRAININGS, *MEASURED),
    TRAIN: ("NETWORKS", "LOSSES", "OPTIMIZERS", TRAININGS),
}


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


def stage_digests(stage: Stage, choices: Choices | None) -> dict[str, str]:
    """Return the digests of a stage of the study's own by file, and of its entry; choices: of its experiment.

    A function of the package counts with all that it reaches, and one of the study with all of the study.
    """
    home, without = stage.function.__module__, SERVICES | READERS
    if home.partition(".")[0] == PACKAGE:
        code = closure([home], choices, without, at_start())
    else:
        code = study_digests(None, (), at_start(), without)
    return code | {f"{home}:{stage.function.__qualname__}": digest_of(sorted(stage.options()))}


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
    digest.update(digest_of(_listed()).encode())
    return digest.hexdigest()


def code_contents() -> dict[str, bytes]:
    """Return the code as it was first read, by paths in a folder that has all of it.

    The code is the package's files, study.py and its modules, the files listed with them and dvc.yaml. Raises
    InputError if a file lies outside the study's folder.
    """
    package = {path.relative_to(closures.ROOT).as_posix(): path for path in _package_files()}
    study = {path.as_posix(): at_start().content(path) for path in _study_files()}
    study |= {name: Path(name).read_bytes() for name in _listed()}
    for name in study:
        if not Path(os.path.normpath(name)).resolve().is_relative_to(Path.cwd()):
            raise InputError(f"{name}: lies outside the study's folder, so jobs cannot have a copy")
    if study and PIPELINE.is_file():
        study[PIPELINE.name] = at_start().content(PIPELINE)
    return {name: at_start().content(path) for name, path in package.items()} | study


def _package_files() -> list[Path]:
    """Return the package's modules and page templates."""
    return [*module_files(), *(path for stage in TEMPLATES for path in _template_files(stage))]


def _study_files() -> list[Path]:
    """Return study.py, if there is one, and its modules."""
    study = Path(FILE)
    return [study, *study_modules(read=at_start().content)] if study.is_file() else []


def _listed() -> dict[str, str]:
    """Return the digests of the files that dvc.yaml lists for study.py, if there is one."""
    return listed_digests(at_start(), CODE) if Path(FILE).is_file() else {}


for _path in _package_files():  # now, all at once: not some before an edit and some after
    at_start().content(_path)
