"""Is this GPU right, safe and fast? One command for whoever has one.

    python benchmarks/gpu_check.py [--quick] [--only SECTION ...] [--json FILE]

It prints Markdown for docs/speed.md and exits with 1 if anything failed. No other program should use the GPU
meanwhile. --quick takes ten minutes: each section ends with the row in which its seconds (BUDGETS) are spent.

facts               card, driver, versions, flags of arithmetic by precision
half blocks         the kernels of residual blocks against float64, twice the same, and their microseconds
correctness         every kind of training on the GPU against the CPU; captured against eager, resumed against
                    whole, and twice the same
safety              a batch that does not fit is halved and its memory freed; 40 sessions one after the other
kernels             the constants of a roofline: launch of a graph's node, bandwidth, products
side by side        milliseconds of a run and epoch of loops that one would write, and of ncpipe
share of the limit  the least time that its products and bytes take here, over ncpipe's
steps               milliseconds of a run and epoch, eager and captured, by one worker and by four
panels              what the seven panels of S25's figures would take: 245 runs
"""

import argparse
import contextlib
import dataclasses
import functools
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from ncpipe.config.experiment import Experiment
from ncpipe.config.optimizer_specs import OneAtATime
from ncpipe.config.params import load_params
from ncpipe.config.records import read
from ncpipe.config.run import Compute, Run
from ncpipe.config.sources.images import ImageData
from ncpipe.config.sources.reviews import TextData
from ncpipe.datasets.prepared import Prepared, Split, write_prepared
from ncpipe.models.inputs import patches
from ncpipe.models.layers import (
    OneLayerMLP,
    OneMatrixAttention,
    attend,
    layer_norm,
    triton_problem,
    weight_gradient,
)
from ncpipe.models.residual_block import add_attention, add_mlp, attention_is_compiled, mlp_is_compiled
from ncpipe.runs import batches
from ncpipe.runs.fingerprint import fingerprint_of, fingerprints_of
from ncpipe.runs.store import has
from ncpipe.system.artifacts import PREPARED
from ncpipe.system.console import Progress
from ncpipe.training import cuda_graph
from ncpipe.training.checkpoints import Checkpoints, Stopped
from ncpipe.training.device import nvidia_driver, prepare_device
from ncpipe.training.loop import train_batch
from ncpipe.training.session import Trained

CPU = torch.device("cpu")
PARAMS = Path(__file__).resolve().parent.parent / "params.yaml"
PANELS = (
    "cifar10_rn1",
    "cifar10_t11",
    "imdb_pre_t11",
    "mnist_rn2",
    "mnist_rn1",
    "mnist_t11",
    "mnist_rn2_constant",
)
STEPS: tuple[tuple[str, Any], ...] = (("cifar10_rn1", "full"), ("cifar10_rn1", 128), ("mnist_t11", "full"))
# Panel, samples, side of a patch and depths of the sections that compare ncpipe with other loops and with the
# card's limit. Images have 32 x 32 pixels.
SIDE_BY_SIDE: tuple[tuple[str, int, int | None, tuple[int, ...]], ...] = (
    ("cifar10_t11", 1000, 16, (13, 2, 34)),
    ("cifar10_rn1", 5000, None, (13, 2, 34)),
    ("cifar10_t11", 1000, 8, (13,)),
    ("cifar10_t11", 1000, 4, (13,)),
)
HALF_BLOCKS = (  # part, tokens of a sample, norm, precision
    *(("mlp", 1, norm, "float32") for norm in ("post", "pre")),
    *(("attention", tokens, "post", "float32") for tokens in (4, 16, 64)),
    ("attention", 4, "pre", "float32"),
    ("mlp", 1, "post", "tf32"),
    ("attention", 4, "post", "tf32"),
    ("attention", 33, "pre", "float32"),
)
SIDES = {"cifar10": (3, 32), "mnist": (1, 28)}  # channels and pixels of a side
FIRST = cuda_graph.WARM_UP + 2  # epochs in which full batches warm up and are recorded
# Of the largest entry, of one half block and its gradients; TF32 keeps 10 bits of a factor.
KERNEL_ERROR = {"float32": 1e-5, "tf32": 2e-2}
EXACT, ROUNDED = 1e-6, 2e-2  # of the largest weight: float64, and float32 after so many steps


@dataclass(frozen=True)
class Size:
    """How much is computed.

    epochs: of correctness. sessions, width, runs: of safety. nodes, square, repeats: of kernels. samples,
    timed, depths, seconds: of steps and panels.
    """

    epochs: int = 30
    samples: int = 5000
    depths: tuple[int, ...] = (2, 3, 5, 8, 13, 21, 34)
    timed: tuple[int, ...] = (5, 13, 34)
    sessions: int = 40
    width: int = 512
    runs: int = 8
    nodes: int = 1000
    square: int = 8192
    repeats: int = 20
    seconds: float = 6.0


QUICK = Size(epochs=12, depths=(2, 8, 34), timed=(13,), repeats=7, seconds=2.0)


