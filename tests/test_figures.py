"""Figures: every thing in them is that of `figure_cases.json`, and the tables' where that can be said."""

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import matplotlib
import numpy as np
import pandas as pd
import pytest
from figure_cases import CASES, DEPTHS, STORED, last_measurements, scaled, stored, sweep, sweep_runs
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure

from ncpipe.config.experiment import Data
from ncpipe.config.params import Slopes
from ncpipe.figures import drawing
from ncpipe.figures.claim_panels import claim_panels
from ncpipe.figures.labels import (
    DATA_NAMES,
    by_experiment,
    caption,
    row_label,
)
from ncpipe.figures.reference_slopes import reference_slope_of
from ncpipe.figures.save import save_figure
from ncpipe.figures.style import FAINT, INK, depth_colours, paper_style
from ncpipe.figures.sweep import sweep_figures
from ncpipe.papers.s24.figures.low_rank_series import draw_band
from ncpipe.system.artifacts import sha256_of
from ncpipe.system.errors import InputError
from ncpipe.tables.headlines import nc2_of
from ncpipe.tables.keys import RUN
from ncpipe.tables.points import usable_points
from ncpipe.tables.slopes import loglog_slopes
from ncpipe.tables.summary import summarise

KNOWN = json.loads(STORED.read_text(encoding="utf-8"))
SAVED = "sweep, one experiment"


@pytest.mark.parametrize("case", CASES)
def test_a_figure_has_the_words_lines_and_axes_that_are_stored(case: str) -> None:
    """If the change is meant: `python tests/figure_cases.py`, and look at the difference."""
    assert stored(case) == KNOWN[case]


# What the tables say


def test_rows_follow_the_order_of_the_sweep() -> None:
    """In which params.yaml has the experiments. Red: rows in the order of the tables, which are sorted."""
    order = ["vision", "dead", "language"]
    runs = sweep_runs().assign(**USUAL, loss_gap=math.nan).sort_values(RUN)
    table = last_measurements(runs)
    slopes = loglog_slopes(table, runs, Slopes(seed=0, level=0.9))
    tables = {"points": usable_points(table, runs), "summary": summarise(table, runs), "slopes": slopes}
    figure = sweep_figures(order, (tables | {"runs": runs}).__getitem__)["depth_sweep"]()
    labels = [axes.get_ylabel() for axes in figure.axes]
    assert [text.split("\n")[0] for text in labels if text] == order


def test_no_mean_stands_between_two_groups_of_runs() -> None:
    """Red: a marker, a bar or a line through the empty middle of two groups."""
    depth = max(DEPTHS)

    def four(runs: pd.DataFrame) -> pd.DataFrame:
        return pd.concat([runs, runs[runs["seed"] == 0].assign(seed=3)], ignore_index=True)

    def apart(rows: pd.DataFrame) -> Any:
        return (
            (1 + 0.01 * rows["seed"])
            * 10.0 ** -((rows["depth"] == depth) * (rows["seed"] % 2))
            / rows["value"]
        )

    figure = sweep("vision", runs=four, table=scaled("experiment == 'vision'", apart))()
    for axes in figure.axes:
        line = axes.lines[0]
        drawn = dict(zip(*line.get_data(), strict=True))
        assert math.isnan(drawn[depth])
        assert not any(math.isnan(y) for x, y in drawn.items() if x != depth)
        shown = [offset for dots in axes.collections if isinstance(dots, PathCollection)
                 for offset in dots.get_offsets()]  # fmt: skip
        assert sum(x > depth for x, _ in shown) == 4
    assert "no mean: runs in two groups" in [text.get_text() for text in figure.legends[0].get_texts()]


# Where things stand


def below(artist: Any, axes: Axes) -> Iterator[tuple[float, float]]:
    """Single runs that lie under something on the canvas."""
    box = artist.get_window_extent()
    for dots in axes.collections:
        if isinstance(dots, PathCollection):
            for x, y in axes.transData.transform(dots.get_offsets()):
                if box.contains(x, y):
                    yield x, y


