"""Stage plot: the figures of the sweep."""

from collections.abc import Iterator

import pandas as pd
from matplotlib.figure import Figure

from ncpipe.artifacts import FIGURES, RESULTS, publish_folder
from ncpipe.errors import InputError
from ncpipe.figures.depth_sweep import depth_sweep
from ncpipe.figures.heat_maps import heat_maps
from ncpipe.figures.labels import gap_columns
from ncpipe.figures.layers import layer_profiles
from ncpipe.figures.save import save_figure
from ncpipe.figures.spectra import spectra
from ncpipe.figures.train_test import train_against_test
from ncpipe.figures.training_curves import training_curves
from ncpipe.params import load_params
from ncpipe.tables.files import read_table


def plot() -> None:
    """data/results -> data/figures, as PNG and SVG.

    depth_sweep, loss_gap, layers, train_test, heat_maps, spectra, and curves_EXPERIMENT for each experiment.
    """
    order = load_params().sweep.experiments
    runs, history = _read("runs"), _read("history")
    known = runs.drop_duplicates("experiment").set_index("experiment")["label"].to_dict()
    if missing := [name for name in order if name not in known]:
        raise InputError(f"data/results: {missing[0]} is not in it; run dvc repro (stage aggregate)")
    labels = {name: known[name] for name in order}
    with publish_folder(FIGURES) as folder:
        for name, figure in _sweep_figures(runs, labels):
            save_figure(figure, folder, name)
        for name in order:
            own = [table[table["experiment"] == name] for table in (history, runs)]
            save_figure(training_curves(own[0], own[1], labels[name]), folder, f"curves_{name}")


def _sweep_figures(runs: pd.DataFrame, labels: dict[str, str]) -> Iterator[tuple[str, Figure]]:
    layers = _read("layers")
    by_depth = _read("points"), _read("summary"), _read("slopes"), runs, labels
    yield "depth_sweep", depth_sweep(*by_depth)
    yield "loss_gap", depth_sweep(*by_depth, gap_columns)
    yield "layers", layer_profiles(layers, _read("separation"), labels)
    yield "train_test", train_against_test(layers, _read("effective_depth"), labels)
    yield "heat_maps", heat_maps(_read("gram"), runs, labels)
    yield "spectra", spectra(_read("spectra"), runs, labels)


def _read(name: str) -> pd.DataFrame:
    return read_table(RESULTS / f"{name}.csv", "aggregate")