@dataclass(frozen=True)
class Setting:
    """What a row of the comparisons is about. patch: the side of a transformer's."""

    name: str
    samples: int
    patch: int | None
    depth: int

    @property
    def spec(self) -> Experiment:
        spec = load_params(PARAMS).experiment(self.name)
        changes: Any = {} if self.patch is None else {"patch": self.patch}
        return dataclasses.replace(spec, model=dataclasses.replace(spec.model, **changes))

    @property
    def tokens(self) -> int:
        return 1 if self.patch is None else (SIDES["cifar10"][1] // self.patch) ** 2

    @property
    def title(self) -> str:
        patches = "" if self.patch is None else f" of {self.tokens} patches"
        return f"{self.spec.model.architecture}, {self.samples}{patches}, L = {self.depth}"


@dataclass
class Findings:
    """Rows of the tables by section, and what failed."""

    size: Size
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    until: float = float("inf")  # when the section's seconds are spent
    milliseconds: dict[Setting, float] = field(default_factory=dict)  # of ncpipe, side by side

    def add(self, section: str, **row: Any) -> None:
        self.rows.setdefault(section, []).append(row)

    def check(self, section: str, what: str, passed: bool, **row: Any) -> None:
        self.add(section, what=what, **row, passed="yes" if passed else "**no**")
        if not passed:
            self.failed.append(f"{section}: {what}")

    def in_time(self, section: str, items: Iterable[Any]) -> Iterator[Any]:
        """Yield items while the section has time; a row says how many are left out."""
        todo = list(items)
        while todo and time.monotonic() < self.until:
            yield todo.pop(0)
        if todo:
            self.add(section, what=f"left out for want of time: {len(todo)}")


# ---- What trains ----------------------------------------------------------------------------------------

ADAM = {"name": "adam", "learning_rate": 0.01, "beta1": 0.9, "beta2": 0.999, "eps": 1e-6}
LAYERS = {"last_bias": False, "initialisation": "normal", "gain": 1.0}
RESNET = {"architecture": "L-RN1", "norm": "post", "width": 16, "layer_norm_eps": 1e-5, **LAYERS}
MLP = {
    "architecture": "mlp",
    "norm": "batch",
    "activation": "relu",
    "width": 12,
    "bias": True,
    "batch_norm_eps": 1e-5,
    **LAYERS,
}
CONVOLUTIONS = {
    "architecture": "resnet_cifar",
    "width": 4,
    "head_layers": 0,
    "gain": 1.0,
    "batch_norm_eps": 1e-5,
}
CONV_NET = {
    "architecture": "conv_net",
    "pooled": 2,
    "channels": [4, 8],
    "width": 6,
    "feature_gain": 0.5,
    "gain": 1.0,
    "batch_norm_eps": 1e-5,
}
DUFM = {
    "architecture": "dufm",
    "width": 12,
    "columns": "own",
    "initialisation": "normal",
    "gain": 1.0,
    "feature_deviation": 0.8,
}
VECTORS = {
    "source": "gaussian_mixture",
    "classes": 4,
    "dimension": 12,
    "separation": 3.0,
    "noise": 0.5,
    "per_class": 50,
    "test_per_class": 20,
    "seed": 0,
}
DIGITS = {"source": "digits", "per_class": 12, "test_per_class": 6, "seed": 0, "normalisation": "standardise"}
TEXT = {
    "source": "imdb",
    "per_class": 40,
    "test_per_class": 20,
    "seed": 0,
    "tokenizer": "corpus",
    "vocabulary": 300,
    "context": 70,
    "keep": "start",
}
WORDS = {
    "source": "markov",
    "words": 5,
    "order": 2,
    "sharpness": 1.0,
    "zipf": 1.5,
    "sequences": 40,
    "test_sequences": 20,
    "context": 6,
    "seed": 0,
}
TREE: dict[str, Any] = {
    "data": VECTORS,
    "model": RESNET,
    "loss": "ce",
    "optimizer": ADAM,
    "schedule": {"name": "cosine", "final": 0.1},
    "penalty": {"rule": "constant", "value": 0.005, "last_layer": None},
    "batch_size": "full",
    "log_every": 5,
}


def transformer(name: str, norm: str) -> dict[str, Any]:
    return {
        **RESNET,
        "architecture": name,
        "norm": norm,
        "gain": 0.5,
        **({"mlp_width": 20} if name.endswith("2") else {}),
    }


KINDS: dict[str, tuple[int, dict[str, Any]]] = {  # depth, and what differs from TREE
    "L-RN1": (4, {}),
    "L-RN1 pre, mini-batches": (4, {"model": RESNET | {"norm": "pre"}, "batch_size": 32}),
    "L-RN2": (4, {"model": RESNET | {"architecture": "L-RN2", "mlp_width": 20}}),
    **{
        f"{name} {norm}": (
            3,
            {"data": DIGITS, "model": transformer(name, norm) | {"patch": 4}, "batch_size": 32},
        )
        for name in ("L-T11", "L-T12", "L-T21", "L-T22")
        for norm in ("post", "pre")
    },
    "L-T11, 70 tokens": (3, {"data": TEXT, "model": transformer("L-T11", "post")}),
    "next tokens": (3, {"data": WORDS, "model": transformer("L-T11", "pre")}),
    "mlp with batch norm": (4, {"model": MLP, "batch_size": 32}),
    "resnet_cifar, augmented": (
        8,
        {"data": DIGITS, "model": CONVOLUTIONS, "batch_size": 32, "augmentation": {"shift": 1, "flip": True}},
    ),
    "conv_net": (4, {"data": DIGITS, "model": CONV_NET}),
    "dufm": (3, {"data": {"source": "free", "classes": 4, "per_class": 6}, "model": DUFM, "loss": "mse"}),
    **{
        f"loss {loss if isinstance(loss, str) else loss['name']}": (
            3,
            {"loss": loss, "model": RESNET | {"last_bias": True}},
        )
        for loss in (
            "mse",
            {"name": "ce", "smoothing": 0.1},
            {"name": "supcon", "temperature": 0.4},
            {"name": "focal", "gamma": 2.0},
            {"name": "ldam", "max_margin": 0.5, "scale": 1.0, "cosines": False},
            {"name": "logit_adjusted", "tau": 1.0},
        )
    },
    **{
        f"optimizer {keys['name']}": (3, {"optimizer": keys})
        for keys in (
            {"name": "sgd", "learning_rate": 0.05, "momentum": 0.9},
            ADAM | {"name": "adamw", "weight_decay": 0.1},
            {"name": "lion", "learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1},
            {"name": "sign_sgd", "learning_rate": 1e-3, "momentum": 0.9},
            ADAM | {"name": "muon", "momentum": 0.9, "adam_learning_rate": 0.01, "eps": 1e-8},
            {"name": "lbfgs", "learning_rate": 1.0, "memory": 3},
            {"name": "torch", "class": "RMSprop", "learning_rate": 1e-3},
        )
    },
}


def runs_of(kind: str, epochs: int, count: int = 3) -> list[Run]:
    depth, changes = KINDS[kind]
    tree = TREE | {"epochs": epochs} | changes
    spec = read(Experiment, tree, kind)
    count = 1 if isinstance(spec.optimizer, OneAtATime) else count
    return [Run("check", depth, seed, spec) for seed in range(count)]


@functools.cache
def data_of(kind: str) -> Prepared:
    """Data sets that need no download; of a text, noise."""
    from ncpipe.datasets.prepare import prepare

    spec = runs_of(kind, 1)[0].spec.data
    if isinstance(spec, TextData):
        return noise(spec, 2 * spec.per_class)
    return prepare(spec, Path("raw"), None, progress=False)


def noise(spec: ImageData | TextData, samples: int) -> Prepared:
    """Random samples of a data set's shape."""
    draw = torch.Generator().manual_seed(0)
    splits = []
    for count in (samples, max(spec.classes if isinstance(spec, ImageData) else 2, samples // 5)):
        if isinstance(spec, TextData):
            ids = torch.randint(1, spec.vocabulary or 1000, (count, spec.context), generator=draw)
            splits.append(Split(ids, torch.arange(count) % 2, torch.full((count,), spec.context)))
        else:
            channels, side = SIDES[spec.source]
            splits.append(
                Split(
                    torch.randn(count, channels, side, side, generator=draw),
                    torch.arange(count) % spec.classes,
                )
            )
    train, test = splits
    if isinstance(spec, TextData):
        return Prepared("tokens", 2, spec.vocabulary, train, test, {})
    return Prepared("image", spec.classes, None, train, test, {})


def train(
    runs: Sequence[Run], data: Prepared, place: torch.device, precision: Any, **options: Any
) -> list[Trained]:
    prepare_device(Compute(place.type, 1, precision))  # type: ignore[arg-type]
    return train_batch(runs, data, place, precision, **options)


@contextlib.contextmanager
def eager() -> Iterator[None]:
    """Record no CUDA graph in the block."""
    before = cuda_graph.WARM_UP
    cuda_graph.WARM_UP = 10**9
    try:
        yield
    finally:
        cuda_graph.WARM_UP = before


# ---- Sections -------------------------------------------------------------------------------------------


def facts(found: Findings, cuda: torch.device) -> None:
    card = torch.cuda.get_device_properties(cuda)
    major, minor = torch.cuda.get_device_capability(cuda)
    for name, value in {
        "card": torch.cuda.get_device_name(cuda),
        "GPUs": torch.cuda.device_count(),
        "compute capability": f"{major}.{minor}",
        "processors": card.multi_processor_count,
        "memory, GB": round(card.total_memory / 1e9, 1),
        "free, GB": round(torch.cuda.mem_get_info(cuda)[0] / 1e9, 1),
        "driver": nvidia_driver() or "unknown",
        "PyTorch, its CUDA": f"{torch.__version__}, {torch.version.cuda or torch.version.hip}",
        "cuDNN": torch.backends.cudnn.version(),
        "built for": ", ".join(torch.cuda.get_arch_list()),
    }.items():
        found.add("facts", what=name, value=value)
    for precision in ("float32", "tf32") if major >= 8 else ("float32",):
        prepare_device(Compute("cuda", 1, precision))
        flags = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
        found.check(
            "facts",
            f"TF32 in products, convolutions at {precision}",
            flags == (precision == "tf32",) * 2,
            value=str(flags),
        )


def difference(trained: Sequence[Trained], others: Sequence[Trained]) -> float:
    """The largest difference of two weights, in units of the largest weight of their network.

    Not of their tensor, which may be rounding alone, as a bias is before batch norm.
    """
    worst = 0.0
    for one, other in zip(trained, others, strict=True):
        largest = max(float(tensor.abs().max()) for tensor in other.state.values())
        for name, tensor in other.state.items():
            worst = max(worst, float((one.state[name].double() - tensor.double()).abs().max()) / largest)
    return worst if worst == worst else float("inf")


def correctness(found: Findings, cuda: torch.device) -> None:
    epochs = found.size.epochs
    for kind in found.in_time("correctness", KINDS):
        runs, data = runs_of(kind, epochs), data_of(kind)
        there = train(runs, data, cuda, "float64")
        row = {"float64": difference(there, train(runs, data, CPU, "float64"))}
        # Few steps: from a kink of ReLU on, or a sign of a gradient near 0, rounding grows without limit.
        few = runs_of(kind, min(4, epochs))
        here = train(few, data, CPU, "float32")
        row["float32"] = difference(train(few, data, cuda, "float32"), here)
        if torch.cuda.get_device_capability(cuda) >= (8, 0):
            row["tf32"] = difference(train(few, data, cuda, "tf32"), here)
        with eager():
            row["captured or not"] = difference(there, train(runs, data, cuda, "float64"))
        row["twice"] = difference(there, train(runs, data, cuda, "float64"))
        row["resumed"] = difference(resumed(runs, data, cuda), there)
        limits = {"float32": ROUNDED, "tf32": float("inf")}
        bad = [name for name, value in row.items() if not value <= limits.get(name, EXACT)]
        found.check("correctness", kind, not bad, **{name: f"{value:.1e}" for name, value in row.items()})


def resumed(runs: Sequence[Run], data: Prepared, cuda: torch.device) -> list[Trained]:
    with tempfile.TemporaryDirectory() as folder:
        saved = Checkpoints([Path(folder) / str(index) for index in range(len(runs))], 1e9)
        asked = iter([False] * (runs[0].spec.epochs // 2))
        with contextlib.suppress(Stopped):
            train(runs, data, cuda, "float64", checkpoints=saved, stop=lambda: next(asked, True))
        return train(runs, data, cuda, "float64", checkpoints=saved)


def safety(found: Findings, cuda: torch.device) -> None:
    size, kind = found.size, "L-RN1"
    runs = runs_of(kind, 8, size.runs)
    wide = dataclasses.replace(runs[0].spec, model=dataclasses.replace(runs[0].spec.model, width=size.width))
    runs = [dataclasses.replace(run, spec=wide) for run in runs]
    data, compute = data_of(kind), Compute("cuda", 1, "float32")
    with workplace(data, runs[0]) as place:
        prepare_device(compute)
        readable = fingerprints_of(runs, compute)
        fingerprints = [fingerprint_of(each.run, each.data, compute) for each in readable]
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated(cuda)
        torch.cuda.reset_peak_memory_stats(cuda)
        train(runs, data, cuda, "float32")
        most = torch.cuda.max_memory_allocated(cuda)
        torch.cuda.empty_cache()
        share = (before + 0.7 * (most - before)) / torch.cuda.get_device_properties(cuda).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, share))
        said: list[str] = []
        original, batches.say = batches.say, said.append  # type: ignore[assignment]
        try:
            batches.train_batches([fingerprints], 1, 1e9, Progress("train", 4, 1.0))
        finally:
            batches.say = original
            torch.cuda.set_per_process_memory_fraction(1.0)
        halved = sum("out of memory" in line for line in said)
        done = sum(has(fingerprint.key()) for fingerprint in fingerprints)
        found.check(
            "safety",
            f"{len(runs)} runs in 0.7 of their memory: halved {halved} times, {done} done",
            halved > 0 and done == len(runs),
        )
        left = torch.cuda.memory_allocated(cuda) - before
        found.check(
            "safety", f"memory still held afterwards: {left} bytes", left <= 2**27
        )  # cuBLAS's workspaces
        assert place.is_dir()
    first, before = None, 0
    for index in range(size.sessions):
        (trained,) = train(runs_of(kind, 8, 1), data, cuda, "float64")
        first = first or trained
        if difference([trained], [first]) > EXACT:
            found.check("safety", f"session {index} differs from the first", False)
            break
        if index == 2:
            before = torch.cuda.memory_allocated(cuda)
    left = torch.cuda.memory_allocated(cuda) - before
    found.check(
        "safety",
        f"{size.sessions} sessions: {left} more bytes held after the last than after the third",
        left <= 2**26,
    )


@contextlib.contextmanager
def workplace(data: Prepared, run: Run) -> Iterator[Path]:
    """A folder of its own with prepared data, as the store and its workers expect."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            write_prepared(PREPARED / run.data, data)
            yield Path(folder)
        finally:
            os.chdir(before)


def seconds_of(call: Callable[[], object], size: Size) -> float:
    """The least of several times of a call, with the wait for the device."""
    times = []
    for _ in range(size.repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times[1:] or times)


def captured_seconds(call: Callable[[], object], cuda: torch.device, size: Size, times: int = 20) -> float:
    """The least of several times of a call, of which a recording has several."""
    times, step = min(times, size.nodes), cuda_graph.CudaGraphStep(cuda)

    def chain() -> None:
        for _ in range(times):
            call()

    with cuda_graph.own_stream(cuda):
        for _ in range(cuda_graph.WARM_UP + 1):
            step(0, chain)
        return seconds_of(lambda: step(0, chain), size) / times


def kernels(found: Findings, cuda: torch.device) -> None:
    size, small = found.size, torch.zeros(64, device=cuda)
    node = captured_seconds(lambda: small.add_(1), cuda, size, size.nodes)
    found.add("kernels", what="launch of a graph's node", value=f"{1e6 * node:.2f} us")

    def chain() -> None:
        for _ in range(size.nodes):
            small.add_(1)

    alone = seconds_of(chain, size) / size.nodes
    found.add("kernels", what="launch without a graph", value=f"{1e6 * alone:.2f} us")
    big = torch.ones(size.square**2, device=cuda)
    copy = torch.empty_like(big)
    found.add(
        "kernels",
        what="bandwidth",
        value=f"{8e-12 * big.numel() / seconds_of(lambda: copy.copy_(big), size):.2f} TB/s",
    )
    left, right = (torch.randn(size.square, size.square, device=cuda) for _ in "ab")
    for precision in ("float32", "tf32"):
        if precision == "tf32" and torch.cuda.get_device_capability(cuda) < (8, 0):
            continue
        prepare_device(Compute("cuda", 1, precision))
        rate = 2e-12 * size.square**3 / seconds_of(lambda: left @ right, size)
        found.add("kernels", what=f"products, {precision}", value=f"{rate:.1f} TFLOP/s")
    prepare_device(Compute("cuda", 1, "float32"))
    for rows in (size.samples, 4 * size.samples):
        g, x = (torch.randn(5, rows, 64, device=cuda) for _ in "ab")
        whole, parts = (
            1e6 * seconds_of(functools.partial(call, g, x), size) for call in (_one_product, weight_gradient)
        )
        found.add(
            "kernels",
            what=f"weight gradient of 5 runs over {rows} rows",
            value=f"{whole:.0f} us at once, {parts:.0f} us in parts",
        )


def _one_product(g: Tensor, x: Tensor) -> Tensor:
    return torch.bmm(g.mT, x)


def panel_runs(name: str, depth: int, epochs: int, count: int = 5, **changes: Any) -> list[Run]:
    spec = dataclasses.replace(
        load_params(PARAMS).experiment(name), epochs=epochs, log_every=epochs, **changes
    )
    return [Run(name, depth, seed, spec) for seed in range(count)]


def half_blocks(found: Findings, cuda: torch.device) -> None:
    if reason := triton_problem():
        found.add("half blocks", what=f"none, PyTorch's operations are taken: {reason}")
        return
    runs, rows, width = 5, 4 * (found.size.samples // 5), 64
    for part, tokens, norm, precision in found.in_time("half blocks", HALF_BLOCKS):
        prepare_device(Compute("cuda", 1, precision))
        given = half_block_inputs(part, tokens, norm, runs, rows, width, cuda)
        error, same = half_block_error(part, tokens, given)
        inputs = [tensor.requires_grad_() for tensor in given]
        forward, both = (
            captured_seconds(functools.partial(call, part, tokens, inputs), cuda, found.size)
            for call in (_half_block, half_block_gradients)
        )
        found.check(
            "half blocks",
            f"{part}, {norm}-LN{f', {tokens} tokens' if part == 'attention' else ''}, {precision}",
            error <= KERNEL_ERROR[precision] and same,
            **{"error": f"{error:.1e}", "same bytes twice": "yes" if same else "no"},
            **{"forward, us": f"{1e6 * forward:.1f}", "both ways, us": f"{1e6 * both:.1f}"},
        )


def half_block_inputs(
    part: str, tokens: int, norm: str, runs: int, rows: int, width: int, cuda: torch.device
) -> list[Tensor]:
    """Random streams of whole samples, and the weights of a half block."""
    torch.manual_seed(0)
    streams: list[tuple[int, ...]] = [(runs, max(rows // tokens, 1) * tokens, width)] * (1 + (norm == "pre"))
    weights = [(runs, width, width), (runs, width) if part == "mlp" else (runs, width, width)]
    drawn = [torch.randn(shape, device=cuda) for shape in (*streams, *weights)]
    return [*drawn[: len(streams)], *(0.1 * weight for weight in drawn[len(streams) :])]


def half_block_error(part: str, tokens: int, given: Sequence[Tensor]) -> tuple[float, bool]:
    """The largest difference from float64, of the largest entry, and whether the bytes are the same twice."""
    here, again = (half_block_gradients(part, tokens, given) for _ in "ab")
    exact = half_block_gradients(part, tokens, [tensor.double() for tensor in given])
    pairs = zip(here, exact, strict=True)
    error = max(float((one - other).abs().max() / other.abs().max()) for one, other in pairs)
    return error, all(torch.equal(one, other) for one, other in zip(here, again, strict=True))


def half_block_gradients(part: str, tokens: int, given: Sequence[Tensor]) -> list[Tensor]:
    """The half block and its gradients, on these inputs."""
    own = [tensor.detach().requires_grad_() for tensor in given]
    found = _half_block(part, tokens, own)
    values = [each.detach() for each in found]
    return [*values, *torch.autograd.grad(found, own, [value.roll(1, 1) for value in values])]


def _half_block(part: str, tokens: int, given: Sequence[Tensor]) -> list[Tensor]:
    """LN(t) and, pre-LN, t: by the kernels in float32, by PyTorch's operations in float64."""
    x, *streams, first, second = given
    stream, eps = streams[0] if streams else None, 1e-5
    found: tuple[Tensor, Tensor | None]
    if x.dtype == torch.float64:
        if part == "mlp":
            added = torch.relu(torch.baddbmm(second.unsqueeze(1), x, first.mT))
        else:
            added = attend(x @ first.mT, x, x, tokens) @ second.mT
        total = (x if stream is None else stream) + added
        found = layer_norm(total, eps), None if stream is None else total
    elif part == "mlp":
        mlp = OneLayerMLP(x.shape[-1])
        vars(mlp.lin).update(weight=first, bias=second)
        assert mlp_is_compiled(mlp, x), "no kernel is taken"
        found = add_mlp(x, stream, mlp, eps)
    else:
        attention = OneMatrixAttention(x.shape[-1])
        vars(attention.qk).update(weight=first)
        vars(attention.vo).update(weight=second)
        assert attention_is_compiled(attention, x, tokens), "no kernel is taken"
        found = add_attention(x, stream, attention, tokens, eps)
    return [each for each in found if each is not None]


class PlainResNet(nn.Module):
    """L-RN1 as one would write it."""

    def __init__(self, inputs: int, depth: int, width: int, classes: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, width), nn.Linear(width, classes, bias=False)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(depth - 1))

    def forward(self, x: Tensor) -> Tensor:
        x = _plain_norm(self.first(x.flatten(1)))
        for block in self.blocks:
            x = _plain_norm(x + F.relu(block(x)))
        logits: Tensor = self.last(x)
        return logits


class PlainTransformer(nn.Module):
    """L-T11 as one would write it; patches (N, C, p)."""

    def __init__(self, tokens: int, patch: int, depth: int, width: int, classes: int) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Linear(patch, width, bias=False), nn.Embedding(tokens, width)
        self.qk, self.vo = (
            nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(depth)) for _ in "ab"
        )
        self.mlps = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.last = nn.Linear(width, classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = _plain_norm(self.embedding(x) + self.positions.weight)
        for qk, vo, mlp in zip(self.qk, self.vo, self.mlps, strict=True):
            x = _plain_norm(x + vo(F.scaled_dot_product_attention(qk(x), x, x, is_causal=True)))
            x = _plain_norm(x + F.relu(mlp(x)))
        logits: Tensor = self.last(x[:, -1])
        return logits


def _plain_norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], eps=1e-5)


def plain_seconds(setting: Setting, how: str, cuda: torch.device, size: Size) -> float:
    """Seconds of an epoch on full batches by a plain loop: with a DataLoader, on tensors, or captured."""
    spec, samples, depth = setting.spec, setting.samples, setting.depth
    assert isinstance(spec.data, ImageData)
    split, model = noise(spec.data, samples).train, spec.model
    inputs, labels, classes = split.inputs, split.labels, spec.data.classes
    network: nn.Module
    if setting.patch is None:
        network = PlainResNet(inputs[0].numel(), depth, model.width, classes)
    else:
        inputs = patches(inputs, setting.patch)
        network = PlainTransformer(inputs.shape[1], inputs.shape[2], depth, model.width, classes)
    network = network.to(cuda)
    matrices = [weight for weight in network.parameters() if weight.dim() == 2]
    optimizer = torch.optim.Adam(network.parameters(), 0.005, fused=True, capturable=how == "captured")

    def step(inputs: Tensor, labels: Tensor) -> None:
        loss = F.cross_entropy(network(inputs), labels)
        loss = loss + 0.0025 * torch.stack([matrix.square().sum() for matrix in matrices]).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    loader = DataLoader(TensorDataset(inputs, labels), batch_size=samples, shuffle=True)
    there, run_step = (inputs.to(cuda), labels.to(cuda)), cuda_graph.CudaGraphStep(cuda)

    def epoch() -> None:
        if how == "DataLoader":
            for part in loader:
                step(*(tensor.to(cuda) for tensor in part))
        elif how == "tensors":
            step(*there)
        else:
            run_step(0, lambda: step(*there))

    with cuda_graph.own_stream(cuda):
        for _ in range(FIRST):
            epoch()
        torch.cuda.synchronize()
        start, count = time.perf_counter(), 0
        while not count or time.perf_counter() - start < size.seconds / 2:
            for _ in range(1 if how == "DataLoader" else 10):
                epoch()
                count += 1
            torch.cuda.synchronize()
        return (time.perf_counter() - start) / count


def our_milliseconds(found: Findings, cuda: torch.device, setting: Setting) -> float:
    """Milliseconds of a run and epoch of ncpipe, five runs in a batch, measured once."""
    if setting not in found.milliseconds:
        spec = setting.spec
        assert isinstance(spec.data, ImageData)
        data = noise(spec.data, setting.samples)
        seconds = epoch_seconds(
            setting.name, setting.depth, "full", data, cuda, 1, found.size, model=spec.model
        )
        found.milliseconds[setting] = 200 * seconds
    return found.milliseconds[setting]


def settings() -> list[Setting]:
    return [
        Setting(name, samples, patch, depth)
        for name, samples, patch, depths in SIDE_BY_SIDE
        for depth in depths
    ]


def side_by_side(found: Findings, cuda: torch.device) -> None:
    prepare_device(Compute("cuda", 1, "float32"))
    for setting in found.in_time("side by side", settings()):
        row = {
            heading: f"{1e3 * plain_seconds(setting, how, cuda, found.size):.3g}"
            for heading, how in (
                ("loop with DataLoader", "DataLoader"),
                ("loop on tensors", "tensors"),
                ("the same, step captured", "captured"),
            )
        }
        row["ncpipe, 5 runs in a batch"] = f"{our_milliseconds(found, cuda, setting):.3g}"
        found.add("side by side", what=setting.title, **row)


def least_work(setting: Setting) -> tuple[float, float]:
    """Floating-point operations of all products of an epoch, and bytes that half blocks have to move.

    Of three passes: forward, and two products backward, of which the first layer has one. A half block moves
    about 25 bytes for each number of the stream: two floats and a byte forward, four and a byte backward.
    """
    width, depth, rows = setting.spec.model.width, setting.depth, setting.samples * setting.tokens
    channels, side = SIDES["cifar10"]
    if setting.patch is None:
        halves, inner = depth - 1, (depth - 1) * 2 * width**2
    else:
        halves, inner = 2 * depth, depth * (2 * 3 * width**2 + 2 * 2 * setting.tokens * width)
    first = 2 * 2 * setting.samples * channels * side**2 * width
    return first + 3 * rows * inner, 25.0 * rows * width * halves


def share_of_the_limit(found: Findings, cuda: torch.device) -> None:
    size = found.size
    prepare_device(Compute("cuda", 1, "float32"))
    left, right = (torch.randn(size.square, size.square, device=cuda) for _ in "ab")
    copy = torch.empty_like(left)
    rate = 2 * size.square**3 / seconds_of(lambda: left @ right, size)
    bandwidth = 2 * left.nbytes / seconds_of(lambda: copy.copy_(left), size)
    for setting in found.in_time("share of the limit", settings()):
        operations, moved = least_work(setting)
        limit, ours = 1e3 * max(operations / rate, moved / bandwidth), our_milliseconds(found, cuda, setting)
        found.add(
            "share of the limit",
            what=setting.title,
            **{
                "GFLOP": f"{1e-9 * operations:.2f}",
                "MB": f"{1e-6 * moved:.0f}",
                "limit, ms": f"{limit:.3f}",
                "ncpipe, ms": f"{ours:.3f}",
                "share": f"{limit / ours:.0%}" if ours else "-",
            },
        )


def steps(found: Findings, cuda: torch.device) -> None:
    size = found.size
    prepare_device(Compute("cuda", 1, "float32"))
    for name, batch in STEPS:
        spec = load_params(PARAMS).experiment(name)
        assert isinstance(spec.data, ImageData)
        data = noise(spec.data, size.samples)
        for depth in found.in_time("steps", size.timed):
            row = {}
            for workers, capture in ((1, False), (1, True), (4, True)):
                with contextlib.nullcontext() if capture else eager():
                    row[f"{'captured' if capture else 'eager'}, {workers}"] = (
                        f"{1e3 * epoch_seconds(name, depth, batch, data, cuda, workers, size) / 5:.3f}"
                    )
            what = f"{spec.model.architecture}, {batch}, L = {depth}"
            found.add("steps", what=what, **row)


def epoch_seconds(
    name: str,
    depth: int,
    batch: Any,
    data: Prepared,
    cuda: torch.device,
    workers: int,
    size: Size,
    **changes: Any,
) -> float:
    """Seconds of an epoch of one batch of 5 runs, of as many batches at a time as there are workers.

    The difference of a long and a short training: warm-up, recording and the history cancel.
    """

    def timed(epochs: int) -> float:
        def work(_: int) -> None:
            prepare_device(Compute("cuda", 1, "float32"))
            train_batch(panel_runs(name, depth, epochs, batch_size=batch, **changes), data, cuda, "float32")

        start = time.perf_counter()
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(work, range(workers)))
        torch.cuda.synchronize()
        return time.perf_counter() - start

    short, more = FIRST, 4
    timed(short)  # libraries set themselves up
    base = timed(short)
    while (spent := timed(short + more) - base) < size.seconds / 4 and more < 4096:
        more *= 2
    return max(spent, 0.0) / more / workers


