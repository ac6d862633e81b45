"""Figures by layer, split and class, by reading back from the artists what a reader would see."""

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from made_tables import places_of
from matplotlib.colors import to_rgb
from test_figures import save_both

from ncpipe.figures.heat_maps import heat_maps
from ncpipe.figures.layer_profiles import layer_profiles
from ncpipe.figures.save import save_figure
from ncpipe.figures.spectra import spectra
from ncpipe.figures.style import colour_of, depth_colours
from ncpipe.figures.train_test import train_against_test
from ncpipe.system.artifacts import sha256_of
from ncpipe.tables.keys import RUN
from ncpipe.tables.profiles import effective_depths, layer_errors, layer_profile, separation_law

DEPTHS = (2, 5, 12)
CLASSES = 4
LABELS = {"rn": "L-RN1 on MNIST", "tf": "L-T11 on IMDB", "dead": "L-RN2 on MNIST"}
ROWS = {"rn": 0, "tf": 1, "dead": 2}


def made_runs():
    rows = [(name, depth, seed) for name in LABELS for depth in DEPTHS for seed in range(3)]
    runs = pd.DataFrame(rows, columns=RUN).assign(loss_name="ce", last_bias=False)
    failed = (runs["experiment"] == "dead") | ((runs["experiment"] == "tf") & (runs["depth"] == 12))
    failed |= (runs["experiment"] == "rn") & (runs["seed"] == 0)
    return runs.assign(converged=~failed, selected=~failed, test_error=0.1)


def layers_of(experiment, depth):
    if experiment == "tf":
        return ["embedding", *(f"{half}{i}" for i in range(1, depth + 1) for half in "AB"), "last"]
    return [*(f"X{i}" for i in range(1, depth)), "last"]


def made_measurements(runs):
    generator = np.random.default_rng(0)
    rows = []
    for name, depth, seed in runs[RUN].itertuples(index=False, name=None):
        layers = layers_of(name, depth)
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


def made_gram(runs, classes=CLASSES):
    rows = []
    for key in runs[RUN].itertuples(index=False, name=None):
        for matrix in ("means", "duality"):
            rows += [
                (*key, matrix, i, j, cosine(*key[1:], matrix, i, j)) for i, j in np.ndindex(classes, classes)
            ]
    table = pd.DataFrame(rows, columns=[*RUN, "matrix", "row", "column", "value"])
    return table.sample(frac=1, random_state=0)


def cosine(depth, seed, matrix, i, j):
    """Not symmetric for `duality`; of no particular geometry."""
    if i == j:
        return 1.0 if matrix == "means" else 0.9
    return -1 / 3 + (0.1 * (i - j) if matrix == "duality" else 0.02 * (i + j)) / depth + 0.01 * seed


RUNS = made_runs()
TABLE = made_measurements(RUNS)
PROFILE = layer_profile(TABLE, places_of(TABLE), RUNS)
EMPTY = TABLE.iloc[:0]


def profiles_figure(table=TABLE, runs=RUNS, labels=LABELS):
    return layer_profiles(
        layer_profile(table, places_of(table), runs),
        separation_law(table, places_of(table), runs),
        runs,
        labels,
    )


def split_figure(table=TABLE, runs=RUNS, labels=LABELS):
    return train_against_test(
        layer_profile(table, places_of(table), runs),
        effective_depths(layer_errors(table, places_of(table), runs), runs, 0.0),
        runs,
        labels,
    )


def save_all(folder):
    """Every figure of a sweep into a new folder."""
    save_both(folder)
    labels = {"tf": "x"}
    save_figure(profiles_figure(labels=labels), folder, "layers")
    save_figure(split_figure(labels=labels), folder, "train_test")
    save_figure(heat_maps(made_gram(RUNS), RUNS, labels), folder, "heat_maps")
    save_figure(spectra(TABLE, RUNS, labels), folder, "spectra")


def texts(axes):
    return [text.get_text() for text in axes.texts]


def profile_of(experiment, metric, split="train", **where):
    rows = PROFILE.query("experiment == @experiment and metric == @metric and split == @split")
    for column, value in where.items():
        rows = rows[rows[column] == value]
    return rows


