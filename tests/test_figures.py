"""Figures, by reading back from the artists what a reader would see."""

import math
import re
from types import SimpleNamespace
from typing import get_args, get_type_hints

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot
from matplotlib.collections import PathCollection
from matplotlib.colors import to_rgb

from ncpipe.commands import plot
from ncpipe.config.params import Slopes
from ncpipe.config.specs import Data
from ncpipe.figures.depth_sweep import depth_sweep
from ncpipe.figures.labels import (
    DATA_NAMES,
    GAP_COLUMNS,
    Column,
    by_experiment,
    caption,
    paper_columns,
    row_label,
    slope_label,
)
from ncpipe.figures.reference_slopes import reference_slope_of
from ncpipe.figures.save import save_figure
from ncpipe.figures.style import FAINT, colour_of, paper_style
from ncpipe.figures.training_curves import training_curves
from ncpipe.figures.x_axis import BESIDE
from ncpipe.system.errors import InputError
from ncpipe.tables.keys import RUN
from ncpipe.tables.points import usable_points
from ncpipe.tables.slopes import loglog_slopes
from ncpipe.tables.summary import summarise

DEPTHS = (2, 5, 13, 34)
LABELS = {"vision": "L-RN1 on MNIST", "language": "L-T11 on IMDB", "dead": "L-RN2 on MNIST"}
SERIES = (
    ("nc1_trace_ratio", "train"),
    ("nc1_trace_ratio", "test"),
    ("nc2_etf", "weights"),
    ("nc2_identity", "weights"),
    ("nc3_cosine", "train"),
)


def made_runs():
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


def made_measurements(runs):
    generator = np.random.default_rng(0)
    parts = []
    for place, (metric, split) in enumerate(SERIES):
        value = 0.1 * 2.0**place * runs["depth"] ** -0.5 * 10 ** (0.05 * generator.standard_normal(len(runs)))
        parts.append(runs[RUN].assign(layer="last", split=split, metric=metric, value=value))
    return pd.concat(parts, ignore_index=True)


def made_history(runs):
    """A row each 10 epochs; unfinished runs end early in an infinite loss."""
    parts = []
    for name, depth, seed, finished in runs[[*RUN, "finished"]].itertuples(index=False, name=None):
        epoch = 10 * np.arange(1, 11 if finished else 6)
        loss = (1 + 0.1 * seed) * np.exp(-epoch / 20) + 1 / depth
        if not finished:
            loss[-1] = math.inf
        columns = {"epoch": epoch, "loss": loss, "fit": loss / 2, "penalty": 0 * epoch}
        errors = {"train_error": np.clip(1 - epoch / 50, 0, 1), "test_error": 0.1, "learning_rate": 0.01}
        parts.append(pd.DataFrame(columns | errors).assign(experiment=name, depth=depth, seed=seed))
    return pd.concat(parts, ignore_index=True)


def made_sweep(labels=LABELS, **options):
    runs = made_runs()
    return figure_of(made_measurements(runs), runs, labels, draws=200, **options)


def figure_of(table, runs, labels, draws=10, **options):
    slopes = loglog_slopes(table, runs, Slopes(seed=0, level=0.9))
    return depth_sweep(usable_points(table, runs), summarise(table, runs), slopes, runs, labels, **options)


@pytest.fixture(scope="module")
def sweep():
    return made_sweep()


@pytest.fixture(scope="module")
def panels(sweep):
    """Axes as rows of three."""
    return np.array(sweep.axes, dtype=object).reshape(3, 3)


def summary_of(experiment, metric, split):
    runs = made_runs()
    summary = summarise(made_measurements(runs), runs)
    return summary[
        (summary["experiment"] == experiment) & (summary["metric"] == metric) & (summary["split"] == split)
    ]


def notes(axes):
    """Texts in a panel, without a guide's power of L."""
    return [text for text in axes.texts if not text.get_text().startswith("$")]


def texts(axes):
    return [text.get_text() for text in notes(axes)]


def save_both(folder):
    """A depth sweep and training curves into a new folder."""
    folder.mkdir()
    runs = made_runs().query("experiment == 'language'")
    save_figure(made_sweep({"language": "x"}), folder, "sweep")
    save_figure(training_curves(made_history(runs), runs, "x"), folder, "curves")


