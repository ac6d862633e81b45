"""A network runs once over each loader, whatever gives the batches, and beyond the memory twice."""

import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import ncpipe as nc
from ncpipe.metrics.kept_pass import KeptPass

CLASSES, WIDTH, SAMPLES = 3, 5, 24


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
        logits: Tensor = self.fc(features)
        return logits


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
    assert [str(each.message) for each in caught] == ([f"{message} again"] if keep else [])


def test_other_data_are_read_once_and_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red: memory for features that nothing reads again."""
    copied: list[Tensor] = []
    monkeypatch.setattr("ncpipe.metrics.kept_pass._copy", lambda tensor, _: copied.append(tensor) or tensor)
    inputs, labels = samples(2)
    nc.measure_model(Classifier(), "fc", batches(), batches(), [(inputs, labels)])
    assert len(copied) == 2 * 2 * 2  # features and labels, of two batches of train and of test


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
