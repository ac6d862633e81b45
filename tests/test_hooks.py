"""Measuring any PyTorch classifier: of torchvision, of transformers, on some classes, by any loader, once."""

import gc
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import ncpipe as nc
from ncpipe.metrics.hooks import collect_features, measure_model
from ncpipe.metrics.kept_pass import KeptPass
from ncpipe.metrics.table import Measurement, measure
from ncpipe.models.hook_points import last_token
from ncpipe.system.errors import InputError

# Few samples of wide features, which is nothing to measure by and enough to test with.
pytestmark = pytest.mark.filterwarnings("ignore::ncpipe.system.errors.MeasurementWarning")
CLASSES = 3
TINY = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(count: int, seed: int) -> TensorDataset:
    labels = torch.arange(count) % CLASSES
    pixels = torch.randn(count, 3, 32, 32, generator=seeded(seed)) + labels.view(-1, 1, 1, 1)
    return TensorDataset(pixels, labels)


def texts(count: int, seed: int, left: bool = False) -> list[dict[str, Tensor]]:
    """Batches of 4 in the form of transformers' collators, padded on one side."""
    generator = seeded(seed)
    ids = torch.randint(2, 20, (count, 6), generator=generator)
    lengths = torch.randint(1, 7, (count, 1), generator=generator)
    places = torch.arange(6)
    mask = (places >= 6 - lengths if left else places < lengths).long()
    everything = {
        "input_ids": torch.where(mask == 1, ids, 0),
        "attention_mask": mask,
        "labels": torch.arange(count) % CLASSES,
    }
    return [{k: v[start : start + 4] for k, v in everything.items()} for start in range(0, count, 4)]


def resnet() -> nn.Module:
    from torchvision.models import resnet18  # takes seconds to import

    torch.manual_seed(0)
    return resnet18(num_classes=CLASSES)


def bert() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=20, max_position_embeddings=8, num_labels=CLASSES, **TINY)
    return transformers.BertForSequenceClassification(config)


def gpt2() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=20, n_positions=8, n_embd=16, n_layer=2, n_head=2, num_labels=CLASSES, pad_token_id=0
    )
    return transformers.GPT2ForSequenceClassification(config)


def values(rows: list[Measurement]) -> dict[tuple[str, str, str], float]:
    assert len({(row.layer, row.split, row.metric) for row in rows}) == len(rows)
    return {(row.layer, row.split, row.metric): row.value for row in rows}


def assert_close(got: list[Measurement], want: list[Measurement], tolerance: float = 1e-9) -> None:
    assert values(got) == pytest.approx(values(want), rel=tolerance, abs=tolerance)


@torch.no_grad()
def resnet_features(model: nn.Module, pixels: Tensor) -> Tensor:
    """By hand: everything but the last layer."""
    body = nn.Sequential(*list(model.children())[:-1]).eval()
    return body(pixels).flatten(1)


@torch.no_grad()
def bert_features(model: nn.Module, batches: list[dict[str, Tensor]]) -> Tensor:
    model.eval()
    kept = [{name: batch[name] for name in ("input_ids", "attention_mask")} for batch in batches]
    return torch.cat([model.bert(**batch).pooler_output for batch in kept])


def test_a_transformers_classifier_with_batches_as_mappings() -> None:
    model, train, test = bert(), texts(24, 1), texts(8, 2)
    got = measure_model(model, "classifier", train, test)
    labels = [torch.cat([batch["labels"] for batch in split]) for split in (train, test)]
    head = model.classifier.weight.detach(), model.classifier.bias.detach()
    want = measure(bert_features(model, train), labels[0], *head, bert_features(model, test), labels[1])
    assert_close(got, want)
    renamed = [{("label" if name == "labels" else name): v for name, v in b.items()} for b in train]
    assert measure_model(model, "classifier", renamed, labels_key="label") == measure_model(
        model, "classifier", train
    )


@pytest.mark.parametrize("left", [False, True])
def test_a_decoder_that_scores_every_token_needs_the_last_one_named(left: bool) -> None:
    model, batches = gpt2().eval(), texts(24, 1, left)
    with pytest.raises(InputError, match=r"\(4, 6, 16\).*select=nc.last_token"):
        measure_model(model, "score", batches)
    arrays = collect_features(model, "score", batches, select=last_token)
    inputs = [{k: v for k, v in batch.items() if k != "labels"} for batch in batches]
    with torch.no_grad():
        logits = torch.cat([model(**batch).logits for batch in inputs])
    np.testing.assert_allclose(arrays["features"] @ arrays["weight"].T, logits, atol=1e-6)
    assert "bias" not in arrays
    want = measure(*(arrays[name] for name in ("features", "labels", "weight")))
    assert_close(measure_model(model, "score", batches, select=last_token), want)


