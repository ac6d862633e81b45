"""`ncpipe metrics FILE`: what it reads, prints and refuses."""

import csv
import io
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import refused_by
from safetensors.numpy import save_file
from typer.testing import CliRunner

from ncpipe.commands.cli import app
from ncpipe.metrics.table import measure
from ncpipe.system.errors import InputError


def arrays(per_class: int = 20, classes: int = 3, width: int = 5, seed: int = 0) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    centres = 2 * draw.standard_normal((classes, width))
    labels = np.tile(np.arange(classes), per_class)
    test_labels = np.tile(np.arange(classes), 4)
    return {
        "features": centres[labels] + draw.standard_normal((len(labels), width)),
        "labels": labels,
        "weight": centres + 0.1 * draw.standard_normal(centres.shape),
        "bias": draw.standard_normal(classes),
        "test_features": centres[test_labels] + draw.standard_normal((len(test_labels), width)),
        "test_labels": test_labels,
    }


def expected(stored: dict[str, np.ndarray]) -> dict[tuple[str, str], float]:
    rows = measure(**{name: torch.from_numpy(array) for name, array in stored.items()})
    return {(row.split, row.metric): row.value for row in rows}


def run(path: Path, *options: str) -> str:
    result = CliRunner().invoke(app, ["metrics", str(path), *options], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def values_of(text: str) -> dict[tuple[str, str], float]:
    """Back from --json; `float` also reads "inf" and "nan"."""
    return {(row["split"], row["metric"]): float(row["value"]) for row in json.loads(text)["measurements"]}


def refusal(path: Path) -> str:
    message = refused_by(run, path)
    assert message.startswith(f"{path}: ")
    return message


def saved(folder: Path, **changes: object) -> Path:
    """The arrays with some replaced, or left out where None, as .npz."""
    stored = arrays() | changes
    np.savez(folder / "h.npz", **{name: value for name, value in stored.items() if value is not None})
    return folder / "h.npz"


@pytest.mark.parametrize("left_out", [(), ("weight", "bias", "test_features", "test_labels")])
def test_npz_and_safetensors_give_what_the_library_gives(tmp_path: Path, left_out: tuple[str, ...]) -> None:
    stored = {name: value for name, value in arrays().items() if name not in left_out}
    np.savez(tmp_path / "h.npz", **stored)
    save_file(stored, tmp_path / "h.safetensors")
    want = expected(stored)
    assert values_of(run(tmp_path / "h.npz", "--json")) == want
    assert values_of(run(tmp_path / "h.safetensors", "--json")) == want


def test_csv_keeps_every_digit(tmp_path: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(run(saved(tmp_path), "--csv"))))
    assert {(row["split"], row["metric"]): float(row["value"]) for row in rows} == expected(arrays())


def test_json_says_how_many_and_is_strict(tmp_path: Path) -> None:
    """Coincident class means: infinite NC1, which JSON has no number for."""
    labels = np.array([0, 0, 1, 1])
    features = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    np.savez(tmp_path / "h.npz", features=features, labels=labels)
    text = run(tmp_path / "h.npz", "--json")
    answer = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert (answer["samples"], answer["width"], answer["classes"]) == (4, 2, 2)
    assert values_of(text)["train", "nc1_trace_ratio"] == math.inf
    assert '"inf"' in text


def test_pipeline_files_are_read_too(tmp_path: Path) -> None:
    """The names that `ncpipe extract` writes below data/features."""
    stored = arrays()
    names = {"train.features": "features", "train.labels": "labels", "test.features": "test_features"}
    names |= {"test.labels": "test_labels", "weight": "weight", "bias": "bias"}
    extra = {"penalty.last": np.zeros(1), "gradient.norm": np.zeros(1), "ranks/lin0": np.zeros(3)}
    extra |= {"layers/000/X1/train/statistics/means": np.zeros((3, 2))}
    save_file({name: stored[source] for name, source in names.items()} | extra, tmp_path / "s0.safetensors")
    text = run(tmp_path / "s0.safetensors", "--json")
    assert values_of(text) == expected(stored)
    assert json.loads(text)["warnings"] == []


def test_shots_add_what_a_frozen_encoder_is_judged_by(tmp_path: Path) -> None:
    """Without a classifier, of both splits. Red: shots left out in silence."""
    path = saved(tmp_path, weight=None, bias=None)
    values = values_of(run(path, "--json", "--shots", "1", "--shots", "3"))
    names = {"transfer_ncc_error_001", "transfer_directional_bound_003", "transfer_bound_003", "ncc_error"}
    assert {(split, name) for split in ("train", "test") for name in {"directional_cdnv", *names}} <= set(
        values
    )
    for options, message in (
        (("--shots", "4"), "shots: class 0 has 4 samples; 4 shots leave none to decide"),
        (("--shots", "1", "--classes", "present"), "shots need labels of classes that are all there"),
    ):
        with pytest.raises(InputError, match=message):
            run(path, *options)


def test_a_wrong_file_is_one_line_that_names_it(tmp_path: Path) -> None:
    assert "not found" in refusal(tmp_path / "none.npz")
    assert ".npz or a .safetensors" in refusal(tmp_path / "h.pt")
    (tmp_path / "folder.npz").mkdir()
    assert "not a file" in refusal(tmp_path / "folder.npz")
    with (tmp_path / "one.npz").open("wb") as file:
        np.save(file, np.ones(3))
    assert "one array" in refusal(tmp_path / "one.npz")


def test_warnings_go_to_standard_error_and_into_the_json(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    path = tmp_path / "h.npz"
    one_each = {"features": draw.standard_normal((3, 5)), "labels": np.arange(3)}
    test = {f"test_{name}": array for name, array in one_each.items()}
    np.savez(path, **one_each, **test, wieght=np.ones((3, 5)))
    result = CliRunner().invoke(app, ["metrics", str(path), "--json"], catch_exceptions=False)
    warnings = json.loads(result.stdout)["warnings"]
    assert any("wieght" in warning for warning in warnings)
    assert len(warnings) >= 5  # the name; N < d and one sample per class, of each split
    assert any(warning.startswith("test class 0 has one sample") for warning in warnings)
    assert all(f"ncpipe: {path}: {warning}" in result.stderr for warning in warnings)
