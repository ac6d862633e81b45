"""Figures of made-up tables, by name, and what a reader sees of each, as lines of text.

`python tests/figure_cases.py` writes `figure_cases.json`: look at what has changed before it is committed.
Of a variant, as "layers, zeros" is of "layers", the file has what differs: below `@@ -9,2` are the lines that
stand in place of two of the other figure, from the ninth on.
"""

import difflib
import functools
import json
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from made_tables import grid, measure, noisy, places_of
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from paper_figure_cases import PAPER_CASES

from ncpipe.config.params import Slopes
from ncpipe.figures.depth_sweep import depth_sweep
from ncpipe.figures.heat_maps import heat_maps
from ncpipe.figures.labels import Column, by_experiment, paper_columns, row_label
from ncpipe.figures.layer_profiles import layer_profiles
from ncpipe.figures.spectra import spectra
from ncpipe.figures.train_test import train_against_test
from ncpipe.figures.training_curves import training_curves
from ncpipe.figures.x_axis import with_lines
from ncpipe.papers.k23.figures import PANELS, model_curves
from ncpipe.tables.keys import RUN
from ncpipe.tables.points import usable_points
from ncpipe.tables.profiles import effective_depths, layer_errors, layer_profile, separation_law
from ncpipe.tables.slopes import loglog_slopes
from ncpipe.tables.summary import summarise

STORED = Path(__file__).with_suffix(".json")
LABELS = {"vision": "L-RN1 on MNIST", "language": "L-T11 on IMDB", "dead": "L-RN2 on MNIST"}
DEPTHS = (2, 5, 13, 34)
SERIES = (
    ("nc1_trace_ratio", "train"),
    ("nc1_trace_ratio", "test"),
    ("nc2_etf", "weights"),
    ("nc2_identity", "weights"),
    ("nc3_cosine", "train"),
)
SETTING = {
    "architecture": "L-RN1", "norm": "post", "source": "digits", "loss_name": "ce", "last_bias": False,
    "penalty_rule": "constant", "penalty_value": 0.1, "penalty_last_layer": math.nan, "penalty_biases": False,
    "initialisation": "normal",
}  # fmt: skip


# Last layers of many depths: nothing of `dead` converged, and nothing of `language` at L = 13


def sweep_runs() -> pd.DataFrame:
    rows = [(name, depth, seed) for name in LABELS for depth in DEPTHS for seed in range(3)]
    runs = pd.DataFrame(rows, columns=RUN).assign(loss_name="ce", last_bias=False)
    runs.loc[runs["experiment"] == "language", "loss_name"] = "mse"
    architectures = {"vision": "L-RN1", "language": "L-T11", "dead": "L-RN2"}
    runs = runs.assign(
        architecture=runs["experiment"].map(architectures),
        penalty_rule="constant",
        last_strength=0.005,
        bound="holds",
    )
    failed = (runs["experiment"] == "dead") | ((runs["experiment"] == "language") & (runs["depth"] == 13))
    return runs.assign(finished=~failed, converged=~failed, selected=~failed)


def last_measurements(runs: pd.DataFrame) -> pd.DataFrame:
    generator = np.random.default_rng(0)
    parts = []
    for place, (metric, split) in enumerate(SERIES):
        value = 0.1 * 2.0**place * runs["depth"] ** -0.5 * 10 ** (0.05 * generator.standard_normal(len(runs)))
        parts.append(runs[RUN].assign(layer="last", split=split, metric=metric, value=value))
    return pd.concat(parts, ignore_index=True)


def sweep_of(table: pd.DataFrame, runs: pd.DataFrame, *names: str, level: float = 0.9, **more: Any) -> Figure:
    labels = {name: LABELS[name] for name in names or LABELS}
    slopes = loglog_slopes(table, runs, Slopes(seed=0, level=level))
    return depth_sweep(usable_points(table, runs), summarise(table, runs), slopes, runs, labels, **more)