@pytest.fixture(scope="module")
def profiles():
    figure = profiles_figure()
    return figure, np.array(figure.axes, dtype=object).reshape(3, 3)


@pytest.fixture(scope="module")
def splits():
    figure = split_figure()
    return figure, np.array(figure.axes, dtype=object).reshape(3, 4)


# Layer profiles


@pytest.mark.parametrize("experiment", ["rn", "tf"])
@pytest.mark.parametrize(("column", "metric"), [(0, "nc1_trace_ratio"), (1, "nc2_means")])
def test_lines_are_the_profile_on_relative_positions(profiles, experiment, column, metric):
    depths = DEPTHS if experiment == "rn" else DEPTHS[:2]
    lines = profiles[1][ROWS[experiment], column].lines[: len(depths)]
    for line, depth in zip(lines, depths, strict=True):
        expected = profile_of(experiment, metric, depth=depth)
        assert line.get_ydata() == pytest.approx(expected["log10_mean"])
        assert line.get_xdata() == pytest.approx(expected["position"] / expected["position"].max())
        assert line.get_xdata()[-1] == 1
        assert to_rgb(line.get_color()) == pytest.approx(depth_colours(DEPTHS)[depth])


def test_a_resnet_starts_at_its_first_of_l_layers_and_a_transformer_at_0(profiles):
    starts = [[line.get_xdata()[0] for line in profiles[1][row, 1].lines] for row in (0, 1)]
    assert starts == [pytest.approx([1 / depth for depth in DEPTHS]), [0, 0]]


def test_errors_are_plain_means_solid_on_train_and_dashed_on_test(profiles):
    lines = profiles[1][0, 2].lines
    assert len(lines) == 2 * len(DEPTHS)
    for split, solid in (("train", True), ("test", False)):
        own = [line for line in lines if (line.get_linestyle() == "-") == solid]
        for line, depth in zip(own, DEPTHS, strict=True):
            assert line.get_ydata() == pytest.approx(
                profile_of("rn", "ncc_error", split, depth=depth)["mean"]
            )


def test_bands_are_one_standard_deviation(profiles):
    expected = profile_of("rn", "nc1_trace_ratio", depth=12)
    corners = profiles[1][0, 0].collections[2].get_paths()[0].vertices[:, 1]
    assert corners.max() == pytest.approx((expected["log10_mean"] + expected["log10_std"]).max())
    assert corners.min() == pytest.approx((expected["log10_mean"] - expected["log10_std"]).min())


@pytest.mark.parametrize(("experiment", "depth"), [("rn", 12), ("tf", 5)])
def test_the_law_of_the_deepest_converged_network_is_drawn_and_stated(profiles, experiment, depth):
    axes = profiles[1][ROWS[experiment], 0]
    own = profile_of(experiment, "nc1_trace_ratio", depth=depth)
    slope, intercept = np.polyfit(own["position"], own["log10_mean"], 1)
    line = axes.lines[-1]
    ends = np.array([own["position"].min(), own["position"].max()])
    assert line.get_ydata() == pytest.approx(intercept + slope * ends)
    assert line.get_xdata() == pytest.approx(ends / ends[1])
    law = separation_law(TABLE, places_of(TABLE), RUNS).query(
        "experiment == @experiment and depth == @depth and split == 'train'"
    )
    (entry,) = axes.get_legend().get_texts()
    assert entry.get_text() == rf"$\rho = {10**slope:.2f}$, $R^2 = {law['r_squared'].mean():.2f}$"


def test_a_law_of_three_layers_states_their_number_and_no_r_squared():
    """Any three values that fall lie close to a line."""
    shallow = TABLE[(TABLE["depth"] == 5) & TABLE["layer"].isin(["X1", "X3", "last"])]
    runs = RUNS[RUNS["depth"] == 5]
    (entry,) = profiles_figure(shallow, runs, {"rn": "x"}).axes[0].get_legend().get_texts()
    assert entry.get_text().endswith("$, 3 layers")


