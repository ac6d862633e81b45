"""Every figure of a sweep by its name, from the tables of `aggregate`."""

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import pandas as pd
from matplotlib.figure import Figure

from ncpipe.config.unions import metrics_of_study
from ncpipe.figures.depth_sweep import ColumnsOf, depth_sweep
from ncpipe.figures.heat_maps import heat_maps
from ncpipe.figures.labels import (
    GAP_COLUMNS,
    Column,
    by_experiment,
    caption,
    paper_columns,
    row_label,
    scale_lines,
)
from ncpipe.figures.layer_profiles import layer_profiles
from ncpipe.figures.own_metrics import own_metrics_figure
from ncpipe.figures.spectra import spectra
from ncpipe.figures.train_test import train_against_test
from ncpipe.figures.training_curves import training_curves
from ncpipe.figures.x_axis import with_lines
from ncpipe.metrics.study_metrics import own_splits
from ncpipe.system.errors import InputError
from ncpipe.tables.headlines import GAP, GNC2, REGRESSION_SERIES


def sweep_figures(
    order: Sequence[str],
    read: Callable[[str], pd.DataFrame],
    names: Mapping[str, str] = MappingProxyType({}),
    scales: Mapping[str, str] = MappingProxyType({}),
) -> Mapping[str, Callable[[], Figure]]:
    """Return by name the makers of figures: depth_sweep, layers, train_test, heat_maps, spectra and
    curves_EXPERIMENT, which is curves_EXPERIMENT-L<depth> in a study with an axis; loss_gap, if any run has
    one; and own_metrics, if the study.py that was read last has metrics. layers, train_test and heat_maps
    have rows for experiments with classes alone.

    order: the experiments, a row each. read: a table of data/results by its name. names: of experiments whose
    rows would be labelled alike. scales: by experiment, written below its label. InputError if `runs` lacks
    an experiment.
    """

    def table(name: str) -> pd.DataFrame:
        return with_lines(read(name))

    def by_depth(columns: ColumnsOf) -> Figure:
        return depth_sweep(points, table("summary"), table("slopes"), runs, labels, columns)

    def by_layer(lines: Mapping[str, str]) -> Figure:
        profile, law = (
            frame[frame["experiment"].isin(lines)] for frame in (table("layers"), table("separation"))
        )
        return layer_profiles(profile, law, runs, lines)

    def curves(line: str) -> Figure:
        history, line_runs = (frame[frame["experiment"] == line] for frame in (table("history"), runs))
        scale = scales.get(str(line_runs["experiment"].iloc[0]), "")
        return training_curves(history, line_runs, captions[line] + (f" ({scale})" if scale else ""))

    runs, points = table("runs"), table("points")
    no_simplex = set(points.loc[points["metric"] == GNC2, "experiment"])
    lines = {name: _lines_of(runs, name) for name in order}
    if missing := [name for name, rows in lines.items() if not rows]:
        raise InputError(f"data/results: {missing[0]} is not in it; run dvc repro (stage aggregate)")
    named = {line: names[name] for name, rows in lines.items() if name in names for line in rows}
    known, captions = (by_experiment(label, runs, named) for label in (row_label, caption))
    below = {name: f"\n{scale_lines(scales[name])}" for name in scales}
    labels = {line: known[line] + below.get(name, "") for name, rows in lines.items() for line in rows}
    columns = [
        Column(m.name, split) for m, function in metrics_of_study().items() for split in own_splits(function)
    ]
    figures: dict[str, Callable[[], Figure]] = {}
    if columns:
        figures["own_metrics"] = lambda: own_metrics_figure(points, runs, labels, columns)
    if runs[GAP].notna().any():
        figures["loss_gap"] = lambda: by_depth(lambda runs, points: GAP_COLUMNS)
    vectors = set(points.loc[points["metric"] == REGRESSION_SERIES[0][0], "experiment"])
    classes = {line: label for line, label in labels.items() if line not in vectors}
    figures["depth_sweep"] = lambda: by_depth(paper_columns)
    if regressions := {line: label for line, label in labels.items() if line in vectors}:
        figures["regression_layers"] = lambda: by_layer(regressions)
    if classes:
        figures |= {
            "layers": lambda: by_layer(classes),
            "train_test": lambda: train_against_test(
                table("layers"), table("effective_depth"), runs, classes
            ),
            "heat_maps": lambda: heat_maps(table("gram"), runs, classes, no_simplex),
        }
    return {
        **figures,
        "spectra": lambda: spectra(table("spectra"), runs, labels, no_simplex | vectors),
        **{f"curves_{line}": functools.partial(curves, line) for line in labels},
    }


def _lines_of(runs: pd.DataFrame, experiment: str) -> list[str]:
    """Return the names of an experiment's rows in the figures: its own, or one for each depth."""
    names = runs["experiment"]
    return list(dict.fromkeys(names[(names == experiment) | names.str.startswith(f"{experiment}-")]))
