"""Label smoothing, supervised contrast, dot regression, fixed classifiers and penalised features.

Each against a plain loop in float64 and, where one is known, against its optimum in closed form.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import experiment_tree, image_data, measure_runs, vector_data, write_params
from scipy.optimize import minimize_scalar

from ncpipe.config.experiment import Experiment
from ncpipe.config.records import read
from ncpipe.config.run import Compute, Run, as_json
from ncpipe.datasets.prepared import Prepared, Split
from ncpipe.features.forward import load_network
from ncpipe.features.gradient import gradient_norm
from ncpipe.features.objective import fit_of
from ncpipe.features.passes import extract
from ncpipe.metrics.collapse import nc1_trace_ratio
from ncpipe.metrics.geometry import unit_rows
from ncpipe.models.build import build_network
from ncpipe.models.heads import simplex_rows
from ncpipe.models.network import Network
from ncpipe.papers.k23.supcon import supcon_loss, supcon_optimum
from ncpipe.runs.fingerprint import RunFingerprint
from ncpipe.system.errors import InputError
from ncpipe.system.randomness import seeded_generator
from ncpipe.theory import smoothing
from ncpipe.theory.gap import Gap, Objective, TrainedState, gap_to_optimum
from ncpipe.training import objective
from ncpipe.training.checkpoints import Checkpoints, Stopped
from ncpipe.training.cost import BACKWARD, bytes_per_run
from ncpipe.training.loop import train_batch
from ncpipe.training.objective import Outputs, fit_times_samples
from ncpipe.training.session import Trained

CPU = torch.device("cpu")
ETF = {"last_bias": False, "classifier": {"kind": "etf", "length": 1.5}}
MODEL = {
    "architecture": "mlp", "norm": "none", "activation": "tanh", "width": 7, "bias": True, "last_bias": True,
    "initialisation": "normal", "gain": 1.0,
}  # fmt: skip
RESNET = {
    "architecture": "resnet_cifar", "width": 3, "head_layers": 0, "gain": 1.0, "batch_norm_eps": 1e-5,
}  # fmt: skip
SUPCON = {"name": "supcon", "temperature": 0.4}
FEATURES = {"rule": "constant", "value": 0.01, "last_layer": None, "features": 0.02}
# What an experiment with a plain model changes.
KINDS: dict[str, dict[str, Any]] = {
    "supcon": {"loss": SUPCON},
    "supcon_with_itself": {"loss": SUPCON | {"include_self": True}},
    "smoothed_ce": {"loss": {"name": "ce", "smoothing": 0.2}},
    "smoothed_mse": {"loss": {"name": "mse", "smoothing": 0.2}},
    "dot_regression": {"loss": "dot_regression", "model": ETF},
    "etf": {"model": ETF},
    "features": {"penalty": FEATURES},
}


def spec_of(kind: str = "", base: dict[str, Any] = MODEL, **changes: Any) -> Experiment:
    changes = KINDS.get(kind, {}) | changes
    model = base | changes.pop("model", {})
    return read(Experiment, experiment_tree(**changes) | {"model": model}, "experiments.x")


def run_of(kind: str = "", seed: int = 0, depth: int = 3, **changes: Any) -> Run:
    return Run("x", depth, seed, spec_of(kind, **changes))


def train(runs: Sequence[Run], data: Prepared, precision: str = "float64") -> list[Trained]:
    return train_batch(runs, data, CPU, precision)


# ---- Written out --------------------------------------------------------------------------------------


def naive_contrast(features: np.ndarray, labels: Sequence[int], loss: dict[str, Any]) -> float:
    """Mean over the samples that have a partner, sample by sample in Python's floats."""
    units = [[a / math.sqrt(sum(b * b for b in row)) for a in row] for row in features.tolist()]
    losses = []
    for i, f in enumerate(units):
        others = [j for j in range(len(units)) if j != i or loss.get("include_self")]
        near = {j: sum(a * b for a, b in zip(f, units[j], strict=True)) / loss["temperature"] for j in others}
        partners = [j for j in others if labels[j] == labels[i]]
        if partners:
            whole = math.log(sum(math.exp(s) for s in near.values()))
            losses.append(sum(whole - near[j] for j in partners) / len(partners))
    return sum(losses) / len(losses) if losses else 0.0