def test_the_law_and_the_test_split_have_dashes_of_their_own(profiles):
    train, test, law = [line for line in profiles[0].legends[0].get_lines() if len(line.get_xdata())][-3:]
    dashes = [line._unscaled_dash_pattern[1] for line in (train, test, law)]
    assert len({str(own) for own in dashes}) == 3
    assert len(dashes[1]) != len(dashes[2])


def test_every_depth_stands_out_on_white_paper():
    """Contrast by WCAG 2.1: graphics need 3 to 1."""
    for colour in depth_colours(range(1, 8)).values():
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
        assert 1.05 / (np.dot(linear, [0.2126, 0.7152, 0.0722]) + 0.05) >= 3


def test_rows_columns_and_key_of_the_profiles(profiles):
    figure, grid = profiles
    assert [axes.get_ylabel() for axes in grid[:, 0]] == list(LABELS.values())
    assert [axes.get_title() for axes in grid[0]][2] == "nearest-class-mean error"
    assert {axes.get_xlabel() for axes in grid[-1]} == {"relative layer position"}
    entries = [text.get_text() for text in figure.legends[0].get_texts()]
    assert entries[:5] == ["$L=2$", "$L=5$", "$L=12$", "train", "test"]


def test_no_experiment_without_a_converged_run_has_lines(profiles, splits):
    for axes in [*profiles[1][2], *splits[1][2]]:
        assert texts(axes) == ["no run used"]
        assert not axes.lines


def test_panels_say_which_depths_have_no_line_and_why(profiles, spectrum):
    for figure in (profiles, spectrum):
        said = [[text for text in texts(axes) if "arrow" not in text] for axes in figure[1][1]]
        assert said == [["no run used: $L = 12$"]] * len(figure[1][1])
        said = [[text for text in texts(axes) if "arrow" not in text] for axes in figure[1][0]]
        assert said == [[]] * len(figure[1][0])
    zero = (TABLE["metric"] == "nc2_means") & (TABLE["depth"] == 2)
    table = TABLE.assign(value=TABLE["value"].mask(zero, 0.0))  # it has no log10
    assert texts(profiles_figure(table, labels={"tf": "x"}).axes[1]) == [
        "no run used: $L = 12$",
        "no usable value: $L = 2$",
    ]


def test_two_classes_have_an_nc2_that_is_zero_to_rounding():
    table = TABLE.assign(value=TABLE["value"].where(TABLE["metric"] != "nc2_means", 3e-16))
    assert texts(profiles_figure(table, labels={"rn": "x"}).axes[1]) == ["zero to rounding"]


# Train against test

PANELS = [
    (0, 0, "nc1_trace_ratio", "train", "log10_"),
    (0, 1, "nc1_trace_ratio", "test", "log10_"),
    (1, 0, "weak_test_collapse", "test", "log10_"),
    (1, 1, "strong_test_collapse", "test", "log10_"),
    (2, 0, "nc4_mismatch", "train", ""),
    (2, 1, "nc4_mismatch", "test", ""),
]


@pytest.mark.parametrize(("column", "place", "metric", "split", "scale"), PANELS)
def test_lines_and_bars_are_the_last_layers_means_and_stds(splits, column, place, metric, split, scale):
    container = splits[1][0, column].containers[place]
    expected = profile_of("rn", metric, split, layer="last")
    assert container.lines[0].get_xdata().tolist() == list(DEPTHS)
    assert container.lines[0].get_ydata() == pytest.approx(expected[f"{scale}mean"])
    bars = [segment[:, 1] for segment in container.lines[2][0].get_segments()]
    assert [(high - low) / 2 for low, high in bars] == pytest.approx(expected[f"{scale}std"])


def test_effective_depth_stands_beside_the_whole_depth(splits):
    axes = splits[1][0, 3]
    assert axes.containers[0].lines[0].get_ydata().tolist() == [2, 4, 4]  # error 0 from the fourth layer on
    whole = axes.lines[-1]
    assert np.array_equal(whole.get_xdata(), whole.get_ydata())
    assert axes.get_ylim()[0] == 0
    assert axes.get_ylim()[1] < 12
    (note,) = axes.texts  # of a curve that the panel cuts
    assert note.get_text() == r"$\uparrow$ to 12"


