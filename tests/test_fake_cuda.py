"""Everything that trains, through recorded CUDA graphs on a stand-in for torch.cuda (`fake_cuda`).

Captured training must give the bytes of the same training without a recording, whatever trains. Then what
goes wrong on a GPU: too little memory at any moment, steps that cannot be recorded, streams, drivers, cards.
"""

import functools
import gc
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import torch
from away import AWAY, FromHost, OtherDevice
from conftest import experiment_tree, image_data, normal
from fake_cuda import CPU, CUDA, FakeCuda
from studies import POLY, TRAINING, changed
from training_cases import (
    ADAM,
    CASES,
    MUON,
    RN,
    SGD,
    TORCH,
    VECTORS,
    Case,
    assert_same,
    network,
)

from ncpipe.config.experiment import Experiment, Model
from ncpipe.config.optimizer_specs import OneAtATime
from ncpipe.config.records import read
from ncpipe.config.run import Compute, Run
from ncpipe.config.study import load_study
from ncpipe.datasets.prepared import Prepared, write_prepared
from ncpipe.metrics.vocabulary import check_memory
from ncpipe.models.layers import Affine, weight_gradient
from ncpipe.runs import batches
from ncpipe.runs.batches import parts_of_each, worker_count
from ncpipe.runs.fingerprint import RunFingerprint, fingerprint_of, fingerprints_of
from ncpipe.runs.store import has
from ncpipe.system.artifacts import PREPARED
from ncpipe.system.console import Progress
from ncpipe.system.device_memory import free_bytes
from ncpipe.system.errors import InputError
from ncpipe.training import cuda_graph, device
from ncpipe.training.cuda_graph import CudaGraphStep, own_stream
from ncpipe.training.device import is_out_of_memory, prepare_device
from ncpipe.training.loop import train_batch
from ncpipe.training.muon import MuonState, muon
from ncpipe.training.optimizers import ByRun
from ncpipe.training.session import Session, Trained

pytestmark = pytest.mark.usefixtures("cuda_flags")


def rn(seeds: int = 2, **changes: Any) -> list[Run]:
    """Runs of L-RN1 on VECTORS."""
    return network(*RN, **changes).runs(*range(seeds))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cuda_graph, "_FREE_STREAMS", type(cuda_graph._FREE_STREAMS)(list))
    yield
    load_study(tmp_path / "nowhere")


def train(cuda: FakeCuda, runs: list[Run], data: Prepared, *rest: Any, **options: Any) -> list[Trained]:
    with cuda.here():
        return train_batch(runs, data, CUDA, "float32", *rest, **options)


def eager(cuda: FakeCuda, runs: list[Run], data: Prepared, monkeypatch: pytest.MonkeyPatch) -> list[Trained]:
    """The same on the same device, without a recording."""
    with monkeypatch.context() as patch:
        patch.setattr(cuda_graph, "WARM_UP", 10**9)
        return train(cuda, runs, data)


