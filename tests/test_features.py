"""Extraction: every layer's statistics are those of the network's own layers, on both splits."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import TEXT, architecture, experiment, token_data, vector_data
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from ncpipe.config.penalty_specs import Penalty
from ncpipe.config.records import read
from ncpipe.config.run import Run
from ncpipe.datasets.prepared import Prepared
from ncpipe.features import forward
from ncpipe.features.extraction import extract
from ncpipe.features.files import read_features, write_features
from ncpipe.models.build import build_model, input_shape, prepare_split
from ncpipe.models.layers import layer_norm
from ncpipe.models.transformer import Transformer, at_last_token
from ncpipe.system.errors import InputError

CPU = torch.device("cpu")


def trained(name: str, norm: str, data: Prepared) -> tuple[Run, dict[str, Tensor]]:
    """A run of depth 3 with drawn weights and biases."""
    tokens = data.kind == "tokens"
    patch = {"patch": 2} if "T" in name and not tokens else {}
    spec = experiment(
        model=architecture(name, norm, last_bias=True, **patch), **({"data": TEXT} if tokens else {})
    )
    network = build_model(spec.model, input_shape(data, spec.model), data.classes, 3, 0)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for key, parameter in network.named_parameters():
            if key.endswith("bias"):
                parameter.normal_(0, 0.5, generator=generator)
    return Run("x", 3, 0, spec), network.state_dict()


def naive_means(h: Tensor, labels: Tensor) -> Tensor:
    return torch.stack([h[labels == k].mean(0) for k in labels.unique()])


@pytest.mark.parametrize(
    ("name", "norm", "data"),
    [
        ("L-RN1", "post", vector_data()),
        ("L-RN2", "pre", vector_data()),
        ("L-T11", "pre", vector_data()),
        ("L-T22", "post", vector_data()),
        ("L-T12", "pre", token_data()),
        ("L-T21", "post", token_data()),
    ],
)
def test_statistics_are_those_of_the_networks_layers(
    name: str, norm: str, data: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In batches of a few samples, against one pass over all of them."""
    run, state = trained(name, norm, data)
    monkeypatch.setattr(forward, "ROWS", 5 if data.kind == "vector" else 35)
    features = extract(run, state, data, CPU)
    network = forward.load_network(run, state, data, CPU)
    for split in ("train", "test"):
        samples = prepare_split(getattr(data, split), data.kind, run.spec.model, CPU, torch.float64)
        outputs = list(network.layers(samples.inputs, samples.lengths))
        layers = {layer.name: layer.values for layer in outputs}
        steps = [layer.name for layer in outputs if layer.position is not None]
        assert list(features.layers) == steps + [layer.name for layer in outputs if layer.position is None]
        assert list(features.metadata.positions) == steps
        for key, h in layers.items():
            stats = features.layers[key][split].statistics
            means = naive_means(h, samples.labels)
            torch.testing.assert_close(stats.means, means, rtol=1e-11, atol=1e-12)
            residual = h - means[samples.labels]
            torch.testing.assert_close(stats.squares.sum(), residual.square().sum(), rtol=1e-10, atol=1e-12)
            train_means = features.layers[key]["train"].statistics.means
            wrong = (torch.cdist(h, train_means).argmin(1) != samples.labels).sum()
            assert features.layers[key][split].samples.wrong == wrong
        torch.testing.assert_close(getattr(features, split).inputs, layers["last"], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["L-RN1", "L-RN2", "L-T11", "L-T22"])
def test_pre_activations_are_what_enters_the_relu(name: str) -> None:
    """Post-LN: W X_l + b of the first affine map, at the predicting token."""
    data = vector_data()
    run, state = trained(name, "post", data)
    features = extract(run, state, data, CPU)
    network = forward.load_network(run, state, data, CPU)
    samples = prepare_split(data.train, data.kind, run.spec.model, CPU, torch.float64)
    layers = {layer.name: layer.values for layer in network.layers(samples.inputs)}
    attention = isinstance(network, Transformer)
    prefix = "blocks.1.mlp." if attention else "blocks.1."
    lin = prefix + ("lin" if name.endswith("1") else "lin1")
    weight, bias = state[f"{lin}.weight"].double(), state[f"{lin}.bias"].double()
    entering = layer_norm(layers["A2"], network.eps) if attention else layers["X2"]
    expected = naive_means(entering @ weight.T + bias, data.train.labels)
    torch.testing.assert_close(features.layers["Z2"]["train"].statistics.means, expected)
    assert [key for key in features.layers if key not in features.metadata.positions] == [
        f"Z{block}" for block in range(1, (3 if attention else 2) + 1)
    ]