def test_the_start_of_the_whole_depth_is_in_sight_and_its_end_is_stated():
    """Red: a panel whose key names a curve that is nowhere in it."""
    runs = RUNS[RUNS["experiment"] == "rn"].replace({"depth": {2: 20, 5: 50, 12: 400}})
    table = TABLE[TABLE["experiment"] == "rn"].replace({"depth": {2: 20, 5: 50, 12: 400}})
    table.loc[table["metric"] == "ncc_error", "value"] = 0.0
    axes = split_figure(table, runs, {"rn": "x"}).axes[3]
    [whole] = [line for line in axes.lines if line.get_label().startswith("effective")]
    assert whole.get_ydata()[0] < axes.get_ylim()[1] < whole.get_ydata()[-1]
    assert texts(axes) == [r"$\uparrow$ to 400"]


def test_the_key_names_each_line_once(splits):
    entries = [text.get_text() for text in splits[0].legends[0].get_texts()]
    assert entries == ["train", "test", "weak", "strong", "effective depth $= L$"]


def test_a_depth_without_a_converged_run_is_a_stated_gap_on_the_depth_axis(splits):
    for axes in splits[1][1]:
        assert [label.get_text() for label in axes.get_xticklabels()] == ["2", "5", "12"]
        (note,) = [text for text in axes.texts if "arrow" not in text.get_text()]
        assert (note.get_text(), note.get_position()[0]) == ("no run used", 12)
    assert [texts(axes) for axes in splits[1][0][:3]] == [[]] * 3


def test_panels_of_shares_start_at_zero_and_cut_no_line_on_it(profiles, splits):
    """Where all are 0 too: matplotlib's own limits would then be 0 ± 0.05."""
    none = TABLE.assign(value=TABLE["value"].where(~TABLE["metric"].isin(["nc4_mismatch", "ncc_error"]), 0.0))
    zeros = split_figure(none)
    panels = [profiles[1][0, 2], splits[1][0, 2], profiles_figure(none).axes[2], zeros.axes[2]]
    panels.append(zeros.axes[7])  # effective depth 0: the embedding is separable already
    for axes in panels:
        low, high = axes.get_ylim()
        assert low == 0 < high
        flat = [line for line in axes.lines if len(line.get_ydata()) and min(line.get_ydata()) == 0]
        assert any(not line.get_clip_on() for line in flat)


def test_a_colour_is_a_metric_and_a_dash_the_test_split(splits):
    """Red: NC1 in another colour than in the other figures; a split that only a colour tells."""
    lines = [[each.lines[0] for each in axes.containers] for axes in splits[1][0]]
    colours = [{to_rgb(line.get_color()) for line in panel} for panel in lines]
    assert colours[0] == {to_rgb(colour_of("nc1_trace_ratio", 0))}
    assert [len(own) for own in colours] == [1, 2, 1, 1]
    assert len(set().union(*colours)) == 5
    styles = [[line.get_linestyle() for line in panel] for panel in lines]
    assert styles == [["-", "--"], ["--", "--"], ["-", "--"], ["-"]]


# Heat maps


@pytest.fixture(scope="module")
def maps():
    return heat_maps(made_gram(RUNS), RUNS, LABELS)


def panels_of(maps):
    return [axes for axes in maps.axes if axes.images]


@pytest.mark.parametrize(
    ("place", "matrix", "depth", "seed"),
    [
        (0, "means", 2, 1),
        (1, "means", 12, 1),
        (2, "duality", 2, 1),
        (3, "duality", 12, 1),
        (4, "means", 2, 0),
        (7, "duality", 5, 0),
    ],
)
def test_images_are_the_matrices_of_the_lowest_converged_seed(maps, place, matrix, depth, seed):
    axes = panels_of(maps)[place]
    expected = [[cosine(depth, seed, matrix, i, j) for j in range(CLASSES)] for i in range(CLASSES)]
    assert np.asarray(axes.images[0].get_array()) == pytest.approx(np.array(expected))
    assert axes.get_title().endswith(f"$L={depth}$")


