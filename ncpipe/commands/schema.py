"""Write the JSON schemas of params.yaml and claims.yaml to files (`ncpipe schema`)."""

from pathlib import Path

from ncpipe.commands.json_schema import SCHEMAS, schema_text
from ncpipe.config.study import load_study


def write_schema() -> None:
    """Write params.schema.json and claims.schema.json here, with the records of a study.py."""
    load_study(Path())
    for name in SCHEMAS:
        Path(name).write_text(schema_text(name), encoding="utf-8")
