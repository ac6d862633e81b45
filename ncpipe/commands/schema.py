"""The schemas of params.yaml and claims.yaml, for editors."""

from pathlib import Path

from ncpipe.commands.json_schema import SCHEMAS, schema_text
from ncpipe.config.study import load_study


def write_schema() -> None:
    """Write params.schema.json and claims.schema.json into the working directory.

    The records of a study.py there are part of them.
    """
    load_study(Path())
    for name in SCHEMAS:
        Path(name).write_text(schema_text(name), encoding="utf-8")
