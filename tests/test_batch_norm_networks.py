"""mlp and resnet_cifar: against NumPy, PyTorch's own modules and loops, and through every stage."""

import itertools
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from conftest import experiment_tree, image_data, measure_runs, vector_data, write_params
from torch import nn

from ncpipe.config.experiment import Augmentation, Experiment
from ncpipe.config.run import Compute, Run
from ncpipe.datasets.prepared import Prepared
from ncpipe.features.passes import extract
from ncpipe.models.build import build_model, input_shape, prepare_split
from ncpipe.models.layers import BatchNorm
from ncpipe.models.network import Network, batch_norms
from ncpipe.runs.fingerprint import RunFingerprint
from ncpipe.system.errors import InputError
from ncpipe.system.randomness import seeded_generator
from ncpipe.training import batch_statistics
from ncpipe.training.augmentation import augment, draw_moves
from ncpipe.training.batch_statistics import refresh_bn_statistics
from ncpipe.training.checkpoints import Checkpoints, Stopped
from ncpipe.training.loop import train_batch
from ncpipe.training.objective import penalty, penalty_strengths
from ncpipe.training.session import Trained
from ncpipe.training.stack import Stack

CPU = torch.device("cpu")
SGD = {"name": "sgd", "learning_rate": 0.05, "momentum": 0.9}
MLP = {
    "architecture": "mlp", "norm": "batch", "activation": "relu", "width": 7, "bias": True, "last_bias": True,
    "initialisation": "normal", "gain": 1.4, "batch_norm_eps": 1e-5,
}  # fmt: skip
RESNET = {
    "architecture": "resnet_cifar", "width": 3, "head_layers": 2, "head_width": 5, "gain": 1.0,
    "batch_norm_eps": 1e-5,
}  # fmt: skip
PLAIN = {key: value for key, value in MLP.items() if key != "batch_norm_eps"} | {"norm": "none"}
HEADLESS = {key: value for key, value in RESNET.items() if key != "head_width"} | {"head_layers": 0}
DIGITS = {"source": "digits", "per_class": 6, "test_per_class": 3, "seed": 0, "normalisation": "standardise"}
MODELS = {"mlp": MLP, "plain": PLAIN, "resnet": RESNET}


def spec_of(model: dict[str, Any], **changes: Any) -> Experiment:
    from ncpipe.config.records import read

    tree = experiment_tree(**changes) | {"model": model}
    if model["architecture"] == "resnet_cifar":
        tree["data"] = DIGITS
    return read(Experiment, tree)


def data_for(model: dict[str, Any]) -> Prepared:
    return image_data(side=8, per_class=6) if model["architecture"] == "resnet_cifar" else vector_data()


def depth_of(model: dict[str, Any]) -> int:
    return 8 if model["architecture"] == "resnet_cifar" else 4


def network_of(model: dict[str, Any], seed: int = 0) -> Network:
    spec, data = spec_of(model), data_for(model)
    return build_model(spec.model, input_shape(data, spec.model), data.classes, depth_of(model), seed)


def train(
    model: dict[str, Any], seeds: Sequence[int] = (0,), precision: str = "float64", **changes: Any
) -> list[Trained]:
    spec = spec_of(model, **changes)
    runs = [Run("x", depth_of(model), seed, spec) for seed in seeds]
    return train_batch(runs, data_for(model), CPU, precision)


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
        found = network(inputs).numpy()
    if model["architecture"] == "mlp":
        expected = numpy_mlp(state, inputs.numpy(), training, model["norm"] == "batch")
    else:
        expected = numpy_resnet8(state, inputs.numpy(), training)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


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
    spec = spec_of(HEADLESS | {"width": 16})
    data = image_data(side=8, channels=3, classes=10, per_class=1)
    network = build_model(spec.model, input_shape(data, spec.model), 10, depth, 0)
    matrices = [p for p in network.parameters() if p.dim() > 1]
    assert len(matrices) == depth
    if depth == 20:
        assert sum(p.numel() for p in network.parameters()) == 267_696 + 2 * 688 + 640


# ---- Training -------------------------------------------------------------------------------------------


def plain_network(model: dict[str, Any]) -> nn.Module:
    """What a user would write, with the drawn weights of ours."""
    ours = network_of(model).double()
    if model["architecture"] == "resnet_cifar":
        return ours  # made of PyTorch's own modules already
    parts: list[nn.Module] = []
    for map_, norm in zip(ours.maps, ours.norms, strict=True):
        linear = nn.Linear(map_.weight.shape[1], map_.weight.shape[0])
        parts += [
            linear,
            nn.BatchNorm1d(7, 1e-5) if isinstance(norm, BatchNorm) else nn.Identity(),
            nn.ReLU(),
        ]
        linear.weight, linear.bias = map_.weight, map_.bias
    last = nn.Linear(7, 3)
    last.weight, last.bias = ours.last.weight, ours.last.bias
    return nn.Sequential(*parts, last).double()


