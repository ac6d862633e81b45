"""Wrong training labels and small classes: which samples, and what is measured on them."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import TREE, experiment, normal, refused_by, vector_data
from safetensors.torch import load_file

from ncpipe.config.run import Run
from ncpipe.config.sources.generated import GaussianMixtureData
from ncpipe.config.sources.source import Imbalance, LabelNoise
from ncpipe.datasets.labels import kept_samples, noisy_labels, with_label_changes
from ncpipe.datasets.prepare import prepare
from ncpipe.datasets.prepared import read_prepared, write_prepared
from ncpipe.features.extraction import extract
from ncpipe.features.files import read_features, write_features
from ncpipe.features.run_metrics import _by_size
from ncpipe.metrics.class_sizes import metrics_by_size, minority_cosine, minority_spread, size_groups
from ncpipe.metrics.statistics import class_statistics
from ncpipe.metrics.table import measure, measure_layer
from ncpipe.models.build import build_model, input_shape
from ncpipe.theory.frames import simplex_frame

CPU = torch.device("cpu")
LABELS = torch.arange(6).repeat_interleave(50)
SMALL = {"majority": 1, "ratio": 2, "resample": "none"}
WRONG = {"fraction": 1, "kind": "uniform", "seed": 1}


def mixture(**more):
    return experiment(data=TREE["data"] | {"per_class": 20} | more).data


def prepared(**more):
    return prepare(mixture(**more), Path("raw"), None, progress=False)


def noise(fraction, kind="uniform", seed=0):
    return LabelNoise(fraction, kind, seed)


def test_absent_keys_leave_the_data_as_they_are(tmp_path: Path) -> None:
    """Red: a tensor or a fact more."""
    data = prepared()
    assert isinstance(mixture(), GaussianMixtureData)
    assert with_label_changes(data, mixture()) is data
    write_prepared(tmp_path / "data", data)
    names = {f"{split}.{part}" for split in ("train", "test") for part in ("inputs", "labels")}
    assert set(load_file(tmp_path / "data/tensors.safetensors")) == names
    assert {"label_noise", "imbalance"}.isdisjoint(data.facts)


@pytest.mark.parametrize("kind", ["uniform", "permutation"])
def test_only_so_many_labels_change(kind: str) -> None:
    """Red: labels outside the drawn ones, or another number of them."""
    wrong = {}
    for fraction in (0.0, 0.1, 0.5, 1.0):
        given = noisy_labels(LABELS, 6, noise(fraction, kind))
        wrong[fraction] = given != LABELS
        # A label drawn anew is the old one for one in K: a binomial number of them, within five deviations.
        drawn = round(fraction * 300)
        assert abs(int(wrong[fraction].sum()) - drawn * 5 / 6) <= 5 * np.sqrt(drawn * 5 / 36)
        if kind == "permutation":
            assert torch.equal(given.bincount(), LABELS.bincount())
    assert not wrong[0.0].any()
    assert torch.equal(noisy_labels(LABELS, 6, noise(0.5, kind)), noisy_labels(LABELS, 6, noise(0.5, kind)))
    assert not torch.equal(wrong[0.5], noisy_labels(LABELS, 6, noise(0.5, kind, seed=1)) != LABELS)


def test_a_larger_fraction_has_the_wrong_labels_of_a_smaller_one() -> None:
    few, many = (noisy_labels(LABELS, 6, noise(fraction)) for fraction in (0.2, 0.6))
    changed_early = few != LABELS
    assert torch.equal(few[changed_early], many[changed_early])


def test_uniform_labels_come_from_all_classes() -> None:
    """Red: a label drawn from the other classes alone, or from fewer."""
    counts = noisy_labels(LABELS.repeat(20), 6, noise(1.0)).bincount(minlength=6).double()
    assert ((counts - 1000).abs() < 5 * 1000**0.5).all()


def test_the_true_labels_are_kept_and_nothing_else_changes(tmp_path: Path) -> None:
    clean, noisy = prepared(), prepared(label_noise={"fraction": 0.5, "kind": "permutation", "seed": 3})
    assert torch.equal(noisy.true_labels, clean.train.labels)
    assert torch.equal(noisy.train.inputs, clean.train.inputs)
    assert torch.equal(noisy.test.labels, clean.test.labels)
    record = noisy.facts["label_noise"]
    assert record == {
        "fraction": 0.5,
        "kind": "permutation",
        "seed": 3,
        "wrong": int((noisy.train.labels != clean.train.labels).sum()),
    }
    assert record["wrong"] > 0
    write_prepared(tmp_path / "data", noisy)
    again = read_prepared(tmp_path / "data")
    assert torch.equal(again.true_labels, noisy.true_labels)
    assert [name for name, _ in again.measured()] == ["train", "test", "true_labels"]


@pytest.mark.parametrize(("resample", "small"), [("none", 5), ("over", 20)])
def test_small_classes_are_part_of_the_balanced_draw(resample: str, small: int) -> None:
    """Red: other samples than the draw's first ones; normalisation or test samples that change."""
    whole, data = (
        prepared(**more) for more in ({}, {"imbalance": {"majority": 1, "ratio": 4.0, "resample": resample}})
    )
    assert data.facts["counts"] == {"train": [20, small, small], "test": [4, 4, 4]}
    rows = [list(range(20))]
    for start in (20, 40):
        rows.append([start + place % 5 for place in range(small)])
    expected = [row for part in rows for row in part]
    assert torch.equal(data.train.inputs, whole.train.inputs[expected])
    assert torch.equal(data.train.labels, whole.train.labels[expected])
    assert torch.equal(data.test.inputs, whole.test.inputs)
    assert data.true_labels is None


