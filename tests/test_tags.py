"""Samples with several labels: data, the pick-all loss, metrics, errors, what is refused.

Against NumPy float64 written from the formulas.
"""

import json
import math
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import experiment_tree, measure_runs, write_params
from safetensors.torch import load_file
from torch import nn
from training_cases import PLAIN
from typer.testing import CliRunner

from ncpipe.commands.aggregate import aggregate
from ncpipe.commands.cli import app
from ncpipe.commands.grid import write_grid
from ncpipe.config.experiment import Experiment
from ncpipe.config.records import read
from ncpipe.config.run import Run
from ncpipe.config.sources.arrays import ArraysData
from ncpipe.datasets.arrays import prepare_arrays
from ncpipe.datasets.prepared import TagSplit, read_prepared, write_prepared
from ncpipe.datasets.targets import wrong_tags
from ncpipe.metrics.hooks import measure_multilabel_model
from ncpipe.metrics.table import Measurement, measure
from ncpipe.system.errors import InputError, MeasurementWarning
from ncpipe.training.loop import train_batch
from ncpipe.training.objective import Outputs, fit_times_samples

CLASSES = 4
PAIRS = list(combinations(range(CLASSES), 2))
MLP = PLAIN | {"width": 12}
DATA: dict[str, Any] = {
    "source": "arrays", "file": "a.npz", "kind": "vector", "per_class": None, "test_per_class": None,
    "seed": 0, "normalisation": "none", "targets": "tags",
}  # fmt: skip


def tags_of(copies: int, pairs: int = 2) -> np.ndarray:
    """Return `copies` rows of each single tag, then `pairs` of each pair of tags."""
    eye = np.eye(CLASSES, dtype=int)
    return np.concatenate([*[eye] * copies, *[np.stack([eye[i] + eye[j] for i, j in PAIRS])] * pairs])


def arrays(copies: int = 6) -> dict[str, np.ndarray]:
    """Return sums of the classes' patterns with noise, and their tags."""
    draw = np.random.default_rng(0)
    patterns = 2 * draw.standard_normal((CLASSES, 9))
    tags = tags_of(copies)
    return {"inputs": tags @ patterns + 0.1 * draw.standard_normal((len(tags), 9)), "tags": tags}


@pytest.fixture
def workdir(study_folder: Path) -> Path:
    data = arrays()
    np.savez("a.npz", **data, **{f"test_{name}": array[20:] for name, array in data.items()})
    return study_folder


def tree(**changes: Any) -> dict[str, Any]:
    experiment = experiment_tree(**{"data": DATA, "loss": "pick_all"} | changes)
    experiment["model"] = MLP | changes.get("model", {})
    return experiment


def spec_of(**changes: Any) -> Experiment:
    return read(Experiment, tree(**changes), "")


def by_name(rows: list[Measurement]) -> dict[tuple[str, str], float]:
    return {(row.split, row.metric): row.value for row in rows}


def pick_all(logits: np.ndarray, tags: np.ndarray) -> np.ndarray:
    """Return the sum over a sample's tags of log sum_j exp(f_j) - f_k, (N,)."""
    top = logits.max(1, keepdims=True)
    log_sum = top + np.log(np.exp(logits - top).sum(1, keepdims=True))
    return np.asarray((tags * (log_sum - logits)).sum(1))


def error_of(logits: np.ndarray, tags: np.ndarray) -> float:
    """Return the share of samples whose m largest logits are not those of the m tags, by sorting."""
    right = [
        set(np.argsort(row)[-sample_tags.sum() :]) == set(np.flatnonzero(sample_tags))
        for row, sample_tags in zip(logits, tags, strict=True)
    ]
    return 1 - float(np.mean(right))


