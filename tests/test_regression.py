"""Targets that are vectors: data, training, NRC1 to NRC3, the features model's optimum, what is refused.

Against NumPy float64 written from the formulas, and a closed form against its minimisation. Training on them
is in test_training.py.
"""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import experiment_tree, measure_runs, write_params
from pipeline import ROOT
from ruamel.yaml import YAML
from safetensors.torch import load_file
from scipy.linalg import subspace_angles
from scipy.optimize import minimize
from training_cases import SMOOTH
from typer.testing import CliRunner

from ncpipe.commands.aggregate import aggregate
from ncpipe.commands.claims import claims
from ncpipe.commands.cli import app
from ncpipe.commands.plot import plot
from ncpipe.commands.report import report
from ncpipe.config.experiment import Experiment
from ncpipe.config.params import load_params
from ncpipe.config.records import check, read
from ncpipe.config.run import Run, as_json
from ncpipe.config.sources.arrays import ArraysData
from ncpipe.config.sources.generated import TeacherData
from ncpipe.config.study import load_study
from ncpipe.datasets.arrays import prepare_arrays
from ncpipe.datasets.prepare import prepare
from ncpipe.datasets.prepared import Prepared, VectorSplit, read_prepared, write_prepared
from ncpipe.metrics.hooks import measure_regression_model
from ncpipe.metrics.nrc import (
    feature_spectrum,
    intrinsic_dimension,
    nrc1,
    nrc2,
    nrc3,
    nrc3_alignment,
    principal_axes,
)
from ncpipe.metrics.regression import measure_regression, measure_vectors
from ncpipe.metrics.table import Measurement
from ncpipe.system.errors import InputError
from ncpipe.theory.regression import regression_optimum
from ncpipe.training.loop import train_batch

SIGMA = ((1.0, 0.5), (0.5, 0.8))
TEACHER: dict[str, Any] = {
    "source": "teacher", "dimension": 8, "covariance": [list(row) for row in SIGMA], "hidden": 10,
    "samples": 40, "test_samples": 20, "seed": 0,
}  # fmt: skip
MLP = SMOOTH | {"width": 12}
PLAIN = {"rule": "constant", "value": 0.0, "last_layer": None}
DECAYS = {"rule": "constant", "value": 0.0, "last_layer": 0.1, "features": 0.005}


def tree(**changes: Any) -> dict[str, Any]:
    experiment = experiment_tree(**{"data": TEACHER, "loss": "mse", "penalty": DECAYS} | changes)
    experiment["model"] = MLP | changes.get("model", {})
    return experiment


def spec_of(**changes: Any) -> Experiment:
    return read(Experiment, tree(**changes), "")


def made(**changes: Any) -> Prepared:
    spec: TeacherData = read(TeacherData, TEACHER | changes, "")
    return replace(prepare(spec, Path(), None, progress=False), checksum="made by a test")


def arrays(samples: int = 50, width: int = 9, length: int = 3) -> tuple[np.ndarray, ...]:
    draw = np.random.default_rng(0)
    mix = draw.standard_normal((length, length))
    return (
        np.maximum(draw.standard_normal((samples, width)), 0),
        draw.standard_normal((samples, length)) @ mix + 1,
        draw.standard_normal((length, width)),
        draw.standard_normal(length),
    )


def by_name(rows: list[Measurement]) -> dict[tuple[str, str], float]:
    return {(row.split, row.metric): row.value for row in rows if not row.metric.startswith("singular")}


# --- metrics ------------------------------------------------------------------------------------------


def outside(features: np.ndarray, span: np.ndarray) -> float:
    """Mean |h - Ph|^2/|h|^2, P the projection on the rows of `span`, by the pseudoinverse."""
    units = features / np.linalg.norm(features, axis=1, keepdims=True)
    left = units - units @ np.linalg.pinv(span) @ span
    return float((left**2).sum(1).mean())


def form_distance(weight: np.ndarray, sigma: np.ndarray, shift: float) -> float:
    values, axes = np.linalg.eigh(sigma)
    form = axes @ np.diag(np.sqrt(values)) @ axes.T - shift * np.eye(len(sigma))
    gram = weight @ weight.T
    return float(np.linalg.norm(gram / np.linalg.norm(gram) - form / np.linalg.norm(form)) ** 2)


