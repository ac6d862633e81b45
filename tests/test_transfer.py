"""Transfer: classes that are kept from a network, and what a few samples' features say of them."""

import itertools
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import experiment_tree, image_data, measure_runs, refused_by, token_data, write_params
from safetensors.torch import load_file
from torch import Tensor
from training_cases import DIGITS as SIX_DIGITS
from training_cases import PLAIN

import ncpipe as nc
from ncpipe.commands.aggregate import aggregate
from ncpipe.config.experiment import Experiment
from ncpipe.config.records import read
from ncpipe.config.sources.images import ImageData
from ncpipe.config.transfer_specs import Transfer
from ncpipe.datasets.images import prepare_digits
from ncpipe.datasets.prepare import SOURCES, prepare
from ncpipe.datasets.prepared import Prepared, Split, read_prepared
from ncpipe.datasets.transfer import split_for_transfer
from ncpipe.features.files import read_features
from ncpipe.metrics.catalogue import UNKNOWN
from ncpipe.metrics.collapse import cdnv
from ncpipe.metrics.few_shot import draw_shots, nearest_shots, ridge_shots
from ncpipe.metrics.statistics import class_statistics
from ncpipe.metrics.study_metrics import entry
from ncpipe.metrics.table import transfer_metrics
from ncpipe.system.errors import InputError
from ncpipe.system.randomness import seeded_generator

KEYS: dict[str, Any] = {
    "source": [7, 2, 5], "target": [0, 1, 9], "shots": [1, 5], "episodes": 20, "seed": 4,
    "head": ["ncc", "ridge"], "ridge": 0.1,
}  # fmt: skip
DIGITS = SIX_DIGITS | {"per_class": 12, "test_per_class": 10, "seed": 3}
MODEL = PLAIN | {"width": 16}


def asked(**changes: Any) -> Transfer:
    return read(Transfer, {key: value for key, value in (KEYS | changes).items() if value is not None})


def digits(**changes: Any) -> ImageData:
    return read(ImageData, DIGITS | changes)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def clouds(spread: float, classes: int = 3, width: int = 5, per_class: int = 40) -> tuple[Tensor, Tensor]:
    labels = torch.arange(classes).repeat(per_class)
    options = {"generator": generator(0), "dtype": torch.float64}
    means = torch.randn(classes, width, **options)
    return means[labels] + spread * torch.randn(len(labels), width, **options), labels


# Which samples a network is given


@pytest.mark.parametrize("n_source", [None, 2])
def test_the_network_gets_the_source_classes_and_no_target_sample(n_source: int | None) -> None:
    """The same images as in the whole draw, numbered in the order of `source`; every target one is held."""
    whole = prepare_digits(digits())
    data = prepare(digits(transfer={**KEYS, **({"n_source": 2} if n_source else {})}), Path(), None, False)
    classes = KEYS["source"][:n_source]
    assert data.classes == len(classes)
    for split, before in ((data.train, whole.train), (data.test, whole.test)):
        for place, label in enumerate(classes):
            assert torch.equal(split.inputs[split.labels == place], before.inputs[before.labels == label])
        assert set(split.labels.tolist()) == set(range(len(classes)))
    for place, label in enumerate(KEYS["target"]):
        both = torch.cat([s.inputs[s.labels == label] for s in (whole.train, whole.test)])
        assert torch.equal(data.target.inputs[data.target.labels == place], both)
    assert data.facts["counts"] == {"train": [12] * len(classes), "test": [10] * len(classes)}
    assert data.facts["transfer"]["counts"] == [22] * 3


def test_target_sequences_keep_their_lengths() -> None:
    """Of both splits. Red: padding that is read as the last token, when they are measured."""
    data = replace(token_data(classes=4), facts=prepare_digits(digits()).facts)
    target = split_for_transfer(data, asked(source=[0, 1], target=[3, 2], shots=[5]), None).target
    parts = [split[split.labels == label] for split in (data.train, data.test) for label in (2, 3)]
    assert torch.equal(target.lengths, torch.cat([part.lengths for part in parts]))
    assert torch.equal(target.inputs, torch.cat([part.inputs for part in parts]))


