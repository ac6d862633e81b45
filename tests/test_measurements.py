"""What measuring returns: records, values by name, a frame, a table to read."""

import math
import pickle
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ncpipe as nc
from ncpipe.metrics.catalogue import CATALOGUE

DRAW = np.random.default_rng(0)
LABELS = np.arange(60) % 3
MEANS = DRAW.standard_normal((3, 5))
FEATURES = MEANS[LABELS] + 0.1 * DRAW.standard_normal((60, 5))
TEST = MEANS[LABELS] + 0.2 * DRAW.standard_normal((60, 5))
LOADER = [(torch.from_numpy(FEATURES), torch.from_numpy(LABELS))]
LINEAR = torch.nn.Linear(5, 3).double()


def values(layer: str = "last") -> nc.Measurements:
    return nc.measure(FEATURES, LABELS, MEANS, None, TEST, LABELS, layer=layer)


def test_a_name_is_enough_where_one_value_has_it() -> None:
    measured = values()
    by_hand = {(row.layer, row.split, row.metric): row.value for row in measured}
    assert len(by_hand) == len(measured)
    for key, value in by_hand.items():
        assert measured[key] == value or math.isnan(value)
        assert key in measured
    assert measured["nc2_etf"] == by_hand["last", "weights", "nc2_etf"]
    assert measured.select(split="test")["cdnv"] == by_hand["last", "test", "cdnv"]
    both = nc.Measurements([*measured, *values("body")])
    assert len(both.select(layer="body", split="train")) == len(measured.select(split="train"))


def test_a_name_that_several_values_have_or_none_is_one_line() -> None:
    with pytest.raises(KeyError) as error:
        values()["cdnv"]
    assert error.value.args == (
        "'cdnv' has 2 values; write ['last', 'train', 'cdnv'] or ['last', 'test', 'cdnv'], or select a split "
        "or a layer",
    )
    for key, hint in (
        ("nc1_trace_ration", "is it nc1_trace_ratio"),
        (("last", "train", "nc1"), "is it nc1_trace_ratio or nc1_pinv or nc1_pinv_rank?"),
        (
            ("last", "val", "cdnv"),
            "there is ['last', 'train', 'cdnv'], ['last', 'test', 'cdnv']",
        ),
        (("fc", "train", "nc2_etf"), "there is ['last', 'weights', 'nc2_etf']"),
        ("accuracy", "there is nc0_row_sum, nc0_relative, nc2_etf, "),
    ):
        with pytest.raises(KeyError) as error:
            values()[key]
        [line] = error.value.args
        assert line.startswith(f"{key!r} was not measured; {hint}")
        assert "\n" not in line
    with pytest.raises(nc.InputError, match="split 'tset' was not measured; there is weights, train, test"):
        values().select(split="tset")
    assert "nc9" not in values()


def test_dict_and_frame_have_every_value() -> None:
    measured = values()
    assert measured.to_dict() == {
        f"last/{row.split}/{row.metric}": pytest.approx(row.value, nan_ok=True) for row in measured
    }
    frame = measured.to_pandas()
    assert frame.columns.tolist() == ["layer", "split", "metric", "value"]
    assert frame["value"].dtype == float
    wide = measured.to_pandas(wide=True)
    assert wide.loc[("last", "test"), "cdnv"] == measured["last", "test", "cdnv"]
    assert wide.notna().sum().sum() == frame["value"].notna().sum()
    assert [tuple(row) for row in frame.itertuples(index=False)] == [
        tuple(vars(row).values()) for row in measured
    ]
    assert nc.Measurements([]).to_pandas().columns.tolist() == frame.columns.tolist()


def test_without_pandas_the_frame_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(nc.InputError, match=r"to_pandas\(\) needs pandas: pip install pandas"):
        values().to_pandas()


def test_text_and_html_say_what_values_mean() -> None:
    """No singular value, and nothing of a name that HTML would take for its own."""
    text, page = repr(values("<b>")), values("<b>")._repr_html_()
    for shown in (text, page):
        assert "nc1_trace_ratio" in shown
        assert CATALOGUE["nc1_trace_ratio"].meaning in shown
        assert "singular_means_001" not in shown
    assert "<b>" not in page
    assert "<td>lower</td>" in page
    assert len(page.split("<tr>")) - 1 == len(text.splitlines()) - 2  # less the layer's line and the last one


