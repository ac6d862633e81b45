"""`measure_model` of models in wrappers: W as it is used, the model left alone, known layouts."""

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from conftest import normal, split_values
from torch import Tensor, distributed, nn
from torch.nn import functional
from torch.nn.utils import parametrizations, prune
from torch.utils.data import DataLoader, TensorDataset

from ncpipe.metrics.hooks import collect_features, measure_model
from ncpipe.metrics.table import measure
from ncpipe.models.hook_points import channels_first, channels_last
from ncpipe.system.errors import InputError, MeasurementWarning

pytestmark = [
    pytest.mark.filterwarnings("ignore::ncpipe.system.errors.MeasurementWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated"),
]
CLASSES, WIDTH, SAMPLES = 3, 8, 33


LABELS = torch.arange(SAMPLES) % CLASSES
INPUTS = normal(SAMPLES, 5, seed=1) + LABELS.unsqueeze(1)
LOADER = [(INPUTS, LABELS)]


def network(head: nn.Module) -> nn.Sequential:
    """A body of one layer with a head, of float64."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, WIDTH), nn.ReLU(), head).double()


def body(model: nn.Module) -> np.ndarray:
    weight, bias = (getattr(model[0], name).detach().numpy() for name in ("weight", "bias"))
    return np.maximum(INPUTS.numpy() @ weight.T + bias, 0)


def metrics_of(model: nn.Module, classifier: str, loader: Any = LOADER) -> dict[str, float]:
    return split_values(measure_model(model, classifier, loader))


def assert_as(actual: dict[str, float], wanted: dict[str, float]) -> None:
    assert actual == pytest.approx(wanted, rel=1e-9, abs=1e-12)


class Lora(nn.Module):
    """A layer with an update of rank 2, which `eval()` merges into the weight and `train()` takes out."""

    def __init__(self, base: nn.Linear, merge: bool = False) -> None:
        super().__init__()
        self.in_features, self.out_features = base.in_features, base.out_features
        self.base_layer, self.merge, self.merged = base, merge, False
        self.lora_A = nn.ModuleDict({"default": nn.Linear(base.in_features, 2, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(2, base.out_features, bias=False)})
        self.lora_B["default"].weight.data = normal(base.out_features, 2, seed=3)

    def update(self) -> Tensor:
        return 0.7 * self.lora_B["default"].weight @ self.lora_A["default"].weight

    def train(self, mode: bool = True) -> "Lora":
        super().train(mode)
        if self.merge and mode == self.merged:
            with torch.no_grad():
                self.base_layer.weight += -self.update() if mode else self.update()
            self.merged = not mode
        return self

    def forward(self, x: Tensor) -> Tensor:
        out = self.base_layer(x)
        return out if self.merged else out + 0.7 * self.lora_B["default"](self.lora_A["default"](x))


class Shifted(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.arange(CLASSES)


class Cosine(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(functional.normalize(x), functional.normalize(self.weight))


class Int8(nn.Module):
    """Weights of a byte each, which the product takes as float."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        scale = layer.weight.detach().abs().max() / 127
        self.register_buffer("weight", (layer.weight.detach() / scale).round().to(torch.int8))
        self.register_buffer("scale", scale)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight.to(x) * self.scale)


def pruned(head: nn.Linear) -> nn.Module:
    prune.l1_unstructured(head, "weight", 0.5)
    return head


HEADS: dict[str, Callable[[nn.Linear], nn.Module]] = {
    "parametrized weight_norm": parametrizations.weight_norm,
    "prune": pruned,
    "LoRA": Lora,
    "an addition": lambda layer: Shifted(WIDTH, CLASSES),
    "int8 weights": Int8,
}


def made(name: str) -> nn.Module:
    """The head that comes out of loading parameters into a fresh one that has not run yet."""
    torch.manual_seed(2)
    head = HEADS[name](nn.Linear(WIDTH, CLASSES).double()).double()
    state = {key: value.clone() for key, value in head.state_dict().items()}
    for key, value in state.items():
        if value.is_floating_point() and not key.endswith(("mask", "_u", "_v", "scale")):
            value *= 1 + normal(*value.shape, seed=5).abs()
    head.load_state_dict(state)
    return head


