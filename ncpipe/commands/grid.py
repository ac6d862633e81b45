"""Run the stage grid: write a table of each experiment's runs, which `ncpipe.runs.grid` reads."""

import csv

from ncpipe.config.params import load_params
from ncpipe.runs.grid import grid_columns
from ncpipe.runs.store import remove_unwanted
from ncpipe.runs.study_check import check_metrics
from ncpipe.system.artifacts import GRID, publish_folder


def write_grid() -> None:
    """Check params.yaml, and write a table of each experiment's runs to data/grid.

    Later stages depend on these tables, so nothing runs again if depths or seeds are only reordered.
    Removes results of runs that the sweep no longer has.
    """
    params = load_params()
    check_metrics(params)
    remove_unwanted(params)
    with publish_folder(GRID) as folder:
        for name in params.sweep.experiments:
            with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerow(grid_columns(params))
                writer.writerows(
                    (run.depth, *([] if run.value is None else [run.value]), run.seed)
                    for run in params.runs_of(name)
                )
