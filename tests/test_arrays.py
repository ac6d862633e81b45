"""Data of one's own: what is read of a file, what is refused, and a whole study without test samples."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import experiment_tree, measure_runs, refused_by, write_params
from safetensors.numpy import save_file
from sklearn.preprocessing import StandardScaler

from ncpipe.commands.aggregate import aggregate
from ncpipe.commands.fetch import fetch
from ncpipe.config.experiment import Experiment
from ncpipe.config.records import read
from ncpipe.config.sources.arrays import ArraysData
from ncpipe.datasets.array_files import read_arrays
from ncpipe.datasets.arrays import NAMES, prepare_arrays
from ncpipe.datasets.prepared import read_prepared, write_prepared
from ncpipe.system.artifacts import METRICS, RESULTS, RUNS
from ncpipe.system.errors import InputError

VECTORS = ArraysData("arrays", "mine.npz", "vector", None, None, 0, "none")
IMAGES = replace(VECTORS, kind="image")
TOKENS = replace(VECTORS, kind="tokens")
DATA = {"source": "arrays", "file": "mine.npz", "kind": "vector", "seed": 0, "normalisation": "none"}


@pytest.fixture(autouse=True)
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def vectors(per_class: int = 10, classes: int = 3) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    stored = {}
    for prefix, count in (("", per_class), ("test_", 4)):
        labels = np.tile(np.arange(classes, dtype=np.int32), count)
        stored[f"{prefix}inputs"] = np.eye(6)[labels] * 5 + generator.standard_normal((len(labels), 6))
        stored[f"{prefix}labels"] = labels
    return stored


def saved(**changes: Any) -> None:
    """The vectors with some arrays replaced, or left out where None, as mine.npz."""
    stored = vectors() | changes
    np.savez("mine.npz", **{name: value for name, value in stored.items() if value is not None})


def refusal(spec: ArraysData = VECTORS) -> str:
    message = refused_by(prepare_arrays, spec)
    assert message.startswith("mine.npz: ")
    return message


# --- what is read -------------------------------------------------------------------------------------


def test_all_samples_as_they_are_from_either_format() -> None:
    stored = vectors()
    np.savez("mine.npz", **stored)
    save_file(stored, "mine.safetensors")
    data = prepare_arrays(VECTORS)
    other = prepare_arrays(replace(VECTORS, file="mine.safetensors"))
    assert (data.kind, data.classes, data.vocabulary) == ("vector", 3, None)
    for prefix, split, twin in (("", data.train, other.train), ("test_", data.test, other.test)):
        assert split is not None
        assert twin is not None
        assert split.inputs.numpy().tolist() == stored[f"{prefix}inputs"].astype(np.float32).tolist()
        assert split.labels.tolist() == stored[f"{prefix}labels"].tolist()
        assert torch.equal(split.inputs, twin.inputs)
    assert data.facts["in_file"] == {"train": 30, "test": 12}
    assert data.facts["counts"] == {"train": [10] * 3, "test": [4] * 3}


def test_a_draw_is_balanced_and_the_seeds() -> None:
    labels = np.repeat([0, 1, 2], [20, 7, 3])
    saved(inputs=np.arange(30.0)[:, None] * np.ones(6), labels=labels)
    drawn = prepare_arrays(replace(VECTORS, per_class=3, test_per_class=2))
    again, other = (prepare_arrays(replace(VECTORS, per_class=3, seed=seed)) for seed in (0, 1))
    assert drawn.train.labels.tolist() == [0] * 3 + [1] * 3 + [2] * 3
    assert labels[drawn.train.inputs[:, 0].long().numpy()].tolist() == drawn.train.labels.tolist()
    assert torch.equal(drawn.train.inputs, again.train.inputs)
    assert not torch.equal(drawn.train.inputs, other.train.inputs)
    assert drawn.test is not None
    assert len(drawn.test) == 6
    assert prepare_arrays(VECTORS).facts["counts"] == {"train": [20, 7, 3], "test": [4] * 3}  # all of them


@pytest.mark.parametrize("spec", [VECTORS, IMAGES], ids=["vectors", "images"])
def test_what_is_constant_is_divided_by_1_as_scikit_learn_does(
    spec: ArraysData, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the training samples. Red: features with a coordinate that a ReLU never opens, which could not be
    standardised."""
    sides = () if spec is VECTORS else (3, 3)
    train, test = (np.random.default_rng(n).standard_normal((n, 4, *sides)) for n in (30, 12))
    train[:, [1, 3]] = [[[[0.1]], [[0.0]]]] if sides else [0.1, 0.0]
    saved(inputs=train.astype(np.float32), test_inputs=test.astype(np.float32))
    data = prepare_arrays(replace(spec, normalisation="standardise"))
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("mine.npz: 2 of 4 ")
    assert "constant in the drawn training samples, the first is 1 (from 0)" in said

    def rows(values: np.ndarray) -> np.ndarray:
        return np.moveaxis(values, 1, -1).reshape(-1, 4).astype(np.float32)

    peer = StandardScaler().fit(rows(train).astype(np.float64))
    assert data.test is not None
    for split, values in ((data.train, train), (data.test, test)):
        expected = peer.transform(rows(values).astype(np.float64))
        np.testing.assert_allclose(rows(split.inputs.numpy()), expected, atol=1e-6)