# Depth sweep


@pytest.mark.parametrize(("column", "metric", "split"), [(0, *SERIES[0]), (1, *SERIES[2]), (2, *SERIES[4])])
def test_the_line_and_its_bars_are_the_summary(panels, column, metric, split):
    container = panels[0, column].containers[0]
    expected = summary_of("vision", metric, split)
    assert container.lines[0].get_xdata().tolist() == list(DEPTHS)
    assert container.lines[0].get_ydata() == pytest.approx(expected["log10_mean"])
    bars = [segment[:, 1] for segment in container.lines[2][0].get_segments()]
    assert [(high - low) / 2 for low, high in bars] == pytest.approx(expected["log10_std"])


def test_the_dashed_line_is_the_fit_and_the_legend_states_it(panels):
    runs = made_runs()
    slopes = loglog_slopes(made_measurements(runs), runs, Slopes(seed=0, level=0.9))
    fit = slopes.query("experiment == 'vision' and metric == 'nc3_cosine'").iloc[0]
    (entry,) = panels[0, 2].get_legend().get_texts()
    assert entry.get_text() == slope_label(fit["slope"], fit["low"], fit["high"])
    (line,) = [line for line in panels[0, 2].lines if line.get_label() == entry.get_text()]
    assert line.get_xdata().tolist() == [2, 34]
    assert line.get_ydata() == pytest.approx(fit["intercept"] + fit["slope"] * np.log10([2, 34]))


def test_a_rejected_line_is_dotted_with_a_dagger_that_the_key_explains(sweep, panels):
    """Red: the mark on every fit or on none, an entry in the key that nothing in the figure needs."""
    runs = made_runs()
    bent = made_measurements(runs)
    nc1 = (bent["metric"] == "nc1_trace_ratio") & (bent["depth"] == 5)
    bent.loc[nc1, "value"] *= 30
    slopes = loglog_slopes(bent, runs, Slopes(seed=0, level=0.95))
    labels = {"vision": LABELS["vision"]}
    figure = depth_sweep(usable_points(bent, runs), summarise(bent, runs), slopes, runs, labels)
    legends = [axes.get_legend() for axes in figure.axes]
    assert ["dagger" in legend.get_texts()[0].get_text() for legend in legends] == [True, False, False]
    bent_dashes, *others = [legend.get_lines()[0]._unscaled_dash_pattern for legend in legends]
    assert others[0] == others[1] != bent_dashes
    key = [text.get_text() for text in figure.legends[0].get_texts()]
    assert key[-1] == r"fit$^{\dagger}$, log-linearity rejected ($p < 0.05$)"
    assert not any("rejected" in text.get_text() for text in sweep.legends[0].get_texts())
    assert not any("dagger" in axes.get_legend().get_texts()[0].get_text() for axes in panels[:2].flat)


def test_the_depth_axis_is_logarithmic_with_the_swept_depths_as_its_only_ticks(panels):
    for axes in panels.flat:
        assert axes.get_xscale() == "log"
        assert [label.get_text() for label in axes.get_xticklabels()] == ["2", "5", "13", "34"]
        assert axes.get_xticks(minor=True).size == 0


def test_rows_are_labelled_with_their_converged_runs(panels):
    labels = [axes.get_ylabel().splitlines() for axes in panels[:, 0]]
    assert [lines[0] for lines in labels] == list(LABELS.values())
    assert [lines[-1] for lines in labels] == [f"{n} of 12 runs converged" for n in (12, 9, 0)]
    assert {axes.get_xlabel() for axes in panels[-1]} == {"depth $L$"}


def test_nc2_is_the_one_that_the_loss_asks_for(panels):
    assert "ETF" in panels[0, 1].get_title()
    assert "identity" in panels[1, 1].get_title()
    line = panels[1, 1].containers[0].lines[0].get_ydata(orig=False)
    assert np.allclose(line, summary_of("language", "nc2_identity", "weights")["log10_mean"], equal_nan=True)


def runs_in(axes):
    """Single runs of a panel: full and hollow ones as lists of (depth, height)."""
    full, hollow = ([], [])
    for dots in axes.collections:
        if isinstance(dots, PathCollection):
            points = [(x / BESIDE, y) for x, y in dots.get_offsets().tolist()]
            (hollow if to_rgb(dots.get_facecolor()[0]) == (1, 1, 1) else full).extend(points)
    return full, hollow


