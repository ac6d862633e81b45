"""Whether DVC sees when a file of the user's changes: dvc.yaml has to list it, params.yaml cannot."""

import os
from pathlib import Path

from ncpipe.config.yaml_file import read_yaml
from ncpipe.runs.code_digests import PIPELINE, dependencies
from ncpipe.system.errors import InputError


def check_watched(stage: str, file: str) -> None:
    """Raise InputError unless a stage of dvc.yaml, where there is one, runs again when the file changes."""
    if PIPELINE.is_file() and not read_yaml(PIPELINE)["stages"].get(stage, {}).get("always_changed"):
        check_listed(stage, file)


def check_listed(stage: str, file: str) -> None:
    """Raise InputError unless dvc.yaml, where there is one, lists the file as a dependency of the stage."""
    file = os.path.normpath(file)
    listed = [Path(each) for each in dependencies(stage)]
    if PIPELINE.is_file() and not any(Path(file).is_relative_to(each) for each in listed):
        raise InputError(
            f"{PIPELINE}: DVC would not see a change of {file}; add the line `- {file}` to the deps of the "
            f"stage {stage}"
        )