def test_nrc3_and_held_out_samples_are_those_of_the_formulas_in_numpy() -> None:
    """The conformance suite has the others of training samples."""
    features, targets, weight, bias = arrays()
    metrics = by_name(measure_regression(features, targets, weight, bias, features[:20], targets[:20]))
    sigma = np.cov(targets.T, bias=True)
    least = float(np.sqrt(np.linalg.eigvalsh(sigma)[0]))
    grid = min(form_distance(weight, sigma, shift) for shift in np.linspace(0, least * (1 - 1e-9), 2001))
    assert metrics["weights", "nrc3"] == pytest.approx(grid, rel=1e-5)
    assert metrics["weights", "nrc3"] <= grid * (1 + 1e-12)
    assert metrics["test", "nrc2"] == pytest.approx(outside(features[:20], weight), rel=1e-9)
    assert {metric for split, metric in metrics if split == "weights"} == {
        "nrc3", "nrc3_gamma", "rank_weights", "stable_rank_weights", "effective_rank_weights",
    }  # fmt: skip
    for metric, value in of_layer(features[:20], targets[:20], weight).items():
        assert metrics["test", metric] == pytest.approx(value, rel=1e-12), metric


def of_layer(features: np.ndarray, targets: np.ndarray, reader: np.ndarray | None) -> dict[str, float]:
    """Compute the metrics of any layer by eigenvalues of covariances, lstsq and sorted distances."""
    count, length = targets.shape
    moment, expected = np.cov(features.T, bias=True), np.cov(targets.T, bias=True).reshape(length, length)
    cross = (features - features.mean(0)).T @ (targets - targets.mean(0)) / count
    values, axes = np.linalg.eigh(moment)
    design = np.c_[features, np.ones(count)]
    left = targets - design @ np.linalg.lstsq(design, targets, rcond=None)[0]
    far = np.sort(np.sqrt(((features[:, None] - features[None]) ** 2).sum(2)), 1)
    ratios = np.sort(np.log(far[:, 2] / far[:, 1]))
    heights = [-math.log(1 - rank / count) for rank in range(1, count + 1) if rank < count]
    kept = count * 9 // 10
    metrics = {
        "nrc1_variance": values[:-length].sum() / values.sum(),
        "stable_rank_features": values.sum() / values[-1],
        "nrc2_cka": (cross**2).sum() / (np.linalg.norm(moment) * np.linalg.norm(expected)),
        "nrc4_linear_mse": (left**2).sum() / (count * np.trace(expected)),
        "intrinsic_dimension": np.dot(ratios[:kept], heights[:kept]) / np.dot(ratios[:kept], ratios[:kept]),
    }
    if reader is not None:
        rows = np.linalg.svd(reader)[2][:length].T
        metrics["nrc3_alignment"] = np.cos(subspace_angles(axes[:, -length:], rows)).mean()
    return metrics


@pytest.mark.parametrize("dimension", [1, 2, 5])
def test_the_dimension_is_that_of_a_manifold_however_it_lies(dimension: int) -> None:
    """Red: an estimate of the linear span, which a curve fills; samples that coincide, which divide by 0."""
    draw = np.random.default_rng(dimension)
    points = draw.uniform(size=(3000, dimension))
    curved = np.concatenate([np.cos(points), np.sin(points), points], 1) @ draw.standard_normal(
        (3 * dimension, 20)
    )
    estimate = intrinsic_dimension(torch.from_numpy(np.concatenate([curved, curved[:7]])))
    assert estimate == pytest.approx(dimension, rel=0.1)
    assert feature_spectrum(principal_axes(torch.from_numpy(curved)), dimension)[0] > 1e-4


