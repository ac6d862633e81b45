"""mlp and resnet_cifar: forward passes against NumPy, batch statistics, augmentation.

Their training against a plain loop is in test_training.py.
"""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import image_data
from training_cases import AUGMENTATION, CONV, HEADLESS, IMAGES, MLP, PLAIN, RESNET, VECTORS, run_of

from ncpipe.config.experiment import Augmentation
from ncpipe.datasets.prepared import Prepared
from ncpipe.features.extraction import extract
from ncpipe.models.build import build_model, build_network, input_shape, prepare_split
from ncpipe.models.network import Network, batch_norms, mixes_samples
from ncpipe.system.errors import InputError
from ncpipe.system.randomness import seeded_generator
from ncpipe.training import derived_state
from ncpipe.training.augmentation import augment, draw_moves
from ncpipe.training.derived_state import refresh_bn_statistics
from ncpipe.training.loop import train_batch
from ncpipe.training.stack import Stack

CPU = torch.device("cpu")
MODELS = {"mlp": MLP, "plain": PLAIN, "resnet": RESNET}


def data_for(model: dict[str, Any]) -> Prepared:
    return VECTORS if model["architecture"] == "mlp" else IMAGES


def network_of(model: dict[str, Any], seed: int = 0) -> Network:
    return build_network(run_of(model, seed), data_for(model))


def draw_all(network: Network, seed: int = 3) -> None:
    """Gains, shifts, biases and statistics that are not what they start as."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in itertools.chain(network.parameters(), network.buffers()):
            if tensor.dim() == 1:
                tensor.uniform_(0.5, 1.5, generator=generator)


# ---- Forward passes against NumPy -----------------------------------------------------------------------


def numpy_norm(x: np.ndarray, state: dict, name: str, training: bool, axes: tuple[int, ...]) -> np.ndarray:
    """Batch norm of x with channels on axis 1."""
    shape = [1, -1] + [1] * (x.ndim - 2)
    mean, variance = state[f"{name}.running_mean"].reshape(shape), state[f"{name}.running_var"].reshape(shape)
    if training:
        mean = x.mean(axes, keepdims=True)
        variance = ((x - mean) ** 2).mean(axes, keepdims=True)
    normed = (x - mean) / np.sqrt(variance + 1e-5)
    return normed * state[f"{name}.weight"].reshape(shape) + state[f"{name}.bias"].reshape(shape)


def numpy_mlp(state: dict, x: np.ndarray, training: bool, norm: bool) -> np.ndarray:
    for index in range(3):
        x = x @ state[f"maps.{index}.weight"].T + state[f"maps.{index}.bias"]
        if norm:
            x = numpy_norm(x, state, f"norms.{index}", training, (0,))
        x = np.maximum(x, 0)
    return x @ state["last.weight"].T + state["last.bias"]


def numpy_conv(x: np.ndarray, kernel: np.ndarray, stride: int) -> np.ndarray:
    """3 x 3 cross-correlation with a border of zeros, pixel by pixel."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    rows, columns = (range(0, size, stride) for size in x.shape[2:])
    out = np.zeros((len(x), len(kernel), len(rows), len(columns)))
    for (i, r), (j, c) in itertools.product(enumerate(rows), enumerate(columns)):
        out[:, :, i, j] = np.einsum("nchw,ochw->no", padded[:, :, r : r + 3, c : c + 3], kernel)
    return out