def sweep(
    *names: str,
    runs: Callable[[pd.DataFrame], pd.DataFrame] = lambda runs: runs,
    table: Callable[[pd.DataFrame], pd.DataFrame] = lambda table: table,
    **more: Any,
) -> Callable[[], Figure]:
    """A depth sweep of some experiments, whose runs and measurements are changed first."""

    def draw() -> Figure:
        changed = runs(sweep_runs())
        return sweep_of(table(last_measurements(changed)), changed, *names, **more)

    return draw


def scaled(condition: str, factor: Any) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """Multiply the values of some rows by a number, or by a function of these rows."""

    def change(table: pd.DataFrame) -> pd.DataFrame:
        rows = table.eval(condition)
        by = factor(table[rows]) if callable(factor) else factor
        table.loc[rows, "value"] *= by
        return table

    return change


def lone_seed(runs: pd.DataFrame) -> pd.DataFrame:
    converged = runs["converged"] & ((runs["depth"] != 5) | (runs["seed"] == 0))
    return runs.assign(converged=converged, selected=converged)


def many_classes(runs: pd.DataFrame) -> pd.DataFrame:
    return runs.assign(bound="no closed-form optimum")


def two_of_equal_height(runs: pd.DataFrame) -> pd.DataFrame:
    kept = runs.query("experiment != 'dead' and (experiment == 'vision' or depth < 34)")
    return kept.assign(converged=True, selected=True, finished=True)


def nc1_alone(runs: pd.DataFrame, points: pd.DataFrame) -> tuple[Column, ...]:
    return (Column("nc1_trace_ratio", "train"),)


def fewer_of_vision(runs: pd.DataFrame, points: pd.DataFrame) -> tuple[Column, ...]:
    return paper_columns(runs, points)[: 2 if runs["experiment"].iloc[0] == "vision" else 3]


nc1_sweep = partial(sweep, columns=nc1_alone)


def steeper(power: float) -> Callable[[], Figure]:
    change = scaled("experiment == 'vision'", lambda rows: rows["depth"] ** -power)
    return nc1_sweep("vision", "language", runs=two_of_equal_height, table=change)


def from_depth_one(runs: pd.DataFrame) -> pd.DataFrame:
    runs = runs.query("experiment == 'vision'").replace({"depth": {2: 1, 5: 3}})
    return runs.assign(architecture="L-T12", penalty_rule="over_depth")


def by_axis(table: pd.DataFrame, depth: int = 6, shift: float = 0.0) -> pd.DataFrame:
    """A table by depth as one by x, of networks of one depth."""
    columns = ["experiment", "depth", "axis", "x", "seed"]
    table = table.assign(x=table["depth"] - shift, axis="data.noise", depth=depth)
    present = [name for name in columns if name in table]
    return table[[*present, *(name for name in table if name not in present)]]


def against_axis(axis: str, shift: float, decades: int = 0) -> Figure:
    """decades: as many values, a factor of 10 apart."""
    plain = grid(("a",), range(1, decades + 1)) if decades else grid(("a",))
    runs = by_axis(plain, shift=shift).assign(axis=axis, **SETTING)
    table = by_axis(measure(plain, noisy), shift=shift).assign(axis=axis)
    if decades:
        runs, table = (frame.assign(x=10.0 ** -frame["x"]) for frame in (runs, table))
    slopes = loglog_slopes(table, runs, Slopes(seed=0, level=0.95))
    tables = usable_points(table, runs), summarise(table, runs), slopes, runs
    points, summary, fits, lines = (with_lines(frame) for frame in tables)
    return depth_sweep(points, summary, fits, lines, by_experiment(row_label, lines), nc1_alone)


# Training


def history_of(runs: pd.DataFrame) -> pd.DataFrame:
    """Unfinished runs end early in an infinite loss."""
    parts = []
    for name, depth, seed, finished in runs[[*RUN, "finished"]].itertuples(index=False, name=None):
        epoch = np.array([10, 20, 40, 100] if finished else [10, 20, 40])
        loss = (1 + 0.1 * seed) * np.exp(-epoch / 20) + 1 / depth
        if not finished:
            loss[-1] = math.inf
        columns = {"epoch": epoch, "loss": loss, "fit": loss / 2, "penalty": 0 * epoch}
        errors = {"train_error": np.clip(1 - epoch / 50, 0, 1), "test_error": 0.1, "learning_rate": 0.01}
        parts.append(pd.DataFrame(columns | errors).assign(experiment=name, depth=depth, seed=seed))
    return pd.concat(parts, ignore_index=True)