def test_metrics_on_the_true_labels_are_those_of_arrays(tmp_path: Path) -> None:
    """Every metric of the last layer. Red: given labels for true ones."""
    data = vector_data(per_class=12)
    true = data.train.labels
    given = noisy_labels(true, 3, noise(0.5, "permutation"))
    data = replace(data, train=replace(data.train, labels=given), true_labels=true)
    spec = experiment()
    network = build_model(spec.model, input_shape(data, spec.model), 3, 3, 0)
    write_features(tmp_path / "f.safetensors", extract(Run("x", 3, 0, spec), network.state_dict(), data, CPU))
    features = read_features(tmp_path / "f.safetensors")
    last = features.layers["last"]
    assert list(last) == ["train", "test", "true_labels"]
    h = features.train.inputs
    for split, labels in (("train", given), ("true_labels", true)):
        layer = last[split]
        rows = measure_layer(
            "last", split, layer.statistics, layer.samples, last["train"].statistics, features.weight
        )
        expected = {row.metric: row.value for row in measure(h, labels, features.weight)}
        for row in rows:
            assert row.value == pytest.approx(expected[row.metric], rel=1e-9, abs=1e-12), row.metric


def test_minority_collapse_at_its_ends() -> None:
    """A simplex has -1/(K-1) and sqrt((B-1)/(K-1)); equal rows of small classes have 1 and 0."""
    simplex = simplex_frame(10)
    assert minority_cosine(simplex, 5) == pytest.approx(-1 / 9)
    assert minority_spread(simplex, 5) == pytest.approx(np.sqrt(4 / 9))
    collapsed = simplex.clone()
    collapsed[5:] = simplex[5:].mean(0)
    assert minority_cosine(collapsed, 5) == pytest.approx(1)
    assert minority_spread(collapsed, 5) == pytest.approx(0, abs=1e-12)
    assert np.isnan(minority_cosine(simplex, 9)), "one small class has no pair"
    assert np.isnan(minority_spread(simplex, 9))
    draw = torch.randn(7, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows = [row / np.linalg.norm(row) for row in draw[4:].numpy()]
    naive = np.mean([rows[i] @ rows[j] for i in range(3) for j in range(i)])
    assert minority_cosine(draw, 4) == pytest.approx(naive, rel=1e-12)


def test_a_long_tail_falls_by_one_factor() -> None:
    """Red: the smallest class one step before the last, sizes that are cut off in place of rounded."""
    kept = kept_samples(LABELS, 6, Imbalance(None, 10.0, "none"))
    assert torch.bincount(LABELS[kept]).tolist() == [50, 32, 20, 13, 8, 5]  # 50 / 10^(k/5)
    assert torch.bincount(LABELS[kept_samples(LABELS, 6, Imbalance(None, 10.0, "over"))]).tolist() == [50] * 6


def test_groups_of_a_long_tail_are_thirds() -> None:
    """Red: a class in two groups, or in none; a group without a class."""
    assert size_groups(10, None) == {"head": slice(0, 3), "middle": slice(3, 7), "tail": slice(7, 10)}
    assert size_groups(2, None) == {"head": slice(0, 1), "tail": slice(1, 2)}
    assert size_groups(10, 4) == {"majority": slice(4), "minority": slice(4, 10)}


@pytest.mark.parametrize("majority", [None, 2])
def test_metrics_of_groups_are_those_by_hand(majority: int | None) -> None:
    """Red: sizes of the split for those of training, means that are not centred, means over samples."""
    labels = torch.tensor([0] * 9 + [1] * 5 + [2] * 4 + [3] * 2)
    features, weight = normal(20, 5), normal(4, 5, seed=1)
    decided = (features @ weight.T).argmax(1)
    trained = torch.tensor([30, 14, 9, 2])
    groups = size_groups(4, majority)
    statistics = class_statistics(features, labels, 4)
    metrics = dict(metrics_by_size(groups, trained, statistics, weight, decided != labels, labels))
    h, y, w = features.numpy(), labels.numpy(), weight.numpy()
    means = np.stack([h[y == k].mean(0) for k in range(4)])
    away = means - means.mean(0)
    between = (away**2).sum() / 4
    cosines = (w * away).sum(1) / np.linalg.norm(w, axis=1) / np.linalg.norm(away, axis=1)
    spread = np.array([((h[y == k] - means[k]) ** 2).sum(1).mean() for k in range(4)]) / between
    slope = np.polyfit(np.log10(trained.numpy()), cosines, 1)[0]
    expected = {"alignment_by_size": slope}
    for group, members in groups.items():
        in_group = np.isin(y, np.arange(4)[members])
        expected[f"{group}_error"] = (decided.numpy()[in_group] != y[in_group]).mean()
        expected[f"{group}_alignment"] = cosines[members].mean()
        expected[f"{group}_nc1"] = spread[members].mean()
    assert metrics == pytest.approx(expected, rel=1e-12)
    dead = class_statistics(features * 0, labels, 4)  # 0/0, of which NC1 is inf
    of_dead = dict(metrics_by_size(groups, trained, dead, weight, decided != labels, labels))
    assert {of_dead[f"{group}_nc1"] for group in groups} == {math.inf}
    assert "alignment_by_size" not in dict(
        metrics_by_size(groups, trained * 0 + 5, statistics, weight, decided != labels, labels)
    )


def test_the_pipeline_measures_small_classes_where_there_are_such() -> None:
    data = vector_data()
    spec = experiment(data=TREE["data"] | {"imbalance": SMALL})
    state = build_model(spec.model, input_shape(data, spec.model), 3, 3, 0).state_dict()
    features = extract(Run("x", 3, 0, spec), state, data, CPU)
    names = [(row.metric, row.split) for row in _by_size(Run("x", 3, 0, spec), features)]
    assert names[:2] == [("minority_cosine", "weights"), ("minority_spread", "weights")]
    assert names[2:] == [
        (f"{group}_{kind}", split)
        for split in ("train", "test")
        for group in ("majority", "minority")
        for kind in ("error", "alignment", "nc1")
    ]
    assert not list(_by_size(Run("x", 3, 0, experiment()), features))


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"imbalance": SMALL, "label_noise": WRONG}, "data.label_noise: does not go together with imbalance"),
        ({"imbalance": SMALL | {"majority": 3}}, "data.imbalance.majority: 3 of 3"),
        ({"imbalance": SMALL | {"ratio": 50}}, "data.imbalance.ratio: 50 leaves"),
        ({"per_class": 1, "label_noise": WRONG}, "data.label_noise: leaves class"),
    ],
)
def test_changes_that_do_not_fit_are_one_line(keys, line) -> None:
    message = refused_by(prepared, **keys)
    assert line in message
