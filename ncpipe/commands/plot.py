"""Stage plot: the figures of the sweep."""

import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from ncpipe.artifacts import FIGURES, RESULTS, publish_folder
from ncpipe.errors import InputError
from ncpipe.figures.abscissa import with_lines
from ncpipe.figures.depth_sweep import depth_sweep
from ncpipe.figures.heat_maps import heat_maps
from ncpipe.figures.labels import by_experiment, caption, gap_columns, row_label
from ncpipe.figures.layer_profiles import layer_profiles
from ncpipe.figures.save import save_figure
from ncpipe.figures.spectra import spectra
from ncpipe.figures.train_test import train_against_test
from ncpipe.figures.training_curves import training_curves
from ncpipe.params import load_params
from ncpipe.tables.files import read_table
from ncpipe.tables.keys import symbol

# The tables that depth_sweep and loss_gap are drawn from, and slopes_leave_out, which their sentences need.
PUBLISHED = ("runs", "points", "summary", "slopes", "slopes_leave_out")


def plot() -> None:
    """data/results -> data/figures, as PNG and SVG.

    depth_sweep, loss_gap, layers, train_test, heat_maps, spectra, and curves_EXPERIMENT for each experiment.
    """
    order = load_params().sweep.experiments
    runs, history = _read("runs"), _read("history")
    known = by_experiment(row_label, runs)
    lines = {name: _lines_of(runs, name) for name in order}
    if missing := [name for name, own in lines.items() if not own]:
        raise InputError(f"data/results: {missing[0]} is not in it; run dvc repro (stage aggregate)")
    labels = {line: known[line] for own in lines.values() for line in own}
    with publish_folder(FIGURES) as folder:
        for name, figure in _sweep_figures(runs, labels):
            save_figure(figure, folder, name)
        captions = by_experiment(caption, runs)
        for name in labels:
            own = [table[table["experiment"] == name] for table in (history, runs)]
            save_figure(training_curves(own[0], own[1], captions[name]), folder, f"curves_{name}")


def _lines_of(runs: pd.DataFrame, experiment: str) -> list[str]:
    """The names of an experiment's rows in the figures: its own, or one for each depth."""
    own = runs["experiment"]
    return list(dict.fromkeys(own[(own == experiment) | own.str.startswith(f"{experiment}-")]))


def plot_published(sources: Sequence[Path], target: Path) -> None:
    """depth_sweep and loss_gap of tables that `ncpipe publish` wrote, the rows of all folders in one figure.

    Trains nothing and needs no params.yaml. Rows are in the order of the folders. What else lies in `target`
    stays.
    """
    tables = read_published(sources)
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target) as folder:
        for name, figure in figures_of_published(tables):
            for path in save_figure(figure, Path(folder), name):
                os.replace(path, target / path.name)


def read_published(sources: Sequence[Path]) -> dict[str, pd.DataFrame]:
    """The tables of published folders, one below the other; InputError if two hold the same experiment."""
    for path in (source / f"{name}.csv" for source in sources for name in PUBLISHED):
        if not path.is_file():
            raise InputError(f"{path}: not found; name a folder that ncpipe publish wrote")
    parts = {
        name: [read_table(source / f"{name}.csv", "publish") for source in sources] for name in PUBLISHED
    }
    owner: dict[str, Path] = {}
    for source, runs in zip(sources, parts["runs"], strict=True):
        for experiment in runs["experiment"].unique():
            if (other := owner.setdefault(experiment, source)) != source:
                raise InputError(f"{source}: {experiment} is in {other} too; name each experiment once")
    if len(axes := {symbol(runs) for runs in parts["runs"]}) > 1:
        raise InputError(f"the folders hold metrics against {' and '.join(sorted(axes))}; plot them apart")
    return {name: pd.concat(tables, ignore_index=True) for name, tables in parts.items()}


def figures_of_published(tables: dict[str, pd.DataFrame]) -> Iterator[tuple[str, Figure]]:
    """depth_sweep and loss_gap, a row for each experiment of the tables."""
    tables = {name: with_lines(table) for name, table in tables.items()}
    runs = tables["runs"]
    by_depth = tables["points"], tables["summary"], tables["slopes"], runs, by_experiment(row_label, runs)
    yield "depth_sweep", depth_sweep(*by_depth)
    yield "loss_gap", depth_sweep(*by_depth, gap_columns)


def _sweep_figures(runs: pd.DataFrame, labels: dict[str, str]) -> Iterator[tuple[str, Figure]]:
    layers = _read("layers")
    by_depth = _read("points"), _read("summary"), _read("slopes"), runs, labels
    yield "depth_sweep", depth_sweep(*by_depth)
    yield "loss_gap", depth_sweep(*by_depth, gap_columns)
    yield "layers", layer_profiles(layers, _read("separation"), runs, labels)
    yield "train_test", train_against_test(layers, _read("effective_depth"), runs, labels)
    yield "heat_maps", heat_maps(_read("gram"), runs, labels)
    yield "spectra", spectra(_read("spectra"), runs, labels)


def _read(name: str) -> pd.DataFrame:
    return with_lines(read_table(RESULTS / f"{name}.csv", "aggregate"))