def panels(found: Findings, cuda: torch.device) -> None:
    size, total = found.size, 0.0
    prepare_device(Compute("cuda", 1, "float32"))
    for name in found.in_time("panels", PANELS):
        spec = load_params(PARAMS).experiment(name)
        assert isinstance(spec.data, ImageData | TextData)
        data = noise(spec.data, size.samples)
        by_depth = {}
        for depth in size.depths:
            seconds = epoch_seconds(name, depth, spec.batch_size, data, cuda, 1, size)
            by_depth[depth] = seconds * spec.epochs
        everything = sum(between(by_depth, depth) for depth in Size.depths)
        total += everything
        found.add(
            "panels",
            what=name,
            hours=f"{everything / 3600:.2f}",
            **{f"L = {depth}, h": f"{value / 3600:.3f}" for depth, value in by_depth.items()},
        )
    done = sum(row["what"] in PANELS for row in found.rows["panels"])
    found.add(
        "panels", what=f"the {35 * done} runs of these, one batch at a time", hours=f"{total / 3600:.2f}"
    )


def between(known: dict[int, float], depth: int) -> float:
    """A value at a depth, linear between those that were measured, and beyond them in proportion."""
    low = max((each for each in known if each <= depth), default=min(known))
    high = min((each for each in known if each >= depth), default=max(known))
    if low == high:
        return known[low] * depth / low
    return known[low] + (known[high] - known[low]) * (depth - low) / (high - low)