def angle_of(features: np.ndarray, tags: np.ndarray, centred: bool = True) -> float:
    """Return the mean angle between the means of sets and the sums of their tags' means."""
    single = tags.sum(1) == 1
    sums, means, sizes = [], [], []
    for tag_set in np.unique(tags[~single], axis=0):
        tag_means = [features[single & (tags[:, k] == 1)].mean(0) for k in np.flatnonzero(tag_set)]
        sums.append(sum(tag_means))
        means.append(features[(tags == tag_set).all(1)].mean(0))
        sizes.append(tag_set.sum())
    angles = []
    for size in set(sizes):
        a, b = (
            np.stack([row for row, of in zip(rows, sizes, strict=True) if of == size])
            for rows in (means, sums)
        )
        a, b = (a - a.mean(0), b - b.mean(0)) if centred else (a, b)
        lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        angles += list(np.degrees(np.arccos((a * b).sum(1) / lengths)))
    return float(np.mean(angles))


def nc1_of_sets(features: np.ndarray, tags: np.ndarray) -> float:
    several = tags.sum(1) > 1
    groups = [features[(tags == tag_set).all(1)] for tag_set in np.unique(tags[several], axis=0)]
    means = np.stack([group.mean(0) for group in groups])
    within = sum(((group - group.mean(0)) ** 2).sum() for group in groups) / several.sum()
    return float(within / ((means - means.mean(0)) ** 2).sum(1).mean())


# --- metrics and loss ---------------------------------------------------------------------------------


def test_metrics_are_those_of_the_formulas_in_numpy() -> None:
    draw = np.random.default_rng(1)
    triples = np.repeat(1 - np.eye(CLASSES, dtype=int)[:3], 2, axis=0)
    tags = np.concatenate([tags_of(3), triples])
    features = draw.standard_normal((len(tags), 7)) + 3
    weight, bias = draw.standard_normal((CLASSES, 7)), draw.standard_normal(CLASSES)
    logits = features @ weight.T + bias
    metrics = by_name(measure(features, tags, weight, bias, features[:20], tags[:20]))
    assert metrics["train", "tags_angle"] == pytest.approx(angle_of(features, tags), rel=1e-9)
    raw = angle_of(features, tags, centred=False)
    assert metrics["train", "tags_angle_uncentred"] == pytest.approx(raw, rel=1e-9)
    moved = by_name(measure(features + 5 * tags.sum(1, keepdims=True) ** 2, tags))
    assert moved["train", "tags_angle"] == pytest.approx(metrics["train", "tags_angle"], rel=1e-9)
    assert metrics["train", "tags_nc1"] == pytest.approx(nc1_of_sets(features, tags), rel=1e-9)
    assert metrics["train", "tags_error"] == pytest.approx(error_of(logits, tags), rel=1e-12)
    assert metrics["test", "tags_error"] == pytest.approx(error_of(logits[:20], tags[:20]), rel=1e-12)
    alone = tags.sum(1) == 1
    of_one = by_name(measure(features[alone], tags[alone].argmax(1), weight, bias))
    assert all(metrics[key] == value for key, value in of_one.items())
    for scale in (1e-200, 1e200):
        far = by_name(measure(features * scale, tags))
        for metric in ("tags_angle", "tags_angle_uncentred", "tags_nc1"):
            assert far["train", metric] == pytest.approx(metrics["train", metric], rel=1e-9)
    for dead in (np.zeros_like(features), np.full_like(features, 0.1)):  # no angle, and so no collapse
        assert math.isnan(by_name(measure(dead, tags))["train", "tags_angle"])