def covers_runs(box, axes):
    """Whether a single run lies under something with this extent on the canvas."""
    drawn = axes.transData.transform([point for kind in runs_in(axes) for point in kind])
    return any(box.contains(x, y) for x, y in drawn)


def test_runs_that_converged_are_full_and_the_others_hollow(sweep, panels):
    """Red: a run of the latter kind that is missing, full, or in a mean."""
    table = made_measurements(made_runs()).query("metric == 'nc1_trace_ratio' and split == 'train'")
    own = dict(iter(table.groupby("experiment")))
    for row, name in enumerate(LABELS):
        full, hollow = runs_in(panels[row, 0])
        converged = made_runs().query("experiment == @name")["converged"].to_numpy()
        points = np.stack([own[name]["depth"], np.log10(own[name]["value"])], 1)
        assert sorted(full) == [pytest.approx(point) for point in sorted(points[converged].tolist())]
        assert sorted(hollow) == [pytest.approx(point) for point in sorted(points[~converged].tolist())]
    assert "one that did not converge" in [text.get_text() for text in sweep.legends[0].get_texts()]
    whole = made_sweep({"vision": "x"})
    assert "one that did not converge" not in [text.get_text() for text in whole.legends[0].get_texts()]


def test_a_run_that_still_moves_is_hollow_and_in_the_mean():
    """Red: a hollow run that is left out, or one that is drawn as converged."""
    runs = made_runs().assign(selected=True)
    assert not runs["converged"].all()
    panel = figure_of(made_measurements(runs), runs, LABELS).axes[3]
    _, hollow = runs_in(panel)
    own = made_measurements(runs).query(
        "experiment == 'language' and metric == 'nc1_trace_ratio' and split == 'train'"
    )
    assert len(hollow) == (~runs.query("experiment == 'language'")["converged"]).sum() > 0
    means = np.log10(own["value"]).groupby(own["depth"]).mean()
    line = panel.get_lines()[0]
    assert line.get_ydata() == pytest.approx(means.to_numpy())


def test_the_key_has_only_what_is_drawn():
    def key_of(labels):
        return [text.get_text() for text in made_sweep(labels).legends[0].get_texts()]

    assert key_of({"dead": "x"}) == ["run that did not converge"]
    assert key_of({"vision": "x"}) == [
        "mean ± 1 std over seeds",
        "one run",
        "least-squares fit [90 % CI]",
        "slope of the bound for global optima",
    ]


def test_a_run_far_off_stands_at_the_edge_and_does_not_squeeze_the_others():
    runs = made_runs()
    table = made_measurements(runs)
    table.loc[(table["experiment"] == "language") & (table["depth"] == 13), "value"] = 1e30
    axes = figure_of(table, runs, {"language": "x"}).axes[0]
    full, hollow = runs_in(axes)
    heights = [y for _, y in full]
    low, high = axes.get_ylim()
    assert all(high > y > max(heights) for _, y in hollow)
    assert max(heights) - min(heights) > (high - low) / 4


def test_a_depth_without_any_measured_run_is_a_stated_gap(panels):
    runs = made_runs()
    table = made_measurements(runs)
    table = table[(table["experiment"] != "language") | (table["depth"] != 13)]
    figure = figure_of(table, runs, {"language": LABELS["language"]})
    (note,) = notes(figure.axes[0])
    assert (note.get_text(), note.get_position()[0]) == ("no run used", 13)
    assert texts(panels[0, 0]) == texts(panels[1, 0]) == []


def test_a_depth_without_converged_runs_is_a_gap_in_the_line(panels):
    assert np.isnan(panels[1, 0].containers[0].lines[0].get_ydata(orig=False)).tolist() == [
        False,
        False,
        True,
        False,
    ]


def test_no_line_goes_through_a_single_run():
    """Red: means of one run, joined as if they were some, which hides how little a trend rests on."""
    runs = made_runs().query("experiment == 'vision'")
    converged = runs["converged"] & ((runs["depth"] != 5) | (runs["seed"] == 0))
    runs = runs.assign(converged=converged, selected=converged)
    axes = figure_of(made_measurements(runs), runs, {"vision": "x"}).axes[0]
    drawn = axes.containers[0].lines[0].get_ydata(orig=False)
    assert np.isnan(drawn).tolist() == [False, True, False, False]
    assert len(runs_in(axes)[0]) == 10, "the run itself is there"