def guide_in(axes: Axes) -> tuple[Any, Any]:
    """The grey triangle of a panel, and what is written beside it."""
    (line,) = [line for line in axes.lines if line.get_color() == FAINT]
    (note,) = [text for text in axes.texts if text.get_text().startswith("$")]
    return line, note


@pytest.mark.parametrize("power", [-0.7, 0.7])
def test_no_guide_and_no_legend_covers_data(power: float) -> None:
    """Red: a triangle, or the white below what is written beside it, over runs that lie low in its corner."""

    def spread(rows: pd.DataFrame) -> Any:  # at every depth some far below the mean
        return 1e-3 * (1 + 0.4 * (rows["seed"] - 1)) * rows["depth"] ** power / rows["value"]

    figure = sweep("vision", table=scaled("experiment == 'vision'", spread))()
    figure.canvas.draw()
    for axes in figure.axes:
        line, note = guide_in(axes)
        for artist in (line, note.get_bbox_patch(), axes.get_legend()):
            assert not list(below(artist, axes))


def test_bounds_that_do_not_fall_or_hold_have_no_slope() -> None:
    runs = sweep_runs()
    vision, dead = (runs.query("experiment == @name") for name in ("vision", "dead"))
    assert reference_slope_of("nc1_trace_ratio", vision)
    assert reference_slope_of("nc1_trace_ratio", dead) is None  # lambda constant in L: the bound is log L
    assert reference_slope_of("nc4_mismatch", vision) is None
    assert reference_slope_of("nc1_trace_ratio", vision.assign(bound="no closed-form optimum")) is None
    biased = vision.assign(loss_name="mse", last_bias=True)
    assert reference_slope_of("loss_gap", biased)
    # The least loss with a penalised bias is higher at every depth.
    for metric in ("loss_gap", "nc1_trace_ratio"):
        assert reference_slope_of(metric, biased.assign(penalty_scope="all")) is None
    moving = vision.assign(penalty_rule="over_depth")
    assert reference_slope_of("loss_gap", moving.assign(last_strength=0.005 / moving["depth"])) is None
    assert reference_slope_of("loss_gap", moving).label == "$L^{-2}$"
    distance = reference_slope_of("nc2_etf", dead.assign(penalty_rule="over_depth"))
    assert distance.label == r"$L^{-1/2}\,(\log L)^{1/2}$"


# Labels


NETWORK = {"architecture": "L-RN1", "norm": "post", "source": "cifar10", "initialisation": "normal"}
PENALTY = {
    "penalty_rule": "constant",
    "penalty_value": 0.005,
    "penalty_last_layer": None,
    "penalty_biases": False,
}
USUAL = NETWORK | PENALTY | {"loss_name": "ce"}


@pytest.mark.parametrize(
    ("change", "plain", "label"),
    [
        ({}, "L-RN1 on CIFAR-10, lambda = 0.005", "L-RN1 on CIFAR-10\n$\\lambda = 0.005$"),
        (
            {"architecture": "L-T11", "norm": "pre", "source": "imdb", "penalty_last_layer": math.nan},
            "pre-LN L-T11 on IMDB, lambda = 0.005",
            "pre-LN L-T11 on IMDB\n$\\lambda = 0.005$",
        ),
        (
            {"source": "gaussian_mixture", "penalty_rule": "over_depth", "penalty_last_layer": 0.003},
            "L-RN1 on Gaussian mixture, lambda = 0.005/L, lambda_L = 0.003",
            "L-RN1 on\nGaussian mixture\n$\\lambda = 0.005/L$, $\\lambda_L = 0.003$",
        ),
        (
            {"loss_name": "mse", "initialisation": "construction", "penalty_biases": True},
            "L-RN1 on CIFAR-10, lambda = 0.005, biases too, MSE, built start",
            "L-RN1 on CIFAR-10\n$\\lambda = 0.005$, biases too,\nMSE, built start",
        ),
    ],
)
def test_labels_of_rows_and_titles(change: dict[str, Any], plain: str, label: str) -> None:
    """NaN is what a table read from a file has where there is no number."""
    run = USUAL | change
    assert row_label(run) == label
    network, rest = caption(run).split("\n")  # a title is wide enough for either
    assert f"{network}, {rest}".replace("$", "").replace("\\", "") == plain


