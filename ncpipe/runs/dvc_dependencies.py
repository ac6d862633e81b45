"""Check that dvc.yaml lists the files that a study uses, so that DVC reruns stages when they change."""

import os
from pathlib import Path

from ncpipe.config.study_files import PIPELINE, dependencies
from ncpipe.config.yaml_file import read_yaml
from ncpipe.system.errors import InputError


def check_reruns(stage: str, file: str) -> None:
    """Raise InputError if there is a dvc.yaml whose stage does not rerun when the file changes."""
    if PIPELINE.is_file() and not read_yaml(PIPELINE)["stages"].get(stage, {}).get("always_changed"):
        check_dependency(stage, file)


def check_dependency(stage: str, file: str) -> None:
    """Raise InputError if there is a dvc.yaml that does not list the file as a dependency of the stage."""
    file = os.path.normpath(file)
    if PIPELINE.is_file() and not any(Path(file).is_relative_to(path) for path in dependencies(stage)):
        raise InputError(
            f"{PIPELINE}: DVC would not see changes of {file}; add the line `- {file}` to the deps of the "
            f"stage {stage}"
        )