def test_a_power_that_two_seeds_leave_open_is_no_line():
    """Red: L^1.14 with an interval from -2.45 to 4.74, drawn as if it were a trend."""
    runs = made_runs().query("experiment == 'vision' and seed < 2")
    table = made_measurements(runs)
    table["value"] *= 10.0 ** np.where(table["seed"] == 0, 1, -1) ** (table["depth"] == 2)
    axes = figure_of(table, runs, {"vision": "x"}).axes[0]
    (entry,) = axes.get_legend().get_texts()
    assert re.fullmatch(r"\$L\^p\$, \$p \\in \[\{-?\d+\.\d\d\},\\,\{\d+\.\d\d\}\]\$", entry.get_text())
    assert not any(line.get_linestyle() == "--" for line in axes.lines)


def test_panels_of_a_metric_show_equally_many_decades_of_one_depth_axis():
    """Red: rows whose slopes look alike and are not; a flat row of a metric that elsewhere spans decades."""
    runs = made_runs().query("experiment != 'dead' and (experiment == 'vision' or depth < 34)")
    runs = runs.assign(converged=True, selected=True, finished=True)
    table = made_measurements(runs)
    steep = table["experiment"] == "vision"
    for power, alike in ((1.0, True), (9.0, False)):
        raised = table.assign(value=table["value"].where(~steep, table["value"] * table["depth"] ** -power))
        first, second = np.array(figure_of(raised, runs, dict(list(LABELS.items())[:2])).axes).reshape(2, 3)
        heights = [float(np.ptp(axes.get_ylim())) for axes in (first[0], second[0])]
        assert (heights[0] == pytest.approx(heights[1])) is alike
        assert first[0].get_xlim() == second[0].get_xlim()


def test_an_experiment_without_converged_runs_has_no_mean_no_fit_and_no_guide(panels):
    for axes in panels[2]:
        assert len(runs_in(axes)[1]) == 12
        assert not np.isfinite(axes.containers[0].lines[0].get_ydata(orig=False)).any()
        assert axes.get_legend() is None
        assert not axes.texts


def test_an_experiment_of_which_nothing_was_measured_says_so():
    runs = made_runs()
    table = made_measurements(runs).query("experiment != 'dead'")
    figure = figure_of(table, runs, {"dead": "x"})
    assert [texts(axes) for axes in figure.axes] == [["no run used"]] * 3


def test_columns_have_their_colours_in_every_row(panels):
    colours = [[to_rgb(axes.containers[0].lines[0].get_color()) for axes in panels[row]] for row in range(2)]
    assert colours[0] == colours[1]
    assert len(set(colours[0])) == 3


def test_no_legend_covers_data(sweep, panels):
    sweep.canvas.draw()
    for axes in panels[:2].flat:
        assert not covers_runs(axes.get_legend().get_window_extent(), axes)


def test_rows_and_columns_are_the_callers():
    column = Column("nc1_trace_ratio", "test")
    figure = made_sweep({"language": "x"}, columns=lambda loss_name, last_bias: (column,))
    (axes,) = figure.axes
    assert axes.get_title() == r"$\log_{10}$ NC1, test"
    expected = summary_of("language", "nc1_trace_ratio", "test")["log10_mean"]
    assert np.allclose(axes.containers[0].lines[0].get_ydata(orig=False), expected, equal_nan=True)


def test_rows_follow_the_order_of_the_sweep(monkeypatch):
    """In which params.yaml has the experiments. Red: rows in the order of the tables, which are sorted."""
    order = ["vision", "dead", "language"]
    runs = made_runs().assign(**USUAL).sort_values(RUN)
    table = made_measurements(runs)
    slopes = loglog_slopes(table, runs, Slopes(seed=0, level=0.9))
    tables = {
        "points": usable_points(table, runs),
        "summary": summarise(table, runs),
        "slopes": slopes,
        "runs": runs.assign(loss_gap=math.nan),
    }
    monkeypatch.setattr(
        plot, "load_params", lambda: SimpleNamespace(sweep=SimpleNamespace(experiments=order))
    )
    monkeypatch.setattr(plot, "read_table", lambda path, stage: tables[path.stem])
    figure = plot._figure("depth_sweep")
    labels = [axes.get_ylabel() for axes in figure.axes]
    assert [text.split("\n")[0] for text in labels if text] == order