def assert_captured(case: Case, runs: list[Run], monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare with the same without a recording; one graph for each size of a batch, one pool, none left."""
    expected = eager(FakeCuda(monkeypatch), runs, case.data, monkeypatch)
    cuda = FakeCuda(monkeypatch)
    gc.disable()
    try:
        captured = train(cuda, runs, case.data)
        assert not cuda.graphs
    finally:
        gc.enable()
    assert_same(captured, expected)
    batch, samples = runs[0].spec.batch_size, len(case.data.train)
    sizes = 1 if batch == "full" or samples % batch == 0 else 2
    assert (cuda.captures, len(cuda.pools)) == (sizes, 1)
    assert cuda.replays >= cuda.captures
    assert cuda.current_stream() is cuda.default


@pytest.mark.parametrize("name", CASES)
def test_what_is_captured_trains_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit.

    Red: state in new memory, a number from the host, a draw, a wait; no warm-up; a stream that does not wait.
    """
    runs = CASES[name].runs(0, 1)
    alone = isinstance(runs[0].spec.optimizer, OneAtATime)
    assert_captured(CASES[name], runs[:1] if alone else runs, monkeypatch)


def test_a_captured_run_that_diverges_harms_no_neighbour(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = [SGD | {"learning_rate": rate} for rate in (0.01, 1e30)]
    runs = [rn(1, loss="mse", optimizer=keys, batch_size="full")[0] for keys in rates]
    assert_captured(CASES["optimizer sgd"], runs, monkeypatch)


def test_everything_that_trains_is_a_case() -> None:
    """Red: a new architecture, loss or optimizer that no case trains."""

    def words(union: Any, key: str) -> set[str]:
        records = [kind for kind in get_args(union) if hasattr(kind, "__dataclass_fields__")]
        return {word for kind in records for word in get_args(get_type_hints(kind)[key])}

    trained: set[str] = set()
    for case in CASES.values():
        if not case.study:
            spec = case.runs(0)[0].spec
            trained |= {spec.model.architecture, spec.loss_name, spec.optimizer.name}
    hints = get_type_hints(Experiment)
    kinds = words(Model, "architecture")
    assert kinds | words(hints["loss"], "name") | words(hints["optimizer"], "name") <= trained


@pytest.mark.parametrize("name", [name for name in CASES if "study" not in name])
def test_a_step_leaves_nothing_on_the_host(name: str) -> None:
    """On a device whose tensors refuse to meet the CPU's. Red: a tensor that is made on the CPU in a step."""
    case = CASES[name]
    with FromHost(), OtherDevice():
        session = Session(case.runs(0), case.data, AWAY, torch.float32)
        steps = session.epochs()
        assert [next(steps), next(steps)] == [0, 1]
        assert all(leaf.isfinite().all() for leaf in session.results()[0].state.values())


@pytest.mark.parametrize("can_sync", [True, False])
def test_a_diverged_run_gets_back_the_weights_of_its_last_finite_loss(can_sync: bool) -> None:
    """Of two runs that diverge one after the other. Red: the weights that the second began with, or an older
    step's; on a device whose losses cannot be read, or where another run has just diverged."""
    session = Session(rn(), VECTORS, CPU, torch.float32)
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
    stored = fingerprints_of(runs, Compute("cuda", 1, "float32"))
    return [fingerprint_of(one.run, one.data, one.compute) for one in stored]


def _on(cuda: FakeCuda, *given: Any) -> list[Trained]:
    with cuda.here():
        return train_batch(*given)


@pytest.mark.parametrize(
    ("error", "when"),
    [("torch", "warm-up"), ("runtime", "capture"), ("cublas", "replay")],
)
def test_out_of_memory_halves_a_batch_and_frees_it(
    error: str, when: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Red: an error that is not recognised, or that the end of the recording hides; a session kept alive."""
    cuda = FakeCuda(monkeypatch)
    fingerprints = project(monkeypatch, cuda)
    cuda.fault = more_than(2, when, OUT_OF_MEMORY[error])
    gc.disable()
    try:
        batches.train_batches([fingerprints], 1, 1e9, Progress("train", 4, 1.0))
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
        train(cuda, rn(), VECTORS)
    assert is_out_of_memory(error.value)
    assert (cuda.current_stream(), cuda.recording) == (cuda.default, [])


def test_lack_of_memory_is_known_by_its_words_and_other_errors_are_none() -> None:
    """Of GPUs, and of what PyTorch and Python say on a CPU. Red: words that they do not use."""
    assert all(is_out_of_memory(error()) for error in OUT_OF_MEMORY.values())
    for size in ((2**50,), (2**62,), (2**40, 2**40)):
        with pytest.raises(RuntimeError) as error:
            torch.empty(size)
        assert is_out_of_memory(error.value)
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("expected scalar type Float but found Double"))
    assert not is_out_of_memory(
        torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
    )
    said = ValueError("said in one line, from None")
    said.__context__, said.__suppress_context__ = torch.OutOfMemoryError(), True
    assert not is_out_of_memory(said)
    said.__suppress_context__ = False
    assert is_out_of_memory(said)


def test_a_torch_optimizer_without_memory_is_no_mistake_in_its_arguments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Red: `optimizer: torch.optim.RMSprop: out of memory`, and no smaller batch."""

    def fail(*_: object) -> None:
        raise OUT_OF_MEMORY["cublas"]()

    monkeypatch.setattr(torch.optim.RMSprop, "step", fail)
    with pytest.raises(RuntimeError, match="CUBLAS"):
        train_batch(rn(1, optimizer=TORCH), VECTORS, CPU, "float32")


def test_freed_memory_that_pytorch_keeps_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red: later batches that become smaller and smaller."""
    cuda = FakeCuda(monkeypatch)
    cuda.memory.free, cuda.memory.reserved, cuda.memory.allocated = 10**9, 7 * 10**9, 10**9
    assert free_bytes(CUDA) == 7 * 10**9
    check_memory(10**6, 64, CUDA)  # 1.5 to 2.6 GB


# ---- Recordings and streams -----------------------------------------------------------------------------


def of_study(loss: str) -> list[Run]:
    """Two runs of a study whose loss returns this."""
    text = changed(TRAINING, (POLY, f"    return {loss}\n"))
    return network(*RN, study=text, loss={"name": "poly", "epsilon": 1.0}).runs(0, 1)


def test_a_step_that_cannot_be_recorded_trains_all_the_same(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A loss that reads a number on the host. Red: a traceback; nothing is said; another result."""
    runs = of_study("-own * min(2.0, float(logits.detach().max()))")
    cuda = FakeCuda(monkeypatch)
    expected = eager(cuda, runs, VECTORS, monkeypatch)
    assert_same(train(cuda, runs, VECTORS), expected)
    said = capfd.readouterr().err
    assert said.count("no CUDA graph of this step") == 1
    assert "operation not permitted when stream is capturing" in said
    assert (cuda.captures, cuda.current_stream(), cuda.recording) == (0, cuda.default, [])


def test_a_loss_whose_shapes_depend_on_data_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    """x[labels == 0], as on the CPU. Red: vmap's error."""
    runs = of_study("-own + own[labels == 0].square().mean()")
    there = train(FakeCuda(monkeypatch), runs, VECTORS)
    for one, other in zip(there, train_batch(runs, VECTORS, CPU, "float32"), strict=True):
        assert one.history[-1].loss == pytest.approx(other.history[-1].loss, rel=1e-4)


def test_forty_sessions_share_no_stream_with_one_that_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch has 32 streams for a GPU. Red: the 33rd session on the stream of one that still trains."""
    cuda = FakeCuda(monkeypatch)
    runs, used = rn(1, epochs=1), set()

    def note(epoch: int, loss: object) -> None:
        used.add(cuda.current_stream().handle)

    with cuda.here(), own_stream(CUDA):
        mine = cuda.current_stream().handle
        for _ in range(40):
            train_batch(runs, VECTORS, CUDA, "float32", note)
    assert used
    assert mine not in used
    assert 0 not in used


def test_a_block_waits_for_what_came_before_it_and_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red: a dropped `wait_stream`, on the way in or out."""

    def add() -> None:
        x.add_(1)

    cuda = FakeCuda(monkeypatch)
    with cuda.here():
        x = torch.zeros(3, device=CUDA)
        before = cuda.kernels.total()
        with own_stream(CUDA):
            stream = cuda.current_stream().handle
            step = CudaGraphStep(CUDA)
            for _ in range(6):
                step(0, add)
        assert (x + 0).tolist() == [6.0] * 3
    (first, last) = cuda.waits
    assert first == (stream, 0, before)
    assert last[:2] == (0, stream)
    assert last[2] > before


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
        ((7, 0), "float32", None,
         r"no cuda for float32 .*Fake H100 has compute capability 7\.0, and .* sm_75"),
        ((8, 9), "tf32", None, ""),
        ((7, 5), "float32", None, ""),
        ((7, 5), "tf32", None, r"tf32 needs a CUDA device .*7\.5, and TF32 needs 8\.0"),
        ((9, 0), "tf32", "6.4", r"tf32 needs a CUDA device .*TF32 is NVIDIA's"),
    ],
)  # fmt: skip
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
    ],
)
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
    monkeypatch.setattr(batches._Trainer, "_train_some", lambda *_: wait.wait(60) and [])
    wait = threading.Barrier(2)
    fingerprints = [RunFingerprint(run, "", compute, "code") for run in rn()]
    batches.train_batches([[fingerprint] for fingerprint in fingerprints], 2, 1e9, Progress("train", 4, 1.0))
    assert sorted(cuda.chosen) == [0, 1]
    monkeypatch.setattr(batches, "free_bytes", lambda device: 1000)
    sizes = [len(batch) for batch in batches.batches_that_fit([fingerprints[0]] * 12, 100, CUDA, 2, 1)]
    assert sizes == [6, 6]