def test_numbers_far_from_0_are_standardised_before_they_are_rounded() -> None:
    """As Unix times. Red: a column that float32 makes constant, which would be all 0."""
    times = 1_700_000_000 + 10 * np.arange(30)
    inputs = np.random.default_rng(0).standard_normal((30, 4))
    inputs[:, 2] = times
    saved(inputs=inputs, test_inputs=inputs[:12])
    spec = replace(VECTORS, normalisation="standardise")
    prepared = prepare_arrays(spec).train.inputs.double().numpy()
    expected = StandardScaler().fit_transform(inputs)
    np.testing.assert_allclose(np.sort(prepared[:, 2]), np.sort(expected[:, 2]), atol=1e-6)


def test_token_ids_have_lengths_and_a_vocabulary_of_both_splits() -> None:
    generator = np.random.default_rng(2)
    ids = generator.integers(0, 9, (30, 5))
    lengths = generator.integers(1, 6, 30)
    saved(inputs=ids, test_inputs=np.full((12, 5), 11), lengths=lengths)
    data = prepare_arrays(TOKENS)
    assert data.vocabulary == 12
    assert data.train.inputs.tolist() == ids.tolist()
    assert data.train.lengths is not None
    assert data.test is not None
    assert data.test.lengths is not None
    assert data.train.lengths.tolist() == lengths.tolist()
    assert data.test.lengths.tolist() == [5] * 12


def test_a_file_written_anew_is_the_same_data() -> None:
    """The zip archive has times in it; DVC would train again if the prepared folder were another one."""
    saved()
    first = prepare_arrays(VECTORS)
    stored = vectors()
    np.savez_compressed("mine.npz", **dict(reversed(stored.items())))
    assert prepare_arrays(VECTORS).facts == first.facts
    stored["inputs"][3, 2] += 1
    np.savez("mine.npz", **stored)
    assert prepare_arrays(VECTORS).facts != first.facts


def test_without_test_samples_nothing_of_them_is_stored() -> None:
    saved(test_inputs=None, test_labels=None)
    data = prepare_arrays(VECTORS)
    write_prepared(Path("data/one"), data)
    back = read_prepared(Path("data/one"))
    assert back.test is None
    assert torch.equal(back.train.inputs, data.train.inputs)
    assert back.facts["counts"] == {"train": [10] * 3}
    assert "shared" not in back.facts


# --- what is refused ----------------------------------------------------------------------------------

HOLES = np.where(np.arange(180).reshape(30, 6) == 20, np.nan, 1.0)
IDS = {"inputs": np.ones((30, 6), dtype=int), "test_inputs": np.ones((12, 6), dtype=int)}
PAIRS = np.random.default_rng(1).random((30, 2))
TARGETS = replace(VECTORS, targets="vectors")
UNLABELLED = {"labels": None, "test_inputs": None, "test_labels": None}
TESTED = {"labels": None, "test_labels": None, "targets": PAIRS}


