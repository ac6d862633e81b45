"""S24's heads: conv_net, levels and ranks, against plain loops; test_training.py has their training."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import image_data
from test_batch_norm_networks import numpy_conv, numpy_norm
from training_cases import CONV, HEAD, IMAGES, RESNET, run_of

from ncpipe.config.run import Run
from ncpipe.models.build import build_model, input_shape
from ncpipe.models.network import Network
from ncpipe.papers.s24.dufm import Dufm
from ncpipe.papers.s24.dufm_runs import head_levels
from ncpipe.papers.s24.dufm_solutions import dnc_solution, objective, srg_solution
from ncpipe.papers.s24.structure import rank_gap, ranks
from ncpipe.system.errors import InputError

NOTHING = {"rule": "constant", "value": 0.02, "last_layer": None}


def headed(model: dict[str, Any], **changes: Any) -> Run:
    """A run whose head is penalised, under the squared error."""
    return run_of(model, **{"penalty": HEAD, "loss": "mse"} | changes)


def network_of(run: Run) -> Network:
    shape = input_shape(IMAGES, run.spec.model)
    return build_model(run.spec.model, shape, IMAGES.classes, run.depth, run.seed)


def arranged(model: dict[str, Any]) -> torch.Tensor:
    """The training images in float64, their squares of 2 x 2 pixels averaged by hand."""
    images = IMAGES.train.inputs
    if model is CONV:
        images = images.unflatten(3, (4, 2)).unflatten(2, (4, 2)).mean((3, 5))
    return images.double()


def test_conv_net_is_its_definition() -> None:
    run = headed(CONV)
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
    run = headed(CONV | {"channels": [40, 30], "width": 300, "gain": 0.5})
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
    run = headed(model)
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
    found = head_levels(headed(CONV, penalty=penalty), labels)
    model = Dufm(classes=10, per_class=7, features=0.0006, weights=(0.006, 0.006, 0.006, 0.004))
    for level, solution in ((found.dnc, dnc_solution(model)), (found.srg, srg_solution(model))):
        assert level == pytest.approx(objective(model, solution.features, solution.weights), rel=1e-12)
    shallow = Dufm(10, 7, 0.0006, (0.006, 0.006, 0.004))  # two ReLU layers: L = 3
    solution = dnc_solution(shallow)
    expected = objective(shallow, solution.features, solution.weights)
    assert head_levels(headed(RESNET, penalty=penalty), labels).dnc == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    "changes",
    [
        {"penalty": HEAD | {"value": 0.0}},
        {"penalty": HEAD | {"features": 0.0}},
        {"penalty": NOTHING | {"scope": "all"}},
        {"loss": "ce"},
    ],
)
def test_other_objectives_have_no_levels(changes: dict[str, Any]) -> None:
    labels = torch.arange(10).repeat_interleave(7)
    assert math.isnan(head_levels(headed(CONV, **changes), labels).dnc)
    assert math.isnan(head_levels(headed(CONV), labels[:-1]).dnc)  # of unequal classes


def test_ranks_and_their_gap_by_a_cut() -> None:
    values = [torch.diag(torch.tensor(own)) for own in ([2.0, 1.0, 0.09, 0.01], [1.0, 0.2, 0.1, 0.06])]
    assert ranks(values, 0.05) == [2, 4]
    assert ranks(values) == [4, 4]
    assert rank_gap(values, 0.05) == pytest.approx(1 / 0.09)
    assert rank_gap(values[1:], 0.05) == math.inf


@pytest.mark.parametrize("model", [CONV | {"pooled": 1}, RESNET], ids=["conv_net", "resnet"])
def test_images_that_are_not_square_are_one_line(model: dict[str, Any]) -> None:
    """Red: a residual network of images with the channels last, which learned 8 channels of 8 x 3."""
    data = image_data(side=8, channels=8)
    spec = headed(model).spec.model
    assert input_shape(data, spec).size == 8
    data = replace(data, train=replace(data.train, inputs=data.train.inputs[..., :3]))
    message = rf"{model['architecture']} takes square images .*, not 8 x 3 with 8 channels"
    with pytest.raises(InputError, match=message):
        input_shape(data, spec)
