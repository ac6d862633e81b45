"""The schema of params.yaml, for editors."""

from pathlib import Path

from ncpipe.schema import SCHEMA_FILE, schema_text


def write_schema() -> None:
    """What the records of params.yaml are -> params.schema.json in the working directory."""
    Path(SCHEMA_FILE).write_text(schema_text(), encoding="utf-8")