def curves(
    name: str, change: Callable[[pd.DataFrame], pd.DataFrame] = lambda history: history
) -> Callable[[], Figure]:
    def draw() -> Figure:
        runs = sweep_runs().query("experiment == @name and depth in (2, 13) and seed < 2")
        return training_curves(change(history_of(runs)), runs, f"{LABELS[name]}\n$\\lambda = 0.005$")

    return draw


def far_off(history: pd.DataFrame) -> pd.DataFrame:
    history.loc[(history["depth"] == 13) & (history["epoch"] == 20), "loss"] = 1e12
    return history


def with_metrics(history: pd.DataFrame) -> pd.DataFrame:
    """Metrics on two splits, at two epochs."""
    kept = history["epoch"].isin([20, 40])
    new = {"nc1_trace_ratio": 0.3, "nc1_trace_ratio_test": 0.5, "nc2_etf": 0.1, "ncc_error": 0.25}
    return history.assign(**{name: (value / history["epoch"]).where(kept) for name, value in new.items()})


def every_model() -> Figure:
    """K23's models without networks: a point of each series, and a line of its formula."""
    rows = [
        {"panel": panel, "series": series, "how": how, "x": x, "y": 0.5 + x}
        for panel, spec in PANELS.items()
        for series in spec.series
        for how in ("closed", "found")
        for x in ((0.1, 0.4) if how == "closed" else (0.2,))
    ]
    return model_curves(pd.DataFrame(rows))


# Layers of a ResNet and a transformer, of which seed 0 and the deepest did not converge; none of `dead` did

CLASSES = 4
LAYER_LABELS = {"rn": "L-RN1 on MNIST", "tf": "L-T11 on IMDB", "dead": "L-RN2 on MNIST"}


def layer_runs() -> pd.DataFrame:
    rows = [(name, depth, seed) for name in LAYER_LABELS for depth in (2, 5, 8) for seed in range(3)]
    runs = pd.DataFrame(rows, columns=RUN).assign(loss_name="ce", last_bias=False)
    failed = (runs["experiment"] == "dead") | ((runs["experiment"] == "tf") & (runs["depth"] == 8))
    failed |= (runs["experiment"] == "rn") & (runs["seed"] == 0)
    return runs.assign(converged=~failed, selected=~failed, test_error=0.1)


def layer_measurements(runs: pd.DataFrame) -> pd.DataFrame:
    generator = np.random.default_rng(0)
    rows: list[tuple[Any, ...]] = []
    for name, depth, seed in runs[RUN].itertuples(index=False, name=None):
        layers = [*(f"X{i}" for i in range(1, depth)), "last"]
        if name == "tf":
            layers = ["embedding", *(f"{half}{i}" for i in range(1, depth + 1) for half in "AB"), "last"]
        for place, layer in enumerate(layers):
            at = (name, depth, seed, layer)
            nc1 = 0.8**place * 10 ** (0.05 * generator.standard_normal())
            rows += [(*at, "train", "nc1_trace_ratio", nc1), (*at, "test", "nc1_trace_ratio", 0.5 + nc1)]
            rows.append((*at, "train", "nc2_means", 0.9**place))
            rows.append((*at, "train", "ncc_error", max(0.3 - 0.1 * place, 0.0)))
            rows.append((*at, "test", "ncc_error", 0.4 / (1 + place)))
        last = (name, depth, seed, "last")
        rows += [(*last, "test", "weak_test_collapse", 0.3), (*last, "test", "strong_test_collapse", 0.7)]
        rows += [(*last, "train", "nc4_mismatch", 0.0), (*last, "test", "nc4_mismatch", 0.1 / (depth + seed))]
        rows.append((*last, "test", "singular_means_002", 100.0))  # the test split's are not drawn
        for matrix, split in (("means", "train"), ("weights", "weights")):
            for i in range(CLASSES):
                value = (depth + seed) * 0.5**i if i < CLASSES - 1 else 0.0
                rows.append((*last, split, f"singular_{matrix}_{i + 1:03d}", value))
    return pd.DataFrame(rows, columns=[*RUN, "layer", "split", "metric", "value"])