def test_nothing_measured_at_all_still_makes_a_figure():
    runs = made_runs()
    nothing = made_measurements(runs).iloc[:0]
    figure = figure_of(nothing, runs, LABELS)
    assert len(figure.axes) == 9


def test_a_converged_depth_whose_values_are_zero_says_so():
    runs = made_runs()
    table = made_measurements(runs)
    table.loc[table["depth"] == 5, "value"] = 0.0
    figure = figure_of(table, runs, {"vision": "x"})
    assert texts(figure.axes[0]) == ["no usable value"]


# Guides


def guide_artists(axes):
    (line,) = [line for line in axes.lines if line.get_color() == FAINT]
    (note,) = [text for text in axes.texts if text.get_text().startswith("$")]
    return line, note


def guide_in(axes):
    """The grey triangle of a panel: x, y and what is written beside it."""
    line, note = guide_artists(axes)
    return line.get_xdata(), line.get_ydata(), note.get_text()


@pytest.mark.parametrize(
    ("place", "metric", "split", "power", "label"),
    [
        ((0, 0), "nc1_trace_ratio", "train", -1, "$L^{-1}$"),
        ((0, 1), "nc2_etf", "weights", -1 / 2, "$L^{-1/2}$"),
        ((0, 2), "nc3_cosine", "train", -1, "$L^{-1}$"),
        ((1, 0), "nc1_trace_ratio", "train", -1 / 2, "$L^{-1/2}$"),
        ((1, 1), "nc2_identity", "weights", -1 / 4, "$L^{-1/4}$"),
    ],
)
def test_a_guide_is_a_triangle_with_the_slope_of_the_bound(panels, place, metric, split, power, label):
    x, y, text = guide_in(panels[place])
    assert (y[1] - y[0]) / np.log10(x[1] / x[0]) == pytest.approx(power)
    assert (x[2], y[2]) == (x[0], y[1])  # the right angle
    assert (x[3], y[3]) == (x[0], y[0])
    assert text == label


def test_a_guide_is_in_a_corner_and_stands_for_no_level(panels):
    """Red: a line that begins at a mean, as if the bound were known there."""
    for axes in panels[:2].flat:
        x, y, _ = guide_in(axes)
        place = axes.transAxes.inverted().transform(axes.transData.transform(np.stack([x, y], 1)))
        assert place.min() > 0
        assert place[:, 0].max() < 0.3
        assert place[:, 1].max() < 0.4


def test_a_rising_curve_has_its_guide_on_the_right():
    runs = made_runs().query("experiment == 'vision'")
    table = made_measurements(runs)
    table["value"] = 1e-3 * runs["depth"].iloc[0] * table["depth"] ** 0.7 + 1e-5 * table["seed"]
    figure = figure_of(table, runs, {"vision": "x"})
    x, _, _ = guide_in(figure.axes[0])
    assert x.min() > 13


@pytest.mark.parametrize("power", [-0.7, -0.01, 0.0, 0.7])
def test_no_guide_covers_data(power):
    """Red: a triangle, or the white below what is written beside it, over runs that lie low in its corner."""
    runs = made_runs().query("experiment == 'vision'")
    table = made_measurements(runs)
    spread = 1 + 0.4 * (table["seed"] % 3 - 1)  # at every depth some far below the mean
    table["value"] = 1e-3 * spread * table["depth"] ** power
    figure = figure_of(table, runs, {"vision": "x"})
    figure.canvas.draw()
    for axes in figure.axes[:3]:
        line, note = guide_artists(axes)
        assert not covers_runs(line.get_window_extent(), axes)
        assert not covers_runs(note.get_bbox_patch().get_window_extent(), axes)