def naive_fit(spec: Experiment, features: np.ndarray, logits: np.ndarray, labels: Sequence[int]) -> float:
    if spec.loss_name == "supcon":
        return naive_contrast(features, labels, dataclasses.asdict(spec.loss))  # type: ignore[call-overload]
    total, classes = 0.0, logits.shape[1]
    delta = spec.loss.smoothing if not isinstance(spec.loss, str) else 0.0  # type: ignore[union-attr]
    for f, y in zip(logits.tolist(), labels, strict=True):
        shares = [delta / classes + (1 - delta) * (k == y) for k in range(classes)]
        if spec.loss_name == "dot_regression":
            c = spec.model.classifier.length * features.shape[1] ** 0.5  # type: ignore[union-attr, operator]
            total += (f[y] - c) ** 2 / (2 * c)
        elif spec.loss_name == "mse":
            total += sum((a - share) ** 2 for a, share in zip(f, shares, strict=True)) / 2
        else:
            norm = math.log(sum(math.exp(a) for a in f))
            total += sum(share * (norm - a) for a, share in zip(f, shares, strict=True))
    return total / len(labels)


def numpy_features(spec: Experiment, state: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    h = x
    for index in range(2):
        h = np.tanh(h @ state[f"maps.{index}.weight"].T + state[f"maps.{index}.bias"])
    if spec.loss_name in ("supcon", "dot_regression"):
        h = h * h.shape[1] ** 0.5 / np.linalg.norm(h, axis=1, keepdims=True)
    return h


def naive_objective(spec: Experiment, state: dict[str, np.ndarray], part: Split, samples: int) -> float:
    """Loss of a batch with every penalty, from weights by name; lambda = 0.01 where the spec says so."""
    h = numpy_features(spec, state, part.inputs.double().numpy())
    logits = h @ state["last.weight"].T + state.get("last.bias", 0.0)
    total = naive_fit(spec, h, logits, part.labels.tolist())
    learned = spec.loss_name != "supcon" and spec.model.classifier is None
    for name, value in state.items():
        if value.ndim == 2 and (learned or not name.startswith("last")):
            total += spec.penalty.value / 2 * (value**2).sum()
    if spec.penalty.features is not None:
        total += spec.penalty.features / 2 * samples / len(part) * (h**2).sum()
    return float(total)


def slopes_of(function: Callable[[], float], array: np.ndarray, step: float = 1e-6) -> np.ndarray:
    found = np.zeros_like(array)
    for place in np.ndindex(array.shape):
        kept, ends = array[place], []
        for sign in (1, -1):
            array[place] = kept + sign * step
            ends.append(function())
        array[place] = kept
        found[place] = (ends[0] - ends[1]) / (2 * step)
    return found


@pytest.mark.parametrize("kind", ["supcon", "supcon_with_itself"])
def test_the_contrast_and_its_gradient_are_those_of_the_plain_loop(kind: str) -> None:
    """Two runs at once, a class of one sample among them; the gradient by central differences."""
    spec = spec_of(kind)
    draw = torch.Generator().manual_seed(0)
    features = torch.randn(2, 7, 4, dtype=torch.float64, generator=draw).requires_grad_()
    labels = torch.tensor([0, 2, 1, 0, 1, 3, 0]).expand(2, 7)
    found = fit_times_samples(Outputs(features, labels, features), spec.loss) / 7
    (gradient,) = torch.autograd.grad(found.sum(), features)
    for run in range(2):
        array = features[run].detach().numpy().copy()

        def naive(array: np.ndarray = array) -> float:
            return naive_contrast(array, labels[0].tolist(), dataclasses.asdict(spec.loss))  # type: ignore[call-overload]

        assert found[run].item() == pytest.approx(naive(), rel=1e-13)
        np.testing.assert_allclose(gradient[run].numpy(), slopes_of(naive, array), atol=1e-9)


def test_the_contrast_is_that_of_the_models_without_networks() -> None:
    draw = torch.Generator().manual_seed(1)
    features = torch.nn.functional.normalize(torch.randn(12, 5, dtype=torch.float64, generator=draw), dim=1)
    labels = torch.arange(4).repeat_interleave(3)
    for own in (False, True):
        spec = spec_of(loss=SUPCON | {"include_self": own})
        outputs = Outputs(features[None], labels[None], 3 * features[None])
        found = fit_times_samples(outputs, spec.loss) / 12
        assert found.item() == pytest.approx(
            supcon_loss(features, 4, 0.4, include_self=own).item(), rel=1e-13
        )


def test_the_contrast_in_parts_is_that_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_of("supcon")
    features = torch.randn(2, 10, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    outputs = Outputs(features, torch.arange(10).remainder(3).expand(2, 10), features)
    whole = fit_times_samples(outputs, spec.loss)
    monkeypatch.setattr(objective, "PAIRS", 40)
    with torch.no_grad():
        torch.testing.assert_close(fit_times_samples(outputs, spec.loss), whole, rtol=1e-13, atol=0)


def test_a_batch_without_partners_teaches_nothing() -> None:
    """Red: NaN where a sum over no partner, or over no other sample at all, is taken."""
    for samples in (1, 3):
        features = torch.randn(1, samples, 4, dtype=torch.float64).requires_grad_()
        fit = fit_times_samples(
            Outputs(features, torch.arange(samples)[None], features), spec_of("supcon").loss
        )
        (gradient,) = torch.autograd.grad(fit.sum(), features)
        assert fit.item() == 0
        assert not gradient.any()


@pytest.mark.parametrize("batch_size", ["full", 7])
@pytest.mark.parametrize("kind", KINDS)
def test_training_is_the_plain_loop(kind: str, batch_size: object) -> None:
    """Gradient descent by differences of the written-out objective, step by step."""
    optimizer = {"name": "sgd", "learning_rate": 0.05, "momentum": 0.9}
    run = run_of(kind, batch_size=batch_size, optimizer=optimizer, epochs=2, log_every=1)
    data = vector_data(per_class=4, size=3)
    (trained,) = train([run], data)
    state = {
        name: value.detach().double().numpy().copy()
        for name, value in build_network(run, data).double().named_parameters()
    }
    moved = [name for name in state if not (name.startswith("last") and kind in FIXED)]
    velocity = {name: np.zeros_like(state[name]) for name in moved}
    order, batch = seeded_generator(0, "order"), 12 if batch_size == "full" else 7
    steps = math.ceil(12 / batch)
    for epoch in range(2):
        shuffled = torch.arange(12) if batch == 12 else torch.randperm(12, generator=order)
        for index in range(steps):
            part = data.train[shuffled[index * batch : (index + 1) * batch]]
            rate = 0.05 * (1 + math.cos(math.pi * (epoch * steps + index) / (2 * steps))) / 2

            def value(part: Split = part) -> float:
                return naive_objective(run.spec, state, part, 12)

            slopes = {name: slopes_of(value, state[name]) for name in moved}
            for name in moved:
                velocity[name] = 0.9 * velocity[name] + slopes[name]
                state[name] -= rate * velocity[name]
    for name in moved:
        np.testing.assert_allclose(trained.state[name].numpy(), state[name], rtol=1e-6, atol=1e-8)
    if kind not in FIXED[:2]:
        end = trained.history[-1]
        whole = naive_objective(run.spec, state, data.train, 12)
        assert end.loss == pytest.approx(whole, rel=1e-7)
        assert end.fit + end.penalty == pytest.approx(end.loss, rel=1e-12)


FIXED = ("supcon", "supcon_with_itself", "dot_regression", "etf")


# ---- Batches, stops, memory -----------------------------------------------------------------------------


def same(one: Trained, other: Trained) -> bool:
    """To the bit, history included."""
    return repr(one.history) == repr(other.history) and all(
        torch.equal(one.state[name], tensor) for name, tensor in other.state.items()
    )


BESIDE = {name: changes for name, changes in KINDS.items() if not name.endswith("itself")} | {
    "supcon_resnet": {"loss": SUPCON, "base": {
        "architecture": "L-RN1", "norm": "post", "width": 8, "last_bias": True, "layer_norm_eps": 1e-5,
        "initialisation": "normal", "gain": 1.0,
    }},
    "dot_convolutions": {
        "loss": "dot_regression", "base": RESNET, "model": {"classifier": {"kind": "etf", "length": 1.0}},
        "data": {"source": "digits", "per_class": 4, "test_per_class": 4, "seed": 0, "normalisation": "unit"},
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", BESIDE)
def test_a_run_does_not_depend_on_its_batch_nor_on_a_stop(kind: str, tmp_path: Path) -> None:
    """Alone, beside two others, and stopped after 3 epochs: the same bytes in float32."""
    changes = BESIDE[kind]
    convolves = changes.get("base") is RESNET
    data = image_data(side=8, classes=10) if convolves else vector_data()
    runs = [
        run_of(seed=seed, depth=8 if convolves else 3, batch_size=7, epochs=6, log_every=2, **changes)
        for seed in (2, 0, 1)
    ]
    (alone,) = train(runs[:1], data, "float32")
    assert same(train(runs, data, "float32")[0], alone)
    files, asked = Checkpoints([tmp_path / "2"], 3600), itertools.count()
    with pytest.raises(Stopped):
        train_batch(runs[:1], data, CPU, "float32", checkpoints=files, stop=lambda: next(asked) == 3)
    (taken_up,) = train_batch(runs[:1], data, CPU, "float32", checkpoints=files)
    assert same(taken_up, alone)


def test_memory_of_a_contrast_grows_with_pairs() -> None:
    """4000 samples: a similarity of 4 bytes and 2 of masks for each pair, beside what cross-entropy takes."""
    data = vector_data(classes=2, per_class=2000)
    need = [bytes_per_run(run_of(kind), data, CPU, torch.float32) for kind in ("supcon", "")]
    assert need[0] - need[1] == pytest.approx(BACKWARD * 6 * 4000**2, rel=0.05)


# ---- Optima -------------------------------------------------------------------------------------------


def one_hot_data(classes: int, per_class: int) -> Prepared:
    """Every sample its own coordinate: a linear map of them makes any features."""
    samples = classes * per_class
    labels = torch.arange(classes).repeat_interleave(per_class)
    return Prepared("vector", classes, None, Split(torch.eye(samples), labels), None, {}, checksum="made")


def free(width: int, last_bias: bool, **model: Any) -> dict[str, Any]:
    return MODEL | {"activation": "identity", "bias": False, "last_bias": last_bias, "width": width} | model


def minimised(base: dict[str, Any], data: Prepared, **changes: Any) -> tuple[Run, Trained, Any]:
    spec = spec_of(
        base=base,
        optimizer={"name": "lbfgs", "learning_rate": 1.0, "memory": 20},
        schedule={"name": "constant"},
        epochs=150,
        log_every=50,
        **changes,
    )
    run = Run("x", 2, 0, spec)
    (trained,) = train([run], data)
    return run, trained, extract(run, trained.state, data, CPU)


NOTHING = {"rule": "constant", "value": 0.0, "last_layer": None}


@pytest.mark.parametrize("own", [False, True])
def test_free_features_reach_the_optimum_of_the_contrast(own: bool) -> None:
    """A collapsed simplex, M11; and the nearest-mean rule that stands for the last layer is that simplex."""
    data = one_hot_data(4, 3)
    loss = {"name": "supcon", "temperature": 0.5, "include_self": own}
    run, trained, features = minimised(free(6, True), data, loss=loss, penalty=NOTHING)
    best = supcon_optimum(4, 3, 0.5, include_self=own)
    assert trained.history[-1].fit == pytest.approx(best, rel=1e-9)
    assert fit_of(run, features.train, features.weight, features.bias) == pytest.approx(best, rel=1e-9)
    statistics = features.layers["last"]["train"].statistics
    assert nc1_trace_ratio(statistics) < 1e-7
    cosines = unit_rows(features.weight) @ unit_rows(features.weight).T
    torch.testing.assert_close(cosines, (4 * torch.eye(4).double() - 1) / 3, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("loss", "last_bias"), [("ce", False), ("ce", True), ("mse", True)])
def test_penalised_free_features_reach_the_optimum_under_smoothing(loss: str, last_bias: bool) -> None:
    """The features model's value with kappa + delta for kappa (cross-entropy) [theory.md]; MSE: alpha."""
    data = one_hot_data(3, 2)
    penalty = {"rule": "constant", "value": 0.0, "last_layer": 0.02, "features": 0.01}
    for delta in (0.0, 0.2):
        _, trained, _ = minimised(
            free(5, last_bias), data, loss={"name": loss, "smoothing": delta}, penalty=penalty
        )
        kappa = 3 * math.sqrt(2 * 0.02 * 0.01)
        best = smoothing.ufm_value(loss, 3, kappa, delta)  # type: ignore[arg-type]
        assert trained.history[-1].loss == pytest.approx(best, rel=1e-8)


def test_free_features_reach_the_rows_that_dot_regression_pulls_to() -> None:
    data = one_hot_data(4, 2)
    base = free(5, False, classifier={"kind": "etf", "length": 0.7})
    _, trained, features = minimised(base, data, loss="dot_regression", penalty=NOTHING)
    assert trained.history[-1].loss < 1e-6
    aligned = unit_rows(features.train.inputs) @ unit_rows(features.weight).T
    torch.testing.assert_close(
        aligned[torch.arange(8), data.train.labels], torch.ones(8).double(), atol=1e-3, rtol=0
    )


def test_free_features_under_a_fixed_classifier_reach_its_optimum() -> None:
    """h = t a_y/|a_y| with the t of one number's minimum; collapsed for classes of unequal size too."""
    data = one_hot_data(3, 2)
    labels = torch.tensor([0, 0, 0, 0, 1, 2])
    data = dataclasses.replace(data, train=Split(data.train.inputs, labels))
    base = free(2, False, classifier={"kind": "etf", "length": 1.5})  # K - 1 features are enough
    penalty = NOTHING | {"features": 0.01}
    _, trained, features = minimised(base, data, penalty=penalty)
    best = minimize_scalar(lambda t: math.log1p(2 * math.exp(-1.5 * t * 1.5)) + 0.01 * 6 / 2 * t**2).fun
    assert trained.history[-1].loss == pytest.approx(best, rel=1e-7)
    assert nc1_trace_ratio(features.layers["last"]["train"].statistics) < 1e-8


def test_the_gap_under_smoothing_is_that_to_the_optimum() -> None:
    """0 where a simplex of the best length is, by its two terms, and above 0 for any other length."""
    classes, width, strength, delta = 4, 6, 0.02, 0.15
    rows = simplex_rows(classes, width, 1.0, torch.Generator().manual_seed(0))
    labels = torch.arange(classes).repeat_interleave(3)
    features = width**0.5 * rows[labels]
    loss = read(Experiment, experiment_tree(loss={"name": "ce", "smoothing": delta})).loss

    def gap(length: float) -> Gap:
        logits = features @ (length * rows).T
        outputs = Outputs(logits[None], labels[None])
        fit = (fit_times_samples(outputs, loss) / len(labels)).item()
        reached = Objective(fit, strength / 2 * classes * length**2, 0.0)
        weight = length * rows
        state = TrainedState("ce", reached, features, labels, weight, False, strength, True, smoothing=delta)
        return gap_to_optimum("x", state)

    best = minimize_scalar(lambda length: gap(length).gap_gufm, bounds=(0.1, 5), method="bounded").x
    assert abs(gap(best).gap_gufm) < 1e-10
    assert abs(gap(best).gap_fit) < 1e-4
    assert min(gap(best - 0.1).loss_gap, gap(best + 0.1).loss_gap) > 1e-4


# ---- Last layers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("classes", "width"), [(2, 1), (3, 2), (4, 9), (10, 64)])
def test_rows_of_a_fixed_classifier_are_a_simplex(classes: int, width: int) -> None:
    rows = simplex_rows(classes, width, 2.5, torch.Generator().manual_seed(0))
    expected = 2.5**2 * (classes * torch.eye(classes) - 1).double() / (classes - 1)
    torch.testing.assert_close(rows @ rows.T, expected, rtol=0, atol=1e-12)
    other = simplex_rows(classes, width, 2.5, torch.Generator().manual_seed(1))
    assert width == 1 or not torch.allclose(rows, other)


def test_orientations_of_the_simplex_are_uniform() -> None:
    """The mean of a row's outer product with itself is |a|^2 I/d. Red: QR's signs left as they are."""
    draw = torch.Generator().manual_seed(0)
    drawn = torch.stack([simplex_rows(3, 4, 1.0, draw) for _ in range(3000)])
    torch.testing.assert_close(drawn.mean(0), torch.zeros(3, 4).double(), rtol=0, atol=0.05)
    second = torch.einsum("sd,se->de", drawn[:, 0], drawn[:, 0]) / 3000
    torch.testing.assert_close(second, torch.eye(4).double() / 4, rtol=0, atol=0.03)


def test_nothing_moves_a_fixed_classifier() -> None:
    """Not training, no penalty on everything, not AdamW's decay; the rest starts as beside a learned one."""
    data = vector_data()
    adamw = {
        "name": "adamw",
        "learning_rate": 0.1,
        "beta1": 0.9,
        "beta2": 0.9,
        "eps": 1e-8,
        "weight_decay": 0.5,
    }
    penalty = {"rule": "constant", "value": 0.5, "last_layer": None, "scope": "all"}
    fixed, learned = (run_of(kind, optimizer=adamw, penalty=penalty, model=model) for kind, model in (
        ("etf", ETF), ("", {"last_bias": False})
    ))  # fmt: skip
    drawn = [dict(build_network(run, data).named_parameters()) for run in (fixed, learned)]
    for name in drawn[0]:
        assert torch.equal(drawn[0][name], drawn[1][name]) == (name != "last.weight"), name
    (trained,) = train([fixed], data, "float32")
    assert torch.equal(trained.state["last.weight"], drawn[0]["last.weight"])
    assert not torch.equal(trained.state["maps.0.weight"], drawn[0]["maps.0.weight"])
    features = extract(fixed, trained.state, data, CPU)
    assert features.metadata.roles["last.weight"] == "frozen"
    assert features.last_penalty == 0


def test_the_last_layer_of_a_contrast_is_the_nearest_mean_rule() -> None:
    """Of the training features on their sphere: errors as of the written-out rule, NC4 exactly 0."""
    data = vector_data(per_class=30, size=2)
    run = run_of("supcon", epochs=3)
    (trained,) = train([run], data)
    features = extract(run, trained.state, data, CPU)
    train_features = features.train.inputs.numpy()
    assert np.linalg.norm(train_features, axis=1) == pytest.approx(7**0.5, rel=1e-12)
    labels = data.train.labels.numpy()
    means = np.stack([train_features[labels == k].mean(0) for k in range(3)])
    errors = []
    for split in (features.train, features.test):
        assert split is not None
        distances = ((split.inputs.numpy()[:, None] - means) ** 2).sum(2)
        errors.append(float((distances.argmin(1) != split.labels.numpy()).mean()))
    end = trained.history[-1]
    assert [end.train_error, end.test_error] == errors
    assert 0 < errors[0] < 1
    torch.testing.assert_close(features.weight, torch.from_numpy(means))
    assert features.bias is not None
    assert features.bias.numpy() == pytest.approx(-(means**2).sum(1) / 2, rel=1e-12)
    assert features.layers["last"]["test"].samples.mismatched == 0


@pytest.mark.parametrize("kind", ["supcon", "dot_regression", "features", "smoothed_ce"])
def test_the_gradient_at_the_end_is_that_of_all_differences(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In parts of five samples. Red: what compares samples taken part by part."""
    monkeypatch.setattr("ncpipe.features.gradient.ROWS", 5)
    data, run = vector_data(per_class=4, size=3), run_of(kind)
    network: Network = build_network(run, data)
    tensors = {name: tensor.detach() for name, tensor in network.state_dict().items()}
    found = gradient_norm(load_network(run, tensors, data, CPU), run, data, CPU)
    state = {name: tensor.double().numpy().copy() for name, tensor in tensors.items()}
    moved = [name for name in state if not (name.startswith("last") and kind in FIXED)]
    squares = sum(
        (slopes_of(lambda: naive_objective(run.spec, state, data.train, 12), state[name]) ** 2).sum()
        for name in moved
    )
    assert found == pytest.approx(squares**0.5, rel=1e-7)


# ---- Keys -----------------------------------------------------------------------------------------------


def fingerprint(spec: Experiment) -> RunFingerprint:
    return RunFingerprint(Run("x", 3, 0, spec), "a", Compute("cpu", 1, "float32"))


def test_absent_keys_leave_no_trace() -> None:
    written = as_json(spec_of())
    assert written["loss"] == "ce"
    assert "classifier" not in written["model"]
    assert set(written["penalty"]) == {"rule", "value", "last_layer"}


def test_what_trains_side_by_side() -> None:
    """One loss and classifier a batch; penalties on features of several strengths, but not beside none."""
    keys = {kind: fingerprint(spec_of(kind)).batch_key() for kind in ("", *KINDS)}
    assert len(set(keys.values())) == len(keys)
    other = fingerprint(spec_of(penalty=FEATURES | {"features": 0.5}))
    assert other.batch_key() == keys["features"]
    runs = [run_of(penalty=FEATURES | {"features": value}) for value in (0.5, 0.02)]
    (alone,) = train(runs[1:], vector_data(), "float32")
    assert same(train(runs, vector_data(), "float32")[1], alone)


def test_a_loss_with_its_name_alone_is_that_loss() -> None:
    data = vector_data()
    (short,), (long,) = (train([run_of(loss=loss)], data, "float32") for loss in ("mse", {"name": "mse"}))
    assert same(short, long)


PAPER = {"architecture": "L-RN1", "norm": "post", "width": 8, "last_bias": False, "layer_norm_eps": 1e-5,
         "initialisation": "normal", "gain": 1.0}  # fmt: skip
BUILT = {"initialisation": "construction"}
FREE = {"source": "free", "classes": 3, "per_class": 2}
DUFM = {"architecture": "dufm", "width": 5, "columns": "own", "initialisation": "normal", "gain": 1.0,
        "feature_deviation": 1.0}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": "supcon"}, "loss: supcon needs a temperature; write `loss: {name: supcon, temper"),
        ({"loss": {"name": "supcon"}}, "loss.temperature: missing; add it"),
        ({"loss": SUPCON | {"temperature": 0}}, "loss.temperature: 0 is out of range; it must be > 0"),
        ({"loss": SUPCON | {"smoothing": 0.1}}, "loss.smoothing: unknown key; allowed: name, temp"),
        ({"loss": {"name": "ce", "smoothing": 1}}, "smoothing: 1 is out of range; it must be < 1"),
        ({"loss": {"name": "hinge"}}, "loss.name: 'hinge' is unknown; allowed: ce, mse, supcon, dot"),
        ({"loss": {"smoothing": 0.1}}, "loss.name: missing; add it"),
        ({"loss": 3}, "loss: 3 is unknown; allowed: ce, mse, supcon, dot_regression"),
        ({"loss": SUPCON, "model": {"last_bias": False}}, "model.last_bias: the nearest-mean rule"),
        ({"loss": SUPCON, "batch_size": 1}, "batch_size: supcon compares the samples of a batch"),
        ({"loss": SUPCON, "penalty": FEATURES}, "penalty.features does not apply to supcon; remove it"),
        ({"loss": SUPCON, "penalty": NOTHING | {"last_layer": 0.1}}, "last_layer does not apply: sup"),
        ({"loss": SUPCON, "model": ETF}, "model.classifier does not apply: supcon trains no logits"),
        ({"loss": SUPCON, "data": {"per_class": 1}}, "data.per_class: supcon compares samples of"),
        ({"loss": "dot_regression"}, "loss: dot_regression needs fixed rows; write `classifier:"),
        ({"loss": "dot_regression", "model": ETF, "penalty": FEATURES}, "penalty.features does not apply to"),
        ({"model": ETF | {"last_bias": True}}, "last_bias: a fixed classifier has none; write false"),
        ({"model": ETF | {"classifier": {"kind": "etf"}}}, "model.classifier: length is a number with"),
        ({"model": ETF | {"classifier": {"kind": "etf", "length": 0.0}}}, "classifier.length: 0.0 is"),
        ({"model": ETF | {"classifier": {"kind": "learned", "length": 1}}}, "classifier: length is a"),
        ({"model": ETF | {"classifier": {"kind": "simplex"}}}, "kind: 'simplex' is unknown; allowed: learn"),
        ({"model": ETF, "penalty": NOTHING | {"last_layer": 1}}, "penalty.last_layer does not apply: model"),
        ({"model": ETF | {"width": 1}}, "3 classes need a width of 2 for a simplex, not 1"),
        ({"base": PAPER, "penalty": FEATURES}, "features does not apply to L-RN1; remove it"),
        (
            {"base": PAPER, "model": BUILT, "loss": {"name": "ce", "smoothing": 0.1}},
            "loss: `initialisation: construction` is for plain `ce` or `mse`",
        ),
        (
            {"base": PAPER, "model": BUILT | ETF},
            "model.classifier: `initialisation: construction` builds one",
        ),
        ({"base": DUFM, "data": FREE, "loss": {"name": "mse", "smoothing": 0.1}}, "loss: dufm takes plain"),
        ({"base": DUFM, "data": FREE, "model": ETF}, "model.last_bias: unknown key"),
    ],
)  # fmt: skip
def test_mistakes_name_their_key(changes: dict[str, Any], message: str) -> None:
    if "per_class" in changes.get("data", {}) and "source" not in changes["data"]:
        changes = changes | {"data": experiment_tree()["data"] | changes["data"]}
    with pytest.raises(InputError) as caught:
        spec_of(**changes)
    first = str(caught.value).splitlines()[0]
    assert first.startswith("experiments.x")
    assert message in first


def test_what_only_the_data_show_names_its_key_too() -> None:
    """A class of one sample, and more classes than a simplex has room for, in a file of one's own."""
    singleton_class_error = one_hot_data(3, 2)
    singleton_class_error = dataclasses.replace(singleton_class_error, train=singleton_class_error.train[:5])
    with pytest.raises(
        InputError, match=r"^experiments\.x\.loss: supcon compares .* class 2 has 1; take more"
    ):
        train([run_of("supcon")], singleton_class_error)
    train([run_of("supcon_with_itself", epochs=1, log_every=1)], singleton_class_error)
    with pytest.raises(InputError, match=r"^model\.classifier: 9 classes need a width of 8"):
        train([run_of("etf")], vector_data(classes=9))


# ---- Through every stage --------------------------------------------------------------------------------


def test_they_go_from_params_to_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fetch to aggregate: objectives of history and features agree, there is no bound, runs can converge."""
    from ncpipe.commands.aggregate import aggregate

    monkeypatch.chdir(tmp_path)
    short = {"epochs": 60, "log_every": 5}
    trees = {
        kind: experiment_tree(**short, **{key: value for key, value in changes.items() if key != "model"})
        | {"model": MODEL | changes.get("model", {})}
        for kind, changes in KINDS.items()
    } | {
        "bounded": experiment_tree(**short, model=ETF),
        "smooth": experiment_tree(**short, loss={"name": "ce", "smoothing": 0.2}),
    }
    write_params([3], [0], **trees)
    measure_runs(*trees, depths=[3])
    aggregate()
    runs = pd.read_csv("data/results/runs.csv").set_index("experiment")
    ends = pd.read_csv("data/results/history.csv").query("epoch == 60").set_index("experiment")
    for column in ("loss", "fit", "train_error", "test_error"):
        assert runs[column].to_numpy() == pytest.approx(ends.loc[runs.index, column].to_numpy(), rel=1e-4), (
            column
        )
    assert runs["inner_penalty"].to_numpy() + runs["last_penalty"].to_numpy() == pytest.approx(
        ends.loc[runs.index, "penalty"].to_numpy(), rel=1e-4
    )
    assert runs["gradient_norm"].notna().all()
    bounds = runs["bound"].to_dict()
    assert [bounds.pop(kind) for kind in ("features", "smoothed_ce")] == ["features not bounded"] * 2
    assert bounds.pop("smooth") == "holds"
    assert set(bounds.values()) == {"no closed-form optimum"}
    assert runs.index[runs["loss_gap"].notna()].tolist() == ["smooth"]
    assert runs.loc["smooth", "loss_gap"] > 0
    assert runs.loc["supcon", "converged"]
    assert runs.loc["bounded", "bound_detail"] == "a fixed classifier"