def test_resnet_gives_what_its_features_gathered_by_hand_give() -> None:
    """A further layer is measured in the same pass."""
    model, train, test = resnet(), images(24, 1), images(9, 2)
    passes = []

    def forward(network: nn.Module, pixels: Tensor) -> Tensor:
        passes.append(len(pixels))
        return network(pixels)

    loaders = DataLoader(train, batch_size=24), DataLoader(test, batch_size=9)
    got = measure_model(model, "fc", *loaders, layers=["layer1"], forward=forward)
    assert passes == [24, 9]
    by_hand = [(resnet_features(model, split.tensors[0]), split.tensors[1]) for split in (train, test)]
    want = measure(*by_hand[0], model.fc.weight.detach(), model.fc.bias.detach(), *by_hand[1])
    assert_close([row for row in got if row.layer == "last"], want, 1e-6)
    with torch.no_grad():
        maps = nn.Sequential(*list(model.children())[:5]).eval()(train.tensors[0])
    want = measure(maps.double().mean((2, 3)), train.tensors[1], layer="layer1")
    assert_close([row for row in got if (row.layer, row.split) == ("layer1", "train")], want, 1e-6)


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-5), (torch.bfloat16, 0.05)])
@pytest.mark.parametrize("last", [[nn.Linear(12, 7), nn.LayerNorm(7)], [nn.Linear(12, 3), nn.Linear(3, 7)]])
def test_rounding_is_no_direction_of_the_means(
    last: list[nn.Module], dtype: torch.dtype, error: float
) -> None:
    """Layer normalisation and a bottleneck take directions away; float32 leaves 1e-8 of them.

    Red: `nc1_pinv` of which such a direction is hundreds of times the rest.
    """
    torch.manual_seed(0)
    labels = torch.arange(9).repeat(200)
    inputs = torch.randn(9, 8)[labels] + 0.3 * torch.randn(len(labels), 8)
    network = nn.Sequential(nn.Linear(8, 12), nn.GELU(), *last, nn.Linear(7, 9))
    values = [
        measure_model(network.to(kind), str(len(network) - 1), [(inputs.to(kind), labels)])
        for kind in (dtype, torch.float64)
    ]
    for metric in ("nc1_pinv", "nc1_pinv_rank", "dnc1_trace_pinv", "nc2_condition"):
        single, double = (value["last", "train", metric] for value in values)
        assert single == pytest.approx(double, rel=error), metric


def test_rounding_of_maps_is_no_direction_of_the_means() -> None:
    """Their mean over positions is known as float32. Red: a rank of `norm` that its mean, `last`, has not."""

    class Maps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.norm, self.fc = nn.Linear(8, 7), nn.LayerNorm(7), nn.Linear(7, 9)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.fc(self.norm(self.body(inputs)).mean(1))

    torch.manual_seed(0)
    labels = torch.arange(9).repeat(200)
    inputs = torch.randn(9, 1, 8)[labels] + 0.3 * torch.randn(len(labels), 4, 8)
    got = measure_model(Maps(), "fc", [(inputs, labels)], layers={"norm": nc.channels_last})
    for metric in ("nc1_pinv_rank", "nc1_pinv", "dnc1_trace_pinv", "nc2_condition"):
        assert got["norm", "train", metric] == pytest.approx(got["last", "train", metric], rel=1e-5), metric


@pytest.mark.parametrize("outputs", [1, 3])
def test_outputs_of_a_regression_are_those_of_the_layer_to_the_unit(outputs: int) -> None:
    """Or (n,) of one. Red: targets in other units than W h + b, or shifted for each sample."""

    class Shifted(nn.Sequential):
        def forward(self, inputs: Tensor) -> Tensor:
            return self[0](inputs) + inputs[:, :1]

    torch.manual_seed(0)
    inputs, targets = torch.randn(20, 4), torch.randn(20, outputs)
    head = nn.Linear(4, outputs)
    nc.measure_regression_model(nn.Sequential(head), "0", [(inputs, targets)])
    if outputs == 1:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            nc.measure_regression_model(nn.Sequential(head, nn.Flatten(0)), "0", [(inputs, targets)])
    for model in (Shifted(head), nn.Sequential(head, nn.Hardtanh(-0.1, 0.1))):
        with pytest.raises(InputError, match=f"which are not the {outputs} numbers of '0'"):
            nc.measure_regression_model(model, "0", [(inputs, targets)])