@pytest.mark.parametrize("name", HEADS)
def test_the_weight_is_what_the_head_multiplies_with(name: str) -> None:
    """Red: the weight of before the first forward pass, or of a part of the head."""
    model = network(made(name))
    actual, arrays = metrics_of(model, "2"), collect_features(model, "2", LOADER)
    with torch.no_grad():
        logits = model.eval()(INPUTS).numpy()
    np.testing.assert_allclose(arrays["features"], body(model), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(arrays["features"] @ arrays["weight"].T + arrays.get("bias", 0), logits)
    assert_as(actual, split_values(measure(**arrays)))


class Scaled(nn.Module):
    """A network whose logits are twice what its last layer gives, or a function of it."""

    def __init__(self, then: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.layers, self.then = network(nn.Linear(WIDTH, CLASSES)), then

    def forward(self, x: Tensor) -> Any:
        return self.then(self.layers(x))


def hooked() -> nn.Module:
    model = network(nn.Linear(WIDTH, CLASSES))
    model[2].register_forward_hook(lambda module, args, output: output.flip(1))
    return model


@pytest.mark.parametrize(
    ("make", "classifier", "message"),
    [
        (lambda: network(Cosine(WIDTH, CLASSES)), "2", "'2' is a Cosine, and its logits are not W h"),
        (lambda: network(made("LoRA")), "2.base_layer", "2.base_layer is a part of 2"),
        (lambda: Scaled(lambda z: 2 * z), "layers.2", r"returns \(33, 3\), which are not the 3 logits"),
        (lambda: Scaled(lambda z: z.div_(3.0)), "layers.2", "which are not the 3 logits of 'layers.2'"),
        (lambda: Scaled(lambda z: z.index_fill_(1, torch.tensor(2), -1e11)), "layers.2", "not the 3 logits"),
        (hooked, "2", "a hook changes them"),
        (lambda: torch.jit.script(network(nn.Linear(WIDTH, CLASSES))), "2", "a scripted model runs no"),
        (lambda: network(nn.Linear(WIDTH, CLASSES)), "0", "not the 8 logits of '0'; name the layer"),
    ],
)  # fmt: skip
def test_a_layer_without_the_models_logits_is_refused(make: Any, classifier: str, message: str) -> None:
    """Red: margins and NC4 of another classifier."""
    with pytest.raises(InputError, match=message):
        measure_model(make(), classifier, LOADER, classes=[0, 1, 2])


@pytest.mark.parametrize(
    "then",
    [
        lambda z: z.log_softmax(1),
        lambda z: z.softmax(1),
        lambda z: z.sub_(5.0),
        lambda z: z.copy_(z.softmax(1)),
        lambda z: {"loss": z.sum(), "logits": z},
        lambda z: (z.new_zeros(SAMPLES, CLASSES), [z.unsqueeze(1).movedim(2, 1)]),
    ],
)
def test_logits_may_be_normalised_and_among_others(then: Callable[[Tensor], Any]) -> None:
    """Also in place. Red: logits compared with themselves, after the change."""
    model = Scaled(then)
    assert metrics_of(model, "layers.2") == metrics_of(model.layers, "2")


def test_a_model_without_logits_is_measured_with_a_warning() -> None:
    model = Scaled(lambda z: z.sum())
    with pytest.warns(MeasurementWarning, match=r"returns no logits.*'layers\.2'"):
        assert metrics_of(model, "layers.2") == metrics_of(model.layers, "2")


class Counter(nn.Module):
    """A module that counts its calls, and statistics that it keeps in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.statistics = nn.BatchNorm1d(WIDTH)

    def train(self, mode: bool = True) -> "Counter":
        super().train(mode)
        self.statistics.train()
        return self

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.statistics(x)


def bits(model: nn.Module) -> dict[str, bytes]:
    return {name: value.numpy().tobytes() for name, value in model.state_dict().items()}


def lora_network() -> nn.Module:
    torch.manual_seed(4)
    first, frozen = Lora(nn.Linear(5, WIDTH), merge=True), Lora(nn.Linear(WIDTH, WIDTH), merge=True)
    head = parametrizations.spectral_norm(nn.Linear(WIDTH, CLASSES))
    model = nn.Sequential(first, nn.ReLU(), frozen, Counter(), head).double()
    model.train()
    frozen.eval()  # merged on purpose
    return model


@pytest.mark.parametrize("failing", [False, True])
def test_a_measurement_leaves_no_trace_in_modules_that_act_on_their_mode(failing: bool) -> None:
    """Red: weights that stay merged, that lose bits, statistics of a module that never leaves training; a
    hook that stays."""
    model = lora_network()
    plain = copy.deepcopy(model)
    if failing:
        with pytest.raises(InputError, match="no train samples"):
            measure_model(model, "4", [(INPUTS, LABELS.clamp(max=1))])
    else:
        measure_model(model, "4", LOADER)
    assert [model[0].merged, model[2].merged] == [False, True]
    assert [m.training for m in model.modules()] == [m.training for m in plain.modules()]
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert torch.is_grad_enabled()
    assert bits(model) == bits(plain)
    losses = [functional.cross_entropy(m(INPUTS), LABELS) for m in (model, plain)]
    assert losses[0].item() == losses[1].item()


def test_a_running_step_survives_a_measurement() -> None:
    """Red: a restored buffer that the graph holds counts as modified, and `backward` raises."""
    model = nn.Sequential(nn.Linear(5, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, CLASSES)).double()
    loss = functional.cross_entropy(model.eval()(INPUTS), LABELS)  # of the running statistics
    measure_model(model, "2", LOADER)
    loss.backward()
    assert model[0].weight.grad is not None


class Inner(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


def compiled_in_place(model: nn.Module) -> nn.Module:
    model.compile(backend="eager")
    return model


def waiting(model: nn.Module) -> nn.Module:
    """Copies of which a forward pass waits for other processes."""
    copies = nn.parallel.DistributedDataParallel(model)
    copies.register_forward_pre_hook(lambda module, args: pytest.fail("it would wait for other processes"))
    return copies


def sharded(model: nn.Module) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard  # takes seconds to import

    mesh = init_device_mesh("cpu", (1,))
    for module in (model[0], model[2], model):
        fully_shard(module, mesh=mesh)
    return model


def offloaded(model: nn.Module) -> nn.Module:
    """Weights that are there only while a layer runs."""
    accelerate = pytest.importorskip("accelerate", reason="pip install 'ncpipe[integrations]'")
    accelerate.cpu_offload(model, execution_device="cpu")
    return model


# How a model is wrapped, whether it has run before, and the names of its last layer.
WRAPPED: dict[str, tuple[Callable[[nn.Module], nn.Module], bool, list[str]]] = {
    "torch.compile": (lambda m: torch.compile(m, backend="eager"), True, ["2", "_orig_mod.2"]),
    "module.compile": (compiled_in_place, True, ["2"]),
    "compiled inside": (lambda m: Inner(torch.compile(m, backend="eager")), True, ["net._orig_mod.2"]),
    "in data parallel": (nn.DataParallel, False, ["2", "module.2"]),
    "in processes": (waiting, False, ["2"]),
    "sharded by layers": (sharded, False, ["2", "2"]),  # again, of what the first one has left
    "offloaded": (offloaded, False, ["2"]),
}


@pytest.fixture
def one_process() -> Iterator[None]:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("name", WRAPPED)
def test_a_wrapped_model_is_measured_as_the_plain_one(name: str) -> None:
    """Red: compiled code that ignores later hooks; of shards, a DTensor; copies of a buffer without data."""
    wrap, runs, names = WRAPPED[name]
    plain = nn.Sequential(nn.Linear(5, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, CLASSES)).double()
    with torch.no_grad():
        plain.train()(INPUTS)
    wanted = metrics_of(copy.deepcopy(plain), "2")
    model = wrap(copy.deepcopy(plain))
    if runs:
        with torch.no_grad():
            model.eval()(INPUTS)
        model.train()
    for classifier in names:
        assert_as(metrics_of(model, classifier), wanted)
    assert model.training


def swin() -> nn.Module:
    from torchvision.models import SwinTransformer  # takes seconds to import

    torch.manual_seed(0)
    sizes = {"embed_dim": 12, "depths": [1, 1], "num_heads": [2, 2], "window_size": [2, 2]}
    return SwinTransformer(patch_size=[4, 4], num_classes=CLASSES, **sizes)


def convnext() -> nn.Module:
    from torchvision.models import ConvNeXt
    from torchvision.models.convnext import CNBlockConfig

    torch.manual_seed(0)
    return ConvNeXt([CNBlockConfig(12, 24, 1), CNBlockConfig(24, None, 1)], num_classes=CLASSES)


def concatenating() -> nn.Module:
    """Convolutions whose outputs are joined: none of them is as wide as the block."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([x, self.conv(x)], 1)

    torch.manual_seed(0)
    return nn.Sequential(Block(), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(7, CLASSES))


def pixels(side: int) -> list[tuple[Tensor, Tensor]]:
    return [(normal(SAMPLES, 3, side, side, seed=8).float() + LABELS.view(-1, 1, 1, 1), LABELS)]


@pytest.mark.parametrize(
    ("make", "head", "layer", "side", "axes"),
    [
        (swin, "head", "features.0", 32, (1, 2)),
        (swin, "head", "features.2", 32, (1, 2)),
        (convnext, "classifier.2", "features.1", 32, (2, 3)),
        (concatenating, "4", "0", 8, (2, 3)),
    ],
)
def test_maps_are_averaged_over_positions(make: Any, head: str, layer: str, side: int, axes: Any) -> None:
    """Channels last and first. Red: averaged over a position and the channels."""
    model, loader = make(), pixels(side)
    seen: list[Tensor] = []
    hook = model.get_submodule(layer).register_forward_hook(lambda m, a, output: seen.append(output))
    with torch.no_grad():
        model.eval()(loader[0][0])
    hook.remove()
    maps = seen[0].double().numpy().mean(axes)
    rows = [row for row in measure_model(model, head, loader, layers=[layer]) if row.layer == layer]
    ratio = next(row.value for row in rows if row.metric == "nc1_trace_ratio")
    assert ratio == pytest.approx(measure(maps, LABELS)["nc1_trace_ratio"], rel=1e-6)


@pytest.mark.parametrize(
    ("make", "head", "layer", "side", "pool"),
    [
        (swin, "head", "features.1", 48, channels_last),  # as many channels as positions, 12
        (concatenating, "4", "1", 8, channels_first),  # ReLU has no layout
        (concatenating, "4", "0", 4, channels_first),  # 4 channels of a convolution, 4 columns
    ],
)
def test_a_layout_that_is_not_known_is_asked_for(
    make: Any, head: str, layer: str, side: int, pool: Any
) -> None:
    model, loader = make(), pixels(side)
    with pytest.raises(InputError, match=rf"layers=\{{'{layer}': nc.channels_first\}} or nc.channels_last"):
        measure_model(model, head, loader, layers=[layer])
    assert [r for r in measure_model(model, head, loader, layers={layer: pool}) if r.layer == layer]


class Noisy:
    """Classes collapsed to `spread` about their means, and of that anew in every pass the part `fresh`."""

    def __init__(self, spread: float, fresh: float, kind: torch.dtype) -> None:
        self.spread, self.fresh, self.kind, self.passes = spread, fresh, kind, 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        self.passes += 1
        noise = (1 - self.fresh) * normal(SAMPLES, WIDTH, seed=1)
        noise += self.fresh * normal(SAMPLES, WIDTH, seed=1 + self.passes)
        yield (normal(CLASSES, WIDTH, seed=9)[LABELS] + self.spread * noise).to(self.kind), LABELS


@pytest.mark.parametrize(
    ("spread", "kind"), [(1.0, torch.float32), (3e-3, torch.float32), (1e-6, torch.float64)]
)
def test_fresh_noise_is_seen_however_collapsed_a_network_is(spread: float, kind: torch.dtype) -> None:
    """By `ncpipe.metrics.kept_pass.same_samples`. Red: a tolerance in proportion to the features, in
    which all the noise of a collapsed network fits."""
    model = nn.Sequential(nn.Linear(WIDTH, CLASSES)).to(kind)
    assert measure_model(model, "0", Noisy(spread, 0.0, kind), keep=0)
    with pytest.raises(InputError, match=r"train loader .*augmentation"):
        measure_model(model, "0", Noisy(spread, 0.5, kind), keep=0)


@pytest.mark.parametrize("spread", [1.0, 0.0])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_rounding_in_other_batches_is_no_fresh_noise(spread: float, kind: torch.dtype) -> None:
    torch.manual_seed(0)
    deep = [layer for _ in range(12) for layer in (nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU())]
    model = nn.Sequential(nn.Linear(WIDTH, 64), *deep, nn.Linear(64, CLASSES)).to(kind)
    labels = torch.arange(300) % CLASSES
    features = normal(CLASSES, WIDTH, seed=9)[labels] + spread * normal(300, WIDTH)
    shuffled = DataLoader(TensorDataset(features.to(kind), labels), batch_size=77, shuffle=True)
    measured = split_values(measure_model(model, str(len(model) - 1), shuffled, keep=0))
    assert math.isfinite(measured["nc1_trace_ratio"])
