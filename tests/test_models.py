"""Architectures against an independent NumPy implementation and against what S25 says of them."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from conftest import ARCHITECTURES, TEXT, architecture, experiment, image_data, token_data, vector_data
from reference import resnet, transformer
from torch import nn

from ncpipe.config.experiment import Model
from ncpipe.config.penalty_specs import Penalty
from ncpipe.datasets.prepared import Prepared, Split
from ncpipe.models.build import build_model, input_shape, prepare_split, reshape_inputs
from ncpipe.models.layers import (
    Affine,
    attend_by_products,
    attend_fused,
)
from ncpipe.models.network import ModuleOrParameter, Network, Role, init_weights
from ncpipe.models.penalties import is_penalised
from ncpipe.system.errors import InputError

CPU = torch.device("cpu")
TRANSFORMERS = [(name, norm) for name, norm in ARCHITECTURES if "T" in name]
PAPER, BIASES = Penalty("constant", 1.0, None), Penalty("constant", 1.0, None, biases=True)
RESNETS = [(name, norm) for name, norm in ARCHITECTURES if "R" in name]


def network_of(model: Model, data: Prepared, depth: int, seed: int = 3) -> Network:
    """A float64 network whose biases are drawn too: zero biases would hide their misuse."""
    network = build_model(model, input_shape(data, model), data.classes, depth, seed).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.5, generator=generator)
    return network


def arrays(network: torch.nn.Module) -> dict[str, np.ndarray]:
    return {name: value.numpy() for name, value in network.state_dict().items()}


def model_of(name: str, norm: str, data: Prepared, **more: object) -> Model:
    patch = {"patch": 2} if "T" in name and data.kind != "tokens" else {}
    source = {"data": TEXT} if data.kind == "tokens" else {}
    return experiment(model=architecture(name, norm, **patch, **more), **source).model


def logits_of(network: torch.nn.Module, split: Split, kind: str, model: Model) -> np.ndarray:
    samples = prepare_split(split, kind, model, CPU, torch.float64)
    with torch.no_grad():
        return network(samples.inputs, samples.lengths).numpy()


@pytest.mark.parametrize("last_bias", [False, True])
@pytest.mark.parametrize(("name", "norm"), RESNETS)
@pytest.mark.parametrize("depth", [2, 4])
def test_resnet_is_the_definition(name: str, norm: str, depth: int, last_bias: bool) -> None:
    data = vector_data()
    model = model_of(name, norm, data, last_bias=last_bias)
    network = network_of(model, data, depth)
    expected = resnet(arrays(network), data.train.inputs.double().numpy(), depth, norm == "pre", 1e-5)
    np.testing.assert_allclose(logits_of(network, data.train, "vector", model), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("last_bias", [False, True])
@pytest.mark.parametrize(("name", "norm"), TRANSFORMERS)
@pytest.mark.parametrize("depth", [1, 3])
def test_transformer_on_tokens_is_the_definition(name: str, norm: str, depth: int, last_bias: bool) -> None:
    """The reference sees each sequence without its padding."""
    data = token_data()
    model = model_of(name, norm, data, last_bias=last_bias)
    network = network_of(model, data, depth)
    assert data.train.lengths is not None
    sequences = [
        ids[:length].numpy() for ids, length in zip(data.train.inputs, data.train.lengths, strict=True)
    ]
    expected = [transformer(arrays(network), ids, depth, norm == "pre", 1e-5) for ids in sequences]
    np.testing.assert_allclose(logits_of(network, data.train, "tokens", model), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("name", "norm"), TRANSFORMERS)
def test_transformer_on_images_is_the_definition(name: str, norm: str) -> None:
    data = image_data()
    model = model_of(name, norm, data)
    network = network_of(model, data, 2)
    expected = []
    for image in data.train.inputs.double().numpy():
        patches = [image[:, r : r + 2, c : c + 2].ravel() for r in (0, 2) for c in (0, 2)]
        expected.append(transformer(arrays(network), np.stack(patches), 2, norm == "pre", 1e-5))
    np.testing.assert_allclose(logits_of(network, data.train, "image", model), expected, rtol=0, atol=1e-12)


def test_patch_must_divide_the_image() -> None:
    model = experiment(model={"architecture": "L-T11", "patch": 3}).model
    with pytest.raises(InputError, match=r"model\.patch: 3 does not divide"):
        reshape_inputs(torch.zeros(1, 1, 4, 4), "image", model)


@pytest.mark.parametrize("tokens", [1, 5, 70])
def test_both_attention_kernels_agree(tokens: int) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, tokens, 8, generator=generator, dtype=torch.float64) for _ in range(3))
    torch.testing.assert_close(attend_by_products(q, k, v), attend_fused(q, k, v), rtol=1e-10, atol=1e-12)


def test_attentions_own_backward_pass_is_its_derivative() -> None:
    """First and second derivatives against differences, and under vmap."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(2, 3, 4, 5, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(3)
    )
    assert torch.autograd.gradcheck(attend_by_products, (q, k, v))
    assert torch.autograd.gradgradcheck(attend_by_products, (q, k, v))

    def total(query: torch.Tensor) -> torch.Tensor:
        return attend_by_products(query, query, query).square().sum()

    one_by_one = torch.stack([torch.func.grad(total)(sample) for sample in q.detach()])
    torch.testing.assert_close(torch.vmap(torch.func.grad(total))(q.detach()), one_by_one)


