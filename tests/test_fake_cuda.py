"""Everything that trains, through recorded CUDA graphs on a stand-in for torch.cuda (`fake_cuda`).

Captured training must give the bytes of the same training without a recording, whatever trains. Then what
goes wrong on a GPU: too little memory at any moment, steps that cannot be recorded, streams, drivers, cards.
"""

import concurrent.futures
import functools
import gc
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import test_batch_norm_networks
import test_dufm
import test_heads
import test_next_tokens
import test_objectives
import test_own_training
import test_study
import torch
from conftest import experiment_tree, image_data, vector_data, write_params
from fake_cuda import CPU, CUDA, FakeCuda, Race, Stream
from test_cuda_graph import FURTHER, FURTHER_LOSSES, NETWORKS, OPTIMIZERS, SEARCH, runs_of

from ncpipe.commands.study_check import check_study
from ncpipe.config.architectures.resnet import ResNetModel
from ncpipe.config.architectures.transformer import TransformerModel
from ncpipe.config.experiment import Experiment, Model
from ncpipe.config.optimizer_specs import OneAtATime
from ncpipe.config.params import load_params
from ncpipe.config.records import read
from ncpipe.config.run import Compute, Run
from ncpipe.config.study import load_study
from ncpipe.datasets.markov import prepare_markov
from ncpipe.datasets.prepared import Prepared, write_prepared
from ncpipe.features.gradient import gradient_norm
from ncpipe.metrics.vocabulary import check_memory
from ncpipe.models.build import build_network
from ncpipe.models.layers import Affine, weight_gradient
from ncpipe.runs import batches, plan
from ncpipe.runs.batches import parts_of_each, worker_count
from ncpipe.runs.fingerprint import RunFingerprint, fingerprint_of, fingerprints_of
from ncpipe.runs.store import has
from ncpipe.system.artifacts import PREPARED
from ncpipe.system.console import Unseen
from ncpipe.system.device_memory import free_bytes
from ncpipe.system.errors import InputError
from ncpipe.training import cuda_graph, device
from ncpipe.training.checkpoints import Checkpoints, Stopped
from ncpipe.training.cost import seconds_per_epoch
from ncpipe.training.cuda_graph import CudaGraphStep, own_stream
from ncpipe.training.device import is_out_of_memory, prepare_device
from ncpipe.training.loop import train_batch
from ncpipe.training.muon import MuonState, muon
from ncpipe.training.own_optimizers import ByRun
from ncpipe.training.session import Session, Trained

pytestmark = pytest.mark.usefixtures("cuda_flags")

TORCH = {"name": "torch", "class": "RMSprop", "learning_rate": 0.01}
VECTORS, IMAGES = vector_data(), image_data(side=8, per_class=6)
CONV = read(Experiment, experiment_tree(data=test_heads.DIGITS, batch_size=7) | {"model": test_heads.CONV})
AUGMENTED = {"augmentation": test_batch_norm_networks.AUGMENTATION}
LANGUAGE = prepare_markov(test_next_tokens.LANGUAGE)
# A study of one's own, with a loss whose shape depends on data, and an optimizer whose counter is Python's.
STUDY = (
    test_own_training.STUDY
    + """

@dataclass(frozen=True)
class FirstLoss(OwnLoss):
    name: Literal["first"]


def first(logits, labels):
    own = logits.log_softmax(-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    return -own + own[labels == 0].square().mean()


@dataclass(frozen=True)
class HostLoss(OwnLoss):
    name: Literal["host"]


def host(logits, labels):
    factor = min(2.0, float(logits.detach().max()))
    return factor * torch.nn.functional.cross_entropy(logits, labels, reduction="none")


@dataclass(frozen=True)
class Counting(OwnOptimizer):
    name: Literal["counting"]
    learning_rate: Positive


STEPS = []


def counting(weights, gradients, rate):
    STEPS.append(1)
    return {name: value - rate / len(STEPS) * gradients[name] for name, value in weights.items()}


LOSSES |= {FirstLoss: first, HostLoss: host}
OPTIMIZERS |= {Counting: counting}
"""
)


