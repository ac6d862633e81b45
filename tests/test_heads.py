"""S24's heads: a penalty on head and features, conv_net, levels and ranks, against plain loops."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import experiment_tree, image_data
from test_batch_norm_networks import RESNET, numpy_conv, numpy_norm

from ncpipe.config.experiment import Experiment
from ncpipe.config.records import read
from ncpipe.config.run import Compute, Run
from ncpipe.features import gradient
from ncpipe.features.forward import load_network
from ncpipe.features.passes import extract
from ncpipe.metrics.structure import rank_gap, ranks
from ncpipe.models.build import build_model, input_shape
from ncpipe.models.network import Network
from ncpipe.runs.fingerprint import RunFingerprint
from ncpipe.system.errors import InputError
from ncpipe.system.randomness import seeded_generator
from ncpipe.theory.dufm import Dufm
from ncpipe.theory.dufm_runs import head_levels
from ncpipe.theory.dufm_solutions import dnc_solution, objective, srg_solution
from ncpipe.training.loop import train_batch
from ncpipe.training.session import Trained

CPU = torch.device("cpu")
CONV = {
    "architecture": "conv_net", "pooled": 2, "channels": [3, 4], "width": 6, "feature_gain": 0.5, "gain": 1.0,
    "batch_norm_eps": 1e-5,
}  # fmt: skip
DEPTHS = {"conv_net": 4, "resnet_cifar": 8}
DIGITS = {"source": "digits", "per_class": 6, "test_per_class": 3, "seed": 0, "normalisation": "standardise"}
HEAD = {"rule": "constant", "value": 0.02, "last_layer": 0.05, "scope": "head", "features": 0.003}
PLAIN = {"rule": "constant", "value": 0.02, "last_layer": None}
DATA = image_data(side=8, per_class=6)
DATA.train.inputs.copy_((64 * DATA.train.inputs).round() / 64)  # means of 4 pixels are exact in float32


def run_of(model: dict[str, Any], seed: int = 0, **changes: Any) -> Run:
    tree = experiment_tree(**{"data": DIGITS, "penalty": HEAD, "loss": "mse"} | changes) | {"model": model}
    return Run("x", DEPTHS[model["architecture"]], seed, read(Experiment, tree))


def network_of(run: Run) -> Network:
    shape = input_shape(DATA, run.spec.model)
    return build_model(run.spec.model, shape, DATA.classes, run.depth, run.seed)


def train(*runs: Run, precision: str = "float64") -> list[Trained]:
    return train_batch(runs, DATA, CPU, precision)


def arranged(model: dict[str, Any]) -> torch.Tensor:
    """The training images in float64, their squares of 2 x 2 pixels averaged by hand."""
    images = DATA.train.inputs
    if model is CONV:
        images = images.unflatten(3, (4, 2)).unflatten(2, (4, 2)).mean((3, 5))
    return images.double()


def features_and_outputs(
    network: Network, model: dict[str, Any], x: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """H_1 and the output, by the modules' names and no method of the network's own."""
    if model is CONV:
        for conv, norm in zip(network.convs, network.norms, strict=True):
            x = torch.relu(norm(conv(x)))
        head_input = network.map(x.flatten(1))
    else:
        x = torch.relu(network.norm(network.conv(x)))
        for block in network.blocks:
            x = block(x)
        head_input = x.mean((2, 3))
    h = head_input
    for layer in network.head:
        h = torch.relu(layer(h))
    return head_input, network.last(h)


def loss_of(network: Network, model: dict[str, Any], x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """1/(2B) |f - y|^2 + .02/2 sum |W_l|^2 + .05/2 |W_L|^2 + (.003 N/2) mean |h|^2 [S24 sec. 6.2]."""
    head_input, outputs = features_and_outputs(network, model, x)
    loss = (outputs - F.one_hot(labels, 3)).square().sum(1).mean() / 2
    for layer in network.head:
        loss = loss + 0.02 / 2 * layer.weight.square().sum()
    loss = loss + 0.05 / 2 * network.last.weight.square().sum()
    return loss + 0.003 * len(DATA.train) / 2 * head_input.square().sum(1).mean()


@pytest.mark.parametrize("batch_size", ["full", 7])
@pytest.mark.parametrize("model", [CONV, RESNET], ids=["conv_net", "resnet"])
def test_training_is_the_plain_loop(model: dict[str, Any], batch_size: Any) -> None:
    sgd = {"name": "sgd", "learning_rate": 0.05, "momentum": 0.9}
    changes = {"batch_size": batch_size, "epochs": 4, "log_every": 4, "schedule": {"name": "constant"}}
    run = run_of(model, optimizer=sgd, **changes)
    (trained,) = train(run)
    network, x, labels = network_of(run).double(), arranged(model), DATA.train.labels
    optimizer = torch.optim.SGD(network.parameters(), 0.05, momentum=0.9)
    order = seeded_generator(0, "order")
    for _ in range(4):
        rows = torch.arange(len(labels)) if batch_size == "full" else torch.randperm(18, generator=order)
        for part in rows.split(18 if batch_size == "full" else 7):
            optimizer.zero_grad()
            loss_of(network, model, x[part], labels[part]).backward()
            optimizer.step()
    for name, parameter in network.named_parameters():
        torch.testing.assert_close(trained.state[name], parameter.detach(), rtol=1e-9, atol=1e-11)
    # with the statistics of all samples the history's last row and what is measured are this loss
    expected = loss_of(network, model, x, labels).item()  # in training mode: a full batch
    assert trained.history[-1].loss == pytest.approx(expected, rel=1e-12)
    found = extract(run, trained.state, DATA, CPU)
    assert trained.history[-1].penalty == pytest.approx(found.last_penalty + found.inner_penalty, rel=1e-12)


@pytest.mark.parametrize("model", [CONV, RESNET], ids=["conv_net", "resnet"])
def test_the_gradient_at_the_end_has_the_penalty_of_features(
    model: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In evaluation mode, where it is defined: as for a network of one's own without batch norm."""
    run = run_of(model)
    network = load_network(run, network_of(run).state_dict(), DATA, CPU)
    parameters = list(network.parameters())
    parts = torch.autograd.grad(loss_of(network, model, arranged(model), DATA.train.labels), parameters)
    expected = math.sqrt(sum(part.square().sum().item() for part in parts))
    monkeypatch.setattr(gradient, "batch_norms", lambda network: {})
    monkeypatch.setattr(gradient, "ROWS", 20)  # of several parts
    assert gradient.gradient_norm(network, run, DATA, CPU) == pytest.approx(expected, rel=1e-12)