@pytest.mark.parametrize(
    ("name", "direction"),
    [
        *(("nc1_trace_ratio", "lower"), ("unc3_cosine", "higher"), ("cdnv_log", "lower")),
        *(("gnc2_energy_means", "lower"), ("margin_min", ""), ("tokens", ""), ("nc1_pinv_rank", "")),
    ],
)
def test_the_direction_follows_from_interval_and_value_at_collapse(name: str, direction: str) -> None:
    assert CATALOGUE[name].direction == direction


def test_a_file_is_measured_as_its_arrays_are(tmp_path: Path) -> None:
    """With the warnings of `ncpipe metrics`."""
    path = tmp_path / "features.npz"
    np.savez(path, features=FEATURES, labels=LABELS, weight=MEANS, spare=MEANS)
    with pytest.warns(nc.MeasurementWarning, match="ignored spare; the known arrays are features, labels"):
        measured = nc.measure_file(path)
    assert measured == nc.measure(FEATURES, LABELS, MEANS)
    np.savez(path, features=FEATURES, labels=LABELS * 2)
    with pytest.raises(nc.InputError, match=r"features.npz: .*class 1 has no .*samples"):
        nc.measure_file(str(path))
    with warnings.catch_warnings(action="error"):
        assert nc.measure_file(path, classes="present")["classes"] == 3
        assert nc.measure_file(path, min_per_class=2)["classes"] == 3  # not in silence all classes
    np.savez(path, features=FEATURES[:4], labels=np.array([0, 0, 5, 9]))
    with warnings.catch_warnings(record=True, action="always") as caught:
        nc.measure_file(path, classes="present")
    assert any("class 5 has one sample" in str(warning.message) for warning in caught)
    with pytest.raises(nc.InputError, match="classes: 'some' is unknown; take 'all' or 'present'"):
        nc.measure_file(path, classes="some")


MISSPELT = [
    ({"test_feature": TEST}, "test_feature", "test_features"),
    ({"test_label": LABELS}, "test_label", "test_labels"),
    ({"weights": MEANS, "bias": MEANS[:, 0]}, "weights", "weight"),
]


@pytest.mark.parametrize(("others", "written", "meant"), MISSPELT, ids=lambda value: str(value)[:20])
def test_a_misspelt_array_of_a_file_is_named(
    tmp_path: Path, others: dict[str, np.ndarray], written: str, meant: str
) -> None:
    """Where its absence is a mistake or only a warning. Red: "come together" of two that are there."""
    path = tmp_path / "features.npz"
    whole = {"test_features": TEST, "test_labels": LABELS, "weight": MEANS, **others}
    np.savez(path, features=FEATURES, labels=LABELS, **{n: a for n, a in whole.items() if n != meant})
    with pytest.raises(nc.InputError, match=rf"nothing reads {written!r}; did you mean {meant!r}\? "):
        nc.measure_file(path)