@pytest.mark.parametrize("initialisation", ["normal", "uniform"])
def test_initial_variance_is_gain_squared_over_fan_in(initialisation: str) -> None:
    model = experiment(model={"width": 400, "gain": 2.0, "initialisation": initialisation}).model
    data = vector_data(size=100)
    state = build_model(model, input_shape(data, model), 10, 3, 0).state_dict()
    for name, fan_in in (("lin0.weight", 100), ("blocks.1.lin.weight", 400), ("last.weight", 400)):
        assert state[name].std().item() == pytest.approx(2 / fan_in**0.5, rel=0.05)
        assert abs(state[name].mean().item()) < 0.1 * 2 / fan_in**0.5
    assert not state["lin0.bias"].any()


class Normed(nn.Module):
    """One of each kind of parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear = nn.Conv2d(20, 400, 3), nn.Linear(400, 300)
        self.gru = nn.GRU(3, 4)
        self.norms = nn.ModuleList([nn.LayerNorm(5), nn.BatchNorm2d(5), nn.GroupNorm(5, 5), nn.RMSNorm(5)])
        self.places = nn.Parameter(torch.zeros(400, 300))
        self.scale = nn.Parameter(torch.full((3,), 7.0))


def test_gains_of_normalisations_are_drawn_as_1_and_strangers_are_named() -> None:
    """Red: gains of 0, with which a network's output is 0; a kernel's fan-in of its channels alone."""
    network = Normed()
    for name, parameter in network.named_parameters():
        if name != "scale":
            nn.init.constant_(parameter, 3.0)
    with pytest.raises(ValueError, match=r"and not scale \(3,\); set these in `initialise`"):
        init_weights(network, 1.0, False, torch.Generator().manual_seed(0))
    init_weights(network, 2.0, False, torch.Generator().manual_seed(0), besides=["scale"])
    for norm in network.norms:
        assert (norm.weight == 1).all()
        assert getattr(norm, "bias", None) is None or not norm.bias.any()
    assert (network.scale == 7).all()
    assert not network.linear.bias.any()
    assert not network.conv.bias.any()
    assert not network.gru.bias_ih_l0.any()
    drawn = ((network.conv.weight, 180), (network.linear.weight, 400), (network.places, 300))
    for matrix, fan_in in drawn:
        assert matrix.std().item() == pytest.approx(2 / fan_in**0.5, rel=0.02)


def test_what_a_seed_shares_between_depths() -> None:
    """docs/depth_rates.md: first layer and first blocks are equal, the last layer begins a later block."""
    data = vector_data()
    model = experiment(model={"width": 16}).model
    shallow, deep = (
        build_model(model, input_shape(data, model), 3, depth, 0).state_dict() for depth in (2, 5)
    )
    for name in ("lin0.weight", "blocks.0.lin.weight"):
        assert torch.equal(shallow[name], deep[name])
    last = shallow["last.weight"].flatten()
    assert torch.equal(last, deep["blocks.1.lin.weight"].flatten()[: len(last)])
    assert not torch.equal(last, deep["last.weight"].flatten())


@pytest.mark.parametrize(("name", "norm"), ARCHITECTURES)
def test_penalised_are_all_matrices_but_the_embedding(name: str, norm: str) -> None:
    def penalised(penalty: Penalty) -> set[str]:
        return {n for n, role in network.roles().items() if is_penalised(role, shapes[n].dim(), penalty)}

    data = vector_data()
    network = network_of(model_of(name, norm, data, last_bias=True), data, 2)
    shapes = dict(network.named_parameters())
    inner = {n for n in shapes if n.startswith("blocks.")}
    matrices = {n for n in inner if n.endswith("weight")} | {"last.weight"}
    assert penalised(PAPER) == matrices
    assert penalised(BIASES) == matrices | inner


class Odd(Network):
    """Two maps before the last one, of which parameter_groups() says what a test wants to hear."""

    def __init__(self, roles: Callable[["Odd"], dict[Role, list[ModuleOrParameter]]]) -> None:
        super().__init__()
        self.first, self.second, self.last = Affine(2, 2), Affine(2, 2, bias=False), Affine(2, 3)
        self.table = nn.Parameter(torch.zeros(4, 2))
        self.claimed = roles

    def parameter_groups(self) -> dict[Role, list[ModuleOrParameter]]:
        return self.claimed(self)

    length = initialise = layers = None  # type: ignore[assignment]


def test_every_parameter_has_exactly_one_role() -> None:
    """A role is a module's or a single parameter's; none missing, none twice, none of strangers."""
    net = Odd(lambda n: {"embedding": [n.first], "frozen": [n.second], "free": [n.table], "last": [n.last]})
    assert net.roles() == {
        "table": "free",
        "first.weight": "embedding",
        "first.bias": "embedding",
        "second.weight": "frozen",
        "last.weight": "last",
        "last.bias": "last",
    }
    with pytest.raises(ValueError, match=r"parameter_groups\(\) leaves out second\.weight"):
        Odd(lambda n: {"inner": [n.first, n.table], "last": [n.last]}).roles()
    with pytest.raises(ValueError, match="a parameter is in inner and in last"):
        Odd(lambda n: {"inner": [n.first, n.second, n.table], "last": [n.last, n.second]}).roles()
    with pytest.raises(ValueError, match="that the network does not register"):
        Odd(lambda n: {"inner": [n.first, n.second, n.table, Affine(1, 1)], "last": [n.last]}).roles()
