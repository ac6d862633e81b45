"""A monitor leaves the training as it was: the same bits with it and without, whatever draws."""

import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    default_collate,
)

import ncpipe as nc

pytestmark = pytest.mark.filterwarnings("ignore::ncpipe.MeasurementWarning")
LABELS = torch.arange(24) % 3
INPUTS = torch.randn(24, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
DATA = TensorDataset(INPUTS + LABELS.unsqueeze(1), LABELS)
SIZES = {"batch_size": 6}
of_module = np.random.default_rng(0)  # as a script has it, which its data set draws from


class Noisy(Dataset):
    """Adds noise that is rounding beside the features, and no rounding beside weights of float64."""

    def __init__(self, draw: Callable[[], Any]) -> None:
        self.draw = draw

    def __len__(self) -> int:
        return len(DATA)

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        inputs, label = DATA[place]
        return inputs + 1e-9 * float(self.draw()), label


class OfModule(Noisy):
    def __init__(self) -> None:
        pass

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        inputs, label = DATA[place]
        return inputs + 1e-9 * of_module.random(), label


class Shuffled(IterableDataset):
    """Another order each time, by a generator of its own."""

    def __init__(self) -> None:
        self.order = random.Random(3)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield from (DATA[place] for place in self.order.sample(range(len(DATA)), len(DATA)))


def collate(draw: Callable[[], float], rows: list[Any]) -> Any:
    inputs, labels = default_collate(rows)
    return inputs + 1e-9 * draw(), labels


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(7)


def numpy_generator() -> Any:
    return np.random.default_rng(7)


def closed_over() -> Callable[[list[Any]], Any]:
    draws = np.random.RandomState(7)
    return lambda rows: collate(draws.rand, rows)


def samples_by(sampler: Any) -> DataLoader:
    return DataLoader(DATA, batch_sampler=BatchSampler(sampler, 6, drop_last=False))


LOADERS: dict[str, Callable[[], DataLoader]] = {
    "global": lambda: DataLoader(DATA, shuffle=True, **SIZES),
    "loader": lambda: DataLoader(DATA, shuffle=True, generator=seeded(), **SIZES),
    "sampler": lambda: DataLoader(DATA, sampler=RandomSampler(DATA, generator=seeded()), **SIZES),
    "batch sampler": lambda: samples_by(RandomSampler(DATA, generator=seeded())),
    "Python": lambda: DataLoader(Noisy(random.random), **SIZES),
    "NumPy": lambda: DataLoader(Noisy(np.random.rand), **SIZES),
    "data set": lambda: DataLoader(Noisy(numpy_generator().random), **SIZES),
    "module": lambda: DataLoader(OfModule(), **SIZES),
    "iterable": lambda: DataLoader(Shuffled(), **SIZES),
    "collator": lambda: DataLoader(DATA, collate_fn=partial(collate, random.Random(7).random), **SIZES),
    "closure": lambda: DataLoader(DATA, collate_fn=closed_over(), **SIZES),
    "workers": lambda: DataLoader(Noisy(partial(torch.rand, ())), num_workers=1, **SIZES),
    "persistent workers": lambda: DataLoader(
        Noisy(partial(torch.rand, ())), num_workers=1, persistent_workers=True, **SIZES
    ),
}


class Net(nn.Module):
    """Draws from a generator of its own too, in eval mode as well."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.drop, self.fc = nn.Linear(4, 5), nn.Dropout(0.2), nn.Linear(5, 3)
        self.draws = torch.Generator().manual_seed(5)
        self.double()

    def forward(self, inputs: Tensor) -> Tensor:
        noise = 1e-9 * torch.rand((), generator=self.draws, dtype=torch.float64)
        return self.fc(self.drop(self.body(inputs).tanh()) + noise)


def trained(make: Callable[[], DataLoader], measured: bool) -> list[float]:
    """The weights after two epochs; measured before, between and within them."""
    global of_module
    of_module = np.random.default_rng(0)
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    net, loader, steps = Net(), make(), 0
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    monitor = nc.CollapseMonitor("fc", loader)
    for epoch in range(2):
        for place, (inputs, labels) in enumerate(loader):
            if measured and place in (0, 2 * epoch):
                assert monitor.values(net)["nc/last/train/cdnv"] > 0
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
            steps += 1
    assert steps == 8
    return torch.cat([weight.flatten() for weight in net.parameters()]).tolist()


@pytest.mark.parametrize("place", LOADERS)
def test_training_has_the_same_bits_with_a_monitor(place: str) -> None:
    """Red: a generator left where the measurement took it; an epoch ended by a pass over the same workers."""
    assert trained(LOADERS[place], measured=True) == trained(LOADERS[place], measured=False)


def test_generators_are_restored_after_an_error() -> None:
    loader = LOADERS["loader"]()
    state = loader.generator.get_state()
    with pytest.raises(nc.InputError):
        nc.measure_model(Net(), "fc", loader, classes=[0, 1, 9])
    assert torch.equal(loader.generator.get_state(), state)


class Counted(nn.Module):
    """Shortens rows of its embedding as it looks them up, and puts new tensors in place of its buffers."""

    calls: Tensor
    cache: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.fc = nn.Embedding(20, 8, max_norm=1.0), nn.Linear(8, 3)
        self.inside = torch.jit.script(nn.Identity())
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("cache", torch.zeros(0), persistent=False)
        self.length = 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls = self.calls + 1
        if self.length < len(inputs):
            self.cache, self.length = torch.zeros(len(inputs)), len(inputs)
        assert len(self.cache) == self.length
        logits: Tensor = self.fc(self.inside(self.embed(inputs)))
        return logits


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is:DeprecationWarning")
def test_what_a_forward_pass_changes_is_restored() -> None:
    """Red: embeddings shorter, and a count higher, after a measurement; a cache without its length."""
    network = Counted()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    nc.measure_model(network, "fc", [(torch.arange(20), torch.arange(20) % 3)])
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
    network(torch.arange(20))


@pytest.mark.parametrize("every", [True, 0, 1.0, "2", None, np.int64(0), np.float64(2)])
def test_a_period_that_is_no_whole_number_is_one_line(every: Any) -> None:
    with pytest.raises(nc.InputError, match=r"^every: a whole number of epochs, 1 or more, not "):
        nc.CollapseMonitor("fc", [], every=every)
    with pytest.raises(
        nc.InputError, match=r"^steps: a whole number of training steps, 1 or more, not |^every"
    ):
        nc.CausalCollapseMonitor([], steps=0 if every is None else every)