def test_weights_may_be_whole_numbers_and_features_may_not() -> None:
    """Red: a TypeError of PyTorch."""
    h, targets = (torch.from_numpy(array) for array in arrays(samples=20)[:2])
    whole = torch.arange(targets.shape[1] * h.shape[1]).reshape(targets.shape[1], h.shape[1])
    values = measure_regression(h, targets, whole).to_dict()
    assert values == measure_regression(h, targets, whole.double()).to_dict()
    with pytest.raises(InputError, match=r"train features must be floats, not torch\.int64"):
        measure_regression(h.long(), targets)


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        (torch.full((20, 4), 0.1), {"nrc4_linear_mse": 1.0}),
        (torch.full((20, 4), math.nan), {}),
    ],
    ids=["constant", "diverged"],
)
def test_what_a_layer_without_a_signal_has(features: torch.Tensor, expected: dict[str, float]) -> None:
    """Red: rounding taken for a signal of full share; an error of LAPACK."""
    targets = torch.from_numpy(arrays(samples=20)[1])
    metrics = {
        row.metric: row.value for row in measure_vectors({"test": (features, targets)}, None, None, "H1")
    }
    names = {"nrc1_variance", "nrc2_cka", "nrc4_linear_mse", "intrinsic_dimension", "stable_rank_features"}
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-12)
    assert all(math.isnan(metrics[name]) for name in names - expected.keys())
    assert math.isnan(nrc3_alignment(principal_axes(features), torch.ones(3, 4), 3))


@pytest.mark.parametrize("shift", [0.0, 0.3, 0.9])
def test_nrc3_finds_the_gamma_that_a_gram_matrix_was_made_with(shift: float) -> None:
    """Red: a search on a grid, which ends at 1e-8; a gamma outside [0, least eigenvalue]."""
    _, targets, _, _ = arrays()
    sigma = np.cov(targets.T, bias=True)
    values, axes = np.linalg.eigh(sigma)
    root = shift * np.sqrt(values[0])
    weight = 3 * axes @ np.diag(np.sqrt(np.sqrt(values) - root)) @ axes.T
    value, gamma = nrc3(torch.from_numpy(weight), torch.from_numpy(targets))
    assert value < 1e-28
    assert gamma == pytest.approx(root**2, rel=1e-9, abs=1e-12)


def test_nrc3_where_no_gamma_can_be_told() -> None:
    draw = np.random.default_rng(1)
    white = np.linalg.qr(np.c_[np.ones(40), draw.standard_normal((40, 3))])[0][:, 1:]  # means of 0
    value, gamma = nrc3(torch.eye(3), torch.from_numpy(white))
    assert value == pytest.approx(0, abs=1e-12)
    assert math.isnan(gamma)
    flat = np.repeat(white[:, :1], 3, 1)  # a covariance of rank 1
    for weight, targets in ((torch.eye(3), flat), (torch.zeros(3, 3), white * [1, 2, 3])):
        assert all(math.isnan(number) for number in nrc3(weight, torch.from_numpy(targets)))


def test_metrics_at_any_scale_and_of_what_is_0() -> None:
    features, targets, weight, _ = (torch.from_numpy(array) for array in arrays())

    def first(rows: torch.Tensor, length: int) -> float:
        return nrc1(rows, principal_axes(rows), length)

    for scale in (1e-200, 1e200):
        assert first(features * scale, 3) == pytest.approx(first(features, 3), rel=1e-9)
        assert nrc2(features, weight * scale) == pytest.approx(nrc2(features, weight), rel=1e-9)
        assert nrc3(weight * scale, targets)[0] == pytest.approx(nrc3(weight, targets)[0], rel=1e-9)
    assert first(torch.zeros(4, 5), 2) == nrc2(torch.zeros(4, 5), weight[:, :5]) == 0
    assert math.isnan(first(features * math.nan, 3))


