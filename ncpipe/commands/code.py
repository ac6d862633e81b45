"""Stage code: digests of the code behind every other stage, so that DVC knows when it has changed.

And, of what trains, the parameters. As DVC's own they would stand in dvc.lock once for each run, which DVC
reads and writes for every run: half of what it costs.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from ncpipe.commands.dry_pass import check_study
from ncpipe.commands.study_modules import study_modules
from ncpipe.commands.watched import check_listed, check_watched
from ncpipe.config.params import PARAMS_FILE, Params, load_params
from ncpipe.config.study import FILE
from ncpipe.papers import stages
from ncpipe.runs.code_digests import (
    PACKAGE,
    ROOT,
    TRAIN,
    experiment_digests,
    files_digest,
    study_violation,
    sweep_digests,
)
from ncpipe.runs.fingerprint import choices_of, shared_inputs
from ncpipe.runs.store import import_runs, link_runs_to_dvc_cache
from ncpipe.system.artifacts import CODE, CODE_FILES, digest_of, json_text, publish_folder
from ncpipe.system.console import say
from ncpipe.system.errors import InputError

FILL = "fill"  # the stage that trains the whole sweep: what all of its runs follow from
LINK = Path(PACKAGE)  # beside params.yaml: the package, in a study a link to it
Stage = tuple[str, str | None]  # its name, and of which experiment it is, if it is of one


def write_code() -> None:
    """Write data/code/sweep and data/code/experiments/NAME: a file for each stage, a line for each module.

    A file differs when what its stage runs has changed, and not when it is only written differently. That of
    `train` ends with what params.yaml says of the experiment's runs, as their run.json has it. A study
    without params.yaml has no experiments.

    The runs in data/runs are taken up into the store: what DVC runs next may remove them.
    """
    params = _params()
    import_runs()
    link_runs_to_dvc_cache()
    _check_link()
    if Path(FILE).is_file():
        check_watched("code", FILE)
        _check_form()
    if params is not None:
        check_study(params)
    with publish_folder(CODE) as folder:
        (folder / CODE_FILES.name).write_text(files_digest(), encoding="utf-8")
        for stage, text in _texts(params).items():
            path = folder / _place(stage)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")


def edited_stages(params: Params | None) -> set[Stage]:
    """Return the stages whose code has changed since data/code was written; all stages if it was not."""
    return {
        stage
        for stage, text in _texts(params).items()
        if not (path := CODE / _place(stage)).is_file() or path.read_text(encoding="utf-8") != text
    }


def check_unedited(address: str) -> None:
    """Raise InputError if a stage's code was edited after `code` had described it to the DVC that runs.

    DVC would take what the stage writes for a result of the code that it knows, and after the edit is taken
    back it would still do so. address: DVC's, as `train@NAME-2-0`.
    """
    if not CODE_FILES.is_file() or is_described():
        return
    name, _, item = address.rpartition(":")[2].partition("@")
    params, experiment = _params(), item.partition("-")[0] or None
    if name == TRAIN and params and experiment:
        check_asked(params, [experiment])  # says what it was, if not code
    if (name, experiment) in edited_stages(params):
        raise InputError(f"{PACKAGE}: code of {name} was edited after the stage code had run; run dvc repro")


def is_described() -> bool:
    """Return whether the code is to the byte what it was when `code` last ran."""
    return CODE_FILES.is_file() and CODE_FILES.read_text(encoding="utf-8") == files_digest()


def train_file(experiment: str) -> Path:
    """Return the file that `code` writes for the stage `train` of an experiment."""
    return CODE / _place((TRAIN, experiment))


def check_asked(params: Params, experiments: Iterable[str]) -> None:
    """Raise InputError if params.yaml says other things of these experiments' runs than when `code` last ran.

    DVC would take a run that trains now for a result of what it said then.
    """
    for name in experiments:
        path = train_file(name)
        if path.is_file() and not path.read_text(encoding="utf-8").endswith(_asked(params, name)):
            raise InputError(
                f"{PARAMS_FILE}: what it says of {name}'s runs was edited after the stage code had run; "
                "run dvc repro"
            )


def _texts(params: Params | None) -> dict[Stage, str]:
    swept = sweep_digests(stages.SWEEP_STAGES)
    found: dict[Stage, str] = {(stage, None): _lines(own) for stage, own in swept.items()}
    if params is None:
        return found
    for name, spec in params.experiments.items():
        digests = experiment_digests(choices_of(spec), stages.EXPERIMENT_STAGES)
        found |= {(stage, name): _lines(own) for stage, own in digests.items()}
        found[TRAIN, name] += _asked(params, name)
    found[FILL, None] = _lines(
        {name: digest_of(found[TRAIN, name]) for name in sorted(params.sweep.experiments)}
    )
    return found


def _lines(digests: Mapping[str, str]) -> str:
    return "".join(f"{digest}  {module}\n" for module, digest in digests.items())


def _asked(params: Params, experiment: str) -> str:
    """Return what params.yaml says of an experiment's runs, in one text for all ways of writing the same."""
    spec = params.experiments[experiment]
    return json_text(shared_inputs(experiment, spec, params.sweep.axis, params.compute))


def _params() -> Params | None:
    return load_params() if PARAMS_FILE.is_file() else None


def _place(stage: Stage) -> Path:
    name, experiment = stage
    return Path("sweep" if experiment is None else f"experiments/{experiment}") / f"{name}.txt"


def _check_form() -> None:
    """Report if study.py is not in plain form; InputError if dvc.yaml does not list a module that it uses."""
    violation = study_violation()
    if violation is None:
        return
    for path in study_modules():
        check_listed("code", path.as_posix())
    say(f"{FILE}: {violation}; so all of it counts for every experiment (see docs/extending.md)")


def _check_link() -> None:
    """Raise InputError if the study has a copy of the package: DVC would watch code that does not run."""
    if LINK.is_dir() and LINK.resolve() != ROOT / PACKAGE:
        raise InputError(
            f"{LINK}: a copy of the package, and the one that runs is {ROOT / PACKAGE}; delete the copy and "
            "make a link in its place (ln -s ../../ncpipe ncpipe)"
        )
