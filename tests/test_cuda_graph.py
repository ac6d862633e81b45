"""A training step can be recorded as a CUDA graph: what of that shows without a GPU.

Steps run on a device that stands in for one and are refused what CUDA refuses in a recording; and the
operations of one recorded step, done again and again on the same memory as a graph does them, train the same.
"""

import gc
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from typing import Any, Literal, get_args, get_type_hints

import pytest
import torch
from away import AWAY, Away, FromHost, OtherDevice
from conftest import ARCHITECTURES, TEXT, architecture, experiment, image_data, token_data, vector_data
from test_objectives import KINDS, run_of, spec_of
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ncpipe.config.experiment import Experiment
from ncpipe.config.run import Run
from ncpipe.datasets.prepared import Prepared, Split
from ncpipe.models import residual_block
from ncpipe.models.layers import LONGEST_BY_PRODUCTS
from ncpipe.training import cuda_graph
from ncpipe.training.loop import train_batch
from ncpipe.training.session import Session, Trained

CPU = torch.device("cpu")
ADAM = {"name": "adam", "learning_rate": 0.01, "beta1": 0.8, "beta2": 0.99, "eps": 1e-6}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"name": "sgd", "learning_rate": 0.05, "momentum": 0.9},
    "adam": ADAM,
    "adamw": ADAM | {"name": "adamw", "weight_decay": 0.1},
}
FURTHER: dict[str, dict[str, Any]] = {
    "lion": {"name": "lion", "learning_rate": 0.01, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1},
    "sign_sgd": {"name": "sign_sgd", "learning_rate": 0.01, "momentum": 0.9},
    "muon": {
        "name": "muon",
        "learning_rate": 0.01,
        "momentum": 0.9,
        "adam_learning_rate": 0.01,
        "beta1": 0.9,
        "beta2": 0.99,
        "eps": 1e-8,
    },
}
FURTHER_LOSSES: list[dict[str, Any]] = [
    {"name": "focal", "gamma": 2.0},
    {"name": "ldam", "max_margin": 0.5, "scale": 1.0, "cosines": False},
    {"name": "logit_adjusted", "tau": 1.0},
]
SEARCH = {"name": "lbfgs", "learning_rate": 1.0, "memory": 3}
NETWORKS = [  # with what they read; tokens beyond 64 take the fused attention
    *((name, norm, vector_data()) for name, norm in ARCHITECTURES if "R" in name),
    *((name, norm, image_data()) for name, norm in ARCHITECTURES if "T" in name),
    *((name, norm, token_data()) for name, norm in ARCHITECTURES if "T" in name),
    ("L-T11", "post", token_data(context=70)),
]
TWO_NETWORKS = [NETWORKS[0], NETWORKS[-2]]  # for what does not depend on the network's operations
EXACT, ROUNDED = {"rtol": 0.0, "atol": 0.0}, {"rtol": 1e-5, "atol": 1e-6}
by_kind = pytest.mark.parametrize(
    ("name", "norm", "data"), NETWORKS, ids=lambda value: getattr(value, "kind", value)
)
by_shape = pytest.mark.parametrize(("name", "norm", "data"), TWO_NETWORKS, ids=["resnet", "transformer"])


@pytest.fixture(autouse=True)
def operations_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train by PyTorch's operations on the CPU too, as on a GPU, so that bytes can be compared."""
    monkeypatch.setattr(residual_block, "can_compile", lambda: False)


def runs_of(name: str, norm: str, data: Prepared, seeds: int = 2, **changes: Any) -> list[Run]:
    patch = {"patch": 2} if data.kind == "image" else {}
    text = {"data": TEXT} if data.kind == "tokens" else {}
    specs = [
        experiment(model=architecture(name, norm, **patch), **text, **({"log_every": 2} | changes))
        for _ in range(seeds)
    ]
    return [Run("x", 2, seed, spec) for seed, spec in enumerate(specs)]


class Refused(Exception):
    """CUDA would not record this, or would record the value of this moment for all time."""


class Recording(TorchDispatchMode):
    """Steps under it do what a recording allows: nothing waits, nothing is drawn, the host plays no part."""

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.data_dependent_output in operation.tags:
            raise Refused(f"{operation} reads a value on the host")
        if torch.Tag.dynamic_output_shape in operation.tags and not selects_by_number(operation, args):
            raise Refused(f"{operation}: a shape that depends on data")
        if torch.Tag.nondeterministic_seeded in operation.tags:
            raise Refused(f"{operation} draws numbers")
        result = operation(*args, **kwargs or {})
        for leaf in tree_leaves((args, kwargs, result)):
            if isinstance(leaf, Tensor) and not isinstance(leaf, Away):
                raise Refused(f"{operation}: a tensor on the host")
        return result


