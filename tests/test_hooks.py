"""Measuring any PyTorch classifier: torchvision's and transformers' networks, untrained and tiny."""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import ncpipe as nc
from ncpipe.metrics.hooks import collect_features, last_token, measure_model
from ncpipe.metrics.table import Measurement, measure
from ncpipe.system.errors import InputError

# Few samples of wide features, which is nothing to measure by and enough to test with.
pytestmark = pytest.mark.filterwarnings("ignore::ncpipe.system.errors.MeasurementWarning")
CLASSES = 3
WIDTH = 3 * 8 * 8  # of `pairs`
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


def test_resnet_gives_what_its_features_gathered_by_hand_give() -> None:
    model, train, test = resnet(), images(24, 1), images(9, 2)
    got = measure_model(model, "fc", DataLoader(train, batch_size=24), DataLoader(test, batch_size=9))
    by_hand = [(resnet_features(model, split.tensors[0]), split.tensors[1]) for split in (train, test)]
    want = measure(*by_hand[0], model.fc.weight.detach(), model.fc.bias.detach(), *by_hand[1])
    assert_close(got, want, 1e-6)
    assert math.isfinite(values(got)["last", "train", "nc1_trace_ratio"])


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


def test_further_layers_are_measured_in_the_same_pass() -> None:
    model, data = resnet(), images(12, 1)
    passes = []

    def forward(network: nn.Module, pixels: Tensor) -> Tensor:
        passes.append(len(pixels))
        return network(pixels)

    loader = DataLoader(data, batch_size=12)
    got = measure_model(model, "fc", loader, layers=["layer1"], forward=forward)
    assert passes == [12]
    with torch.no_grad():
        maps = nn.Sequential(*list(model.children())[:5]).eval()(data.tensors[0])
    pooled = maps.double().mean((2, 3))
    want = measure(pooled, data.tensors[1], layer="layer1")
    assert_close([row for row in got if row.layer == "layer1"], want, 1e-6)
    assert_close([row for row in got if row.layer == "last"], measure_model(model, "fc", loader))


def test_a_layer_of_tokens_takes_a_function_of_its_own() -> None:
    model, batches = gpt2(), texts(24, 1)
    name = "transformer.h.1"
    got = measure_model(model, "score", batches, select=last_token, layers={name: last_token})
    assert values(got)[name, "train", "nc1_trace_ratio"] > 0
    with pytest.raises(InputError, match=r"layers=\{'transformer.h.1': nc.channels_last\}"):
        measure_model(model, "score", batches, select=last_token, layers=[name])


def test_a_layer_is_copied_before_the_next_works_in_place() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.ReLU(inplace=True), nn.Linear(6, CLASSES))
    data = torch.randn(30, 5, generator=seeded(1))
    labels = torch.arange(30) % CLASSES
    got = measure_model(model, "2", [(data, labels)], layers=["0"])
    with torch.no_grad():
        want = measure(model[0](data), labels, layer="0")
    assert_close([row for row in got if row.layer == "0"], want)


def pairs() -> list[tuple[Tensor, Tensor]]:
    pixels, labels = images(12, 1).tensors
    return [(pixels[:, :, ::4, ::4], labels)]


class Unused(nn.Module):
    """A classifier that is never called, or twice."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.fc, self.calls = nn.Linear(WIDTH, CLASSES), calls

    def forward(self, pixels: Tensor) -> list[Tensor]:
        return [self.fc(pixels.flatten(1)) for _ in range(self.calls)]


class Dropping:
    """One sample fewer from the second pass on, of classes without any spread: only their number tells."""

    passes = 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        [(pixels, labels)] = pairs()
        pixels = labels.view(-1, 1, 1, 1).expand_as(pixels).float()
        keep = len(labels) - (self.passes > 0)
        self.passes += 1
        yield pixels[:keep], labels[:keep]


def test_a_loader_that_gives_fewer_samples_the_second_time_is_refused() -> None:
    """By `ncpipe.metrics.sample_statistics.same_samples`."""
    for split, loaders in (("train", [Dropping()]), ("test", [pairs(), Dropping()])):
        with pytest.raises(InputError, match=rf"{split} loader .*augmentation"):
            measure_model(Unused(1), "fc", *loaders, keep=0)


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
    model = Unused(1).to(torch.bfloat16)
    loader = [(pixels.to(torch.bfloat16), labels) for pixels, labels in pairs()]
    arrays = collect_features(model, "fc", loader)
    assert arrays["features"].dtype == np.float32
    assert_close(measure(**arrays), measure_model(model, "fc", loader))