def test_experiments_whose_labels_would_be_the_same_are_named() -> None:
    """Red: rows that nothing tells apart, or a name where the label says enough; `resnet on own loaders`,
    where `about` says what the network and its images are."""
    with_mse = USUAL | {"loss_name": "mse"}
    rows = [{"experiment": name} | run for name, run in (("a", USUAL), ("b", with_mse), ("c", USUAL))]
    labels = by_experiment(row_label, pd.DataFrame(rows))
    assert [text.split("\n")[0] for text in labels.values()] == ["a", "L-RN1 on CIFAR-10", "c"]
    assert labels["a"].removeprefix("a") == labels["c"].removeprefix("c")
    named = by_experiment(row_label, pd.DataFrame(rows), {"a": "first", "b": "second"})
    assert [text.split("\n")[0] for text in named.values()] == ["first", "L-RN1 on CIFAR-10", "c"]
    with pytest.raises(InputError, match="runs: no column 'source'; run the stages measure and"):
        by_experiment(row_label, pd.DataFrame(rows).drop(columns="source"))
    table = pd.DataFrame(rows).assign(source=["own loaders", "digits", "mnist"])
    named = by_experiment(row_label, table, {"a": "ResNet on own images", "b": "never"})
    assert [text.split("\n")[0] for text in named.values()] == [
        "ResNet on own images",
        "L-RN1 on digits",
        "L-RN1 on MNIST",
    ]


def test_each_data_set_has_its_own_name() -> None:
    """Red: digits called MNIST; a source that figures call by its key."""
    sources = {source for spec in get_args(Data) for source in get_args(get_type_hints(spec)["source"])}
    assert set(DATA_NAMES) == sources
    assert len(set(DATA_NAMES.values())) == len(DATA_NAMES)
    renamed = {"arrays", "free", "markov", "modular", "text"}  # the others have the names of their keys
    for source in sources - renamed:
        assert re.sub(r"\W", "", DATA_NAMES[source]).lower() == source.replace("_", "")


def test_nc2_is_the_identity_for_mse_without_a_bias_and_else_a_simplex() -> None:
    names = {(loss, bias): nc2_of(loss, bias) for loss in ("ce", "mse") for bias in (True, False)}
    assert names == dict.fromkeys(names, "nc2_etf") | {("mse", False): "nc2_identity"}


# Files


def save_one(folder: Path) -> None:
    folder.mkdir()
    save_figure(CASES[SAVED](), folder, "saved")


def test_another_process_writes_the_same_bytes_without_torch(tmp_path: Path) -> None:
    """With its own hash seed, under which sets of names have another order; no date, and no program."""
    here, there = tmp_path / "here", tmp_path / "there"
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1])\n"
        "import figure_cases, test_figures; from ncpipe.figures import save; save.DPI = 20\n"
        "test_figures.save_one(Path(sys.argv[2]))\n"
        "assert not {'torch', 'dvc', 'typer'} & set(sys.modules)"
    )
    command = [sys.executable, "-c", code, str(Path(__file__).parent), str(there)]
    subprocess.run(command, check=True, env=os.environ | {"PYTHONHASHSEED": "1"})
    save_one(here)
    names = sorted(path.name for path in here.iterdir())
    assert names == ["saved.png", "saved.svg"]
    assert [sha256_of(here / name) for name in names] == [sha256_of(there / name) for name in names]
    for path in here.iterdir():
        said = path.read_bytes()
        assert not any(word in said for word in (b"<dc:date>", b"atplotlib v", b"tEXtSoftware"))


def test_settings_neither_reach_a_figure_nor_are_left_changed(tmp_path: Path) -> None:
    def saved(name: str) -> list[bytes]:
        figure: Figure = CASES["sweep, one experiment"]()
        return [path.read_bytes() for path in save_figure(figure, tmp_path, name)]

    before = dict(matplotlib.rcParams)
    plain = saved("plain")
    with matplotlib.rc_context({"font.size": 20, "axes.facecolor": "red", "svg.hashsalt": "other"}):
        assert saved("other") == plain
    with pytest.raises(RuntimeError), paper_style():
        raise RuntimeError
    assert dict(matplotlib.rcParams) == before
    assert pyplot.get_fignums() == []