def test_all_samples_but_one_of_the_digits_may_be_other_images() -> None:
    """Which leaves none of a class for a test split, that nobody reads. Red: a ValueError."""
    spec = read(
        ImageData, DIGITS | {"source": "mnist", "ood": {"source": "digits", "per_class": 174, "seed": 0}}
    )
    trained_on = replace(image_data(28, 1, 10), facts=prepare_digits(digits()).facts)
    with pytest.MonkeyPatch.context() as patch:
        sources = {**SOURCES, "mnist": lambda *_: trained_on}
        patch.setattr("ncpipe.datasets.prepare.SOURCES", sources)
        assert len(prepare(spec, Path(), None, False).ood) == 1740


def test_images_of_another_set_come_in_the_size_of_ones_own() -> None:
    """Flat stays flat, a ramp a ramp away from the border, no line is lost; a set with colours is refused."""
    labels = torch.arange(2).repeat_interleave(6)
    ramp = torch.linspace(0, 1, 28).expand(12, 1, 28, 28).clone()
    ramp[0], ramp[2] = 0.25, 0.0
    ramp[2, :, :, 10] = 1.0
    other = Prepared("image", 2, None, Split(ramp, labels), None, prepare_digits(digits()).facts)
    source = image_data(side=14, channels=1, classes=8)
    data = split_for_transfer(source, asked(target=[1, 0], shots=[5]), other)
    assert torch.equal(data.target.labels, 1 - labels)
    assert data.target.inputs[0].tolist() == [[[0.25] * 14] * 14]
    inner = data.target.inputs[1, 0, 3, 1:-1].double().numpy()
    assert inner == pytest.approx([(2 * i + 0.5) / 27 for i in range(1, 13)], rel=1e-6)  # two pixels' middle
    assert torch.count_nonzero(data.target.inputs[2, 0, 3]) == 2  # a line between two keeps part in both
    coloured = Prepared("image", 2, None, Split(ramp.repeat(1, 3, 1, 1), labels), None, other.facts)
    with pytest.raises(
        InputError, match=r"data.transfer.data: has images of 3 channels, the network reads 1"
    ):
        split_for_transfer(source, asked(target=[1, 0], shots=[5]), coloured)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source": [7, 12]}, "data.transfer.source: class 12 is missing; there are 0 to 9"),
        ({"target": [0, 10]}, "data.transfer.target: class 10 is missing; there are 0 to 9"),
        ({"shots": [22]},
         "data.transfer.shots: 22 leave no sample to try of class 0, which has 22; take fewer"),
    ],
)  # fmt: skip
def test_classes_and_shots_that_the_data_lack_are_named(changes: dict[str, Any], message: str) -> None:
    refused = refused_by(prepare, digits(transfer=KEYS | changes), Path(), None, False)
    assert refused.startswith(message)


MIXTURE = {
    "source": "gaussian_mixture", "classes": 6, "dimension": 5, "separation": 4.0, "noise": 1.0,
    "per_class": 4, "test_per_class": 4, "seed": 0,
}  # fmt: skip
FEW = {"source": [0, 1], "target": [2, 3], "shots": [2]}
OTHER = {"data": {"source": "digits", "per_class": 9, "seed": 0}}
NOISE = {"fraction": 0.5, "kind": "uniform", "seed": 0}
IMBALANCE = {"majority": 5, "ratio": 2, "resample": "none"}


