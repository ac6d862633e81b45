"""Run the stage code: write digests of every other stage's code, by which DVC detects that it changed.

`ncpipe.runs.code_digests` computes them. The file of the stage train also holds the parameters of its
experiment. As parameters of DVC they would be in dvc.lock once per run, which would double DVC's time.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from ncpipe.config.params import PARAMS_FILE, Params, load_params_and_study
from ncpipe.config.reading import PACKAGE, ROOT, at_start
from ncpipe.config.study import PARTS, Study
from ncpipe.config.study_files import (
    FILE,
    LOOP,
    PIPELINE,
    check_dependency,
    check_reruns,
    is_within,
    named_files,
    readable,
    stages,
    study_modules,
)
from ncpipe.config.yaml_file import read_yaml, shared_mappings
from ncpipe.runs.code_digests import TRAIN, experiment_digests, files_digest, stage_digests, sweep_digests
from ncpipe.runs.fingerprint import shared_inputs
from ncpipe.runs.store import import_runs, link_to_dvc_cache
from ncpipe.runs.study_check import check_study
from ncpipe.runs.study_effect import study_effect
from ncpipe.system.artifacts import CODE, CODE_FILES, digest_of, json_text, publish_folder
from ncpipe.system.console import say
from ncpipe.system.errors import InputError

FILL = "fill"  # the stage that trains all runs of the sweep
LINK = Path(PACKAGE)  # beside params.yaml; in a study, a link to the package
Stage = tuple[str, str | None]  # its name, and its experiment if it runs once per experiment


def write_code() -> None:
    """Write digests of every other stage's code to data/code, by which DVC detects changes of the code.

    data/code/sweep and data/code/experiments/NAME have a file for each stage, with a line per room or file. A
    stage's file changes if its code changes, and not if the code is only formatted differently. The file of
    `train` ends with the experiment's parameters as in run.json. A study without params.yaml has no
    experiments.

    Runs in data/runs are imported into the store first, because DVC may remove them when it runs a stage.
    """
    params, study = load_params_and_study([PIPELINE])
    if params is not None:
        _check_copies()
    import_runs()
    link_to_dvc_cache()
    _check_link()
    if params is not None:
        _check_keys()
        _check_axis(params)
    if Path(FILE).is_file():
        _check_files(study)
    if params is not None:
        check_study(params)
    with publish_folder(CODE) as folder:
        (folder / CODE_FILES.name).write_text(files_digest(), encoding="utf-8")
        for stage, text in _digest_files(params, study).items():
            path = folder / _path(*stage)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")


def check_unedited(address: str) -> None:
    """Raise InputError if a stage's code was edited after the stage code ran in the present `dvc repro`.

    DVC would store the stage's outputs as results of the code before the edit, and restore them when the edit
    is reverted. address: the stage's name in DVC, as `train@NAME-2-0`.
    """
    if not CODE_FILES.is_file() or CODE_FILES.read_text(encoding="utf-8") == files_digest():
        return
    name, _, item = address.rpartition(":")[2].partition("@")
    (params, study), experiment = load_params_and_study([PIPELINE]), item.partition("-")[0] or None
    if name == TRAIN and params and experiment:
        check_params_unedited(params, [experiment])
    text, path = _digest_files(params, study).get((name, experiment)), CODE / _path(name, experiment)
    if text is not None and not (path.is_file() and path.read_text(encoding="utf-8") == text):
        raise InputError(f"{PACKAGE}: code of {name} was edited after the stage code had run; run dvc repro")


def check_params_unedited(params: Params, experiments: Iterable[str]) -> None:
    """Raise InputError if the parameters of these experiments were edited after the stage code ran.

    DVC would store the runs as results of the parameters before the edit.
    """
    for name in experiments:
        path = CODE / _path(TRAIN, name)
        if path.is_file() and not path.read_text(encoding="utf-8").endswith(_parameters(params, name)):
            raise InputError(
                f"{PARAMS_FILE}: parameters of {name} were edited after the stage code had run; run dvc repro"
            )


def _digest_files(params: Params | None, study: Study) -> dict[Stage, str]:
    """Return the content of every stage's file."""
    digests = sweep_digests()
    files: dict[Stage, str] = {(stage, None): _lines(modules) for stage, modules in digests.items()}
    for name, stage in study.stages.items():
        if not stage.per_experiment:
            files[name, None] = _lines(stage_digests(stage, study))
    if params is None:
        return files
    for name, spec in params.experiments.items():
        digests = experiment_digests(spec, study)
        files |= {(stage, name): _lines(modules) for stage, modules in digests.items()}
        files |= {
            (stage, name): _lines(stage_digests(entry, study, spec))
            for stage, entry in study.stages.items()
            if entry.per_experiment
        }
        files[TRAIN, name] += _parameters(params, name)
    files[FILL, None] = _lines(
        {name: digest_of(files[TRAIN, name]) for name in sorted(params.sweep.experiments)}
    )
    return files