def gram_of(runs: pd.DataFrame, classes: int = CLASSES) -> pd.DataFrame:
    rows = [
        (*key, matrix, i, j, cosine(*key[1:], matrix, i, j))
        for key in runs[RUN].itertuples(index=False, name=None)
        for matrix in ("means", "duality")
        for i, j in np.ndindex(classes, classes)
    ]
    table = pd.DataFrame(rows, columns=[*RUN, "matrix", "row", "column", "value"])
    return table.sample(frac=1, random_state=0)


def cosine(depth: int, seed: int, matrix: str, i: int, j: int) -> float:
    """Not symmetric for `duality`; of no particular geometry."""
    if i == j:
        return 1.0 if matrix == "means" else 0.9
    return -1 / 3 + (0.1 * (i - j) if matrix == "duality" else 0.02 * (i + j)) / depth + 0.01 * seed


RUNS = layer_runs()
TABLE = layer_measurements(RUNS)
NOTHING = TABLE.iloc[:0]


def layers(
    table: pd.DataFrame = TABLE, runs: pd.DataFrame = RUNS, labels: Mapping[str, str] = LAYER_LABELS
) -> Figure:
    places = places_of(table)
    return layer_profiles(
        layer_profile(table, places, runs), separation_law(table, places, runs), runs, labels
    )


def splits(
    table: pd.DataFrame = TABLE, runs: pd.DataFrame = RUNS, labels: Mapping[str, str] = LAYER_LABELS
) -> Figure:
    places = places_of(table)
    effective = effective_depths(layer_errors(table, places, runs), runs, 0.0)
    return train_against_test(layer_profile(table, places, runs), effective, runs, labels)


def values(table: pd.DataFrame, value: float, *metrics: str, depth: int = 0) -> pd.DataFrame:
    """The table with one value for some metrics, at one depth or all."""
    rows = table["metric"].isin(metrics) & ((table["depth"] == depth) | (depth == 0))
    return table.assign(value=table["value"].mask(rows, value))


def renamed(table: pd.DataFrame, nc1: str, error: str, split: str = "") -> pd.DataFrame:
    """The rows of NC1 and of the error as other metrics', and nothing else; on one split if it is named."""
    rows = table.replace({"metric": {"nc1_trace_ratio": nc1, "ncc_error": error}})
    rows = rows[rows["metric"].isin({nc1, error} - {""})]
    return rows[rows["split"] == "train"].assign(split=split) if split else rows


def out_of_sight() -> Figure:
    """Depths far above the effective ones, which are those of the first layer."""
    deep = {"depth": {2: 20, 5: 50, 8: 400}}
    table = TABLE[TABLE["experiment"] == "rn"].replace(deep)
    return splits(
        values(table, 0.0, "ncc_error"), RUNS[RUNS["experiment"] == "rn"].replace(deep), {"rn": "x"}
    )


def uneven_seeds() -> Figure:
    table = TABLE.copy()
    second = (table["metric"] == "singular_weights_002") & (table["depth"] == 5)
    table.loc[second, "value"] = (5 + table["seed"]) * 0.9 ** table["seed"]  # converged seeds are 1 and 2
    return spectra(table, RUNS, {"rn": "x"})


def maps_of_two_classes() -> Figure:
    """One depth, and a classifier of zeros."""
    runs = RUNS[(RUNS["experiment"] == "tf") & (RUNS["depth"] == 2)]
    gram = gram_of(runs, classes=2)
    gram.loc[gram["matrix"] == "duality", "value"] = math.nan
    return heat_maps(gram, runs, {"tf": "x"})


