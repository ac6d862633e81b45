"""Run the stage plot: draw the figures of the sweep, or of published tables (`ncpipe.figures`)."""

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from ncpipe.config.params import load_params
from ncpipe.figures.save import save_figure
from ncpipe.figures.sweep import sweep_figures
from ncpipe.runs.figure_pool import DrawFigure, draw
from ncpipe.system.artifacts import FIGURES, RESULTS, publish_folder
from ncpipe.system.errors import InputError
from ncpipe.tables.files import read_table
from ncpipe.tables.keys import symbol

# The tables of depth_sweep and loss_gap, and slopes_leave_out, which sentences.txt also quotes.
PUBLISHED = ("runs", "points", "summary", "slopes", "slopes_leave_out")


def plot() -> None:
    """Draw data/results into data/figures, as PNG and SVG.

    These are depth_sweep, loss_gap, layers, train_test, heat_maps, spectra, and curves_EXPERIMENT for each
    experiment. Several processes draw them if there are many.
    """
    with publish_folder(FIGURES) as folder:
        draw(folder, {name: partial(_figure, name) for name in _figures()})


def _figure(name: str) -> Figure:
    return _figures()[name]()


def _figures() -> Mapping[str, DrawFigure]:
    experiments = load_params().sweep.experiments
    return sweep_figures(experiments, lambda name: read_table(RESULTS / f"{name}.csv", "aggregate"))


def plot_published(sources: Sequence[Path], target: Path) -> None:
    """Draw depth_sweep and loss_gap from published tables, with one row of panels for each experiment.

    Trains nothing and needs no params.yaml. Rows are in the order of the folders. Other files in `target` are
    kept.
    """
    tables = read_published(sources)
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target) as folder:
        for name, figure in figures_of_published(tables):
            for path in save_figure(figure, Path(folder), name):
                os.replace(path, target / path.name)


def read_published(sources: Sequence[Path]) -> dict[str, pd.DataFrame]:
    """Return the concatenated tables of published folders; InputError if two have the same experiment."""
    for path in (source / f"{name}.csv" for source in sources for name in PUBLISHED):
        if not path.is_file():
            raise InputError(f"{path}: not found; give a folder written by ncpipe publish")
    parts = {
        name: [read_table(source / f"{name}.csv", "publish") for source in sources] for name in PUBLISHED
    }
    owner: dict[str, Path] = {}
    for source, runs in zip(sources, parts["runs"], strict=True):
        for experiment in runs["experiment"].unique():
            if experiment in owner:
                raise InputError(
                    f"{source}: {experiment} is also in {owner[experiment]}; give each experiment once"
                )
            owner[experiment] = source
    if len(axes := {symbol(runs) for runs in parts["runs"]}) > 1:
        raise InputError(
            f"plot: the folders have different x axes, {' and '.join(sorted(axes))}; plot them separately"
        )
    return {name: pd.concat(tables, ignore_index=True) for name, tables in parts.items()}


def figures_of_published(tables: dict[str, pd.DataFrame]) -> Iterator[tuple[str, Figure]]:
    """Yield depth_sweep and, if any run has a gap, loss_gap, by name."""
    figures = sweep_figures(list(tables["runs"]["experiment"].unique()), tables.__getitem__)
    for name in ("depth_sweep", "loss_gap"):
        if name in figures:
            yield name, figures[name]()