def test_rounding_of_float32_is_no_rank_of_features_or_weights() -> None:
    """Of rank 2 and 1. Red: directions of 1e-8, which float64 counts: `nrc3_alignment` of 0.57 for 0.96."""
    draw, axis = np.random.default_rng(0), np.ones(16) / 4
    features = draw.standard_normal((200, 2)) @ np.stack([3 * axis, 0.3 * draw.standard_normal(16)])
    targets = np.stack([features @ axis, draw.standard_normal(200)], 1)
    weight = np.outer([4 / 3, 0.6], np.linspace(0.1, 0.3, 16))
    single, double = (
        by_name(measure_regression(features.astype(kind), targets, weight.astype(kind)))
        for kind in (np.float32, np.float64)
    )
    for key in (("train", "nrc2"), ("train", "nrc3_alignment"), ("train", "nrc4_linear_mse")):
        assert single[key] == pytest.approx(double[key], rel=1e-5), key


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_hides_no_variance_and_adds_none(dtype: torch.dtype) -> None:
    """Noise of a fortieth of the mean; a signal of a hundredth of other columns; two axes and rounding.

    Red: a cutoff in proportion to the rows' lengths, which gives an NRC1 of exactly 0 and an NRC4 of 0.97.
    """
    generator = torch.Generator().manual_seed(0)
    targets, axes, noise = (
        torch.randn(*shape, generator=generator) for shape in ((500, 2), (2, 512), (500, 512))
    )
    features = (2 + 0.3 * targets @ axes + 0.05 * noise).to(dtype)
    hidden = torch.cat([0.01 * targets, noise[:, :60]], 1).to(dtype)
    for rows, metric in ((features, "nrc1_variance"), (hidden, "nrc4_linear_mse")):
        single, double = (by_name(measure_regression(part, targets)) for part in (rows, rows.double()))
        assert single["train", metric] == pytest.approx(double["train", metric], rel=0.02)
    flat = (2 + 0.3 * targets @ axes).to(dtype)
    assert by_name(measure_regression(flat, targets))["train", "nrc1_variance"] == 0


def test_one_number_a_target_has_no_nrc3() -> None:
    features, targets, weight, _ = arrays()
    metrics = by_name(measure_regression(features, targets[:, :1], weight[:1]))
    assert ("weights", "nrc3") not in metrics
    assert ("train", "nrc1") in metrics


# --- the features model -------------------------------------------------------------------------------


def loss_of(
    weight: np.ndarray, free: np.ndarray, bias: Any, targets: np.ndarray, decays: tuple[float, float]
) -> float:
    fit = ((free @ weight.T + bias - targets) ** 2).sum() / (2 * len(targets))
    return float(fit + decays[1] / (2 * len(targets)) * (free**2).sum() + decays[0] / 2 * (weight**2).sum())


@pytest.mark.parametrize("decays", [(0.1, 0.2), (0.9, 0.8)])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("width", [5, 2])
def test_the_optimum_is_what_a_minimisation_ends_at(
    decays: tuple[float, float], with_bias: bool, width: int
) -> None:
    targets = arrays(samples=12)[1]
    mean = targets.mean(0) if with_bias else 0.0
    moment = (targets - mean).T @ (targets - mean) / len(targets)
    best = regression_optimum(torch.from_numpy(moment), *decays, width)
    sizes = [3 * width, 3 * width + 12 * width]

    def loss(flat: np.ndarray) -> float:
        weight, free, bias = np.split(flat, sizes)
        return loss_of(weight.reshape(3, width), free.reshape(12, width), with_bias * bias, targets, decays)

    starts = [np.random.default_rng(seed).standard_normal(sizes[1] + 3) for seed in range(2)]
    ends = [
        minimize(loss, start, method="L-BFGS-B", options={"maxiter": 2000, "maxfun": 10**6})
        for start in starts
    ]
    assert min(end.fun for end in ends) == pytest.approx(best.loss, rel=1e-6)
    minimiser = ends[int(ends[1].fun < ends[0].fun)].x[: sizes[0]].reshape(3, width)
    assert minimiser @ minimiser.T == pytest.approx(best.gram.numpy(), abs=2e-3)


def test_the_optimum_of_the_theorem_reaches_the_least_loss_and_has_collapsed() -> None:
    """W = (lambda_H/lambda_W)^(1/4) (Sigma^(1/2) - sqrt(c) I)^(1/2) R, H = W of the whitened targets."""
    targets, decays = arrays()[1], (0.02, 0.05)
    centred = targets - targets.mean(0)
    values, axes = np.linalg.eigh(centred.T @ centred / len(targets))
    root = math.sqrt(decays[0] * decays[1])
    assert root < math.sqrt(values[0])
    turn = np.linalg.qr(np.random.default_rng(3).standard_normal((9, 3)))[0].T
    ratio = math.sqrt(decays[1] / decays[0])
    weight = math.sqrt(ratio) * axes @ np.diag(np.sqrt(np.sqrt(values) - root)) @ axes.T @ turn
    free = centred @ axes @ np.diag(values**-0.5) @ axes.T @ weight / ratio
    best = regression_optimum(torch.from_numpy(np.cov(targets.T, bias=True)), *decays, 9)
    assert loss_of(weight, free, targets.mean(0), targets, decays) == pytest.approx(best.loss, rel=1e-12)
    assert best.last_penalty == pytest.approx(decays[0] / 2 * (weight**2).sum(), rel=1e-12)
    assert best.rank == 3
    metrics = by_name(measure_regression(free, targets, weight, targets.mean(0)))
    assert max(metrics["train", "nrc1"], metrics["train", "nrc2"], metrics["weights", "nrc3"]) < 1e-27
    assert metrics["weights", "nrc3_gamma"] == pytest.approx(decays[0] * decays[1], rel=1e-9)