def test_precision_of_a_single_backend() -> None:
    """Red: PyTorch's error of mixed settings, from inside the model's forward pass."""
    products = torch.backends.cuda.matmul
    if (before := getattr(products, "fp32_precision", None)) is None:
        pytest.skip("this PyTorch has one precision for all backends")
    try:
        products.fp32_precision = "tf32"
        measure_model(nn.Linear(4, CLASSES), "", [(torch.randn(12, 4), torch.arange(12) % CLASSES)])
    finally:
        products.fp32_precision = before


def test_packed_sequences_are_one_input() -> None:
    """Red: their data and batch sizes as four arguments."""

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.fc = nn.LSTM(4, 5, batch_first=True), nn.Linear(5, CLASSES)

        def forward(self, inputs: nn.utils.rnn.PackedSequence) -> Tensor:
            return self.fc(self.lstm(inputs)[1][0][0])

    torch.manual_seed(0)
    lengths = torch.arange(12) % 4 + 1
    packed = nn.utils.rnn.pack_padded_sequence(
        torch.randn(12, 4, 4), lengths, batch_first=True, enforce_sorted=False
    )
    got = measure_model(Words(), "fc", [(packed, torch.arange(12) % CLASSES)], device="cpu")
    assert got["last", "train", "nc1_trace_ratio"] > 0


def test_labels_that_are_the_tokens_are_said() -> None:
    """As causal models of transformers have them, which shift them on their own."""
    network = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5))
    tokens = torch.arange(20).reshape(4, 5) % 5
    for labels, said in ((tokens, 1), (tokens.where(tokens > 0, -100), 1), (tokens.flip(1), 0)):
        with warnings.catch_warnings(record=True, action="always") as caught:
            measure_model(network, "1", [(tokens, labels)], classes="present")
        assert sum("nc.measure_causal_lm" in str(warning.message) for warning in caught) == said


def test_a_layer_of_tokens_takes_a_function_of_its_own() -> None:
    model, batches = gpt2(), texts(24, 1)
    name = "transformer.h.1"
    got = measure_model(model, "score", batches, select=last_token, layers={name: last_token})
    assert values(got)[name, "train", "nc1_trace_ratio"] > 0
    with pytest.raises(InputError, match=r"layers=\{'transformer.h.1': nc.channels_last\}"):
        measure_model(model, "score", batches, select=last_token, layers=[name])


def test_of_a_layer_only_its_vectors_are_kept() -> None:
    """Red: whole outputs, held to the end of the pass."""

    class Blocks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.fc = nn.Linear(4, 5), nn.Linear(5, CLASSES)

        def forward(self, inputs: Tensor) -> Tensor:
            pooled = self.first(inputs).mean(1)
            tensors = [each for each in gc.get_objects() if type(each) is Tensor and not each.is_nested]
            assert not [each for each in tensors if each.shape == (12, 7, 5)]
            return self.fc(pooled)

    batch = torch.randn(12, 7, 4, generator=seeded(1)), torch.arange(12) % CLASSES
    measure_model(Blocks(), "fc", [batch], layers={"first": lambda values, inputs: values[:, -1]})


def test_a_layer_is_copied_before_the_next_works_in_place() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.ReLU(inplace=True), nn.Linear(6, CLASSES))
    data = torch.randn(30, 5, generator=seeded(1))
    labels = torch.arange(30) % CLASSES
    got = measure_model(model, "2", [(data, labels)], layers=["0"])
    with torch.no_grad():
        want = measure(model[0](data), labels, layer="0")
    assert_close([row for row in got if row.layer == "0"], want)


def test_several_inputs_to_a_network() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, CLASSES)

        def forward(self, first: Tensor, second: Tensor) -> Tensor:
            return self.fc(input=torch.cat([first, second], 1))  # by keyword

    first, second = torch.randn(2, 12, 2, generator=seeded(1))
    labels = torch.arange(12) % CLASSES
    model = Two()
    got = measure_model(model, "fc", [(first, second, labels)])
    features = torch.cat([first, second], 1)
    want = measure(features, labels, model.fc.weight.detach(), model.fc.bias.detach())
    assert_close(got, want)