def numpy_resnet8(state: dict, x: np.ndarray, training: bool) -> np.ndarray:
    def norm(y: np.ndarray, name: str) -> np.ndarray:
        return numpy_norm(y, state, name, training, (0, 2, 3))

    x = np.maximum(norm(numpy_conv(x, state["conv.weight"], 1), "norm"), 0)
    for index, (channels, stride) in enumerate([(3, 1), (6, 2), (12, 2)]):
        prefix = f"blocks.{index}."
        y = np.maximum(norm(numpy_conv(x, state[f"{prefix}conv1.weight"], stride), f"{prefix}norm1"), 0)
        y = norm(numpy_conv(y, state[f"{prefix}conv2.weight"], 1), f"{prefix}norm2")
        shortcut = np.zeros_like(y)
        shortcut[:, : x.shape[1]] = x[:, :, ::stride, ::stride]
        assert y.shape[1] == channels
        x = np.maximum(y + shortcut, 0)
    h = x.mean((2, 3))
    for index in range(2):
        h = np.maximum(h @ state[f"head.{index}.weight"].T, 0)
    return h @ state["last.weight"].T


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("model", [MLP, PLAIN, RESNET], ids=MODELS)
def test_networks_are_their_definitions(model: dict, training: bool) -> None:
    network = network_of(model).double().train(training)
    draw_all(network)
    state = {name: tensor.clone().numpy() for name, tensor in network.state_dict().items()}
    inputs = data_for(model).train.inputs.double()
    with torch.no_grad():
        outputs = network(inputs).numpy()
    if model["architecture"] == "mlp":
        expected = numpy_mlp(state, inputs.numpy(), training, model["norm"] == "batch")
    else:
        expected = numpy_resnet8(state, inputs.numpy(), training)
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("model", [MLP, PLAIN, RESNET, HEADLESS], ids=[*MODELS, "headless"])
def test_every_layer_has_its_share_of_the_way(model: dict) -> None:
    network = network_of(model).eval()
    seen = list(network.layers(data_for(model).train.inputs[:2]))
    steps = [layer for layer in seen if layer.position is not None]
    places = {layer.name: float(layer.position * network.length) for layer in steps}
    if model["architecture"] == "mlp":
        assert places == {"H1": 1, "H2": 2, "last": 3}
    elif model is RESNET:
        assert places == {"stem": 0, "R1": 1, "R2": 2, "R3": 3, "H1": 4, "last": 5}
    else:
        assert places == {"stem": 0, "R1": 1, "R2": 2, "last": 3}
    assert all(layer.values.shape[0] == 2 and layer.values.dim() == 2 for layer in seen)
    assert not network.bounded


@pytest.mark.parametrize(
    ("model", "data"), [(CONV | {"channels": [3, 4, 5, 6]}, IMAGES), (MLP, VECTORS)], ids=["image", "vector"]
)
def test_a_mini_batch_of_one_value_a_channel_is_refused(model: dict, data: Prepared) -> None:
    """Red: a traceback of PyTorch; a step whose logits do not depend on the sample."""
    run = run_of(model, batch_size=len(data.train) - 1)
    with pytest.raises(InputError, match=r"^batch_size: leaves a mini-batch of one sample, which batch norm"):
        train_batch([run], data, torch.device("cpu"), "float32")


def test_a_run_that_diverged_keeps_statistics_of_its_last_finite_weights() -> None:
    """Red: NaN of the diverged step, which PyTorch's average multiplies by 0."""
    [trained] = train_batch(
        [run_of(RESNET, epochs=8, optimizer={"name": "sgd", "learning_rate": 1e12, "momentum": 0.0})],
        IMAGES, CPU, "float32",
    )  # fmt: skip
    assert trained.diverged_at
    assert all(bool(tensor.isfinite().all()) for tensor in trained.state.values())


def test_batch_norm_mixes_samples_without_running_statistics_too() -> None:
    """Red: a gradient of parts of a batch, each normalised by itself."""
    norm = torch.nn.BatchNorm2d(3, track_running_stats=False)
    assert batch_norms(torch.nn.Sequential(norm)) == {}
    assert mixes_samples(torch.nn.Sequential(norm))
    assert mixes_samples(network_of(MLP))
    assert not mixes_samples(network_of(PLAIN))


def test_weights_are_drawn_as_the_keys_say_and_gains_are_1() -> None:
    wide = network_of(RESNET | {"width": 64, "head_width": 300, "gain": 3.0})
    assert wide.blocks[1].conv2.weight.std().item() == pytest.approx((2 / (9 * 128)) ** 0.5, rel=0.02)
    assert wide.head[1].weight.std().item() == pytest.approx(3 / 300**0.5, rel=0.02)
    assert network_of(MLP | {"width": 400}).maps[1].weight.std().item() == pytest.approx(1.4 / 20, rel=0.02)
    for network in (wide, network_of(MLP)):
        for norm in batch_norms(network).values():
            assert (norm.weight == 1).all()
            assert not norm.bias.any()
    assert torch.equal(network_of(RESNET, seed=1).conv.weight, network_of(RESNET, seed=1).conv.weight)
    assert not torch.equal(network_of(RESNET, seed=1).conv.weight, network_of(RESNET, seed=2).conv.weight)


@pytest.mark.parametrize("depth", [8, 14, 20])
def test_depth_counts_weight_layers(depth: int) -> None:
    """ResNet20 has 20 of them without a head; kernels, gains and shifts, and W_L as counted by hand."""
    spec = run_of(HEADLESS | {"width": 16}).spec
    data = image_data(side=8, channels=3, classes=10, per_class=1)
    network = build_model(spec.model, input_shape(data, spec.model), 10, depth, 0)
    matrices = [p for p in network.parameters() if p.dim() > 1]
    assert len(matrices) == depth
    if depth == 20:
        assert sum(p.numel() for p in network.parameters()) == 267_696 + 2 * 688 + 640