# --- data and training --------------------------------------------------------------------------------


@pytest.mark.parametrize("hidden", [None, 10])
def test_the_teacher_gives_the_covariance_that_was_asked_for(hidden: int | None, tmp_path: Path) -> None:
    data = made(hidden=hidden)
    targets = data.train.targets.double().numpy()
    assert np.cov(targets.T, bias=True) == pytest.approx(np.array(SIGMA), rel=1e-6)
    assert targets.mean(0) == pytest.approx(0, abs=1e-7)
    design = np.c_[data.train.inputs.double().numpy(), np.ones(40)]
    residual = np.linalg.lstsq(design, targets, rcond=None)[1]
    assert (residual < 1e-9).all() == (hidden is None)
    write_prepared(tmp_path / "data", data)
    back = read_prepared(tmp_path / "data")
    assert isinstance(back.train, VectorSplit)
    assert (len(back.train), len(back.test or ()), back.classes) == (40, 20, 2)
    assert torch.equal(back.train.targets, data.train.targets)


def test_the_stages_measure_what_applies_and_nothing_else(study_folder: Path) -> None:
    history = {"metrics": ["nrc1", "nrc2", "nrc3"], "at": [0.0, 1.0]}
    write_params(
        [2],
        [0, 1],
        ufm=tree(history=history, epochs=60),
        decay=tree(penalty=PLAIN | {"value": 0.01, "scope": "all"}),
    )
    measure_runs("ufm", "decay", depths=[2], seeds=[0, 1])
    rows = pd.read_csv("data/metrics/ufm/measurements.csv")
    last_rows = rows[(rows["layer"] == "last") & ~rows["metric"].str.startswith("singular")]
    assert set(last_rows["metric"]) == {
        "nrc1", "nrc2", "nrc3", "nrc3_gamma", "relative_mse", "ufm_gap", "inner_penalty",
        "inner_penalty_times_depth", "rank_weights", "stable_rank_weights", "effective_rank_weights",
        "nrc1_variance", "nrc2_cka", "nrc3_alignment", "nrc4_linear_mse", "stable_rank_features",
        "intrinsic_dimension",
    }  # fmt: skip
    assert set(rows["layer"]) == {"last", "maps.0"}
    assert rows["value"].notna().all()
    run = last_rows[last_rows["seed"] == 0].set_index(["split", "metric"])["value"]
    table = pd.read_csv("data/metrics/ufm/runs.csv").set_index("seed").loc[0]
    least = regression_optimum(torch.tensor(SIGMA, dtype=torch.float64), 0.1, 40 * 0.005, 12).loss
    assert run["train", "ufm_gap"] == pytest.approx(table["loss"] - least, abs=1e-7)
    assert run["train", "ufm_gap"] > 0
    assert run["train", "relative_mse"] == pytest.approx(
        2 * table["fit"] / np.trace(np.array(SIGMA)), rel=1e-6
    )
    assert table[["train_error", "test_error", "loss_gap"]].isna().all()
    ends = pd.read_csv("data/metrics/ufm/history.csv").query("seed == 0").set_index("epoch")
    assert ends.loc[60, "nrc1"] == pytest.approx(run["train", "nrc1"], rel=1e-9)
    assert ends.loc[60, "nrc3"] == pytest.approx(run["weights", "nrc3"], rel=1e-9)
    assert ends["train_error"].isna().all()
    assert "ufm_gap" not in set(pd.read_csv("data/metrics/decay/measurements.csv")["metric"])
    features = "data/features/ufm/L2/s0.safetensors"
    result = CliRunner().invoke(app, ["metrics", features, "--json"], catch_exceptions=False)
    printed = {
        (row["split"], row["metric"]): row["value"] for row in json.loads(result.stdout)["measurements"]
    }
    assert printed["test", "nrc2"] == pytest.approx(run["test", "nrc2"], rel=1e-12)