@pytest.mark.parametrize("targets", ["vectors", "tags"])
def test_collected_targets_and_tags_are_a_file_to_measure(targets: str, tmp_path: Path) -> None:
    """With the values of `nc.measure` and `nc.measure_regression` on the features of the network."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, CLASSES))
    inputs = torch.randn(40, 6, generator=seeded(1))
    labels = torch.randn(40, CLASSES, generator=seeded(2))
    if targets == "tags":
        labels = (labels > 0) | (torch.arange(40)[:, None] % CLASSES == torch.arange(CLASSES))
        labels[:12] = torch.arange(12)[:, None] % CLASSES == torch.arange(CLASSES)
    loader = [(inputs[:30], labels[:30]), (inputs[30:], labels[30:])]
    options = {"targets": targets, "progress": False}
    np.savez(tmp_path / "f.npz", **collect_features(model, "2", loader, loader, **options))
    features = model[:2](inputs).detach()
    last = model[2].weight.detach(), model[2].bias.detach()
    measured, of_model = {
        "vectors": (nc.measure_regression, nc.measure_regression_model),
        "tags": (nc.measure, nc.measure_multilabel_model),
    }[targets]
    wanted = measured(features, labels, *last, features, labels)
    assert nc.measure_file(tmp_path / "f.npz") == wanted
    assert of_model(model, "2", loader, loader) == wanted


def test_bfloat16_networks_are_measured_and_collected() -> None:
    pixels, labels = images(12, 1).tensors
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, CLASSES)).to(torch.bfloat16)
    loader = [(pixels[:, :, ::4, ::4].to(torch.bfloat16), labels)]
    arrays = collect_features(model, "1", loader)
    assert arrays["features"].dtype == np.float32
    assert_close(measure(**arrays), measure_model(model, "1", loader))


# Some of the classes, positions of sequences, and masks

K, D = 6, 5


class Net(nn.Module):
    """The features are the inputs (n, d) or (n, T, d) themselves."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(D, K)

    def forward(self, features: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return self.fc(features)


def expected(
    net: Net, h: Tensor, labels: Tensor, ids: list[int], test: tuple[Tensor, Tensor] | None = None
) -> list[Measurement]:
    """By arrays that are cut down by hand: rows of the weight, samples and labels."""

    def cut(h: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        inside = torch.tensor([int(label) in ids for label in labels])
        return h[inside], torch.tensor([ids.index(int(label)) for label in labels[inside]])

    with torch.no_grad():
        weight, bias = net.fc.weight[ids], net.fc.bias[ids]
        return measure(*cut(h, labels), weight, bias, *(cut(*test) if test else ()))


@pytest.mark.parametrize("classes", ["present", [1, 2, 4], [4, 1]])
def test_some_classes_are_measured_as_if_there_were_no_others(classes: Any) -> None:
    """Red: rows of the weight that are not those of the classes, labels that keep their numbers, test samples
    of other classes."""
    net, h = Net(), torch.randn(40, D)
    labels = torch.tensor([1, 2, 4, 2] * 10)
    if classes != "present":
        labels[::8] = 5  # of no class that is asked for
    test = torch.randn(30, D), torch.tensor([0, 1, 2, 4, 5] * 6)
    rows = measure_model(
        net, "fc", list(zip(h.split(7), labels.split(7), strict=True)), [test], classes=classes
    )
    ids = [1, 2, 4] if classes == "present" else sorted(classes)
    assert_close(rows, expected(net, h, labels, ids, test))


@pytest.mark.parametrize("mask", [None, "attention_mask", lambda inputs: inputs["attention_mask"]])
def test_labels_of_positions_with_an_ignored_index_and_a_mask(mask: Any) -> None:
    """Red: rows and labels that no longer belong together after some are left out; a mask without effect."""
    net, h = Net(), torch.randn(16, 7, D)
    labels = torch.randint(0, K, (16, 7), generator=torch.Generator().manual_seed(1))
    labels[:, 0] = -100
    attention = (torch.arange(7) < 5).long().repeat(16, 1)
    batches = [
        {"features": h[i : i + 5], "labels": labels[i : i + 5], "attention_mask": attention[i : i + 5]}
        for i in range(0, 16, 5)
    ]
    kept = labels != -100
    if mask:
        kept &= attention.bool()
    rows = measure_model(net, "fc", batches, mask=mask)
    assert_close(rows, expected(net, h[kept], labels[kept], list(range(K))))


# A network runs once over each loader, and beyond the memory twice

WIDTH, SAMPLES = 5, 24


class Classifier(nn.Module):
    """Records what enters its last layer, each time it runs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.fc = nn.Linear(4, WIDTH).double(), nn.Linear(WIDTH, CLASSES).double()
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        features = torch.tanh(self.body(x))
        self.seen.append(features.detach().clone())
        return self.fc(features)


def samples(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(SAMPLES, 4, dtype=torch.float64, generator=generator)
    return inputs, torch.arange(SAMPLES) % CLASSES


class Streamed(IterableDataset[tuple[Tensor, Tensor]]):
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield from zip(*samples(1), strict=True)


class Augmented(TensorDataset):
    """New noise each time a sample is read."""

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        inputs, label = super().__getitem__(index)
        return inputs + torch.randn(4), label


def batches() -> list[tuple[Tensor, Tensor]]:
    inputs, labels = samples(1)
    return [(inputs[:10], labels[:10]), (inputs[10:10], labels[10:10]), (inputs[10:], labels[10:])]


LOADERS: dict[str, Callable[[], Iterable[Any]]] = {
    "list": batches,
    "generator": lambda: (batch for batch in batches()),
    "shuffled": lambda: DataLoader(TensorDataset(*samples(1)), batch_size=5, shuffle=True),
    "drop_last": lambda: DataLoader(TensorDataset(*samples(1)), batch_size=5, shuffle=True, drop_last=True),
    "augmented": lambda: DataLoader(Augmented(*samples(1)), batch_size=5),
    "streamed": lambda: DataLoader(Streamed(), batch_size=5),
}


def recorded(model: Classifier, loader: Iterable[Any], labels: list[Tensor]) -> Iterator[Any]:
    for batch in loader:
        labels.append(batch[1])
        yield batch


@pytest.mark.filterwarnings("ignore:train classes are not balanced", "ignore:test classes are not balanced")
@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize("classes", ["all", "present", [0, 2]])
def test_any_loader_is_measured_as_it_was_seen(name: str, classes: Any) -> None:
    """Against `nc.measure` of the features that the network computed. Red: samples of a second pass."""
    model, given = Classifier(), ([], [])
    loaders = [recorded(model, LOADERS[name](), labels) for labels in given]
    values = nc.measure_model(model, "fc", *loaders, classes=classes)
    numbers = [0, 1, 2] if isinstance(classes, str) else classes
    parts = sum(len(labels) > 0 for labels in given[0])
    splits = []
    for labels, seen in ((given[0], model.seen[:parts]), (given[1], model.seen[parts:])):
        features, targets = torch.cat(seen), torch.cat(labels)
        kept = torch.isin(targets, torch.tensor(numbers))
        splits += [features[kept], torch.searchsorted(torch.tensor(numbers), targets[kept])]
    weight, bias = model.fc.weight.detach()[numbers], model.fc.bias.detach()[numbers]
    want = nc.measure(splits[0], splits[1], weight, bias, splits[2], splits[3])
    assert sum(map(len, model.seen)) == sum(len(labels) for part in given for labels in part)
    assert dict(values.to_dict()) == pytest.approx(dict(want.to_dict()), rel=1e-10, abs=1e-13, nan_ok=True)


@pytest.mark.parametrize("keep", [0, 0.25])
def test_beyond_the_memory_the_network_runs_twice(keep: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red: a share that is not kept to; batches kept before the memory ended, read as the whole."""
    model = Classifier()
    once = nc.measure_model(model, "fc", batches())
    assert sum(map(len, model.seen)) == SAMPLES
    # Enough for the first batch: 10 rows of 8 bytes an entry, and their labels.
    monkeypatch.setattr("ncpipe.system.device_memory.free_bytes", lambda device: 4 * 10 * 8 * (WIDTH + 1))
    model.seen.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        twice = nc.measure_model(model, "fc", batches(), keep=keep)
    assert sum(map(len, model.seen)) == 2 * SAMPLES
    assert twice == once
    message = "loader: its features take more than 0.25 of the free memory (`keep`); the network runs over it"
    assert [str(warning.message) for warning in caught] == ([f"{message} again"] if keep else [])


def test_an_error_ends_the_pass() -> None:
    """Red: workers and a bar that live as long as the traceback, which notebooks keep."""
    ended: list[bool] = []

    class Loader:
        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            try:
                yield samples(1)[0], torch.full((SAMPLES,), CLASSES)
            finally:
                ended.append(True)

    with pytest.raises(nc.InputError, match="label 3 of sample 0") as caught:
        nc.measure_model(Classifier(), "fc", Loader())
    assert caught.tb
    assert ended


def test_batches_are_copied() -> None:
    """Red: tensors that are filled again; a predicting token that keeps its whole sequence in memory."""
    whole = torch.zeros(8, 1000, 3)
    kept = KeptPass(lambda: iter([({"last": whole[:, -1]}, torch.arange(8))]), "loader")
    list(kept())
    whole.fill_(1)
    ((values, _),) = kept()
    assert not values["last"].any()
    assert values["last"].untyped_storage().nbytes() == 8 * 3 * 4
    assert kept.runs == 1