def selects_by_number(operation: Any, args: Any) -> bool:
    """x[i] with integers: known shape, unlike x[mask]."""
    numbers = torch.ops.aten.index.Tensor
    return operation is numbers and all(index is None or index.dtype == torch.long for index in args[1])


FORBIDDEN: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: x[0].item(),
    "bool": lambda x: bool((x > 0).all()),
    "equal": lambda x: torch.equal(x, x),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "masked_select": lambda x: x.masked_select(x > 0),
    "unique": lambda x: x.unique(),
    "repeat_interleave": lambda x: x.repeat_interleave((x > 0).long()),
    "one_hot without a count": lambda x: torch.nn.functional.one_hot((x > 0).long()),
    "to the host": lambda x: x.cpu(),
    "from the host": lambda x: x.copy_(torch.ones(3)),
    "a number as a tensor": lambda x: x * torch.tensor(2.0),
    "a number moved there": lambda x: x * torch.tensor(2.0, device=x.device),
    "a draw on the host": lambda x: torch.randperm(3),
    "a draw there": lambda x: torch.randn(3, device=x.device),
    "dropout": lambda x: torch.nn.functional.dropout(x),
}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_a_recording_refuses(name: str) -> None:
    """Red: a check that lets its fault pass. The same line outside a recording is fine."""
    with FromHost(), OtherDevice():
        x = torch.ones(3, device=AWAY)
        FORBIDDEN[name](x)
        with Recording(), pytest.raises(Refused):
            FORBIDDEN[name](x)


class Recorded(cuda_graph.CudaGraphStep):
    """Every step in a recording."""

    def __init__(self) -> None:
        super().__init__(CPU)
        self.steps = 0

    def __call__(self, kind: int, step: Callable[[], None]) -> None:
        self.steps += 1
        with Recording():
            step()