def test_every_layer_of_a_run_has_them(study_folder: Path) -> None:
    """Of the weights and data as they lie in the run's files, by NumPy."""
    write_params([3], [0], deep=tree(epochs=20))
    measure_runs("deep", depths=[3])
    rows = pd.read_csv("data/metrics/deep/measurements.csv").query("split in ('train', 'test')")
    data = read_prepared(Path("data/prepared/deep"))
    state = load_file("data/runs/deep/L3/s0/model.safetensors")
    (first, shift), second = (state[f"maps.0.{name}"] for name in ("weight", "bias")), state["maps.1.weight"]
    for name, split in (("train", data.train), ("test", data.test)):
        hidden = np.tanh(split.inputs.double().numpy() @ first.double().numpy().T + shift.double().numpy())
        targets = split.labels.double().numpy()
        expected = of_layer(hidden, targets, second.double().numpy())
        expected["nrc1"] = outside(hidden, np.linalg.eigh(np.cov(hidden.T))[1][:, -2:].T)
        inner = rows[(rows["layer"] == "H1") & (rows["split"] == name)].set_index("metric")["value"]
        assert dict(inner) == pytest.approx(expected, rel=1e-10)


def test_an_inner_layer_of_a_model_is_measured_as_its_arrays_are() -> None:
    """Of the last layer, test_hooks.py has it."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 12), torch.nn.Tanh(), torch.nn.Linear(12, 2)).double()
    data = made()
    x, y = data.train.inputs.double(), data.train.targets
    layered = measure_regression_model(model, "2", [(x, y)], [(x[:9], y[:9])], layers=["0"])
    hidden = model[0](x).detach()
    inner = measure_vectors({"train": (hidden, y), "test": (hidden[:9], y[:9])}, None, None, "0")
    assert [row for row in layered if row.layer == "0"] == list(inner)
    single = torch.nn.Sequential(*model[:2], torch.nn.Linear(12, 1).double())
    assert by_name(measure_regression_model(single, "2", [(x, y[:, 0])]))["train", "nrc1"] > 0


OWN = """
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch

from ncpipe.config.specs import OwnData, OwnLoss


@dataclass(frozen=True)
class Circle(OwnData):
    kind: ClassVar = "vector"
    targets: ClassVar = "vectors"
    source: Literal["circle"]


def circle(spec):
    inputs = np.random.default_rng(0).standard_normal((30, 4))
    return {"inputs": inputs, "targets": np.stack([np.cos(inputs[:, 0]), np.sin(inputs[:, 1])], 1)}


@dataclass(frozen=True)
class Huber(OwnLoss):
    name: Literal["huber"]


def huber(logits, labels):
    return torch.nn.functional.huber_loss(logits, labels, reduction="none").sum(-1)