def test_a_bound_with_a_logarithm_begins_after_depth_one():
    """log L/L is 0 at L = 1, which has no place on a log axis: the slope is the mean one from L = 3 on."""
    runs = made_runs().query("experiment == 'vision'").replace({"depth": {2: 1, 5: 3}})
    runs = runs.assign(architecture="L-T12", penalty_rule="over_depth")
    table = made_measurements(runs)
    figure = figure_of(table, runs, {"vision": "x"})
    x, y, text = guide_in(figure.axes[0])
    ends = [math.log10(math.log(depth) / depth) for depth in (3, 34)]
    assert (y[1] - y[0]) / np.log10(x[1] / x[0]) == pytest.approx((ends[1] - ends[0]) / math.log10(34 / 3))
    assert text == r"$L^{-1}\,\log L$"


def test_a_bound_that_does_not_fall_gives_no_guide(panels, sweep):
    assert [text.get_text() for text in sweep.legends[0].get_texts()][
        -1
    ] == "slope of the bound for global optima"
    runs = made_runs()
    two_layers = made_sweep({"dead": "x"})  # lambda constant in L: the bound is log L
    assert not any("bound" in text.get_text() for text in two_layers.legends[0].get_texts())
    assert reference_slope_of("nc1_trace_ratio", runs.query("experiment == 'dead'")) is None
    assert reference_slope_of("nc4_mismatch", runs.query("experiment == 'vision'")) is None
    moving = runs.query("experiment == 'vision'").assign(penalty_rule="over_depth")
    assert reference_slope_of("loss_gap", moving.assign(last_strength=0.005 / moving["depth"])) is None
    assert reference_slope_of("loss_gap", moving).label == "$L^{-2}$"


def test_more_classes_than_a_simplex_has_have_gnc2_and_no_bound():
    """Red: an empty panel of NC2, or the slope of a bound whose conditions the study does not meet."""
    runs = made_runs().query("experiment == 'vision'").assign(bound="no closed-form optimum")
    table = made_measurements(runs).replace({"metric": {"nc2_etf": "gnc2_spread_weights"}})
    figure = figure_of(table, runs, {"vision": "x"})
    assert [axes.get_title() for axes in figure.axes] == [
        rf"$\log_{{10}}$ {name}" for name in ("NC1", "GNC2", "NC3")
    ]
    assert all(not texts(axes) and len(axes.texts) == 0 for axes in figure.axes)
    assert not any("bound" in text.get_text() for text in figure.legends[0].get_texts())
    own = runs.assign(bound="holds")
    assert reference_slope_of("nc1_trace_ratio", own)
    assert reference_slope_of("nc1_trace_ratio", runs) is None
    _, nc2, _ = paper_columns(runs.assign(experiment="other"), table)  # of which GNC2 was not measured
    assert nc2.metric == "nc2_etf"


def test_two_layer_blocks_have_a_logarithm():
    runs = made_runs().query("experiment == 'dead'").assign(penalty_rule="over_depth")
    gap, distance = (reference_slope_of(metric, runs) for metric in ("loss_gap", "nc2_etf"))
    depth = np.array([1, 2, 5, 34])
    assert gap.log10(depth) == pytest.approx([-math.inf, *np.log10(np.log(depth[1:]) / depth[1:])])
    assert distance.log10(depth[1:]) == pytest.approx(gap.log10(depth[1:]) / 2)
    assert gap.label == r"$L^{-1}\,\log L$"
    assert distance.label == r"$L^{-1/2}\,(\log L)^{1/2}$"


def test_the_gap_has_a_column_for_each_of_its_parts():
    assert [(c.metric, c.split) for c in GAP_COLUMNS] == [
        ("loss_gap", "train"),
        ("gap_gufm", "train"),
        ("inner_penalty", "weights"),
    ]


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
    ("change", "plain", "drawn"),
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
def test_labels_of_rows_and_titles(change, plain, drawn):
    """NaN is what a table read from a file has where there is no number."""
    run = USUAL | change
    assert row_label(run) == drawn
    network, rest = caption(run).split("\n")  # a title is wide enough for either
    assert f"{network}, {rest}".replace("$", "").replace("\\", "") == plain


def test_a_table_of_another_version_says_what_to_run_again():
    runs = pd.DataFrame([{"experiment": "b"} | USUAL, {"experiment": "a"} | USUAL])
    assert list(by_experiment(row_label, runs)) == ["b", "a"]
    with pytest.raises(InputError, match="runs: no column 'source'; run the stages measure and"):
        by_experiment(row_label, runs.drop(columns="source"))


