"""Scores that tell outliers from test samples, against formulas written out in NumPy, and the third split."""

import functools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import experiment_tree, measure_runs, normal, write_params
from safetensors.torch import load_file
from torch import Tensor, nn
from training_cases import DIGITS as SIX_DIGITS
from training_cases import PLAIN

import ncpipe as nc
from ncpipe.commands.aggregate import aggregate
from ncpipe.config.records import check, read
from ncpipe.config.sources.images import ImageData
from ncpipe.datasets import prepare as sources
from ncpipe.datasets.images import prepare_digits
from ncpipe.datasets.prepared import Prepared, Split, read_prepared
from ncpipe.metrics.catalogue import OUTLIERS
from ncpipe.metrics.outliers import auroc, fpr95, msp, outlier_metrics, outlier_scores

CLASSES = 4


def sample(width: int = 7) -> dict[str, Tensor]:
    """120 training samples, 40 test samples and 30 outliers; coordinates are unlike, one is constant."""
    labels = torch.arange(120) % CLASSES
    means, scale = 3 * normal(CLASSES, width), torch.linspace(0.5, 2, width)
    rows = {
        "features": means[labels] + normal(120, width, seed=1) * scale,
        "test": means[torch.arange(40) % CLASSES] + normal(40, width, seed=2) * scale,
        "ood": 1 + 2.5 * normal(30, width, seed=3),
    }
    for matrix in rows.values():
        matrix[:, 0] = 0.3
    return {
        **rows,
        "labels": labels,
        "weight": normal(CLASSES, width, seed=4),
        "bias": normal(CLASSES, seed=5),
    }