@dataclass(frozen=True)
class Case:
    """Runs that train together. sizes: distinct sizes of their batches, each of which has a graph."""

    make: Callable[[], list[Run]]
    data: Prepared
    sizes: int = 1
    study: str = ""


def case(make: Callable[..., Run], data: Prepared, sizes: int = 1, study: str = "", **changes: Any) -> Case:
    return Case(lambda: [make(seed=seed, **changes) for seed in (0, 1)], data, sizes, study)


def plain(name: str, norm: str, data: Prepared, **changes: Any) -> Case:
    batch = changes.setdefault("batch_size", 7)
    sizes = 1 if batch == "full" or len(data.train) % batch == 0 else 2
    return Case(lambda: runs_of(name, norm, data, epochs=5, **changes), data, sizes)


def normed(model: dict[str, Any], seed: int, **changes: Any) -> Run:
    own = test_batch_norm_networks
    return Run("x", own.depth_of(model), seed, own.spec_of(model, epochs=6, **changes))


def of_study(seed: int, model: Any = None, **changes: Any) -> Run:
    tree = experiment_tree(epochs=6, **changes)
    return Run("x", 2, seed, read(Experiment, tree if model is None else tree | {"model": model}))


RESNET, TRANSFORMER = NETWORKS[0], NETWORKS[-2]
SQUARE = {"architecture": "square", "width": 5}
CASES: dict[str, Case] = {
    **{
        f"{name} {norm} {data.kind} {data.train.inputs.shape[1]}": plain(name, norm, data)
        for name, norm, data in NETWORKS
        if data.kind != "tokens" or name == "L-T11"  # the others read images
    },
    **{
        f"{name} {size}": plain(*RESNET, optimizer=keys, batch_size=size)
        for name, keys in (OPTIMIZERS | FURTHER | {"torch": TORCH}).items()
        for size in ("full", 7)
        if size == 7 or name in ("sgd", "torch")
    },
    "muon of a transformer": plain(*TRANSFORMER, optimizer=FURTHER["muon"]),
    "lbfgs": plain(*RESNET, optimizer=SEARCH, batch_size="full"),
    **{
        f"loss {keys if isinstance(keys, str) else keys['name']}": plain(*RESNET, loss=keys)
        for keys in ("mse", *FURTHER_LOSSES)
    },
    **{
        f"objective {kind}": case(
            functools.partial(test_objectives.run_of, kind), VECTORS, 2, batch_size=7, epochs=6, log_every=2
        )
        for kind in test_objectives.KINDS
    },
    "mlp": case(normed, VECTORS, 2, model=test_batch_norm_networks.MLP, batch_size=7),
    "resnet_cifar": case(normed, IMAGES, 2, model=test_batch_norm_networks.RESNET, batch_size=7),
    "augmentation": case(normed, IMAGES, 2, model=test_batch_norm_networks.RESNET, batch_size=7, **AUGMENTED),
    "augmentation, full batch": case(normed, IMAGES, model=test_batch_norm_networks.RESNET, **AUGMENTED),
    "conv_net": Case(lambda: [Run("x", 4, seed, replace(CONV, epochs=6)) for seed in (0, 1)], IMAGES, 2),
    "dufm": case(test_dufm.run_of, test_dufm.data_of(test_dufm.run_of()), epochs=6),
    "dufm, batches": case(test_dufm.run_of, test_dufm.data_of(test_dufm.run_of()), 2, epochs=6, batch_size=5),
    "next_tokens": case(test_next_tokens.run, LANGUAGE, 2, epochs=6, batch_size=16),
    "a study's loss": case(of_study, VECTORS, study=STUDY, loss={"name": "poly", "epsilon": 1.0}),
    "a study's loss of pairs": case(of_study, VECTORS, 2, STUDY, loss={"name": "pairs"}, batch_size=7),
    "a study's optimizer": case(of_study, VECTORS, 2, STUDY, optimizer=test_own_training.HEAVY, batch_size=7),
    "a study's network": case(of_study, VECTORS, 2, test_study.NETWORK, model=SQUARE, batch_size=7),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cuda_graph, "_FREE_STREAMS", type(cuda_graph._FREE_STREAMS)(list))
    yield
    load_study(tmp_path / "nowhere")