SHALLOW = TABLE[(TABLE["depth"] == 5) & TABLE["layer"].isin(["X1", "X3", "last"])]
LAST = TABLE[TABLE["layer"] == "last"]
UNMEASURED = TABLE[~TABLE["metric"].isin(["nc2_means", "weak_test_collapse", "strong_test_collapse"])]
ORTHOGONAL = RUNS.assign(loss_name="mse")
SHARES = ("nc4_mismatch", "ncc_error")
RN, TF = {"rn": "x"}, {"tf": "x"}

CASES: Mapping[str, Callable[[], Figure]] = {
    "sweep": sweep(),
    "sweep, one experiment": sweep("vision"),
    "sweep, a rejected line": sweep(
        "vision", table=scaled("metric == 'nc1_trace_ratio' and depth == 5", 30)
    ),
    "sweep, every line rejected": nc1_sweep("vision", table=scaled("depth == 5", 30), level=0.95),
    "sweep, runs that still move": nc1_sweep("language", runs=lambda runs: runs.assign(selected=True)),
    "sweep, a run far off": nc1_sweep(
        "language", table=scaled("experiment == 'language' and depth == 13", 1e30)
    ),
    "sweep, a depth not measured": nc1_sweep(
        "language", table=lambda table: table.query("experiment != 'language' or depth != 13")
    ),
    "sweep, a single run": nc1_sweep("vision", runs=lone_seed),
    "sweep, an open power": nc1_sweep(
        "vision",
        runs=lambda runs: runs.query("experiment == 'vision' and seed < 2"),
        table=scaled("depth == 2", lambda rows: 10.0 ** (1 - 2 * rows["seed"])),
    ),
    "sweep, alike": steeper(1.0),
    "sweep, too steep to be alike": steeper(9.0),
    "sweep, nothing measured": sweep(table=lambda table: table.iloc[:0]),
    "sweep, zeros": nc1_sweep("vision", table=scaled("depth == 5", 0.0)),
    "sweep, rising": nc1_sweep("vision", table=scaled("depth > 0", lambda rows: rows["depth"] ** 1.2)),
    "sweep, a bound with a logarithm": nc1_sweep("vision", runs=from_depth_one),
    "sweep, more classes than a simplex has": sweep(
        "vision",
        runs=many_classes,
        table=lambda table: table.replace({"metric": {"nc2_etf": "gnc2_spread_weights"}}),
    ),
    "sweep, fewer metrics of one experiment": sweep("vision", "language", columns=fewer_of_vision),
    "sweep, of an axis": partial(against_axis, "penalty.value", 0),
    "sweep, of an axis of many values": partial(against_axis, "penalty.value", 0, 7),
    "sweep, of an axis with zero": partial(against_axis, "data.noise", 2),
    "curves": curves("language"),
    "curves, all diverged": curves("dead"),
    "curves, diverged before the first row": curves("dead", lambda history: history.iloc[:0]),
    "curves, a loss far off": curves("language", far_off),
    "curves, nothing after epoch 0": curves(
        "dead", lambda history: history.query("epoch == 10").assign(epoch=0)
    ),
    "curves, with metrics": curves("language", with_metrics),
    "curves, of an own loop": curves(
        "language", lambda history: history.assign(fit=math.nan, penalty=math.nan)
    ),
    "curves, no test samples": curves("language", lambda history: history.assign(test_error=math.nan)),
    "curves, of vectors": curves(
        "language", lambda history: history.assign(train_error=math.nan, test_error=math.nan)
    ),
    "models": every_model,
    "layers": layers,
    "layers, no test samples": lambda: layers(runs=RUNS.assign(test_error=math.nan), labels=RN),
    "layers, three of them": lambda: layers(SHALLOW, RUNS[RUNS["depth"] == 5], RN),
    "layers, zeros": lambda: layers(values(TABLE, 0.0, "nc2_means", depth=2), labels=TF),
    "layers, rounding": lambda: layers(values(TABLE, 3e-16, "nc2_means"), labels=RN),
    "layers, errors of zero": lambda: layers(values(TABLE, 0.0, *SHARES), labels=RN),
    "layers, more classes than a simplex has": lambda: layers(
        TABLE.replace({"metric": {"nc2_means": "gnc2_spread_means"}}), labels=RN
    ),
    "layers, last alone": lambda: layers(LAST, labels=RN),
    "layers, a metric not measured": lambda: layers(UNMEASURED, labels=RN),
    "layers, nothing measured": lambda: layers(NOTHING),
    "layers, of vectors": lambda: layers(renamed(TABLE, "nrc1_variance", "intrinsic_dimension"), labels=RN),
    "layers, other data and target classes": lambda: layers(
        pd.concat(
            [
                TABLE,
                renamed(TABLE, "", "knn_auroc", "ood"),
                renamed(TABLE, "", "transfer_ncc_error_005", "target"),
            ]
        ),
        labels=RN,
    ),
    "splits": splits,
    "splits, no test samples": lambda: splits(runs=RUNS.assign(test_error=math.nan), labels=RN),
    "splits, no test samples of one": lambda: splits(
        runs=RUNS.assign(test_error=RUNS["test_error"].where(RUNS["experiment"] != "rn")),
        labels=dict(list(LAYER_LABELS.items())[:2]),
    ),
    "splits, whole depth out of sight": out_of_sight,
    "splits, errors of zero": lambda: splits(values(TABLE, 0.0, *SHARES), labels=RN),
    "splits, last alone": lambda: splits(LAST, labels=RN),
    "splits, a metric not measured": lambda: splits(UNMEASURED, labels=RN),
    "splits, nothing measured": lambda: splits(NOTHING),
    "maps": lambda: heat_maps(gram_of(RUNS), RUNS, LAYER_LABELS),
    "maps, more classes than a simplex has": lambda: heat_maps(gram_of(RUNS), RUNS, RN | TF, {"rn"}),
    "maps, two classes": maps_of_two_classes,
    "maps, nothing measured": lambda: heat_maps(gram_of(RUNS).iloc[:0], RUNS, LAYER_LABELS),
    "spectra": lambda: spectra(TABLE, RUNS, LAYER_LABELS),
    "spectra, uneven seeds": uneven_seeds,
    "spectra, orthogonal": lambda: spectra(TABLE, ORTHOGONAL, RN),
    "spectra, MSE with a bias": lambda: spectra(TABLE, ORTHOGONAL.assign(last_bias=True), RN),
    "spectra, a small value kept": lambda: spectra(values(TABLE, 1e-5, "singular_weights_003"), RUNS, RN),
    "spectra, more classes than a simplex has": lambda: spectra(TABLE, RUNS, RN | TF, {"rn"}),
    "spectra, of one target": lambda: spectra(
        TABLE.query("metric == 'singular_weights_001'"), RUNS, RN, {"rn"}
    ),
    "spectra, nothing measured": lambda: spectra(NOTHING, RUNS, LAYER_LABELS),
    **PAPER_CASES,
}  # fmt: skip