@pytest.mark.parametrize("batch_size", ["full", 7], ids=str)
@by_kind
def test_a_step_of_any_network_can_be_recorded(name: str, norm: str, data: Prepared, batch_size: Any) -> None:
    """Red, in the step or in the network: a value read on the host, a shape that depends on data, a number
    made into a tensor, a draw, a tensor left on the CPU."""
    runs = runs_of(name, norm, data, optimizer=ADAM, loss="ce", batch_size=batch_size, epochs=1)
    fused = data.kind == "tokens" and data.train.inputs.shape[1] > LONGEST_BY_PRODUCTS
    steps = 1 if batch_size == "full" else -(-len(data.train) // 7)
    if fused:
        # Written out on AWAY; in float64, as Adam's first steps magnify the rounding of small gradients.
        check_recording(runs, data, steps, {"rtol": 1e-8, "atol": 1e-11}, "float64")
    else:
        check_recording(runs, data, steps, EXACT)


@pytest.mark.parametrize("loss", ["mse", *FURTHER_LOSSES], ids=str)
def test_a_step_of_further_losses_can_be_recorded(loss: Any) -> None:
    name, norm, data = NETWORKS[0]
    runs = runs_of(name, norm, data, loss=loss, batch_size=7, epochs=1)
    check_recording(runs, data, -(-len(data.train) // 7), EXACT if loss == "mse" else ROUNDED)


@pytest.mark.parametrize("optimizer", OPTIMIZERS | FURTHER)
@by_shape
def test_a_step_of_any_optimizer_can_be_recorded(
    name: str, norm: str, data: Prepared, optimizer: str
) -> None:
    chosen = (OPTIMIZERS | FURTHER)[optimizer]
    runs = runs_of(name, norm, data, optimizer=chosen, loss="ce", batch_size=7, epochs=1)
    check_recording(runs, data, -(-len(data.train) // 7), EXACT if optimizer in OPTIMIZERS else ROUNDED)


@pytest.mark.parametrize("batch_size", ["full", 7], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_of_any_objective_can_be_recorded(kind: str, batch_size: Any) -> None:
    runs = [run_of(kind, seed, batch_size=batch_size, epochs=1, log_every=1) for seed in (0, 1)]
    check_recording(runs, vector_data(), 1 if batch_size == "full" else 4, ROUNDED)


def check_recording(
    runs: list[Run],
    data: Prepared,
    steps: int,
    rounding: dict[str, float],
    precision: Literal["float32", "float64"] = "float32",
) -> None:
    """An epoch away from the CPU, every step of it recorded, against the same on the CPU."""
    with FromHost(), OtherDevice():
        session = Session(runs, data, AWAY, getattr(torch, precision))
        session.method.run_step = recorded = Recorded()
        assert list(session.epochs()) == [0, 1]
        assert recorded.steps == steps
        there = session.results()[0]
    (here,) = train_batch(runs[:1], data, CPU, precision)
    for key, tensor in here.state.items():
        torch.testing.assert_close(there.state[key], tensor, **rounding)


class Tape(TorchDispatchMode):
    """The operations of a step, to be done again on the same memory."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = operation(*args, **kwargs or {})
        self.operations.append((operation, args, kwargs or {}, result))
        return result

    @torch.no_grad()
    def play(self) -> None:
        for operation, args, kwargs, result in self.operations:
            again = operation(*args, **kwargs)
            for old, new in zip(tree_leaves(result), tree_leaves(again), strict=True):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():  # no view, not in place
                    old.copy_(new)


class Taped(cuda_graph.CudaGraphStep):
    """Does a step of each kind once and from then on what was recorded of it, as a CUDA graph is replayed."""

    def __init__(self) -> None:
        super().__init__(CPU)
        self.tapes: dict[int, Tape] = {}

    def __call__(self, kind: int, step: Callable[[], None]) -> None:
        if kind in self.tapes:
            self.tapes[kind].play()
        else:
            self.tapes[kind] = Tape()
            with self.tapes[kind]:
                step()


def replay(name: str, norm: str, data: Prepared, optimizer: str, batch_size: Any) -> None:
    """Compare runs of which one diverges: replayed, with rows of the history between steps, and as ever."""
    wild = 1e30 if optimizer == "sgd" else 1e5
    changes = {"loss": "mse", "batch_size": batch_size, "epochs": 5}
    specs = [{"optimizer": OPTIMIZERS[optimizer] | {"learning_rate": rate}} for rate in (0.01, wild)]
    runs = [runs_of(name, norm, data, 1, **changes, **spec)[0] for spec in specs]
    expected = train_batch(runs, data, CPU, "float32")
    session = Session(runs, data, CPU, torch.float32)
    session.method.run_step = taped = Taped()
    session.can_sync = False
    for epoch in session.epochs():
        if epoch % 2 == 0 or epoch == 5:
            session.record()
    assert len(taped.tapes) == (1 if batch_size == "full" or len(data.train) % 7 == 0 else 2)
    assert_same(session.results(), expected)


@by_kind
def test_one_recorded_step_of_any_network_trains_the_same(name: str, norm: str, data: Prepared) -> None:
    """Bit for bit. Red: state that a network puts into new memory."""
    replay(name, norm, data, "adam", 7)


@pytest.mark.parametrize("batch_size", ["full", 7], ids=str)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@by_shape
def test_one_recorded_step_trains_the_same(
    name: str, norm: str, data: Prepared, optimizer: str, batch_size: Any
) -> None:
    """Bit for bit.

    Red: a number that changes and comes from the host (rate, Adam's correction, epoch, samples of a
    mini-batch); state that a step or the history puts into new memory.
    """
    replay(name, norm, data, optimizer, batch_size)


@pytest.mark.parametrize("can_sync", [True, False])
def test_a_diverged_run_gets_back_the_weights_of_its_last_finite_loss(can_sync: bool) -> None:
    """Of two runs that diverge one after the other. Red: the weights that the second began with, or an older
    step's; on a device whose losses cannot be read, or where another run has just diverged."""
    data = vector_data()
    session = Session(runs_of("L-RN1", "post", data), data, CPU, torch.float32)
    session.can_sync = can_sync
    values = session.stack.values
    for present, losses in (
        ((1.0, 1.0), (0.5, 0.5)),
        ((2.0, 2.0), (torch.inf, 0.5)),
        ((1.0, 3.0), (0.5, torch.nan)),
    ):
        values.copy_(torch.tensor(present).unsqueeze(1).expand_as(values))
        session.drop_diverged(torch.tensor(losses))
    assert values.unique(dim=1).tolist() == [[1.0], [2.0]]
    assert not session.alive.any()


def assert_same(found: list[Trained], expected: list[Trained]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.history == other.history
        assert one.diverged_at == other.diverged_at
        assert all(torch.equal(one.state[key], tensor) for key, tensor in other.state.items())


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_memory_stays_where_it_is(optimizer: str) -> None:
    """Through steps, the history, given weights and a restored state.

    Red: an assignment in place of a copy, anywhere in the session."""
    data = vector_data()
    spec = {"optimizer": OPTIMIZERS[optimizer], "batch_size": 7, "epochs": 4}
    session = Session(runs_of("L-RN1", "post", data, **spec), data, CPU, torch.float32)
    before = addresses(session)
    assert len(before) > 20
    steps = session.epochs()
    for act in (
        lambda: session.load_weights([session.stack.state_of(index) for index in (1, 0)]),
        lambda: next(steps),
        lambda: next(steps),
        session.record,
        lambda: session.restore(session.states()),
        lambda: next(steps),
        session.record,
    ):
        act()
        assert addresses(session) == before


def addresses(session: Session) -> dict[str, int]:
    """Where every tensor lies that a session holds, the history left out: only the host reads that."""

    def walk(path: str, value: object) -> Iterator[tuple[str, int]]:
        if isinstance(value, Tensor):
            yield path, value.data_ptr()
        elif isinstance(value, torch.nn.Module):
            for name, parameter in value.named_parameters():
                yield from walk(f"{path}.{name}", parameter)
        elif isinstance(value, list):
            for index, part in enumerate(value):
                yield from walk(f"{path}[{index}]", part)
        elif isinstance(value, Split) or type(value).__module__.startswith("ncpipe.training"):
            for name, part in vars(value).items():
                if path or name != "rows":
                    yield from walk(f"{path}.{name}", part)

    return dict(walk("", session))


@pytest.mark.parametrize("optimizer", [ADAM, SEARCH], ids=lambda o: o["name"])
def test_a_session_ends_with_its_training(optimizer: dict[str, Any]) -> None:
    """Its graphs and its memory on the device are then free for the next batch.

    Red: a cycle of references, which only Python's collector ends, whenever it comes."""
    runs = runs_of("L-RN1", "post", vector_data(), optimizer=optimizer, epochs=2)
    train_batch(runs, vector_data(), CPU, "float32")  # what torch imports at first use may hold frames
    gc.collect()
    gc.disable()
    try:
        train_batch(runs, vector_data(), CPU, "float32")
        assert not [thing for thing in gc.get_objects() if type(thing) in (Session, cuda_graph.CudaGraphStep)]
    finally:
        gc.enable()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("batch_size", ["full", 7], ids=str)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_on_a_gpu(optimizer: str, batch_size: Any) -> None:
    """Batch after batch in one process, replayed: the same as on the CPU, to rounding."""
    for name, norm, data in NETWORKS:
        spec = {"optimizer": OPTIMIZERS[optimizer], "batch_size": batch_size, "epochs": 12}
        runs = runs_of(name, norm, data, **spec)
        there = train_batch(runs, data, torch.device("cuda"), "float64")
        here = train_batch(runs, data, CPU, "float64")
        for one, other in zip(there, here, strict=True):
            for key, tensor in other.state.items():
                torch.testing.assert_close(one.state[key], tensor, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("place", [CPU, AWAY], ids=str)
def test_a_search_saves_what_is_the_cpus_alone(place: torch.device) -> None:
    """Taken up on the device, it goes on bit for bit, and what was saved stays as it was.

    Red: the optimizer's own tensors in a checkpoint, or a checkpoint's in the optimizer."""
    data = vector_data()
    runs = runs_of("L-RN1", "post", data, 1, optimizer=SEARCH, epochs=8)
    with FromHost(), OtherDevice():
        never, session = (Session(runs, data, place, torch.float32) for _ in range(2))
        for _ in never.epochs():
            pass
        steps = session.epochs()
        for _ in range(5):
            next(steps)
        saved = session.states()
        kept = [leaf.clone() for leaf in tensors_of(saved)]
        assert len(kept) > 10
        assert {leaf.device for leaf in tensors_of(saved)} == {CPU}
        list(steps)
        other = Session(runs, data, place, torch.float32)
        other.restore(saved)
        list(other.epochs())
        assert all(map(torch.equal, tensors_of(saved), kept))
        for one in (session, other):
            assert torch.equal(one.results()[0].state["lin0.weight"], never.results()[0].state["lin0.weight"])
            assert {leaf.device for leaf in tensors_of(dict(one.method.search.state))} == {place}


def tensors_of(value: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def test_every_kind_of_experiment_is_covered() -> None:
    """Red: a new optimizer or loss in specs that no test here records."""
    hints = get_type_hints(Experiment)
    names = {get_args(get_type_hints(kind)["name"])[0] for kind in get_args(hints["optimizer"])}
    assert names == {*OPTIMIZERS, *FURTHER, "lbfgs", "torch"}  # one of torch's own steps on its own
    records = [kind for kind in get_args(hints["loss"]) if is_dataclass(kind)]
    words = {word for kind in records for word in get_args(get_type_hints(kind)["name"])}
    further = {loss["name"] for loss in FURTHER_LOSSES}
    assert words == {"ce", "mse", *further, *(spec_of(kind).loss_name for kind in KINDS)}
