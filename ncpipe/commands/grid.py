"""Stage grid: the runs of the sweep, one table per experiment."""

import csv

from ncpipe.artifacts import GRID, publish_folder
from ncpipe.errors import InputError
from ncpipe.params import Params, load_params
from ncpipe.specs import Run

COLUMNS = ["depth", "seed"]


def write_grid() -> None:
    """params.yaml -> data/grid/EXPERIMENT.csv, its rows sorted.

    Later stages read these instead of the axes in params.yaml: an axis that is only reordered leaves the
    tables as they are, and so nothing else to do.
    """
    params = load_params()
    with publish_folder(GRID) as folder:
        for name in params.sweep.experiments:
            with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerow(COLUMNS)
                writer.writerows((run.depth, run.seed) for run in params.runs_of(name))


def read_grid(params: Params, experiment: str) -> list[Run]:
    """The runs of one experiment, as the grid stage wrote them."""
    path = GRID / f"{experiment}.csv"
    if not path.is_file():
        raise InputError(f"{path}: not found; is {experiment} in sweep.experiments? Run ncpipe grid")
    try:
        with path.open(newline="", encoding="utf-8") as file:
            axes = [(int(row["depth"]), int(row["seed"])) for row in csv.DictReader(file)]
    except (KeyError, TypeError, ValueError):
        axes = []
    if not axes:
        raise InputError(f"{path}: damaged; run ncpipe grid")
    return [params.run(experiment, depth, seed) for depth, seed in axes]