def naive_scores(data: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The papers' formulas, in NumPy float64."""
    train, labels, weight, bias = (data[name] for name in ("features", "labels", "weight", "bias"))
    rows, size = np.concatenate([data["test"], data["ood"]]), functools.partial(np.linalg.norm, axis=-1)
    logits = rows @ weight.T + bias
    energy = np.log(np.exp(logits).sum(1))
    scores = {"msp": np.exp(logits.max(1)) / np.exp(logits).sum(1), "energy": energy}
    centred = rows - train.mean(0)
    class_rows = weight[logits.argmax(1)]
    scores["nci"] = (class_rows * centred).sum(1) / size(centred) + 1e-4 * np.abs(rows).sum(1)
    deviation = np.where(np.ptp(train, 0) == 0, 1.0, train.std(0))
    _, _, axes = np.linalg.svd((train - train.mean(0)) / deviation)
    scores["neco"] = size(centred / deviation @ axes[: len(weight) - 1].T) / size(centred / deviation)
    shifted = train + np.linalg.pinv(weight) @ bias
    _, vectors = np.linalg.eigh(shifted.T @ shifted)
    null = vectors[:, : len(axes) - len(axes) // 2]  # eigenvalues ascend
    scale = (train @ weight.T + bias).max(1).mean() / size(shifted @ null).mean()
    scores["vim"] = energy - scale * size((rows + np.linalg.pinv(weight) @ bias) @ null)
    means = np.array([train[labels == k].mean(0) for k in range(len(weight))])
    spread = train - means[labels]
    inverse = np.linalg.pinv(spread.T @ spread / len(train), rcond=1e-12, hermitian=True)
    away = rows[:, None] - means
    scores["mahalanobis"] = -((away @ inverse) * away).sum(2).min(1)
    units, known = (matrix / size(matrix)[:, None] for matrix in (rows, train))
    scores["knn"] = -np.sort(size(units[:, None] - known), 1)[:, 49]
    return scores


def naive_auroc(inside: Any, outside: Any) -> float:
    return float(np.mean([(a > b) + 0.5 * (a == b) for a in inside for b in outside]))


def naive_fpr95(inside: Any, outside: Any) -> float:
    """The least false positive rate of a threshold that accepts 95 % of test samples."""
    kept = [t for t in inside if sum(s >= t for s in inside) * 20 >= 19 * len(inside)]
    return min(sum(s >= t for s in outside) / len(outside) for t in kept)


def test_every_score_is_its_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits of training samples come in parts."""
    monkeypatch.setattr("ncpipe.metrics.pairs.ROW_ENTRIES", 4 * CLASSES)
    data = sample()
    means = torch.stack([data["features"][data["labels"] == k].mean(0) for k in range(CLASSES)])
    rows = torch.cat([data["test"], data["ood"]])
    train = data["features"], data["labels"]
    scores = outlier_scores(*train, means, rows, data["weight"], data["bias"])
    scores["msp"] = torch.sigmoid(scores["msp"])  # their order is that of these
    metrics = dict(outlier_metrics(**data))
    assert metrics.keys() == {metric.name for metric in OUTLIERS}
    expected = naive_scores({key: value.numpy() for key, value in data.items()})
    assert scores.keys() == expected.keys()
    for name, naive in expected.items():
        assert scores[name].tolist() == pytest.approx(naive, rel=1e-9), name
        assert metrics[f"{name}_auroc"] == pytest.approx(naive_auroc(naive[:40], naive[40:]), abs=1e-12), name
        assert metrics[f"{name}_fpr95"] == pytest.approx(naive_fpr95(naive[:40], naive[40:]), abs=1e-12), name
    centre = data["ood"].mean(0).numpy()
    cosines = [abs(m @ centre) / np.linalg.norm(m) / np.linalg.norm(centre) for m in means.numpy()]
    assert metrics["nc5_orthogonality"] == pytest.approx(np.mean(cosines), rel=1e-12)
    without = dict(outlier_metrics(*train, data["test"], data["ood"]))
    assert without == {name: metrics[name] for name in without}
    assert {name.partition("_")[0] for name in without} == {"neco", "mahalanobis", "knn", "nc5"}


@pytest.mark.parametrize(
    ("inside", "outside", "area", "rate"),
    [
        ([1.0, 1.0], [1.0, 1.0], 0.5, 1.0),
        ([math.inf, 2.0], [math.inf, -math.inf, 1.0], 4.5 / 6, 1 / 3),
        ([float(i) for i in range(20)], [0.0, 0.5, 1.0, 1.5], 75 / 80, 0.5),
    ],
)
def test_auroc_and_fpr95(inside: list[float], outside: list[float], area: float, rate: float) -> None:
    tensors = torch.tensor(inside, dtype=torch.float64), torch.tensor(outside, dtype=torch.float64)
    assert auroc(*tensors) == naive_auroc(inside, outside) == pytest.approx(area)
    assert fpr95(*tensors) == naive_fpr95(inside, outside) == pytest.approx(rate)


def test_confident_samples_are_not_ties() -> None:
    """Red: a largest softmax of 1.0 in float64 for every sample from a margin of 37 on."""
    logits = torch.tensor([[0.0, 50.0], [45.0, 0.0], [0.0, 60.0]], dtype=torch.float64)
    assert torch.softmax(logits, 1).amax(1).tolist() == [1.0, 1.0, 1.0]
    assert msp(logits).tolist() == pytest.approx([50.0, 45.0, 60.0], rel=1e-15)


def test_limits() -> None:
    """Collapsed classes, a dead network, infinity, and fewer samples than neighbours."""
    data = sample(width=9)
    means, twice = data["weight"] * 2, data["labels"].repeat(2)
    collapsed = data | {"features": means[twice], "labels": twice, "test": means[torch.arange(40) % CLASSES]}
    metrics = dict(outlier_metrics(**collapsed))
    assert math.isnan(metrics["vim_auroc"])  # four points and o lie in fewer axes than it leaves out
    assert metrics["mahalanobis_auroc"] == 0.5  # no direction has a variance
    assert metrics["knn_auroc"] == metrics["neco_auroc"] == 1.0
    dead = {**data, **{name: 0 * data[name] for name in ("features", "test", "ood")}}
    metrics = dict(outlier_metrics(**dead))
    values = {name: value for name, value in metrics.items() if name[:3] not in ("vim", "nc5")}
    assert set(values.values()) == {0.5, 1.0}  # all are alike
    assert math.isnan(metrics["nc5_orthogonality"])
    data["ood"][2, 3] = math.inf
    assert all(math.isnan(value) for _, value in outlier_metrics(**data))
    wide = dict(outlier_metrics(**sample(width=CLASSES - 1)))
    assert math.isnan(wide["neco_auroc"])  # all axes are among the K - 1: it would be that of the last bits
    few = {name: value[:12] if len(value) == 120 else value for name, value in sample().items()}
    assert all(0 <= value <= 1 for _, value in outlier_metrics(**few))  # k is at most N


# The third split


def arrays() -> dict[str, np.ndarray]:
    """The sample as a file has it."""
    entries = {name: value.numpy() for name, value in sample().items()}
    entries |= {"test_features": entries.pop("test"), "ood_features": entries.pop("ood")}
    return entries | {"test_labels": np.arange(40) % CLASSES}


def model() -> nn.Module:
    layer = nn.Linear(7, CLASSES)
    layer.weight.data, layer.bias.data = sample()["weight"], sample()["bias"]
    return nn.Sequential(layer)


def loaders(data: dict[str, np.ndarray]) -> list[list[tuple[Tensor, Tensor]]]:
    """Batches of train, test and other data, whose labels are none of the classes."""
    rows = [torch.from_numpy(data[f"{name}features"]) for name in ("", "test_", "ood_")]
    labels = [torch.from_numpy(data[f"{name}labels"]) for name in ("", "test_")] + [torch.full((30,), -1)]
    return [list(zip(x.split(25), y.split(25), strict=True)) for x, y in zip(rows, labels, strict=True)]


@pytest.mark.filterwarnings("ignore::ncpipe.MeasurementWarning")
def test_arrays_files_and_models_have_the_same_values(tmp_path: Path) -> None:
    """The third split adds its own rows alone, and a file from a model's features has them too."""
    data = arrays()
    names = ("features", "labels", "weight", "bias", "test_features", "test_labels")
    plain = nc.measure(*(data[name] for name in names))
    with_ood = nc.measure(*(data[name] for name in names), ood=data["ood_features"])
    assert with_ood.records[: len(plain)] == plain.records
    expected = {("last", "ood", name): value for name, value in outlier_metrics(**sample())}
    assert {
        (row.layer, row.split, row.metric): row.value for row in with_ood.records[len(plain) :]
    } == expected
    of_model = nc.measure_model(model(), "0", *loaders(data))
    assert of_model.select(split="ood").to_dict() == with_ood.select(split="ood").to_dict()
    np.savez(tmp_path / "features.npz", **nc.collect_features(model(), "0", *loaders(data)))
    assert nc.measure_file(tmp_path / "features.npz") == with_ood
    some = nc.measure_model(model(), "0", *loaders(data), classes=[0, 2, 3])
    assert 0 <= some["last", "ood", "neco_auroc"] <= 1
    kept = data["labels"] != 1
    chosen = [data["features"][kept], np.searchsorted([0, 2, 3], data["labels"][kept])]
    tested = data["test_features"][data["test_labels"] != 1]
    chosen_metrics = outlier_metrics(*map(torch.from_numpy, (*chosen, tested, data["ood_features"])))
    assert some["last", "ood", "mahalanobis_auroc"] == dict(chosen_metrics)["mahalanobis_auroc"]
    layered = nc.measure_model(nn.Sequential(nn.Identity(), *model()), "1", *loaders(data), layers=["0"])
    without = outlier_metrics(
        **{name: tensor for name, tensor in sample().items() if name not in ("weight", "bias")}
    )
    inner = layered.select(layer="0", split="ood")
    assert {row.metric: row.value for row in inner} == pytest.approx(dict(without), rel=1e-12)


@pytest.mark.filterwarnings("ignore::ncpipe.MeasurementWarning")
def test_scores_of_float32_are_no_rounding_where_features_have_few_axes() -> None:
    """Behind a bottleneck, and of as many axes as a simplex spans. Red: directions that float32 rounds to."""
    draw, labels = np.random.default_rng(0), np.arange(400) % 4
    weight = draw.normal(size=(4, 64))
    for width, names in ((8, ("vim", "mahalanobis", "neco")), (3, ("vim", "neco"))):
        centres, up = 3 * draw.normal(size=(4, width)), draw.normal(size=(width, 64))
        low = [centres[labels] + s * draw.normal(size=(400, width)) for s in (0.1, 0.1, 0.13)]
        found = []
        for kind in (np.float64, np.float32):
            train, test, other = (part.astype(kind) @ up.astype(kind) for part in low)
            values = nc.measure(train, labels, weight, None, test, labels, ood=other)
            found.append([values["last", "ood", f"{name}_auroc"] for name in names])
        assert found[1] == pytest.approx(found[0], abs=1e-3, nan_ok=True)
        assert math.isnan(found[0][0])
    far = draw.normal(size=(400, 6)).astype(np.float32) + np.float32(1e7)  # of which nothing else is left
    values = nc.measure(far, labels, None, None, far[::-1], labels, ood=far + np.float32(9))
    assert math.isnan(values["last", "ood", "mahalanobis_auroc"])


@pytest.mark.filterwarnings("ignore::ncpipe.MeasurementWarning")
def test_other_data_without_labels_are_measured(tmp_path: Path) -> None:
    """-100 and -1 mean nothing there alike. Red: "no sample is left"."""
    *splits, ood = loaders(arrays())
    unlabelled = [(rows, torch.full_like(labels, -100)) for rows, labels in ood]
    expected = nc.measure_model(model(), "0", *splits, ood).records
    assert nc.measure_model(model(), "0", *splits, unlabelled).records == expected
    of_floats = [(rows, labels.float()) for rows, labels in ood]
    assert nc.measure_model(model(), "0", *splits, of_floats).records == expected
    collected = nc.collect_features(model(), "0", *splits, unlabelled)["ood_features"]
    assert np.array_equal(collected, arrays()["ood_features"])


# In a sweep

DIGITS = SIX_DIGITS | {"per_class": 12, "test_per_class": 10, "seed": 3}
OTHER = {"source": "mnist", "per_class": 5, "seed": 1}


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch) -> list[ImageData]:
    """Images in place of MNIST's: a grey one, and a ramp; the specs that they were asked with."""
    asked: list[ImageData] = []

    def prepare(spec: ImageData, *_: object) -> Prepared:
        asked.append(spec)
        images = torch.linspace(0, 1, 28).repeat(8, 1, 28, 1)
        images[0] = 0.25
        return Prepared(
            "image", 2, None, Split(images, torch.arange(8) % 2), None, {"raw": {"file": "md5:0"}}
        )

    monkeypatch.setattr(sources, "SOURCES", {**sources.SOURCES, "mnist": prepare})
    return asked


def test_other_images_come_in_the_size_and_units_of_ones_own(other: list[ImageData]) -> None:
    """Grey 0.25 is (0.25 - mean)/std of the training images; these are what they were."""
    whole = prepare_digits(read(ImageData, DIGITS))
    data = sources.prepare(read(ImageData, DIGITS | {"ood": OTHER}), Path(), None, False)
    assert [(spec.per_class, spec.seed, spec.normalisation) for spec in other] == [(5, 1, "unit")]
    assert data.ood.inputs.shape == (8, 1, 8, 8)
    rule: Any = whole.facts["normalisation"]
    expected = (0.25 - rule["mean"][0]) / rule["std"][0]
    assert data.ood.inputs[0].unique().tolist() == pytest.approx([expected], rel=1e-6)
    assert torch.equal(data.train.inputs, whole.train.inputs)
    assert data.facts == whole.facts | {"ood": {**OTHER, "raw": {"file": "md5:0"}, "samples": 8}}
    plain = sources.prepare(
        read(ImageData, DIGITS | {"ood": OTHER, "normalisation": "unit"}), Path(), None, False
    )
    assert plain.ood.inputs[0].unique().tolist() == [0.25]


def test_the_set_that_is_trained_on_is_no_other_data() -> None:
    _, mistakes = check(ImageData, DIGITS | {"ood": OTHER | {"source": "digits"}}, "data")
    assert mistakes == ["data: ood: digits is what the network is trained on; take another set"]


def own_file() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    labels = np.arange(36) % 3
    inputs = generator.standard_normal((36, 5)) + 3 * labels[:, None]
    entries = {
        "inputs": inputs[:24],
        "labels": labels[:24],
        "test_inputs": inputs[24:],
        "test_labels": labels[24:],
    }
    return entries | {"ood_inputs": generator.standard_normal((8, 5)) - 4}


OWN = {
    "source": "arrays", "file": "own.npz", "kind": "vector", "per_class": None, "test_per_class": None,
    "seed": 0, "normalisation": "standardise",
}  # fmt: skip
MODEL = PLAIN | {"width": 16}


@pytest.mark.filterwarnings("ignore::ncpipe.MeasurementWarning")
@pytest.mark.usefixtures("study_folder")
def test_a_sweep_measures_the_third_split() -> None:
    """From a file's array to points.csv, and the run's features are a file with these values."""
    np.savez("own.npz", **own_file())
    write_params([3], [0], own=experiment_tree(data=OWN) | {"model": MODEL})
    measure_runs("own", depths=[3])
    aggregate()
    data = read_prepared(Path("data/prepared/own"))
    rule: Any = data.facts["normalisation"]
    expected = (own_file()["ood_inputs"] - rule["mean"]) / rule["std"]
    assert data.ood.inputs.numpy() == pytest.approx(expected, rel=1e-6)
    path = Path("data/features/own/L3/s0.safetensors")
    measured = nc.measure_file(path).select(split="ood").to_dict()
    points = pd.read_csv("data/results/points.csv")
    ood = points[points["split"] == "ood"]
    assert {f"last/ood/{p.metric}": p.value for p in ood.itertuples()} == pytest.approx(measured, rel=1e-9)
    assert len(ood) == 15
    state = load_file("data/runs/own/L3/s0/model.safetensors")
    weight, bias = state["maps.0.weight"].double(), state["maps.0.bias"].double()
    hidden = {
        name: torch.relu(split.inputs.double() @ weight.T + bias)
        for name, split in (("train", data.train), ("test", data.test), ("ood", data.ood))
        if split is not None
    }
    inner = dict(outlier_metrics(hidden["train"], data.train.labels, hidden["test"], hidden["ood"]))
    assert {name.partition("_")[0] for name in inner} == {"neco", "mahalanobis", "knn", "nc5"}
    rows = pd.read_csv("data/metrics/own/measurements.csv").query("layer == 'H1' and split == 'ood'")
    assert dict(zip(rows["metric"], rows["value"], strict=True)) == pytest.approx(inner, rel=1e-9)