# ---- Statistics -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [MLP, RESNET], ids=["mlp", "resnet"])
def test_a_full_batch_is_trained_and_measured_as_one_network(model: dict) -> None:
    """In one part the refreshed statistics make evaluation mode what training mode was, to rounding."""
    run, data = run_of(model, epochs=3, log_every=1), data_for(model)
    (trained,) = train_batch([run], data, CPU, "float64")
    network = network_of(model).double()
    network.load_state_dict(trained.state)
    inputs = data.train.inputs.double()
    with torch.no_grad():
        evaluated = network.eval()(inputs)
        in_training = network.train()(inputs)
    torch.testing.assert_close(evaluated, in_training, rtol=1e-9, atol=1e-9)
    assert trained.history[-1].fit == pytest.approx(F.cross_entropy(in_training, data.train.labels).item())
    features = extract(run, trained.state, data, CPU)
    h = network.eval().features(inputs).detach()
    torch.testing.assert_close(features.train.inputs, h, rtol=1e-12, atol=1e-12)
    assert not features.metadata.bounded
    assert math.isnan(features.gradient_norm)


def test_statistics_of_parts_are_pooled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first batch norm sees no other: its pooled statistics are those of all samples."""
    monkeypatch.setattr(derived_state, "PART", 1)
    for model in (MLP, RESNET):
        data = data_for(model)
        stack = Stack([network_of(model, seed) for seed in (0, 1)], CPU, torch.float64)
        samples = prepare_split(data.train, data.kind, run_of(model).spec.model, CPU, torch.float64)
        refresh_bn_statistics(stack, samples, 5)
        for run in (0, 1):
            network = network_of(model, run).double()
            first = network.maps[0] if model is MLP else network.conv
            z = first(samples.inputs).detach().movedim(1, -1).reshape(-1, 7 if model is MLP else 3)
            name = next(iter(batch_norms(network)))
            torch.testing.assert_close(stack.buffers[f"{name}.running_mean"][run], z.mean(0))
            torch.testing.assert_close(stack.buffers[f"{name}.running_var"][run], z.var(0, unbiased=False))
        assert not stack.network.training
        assert all(norm.momentum in (0.1, 1.0) for norm in batch_norms(stack.network).values())
        assert not any(norm._forward_pre_hooks for norm in stack.network.modules())


# ---- Augmentation ---------------------------------------------------------------------------------------


def test_images_move_and_flip_pixel_by_pixel() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(2, 9, 3, 5, 6, generator=generator)
    moves = torch.stack([draw_moves(Augmentation(2, True), 9, seeded_generator(s, "x")) for s in (0, 1)])
    assert moves[..., :2].abs().max() == 2
    assert set(moves[..., 2].flatten().tolist()) == {0, 1}
    moved = augment(images, moves, 2)
    for run, sample in itertools.product(range(2), range(9)):
        down, right, flip = moves[run, sample].tolist()
        expected = torch.zeros(3, 5, 6)
        for row, column in itertools.product(range(5), range(6)):
            if 0 <= row - down < 5 and 0 <= column - right < 6:
                expected[:, row, column] = images[run, sample, :, row - down, column - right]
        assert torch.equal(moved[run, sample], expected.flip(2) if flip else expected)


def test_augmentation_has_a_stream_of_its_own() -> None:
    """Without it nothing else changes; with it each run and epoch has its own; nothing is measured on it."""
    still = augment(torch.ones(1, 1, 1, 3, 3), torch.zeros(1, 1, 3, dtype=torch.long), 4)
    assert torch.equal(still, torch.ones(1, 1, 1, 3, 3))
    assert not draw_moves(Augmentation(0, False), 50, seeded_generator(0, "augmentation")).any()
    short = {"epochs": 2, "batch_size": 5}
    plain, idle, moving = (
        train_batch([run_of(RESNET, **short, **changes)], IMAGES, CPU, "float64")[0]
        for changes in ({}, {"augmentation": {"shift": 0, "flip": False}}, {"augmentation": AUGMENTATION})
    )
    for name, tensor in plain.state.items():
        torch.testing.assert_close(idle.state[name], tensor, rtol=1e-9, atol=1e-12)
    assert not torch.allclose(moving.state["conv.weight"], plain.state["conv.weight"], atol=1e-3)
    assert moving.history[0] == plain.history[0]


def test_no_construction_is_made_up_for_them() -> None:
    from ncpipe.papers.s25.constructions.networks import Choices
    from ncpipe.papers.s25.study_rows import constructed_row

    choices = Choices("sharp", draws=1, detours=0, attention_exponent=0.25)
    for model in (MLP, RESNET):
        run = run_of(model)
        with pytest.raises(InputError, match=f"none is known for {model['architecture']}"):
            constructed_row(run, data_for(model), "sharp", choices)