def test_experiments_whose_labels_would_be_the_same_are_named():
    """Red: rows that nothing tells apart, or a name where the label says enough."""
    other = USUAL | {"loss_name": "mse"}
    rows = [{"experiment": name} | run for name, run in (("a", USUAL), ("b", other), ("c", USUAL))]
    labels = by_experiment(row_label, pd.DataFrame(rows))
    assert [text.split("\n")[0] for text in labels.values()] == ["a", "L-RN1 on CIFAR-10", "c"]
    assert labels["a"].removeprefix("a") == labels["c"].removeprefix("c")
    named = by_experiment(row_label, pd.DataFrame(rows), {"a": "first", "b": "second"})
    assert [text.split("\n")[0] for text in named.values()] == ["first", "L-RN1 on CIFAR-10", "c"]


def test_each_data_set_has_its_own_name():
    """Red: digits called MNIST; a source that figures call by its key."""
    sources = {source for spec in get_args(Data) for source in get_args(get_type_hints(spec)["source"])}
    assert set(DATA_NAMES) == sources
    assert len(set(DATA_NAMES.values())) == len(DATA_NAMES)
    own = {"arrays", "free", "markov", "modular", "text"}  # the others have the names of their keys
    for source in sources - own:
        assert re.sub(r"\W", "", DATA_NAMES[source]).lower() == source.replace("_", "")


@pytest.mark.parametrize(
    ("loss_name", "last_bias", "metric"),
    [
        ("ce", False, "nc2_etf"),
        ("ce", True, "nc2_etf"),
        ("mse", True, "nc2_etf"),
        ("mse", False, "nc2_identity"),
    ],
)
def test_nc2_by_loss_and_bias(loss_name, last_bias, metric):
    runs = made_runs().assign(loss_name=loss_name, last_bias=last_bias)
    columns = paper_columns(runs, pd.DataFrame(columns=["experiment", "metric"]))
    assert [column.metric for column in columns] == ["nc1_trace_ratio", metric, "nc3_cosine"]


def test_slope_labels():
    assert slope_label(-0.424, -0.47, -0.001) == r"$L^{-0.42}$ $[{-0.47},\,{0.00}]$"
    assert slope_label(0.5, math.nan, math.nan) == "$L^{0.50}$"


# Training curves


@pytest.fixture(scope="module")
def curves():
    runs = made_runs().query("experiment == 'language'")
    history = made_history(made_runs()).query("experiment == 'language'")
    return training_curves(history, runs, "L-T11 on IMDB\n$\\lambda = 0.005$"), history


def test_four_panels_with_log_axes_where_they_can_be(curves):
    figure, _ = curves
    loss, fit, penalty, error = figure.axes
    assert [axes.get_title() for axes in figure.axes] == [
        "regularised loss",
        "MSE",
        "penalty",
        "error",
    ]
    assert [axes.get_yscale() for axes in (loss, fit, error)] == ["log", "log", "linear"]
    assert penalty.get_yscale() == "linear"  # every penalty is 0 here
    assert "\n" not in figure.get_suptitle()


def test_the_epoch_has_a_logarithmic_axis_that_keeps_the_start(curves):
    """Red: a linear one, on which all that happens is at its left end; a logarithm of epoch 0."""
    figure, history = curves
    for axes in figure.axes:
        assert axes.get_xscale() == "symlog"
        assert axes.get_xlim()[0] <= 0 < history["epoch"].max() <= axes.get_xlim()[1]
    places = figure.axes[0].transData.transform([(x, 1) for x in (0, 10, 20, 40)])[:, 0]
    gaps = np.diff(places)
    assert gaps[1] == pytest.approx(gaps[2])
    assert gaps[0] < 2 * gaps[1]


def test_the_gap_and_its_parts_have_colours_of_their_own():
    """Red: the gap in the colour of NC1, beside it on a page."""
    runs, nothing = made_runs(), pd.DataFrame(columns=["experiment", "metric"])
    columns = [*paper_columns(runs, nothing), *GAP_COLUMNS]
    assert len({colour_of(column.metric, i % 3) for i, column in enumerate(columns)}) == 6
    assert colour_of("nc2_identity", 0) == colour_of("nc2_etf", 2)