@pytest.mark.parametrize(
    ("data", "changes", "message"),
    [
        (DIGITS, {"source": [1]}, "source: too few; list at least 2"),
        (DIGITS, {"source": [3, 4, 9]}, "target: 9 is a source class too; take it out of one of them"),
        (DIGITS, {"target": [3, 3]}, "target: 3 is listed twice"),
        (DIGITS, {"shots": []}, "shots: too few; list at least 1"),
        (DIGITS, {"head": ["ncc"]}, "ridge: is the penalty of `head: [ridge]`; give both or neither"),
        (DIGITS, {"n_source": 4}, "n_source: 4 is not in 2..3, as source has them"),
        (DIGITS, {"n_source": 1}, "n_source: 1 is not in 2..3, as source has them"),
        (MIXTURE, FEW | OTHER, "data: other images need one of the image sets to train"),
        (DIGITS | {"label_noise": NOISE}, {}, "does not go together with label_noise or imbalance"),
        (DIGITS | {"imbalance": IMBALANCE}, {}, "does not go together with label_noise or imbalance"),
    ],
)
def test_bad_keys_are_one_line(data: dict[str, Any], changes: dict[str, Any], message: str) -> None:
    tree = experiment_tree(data=data | {"transfer": KEYS | changes}) | {"model": MODEL}
    refused = refused_by(read, Experiment, tree)
    assert re.search(rf"data\.transfer[.:] ?{re.escape(message)}", refused)


# What heads make of a few features


def naive_errors(features: Tensor, labels: Tensor, places: Tensor, ridge: float) -> tuple[float, float]:
    """Nearest mean and ridge regression of one episode, sample by sample and by normal equations."""
    h, y, chosen = features.numpy(), labels.numpy(), places.numpy()
    classes = len(chosen)
    means = [np.mean([h[i] for i in row], axis=0) for row in chosen]
    known, centre = h[chosen.ravel()], h[chosen.ravel()].mean(0)
    x = known - centre
    targets = np.repeat(np.eye(classes), chosen.shape[1], axis=0) - 1 / classes
    scale = np.mean(np.sum(x**2, axis=1))
    a = np.linalg.solve(x.T @ x / len(x) + ridge * scale * np.eye(h.shape[1]), x.T @ targets / len(x))
    wrong = np.zeros((2, classes))
    others = [i for i in range(len(y)) if i not in chosen]
    for i in others:
        wrong[0, y[i]] += np.argmin([np.linalg.norm(h[i] - m) for m in means]) != y[i]
        wrong[1, y[i]] += np.argmax((h[i] - centre) @ a) != y[i]
    errors = (wrong / np.bincount(y[others], minlength=classes)).mean(1)
    return errors[0], errors[1]