def test_a_run_does_not_depend_on_its_batch() -> None:
    """Of other lambdas, alone and side by side: the same bytes."""
    penalties = [HEAD | {"value": value, "features": value / 10} for value in (0.0, 0.004, 0.03)]
    short = {"epochs": 3, "log_every": 2, "batch_size": 5}
    runs = [run_of(CONV, seed, penalty=penalty, **short) for seed, penalty in enumerate(penalties)]
    (alone,) = train(runs[1], precision="float32")
    batched = train(*runs, precision="float32")[1]
    assert batched.history == alone.history
    assert all(torch.equal(batched.state[key], alone.state[key]) for key in alone.state)


def test_runs_without_a_penalty_of_features_train_apart() -> None:
    rules = [HEAD, HEAD | {"value": 0.1}, PLAIN]
    compute = Compute("cpu", 1, "float32")
    first, other_value, other_scope = (
        RunFingerprint(run_of(CONV, penalty=rule), "data", compute).batch_key() for rule in rules
    )
    assert first == other_value != other_scope


def test_conv_net_is_its_definition() -> None:
    run = run_of(CONV)
    network = network_of(run).double().train()
    state = {name: tensor.detach().numpy() for name, tensor in network.state_dict().items()}
    x = arranged(CONV).numpy()
    for index, stride in enumerate((1, 2)):
        x = numpy_conv(x, state[f"convs.{index}.weight"], stride)
        x = np.maximum(numpy_norm(x, state, f"norms.{index}", True, (0, 2, 3)), 0)
    h = x.reshape(len(x), -1) @ state["map.weight"].T
    values = {"H1": h}
    for layer in (2, 3, 4):
        values[f"Z{layer}"] = h @ state[f"head.{layer - 2}.weight"].T
        h = np.maximum(values[f"Z{layer}"], 0)
        values["last" if layer == 4 else f"H{layer}"] = h
    with torch.no_grad():
        found = {layer.name: layer for layer in network.layers(arranged(CONV))}
        outputs = network(arranged(CONV))
    assert list(found) == ["C1", "C2", "H1", "Z2", "H2", "Z3", "H3", "Z4", "last"]
    for name, expected in values.items():
        np.testing.assert_allclose(found[name].values, expected, atol=1e-12)
    np.testing.assert_allclose(outputs, h @ state["last.weight"].T, atol=1e-12)
    assert [layer.position * network.length for layer in found.values() if layer.position] == [*range(1, 7)]


def test_conv_net_is_drawn_as_its_keys_say() -> None:
    run = run_of(CONV | {"channels": [40, 30], "width": 300, "gain": 0.5})
    network = network_of(run)
    fans = {
        "convs.0": 2 / 18,
        "convs.1": 2 / 360,
        "map": 0.25 / 120,
        "head.1": 0.25 / 300,
        "last": 0.25 / 300,
    }
    for name, variance in fans.items():
        weight = network.get_parameter(f"{name}.weight")
        assert weight.var().item() == pytest.approx(variance, rel=5 * math.sqrt(2 / weight.numel()))
    again = network_of(run)
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize("model", [CONV, RESNET], ids=["conv_net", "resnet"])
def test_a_head_is_named_where_it_is(model: dict[str, Any]) -> None:
    """By values: W_1 H_1, its ReLU, W_2 of that, ...; and by roles."""
    run = run_of(model)
    network, head = network_of(run).double(), run.spec.model.head(run.depth)
    assert head is not None
    with torch.no_grad():
        values = {layer.name: layer.values for layer in network.layers(arranged(model))}
        logits, _, head_input = network.forward_with_features(arranged(model))
        matrices = [*network.head, network.last]
        assert head.depth == len(matrices) == len(head.before) + 1
        assert network.head_input_layer == head.input_layer
        assert torch.equal(head_input, values[head.input_layer])
        h = head_input
        for matrix, before, after in zip(matrices, head.before, head.after, strict=False):
            torch.testing.assert_close(values[before], matrix(h))
            h = torch.relu(values[before])
            assert torch.equal(values[after], h)
        torch.testing.assert_close(logits, network.last(h))
    inside = {name for name, role in network.roles().items() if role == "head"}
    assert inside == {f"head.{index}.weight" for index in range(head.depth - 1)}