def assert_same(found: list[Trained], expected: list[Trained]) -> None:
    """To the byte, not measured errors included."""
    for one, other in zip(found, expected, strict=True):
        assert repr(one.history) == repr(other.history)
        assert one.diverged_at == other.diverged_at
        assert all(torch.equal(one.state[key], tensor) for key, tensor in other.state.items())


def write_study(text: str) -> None:
    Path("study.py").write_text(text)
    load_study(Path())


def train(cuda: FakeCuda, runs: list[Run], data: Prepared, *rest: Any, **options: Any) -> list[Trained]:
    with cuda.here():
        return train_batch(runs, data, CUDA, "float32", *rest, **options)


def eager(cuda: FakeCuda, runs: list[Run], data: Prepared, monkeypatch: pytest.MonkeyPatch) -> list[Trained]:
    """The same on the same device, without a recording."""
    with monkeypatch.context() as patch:
        patch.setattr(cuda_graph, "WARM_UP", 10**9)
        return train(cuda, runs, data)


@pytest.mark.parametrize("name", CASES)
def test_what_is_captured_trains_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit, with one graph for each size of a batch, one pool, and nothing left afterwards.

    Red: state in new memory, a number from the host, a wait; WARM_UP = 0; a stream that does not wait.
    """
    case = CASES[name]
    if case.study:
        write_study(case.study)
    runs = case.make()
    alone = isinstance(runs[0].spec.optimizer, OneAtATime)
    expected = eager(FakeCuda(monkeypatch), runs, case.data, monkeypatch)
    cuda = FakeCuda(monkeypatch)
    gc.disable()
    try:
        found = train(cuda, runs, case.data)
        assert not cuda.graphs
    finally:
        gc.enable()
    assert_same(found, expected)
    sessions = len(runs) if alone else 1
    assert (cuda.captures, len(cuda.pools)) == (case.sizes * sessions, sessions)
    assert cuda.replays >= cuda.captures
    assert cuda.current_stream() is cuda.default


def test_everything_that_trains_is_a_case() -> None:
    """Red: a new architecture, loss or optimizer that no case here trains."""

    def words(union: Any, key: str) -> set[str]:
        records = [kind for kind in get_args(union) if hasattr(kind, "__dataclass_fields__")]
        return {word for kind in records for word in get_args(get_type_hints(kind)[key])}

    trained: set[str] = set()
    for case in CASES.values():
        if not case.study:
            spec = case.make()[0].spec
            trained |= {spec.model.architecture, spec.loss_name, spec.optimizer.name}
    hints = get_type_hints(Experiment)
    assert (
        words(Model, "architecture") | words(hints["loss"], "name") | words(hints["optimizer"], "name")
        <= trained
    )
    assert {"L-RN2", "L-T12", "L-T22"} <= trained


@pytest.mark.parametrize(
    "optimizer", [OPTIMIZERS["adam"], FURTHER["muon"], TORCH, SEARCH], ids=lambda o: o["name"]
)
def test_a_stopped_run_goes_on_as_if_it_had_not(
    optimizer: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit: with the graphs of a new session, and the batch statistics of the old one."""
    cuda = FakeCuda(monkeypatch)
    runs = runs_of(*RESNET, 1, optimizer=optimizer, epochs=12, batch_size="full")
    whole = train(cuda, runs, VECTORS)
    saved = Checkpoints([tmp_path / "0" / "state"], 1e9)
    asked = iter([False] * 7 + [True])
    with pytest.raises(Stopped):
        train(cuda, runs, VECTORS, checkpoints=saved, stop=lambda: next(asked))
    assert_same(train(cuda, runs, VECTORS, checkpoints=saved), whole)


# ---- Too little memory ----------------------------------------------------------------------------------