class Sum(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(5, 3)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return self.fc(h).sum()


BATCHES = [(torch.from_numpy(FEATURES[:4]).float(), torch.arange(4) % 3)]  # two classes of one sample
WARNED = {
    "a file": lambda path: nc.measure_file(path),
    "few samples": lambda _: nc.measure_model(torch.nn.Linear(5, 3), "", BATCHES),
    "few samples, monitored": lambda _: nc.CollapseMonitor("fc", BATCHES).values(Sum()),
    "no logits, in a hook": lambda _: nc.measure_model(Sum(), "fc", BATCHES),
}


@pytest.mark.parametrize("name", WARNED)
def test_a_warning_points_to_the_line_that_measures(tmp_path: Path, name: str) -> None:
    """Red: a warning that points into the package, where nobody can change anything."""
    path = tmp_path / "features.npz"
    np.savez(path, features=FEATURES, labels=LABELS, spare=MEANS)
    with pytest.warns(nc.MeasurementWarning) as caught:
        WARNED[name](path)
    assert {Path(warning.filename) for warning in caught} == {Path(__file__)}


def test_a_monitor_takes_the_arguments_of_measure_model() -> None:
    monitor = nc.CollapseMonitor(LINEAR, LOADER, every=np.int64(2), classes=[0, 2])
    assert [epoch for epoch in (0.5, 1, 1.5, 2, 3, 4) if monitor.due(epoch)] == [2, 4]
    expected = nc.measure_model(LINEAR, LINEAR, LOADER, classes=[0, 2])
    assert monitor.values(LINEAR)["nc/last/train/cdnv"] == expected["cdnv"]


@pytest.mark.parametrize("epoch", ["2", None, math.nan, torch.zeros(2)])
def test_an_epoch_that_is_no_number_is_one_line(epoch: Any) -> None:
    """Red: values at a place that `plot` cannot sort."""
    monitor = nc.CollapseMonitor(LINEAR, LOADER)
    for place in (1, np.float32(2.5), np.int64(3)):
        monitor.values(LINEAR, epoch=place)
    if epoch is None:
        monitor.values(LINEAR)
    else:
        with pytest.raises(nc.InputError, match=r"^epoch: a number, not "):
            monitor.values(LINEAR, epoch=epoch)
    assert [*monitor.history] == [1, 2.5, 3]


@pytest.mark.filterwarnings("ignore::ncpipe.MeasurementWarning")  # tags are unbalanced
@pytest.mark.parametrize(
    ("measured", "labels"),
    [
        (nc.measure_regression_model, FEATURES[:, :3]),
        (
            nc.measure_multilabel_model,
            np.eye(3)[LABELS] + (DRAW.random((60, 1)) < 0.5) * np.eye(3)[LABELS - 1],
        ),
    ],
)
def test_a_monitor_measures_what_is_no_class_a_sample(measured: Any, labels: np.ndarray) -> None:
    loader = [(torch.from_numpy(FEATURES), torch.from_numpy(labels))]
    values = nc.CollapseMonitor(LINEAR, loader, measure=measured).values(LINEAR)
    expected = measured(LINEAR, LINEAR, loader)
    assert values == {
        f"nc/{name}": value for name, value in expected.to_dict().items() if "singular" not in name
    }


def test_values_with_nan_equal_their_copies() -> None:
    """Also of another process. Red: NaN that equals itself alone."""
    rows = [nc.Measurement("last", "train", "a", math.nan), nc.Measurement("last", "train", "b", 1.0)]
    measured = nc.Measurements(rows)
    copied = pickle.loads(pickle.dumps(measured))
    assert measured == copied
    assert measured != nc.Measurements([rows[1], rows[0]])
    assert measured != nc.Measurements([replace(rows[0], value=2.0), rows[1]])


def test_parts_of_classes_and_samples_average_to_the_metrics() -> None:
    """Against NumPy. Red: distances to another class's mean, another unit, samples out of order."""
    measured = nc.measure(FEATURES, LABELS, MEANS, None, TEST, LABELS, by_sample=True)
    for split, features in (("train", FEATURES), ("test", TEST)):
        means = np.stack([features[k == LABELS].mean(0) for k in range(3)])
        between = np.mean(np.sum((means - means.mean(0)) ** 2, 1))
        squares = np.sum((features - means[LABELS]) ** 2, 1) / between
        rows = MEANS[LABELS]
        lengths = np.linalg.norm(features, axis=1) * np.linalg.norm(rows, axis=1)
        cosines = 1 - np.sum(features * rows, 1) / lengths
        samples, classes = measured.by_sample(split=split), measured.by_class(split=split)
        np.testing.assert_array_equal(samples["label"], LABELS)
        np.testing.assert_allclose(samples["nc1_trace_ratio"], squares, rtol=1e-12)
        np.testing.assert_allclose(samples["nc3_cosine"], cosines, rtol=1e-9)
        np.testing.assert_array_equal(classes["samples"], [20, 20, 20])
        for name, values_of_samples in (("nc1_trace_ratio", squares), ("nc3_cosine", cosines)):
            by_class = [values_of_samples[k == LABELS].mean() for k in range(3)]
            np.testing.assert_allclose(classes[name], by_class, rtol=1e-9)
            assert samples[name].mean() == pytest.approx(measured["last", split, name], rel=1e-12)
        lengths = np.linalg.norm(means - means.mean(0), axis=1)
        np.testing.assert_allclose(classes["mean_length"], lengths, rtol=1e-12)
        aligned = np.sum(MEANS * (means - means.mean(0)), 1) / lengths / np.linalg.norm(MEANS, axis=1)
        np.testing.assert_allclose(classes["unc3_cosine"], aligned, rtol=1e-12)
        assert samples["margin"].min() == measured["last", split, "margin_min"]
    assert measured == values()


def test_a_figure_has_a_panel_for_each_metric_and_a_line_for_each_split() -> None:
    """Read from the artists. Red: layers out of order, or values of another split."""
    measured = nc.Measurements([*values("body"), *values()])
    figure = measured.plot()
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == ["NC1", "NC2 (ETF)", "NC2 (class means)", "NC3", "nearest-class-mean error"]
    for axes, metric in zip(figure.axes[:1], ["nc1_trace_ratio"], strict=True):
        for line in axes.get_lines():
            assert list(line.get_xdata()) == [0, 1]
            expected = [measured[layer, str(line.get_label()), metric] for layer in ("body", "last")]
            assert list(line.get_ydata()) == expected
        assert [label.get_text() for label in axes.get_xticklabels()] == ["body", "last"]


def test_what_is_given_out_may_be_changed() -> None:
    """Red: another layer's classes, or the monitor's epochs, that change with it."""
    monitor = nc.CollapseMonitor(LINEAR, LOADER, LOADER)
    monitor.values(LINEAR, epoch=1).clear()
    assert monitor.history[1]
    measured = values()
    classes = measured.by_class()
    classes["class"][:] = 7
    del classes["samples"]
    assert list(measured.by_class()["class"]) == list(measured.by_class(split="test")["class"]) == [0, 1, 2]
    assert list(measured.by_class()["samples"]) == [20, 20, 20]


@pytest.mark.parametrize("size", [1e-307, 1e-200, 1.0, 1e200, 1.5e308])
def test_lengths_of_any_size(size: float) -> None:
    """Means at 0 and at `size` lie half of it from their centre. Red: a unit beyond float64's range."""
    features = np.array([0.0, 0.0, 1.0, 1.0])[:, None] * size * np.array([1.0, 0.0])
    lengths = nc.measure(features, [0, 0, 1, 1]).by_class()["mean_length"]
    assert list(lengths) == [size / 2, size / 2]


def test_a_monitor_draws_what_it_recorded() -> None:
    monitor = nc.CollapseMonitor("0", LOADER)
    model = torch.nn.Sequential(torch.nn.Linear(5, 3).double())
    recorded = {epoch: monitor.values(model, epoch=epoch) for epoch in (2, 1)}
    (line,) = monitor.plot(["nc1_trace_ratio"]).axes[0].get_lines()
    assert list(line.get_xdata()) == [1, 2]
    assert list(line.get_ydata()) == [recorded[epoch]["nc/last/train/nc1_trace_ratio"] for epoch in (1, 2)]


def test_a_table_fits_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = repr(values())
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "70")
    cut = repr(values())
    assert max(map(len, cut.splitlines())) <= 70 < max(map(len, whole.splitlines()))
    for line, before in zip(cut.splitlines(), whole.splitlines(), strict=True):
        assert line == before or before.startswith(line.removesuffix("…"))


class Uncounted:
    """Batches whose number nobody knows."""

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        yield torch.from_numpy(FEATURES), torch.from_numpy(LABELS)

    def __len__(self) -> int:
        raise NotImplementedError


@pytest.mark.parametrize(("progress", "shown"), [(True, True), (False, False), (None, False)])
def test_a_bar_counts_batches(progress: bool | None, shown: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """None is a terminal's choice, and there is none here."""
    model = torch.nn.Sequential(torch.nn.Linear(5, 3).double())
    nc.measure_model(model, "0", LOADER, LOADER, progress=progress)
    nc.measure_model(model, "0", Uncounted(), progress=progress)
    said = capsys.readouterr().err
    assert ("\rtest_loader: " in said) == ("\rloader: " in said) == shown
