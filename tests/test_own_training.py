"""Losses and optimizers beside the plain ones, of the package and of a study.py.

Against the authors' formulas written out in NumPy float64, torch.optim's own, and runs alone against stacked.
"""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import experiment_tree, vector_data
from studies import HEAVY, TRAINING
from training_cases import LOSSES, MUON, OPTIMIZERS

from ncpipe.config.experiment import Experiment
from ncpipe.config.records import check, read
from ncpipe.config.run import Run, as_json
from ncpipe.config.study import load_study
from ncpipe.features.extraction import extract
from ncpipe.features.gradient import gradient_norm
from ncpipe.features.objective import fit_of
from ncpipe.models.build import build_network
from ncpipe.models.loss_functions import focal, label_aware_margins, logit_adjusted
from ncpipe.system.errors import InputError
from ncpipe.training.loop import train_batch
from ncpipe.training.session import Session

CPU = torch.device("cpu")
COUNTS = np.array([50, 20, 5, 2])
COSINES = {"name": "ldam", "max_margin": 0.5, "scale": 30.0, "cosines": True}


def spec_of(**changes: Any) -> Experiment:
    keys = {"penalty": {"rule": "constant", "value": 0.01, "last_layer": None}, "epochs": 6, "log_every": 1}
    spec: Experiment = read(Experiment, experiment_tree(**keys | changes), "")
    return spec


# ---- The authors' formulas ------------------------------------------------------------------------------


def samples() -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    return 3 * draw.standard_normal((9, 4)), draw.integers(0, 4, 9)


def probabilities(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


@pytest.mark.parametrize(("gamma", "alpha"), [(0.0, None), (0.5, None), (2.0, [0.1, 0.2, 0.3, 0.4])])
def test_focal_is_eq_5_of_lin(gamma: float, alpha: list[float] | None) -> None:
    """Red: p of another class; alpha of another class; a power of p instead of 1 - p."""
    f, y = samples()
    p = probabilities(f)[range(9), y]
    expected = -(np.array(alpha)[y] if alpha else 1) * (1 - p) ** gamma * np.log(p)
    weights = None if alpha is None else torch.tensor(alpha, dtype=torch.float64)
    actual = focal(torch.tensor(f), torch.tensor(y), gamma, weights)
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


@pytest.mark.parametrize("gamma", [0.5, 1.5, 4.0])
def test_focal_of_a_run_has_the_same_bits_beside_others(gamma: float) -> None:
    """Red: powers that PyTorch computes in another way at the end of a tensor."""
    f = torch.randn(5, 21, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    y = (torch.arange(21) % 3).expand(5, 21)
    together = focal(f, y, gamma)
    (slopes,) = torch.autograd.grad(together.sum(), f)
    for run in range(5):
        one = f[run : run + 1].detach().requires_grad_()
        alone = focal(one, y[:1], gamma)
        assert torch.equal(alone[0], together[run])
        assert torch.equal(torch.autograd.grad(alone.sum(), one)[0][0], slopes[run])


def test_focal_keeps_its_digits_where_a_sample_is_sure() -> None:
    """1 - p = 1e-12 at logits (27.6, 0): (1 - p)^2 (1 - p) to first order. Red: 1 - exp(-loss)."""
    gap = 12 * math.log(10)
    f = torch.tensor([[gap, 0.0]], dtype=torch.float64, requires_grad=True)
    loss = focal(f, torch.tensor([0]), 2.0)
    assert loss.item() == pytest.approx(1e-36, rel=1e-9)
    (gradient,) = torch.autograd.grad(loss.sum(), f)
    assert gradient[0, 1].item() == pytest.approx(3e-36, rel=1e-9)


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0])
def test_focals_gradient_is_finite_where_nothing_is_left_of_the_loss(gamma: float) -> None:
    """Red: the power's derivative, infinite at 0 for gamma < 1, times 0."""
    f = torch.tensor([[800.0, 0.0], [0.0, 1.0]], requires_grad=True)
    focal(f, torch.tensor([0, 0]), gamma).sum().backward()
    assert f.grad is not None
    assert f.grad.isfinite().all()


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_ldam_is_eq_12_and_13_of_cao(scale: float) -> None:
    """Red: a margin of another class, added instead of taken off, or with n instead of its fourth root."""
    f, y = samples()
    delta = 1 / COUNTS**0.25
    delta *= 0.5 / delta.max()
    z = f.copy()
    z[range(9), y] -= delta[y]
    expected = -np.log(probabilities(scale * z)[range(9), y])
    actual = label_aware_margins(torch.tensor(f), torch.tensor(y), torch.tensor(COUNTS), 0.5, scale)
    np.testing.assert_allclose(actual, expected, rtol=1e-11)


