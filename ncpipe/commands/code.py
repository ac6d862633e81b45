"""Stage code: digests of the code behind every other stage, so that DVC knows when it has changed."""

from pathlib import Path

from ncpipe.artifacts import CODE, publish_folder
from ncpipe.code import PACKAGE, ROOT, experiment_digests, files_digest, sweep_digests
from ncpipe.commands.watched import check_watched
from ncpipe.errors import InputError
from ncpipe.params import PARAMS_FILE, Params, load_params
from ncpipe.stamps import choices_of
from ncpipe.study import FILE

LINK = Path(PACKAGE)  # beside params.yaml: the package, in a study a link to it
FILES = CODE / "files.txt"  # digest of all bytes; no stage depends on it
Stage = tuple[str, str | None]  # its name, and of which experiment it is, if it is of one


def write_code() -> None:
    """data/code/sweep and data/code/experiments/NAME: a file for each stage, a line for each module.

    A file differs when what its stage runs has changed, and not when it is only written differently. A study
    without params.yaml has no experiments.
    """
    params = _params()
    _check_link()
    if Path(FILE).is_file():
        check_watched("code", FILE)
    with publish_folder(CODE) as folder:
        (folder / FILES.name).write_text(files_digest(), encoding="utf-8")
        for stage, text in _texts(params).items():
            path = folder / _place(stage)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")


def edited_stages(params: Params | None) -> set[Stage]:
    """Those whose code has changed since data/code was written; all, if it was not."""
    return {
        stage
        for stage, text in _texts(params).items()
        if not (path := CODE / _place(stage)).is_file() or path.read_text(encoding="utf-8") != text
    }


def check_unedited(address: str) -> None:
    """InputError if the code of a stage was edited after `code` had described it to the DVC that now runs it.

    DVC would take what the stage writes for a result of the code that it knows, and after the edit is taken
    back it would still do so. address: DVC's, as `train@NAME-2-0`.
    """
    if not FILES.is_file() or FILES.read_text(encoding="utf-8") == files_digest():
        return
    name, _, item = address.rpartition(":")[2].partition("@")
    if (name, item.partition("-")[0] or None) in edited_stages(_params()):
        raise InputError(f"{PACKAGE}: code of {name} was edited after the stage code had run; run dvc repro")


def _texts(params: Params | None) -> dict[Stage, str]:
    found: dict[Stage, dict[str, str]] = {(stage, None): own for stage, own in sweep_digests().items()}
    for name, spec in params.experiments.items() if params else ():
        found |= {(stage, name): own for stage, own in experiment_digests(choices_of(spec)).items()}
    return {
        stage: "".join(f"{digest}  {module}\n" for module, digest in own.items())
        for stage, own in found.items()
    }


def _params() -> Params | None:
    return load_params() if PARAMS_FILE.is_file() else None


def _place(stage: Stage) -> Path:
    name, experiment = stage
    return Path("sweep" if experiment is None else f"experiments/{experiment}") / f"{name}.txt"


def _check_link() -> None:
    """A study that was copied with what its links lead to would watch code that does not run."""
    if LINK.is_dir() and LINK.resolve() != ROOT / PACKAGE:
        raise InputError(
            f"{LINK}: a copy of the package, and the one that runs is {ROOT / PACKAGE}; delete the copy and "
            "make a link in its place (ln -s ../../ncpipe ncpipe)"
        )
