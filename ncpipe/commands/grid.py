"""Run the stage grid: write a table of each experiment's runs, which `ncpipe.runs.grid` reads."""

import csv

from ncpipe.config.arguments import argument_names
from ncpipe.config.experiment import Experiment, own_loop
from ncpipe.config.params import Params, load_params
from ncpipe.metrics.catalogue import CATALOGUE, ENTRIES, REGRESSION, TAGS, one_of_a_spectrum
from ncpipe.metrics.study_metrics import KEPT_ON_THE_WAY, own_metrics
from ncpipe.runs.grid import grid_columns
from ncpipe.runs.store import remove_unwanted
from ncpipe.system.artifacts import GRID, publish_folder
from ncpipe.system.errors import InputError, cut, shown, suggest


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


def check_metrics(params: Params) -> None:
    """Raise InputError for metrics of `history` that cannot be computed from the last layer's features."""
    mistakes = [
        cut(f"experiments.{name}.history.metrics: unknown {shown(metric)}; {suggest(metric, names)}")
        for name in params.sweep.experiments
        if (history := params.experiments[name].history)
        for names in [_of_last_layer(params.experiments[name])]
        for metric in history.metrics
        if metric not in names
    ]
    mistakes += [
        f"experiments.{name}.history.metrics: {metric.name} takes {', '.join(sorted(others))}, which is not "
        f"kept during training; it can take {', '.join(sorted(KEPT_ON_THE_WAY))}"
        for name in params.sweep.experiments
        if (history := params.experiments[name].history)
        for metric, function in own_metrics().items()
        if metric.name in history.metrics and (others := set(argument_names(function)) - KEPT_ON_THE_WAY)
    ]
    if mistakes:
        raise InputError("\n".join(mistakes))


def _of_last_layer(spec: Experiment) -> list[str]:
    """Return the metrics that features and weights of the last layer have, by what the targets are."""
    targets = "classes" if own_loop(spec) else spec.data.targets
    # The last one of regression needs the whole run.
    known = {"classes": ENTRIES, "tags": (*ENTRIES, *TAGS), "vectors": REGRESSION[:-1]}
    of_package = known[targets]
    ranks = [name for name in CATALOGUE if name.endswith("rank_weights")]
    own = [metric.name for metric in (*of_package, *own_metrics()) if not one_of_a_spectrum(metric.name)]
    return list(dict.fromkeys([*own, *ranks]))