def test_runs_and_the_arithmetic_mean_of_the_finished_ones_are_drawn(curves):
    figure, history = curves
    lines = [line for line in figure.axes[0].lines if line.get_marker() != "x"]
    faint = [line for line in lines if line.get_alpha()]
    strong = [line for line in lines if not line.get_alpha()]
    assert (len(faint), len(strong)) == (12, 3)
    own = history[history["depth"] == 2]
    assert strong[0].get_ydata() == pytest.approx(own.groupby("epoch")["loss"].mean())
    first = own[own["seed"] == 0]
    assert faint[0].get_ydata() == pytest.approx(first["loss"])


def test_diverged_runs_end_in_a_cross_at_their_last_finite_value(curves):
    figure, history = curves
    crosses = [line for line in figure.axes[0].lines if line.get_marker() == "x"]
    assert [cross.get_xdata()[0] for cross in crosses] == [40] * 3
    expected = history[(history["depth"] == 13) & (history["epoch"] == 40)]["loss"]
    assert [cross.get_ydata()[0] for cross in crosses] == pytest.approx(expected)


def test_the_legend_names_depths_errors_and_divergence(curves):
    figure, _ = curves
    entries = [text.get_text() for text in figure.legends[0].get_texts()]
    assert entries == [
        *(f"$L={depth}$" for depth in DEPTHS),
        "one run",
        "diverged",
    ]
    splits = figure.axes[3].get_legend()  # beside what they explain
    assert [text.get_text() for text in splits.get_texts()] == ["train", "test"]
    assert all(axes.get_legend() is None for axes in figure.axes[:3])
    handles = figure.legends[0].legend_handles[: len(DEPTHS)]
    assert len({handle.get_color() for handle in handles}) == len(DEPTHS)


def test_finished_runs_set_the_limits_and_a_cross_beyond_them_stands_at_the_edge():
    runs = made_runs().query("experiment == 'language'")
    history = made_history(runs)
    history.loc[(history["depth"] == 13) & (history["epoch"] == 40), "loss"] = 1e12
    axes = training_curves(history, runs, "x").axes[0]
    assert axes.get_ylim()[1] < 10
    crosses = [line for line in axes.lines if line.get_marker() == "x"]
    assert {cross.get_ydata()[0] for cross in crosses} == {axes.get_ylim()[1]}


def test_an_experiment_whose_runs_all_diverged_is_drawn():
    runs = made_runs().query("experiment == 'dead'")
    figure = training_curves(made_history(runs), runs, "dead")
    assert figure.axes[1].get_title() == "cross-entropy"
    assert sum(line.get_marker() == "x" for line in figure.axes[0].lines) == 12


def test_no_epoch_is_negative_where_all_runs_diverged_before_the_first_logged_one():
    """Red: ticks from -0.04 to 0.04."""
    runs = made_runs().query("experiment == 'dead'")
    history = made_history(runs).query("epoch == 10").assign(epoch=0)
    axis = training_curves(history, runs, "dead").axes[0].xaxis
    assert axis.get_majorticklocs().tolist() == [0]


# Style and files


def test_drawing_and_saving_leave_the_settings_alone(tmp_path):
    before = dict(matplotlib.rcParams)
    save_figure(made_sweep({"vision": "x"}), tmp_path, "x")
    assert dict(matplotlib.rcParams) == before
    with pytest.raises(RuntimeError), paper_style():
        raise RuntimeError
    assert dict(matplotlib.rcParams) == before


def test_a_users_own_settings_do_not_reach_the_figure(tmp_path):
    plain = save_figure(made_sweep({"vision": "x"}), tmp_path, "plain")
    with matplotlib.rc_context({"font.size": 20, "axes.facecolor": "red", "svg.hashsalt": "other"}):
        other = save_figure(made_sweep({"vision": "x"}), tmp_path, "other")
    assert [path.read_bytes() for path in plain] == [path.read_bytes() for path in other]


def test_files_hold_no_date_and_no_program(tmp_path):
    png, svg = save_figure(made_sweep({"vision": "x"}), tmp_path, "x")
    text = svg.read_text(encoding="utf-8")
    assert "<dc:date>" not in text
    assert "atplotlib v" not in text
    assert b"tEXtSoftware" not in png.read_bytes()


def test_no_figure_is_left_to_pyplot():
    made_sweep({"vision": "x"})
    assert pyplot.get_fignums() == []