def test_white_is_the_etf_value_and_every_other_cosine_is_in_range(maps):
    for axes in panels_of(maps):
        image = axes.images[0]
        assert image.norm(-1 / 3) == pytest.approx(0.5)
        cosines = np.asarray(image.get_array())[~np.eye(CLASSES, dtype=bool)]
        assert 0 <= image.norm(cosines).min() <= image.norm(cosines).max() <= 1
    bar = next(axes for axes in maps.axes if axes.get_label() == "<colorbar>")
    assert "ETF \N{MINUS SIGN}0.33" in [label.get_text() for label in bar.get_yticklabels()]


def test_more_classes_than_a_simplex_has_name_no_etf():
    """Red: -1/(K-1) called the ETF's cosine where K > d + 1 classes have no simplex ETF."""
    figure = heat_maps(made_gram(RUNS), RUNS, {"rn": "x", "tf": "y"}, {"rn"})
    bars = [axes for axes in figure.axes if axes.get_label() == "<colorbar>"]
    middle = [bar.get_yticklabels()[1].get_text() for bar in bars]
    assert middle == ["\N{MINUS SIGN}0.33", "ETF \N{MINUS SIGN}0.33"]


def test_the_diagonal_and_the_rest_are_stated(maps):
    off = [cosine(2, 1, "duality", i, j) for i in range(CLASSES) for j in range(CLASSES) if i != j]
    mean = f"{np.mean(off):.2f}".replace("-", "\N{MINUS SIGN}")
    assert panels_of(maps)[2].get_xlabel() == f"diagonal 0.90\nelsewhere {mean} ± {np.std(off):.2f}"


def test_heat_maps_of_a_dead_experiment_say_so(maps):
    notes = [text for axes in maps.axes for text in texts(axes)]
    assert notes == ["no run used"] * 4


def test_one_depth_two_classes_and_a_classifier_of_zeros():
    runs = RUNS[(RUNS["experiment"] == "tf") & (RUNS["depth"] == 2)]
    gram = made_gram(runs, classes=2)
    gram.loc[gram["matrix"] == "duality", "value"] = math.nan
    figure = heat_maps(gram, runs, {"tf": "x"})
    assert sum(axes.get_visible() for axes in panels_of(figure)) == 2
    assert figure.axes[-1].get_ylim()[0] == -1  # no cosine is below


# Spectra


@pytest.fixture(scope="module")
def spectrum():
    figure = spectra(TABLE, RUNS, LABELS)
    return figure, np.array(figure.axes, dtype=object).reshape(3, 2)


@pytest.mark.parametrize("column", [0, 1])
def test_spectra_are_relative_to_their_largest_value(spectrum, column):
    axes = spectrum[1][0, column]
    assert axes.get_yscale() == "log"
    for line, depth in zip(axes.lines[: len(DEPTHS)], DEPTHS, strict=True):
        assert line.get_xdata().tolist() == [1, 2, 3, 4]
        assert line.get_ydata()[:3] == pytest.approx([1, 0.5, 0.25])
        assert line.get_ydata()[3] < axes.get_ylim()[0]
        assert to_rgb(line.get_color()) == pytest.approx(depth_colours(DEPTHS)[depth])


def test_seeds_are_averaged_geometrically():
    table = TABLE.copy()
    second = (table["metric"] == "singular_weights_002") & (table["depth"] == 5)
    table.loc[second, "value"] = (5 + table["seed"]) * 0.9 ** table["seed"]  # converged seeds are 1 and 2
    line = spectra(table, RUNS, {"rn": "x"}).axes[1].lines[1]
    assert line.get_ydata()[1] == pytest.approx(0.9**1.5)


def test_tables_put_together_without_a_new_index_and_read_back_from_files_draw_the_same(tmp_path):
    parts = [rows.reset_index(drop=True) for _, rows in TABLE.groupby("metric")]
    for name, table in (("table", pd.concat(parts)), ("runs", RUNS)):
        table.to_csv(tmp_path / f"{name}.csv", index=False)
    read = [pd.read_csv(tmp_path / f"{name}.csv") for name in ("table", "runs")]
    figures = [spectra(table, RUNS, {"rn": "x"}) for table in (TABLE, pd.concat(parts))]
    figures.append(spectra(*read, {"rn": "x"}))
    curves = [[line.get_ydata().tolist() for line in figure.axes[1].lines] for figure in figures]
    assert curves[0] == curves[1] == curves[2]
    assert split_figure(*read).axes[3].lines[0].get_ydata().tolist() == [2, 4, 4]