def _lines(digests: Mapping[str, str]) -> str:
    return "".join(f"{digest}  {module}\n" for module, digest in digests.items())


def _parameters(params: Params, experiment: str) -> str:
    """Return the parameters that an experiment's runs share, as canonical JSON."""
    spec = params.experiments[experiment]
    return json_text(shared_inputs(experiment, spec, params.sweep.axis, params.compute))


def _path(name: str, experiment: str | None) -> Path:
    return Path("sweep" if experiment is None else f"experiments/{experiment}") / f"{name}.txt"


def _check_copies() -> None:
    """Raise InputError if two keys of params.yaml share a mapping, by a YAML alias or merge.

    DVC sets a parameter (`dvc exp run -S`) by writing the value of every key again, in the order of the file.
    Of a shared mapping the last key's values remain, so the change is lost, or both keys have it.
    """
    tree = read_yaml(PARAMS_FILE)
    shared = shared_mappings({key: value for key, value in tree.items() if key != "about"})  # of no result
    if not shared:
        return
    second, first = shared[0]
    more = f" ({len(shared) - 1} more like it)" if len(shared) > 1 else ""
    name = second.rpartition(".")[2]
    raise InputError(
        f"{PARAMS_FILE}: {second}: shares its keys with {first} by a YAML alias or merge, so dvc exp run -S "
        f"would change both or neither; write a copy, {name}: {{<<: *THE_ANCHOR}}, or write it out{more}"
    )


def _check_keys() -> None:
    """Raise InputError if params.yaml leaves out a key that a stage of dvc.yaml names.

    Its default holds for ncpipe, but DVC would fail when it reaches the stage, after everything has trained.
    """
    keys = read_yaml(PARAMS_FILE) or {}
    for stage, content in stages().items():
        for key in content.get("params") or []:
            first = str(key).partition(".")[0]
            if isinstance(key, str) and first not in keys:
                raise InputError(
                    f"{PARAMS_FILE}: {first}: missing; DVC needs it for the stage {stage}, so write "
                    f"`{first}: null`"
                )


def _check_axis(params: Params) -> None:
    """Raise InputError with the edit of dvc.yaml if that has no stage for each value of the study's axis."""
    matrix = stages().get("fetch", {}).get("matrix")
    if params.sweep.axis is not None and matrix is not None and "value" not in matrix:
        raise InputError(
            f"{PARAMS_FILE}: sweep.axis: {PIPELINE} has no stage for each of its values; edit {PIPELINE}:\n"
            "  matrix of fetch, and of train before seed: add `value: ${sweep.values}`\n"
            "  params of fetch: add `- sweep.axis`\n"
            "  outs of fetch, and deps of train: data/prepared/${item.experiment}/x${item.value}\n"
            "  outs of train: data/runs/${item.experiment}/L${item.depth}/x${item.value}/s${item.seed}\n"
            "  plots: `data/results/x:` with `x: x`, in place of `data/results/depth:` with `x: depth`"
        )


def _check_files(study: Study) -> None:
    """Raise InputError if DVC would not see an edit of study.py's files; print if all always count."""
    check_reruns("code", FILE)
    for path in study_modules():
        check_reruns("code", path.as_posix())
    listed = [readable(stage) for stage in ("code", LOOP if study.trainings else "fetch", "measure")]
    for path in named_files():
        if not any(paths is None or is_within(os.path.realpath(path), paths) for paths in listed):
            check_dependency("code", path.as_posix())
    if effect := study_effect(at_start(), shared=any(map(study.tables.get, PARTS.values()))):
        say(f"{effect}: does more than define, so an edit of the study's code reruns every experiment")


def _check_link() -> None:
    """Raise InputError if the study has a copy of the package: DVC would watch code that does not run."""
    if LINK.is_dir() and LINK.resolve() != ROOT / PACKAGE:
        raise InputError(
            f"{LINK}: is a copy of the package, but {ROOT / PACKAGE} runs; replace the copy by a link "
            "(rm -r ncpipe && ln -s ../../ncpipe ncpipe)"
        )