def test_levels_of_a_head_are_those_of_its_features_model() -> None:
    """L_DNC and L_SRG against the objective of built matrices, for unequal lambdas."""
    penalty = HEAD | {"value": 0.006, "last_layer": 0.004, "features": None, "features_over_value": 0.1}
    labels = torch.arange(10).repeat_interleave(7)
    found = head_levels(run_of(CONV, penalty=penalty), labels)
    model = Dufm(classes=10, per_class=7, features=0.0006, weights=(0.006, 0.006, 0.006, 0.004))
    for level, solution in ((found.dnc, dnc_solution(model)), (found.srg, srg_solution(model))):
        assert level == pytest.approx(objective(model, solution.features, solution.weights), rel=1e-12)
    shallow = Dufm(10, 7, 0.0006, (0.006, 0.006, 0.004))  # two ReLU layers: L = 3
    solution = dnc_solution(shallow)
    expected = objective(shallow, solution.features, solution.weights)
    assert head_levels(run_of(RESNET, penalty=penalty), labels).dnc == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    "changes",
    [
        {"penalty": HEAD | {"value": 0.0}},
        {"penalty": HEAD | {"features": 0.0}},
        {"penalty": PLAIN | {"scope": "all"}},
        {"loss": "ce"},
    ],
)
def test_other_objectives_have_no_levels(changes: dict[str, Any]) -> None:
    labels = torch.arange(10).repeat_interleave(7)
    assert math.isnan(head_levels(run_of(CONV, **changes), labels).dnc)
    assert math.isnan(head_levels(run_of(CONV), labels[:-1]).dnc)  # of unequal classes


def test_ranks_and_their_gap_by_a_cut() -> None:
    values = [torch.diag(torch.tensor(own)) for own in ([2.0, 1.0, 0.09, 0.01], [1.0, 0.2, 0.1, 0.06])]
    assert ranks(values, 0.05) == [2, 4]
    assert ranks(values) == [4, 4]
    assert rank_gap(values, 0.05) == pytest.approx(1 / 0.09)
    assert rank_gap(values[1:], 0.05) == math.inf


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"penalty": HEAD | {"features": None}},
            "penalty: features (or features_over_value) is needed with `scope: head`",
        ),
        ({"penalty": HEAD | {"features_over_value": 0.1}}, "both say lambda_H; remove one"),
        ({"penalty": HEAD | {"biases": True}}, "biases does not apply: `scope: head` leaves them free"),
        ({"penalty": HEAD | {"scope": "all"}}, "penalty.features does not apply to conv_net without"),
        ({"penalty": HEAD | {"layers": [0.1] * 4, "last_layer": None}}, "penalty.layers does not apply"),
        ({"model": CONV | {"pooled": 3}}, "model.pooled: 3 does not divide the input's side 8"),
        ({"model": CONV | {"channels": []}}, "channels: empty"),
        ({"data": experiment_tree()["data"]}, "conv_net takes images, gaussian_mixture has none"),
    ],
)
def test_mistakes_are_one_line_that_names_the_key(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        run_of(**{"model": CONV} | changes)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("model", [CONV | {"pooled": 1}, RESNET], ids=["conv_net", "resnet"])
def test_images_that_are_not_square_are_one_line(model: dict[str, Any]) -> None:
    """Red: a residual network of images with the channels last, which learned 8 channels of 8 x 3."""
    data = image_data(side=8, channels=8)
    spec = run_of(model).spec.model
    assert input_shape(data, spec).size == 8
    data = replace(data, train=replace(data.train, inputs=data.train.inputs[..., :3]))
    message = rf"{model['architecture']} takes square images .*, not 8 x 3 with 8 channels"
    with pytest.raises(InputError, match=message):
        input_shape(data, spec)


def test_a_network_without_a_head_has_nothing_to_penalise_there() -> None:
    headless = {key: value for key, value in RESNET.items() if key != "head_width"} | {"head_layers": 0}
    with pytest.raises(InputError, match=r"penalty\.scope: this resnet_cifar has no head"):
        run_of(headless)
    assert run_of(headless, penalty=PLAIN).spec.model.head(8) is None