OUT_OF_MEMORY: dict[str, Callable[[], BaseException]] = {
    "torch": lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."),
    "runtime": lambda: torch.AcceleratorError("CUDA error: out of memory"),
    "cublas": lambda: RuntimeError(
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
    ),
    "cudnn": lambda: RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    "mps": lambda: RuntimeError("MPS backend out of memory (MPS allocated: 1.00 GB, max allowed: 1.00 GB)."),
}


def more_than(
    runs: int, when: str, error: Callable[[], BaseException]
) -> Callable[..., BaseException | None]:
    """A fault: memory suffices for so many runs side by side, at one moment of the training."""
    phase = "eager" if when == "warm-up" else when

    def fault(now: str, operation: str, sizes: list[tuple[int, ...]]) -> BaseException | None:
        return error() if now == phase and operation == "bmm" and sizes[0][0] > runs else None

    return fault


def project(monkeypatch: pytest.MonkeyPatch, cuda: FakeCuda) -> list[RunFingerprint]:
    """Four runs of one shape, whose threads train on the GPU."""
    spec = read(Experiment, experiment_tree(epochs=6))
    runs = [Run("one", 2, seed, spec) for seed in range(4)]
    write_prepared(PREPARED / runs[0].data, VECTORS)
    monkeypatch.setattr(batches, "train_batch", functools.partial(_on, cuda))
    monkeypatch.setattr(batches, "prepare_device", lambda compute: CUDA)
    train(cuda, runs[:1], VECTORS)  # what torch imports at first use may hold frames
    gc.collect()
    cuda.captures = 0
    found = fingerprints_of(runs, Compute("cuda", 1, "float32"))
    return [fingerprint_of(each.run, each.data, each.compute) for each in found]


def _on(cuda: FakeCuda, *given: Any) -> list[Trained]:
    with cuda.here():
        return train_batch(*given)