@pytest.mark.parametrize("scope", ["matrices", "all"])
@pytest.mark.parametrize("batch_size", ["full", 7])
@pytest.mark.parametrize("model", [MLP, PLAIN, RESNET], ids=MODELS)
def test_training_is_the_plain_loop(model: dict, batch_size: Any, scope: str) -> None:
    """PyTorch's modules, SGD, batch norm in training mode; weight decay on matrices or on everything."""
    rule = {"rule": "constant", "value": 0.02, "last_layer": 0.05, "scope": scope}
    (trained,) = train(
        model, penalty=rule, optimizer=SGD, batch_size=batch_size, epochs=4, schedule={"name": "constant"}
    )
    network, data = plain_network(model), data_for(model)
    inputs, labels = data.train.inputs.double(), data.train.labels
    last = [p for name, p in network.named_parameters() if name.startswith(("last.", "9."))]
    optimizer = torch.optim.SGD(network.parameters(), 0.05, momentum=0.9)
    order = seeded_generator(0, "order")
    for _ in range(4):
        rows = torch.arange(len(labels))
        if batch_size == 7:
            rows = torch.randperm(len(labels), generator=order)
        for part in rows.split(len(labels) if batch_size == "full" else 7):
            loss = F.cross_entropy(network(inputs[part]), labels[part])
            for parameter in network.parameters():
                if scope == "all" or parameter.dim() > 1:
                    strength = 0.05 if any(parameter is p for p in last) else 0.02
                    loss = loss + strength / 2 * parameter.square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    found = [
        tensor for name, tensor in trained.state.items() if "running" not in name and "tracked" not in name
    ]
    ours = [name for name, _ in network_of(model).named_parameters()]
    if model["architecture"] == "resnet_cifar":
        expected = dict(network.named_parameters())
    else:  # maps, norms and last in turn: their names differ
        maps = [f"{3 * i}.{kind}" for i in range(3) for kind in ("weight", "bias")]
        norms = [f"{3 * i + 1}.{kind}" for i in range(3) for kind in ("weight", "bias")] * (model is MLP)
        theirs = dict(network.named_parameters())
        expected = dict(
            zip(ours, [theirs[name] for name in [*maps, *norms, "9.weight", "9.bias"]], strict=True)
        )
    assert len(found) == len(ours)
    for name in ours:
        torch.testing.assert_close(trained.state[name], expected[name].detach(), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("scope", ["matrices", "all"])
@pytest.mark.parametrize("model", [MLP, RESNET], ids=["mlp", "resnet"])
def test_penalty_holds_for_its_scope_alone(model: dict, scope: str) -> None:
    """Value and gradient against a sum written out, in float64."""
    rule = {"rule": "over_depth", "value": 0.8, "last_layer": 0.03, "scope": scope}
    network, spec = network_of(model).double(), spec_of(model, penalty=rule)
    draw_all(network)
    stack = Stack([network], CPU, torch.float64)
    strengths = penalty_strengths(stack, [Run("x", depth_of(model), 0, spec)])
    inner, expected = 0.8 / depth_of(model), torch.zeros((), dtype=torch.float64)
    for name, parameter in network.named_parameters():
        if parameter.dim() > 1 or scope == "all":
            strength = 0.03 if name.startswith("last") else inner
            expected = expected + strength / 2 * parameter.square().sum()
    torch.testing.assert_close(penalty(stack.values, strengths), expected.reshape(1).detach())
    for name, parameter in network.named_parameters():
        (wanted,) = torch.autograd.grad(expected, parameter, retain_graph=True, allow_unused=True)
        found = stack.view(strengths * stack.values, name)[0]
        torch.testing.assert_close(found, torch.zeros_like(found) if wanted is None else wanted)


AUGMENTATION = {"shift": 2, "flip": True}


@pytest.mark.parametrize("batch_size", ["full", 5])
@pytest.mark.parametrize("model", [MLP, PLAIN, RESNET], ids=MODELS)
def test_a_run_does_not_depend_on_its_batch(model: dict, batch_size: Any) -> None:
    """Alone, in 3 and in 5: the same bytes, statistics and augmentation included."""
    more = {"augmentation": AUGMENTATION} if model is RESNET else {}
    changes = {"batch_size": batch_size, "epochs": 3, "log_every": 2, **more}
    (alone,) = train(model, [2], "float32", **changes)
    for seeds in ([0, 1, 2], [4, 3, 9, 2, 1]):
        batched = train(model, seeds, "float32", **changes)[seeds.index(2)]
        assert batched.history == alone.history
        assert batched.state.keys() == alone.state.keys()
        assert all(torch.equal(batched.state[key], alone.state[key]) for key in alone.state)


def test_odd_widths_leave_no_trace_of_the_neighbours_either() -> None:
    for width in (1, 3, 13, 33):
        model = MLP | {"width": width}
        (alone,) = train(model, [2], "float32", epochs=2)
        batched = train(model, [1, 2, 0], "float32", epochs=2)[1]
        assert all(torch.equal(batched.state[key], alone.state[key]) for key in alone.state)


@pytest.mark.parametrize("model", [MLP, RESNET], ids=["mlp", "resnet"])
def test_stopped_and_taken_up_is_never_stopped(model: dict, tmp_path: Any) -> None:
    more = {"augmentation": AUGMENTATION} if model is RESNET else {}
    spec, data = spec_of(model, batch_size=5, epochs=5, log_every=2, **more), data_for(model)
    runs = [Run("x", depth_of(model), seed, spec) for seed in (0, 1)]
    never = train_batch(runs, data, CPU, "float32")
    files = Checkpoints([tmp_path / str(run.seed) for run in runs], 3600)
    asked = iter(range(10))
    with pytest.raises(Stopped):
        train_batch(runs, data, CPU, "float32", checkpoints=files, stop=lambda: next(asked) == 3)
    for before, after in zip(never, train_batch(runs, data, CPU, "float32", checkpoints=files), strict=True):
        assert before.history == after.history
        assert all(torch.equal(after.state[name], tensor) for name, tensor in before.state.items())


# ---- Statistics -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [MLP, RESNET], ids=["mlp", "resnet"])
def test_a_full_batch_is_trained_and_measured_as_one_network(model: dict) -> None:
    """In one part the refreshed statistics make evaluation mode what training mode was, to rounding."""
    spec, data = spec_of(model, epochs=3, log_every=1), data_for(model)
    (trained,) = train(model, epochs=3, log_every=1)
    network = network_of(model).double()
    network.load_state_dict(trained.state)
    inputs = data.train.inputs.double()
    with torch.no_grad():
        evaluated = network.eval()(inputs)
        in_training = network.train()(inputs)
    torch.testing.assert_close(evaluated, in_training, rtol=1e-9, atol=1e-9)
    assert trained.history[-1].fit == pytest.approx(F.cross_entropy(in_training, data.train.labels).item())
    features = extract(Run("x", depth_of(model), 0, spec), trained.state, data, CPU)
    h = network.eval().features(inputs).detach()
    torch.testing.assert_close(features.train.inputs, h, rtol=1e-12, atol=1e-12)
    assert not features.metadata.bounded
    assert math.isnan(features.gradient_norm)


def test_statistics_of_parts_are_pooled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first batch norm sees no other: its pooled statistics are those of all samples."""
    monkeypatch.setattr(batch_statistics, "PART", 1)
    for model in (MLP, RESNET):
        data = data_for(model)
        stack = Stack([network_of(model, seed) for seed in (0, 1)], CPU, torch.float64)
        samples = prepare_split(data.train, data.kind, spec_of(model).model, CPU, torch.float64)
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


def test_networks_without_batch_norm_have_nothing_to_refresh() -> None:
    stack = Stack([network_of(PLAIN)], CPU, torch.float64)
    samples = prepare_split(vector_data().train, "vector", spec_of(PLAIN).model, CPU, torch.float64)
    before = stack.values.clone()
    refresh_bn_statistics(stack, samples, 5)
    assert not stack.buffers
    assert torch.equal(stack.values, before)


# ---- Augmentation ---------------------------------------------------------------------------------------


def test_images_move_and_flip_pixel_by_pixel() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(2, 9, 3, 5, 6, generator=generator)
    moves = torch.stack([draw_moves(Augmentation(2, True), 9, seeded_generator(s, "x")) for s in (0, 1)])
    assert moves[..., :2].abs().max() == 2
    assert set(moves[..., 2].flatten().tolist()) == {0, 1}
    found = augment(images, moves, 2)
    for run, sample in itertools.product(range(2), range(9)):
        down, right, flip = moves[run, sample].tolist()
        expected = torch.zeros(3, 5, 6)
        for row, column in itertools.product(range(5), range(6)):
            if 0 <= row - down < 5 and 0 <= column - right < 6:
                expected[:, row, column] = images[run, sample, :, row - down, column - right]
        assert torch.equal(found[run, sample], expected.flip(2) if flip else expected)


def test_augmented_images_train_apart() -> None:
    """Red: runs with and without it in one batch, whose samples are drawn alike."""
    specs = [spec_of(RESNET), spec_of(RESNET, augmentation=AUGMENTATION)]
    keys = [
        RunFingerprint(Run("x", 8, 0, spec), "a", Compute("cpu", 1, "float32")).batch_key() for spec in specs
    ]
    assert keys[0] != keys[1]


def test_augmentation_has_a_stream_of_its_own() -> None:
    """Without it nothing else changes; with it each run and epoch has its own; nothing is measured on it."""
    still = augment(torch.ones(1, 1, 1, 3, 3), torch.zeros(1, 1, 3, dtype=torch.long), 4)
    assert torch.equal(still, torch.ones(1, 1, 1, 3, 3))
    assert not draw_moves(Augmentation(0, False), 50, seeded_generator(0, "augmentation")).any()
    (plain,) = train(RESNET, epochs=2, batch_size=5)
    (idle,) = train(RESNET, epochs=2, batch_size=5, augmentation={"shift": 0, "flip": False})
    (moving,) = train(RESNET, epochs=2, batch_size=5, augmentation=AUGMENTATION)
    for name, tensor in plain.state.items():
        torch.testing.assert_close(idle.state[name], tensor, rtol=1e-9, atol=1e-12)
    assert not torch.allclose(moving.state["conv.weight"], plain.state["conv.weight"], atol=1e-3)
    assert moving.history[0] == plain.history[0]


# ---- Keys -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "changes", "message"),
    [
        (MLP | {"norm": "none"}, {}, "model: batch_norm_eps is a number with `norm: batch` and no key"),
        (PLAIN | {"norm": "batch"}, {}, "model: batch_norm_eps is a number with `norm: batch`"),
        (PLAIN | {"layer_norm_eps": 0.1}, {}, "model.layer_norm_eps: unknown key"),
        (RESNET | {"head_layers": 0}, {}, "model: head_width is a number with head_layers and no key"),
        (PLAIN, {"augmentation": AUGMENTATION}, "augmentation: mlp does not read images as such"),
        (
            RESNET,
            {"augmentation": AUGMENTATION, "optimizer": {"name": "lbfgs", "learning_rate": 1.0, "memory": 3}},
            "augmentation: lbfgs needs the same samples in every step",
        ),
        (
            PLAIN,
            {
                "penalty": {
                    "rule": "constant",
                    "value": 1.0,
                    "last_layer": None,
                    "biases": True,
                    "scope": "all",
                }
            },
            "penalty: biases does not apply: `scope: all` penalises them",
        ),
    ],
)
def test_mistakes_name_their_key(model: dict, changes: dict, message: str) -> None:
    with pytest.raises(InputError, match=message.replace("(", r"\(")):
        spec_of(model, **changes)


def test_images_are_needed_for_convolutions() -> None:
    from ncpipe.config.records import read

    with pytest.raises(InputError, match="resnet_cifar takes images, gaussian_mixture has none"):
        read(Experiment, experiment_tree() | {"model": RESNET})


def test_only_depths_of_the_family_run(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from ncpipe.config.params import load_params

    monkeypatch.chdir(tmp_path)
    write_params([8, 9], [0], conv=experiment_tree(data=DIGITS) | {"model": RESNET})
    with pytest.raises(
        InputError, match=r"sweep\.depths: 9 does not suit conv: resnet_cifar needs L = 6n \+ 2"
    ):
        load_params()


# ---- Through every stage --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A sweep of one network of each kind through all stages, in a folder of its own."""
    import os

    from ncpipe.commands.aggregate import aggregate
    from ncpipe.commands.plot import plot

    folder, before = tmp_path_factory.mktemp("chain"), os.getcwd()
    os.chdir(folder)
    try:
        short = {"epochs": 10, "log_every": 1, "optimizer": SGD}
        trees = {
            "perceptron": experiment_tree(**short) | {"model": MLP},
            "conv": experiment_tree(data=DIGITS, augmentation=AUGMENTATION, **short) | {"model": RESNET},
        }
        write_params([8, 14], [0], **trees)
        measure_runs(*trees, depths=[8, 14])
        aggregate()
        plot()
        yield folder / "data"
    finally:
        os.chdir(before)


def test_figures_of_two_processes_are_those_of_one(results: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four of the figures. Red: a process that draws from what another has changed."""
    from ncpipe.commands import plot
    from ncpipe.runs import figure_pool as drawing
    from ncpipe.runs import pool

    monkeypatch.chdir(results.parent)
    alone = {path.name: path.read_bytes() for path in (results / "figures").iterdir()}
    names = ["depth_sweep", "layers", "curves_conv", "curves_perceptron"]
    alone = {name: content for name, content in alone.items() if name.split(".")[0] in names}
    every = plot._figures
    monkeypatch.setattr(plot, "_figures", lambda: {name: every()[name] for name in names})
    drawn: list[str] = []
    save = drawing.save_figure

    def patient(figure: Any, folder: Path, name: str) -> None:
        """From the second one on, goes on when the other process has drawn one too."""
        save(figure, folder, name)
        drawn.append(name)
        end = time.monotonic() + 60
        while (
            len(drawn) > 1
            and {path.stem for path in folder.glob("*.svg")} <= set(drawn)
            and time.monotonic() < end
        ):
            time.sleep(0.01)

    monkeypatch.setattr(drawing, "save_figure", patient)
    monkeypatch.setattr(pool, "SECONDS_PER_PROCESS", 0.0)
    monkeypatch.setattr(drawing, "usable_cores", lambda: 2)
    plot.plot()
    assert 1 <= len(drawn) < len(alone) / 2  # the others there; a PNG and an SVG each
    assert len(set(drawn)) == len(drawn)
    assert {path.name: path.read_bytes() for path in (results / "figures").iterdir()} == alone


def test_both_networks_go_from_params_to_figures(results: Any) -> None:
    runs = pd.read_csv(results / "results" / "runs.csv")
    assert runs.groupby("experiment").size().to_dict() == {"conv": 2, "perceptron": 2}
    assert set(runs["norm"]) == {"batch"}
    assert set(runs["bound"]) == {"features not bounded"}
    assert runs[["loss_gap", "loss_optimum", "gradient_norm"]].isna().all(axis=None)
    assert runs["loss"].notna().all()
    assert (results / "figures" / "depth_sweep.png").stat().st_size > 10_000
    history = pd.read_csv(results / "results" / "history.csv")
    ends = history.sort_values("epoch").groupby(["experiment", "depth", "seed"]).tail(1)
    both = runs.merge(ends, on=["experiment", "depth", "seed"], suffixes=("", "_then"))
    assert both["fit"].to_numpy() == pytest.approx(both["fit_then"].to_numpy(), rel=1e-4)
    assert both["train_error"].to_numpy() == pytest.approx(both["train_error_then"].to_numpy())


def test_ranks_are_those_of_inner_matrices_and_of_no_kernel(results: Any) -> None:
    for name, layers in (("perceptron", {f"maps.{i}" for i in range(7)}), ("conv", {"head.0", "head.1"})):
        table = pd.read_csv(results / "metrics" / name / "measurements.csv")
        ranked = table[(table["metric"] == "rank_weights") & (table["depth"] == 8)]
        assert set(ranked["layer"]) == layers | {"last"}


def test_layers_stand_where_the_networks_put_them(results: Any) -> None:
    expected = {
        "perceptron": {**{f"H{i}": i for i in range(1, 13)}, "last": 13},
        "conv": {"stem": 0, **{f"R{i}": i for i in range(1, 7)}, "H1": 7, "last": 8},
    }
    for name, places in expected.items():
        table = pd.read_csv(results / "metrics" / name / "places.csv")
        deep = table[table["depth"] == 14]
        assert dict(zip(deep["layer"], deep["position"], strict=True)) == places


def test_run_json_has_the_networks_own_keys(results: Any) -> None:
    import json

    record = json.loads((results / "runs" / "perceptron" / "L8" / "s0" / "run.json").read_text())
    assert record["inputs"]["spec"]["model"] == MLP
    record = json.loads((results / "runs" / "conv" / "L8" / "s0" / "run.json").read_text())
    assert record["inputs"]["spec"]["model"] == RESNET
    assert record["inputs"]["spec"]["augmentation"] == AUGMENTATION


def test_no_construction_is_made_up_for_them() -> None:
    from ncpipe.papers.s25.study_rows import constructed_row
    from ncpipe.theory.constructions.networks import Choices

    choices = Choices("sharp", draws=1, detours=0, attention_exponent=0.25)
    for model in (MLP, RESNET):
        run = Run("x", depth_of(model), 0, spec_of(model))
        with pytest.raises(InputError, match=f"none is known for {model['architecture']}"):
            constructed_row(run, data_for(model), "sharp", choices)