def notes_of(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.get_legend().get_texts()]


def fitted(figure: Figure) -> list[bool]:
    """Whether each panel has a line of two points in ink, its fit."""
    return [
        any(len(line.get_xdata()) == 2 and line.get_color() == INK for line in axes.lines)
        for axes in figure.axes
    ]


def test_a_fit_is_left_out_where_the_means_turn_back_or_are_rounding() -> None:
    """Red: a power through a U; a power of values that float32 leaves of two opposite rows."""

    def bent(rows: pd.DataFrame) -> Any:
        means = {2: 1.0, 5: 0.01, 13: 0.011, 34: 0.05}
        return rows["depth"].map(means) * (1 + 0.01 * rows["seed"]) / rows["value"]

    plain = sweep("vision")()
    turned = sweep("vision", table=scaled("experiment == 'vision'", bent))()
    small = sweep("vision", table=scaled("metric == 'nc2_etf'", 1e-6))()
    assert fitted(plain) == [True, True, True]
    assert notes_of(turned) == ["turns back: no power" + r"$^{\dagger}$"] * 3
    assert fitted(turned) == [False, False, False]
    assert notes_of(small)[1] == "size of float32 rounding"
    assert fitted(small) == [True, False, True]


def test_a_band_stays_within_the_runs() -> None:
    """Red: a band of shares below 0, where one run of many is above it."""
    table = pd.DataFrame({"x": [1] * 5 + [2] * 5, "y": [0.0, 0, 0, 0, 1, 0.2, 0.3, 0.4, 0.5, 0.6]})
    axes = Figure().subplots()
    draw_band(axes, table, "x", "y", (0.0, 0.0, 0.0))
    (band,) = axes.collections
    corners = band.get_paths()[0].vertices
    assert corners[:, 1].min() == 0
    spread = np.std([0.2, 0.3, 0.4, 0.5, 0.6], ddof=1)
    assert {round(y, 6) for x, y in corners if x == 2} == {round(0.4 - spread, 6), round(0.4 + spread, 6)}


def test_marks_have_the_colour_of_their_depth_and_names_lie_on_rows() -> None:
    """Red: depth left to the reader's guess; slanted names that collide; an axis with one number."""
    row = {"series": "s", "metric": "nc1_trace_ratio", "split": "train", "xlabel": "", "name": "", "seed": 0}
    row |= {"verdict": "", "x": math.nan}
    values = {2: 0.5, 3: 0.2, 8: 0.03}
    by_depth = {"panel": "p", "kind": "number", "xlabel": "L"}
    along = {"panel": "q", "kind": "metric", "metric": "knn_auroc", "xlabel": "nc1_trace_ratio", "value": 0.9}
    names = {"one, of two lines": 0.1, "another": 0.2}
    points = [
        *(row | by_depth | {"x": depth, "value": value} for depth, value in values.items()),
        *(row | along | {"x": value} for value in values.values()),
        *(row | {"panel": "r", "kind": "place", "name": name, "value": names[name]} for name in names),
    ]
    figure = claim_panels(pd.DataFrame(points), {})
    depths, scatter, rows = figure.axes
    (dots,) = scatter.collections
    assert [tuple(colour[:3]) for colour in dots.get_facecolors()] == list(depth_colours(values).values())
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["$L = 2$", "$L = 3$", "$L = 8$"]
    assert [label.get_text() for label in rows.get_yticklabels()] == ["one,\nof two lines", "another"]
    assert rows.lines[0].get_xdata().tolist() == list(names.values())
    figure.canvas.draw()
    assert {"0.05", "0.1", "0.2"} <= {label.get_text() for label in depths.get_yticklabels()}


@pytest.mark.parametrize("title", ["weights $W_{L$", r"$\foo$ and more"])
def test_a_formula_that_cannot_be_drawn_is_one_line(title: str) -> None:
    """Red: matplotlib's traceback at the end of a sweep, from a label or a panel's title."""
    with (
        pytest.raises(InputError, match="a formula that cannot be drawn; close its braces"),
        drawing.panel_grid(1, 1, 1.0) as (_, grid),
    ):
        grid[0].set_title(title)