# ---- Speed ----------------------------------------------------------------------------------------------


def kernels_of_a_step(name: str, monkeypatch: pytest.MonkeyPatch, runs: int = 5, **changes: Any) -> int:
    """Of so many runs with 13 blocks; counted on few samples, on which it does not depend."""
    case = network(name, "post", image_data() if "T" in name else VECTORS, **{"batch_size": "full"} | changes)
    deep = [replace(run, depth=13) for run in case.runs(*range(runs))]
    cuda = FakeCuda(monkeypatch)
    with cuda.here(), own_stream(CUDA):
        session: Any = Session(deep, case.data, CUDA, torch.float32)
        before = cuda.kernels.total()
        session.method.step(session, 0)
        return cuda.kernels.total() - before


@pytest.mark.parametrize(
    ("name", "optimizer", "most"),
    [("L-RN1", ADAM, 230), ("L-T11", ADAM, 650), ("L-RN1", MUON, 400)],
)
def test_a_step_has_few_kernels(
    name: str, optimizer: dict[str, Any], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each costs a microsecond of a step that lasts hundreds. Red: work run by run or matrix by matrix."""
    monkeypatch.setattr("ncpipe.models.layers.FEWEST_ROWS", 2)  # so that gradients are summed in parts
    assert 100 < kernels_of_a_step(name, monkeypatch, optimizer=optimizer) <= most


@pytest.mark.parametrize(
    ("runs", "rows", "most"),
    # 4999 rows have no parts, and one product rounds as the CPU orders it: by less than sqrt(4999) units.
    [(1, 5000, 1e-6), (5, 20_000, 1e-6), (3, 4999, 4999**0.5 * 2**-24), (200, 600, 1e-6)],
)
def test_a_weights_gradient_is_that_of_one_product(runs: int, rows: int, most: float) -> None:
    """Against float64; no worse than one product in float32. Red: rows of another run, or left out."""
    draw = torch.Generator().manual_seed(0)
    g, x = (torch.randn(runs, rows, width, generator=draw) for width in (7, 5))
    exact = g.double().mT @ x.double()
    error, of_one_product = (
        gradient.double() - exact for gradient in (weight_gradient(g, x), torch.bmm(g.mT, x))
    )
    assert error.norm() <= 1.05 * of_one_product.norm()
    assert torch.equal(weight_gradient(g, x), weight_gradient(g, x))
    assert error.norm() < most * exact.norm()


@pytest.mark.parametrize("bias", [True, False])
def test_an_affine_map_has_its_gradients_on_a_gpu_too(bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """First and second, against the CPU's in float64."""
    layer = Affine(4, 3, bias)
    layer.weight = torch.nn.Parameter(normal(2, 3, 4))
    if bias:
        layer.bias = torch.nn.Parameter(normal(2, 3, seed=1))
    x = normal(2, 512, 4, seed=2).requires_grad_()
    tensors = [x, *layer.parameters()]

    def gradients() -> list[torch.Tensor]:
        first = torch.autograd.grad(layer(x).tanh().square().sum(), tensors, create_graph=True)
        return [*first, *torch.autograd.grad(sum(gradient.square().sum() for gradient in first), tensors)]

    on_cpu = gradients()
    with FakeCuda(monkeypatch).here():
        on_gpu = gradients()
    for actual, expected in zip(on_gpu, on_cpu, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)


def test_muon_of_all_runs_at_once_is_that_of_each() -> None:
    """In float64, with unequal numbers. Red: a run's rate, decay or matrix for another's."""
    keys = [MUON | {"learning_rate": rate, "momentum": momentum, "weight_decay": decay}
           for rate, momentum, decay in ((0.02, 0.9, 0.1), (0.05, 0.8, 0.0), (0.01, 0.95, 0.3))]  # fmt: skip
    for name in ("L-RN2", "L-T12"):
        data = image_data() if "T" in name else VECTORS
        runs = [network(name, "post", data, optimizer=one).runs(seed)[0] for seed, one in enumerate(keys)]
        session = Session(runs, data, CPU, torch.float64)
        arguments = [run.spec.optimizer for run in runs], session.stack, (session.strengths > 0).double()
        one, many = ByRun(muon, *arguments), MuonState(*arguments)
        rates = torch.tensor([[0.02, 0.05, 0.01]] * 5, dtype=torch.float64)
        tables = [method.table(rates).unsqueeze(-1) for method in (one, many)]
        weights = [session.stack.values.clone() for _ in "ab"]
        for step in range(5):
            gradient = normal(*weights[0].shape, seed=step)
            for index, method in enumerate((one, many)):
                weights[index] = method.update(weights[index], gradient, tables[index][step])
        for parameter in one.roles:
            pair = (session.stack.view(values, parameter) for values in weights)
            torch.testing.assert_close(*pair, rtol=1e-9, atol=1e-12)
        assert many.buffers.keys() == one.buffers.keys()