# What a reader sees


def stored(case: str) -> list[str]:
    """Return what the file has of a case: all its lines, or what differs from the figure that it varies."""
    lines, base = drawn(case), case.partition(",")[0]
    if base == case:
        return lines
    changes = [*difflib.unified_diff(drawn(base), lines, n=0, lineterm="")][2:]  # without file names
    return [line.partition(" +")[0] if line[0] == "@" else line[1:] for line in changes if line[0] != "-"]


@functools.cache
def drawn(case: str) -> list[str]:
    """Draw a case; the layout, which takes most of the time, moves nothing that is listed."""
    engine = Figure.get_layout_engine
    Figure.get_layout_engine = lambda self: None
    try:
        return list(contents(CASES[case]()))
    finally:
        Figure.get_layout_engine = engine


def contents(figure: Figure) -> Iterator[str]:
    """Yield a line of text for each panel, and for each thing in it; an x axis only where it is a new one."""
    size = figure.get_size_inches().round(3).tolist()
    yield f"{size} {figure.get_suptitle()} {figure.get_supxlabel()}".strip()
    for legend in figure.legends:
        for handle, text in zip(legend.legend_handles, legend.get_texts(), strict=True):
            yield f"key: {text.get_text()} {style_of(handle)}"
    x = ""
    for place, axes in enumerate(figure.axes):
        if not axes.get_visible():
            yield f"panel {place}: none"
            continue
        yield f"panel {place}: {axes.get_title()}"
        if (x_line := f"x: {_axis(axes, 'x')}") != x:
            yield x_line
        x = x_line
        yield f"y: {_axis(axes, 'y')}"
        yield from _inside(axes)


