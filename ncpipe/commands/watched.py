"""Whether DVC sees when a file of the user's changes: dvc.yaml has to list it, params.yaml cannot."""

import os
from pathlib import Path

from ncpipe.errors import InputError
from ncpipe.yamlfile import read_yaml

PIPELINE = Path("dvc.yaml")


def check_watched(stage: str, file: str) -> None:
    """InputError unless a stage of dvc.yaml, where there is one, runs anew when the file changes."""
    if not PIPELINE.is_file():
        return
    found = read_yaml(PIPELINE)["stages"].get(stage, {})
    watched = map(os.path.normpath, found.get("deps", []))
    if os.path.normpath(file) not in watched and not found.get("always_changed"):
        raise InputError(
            f"{PIPELINE}: DVC would not see a change of {file}; add the line `- {file}` to the deps of the "
            f"stage {stage}"
        )