def test_layers_of_a_model_are_measured_with_their_warnings() -> None:
    """Of five classes' tags in three numbers. Red: warnings that stay behind."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 3), nn.Tanh(), nn.Linear(3, 5)).double()
    inputs, tags = torch.randn(20, 6).double(), torch.eye(5, dtype=torch.int64).repeat(4, 1)
    with pytest.warns(MeasurementWarning, match="5 classes of width 3"):
        rows = measure_multilabel_model(network, "2", [(inputs, tags)], layers=["0"])
    values = {(row.layer, row.split, row.metric): row.value for row in rows}
    for layer, features in (("0", network[0](inputs)), ("last", network[:2](inputs))):
        alone = by_name(measure(features, tags))
        for metric in ("nc1_trace_ratio", "cdnv"):
            assert values[layer, "train", metric] == pytest.approx(alone["train", metric], rel=1e-12)


def test_a_tie_and_a_number_that_is_none_are_errors() -> None:
    logits = np.array(
        [[1.0, 1.0, 0.0, 0.0], [2.0, 1.0, 0.0, 0.0], [np.nan, 1.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]]
    )
    tags = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1]])
    assert wrong_tags(torch.from_numpy(logits), torch.from_numpy(tags)).tolist() == [True, False, True, False]


def test_of_single_tags_pick_all_is_cross_entropy_and_of_several_their_sum() -> None:
    draw = np.random.default_rng(2)
    tags = tags_of(1, pairs=1)
    logits = draw.standard_normal((len(tags), CLASSES))
    outputs = Outputs(*(torch.from_numpy(array)[None].double() for array in (logits, tags)))
    fit = fit_times_samples(outputs, "pick_all")
    assert fit.item() == pytest.approx(pick_all(logits, tags).sum(), rel=1e-12)
    ones = torch.from_numpy(tags[:CLASSES].argmax(1))[None]
    plain = fit_times_samples(Outputs(outputs.logits[:, :CLASSES], ones), "ce").item()
    assert plain == pytest.approx(pick_all(logits[:CLASSES], tags[:CLASSES]).sum(), rel=1e-12)


# --- data, training and stages ------------------------------------------------------------------------


def test_data_are_read_written_and_read_again(workdir: Path) -> None:
    data = prepare_arrays(read(ArraysData, DATA, ""))
    write_prepared(workdir / "data", data)
    back = read_prepared(workdir / "data")
    for split, stored in ((data.train, back.train), (data.test, back.test)):
        assert isinstance(stored, TagSplit)
        assert torch.equal(stored.labels, split.labels)
    assert back.train.labels.numpy() == pytest.approx(arrays()["tags"])
    ones = back.train.of_classes()
    assert (len(ones), len(back.train), back.classes) == (24, 36, CLASSES)
    assert ones.labels.tolist() == [0, 1, 2, 3] * 6


@pytest.mark.parametrize("batch_size", ["full", 16])
def test_a_run_in_a_stack_is_that_run_alone_and_that_of_numpy(batch_size: Any, workdir: Path) -> None:
    data = prepare_arrays(read(ArraysData, DATA, ""))
    spec = spec_of(
        batch_size=batch_size, epochs=3, penalty={"rule": "constant", "value": 0.01, "last_layer": None}
    )
    runs = [Run("e", 2, seed, spec) for seed in (0, 1)]
    both = train_batch(runs, data, torch.device("cpu"), "float64")
    alone = [train_batch([run], data, torch.device("cpu"), "float64")[0] for run in runs]
    for stacked, single in zip(both, alone, strict=True):
        assert all(torch.equal(stacked.state[name], single.state[name]) for name in single.state)
        state = {name: tensor.numpy() for name, tensor in single.state.items()}
        for split, error in (
            (data.train, single.history[-1].train_error),
            (data.test, single.history[-1].test_error),
        ):
            h = np.maximum(split.inputs.double().numpy() @ state["maps.0.weight"].T + state["maps.0.bias"], 0)
            logits, tags = h @ state["last.weight"].T + state["last.bias"], split.labels.numpy().astype(int)
            assert error == pytest.approx(error_of(logits, tags), abs=1e-12)
            if split is data.train:
                assert single.history[-1].fit == pytest.approx(pick_all(logits, tags).mean(), rel=1e-12)


def test_the_stages_measure_single_tags_as_classes_and_all_as_tags(workdir: Path) -> None:
    history = {"metrics": ["nc1_trace_ratio", "tags_angle"], "at": [0.0, 1.0]}
    write_params([2], [0], e=tree(history=history, epochs=40))
    measure_runs("e", depths=[2], seeds=[0])
    rows = pd.read_csv("data/metrics/e/measurements.csv")
    values = rows[rows["layer"] == "last"].set_index(["split", "metric"])["value"]
    features = "data/features/e/L2/s0.safetensors"
    result = CliRunner().invoke(app, ["metrics", features, "--json"], catch_exceptions=False)
    printed = json.loads(result.stdout)["measurements"]
    named = {(row["split"], row["metric"]): row["value"] for row in printed}
    for key in (
        ("train", "tags_angle"),
        ("test", "tags_nc1"),
        ("train", "nc1_trace_ratio"),
        ("weights", "nc2_etf"),
    ):
        assert values[key] == pytest.approx(named[key], rel=1e-12), key
    table = pd.read_csv("data/metrics/e/runs.csv").loc[0]
    assert table["train_error"] == values["train", "tags_error"]
    assert np.isnan(table["loss_gap"])
    assert table["bound_detail"] == "targets that are tags"
    ends = pd.read_csv("data/metrics/e/history.csv").set_index("epoch")
    assert ends.loc[40, "tags_angle"] == pytest.approx(values["train", "tags_angle"], rel=1e-9)
    assert ends.loc[40, "train_error"] == pytest.approx(table["train_error"], rel=1e-6)
    assert np.isfinite(table["gradient_norm"])
    write_grid()
    aggregate()
    assert {"nc1_trace_ratio", "tags_angle"} <= set(pd.read_csv("data/results/summary.csv")["metric"])
    stored = {name: tensor.numpy() for name, tensor in load_file(features).items()}
    logits = stored["train.features"] @ stored["weight"].T + stored["bias"]
    assert table["fit"] == pytest.approx(pick_all(logits, stored["train.tags"]).mean(), rel=1e-12)


# --- what is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"loss": "ce"}, "loss: ce needs classes, and the targets are tags; take `pick_all`"),
        ({"data": DATA | {"targets": "classes"}}, "loss: pick_all needs data with `targets: tags`; take `ce"),
        ({"data": DATA | {"per_class": 3}}, "per_class: needs classes, and the targets are tags; write null"),
    ],
)  # fmt: skip
def test_a_wrong_key_is_one_line(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        spec_of(**changes)


TAGS = tags_of(6)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tags": np.where(np.arange(36)[:, None] == 3, 0, TAGS)}, r"tags has no tag in row 3 \(from 0\)"),
        ({"tags": TAGS * 2}, r"tags has 2 in row 0 \(from 0\); tags are 0 or 1"),
        ({"tags": TAGS.argmax(1)}, r"tags has shape \(36,\); expected \(N, K\) of 0 and 1"),
        ({"tags": TAGS[1:4], "inputs": np.ones((3, 9))}, "no sample has the tag 0"),
        ({"test_inputs": np.ones((3, 9)), "test_tags": np.eye(3)}, "test_tags has 3 columns, and tags 4"),
        ({"tags": None, "labels": np.arange(36) % 4}, "has no 'tags'; it has inputs, labels"),
    ],
)  # fmt: skip
def test_a_wrong_array_is_one_line_that_names_it(changes: dict[str, Any], words: str, workdir: Path) -> None:
    """And as an argument of `measure`, where its values are wrong."""
    data = {name: array for name, array in (arrays() | changes).items() if array is not None}
    np.savez("a.npz", **data)
    with pytest.raises(InputError, match=words) as caught:
        prepare_arrays(read(ArraysData, DATA, ""))
    assert "\n" not in str(caught.value)
    if words.startswith("tags has") and data["tags"].ndim == 2:
        with pytest.raises(InputError, match=words.replace("tags has", "train labels has")):
            measure(data["inputs"], data["tags"])