DATA = {Circle: circle}
LOSSES = {Huber: huber}
"""


def test_a_study_has_data_and_losses_of_its_own(study_folder: Path) -> None:
    Path("study.py").write_text(OWN, encoding="utf-8")
    load_study(Path())
    write_params(
        [2],
        [0],
        own=tree(
            data={"source": "circle"},
            loss={"name": "huber"},
            penalty=PLAIN,
        ),
    )
    spec = load_params().experiments["own"]
    data = prepare(spec.data, Path(), None, progress=False)
    end = train_batch([Run("own", 2, 0, spec)], data, torch.device("cpu"), "float64")[0]
    state, x = end.state, data.train.inputs.double()
    h = torch.tanh(x @ state["maps.0.weight"].T + state["maps.0.bias"])
    error = (h @ state["last.weight"].T + state["last.bias"] - data.train.targets.double()).abs()
    expected = torch.where(error < 1, error**2 / 2, error - 0.5).sum(1).mean()
    assert end.history[-1].fit == pytest.approx(float(expected), rel=1e-12)


def test_every_stage_runs_and_what_needs_classes_is_left_out(study_folder: Path) -> None:
    """The study of regression, made tiny: its claims, its figures and its page."""
    study = YAML(typ="safe").load(ROOT / "stages/regression/params.yaml")
    study["sweep"] |= {"seeds": [0, 1]}
    for experiment in study["experiments"].values():
        experiment |= {"epochs": 60, "log_every": 5}
        experiment["data"] |= {"samples": 30, "test_samples": 10}
    YAML().dump(study, Path("params.yaml"))
    shutil.copy(ROOT / "stages/regression/claims.yaml", "claims.yaml")
    measure_runs(*study["sweep"]["experiments"], depths=study["sweep"]["depths"], seeds=[0, 1])
    for stage in (aggregate, plot, claims, report):
        stage()
    judged = pd.read_csv("data/claims/claims.csv").set_index("id")["verdict"]
    assert list(judged.index) == ["regression-nrc1", "regression-nrc2", "regression-nrc3", "regression-bound"]
    assert judged["regression-bound"] == "agrees"
    assert sorted(path.stem for path in Path("data/figures").glob("*.png")) == [
        "curves_decay", "curves_features", "curves_free", "depth_sweep", "regression_layers", "spectra",
    ]  # fmt: skip
    summary = pd.read_csv("data/results/summary.csv")
    assert {"nrc1", "nrc2", "nrc3", "ufm_gap"} <= set(summary["metric"])
    assert not summary["metric"].str.startswith(("nc0", "nc1", "nc2", "nc3", "nc4", "ncc")).any()
    assert Path("data/report.html").is_file()


# --- what is refused ----------------------------------------------------------------------------------


FIXED = {"last_bias": False, "classifier": {"kind": "etf", "length": 1.0}}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"loss": "ce"}, "loss: ce needs classes, and the targets are vectors; take `mse`"),
        ({"loss": {"name": "mse", "smoothing": 0.1}}, "loss: smoothed labels need classes"),
        ({"model": FIXED}, "model.classifier: a simplex is for classes"),
        ({"data": TEACHER | {"covariance": [[1.0, 0.0]]}}, "data: covariance: its rows make no square"),
        ({"data": TEACHER | {"covariance": [[1.0, 0.0], [0.1, 1.0]]}}, "data: covariance: is not symmetric"),
        ({"data": TEACHER | {"covariance": [[1.0, "a"], [0.1, 1.0]]}}, "data.covariance.*expected a number"),
        ({"data": TEACHER | {"samples": 2}}, "data: samples: 2 have no covariance of rank 2"),
        ({"data": TEACHER | {"hidden": 1}}, "data: hidden: 1 is below the 2 numbers of a target"),
    ],
)  # fmt: skip
def test_a_wrong_key_is_one_line(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        spec_of(**changes)
    assert "\n" not in str(caught.value)


def test_a_covariance_that_is_none_is_one_line() -> None:
    with pytest.raises(InputError, match=r"data.covariance: is not positive definite"):
        made(covariance=[[1.0, 2.0], [2.0, 1.0]])


GOOD = {
    "inputs": np.random.default_rng(0).random((20, 4)),
    "targets": np.random.default_rng(1).random((20, 2)),
}


def test_arrays_of_targets_are_read_and_have_no_classes(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, **GOOD, test_inputs=GOOD["inputs"][:5], test_targets=GOOD["targets"][:5])
    spec = ArraysData("arrays", str(path), "vector", None, None, 0, "standardise", targets="vectors")
    data = prepare_arrays(spec)
    assert data.train.targets.numpy() == pytest.approx(GOOD["targets"], rel=1e-6)
    assert float(data.train.inputs.mean().abs()) < 1e-6
    assert len(data.test or ()) == 5
    _, mistakes = check(ArraysData, as_json(spec) | {"per_class": 3, "test_per_class": None}, "data")
    assert mistakes == ["data: per_class: needs classes, and the targets are vectors; write null"]


def test_history_names_what_vectors_have(study_folder: Path) -> None:
    write_params([2], [0], e=tree(history={"metrics": ["nc1_trace_ratio"], "at": [1.0]}))
    with pytest.raises(InputError, match=r"experiments.e.history.metrics: unknown 'nc1_trace_ratio'.*nrc1"):
        measure_runs("e", depths=[2])