SECTIONS = {
    "facts": facts,
    "half blocks": half_blocks,
    "correctness": correctness,
    "safety": safety,
    "kernels": kernels,
    "side by side": side_by_side,
    "share of the limit": share_of_the_limit,
    "steps": steps,
    "panels": panels,
}
# Seconds of a section with --quick; what is left of ten minutes is for rows that have begun.
BUDGETS = {
    "facts": 5,
    "half blocks": 55,
    "correctness": 160,
    "safety": 40,
    "kernels": 15,
    "side by side": 100,
    "share of the limit": 20,
    "steps": 50,
    "panels": 80,
}


def markdown(found: Findings) -> str:
    """A table for each section."""
    lines = ["Measured by `benchmarks/gpu_check.py`."]
    for section, rows in found.rows.items():
        columns = list(dict.fromkeys(key for row in rows for key in row))
        lines += [
            "",
            f"### {section.capitalize()}",
            "",
            f"| {' | '.join(columns)} |",
            "|" + "---|" * len(columns),
        ]
        lines += [f"| {' | '.join(str(row.get(key, '')) for key in columns)} |" for row in rows]
    lines += [
        "",
        f"**{len(found.failed)} failed**: {'; '.join(found.failed)}"
        if found.failed
        else "All checks passed.",
    ]
    return "\n".join(lines)


def check(size: Size, sections: Sequence[str] = tuple(SECTIONS)) -> Findings:
    """Run sections; one that raises has failed, and the others go on."""
    found, cuda = Findings(size), torch.device("cuda")
    for name in sections:
        print(f"{name} ...", file=sys.stderr, flush=True)
        if size is QUICK:
            found.until = time.monotonic() + BUDGETS[name]
        try:
            SECTIONS[name](found, cuda)
        except Exception as error:
            traceback.print_exc()
            found.check(name, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}", False)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="ten minutes: fewer depths, shorter timings, and no row after a section's seconds",
    )
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), help="these sections")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rows to this file too")
    chosen = parser.parse_args(arguments)
    if prepare_device(Compute("auto", 1, "float32")).type != "cuda":
        sys.exit("gpu_check: no CUDA device that this PyTorch can use; see docs/install.md")
    found = check(QUICK if chosen.quick else Size(), chosen.only)
    print(markdown(found))
    if chosen.json:
        chosen.json.write_text(json.dumps({"rows": found.rows, "failed": found.failed}, indent=1))
    return int(bool(found.failed))


if __name__ == "__main__":
    sys.exit(main())