def _axis(axes: Axes, name: str) -> str:
    axis = getattr(axes, f"{name}axis")
    low, high = getattr(axes, f"get_{name}lim")()
    ticks = [tick for tick in axis.get_majorticklocs() if low <= tick <= high]
    labels = axis.get_major_formatter().format_ticks(ticks)
    minor = [tick for tick in axis.get_minorticklocs() if low <= tick <= high]
    powers = " ".join(labels).replace(r"\mathdefault", "")
    return f"{axis.get_label_text()!r} {axis.get_scale()} {numbers([low, high])}, {powers}, {len(minor)} more"


def _inside(axes: Axes) -> Iterator[str]:
    for line in axes.lines:
        if line.get_marker() != "_" and len(line.get_xdata()):  # the caps of bars
            name = "" if line.get_label().startswith("_") else f" {line.get_label()!r}"
            clipped = "" if line.get_clip_on() else " unclipped"
            x, y = numbers(line.get_xdata()), numbers(line.get_ydata())
            yield f"line{name} {style_of(line)}{clipped} x {x} y {y}"
    for marks in axes.collections:
        if isinstance(marks, PathCollection):
            faces = " ".join(to_hex(face) for face in np.unique(marks.get_facecolor(), axis=0))
            x, y = np.asarray(marks.get_offsets()).T
            yield f"dots {faces} x {numbers(np.unique(x))} y {numbers(y)}"
        elif isinstance(marks, LineCollection):
            yield f"bars {numbers([y for segment in marks.get_segments() for _, y in segment])}"
        elif axes.get_label() != "<colorbar>":
            heights = np.concatenate([path.vertices[:, 1] for path in marks.get_paths()])
            yield f"band {numbers([heights.min(), heights.max()])}"
    for bar in axes.patches:
        if isinstance(bar, Rectangle):
            yield f"bar {style_of(bar)} {numbers(bar.get_bbox().bounds)}"
    for image in axes.images:
        yield f"image {numbers(image.get_clim())} {numbers(image.get_array())}"
    for text in axes.texts:
        yield f"text {text.get_text()!r} at {numbers(text.get_position())}"
    legend = axes.get_legend()
    for text in legend.get_texts() if legend else ():
        yield f"legend {text.get_text()!r}"


def style_of(handle: Any) -> str:
    if isinstance(handle, Patch):
        return to_hex(handle.get_facecolor())
    if not isinstance(handle, Line2D):  # of a line with bars
        return to_hex(handle.get_color()[0])
    dashes = handle._unscaled_dash_pattern[1]
    marker = handle.get_marker() if isinstance(handle.get_marker(), str) else "shape"
    face = "hollow" if handle.get_markerfacecolor() in ("none", "white") else ""
    width = f"{handle.get_linewidth():g}" + (f" {list(dashes)}" if dashes else "")
    faint = f" alpha {handle.get_alpha():g}" if handle.get_alpha() else ""
    return f"{to_hex(handle.get_color())} {marker}{face} {width}{faint}"


def numbers(values: Any) -> str:
    """To three digits, so that rounding changes none."""
    flat = np.asarray(np.ma.filled(np.ma.asarray(values, dtype=float), math.nan)).ravel()
    return " ".join(f"{value:z.3g}" if abs(value) > 1e-12 or value != value else "0" for value in flat)


if __name__ == "__main__":
    everything = {case: stored(case) for case in CASES}
    STORED.write_text(json.dumps(everything, indent=0, ensure_ascii=False) + "\n", encoding="utf-8")