def test_ldam_by_cosines_is_the_authors_code() -> None:
    """A step's loss and gradient: f_k = h w_k/(|h| |w_k|), s (f - Delta_y e_y), through plain PyTorch.

    Red: rows or features of another length, a bias, s before the margin, rows taken for constants."""
    data = vector_data()
    keep = torch.cat([torch.arange(0, 8), torch.arange(8, 12), torch.arange(16, 18)])  # 8, 4 and 2 a class
    data = replace(data, train=data.train[keep])
    nothing = {"rule": "constant", "value": 0.0, "last_layer": None}
    run = Run("x", 3, 0, spec_of(loss=COSINES, penalty=nothing))
    session = Session([run], data, CPU, torch.float64)
    network = build_network(run, data).double()
    inputs, labels = session.train.inputs, data.train.labels
    rows = network.last.weight.detach().requires_grad_()
    cosines = F.cosine_similarity(network.features(inputs).detach().unsqueeze(1), rows, dim=2)
    margins = torch.bincount(labels).double() ** -0.25
    margins = F.one_hot(labels) * (0.5 * margins / margins.max())
    expected = F.cross_entropy(30 * (cosines - margins), labels)
    fit, gradient = session.loss_and_gradient(session.train)
    assert fit.item() == pytest.approx(expected.item(), rel=1e-12)
    last_gradient = session.stack.view(gradient, "last.weight")[0]
    torch.testing.assert_close(last_gradient, torch.autograd.grad(expected, rows)[0], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(network(inputs), cosines, rtol=1e-12, atol=1e-14)
    assert session.evaluate(session.train)[1].item() == (cosines.argmax(1) != labels).double().mean()


def test_features_of_cosines_are_measured_with_the_rows_that_decide() -> None:
    """Red: rows of the last layer as they are learned, whose lengths the network's decisions ignore."""
    run, data = Run("x", 3, 0, spec_of(loss=COSINES)), vector_data()
    (trained,) = train_batch([run], data, CPU, "float32")
    features = extract(run, trained.state, data, CPU)
    logits = features.train.inputs @ features.weight.mT
    rows = trained.state["last.weight"].double()
    h = features.train.inputs / features.train.inputs.norm(dim=1, keepdim=True)
    torch.testing.assert_close(logits, h @ (rows / rows.norm(dim=1, keepdim=True)).mT)
    wrong = (logits.argmax(1) != data.train.labels).double().mean().item()
    assert pytest.approx(wrong, rel=1e-6) == trained.history[-1].train_error  # a share in float32


@pytest.mark.parametrize("tau", [0.0, 1.0, 2.5])
def test_logit_adjustment_is_eq_10_of_menon(tau: float) -> None:
    """-log(pi_y^tau e^{f_y}/sum pi_k^tau e^{f_k}). Red: the sign of tau."""
    f, y = samples()
    powers = (COUNTS / COUNTS.sum()) ** tau * np.exp(f)
    expected = -np.log(powers[range(9), y] / powers.sum(1))
    actual = logit_adjusted(torch.tensor(f), torch.tensor(y), torch.tensor(COUNTS), tau)
    np.testing.assert_allclose(actual, expected, rtol=1e-11)


def numpy_steps(spec: dict[str, Any], weights: np.ndarray, gradients: list[np.ndarray]) -> np.ndarray:
    """The authors' algorithms, line by line, on a matrix of an inner layer that is penalised."""
    rate, w = spec["learning_rate"], weights.copy()
    m = np.zeros_like(w)
    for g in gradients:
        if spec["name"] == "lion":
            update = spec["beta1"] * m + (1 - spec["beta1"]) * g
            w = w - rate * (np.sign(update) + spec["weight_decay"] * w)
            m = spec["beta2"] * m + (1 - spec["beta2"]) * g
        elif spec["name"] == "sign_sgd":
            m = spec["momentum"] * m + (1 - spec["momentum"]) * g
            w = w - rate * np.sign(m)
        else:
            m = spec["momentum"] * m + g
            x = g + spec["momentum"] * m
            x = x / (np.sqrt((x**2).sum()) + 1e-7)
            if wide := x.shape[0] > x.shape[1]:
                x = x.T
            for _ in range(5):
                a = x @ x.T
                x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
            x = x.T if wide else x
            scale = max(1.0, w.shape[0] / w.shape[1]) ** 0.5
            w = w - rate * (scale * x + spec["weight_decay"] * w)
    return w


def session_of(optimizer: dict[str, Any], **changes: Any) -> Session:
    keys = {"optimizer": optimizer, "schedule": {"name": "constant"}} | changes
    return Session([Run("x", 3, 0, spec_of(**keys))], vector_data(), CPU, torch.float64)


@pytest.mark.parametrize("name", ["lion", "sign_sgd", "muon"])
def test_steps_are_the_authors_on_an_inner_matrix(name: str) -> None:
    """Red: state that is updated before it is used, or not kept; a decay that is not decoupled."""
    optimizer = OPTIMIZERS[name] | ({"weight_decay": 0.1} if name == "muon" else {})
    session = session_of(optimizer)
    method: Any = session.method
    stack = session.stack
    matrix = next(n for n, role in stack.roles.items() if role == "inner" and stack.dimensions[n] == 2)
    start = stack.view(stack.values, matrix)[0].numpy().copy()
    draw = torch.Generator().manual_seed(0)
    gradients = [torch.randn(stack.values.shape, generator=draw, dtype=torch.float64) for _ in range(3)]
    for step, gradient in enumerate(gradients):
        stack.values.copy_(method.optimizer.update(stack.values, gradient, method.table[step]))
    matrix_gradients = [stack.view(gradient, matrix)[0].numpy() for gradient in gradients]
    end = stack.view(stack.values, matrix)[0].numpy()
    np.testing.assert_allclose(end, numpy_steps(optimizer, start, matrix_gradients), rtol=1e-12, atol=1e-14)


def test_muon_takes_adamws_steps_on_all_but_inner_matrices() -> None:
    """Against torch's AdamW. Red: Muon on the last layer's matrix, or on the first; a forgotten rate."""
    session = session_of(MUON)
    method: Any = session.method
    stack = session.stack
    names = [n for n, r in stack.roles.items() if r != "inner" or stack.dimensions[n] == 1]
    assert {"last", "embedding"} <= {stack.roles[n] for n in names}
    weights = [stack.view(stack.values, n)[0].clone().requires_grad_() for n in names]
    plain = torch.optim.AdamW(weights, lr=0.01, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.0)
    for step in range(3):
        gradient = torch.randn_like(stack.values)
        for weight, n in zip(weights, names, strict=True):
            weight.grad = stack.view(gradient, n)[0]
        plain.step()
        stack.values.copy_(method.optimizer.update(stack.values, gradient, method.table[step]))
    for weight, n in zip(weights, names, strict=True):
        torch.testing.assert_close(stack.view(stack.values, n)[0], weight.detach(), rtol=1e-12, atol=1e-14)


# ---- Runs -----------------------------------------------------------------------------------------------


pytestmark = pytest.mark.usefixtures("study_folder")


def write_study(text: str = TRAINING) -> None:
    Path("study.py").write_text(text)
    load_study(Path())


def test_an_optimizer_of_ones_own_is_the_packages() -> None:
    """Heavy ball against sgd, to the bit. Red: a rate of another step; a state that starts anew."""
    write_study()
    ours, sgd = session_of(HEAVY), session_of(HEAVY | {"name": "sgd"})
    for session in (ours, sgd):
        list(session.epochs())
    torch.testing.assert_close(ours.stack.values, sgd.stack.values, rtol=1e-12, atol=1e-14)


def test_a_loss_of_ones_own_is_what_its_measurements_say() -> None:
    """The same number in training and of the features, and a gradient by differences. Red: N times it, or
    another class's count."""
    write_study()
    data = vector_data()
    for loss in ({"name": "poly", "epsilon": 1.0}, *LOSSES[1:]):
        run = Run("x", 3, 0, spec_of(loss=loss))
        session = Session([run], data, CPU, torch.float64)
        fit = session.evaluate(session.train)[0].item()
        network = build_network(run, data).double()
        features = network.features(data.train.inputs.double()).detach()
        split = type(data.train)(features, data.train.labels)
        assert fit_of(run, split, network.classifier_weight().detach(), None) == pytest.approx(fit, rel=1e-6)
        norm = session.loss_and_gradient(session.train)[1].norm().item()
        assert gradient_norm(network, run, data, CPU) == pytest.approx(norm, rel=1e-6)
    assert math.isnan(gradient_norm(network, Run("x", 3, 0, spec_of(loss={"name": "pairs"})), data, CPU))


# ---- What is said of mistakes, and what an edit changes -------------------------------------------------


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        ({"class": "Adm"}, "torch.optim has no 'Adm' here; did you mean 'Adam'"),
        ({"class": "LBFGS"}, "write `name: lbfgs`"),
        ({"class": "Adam", "arguments": {"beta": 1}}, r"torch\.optim\.Adam: .*keyword argument 'beta'"),
        ({"class": "Adam", "arguments": {"lr": 0.5}}, "arguments: lr is set by learning_rate; leave it out"),
    ],
)  # fmt: skip
def test_an_optimizer_that_torch_has_not_is_one_line(optimizer: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        session_of({"name": "torch", "learning_rate": 0.1} | optimizer)
    assert "\n" not in str(caught.value)


def test_the_key_class_is_written_and_read_as_such() -> None:
    """Red: `class_` in run.json, in an error, or after an axis has varied another key."""
    tree = experiment_tree(optimizer={"name": "torch", "class": "NAdam", "learning_rate": 0.1})
    spec = read(Experiment, tree)
    assert as_json(spec)["optimizer"] == tree["optimizer"]
    hash(spec)
    assert check(Experiment, as_json(spec))[0] == spec
    for wrong, message in (
        ({"class": 3}, "optimizer.class: expected text, got a whole number"),
        ({"class": "NAdam", "klass": 1}, "optimizer.klass: unknown key; did you mean 'class'"),
        ({}, "optimizer.class: missing"),
    ):
        bad = tree | {"optimizer": {"name": "torch", "learning_rate": 0.1} | wrong}
        assert message in check(Experiment, bad)[1][0]


def test_own_names_join_their_own_union_alone() -> None:
    """Red: an optimizer that `loss` or `schedule` takes because its first key is `name` too."""
    write_study()
    for key, value in (
        ("loss", HEAVY),
        ("schedule", HEAVY),
        ("optimizer", {"name": "poly", "epsilon": 1.0}),
    ):
        _, [mistake] = check(Experiment, experiment_tree(**{key: value}), "")
        assert f"{key}.name: {value['name']!r} is unknown" in mistake


def test_no_bound_is_claimed_for_such_a_loss() -> None:
    from ncpipe.features.run_metrics import _beyond_the_bound

    write_study()
    trained = SimpleNamespace(metadata=SimpleNamespace(roles={"last.weight": "last"}))
    for loss in (*LOSSES[1:], {"name": "poly", "epsilon": 0.0}):
        assert _beyond_the_bound(Run("x", 3, 0, spec_of(loss=loss)), trained) == f"the loss {loss['name']}"


def test_alpha_has_a_factor_for_each_class() -> None:
    with pytest.raises(InputError, match=r"experiments\.x\.loss: alpha: 2 factors for 3 classes"):
        session_of(HEAVY | {"name": "sgd"}, loss={"name": "focal", "gamma": 1.0, "alpha": [1.0, 1.0]})


def test_a_loss_with_keys_that_is_only_named_says_how_it_is_written() -> None:
    """Red: a list of names in which it is not."""
    write_study()
    for name in ("focal", "poly"):
        _, [mistake] = check(Experiment, experiment_tree(loss=name), "")
        assert mistake == f"loss: {name!r} has keys of its own; write `{{name: {name}, ...}}`"
    assert "did you mean 'ce'" in check(Experiment, experiment_tree(loss="cee"))[1][0]