@pytest.mark.parametrize(
    ("spec", "changes", "words"),
    [
        (VECTORS, {"inputs": None}, "no 'inputs'"),
        (VECTORS, {"labels": None}, "has no 'labels'; it has inputs, "),
        (VECTORS, {"test_labels": None}, "test_inputs and no test_labels"),
        (VECTORS, {"test_inputs": None}, "test_labels and no test_inputs"),
        (VECTORS, {"test_label": np.ones(3)}, "nothing reads test_label"),
        (VECTORS, {"inputs": np.full((30, 6), "a")}, "inputs: text holds no real numbers"),
        (VECTORS, {"inputs": np.full((30, 6), None)}, "Python objects"),
        (VECTORS, {"inputs": np.ones((30, 6, 2))}, r"inputs has shape \(30, 6, 2\); .* takes \(N, D\)"),
        (VECTORS, {"inputs": np.ones((30, 0))}, r"inputs has shape \(30, 0\)"),
        (VECTORS, {"inputs": HOLES}, "inputs has NaN, inf or .* first in sample 3 "),
        (VECTORS, {"inputs": np.where(np.isnan(HOLES), 1e300, HOLES)}, "inputs has .* float32 .* sample 3 "),
        (VECTORS, {"inputs": np.ones((29, 6))}, "inputs has 29 samples and labels 30"),
        (VECTORS, {"labels": np.zeros((30, 1), dtype=int)}, r"labels has shape \(30, 1\); expected \(N,\)"),
        (VECTORS, {"labels": np.zeros(0, dtype=int)}, r"labels has shape \(0,\)"),
        (VECTORS, {"labels": np.tile([0.0, 1.0, 2.0], 10)}, "labels is of type float64; expected whole"),
        (VECTORS, {"labels": np.tile([1, 2, 3], 10)}, "labels has no sample of class 0; each of 0 to 3"),
        (VECTORS, {"labels": np.tile([-1, 0, 1], 10)}, "labels has a label -1; classes are numbered 0 to 1"),
        (VECTORS, {"labels": np.zeros(30, dtype=int)}, "labels name 1 class"),
        (VECTORS, {"test_labels": np.tile([0, 1, 3], 4)}, "test_labels has a label 3; .* numbered 0 to 2"),
        (VECTORS, {"test_inputs": np.ones((12, 5))}, r"test_inputs has samples of .*\(5,\), .*\(6,\)"),
        (VECTORS, {"lengths": np.ones(30, dtype=int)}, "lengths does not apply to kind: vector"),
        (TOKENS, {}, "inputs is of type float64; token ids are whole numbers"),
        (TOKENS, IDS | {"inputs": np.full((30, 6), -2)}, "inputs has a token id -2; ids begin at 0"),
        (TOKENS, IDS | {"lengths": np.zeros(30, dtype=int)}, "lengths goes from 0 to 0, not 1 to 6"),
        (TOKENS, IDS | {"lengths": np.full(30, 7)}, "lengths goes from 7 to 7, not 1 to 6"),
        (TOKENS, IDS | {"lengths": np.full(29, 7)}, r"lengths is int64 \(29,\); expected .* \(30,\)"),
        (TARGETS, UNLABELLED | {"labels": np.arange(30) % 3}, "has no 'targets'; it has inputs, labels"),
        (TARGETS, UNLABELLED | {"targets": np.arange(30) % 2}, "targets are of type torch.int64; expected"),
        (TARGETS, UNLABELLED | {"targets": PAIRS[:, 0]}, r"targets are \(30,\); .* \(N, t\).*reshape"),
        (TARGETS, UNLABELLED | {"targets": 0 * PAIRS + [1, 2]}, "targets are constant in column 0"),
        (TARGETS, TESTED | {"test_targets": np.eye(12)[:, :1]}, "test_targets has 1 numbers"),
        (VECTORS, UNLABELLED | {"labels": np.arange(30) % 3, "ood_inputs": np.ones((4, 6))},
         "ood_inputs: its scores are compared with those of test samples; give test_inputs"),
        (VECTORS, {"ood_inputs": np.float32(1)}, r"ood_inputs has shape \(\); kind: vector takes"),
        (VECTORS, {"ood_inputs": np.ones((4, 5))}, r"ood_inputs has samples of .*\(5,\), .*\(6,\)"),
        (VECTORS, {"ood_inputs": vectors()["inputs"][:7]}, "ood_inputs: 7 of its 7 samples are train"),
        (VECTORS, {"ood_inputs": vectors()["test_inputs"]}, "ood_inputs: 12 of its 12 samples are test"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)  # fmt: skip
def test_a_wrong_array_is_one_line_that_names_file_and_array(
    spec: ArraysData, changes: dict[str, Any], words: str
) -> None:
    saved(**changes)
    assert re.search(words, refusal(spec))


def test_keys_that_the_file_cannot_follow_are_one_line() -> None:
    saved(test_inputs=None, test_labels=None)
    message = refusal(replace(VECTORS, test_per_class=2))
    assert message.endswith("has no test_inputs; write null for data.test_per_class")
    assert "class 0 of the train split has 10 samples" in refusal(replace(VECTORS, per_class=11))
    tree = experiment_tree(data=DATA | {"kind": "tokens", "per_class": None, "test_per_class": None})
    tree["data"]["normalisation"] = "standardise"
    with pytest.raises(InputError, match=r"data: normalisation: token ids have none"):
        read(Experiment, tree)


def test_an_extension_may_be_in_capitals() -> None:
    np.savez("UPPER.npz", inputs=np.zeros((4, 2)), labels=[0, 0, 1, 1])
    Path("UPPER.npz").rename("UPPER.NPZ")
    assert set(read_arrays(Path("UPPER.NPZ"), NAMES)[0]) == {"inputs", "labels"}


def test_images_with_the_channels_last_are_one_line() -> None:
    """Red: 8 channels of 8 x 3 pixels, standardised and learned in silence."""
    saved(inputs=np.ones((30, 8, 8, 3)), test_inputs=np.ones((12, 8, 8, 3)))
    message = refusal(IMAGES)
    assert "inputs has shape (30, 8, 8, 3), whose channels seem to be last" in message
    assert "inputs.transpose(0, 3, 1, 2)" in message


def test_a_missing_or_damaged_file_is_one_line() -> None:
    assert "not found" in refusal()
    Path("mine.npz").write_bytes(b"nonsense")
    assert "damaged" in refusal()


def test_dvc_has_to_watch_the_file() -> None:
    saved()
    write_params([2], [0], own=experiment_tree(data=DATA | {"per_class": None, "test_per_class": None}))
    text = "stages:\n  fetch:\n    cmd: ncpipe fetch own\n    deps:\n      - other.npz\n"
    Path("dvc.yaml").write_text(text)
    Path("other.npz").touch()
    with pytest.raises(InputError, match=r"^dvc\.yaml: .*add the line `- mine\.npz` to the deps .* fetch$"):
        fetch("own")
    Path("dvc.yaml").write_text(text + "      - ./mine.npz\n")
    fetch("own")


# --- a study without test samples ---------------------------------------------------------------------


def test_nothing_asks_for_a_test_split_that_is_not_there() -> None:
    """From the data to the tables, of a study of two depths and seeds."""
    saved(test_inputs=None, test_labels=None)
    data = DATA | {"per_class": None, "test_per_class": None}
    write_params([2, 3], [0, 1], own=experiment_tree(data=data, epochs=100, log_every=5))
    params = Path("params.yaml")
    params.write_text(params.read_text().replace("tolerance: 0.01", "tolerance: 0.5"))  # so few epochs
    measure_runs("own", depths=[2, 3], seeds=[0, 1])
    assert read_prepared(Path("data/prepared/own")).test is None
    assert "test_error" not in pd.read_csv(RUNS / "own/L2/s0/history.csv")
    assert set(pd.read_csv(METRICS / "own/measurements.csv")["split"]) == {"train", "weights"}
    aggregate()
    runs = pd.read_csv(RESULTS / "runs.csv")
    assert runs["test_error"].isna().all()
    assert runs["converged"].all()
    assert runs["train_error"].notna().all()
    for table in ("points", "summary", "slopes"):
        assert set(pd.read_csv(RESULTS / f"{table}.csv")["split"]) == {"train", "weights"}