@pytest.mark.parametrize("width", [3, 40])
def test_the_naive_twin_agrees_episode_by_episode(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In parts of four rows. Red: shots among the samples tried; one class with more samples weighing more;
    uncentred regression."""
    monkeypatch.setattr("ncpipe.metrics.pairs.ROW_ENTRIES", 12)
    features, labels = clouds(0.8, width=width, per_class=12)
    features, labels = torch.cat([features, features[:3] + 0.1]), torch.cat([labels, labels[:3] * 0])
    draws = seeded_generator(5, "transfer episodes 4")
    expected = [naive_errors(features, labels, draw_shots(labels, 3, 4, draws), 0.3) for _ in range(6)]
    metrics = dict(transfer_metrics(features + 50, labels, [4], 6, ["ncc", "ridge"], 0.3, 5))
    assert metrics["transfer_ncc_error_004"] == pytest.approx(np.mean([n for n, _ in expected]), abs=1e-12)
    assert metrics["transfer_ridge_error_004"] == pytest.approx(np.mean([r for _, r in expected]), abs=1e-12)
    assert 0 < metrics["transfer_ncc_error_004"] < 0.7


@pytest.mark.parametrize("shots", [1, 3])
@pytest.mark.parametrize("spread", [0.02, 0.1, 0.3])
def test_the_bound_holds_for_whatever_distribution(shots: int, spread: float) -> None:
    """Rare far samples, of which Chebyshev knows no better; near collapse the bound is below 1."""
    features, labels = clouds(spread, width=3)
    features[::10] += 3 * spread * torch.randn(12, 3, generator=generator(2), dtype=torch.float64)
    metrics = dict(transfer_metrics(features, labels, [shots], 200, ["ncc"], None, 0))
    bound = 8 * 2 * (1 + 1 / shots) * cdnv(class_statistics(features, labels, 3))
    assert metrics[f"transfer_bound_{shots:03d}"] == pytest.approx(bound, rel=1e-12)
    assert metrics[f"transfer_ncc_error_{shots:03d}"] <= bound
    assert metrics[f"transfer_ncc_error_{shots:03d}"] <= metrics[f"transfer_directional_bound_{shots:03d}"]
    assert bound < 1 or spread > 0.02


@pytest.mark.parametrize("exponent", [-560, 60, 520])
def test_errors_are_the_same_in_any_unit(exponent: int) -> None:
    """Red: squares that are 0 or infinite, so that all samples go to class 0."""
    features, labels = clouds(0.8, width=3)
    scaled = features * 2.0**exponent
    options: dict[str, Any] = {"shots": 3, "episodes": 4}
    expected = nc.functional.transfer_ncc_error(features, labels, **options)
    assert 0 < nc.functional.transfer_ncc_error(scaled, labels, **options) == pytest.approx(expected)
    along = [nc.functional.directional_cdnv(each, labels) for each in (features, scaled)]
    assert along[1] == pytest.approx(along[0])
    expected = nc.functional.transfer_ridge_error(features, labels, ridge=0.1, **options)
    assert nc.functional.transfer_ridge_error(scaled, labels, ridge=0.1, **options) == pytest.approx(expected)


@pytest.mark.parametrize("ridge", [0.0, -1.0, math.nan, "a"])
def test_a_ridge_is_above_0(ridge: Any) -> None:
    """Red: a traceback of LAPACK; a number without a meaning."""
    with pytest.raises(InputError, match=r"^ridge: a number above 0, not "):
        nc.functional.transfer_ridge_error(*clouds(0.8), ridge=ridge, shots=3)


def test_limits() -> None:
    """Collapsed classes are told apart by one shot; of a dead network nothing is; NaN stays NaN."""
    features, labels = clouds(0.0)
    metrics = dict(transfer_metrics(features, labels, [1], 3, ["ncc", "ridge"], 0.1, 0))
    assert set(metrics.values()) == {0}
    metrics = dict(transfer_metrics(0 * features, labels, [1], 3, ["ncc", "ridge"], 0.1, 0))
    assert metrics["transfer_ncc_error_001"] == metrics["transfer_ridge_error_001"] == pytest.approx(2 / 3)
    bounds = ("transfer_bound_001", "transfer_directional_bound_001", "directional_cdnv")
    assert {metrics[name] for name in bounds} == {math.inf}
    features[3, 0] = math.nan
    values = dict(transfer_metrics(features, labels, [1], 3, ["ncc", "ridge"], 0.1, 0)).values()
    assert all(math.isnan(value) for value in values)
    rows = torch.tensor([[0.0], [1.0], [3.0]], dtype=torch.float64)
    shots = torch.tensor([[[0.0], [1.0]], [[3.0], [4.0]]], dtype=torch.float64)
    assert nearest_shots(shots, rows).tolist() == ridge_shots(shots, rows, 1.0).tolist() == [0, 0, 1]


def naive_axes(features: np.ndarray, labels: np.ndarray, shots: int) -> tuple[float, float]:
    """Directional CDNV and the bound of arXiv 2603.03530, Thm 4.1, pair by pair from covariances."""
    classes = labels.max() + 1
    groups = [features[labels == k] for k in range(classes)]
    means = [group.mean(0) for group in groups]
    covariances = [np.cov(group.T, bias=True) for group in groups]
    fourth = [np.mean(np.sum((group - group.mean(0)) ** 2, 1) ** 2) for group in groups]
    shares, total = [], 0.0
    for i, j in itertools.permutations(range(classes), 2):
        axis = means[i] - means[j]
        size = axis @ axis
        along = axis @ covariances[i] @ axis / size**2
        of_i, of_j = np.trace(covariances[i]) / size, np.trace(covariances[j]) / size
        both = of_i + of_j
        of_samples = 4 / shots * (both**2 + both / 4)
        of_squares = ((fourth[i] + fourth[j]) / size**2 + 2 * (shots - 1) * both**2) / shots**3
        noise = (math.sqrt(of_samples) + math.sqrt(both / shots) + math.sqrt(of_squares)) ** 2
        total += (4 * along + noise) / (1 + (of_j - of_i) / shots) ** 2
        shares.append(along)
    return float(np.mean(shares)), total / classes


@pytest.mark.parametrize("scale", [1.0, 1e-200, 1e200])
@pytest.mark.parametrize("shots", [1, 10])
def test_the_axes_agree_with_covariances(shots: int, scale: float) -> None:
    """Red: variances of the other class of a pair; squares that leave float64's range."""
    features, labels = clouds(0.3, width=4, per_class=15)
    features[labels == 1] *= 1.5
    features[:, 3] *= 20
    metrics = dict(transfer_metrics(scale * (features + 7), labels, [shots], 1, [], None, 0))
    cdnv_along, bound = naive_axes(features.numpy(), labels.numpy(), shots)
    assert metrics["directional_cdnv"] == pytest.approx(cdnv_along, rel=1e-12)
    assert metrics[f"transfer_directional_bound_{shots:03d}"] == pytest.approx(bound, rel=1e-12)
    assert metrics["directional_cdnv"] <= cdnv(class_statistics(features, labels, 3))


def test_arrays_of_a_frozen_encoder_have_them() -> None:
    """By `nc.measure` and by functions alike, without a classifier. Red: other episodes."""
    features, labels = clouds(0.8)
    values = nc.measure(features, labels, shots=(2, 5), episodes=7, seed=3)
    assert "transfer_ncc_error_002" in values
    call = {"shots": 5, "episodes": 7, "seed": 3}
    assert values["transfer_ncc_error_005"] == nc.functional.transfer_ncc_error(features, labels, **call)
    assert values["directional_cdnv"] == nc.functional.directional_cdnv(features, labels)
    assert values["transfer_directional_bound_005"] == nc.functional.transfer_directional_bound(
        features, labels, shots=5
    )
    assert not [row for row in nc.measure(features, labels) if row.metric.startswith(("transfer", "direct"))]


# Through the stages


@pytest.mark.usefixtures("study_folder")
def test_its_numbers_are_those_of_the_networks_features() -> None:
    """Fetch to tables; without the key there is no split target."""
    moved = experiment_tree(data=DIGITS | {"transfer": KEYS}) | {"model": MODEL}
    write_params([3], [0], moved=moved, plain=experiment_tree(data=DIGITS) | {"model": MODEL})
    measure_runs("moved", "plain", depths=[3])
    aggregate()
    data = read_prepared(Path("data/prepared/moved"))
    features = read_features(Path("data/features/moved/L3/s0.safetensors"))
    assert features.weight.shape == (3, 16)
    assert torch.equal(features.target.labels, data.target.labels)
    points = pd.read_csv("data/results/points.csv")
    values = points[points["split"] == "target"].set_index("metric")["value"]
    inputs, labels = features.target.inputs, features.target.labels
    expected = dict(transfer_metrics(inputs, labels, [1, 5], 20, ["ncc", "ridge"], 0.1, 4))
    expected["cdnv"] = cdnv(class_statistics(inputs, labels, 3))
    assert values.drop("nc1_trace_ratio").to_dict() == pytest.approx(expected, rel=1e-9)
    assert all(entry(name) is not UNKNOWN for name in values.index)
    assert set(points[points["split"] == "target"]["experiment"]) == {"moved"}
    state = load_file("data/runs/moved/L3/s0/model.safetensors")
    hidden = data.target.inputs.double().flatten(1) @ state["maps.0.weight"].double().T
    hidden = torch.relu(hidden + state["maps.0.bias"].double())
    expected = dict(transfer_metrics(hidden, labels, [1, 5], 20, ["ncc", "ridge"], 0.1, 4))
    rows = pd.read_csv("data/metrics/moved/measurements.csv").query("layer == 'H1' and split == 'target'")
    inner = rows.set_index("metric")["value"].drop(["nc1_trace_ratio", "cdnv"])
    assert inner.to_dict() == pytest.approx(expected, rel=1e-9)