@pytest.mark.parametrize("depth", [1, 2, 34, 49])
@pytest.mark.parametrize("name", ["L-RN1", "L-T11"])
def test_layers_lie_at_exact_places(name: str, depth: int) -> None:
    """ResNets: X_l at l, h at L. Transformers: A_l at l - 1/2, B_l at l, h behind the last LN at L + 1/2."""
    spec = experiment(model=architecture(name, "post", **({"patch": 2} if "T" in name else {})))
    data = vector_data()
    network = build_model(spec.model, input_shape(data, spec.model), 3, depth, 0)
    samples = prepare_split(data.train[:1], data.kind, spec.model, CPU, torch.float32)
    positions = forward.layer_positions(network, samples.inputs)
    if name == "L-RN1":
        assert positions == {**{f"X{i}": i for i in range(1, depth)}, "last": depth}
    else:
        blocks = [(f"{half}{i}", i - 0.5 * (half == "A")) for i in range(1, depth + 1) for half in "AB"]
        assert positions == {"embedding": 0, **dict(blocks), "last": depth + 0.5}
    shares = [layer.position for layer in network.layers(samples.inputs) if layer.position is not None]
    assert shares == sorted(shares)
    assert shares[0] >= 0
    assert shares[-1] == 1


def test_predicting_tokens_are_the_last_real_ones() -> None:
    z = torch.arange(2 * 3 * 2).view(6, 2)  # two samples of three tokens
    assert at_last_token(z, 3, None).tolist() == [[4, 5], [10, 11]]
    assert at_last_token(z, 3, torch.tensor([1, 2])).tolist() == [[0, 1], [8, 9]]


def test_a_file_gives_back_what_was_written(tmp_path: Path) -> None:
    data = vector_data()
    run, state = trained("L-T12", "post", data)
    features = extract(run, state, data, CPU)
    write_features(tmp_path / "f.safetensors", features)
    again = read_features(tmp_path / "f.safetensors")
    assert list(again.layers) == list(features.layers)
    assert torch.equal(again.weight, features.weight)
    assert again.bias is not None
    assert again.metadata == features.metadata
    assert again.metadata.bounded
    assert (again.last_penalty, again.inner_penalty) == (features.last_penalty, features.inner_penalty)
    assert again.gradient_norm == features.gradient_norm > 0
    for name, splits in features.layers.items():
        for split, layer in splits.items():
            for part in ("statistics", "samples"):
                written = getattr(layer, part).tensors()
                loaded = getattr(again.layers[name][split], part).tensors()
                assert written.keys() == loaded.keys()
                assert all(torch.equal(written[field], loaded[field]) for field in written)


def test_a_file_of_another_version_says_so(tmp_path: Path) -> None:
    """Some field is missing, or there is one more."""
    data = vector_data()
    run, state = trained("L-RN1", "post", data)
    path = tmp_path / "f.safetensors"
    write_features(path, extract(run, state, data, CPU))
    with safe_open(path, "pt") as file:
        notes = file.metadata()
    tensors = load_file(path)
    spread = next(name for name in tensors if name.endswith("samples/spread"))
    for other in (
        {name: t for name, t in tensors.items() if name != spread},
        tensors | {spread + "s": tensors[spread].clone()},
    ):
        save_file(other, path, notes)
        with pytest.raises(InputError, match=r"f\.safetensors: of another version .*dvc repro"):
            read_features(path)
    save_file(tensors, path)
    with pytest.raises(InputError, match=r"f\.safetensors: of another version .*dvc repro"):
        read_features(path)


@pytest.mark.parametrize(
    ("penalty", "inner", "last"),
    [
        ({"rule": "constant", "value": 0.005, "last_layer": None}, 0.005, 0.005),
        ({"rule": "over_depth", "value": 0.6, "last_layer": 0.07}, 0.2, 0.07),
        ({"rule": "over_depth", "value": 0.6, "last_layer": None}, 0.2, 0.2),
    ],
)
def test_penalties_are_the_objectives_own(penalty: dict, inner: float, last: float) -> None:
    data = vector_data()
    run, state = trained("L-RN1", "post", data)
    run = replace(run, spec=replace(run.spec, penalty=read(Penalty, penalty, "penalty")))
    features = extract(run, state, data, CPU)
    square = sum(state[f"blocks.{i}.lin.weight"].double().square().sum().item() for i in (0, 1))
    assert features.inner_penalty == pytest.approx(inner / 2 * square, rel=1e-12)
    square = state["last.weight"].double().square().sum().item()
    assert features.last_penalty == pytest.approx(last / 2 * square, rel=1e-12)


def test_weights_of_another_architecture_are_refused() -> None:
    data = vector_data()
    run, _ = trained("L-RN1", "post", data)
    _, state = trained("L-RN2", "post", data)
    with pytest.raises(InputError, match="x L=3 seed=0: weights do not fit the architecture"):
        extract(run, state, data, CPU)
