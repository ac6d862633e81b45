"""Read an experiment's runs from the table that the stage grid writes (`ncpipe.commands.grid`)."""

import csv

from ncpipe.config.params import Params
from ncpipe.config.run import Run
from ncpipe.config.yaml_file import parse_number
from ncpipe.system.artifacts import GRID
from ncpipe.system.errors import InputError


def grid_columns(params: Params) -> list[str]:
    """Return the columns: depth, the study's axis if it has one, and seed."""
    return ["depth", *([params.sweep.axis] if params.sweep.axis else []), "seed"]


def read_grid(params: Params, experiment: str) -> list[Run]:
    """Return the runs of one experiment in the table's order."""
    path = GRID / f"{experiment}.csv"
    if not path.is_file():
        raise InputError(f"{path}: not found; is {experiment} in sweep.experiments? Run ncpipe grid")
    try:
        with path.open(newline="", encoding="utf-8") as file:
            header, *rows = csv.reader(file)
        settings = [
            (int(row[0]), int(row[-1]), parse_number(row[1]) if len(row) > 2 else None) for row in rows
        ]
    except (IndexError, TypeError, ValueError):
        header, settings = [], []
    if not settings or header != grid_columns(params):
        raise InputError(f"{path}: damaged; run ncpipe grid")
    return [params.run(experiment, *setting) for setting in settings]
