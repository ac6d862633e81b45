"""Wrong training labels and small classes: which samples, and what is measured on them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import TREE, experiment, vector_data
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
from ncpipe.metrics.minority import errors_by_size, minority_cosine, minority_spread
from ncpipe.metrics.table import measure, measure_layer
from ncpipe.models.build import build_model, input_shape
from ncpipe.system.errors import InputError
from ncpipe.theory.frames import simplex_frame

CPU = torch.device("cpu")
LABELS = torch.arange(6).repeat_interleave(50)


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


def test_a_ratio_of_one_is_the_balanced_draw() -> None:
    assert torch.equal(kept_samples(LABELS, 6, Imbalance(3, 1.0, "none")), torch.arange(300))
    assert torch.equal(kept_samples(LABELS, 6, Imbalance(3, 1.0, "over")), torch.arange(300))


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
        own = last[split]
        found = measure_layer(
            "last", split, own.statistics, own.samples, last["train"].statistics, features.weight
        )
        expected = {row.metric: row.value for row in measure(h, labels, features.weight)}
        for row in found:
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
    draw = torch.randn(7, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows = [row / np.linalg.norm(row) for row in draw[4:].numpy()]
    naive = np.mean([rows[i] @ rows[j] for i in range(3) for j in range(i)])
    assert minority_cosine(draw, 4) == pytest.approx(naive, rel=1e-12)


def test_errors_of_large_and_small_classes() -> None:
    decided, labels = torch.tensor([0, 1, 2, 3, 0, 2]), torch.tensor([0, 1, 2, 3, 1, 3])
    assert errors_by_size(decided != labels, labels, 2) == (pytest.approx(1 / 3), pytest.approx(1 / 3))


def test_the_pipeline_measures_small_classes_where_there_are_such() -> None:
    data = vector_data()
    spec = experiment(data=TREE["data"] | {"imbalance": {"majority": 1, "ratio": 2.0, "resample": "none"}})
    state = build_model(spec.model, input_shape(data, spec.model), 3, 3, 0).state_dict()
    features = extract(Run("x", 3, 0, spec), state, data, CPU)
    found = [(row.metric, row.split) for row in _by_size(Run("x", 3, 0, spec), features)]
    assert found[:2] == [("minority_cosine", "weights"), ("minority_spread", "weights")]
    assert found[2:] == [
        (f"{which}_error", split) for split in ("train", "test") for which in ("majority", "minority")
    ]
    assert not list(_by_size(Run("x", 3, 0, experiment()), features))


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        (
            {
                "imbalance": {"majority": 1, "ratio": 2, "resample": "none"},
                "label_noise": {"fraction": 0.1, "kind": "uniform", "seed": 0},
            },
            "data.label_noise: does not go together with imbalance",
        ),
        ({"imbalance": {"majority": 3, "ratio": 2, "resample": "none"}}, "data.imbalance.majority: 3 of 3"),
        ({"imbalance": {"majority": 1, "ratio": 50, "resample": "none"}}, "data.imbalance.ratio: 50 leaves"),
        (
            {"per_class": 1, "label_noise": {"fraction": 1, "kind": "uniform", "seed": 1}},
            "data.label_noise: leaves class",
        ),
    ],
)  # fmt: skip
def test_changes_that_do_not_fit_are_one_line(keys, line) -> None:
    with pytest.raises(InputError) as caught:
        prepared(**keys)
    (only,) = str(caught.value).splitlines()
    assert line in only