@pytest.mark.parametrize("when", ["warm-up", "capture", "replay"])
@pytest.mark.parametrize("error", ["torch", "runtime", "cublas"])
def test_out_of_memory_halves_a_batch_and_frees_it(
    error: str, when: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Red: an error that is not recognised, or that the end of the recording hides; a session kept alive."""
    cuda = FakeCuda(monkeypatch)
    fingerprints = project(monkeypatch, cuda)
    cuda.fault = more_than(2, when, OUT_OF_MEMORY[error])
    gc.disable()
    try:
        batches.train_batches([fingerprints], 1, 1e9, Unseen(), lambda fingerprint: 1.0)
        assert not cuda.graphs
        assert not [thing for thing in gc.get_objects() if type(thing) is Session]
    finally:
        gc.enable()
    assert all(has(fingerprint.key()) for fingerprint in fingerprints)
    assert "out of memory on cuda, retrying with batches of 2" in capfd.readouterr().err
    assert cuda.captures == 2 + (when == "replay")


def test_out_of_memory_leaves_the_stream_that_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red: a thread that goes on launching on the stream of a session that has ended."""
    cuda = FakeCuda(monkeypatch)
    cuda.fault = more_than(0, "capture", OUT_OF_MEMORY["torch"])
    with pytest.raises(torch.AcceleratorError) as error:
        train(cuda, runs_of(*RESNET), VECTORS)
    assert is_out_of_memory(error.value)
    assert (cuda.current_stream(), cuda.recording) == (cuda.default, [])


def test_other_errors_are_no_lack_of_memory() -> None:
    assert not is_out_of_memory(
        torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
    )
    said = ValueError("said in one line, from None")
    said.__context__, said.__suppress_context__ = torch.OutOfMemoryError(), True
    assert not is_out_of_memory(said)
    said.__suppress_context__ = False
    assert is_out_of_memory(said)


@pytest.mark.parametrize("error", OUT_OF_MEMORY)
def test_a_torch_optimizer_without_memory_is_no_mistake_in_its_arguments(
    error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red: `optimizer: torch.optim.RMSprop: out of memory`, and no smaller batch."""

    def fail(*_: object) -> None:
        raise OUT_OF_MEMORY[error]()

    monkeypatch.setattr(torch.optim.RMSprop, "step", fail)
    with pytest.raises((RuntimeError, torch.OutOfMemoryError)):
        train_batch(runs_of(*RESNET, 1, optimizer=TORCH), VECTORS, CPU, "float32")


def test_an_estimate_without_memory_takes_fewer_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red: a sweep that ends because an epoch of many runs was to be timed."""
    cuda = FakeCuda(monkeypatch)
    cuda.fault = more_than(2, "eager", OUT_OF_MEMORY["cublas"])
    run = runs_of(*RESNET)[0]
    with cuda.here():
        assert plan._epoch_seconds(run, 4, VECTORS, CUDA, torch.float32) > 0
        cuda.fault = more_than(0, "eager", OUT_OF_MEMORY["cublas"])
        with pytest.raises(InputError, match=r"one run does not fit on cuda; make model\.width"):
            plan._epoch_seconds(run, 4, VECTORS, CUDA, torch.float32)


def test_freed_memory_that_pytorch_keeps_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red: later batches that become smaller and smaller."""
    cuda = FakeCuda(monkeypatch)
    cuda.memory.free, cuda.memory.reserved, cuda.memory.allocated = 10**9, 7 * 10**9, 10**9
    assert free_bytes(CUDA) == 7 * 10**9
    check_memory(10**6, 64, CUDA)  # 1.5 to 2.6 GB


# ---- Recordings and streams -----------------------------------------------------------------------------


def test_a_step_that_cannot_be_recorded_trains_all_the_same(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A loss that reads a number on the host. Red: a traceback; nothing is said; another result."""
    write_study(STUDY)
    runs = [of_study(seed, loss={"name": "host"}) for seed in (0, 1)]
    cuda = FakeCuda(monkeypatch)
    expected = eager(cuda, runs, VECTORS, monkeypatch)
    assert_same(train(cuda, runs, VECTORS), expected)
    said = capfd.readouterr().err
    assert said.count("no CUDA graph of this step") == 1
    assert "operation not permitted when stream is capturing" in said
    assert (cuda.captures, cuda.current_stream(), cuda.recording) == (0, cuda.default, [])


def test_a_loss_whose_shapes_depend_on_data_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    """x[labels == 0], as on the CPU. Red: vmap's error."""
    write_study(STUDY)
    runs = [of_study(seed, loss={"name": "first"}) for seed in (0, 1)]
    there = train(FakeCuda(monkeypatch), runs, VECTORS)
    for one, other in zip(there, train_batch(runs, VECTORS, CPU, "float32"), strict=True):
        assert one.history[-1].loss == pytest.approx(other.history[-1].loss, rel=1e-4)


@pytest.mark.parametrize(
    ("optimizer", "loss", "words"),
    [
        (
            {"name": "counting", "learning_rate": 0.1},
            "ce",
            "the optimizer counting changes from call to call",
        ),
        (test_own_training.HEAVY, "ce", ""),
        (test_own_training.HEAVY, {"name": "poly", "epsilon": 1.0}, ""),
        (
            test_own_training.HEAVY,
            {"name": "annealed"},
            "the loss annealed of this network gives another result when it is called again",
        ),
    ],
)
def test_a_counter_in_python_is_refused_before_anything_trains(optimizer: Any, loss: Any, words: str) -> None:
    """Recorded, it would stand still. Red: training that differs in silence on a GPU, and if resumed."""
    annealed = """

@dataclass(frozen=True)
class Annealed(OwnLoss):
    name: Literal["annealed"]


SEEN = []


def annealed(logits, labels):
    SEEN.append(1)
    return torch.nn.functional.cross_entropy(logits, labels, reduction="none") / len(SEEN)


LOSSES |= {Annealed: annealed}
"""
    write_study(STUDY + annealed)
    write_params([2], [0], one=experiment_tree(optimizer=optimizer, loss=loss))
    if words:
        with pytest.raises(InputError, match=rf"^study\.py: line \d+: {words}"):
            check_study(load_params())
    else:
        check_study(load_params())


def test_forty_sessions_share_no_stream_with_one_that_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch has 32 streams for a GPU. Red: the 33rd session on the stream of one that still trains."""
    cuda = FakeCuda(monkeypatch)
    runs, used = runs_of(*RESNET, 1, epochs=1), set()

    def note(epoch: int, loss: object) -> None:
        used.add(cuda.current_stream().handle)

    with cuda.here(), own_stream(CUDA):
        mine = cuda.current_stream().handle
        for _ in range(40):
            train_batch(runs, VECTORS, CUDA, "float32", note)
    assert used
    assert mine not in used
    assert 0 not in used


def test_sessions_of_several_threads_have_streams_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replays too, so that they overlap. Red: all of them on the default stream."""
    cuda, meet = FakeCuda(monkeypatch), threading.Barrier(3)
    streams: list[set[int]] = []

    def work(seed: int) -> list[Trained]:
        own: set[int] = set()
        streams.append(own)

        def note(epoch: int, loss: object) -> None:
            own.add(cuda.current_stream().handle)
            if epoch == 0:
                meet.wait(60)

        return train(cuda, [replace(runs_of(*RESNET, 1, epochs=8)[0], seed=seed)], VECTORS, note)

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        found = [trained for (trained,) in pool.map(work, range(3))]
    assert sorted(map(len, streams)) == [1, 1, 1]
    assert len(set.union(*streams)) == 3
    for seed, trained in enumerate(found):
        alone = train(cuda, [replace(runs_of(*RESNET, 1, epochs=8)[0], seed=seed)], VECTORS)
        assert_same([trained], alone)


def test_a_block_waits_for_what_came_before_it_and_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red: a dropped `wait_stream`, on the way in or out."""

    def add() -> None:
        x.add_(1)

    cuda = FakeCuda(monkeypatch)
    with cuda.here():
        x = torch.zeros(3, device=CUDA)
        with own_stream(CUDA):
            step = CudaGraphStep(CUDA)
            for _ in range(6):
                step(0, add)
        assert (x + 0).tolist() == [6.0] * 3
        x.add_(1)
        with pytest.raises(Race), cuda.stream(Stream()):  # the stand-in sees it
            x.add_(1)


# ---- Devices --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["float32", "tf32", "float64"])
def test_only_tf32_computes_in_tf32(precision: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions too. Red: cuDNN's flag, which PyTorch sets."""
    FakeCuda(monkeypatch)
    torch.backends.cudnn.allow_tf32 = precision != "tf32"
    assert prepare_device(Compute("auto", 1, precision)).type == "cuda"
    flags = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    assert flags == (precision == "tf32", precision == "tf32")
    assert prepare_device(Compute("cpu", 1, "float32")).type == "cpu"


@pytest.mark.parametrize(
    ("capability", "precision", "hip", "words"),
    [
        (
            (7, 0),
            "float32",
            None,
            r"no cuda for float32 .*Fake H100 has compute capability 7\.0, and .* sm_75",
        ),
        ((12, 1), "float32", None, ""),
        ((8, 9), "tf32", None, ""),
        ((7, 5), "float32", None, ""),
        ((7, 5), "tf32", None, r"tf32 needs a CUDA device .*7\.5, and TF32 needs 8\.0"),
        ((9, 0), "tf32", "6.4", r"tf32 needs a CUDA device .*TF32 is NVIDIA's"),
        ((9, 0), "float32", "6.4", ""),
    ],
)
def test_a_card_without_kernels_or_tf32_is_named(
    capability: tuple[int, int], precision: Any, hip: str | None, words: str,
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Red: `no kernel image is available` hours later; TF32 that is none."""
    FakeCuda(monkeypatch, capability)
    monkeypatch.setattr(torch.version, "hip", hip)
    device._say_once.cache_clear()
    if not words:
        assert prepare_device(Compute("cuda", 1, precision)).type == "cuda"
        return
    with pytest.raises(InputError, match=words):
        prepare_device(Compute("cuda", 1, precision))
    if precision == "float32":
        assert [prepare_device(Compute("auto", 1, precision)).type for _ in "ab"] == ["cpu"] * 2
        assert capfd.readouterr().err.count("auto takes the CPU: Fake H100 has compute capability 7.0") == 1


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19\nGCC 11", "535.104.05"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build", "570.86.15"),
        ("NVRM version: something else", "of an unknown version"),
    ],
)  # fmt: skip
def test_an_old_driver_is_named(
    text: str,
    version: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Red: the CPU, in silence."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(device, "NVIDIA_DRIVER", tmp_path / "version")
    device._say_once.cache_clear()
    assert prepare_device(Compute("auto", 1, "float32")).type == "cpu"
    assert not capfd.readouterr().err
    (tmp_path / "version").write_text(text)
    assert prepare_device(Compute("auto", 1, "float32")).type == "cpu"
    assert f"CUDA 13.0 finds no GPU by the NVIDIA driver {version}; update" in capfd.readouterr().err
    with pytest.raises(InputError, match=f"no cuda for float32 on this machine .*{version}"):
        prepare_device(Compute("cuda", 1, "float32"))


def test_mps_is_taken_only_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert prepare_device(Compute("auto", 1, "float32")).type == "cpu"
    assert prepare_device(Compute("mps", 1, "float32")).type == "mps"
    with pytest.raises(InputError, match="no mps for float64"):
        prepare_device(Compute("mps", 1, "float64"))


def test_every_gpu_of_a_machine_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red: the first one alone, in silence; memory of one GPU that is shared out among all workers."""
    cuda = FakeCuda(monkeypatch, gpus=2)
    compute = Compute("cuda", 1, "float32")
    assert worker_count(compute, CUDA, None) == 2 * batches.BATCHES_PER_GPU
    assert parts_of_each([[]], 8, CUDA) == 2
    monkeypatch.setattr(batches, "_train_some", lambda batch, *_: wait.wait(60) and [])
    wait = threading.Barrier(2)
    fingerprints = [RunFingerprint(run, "", compute, "code") for run in runs_of(*RESNET)]
    batches.train_batches([[each] for each in fingerprints], 2, 1e9, Unseen(), lambda fingerprint: 1.0)
    assert sorted(cuda.chosen) == [0, 1]
    monkeypatch.setattr(batches, "free_bytes", lambda device: 1000)
    sizes = [len(batch) for batch in batches.batches_that_fit([fingerprints[0]] * 12, 100, CUDA, 2, 1)]
    assert sizes == [6, 6]


# ---- Speed ----------------------------------------------------------------------------------------------


def kernels_of_a_step(name: str, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> int:
    """Of five runs with 13 blocks; counted on few samples, on which it does not depend."""
    data = image_data() if "T" in name else VECTORS
    runs = [replace(run, depth=13) for run in runs_of(name, "post", data, 5, **changes)]
    cuda = FakeCuda(monkeypatch)
    with cuda.here(), own_stream(CUDA):
        session: Any = Session(runs, data, CUDA, torch.float32)
        before = cuda.kernels.total()
        session.method.step(session, 0)
        return cuda.kernels.total() - before


@pytest.mark.parametrize(
    ("name", "optimizer", "most"),
    [("L-RN1", "adam", 230), ("L-T11", "adam", 650), ("L-RN1", "muon", 400)],
)
def test_a_step_has_few_kernels(
    name: str, optimizer: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each costs a microsecond of a step that lasts hundreds. Red: work run by run or matrix by matrix."""
    monkeypatch.setattr("ncpipe.models.layers.FEWEST_ROWS", 2)  # so that gradients are summed in parts
    assert 100 < kernels_of_a_step(name, monkeypatch, optimizer=(OPTIMIZERS | FURTHER)[optimizer]) <= most


@pytest.mark.parametrize(
    ("runs", "rows"), [(1, 5000), (5, 5000), (5, 20_000), (3, 4999), (2, 128), (200, 600)]
)
def test_a_weights_gradient_is_that_of_one_product(runs: int, rows: int) -> None:
    """Against float64; no worse than one product in float32. Red: rows of another run, or left out."""
    draw = torch.Generator().manual_seed(0)
    g, x = (torch.randn(runs, rows, width, generator=draw) for width in (7, 5))
    exact = g.double().mT @ x.double()
    found, whole = (each.double() - exact for each in (weight_gradient(g, x), torch.bmm(g.mT, x)))
    assert found.norm() <= 1.05 * whole.norm()
    assert torch.equal(weight_gradient(g, x), weight_gradient(g, x))
    assert found.norm() < 1e-6 * exact.norm()


@pytest.mark.parametrize("bias", [True, False])
def test_an_affine_map_has_its_gradients_on_a_gpu_too(bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """First and second, against the CPU's in float64."""
    layer = Affine(4, 3, bias).double()
    torch.nn.init.normal_(layer.weight, generator=torch.Generator().manual_seed(0))
    layer.weight = torch.nn.Parameter(layer.weight.detach().expand(2, 3, 4).clone())
    if bias:
        layer.bias = torch.nn.Parameter(
            torch.randn(2, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        )
    x = torch.randn(
        2, 512, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64, requires_grad=True
    )
    wanted = [x, *layer.parameters()]

    def gradients() -> list[torch.Tensor]:
        first = torch.autograd.grad(layer(x).tanh().square().sum(), wanted, create_graph=True)
        return [*first, *torch.autograd.grad(sum(each.square().sum() for each in first), wanted)]

    here = gradients()
    with FakeCuda(monkeypatch).here():
        there = gradients()
    for one, other in zip(there, here, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_muon_of_all_runs_at_once_is_that_of_each() -> None:
    """In float64, with unequal numbers. Red: a run's rate, decay or matrix for another's."""
    own = [FURTHER["muon"] | {"learning_rate": rate, "momentum": momentum, "weight_decay": decay}
           for rate, momentum, decay in ((0.02, 0.9, 0.1), (0.05, 0.8, 0.0), (0.01, 0.95, 0.3))]  # fmt: skip
    for name in ("L-RN2", "L-T12"):
        data = image_data() if "T" in name else VECTORS
        runs = [
            replace(runs_of(name, "post", data, 1, optimizer=keys, epochs=5)[0], seed=seed)
            for seed, keys in enumerate(own)
        ]
        session = Session(runs, data, CPU, torch.float64)
        optimizers = [run.spec.optimizer for run in runs]
        decayed = (session.strengths > 0).double()
        one, many = (
            ByRun(muon, optimizers, session.stack, decayed),
            MuonState(optimizers, session.stack, decayed),
        )
        rates = torch.tensor([[0.02, 0.05, 0.01]] * 5, dtype=torch.float64)
        tables = [method.table(rates).unsqueeze(-1) for method in (one, many)]
        weights = [session.stack.values.clone() for _ in "ab"]
        for step in range(5):
            gradient = torch.randn(
                weights[0].shape, generator=torch.Generator().manual_seed(step), dtype=torch.float64
            )
            for index, method in enumerate((one, many)):
                weights[index] = method.update(weights[index], gradient, tables[index][step])
        for parameter in one.roles:
            pair = (session.stack.view(each, parameter) for each in weights)
            torch.testing.assert_close(*pair, rtol=1e-9, atol=1e-12)
        assert many.buffers().keys() == one.buffers().keys()


def test_a_gradients_norm_takes_few_passes_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same number. Red: as many rows as a CPU's cache holds."""
    data = vector_data(per_class=1000)
    run = runs_of("L-RN1", "post", data)[0]
    network = build_network(run, data).double()
    passes = []
    forward = network.forward_with_features
    monkeypatch.setattr(network, "forward_with_features", lambda *given: passes.append(1) or forward(*given))
    here = gradient_norm(network, run, data, CPU)
    with FakeCuda(monkeypatch).here():
        there = gradient_norm(network, run, data, CUDA)
    assert there == pytest.approx(here, rel=1e-12)
    assert len(passes) == 2 + 1


def test_an_epoch_is_timed_where_it_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(monkeypatch)
    with cuda.here():
        assert seconds_per_epoch(runs_of(*RESNET)[0], 2, VECTORS, CUDA, torch.float32) > 0
    assert (cuda.captures, cuda.current_stream()) == (1, cuda.default)
    assert {ResNetModel, TransformerModel} <= set(get_args(Model))
