"""Stage grid: the runs of the sweep, one table per experiment."""

import csv

from ncpipe.arguments import asked
from ncpipe.artifacts import GRID, publish_folder
from ncpipe.bounds import Number
from ncpipe.errors import InputError, cut, shown
from ncpipe.metrics.catalogue import ENTRIES, KEPT_ON_THE_WAY, one_of_a_spectrum, own_metrics
from ncpipe.params import Params, load_params
from ncpipe.records import suggest
from ncpipe.specs import Run
from ncpipe.yamlfile import parse_number


def write_grid() -> None:
    """params.yaml -> data/grid/EXPERIMENT.csv, its rows sorted.

    Later stages read these instead of the axes in params.yaml: an axis that is only reordered leaves the
    tables as they are, and so nothing else to do.
    """
    params = load_params()
    check_metrics(params)
    with publish_folder(GRID) as folder:
        for name in params.sweep.experiments:
            with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerow(_columns(params))
                writer.writerows(
                    (run.depth, *([] if run.value is None else [run.value]), run.seed)
                    for run in params.runs_of(name)
                )


def _columns(params: Params) -> list[str]:
    """depth and seed, and between them the key that is the study's axis."""
    return ["depth", *([params.sweep.axis] if params.sweep.axis else []), "seed"]


def check_metrics(params: Params) -> None:
    """InputError names what `history` asks for and no last layer has; also the gaps and singular values."""
    names = [metric.name for metric in (*ENTRIES, *own_metrics()) if not one_of_a_spectrum(metric.name)]
    mistakes = [
        cut(f"experiments.{name}.history.metrics: unknown {shown(metric)}; {suggest(metric, names)}")
        for name in params.sweep.experiments
        if (history := params.experiments[name].history)
        for metric in history.metrics
        if metric not in names
    ]
    mistakes += [
        f"experiments.{name}.history.metrics: {metric.name} names {', '.join(sorted(more))}, which is not "
        f"kept on the way; there are {', '.join(sorted(KEPT_ON_THE_WAY))}"
        for name in params.sweep.experiments
        if (history := params.experiments[name].history)
        for metric, function in own_metrics().items()
        if metric.name in history.metrics and (more := set(asked(function)) - KEPT_ON_THE_WAY)
    ]
    if mistakes:
        raise InputError("\n".join(mistakes))


def read_grid(params: Params, experiment: str) -> list[Run]:
    """The runs of one experiment, as the grid stage wrote them."""
    path = GRID / f"{experiment}.csv"
    if not path.is_file():
        raise InputError(f"{path}: not found; is {experiment} in sweep.experiments? Run ncpipe grid")
    try:
        with path.open(newline="", encoding="utf-8") as file:
            header, *rows = csv.reader(file)
        places = [(int(row[0]), int(row[-1]), _value(row)) for row in rows]
    except (IndexError, TypeError, ValueError):
        header, places = [], []
    if not places or header != _columns(params):
        raise InputError(f"{path}: damaged; run ncpipe grid")
    return [params.run(experiment, *place) for place in places]


def _value(row: list[str]) -> Number | None:
    return parse_number(row[1]) if len(row) > 2 else None