@pytest.mark.parametrize(
    ("loss_name", "last_bias", "equal"), [("ce", False, 3), ("mse", True, 3), ("mse", False, 4)]
)
def test_the_collapsed_spectrum_is_the_one_that_the_loss_asks_for(loss_name, last_bias, equal):
    runs = RUNS.assign(loss_name=loss_name, last_bias=last_bias)
    line = spectra(TABLE, runs, {"rn": "x"}).axes[0].lines[-1]
    assert (line.get_xdata().tolist(), line.get_ydata().tolist()) == ([1, equal], [1, 1])


def test_no_value_that_collapse_keeps_leaves_the_panel():
    table = TABLE.copy()
    table.loc[table["metric"] == "singular_weights_003", "value"] = 1e-5
    assert spectra(table, RUNS, {"rn": "x"}).axes[1].get_ylim()[0] < 1e-6


def test_more_classes_than_a_simplex_has_have_no_collapsed_spectrum_and_gnc2_by_layer():
    """Red: K-1 equal values as the spectrum of an optimum that is not known; an empty panel of NC2."""
    figure = spectra(TABLE, RUNS, {"rn": "x", "tf": "y"}, {"rn"})
    dashed = [[line for line in axes.lines if line.get_linestyle() == "--"] for axes in figure.axes]
    assert list(map(len, dashed)) == [0, 0, 1, 1]
    many = TABLE.replace({"metric": {"nc2_means": "gnc2_spread_means"}})
    panels = profiles_figure(many).axes[:6]
    assert panels[1].get_title() == r"$\log_{10}$ GNC2 (class means)"
    assert all(axes.lines for axes in panels)


def test_spectra_of_a_dead_experiment_say_so(spectrum):
    assert [texts(axes) for axes in spectrum[1][2]] == [["no run used"]] * 2


# All of them


def test_last_layers_alone_make_all_figures():
    table = TABLE[TABLE["layer"] == "last"]
    axes = profiles_figure(table).axes[0]
    assert [line.get_marker() for line in axes.lines] == ["o"] * 3  # a line of one point shows nothing
    assert len(split_figure(table).axes) == 12
    assert len(spectra(table, RUNS, LABELS).axes) == 6


def test_nothing_measured_at_all_still_makes_figures():
    assert len(profiles_figure(EMPTY).axes) == 9
    assert len(split_figure(EMPTY).axes) == 12
    assert len(spectra(EMPTY, RUNS, LABELS).axes) == 6
    assert len(heat_maps(made_gram(RUNS).iloc[:0], RUNS, LABELS).axes) == 12


def test_a_metric_that_was_not_measured_says_so():
    table = TABLE[~TABLE["metric"].isin(["nc2_means", "weak_test_collapse", "strong_test_collapse"])]
    assert texts(profiles_figure(table, labels={"rn": "x"}).axes[1]) == ["no usable value"]
    assert texts(split_figure(table, labels={"rn": "x"}).axes[1]) == ["no usable value"]


def test_another_process_writes_the_same_bytes_without_torch(tmp_path):
    """With its own hash seed, under which sets of names have another order."""
    here, there = tmp_path / "here", tmp_path / "there"
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1])\n"
        "from test_layer_figures import save_all; save_all(Path(sys.argv[2]))\n"
        "assert not {'torch', 'dvc', 'typer'} & set(sys.modules)"
    )
    command = [sys.executable, "-c", code, str(Path(__file__).parent), str(there)]
    subprocess.run(command, check=True, env=os.environ | {"PYTHONHASHSEED": "1"})
    save_all(here)
    names = sorted(path.name for path in here.iterdir())
    assert len(names) == 12
    assert [sha256_of(here / name) for name in names] == [sha256_of(there / name) for name in names]
    for path in here.glob("*.svg"):
        assert "atplotlib v" not in path.read_text(encoding="utf-8")
