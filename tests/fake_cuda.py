"""A stand-in for torch.cuda on a CPU: streams with numbers, and graphs whose recording executes nothing.

Inside `FakeCuda.here()` tensors pass for a GPU's. What CUDA refuses is refused with CUDA's errors: to wait
for the device in a recording, to record on the default stream or with libraries that are not set up yet.
Errors can be injected (`fault`).
"""

import contextlib
import itertools
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from ncpipe.system import compile

CUDA, CPU = torch.device("cuda"), torch.device("cpu")
POOLED = 32  # streams of a GPU; PyTorch gives them out in turn
WAITS = "CUDA error: operation not permitted when stream is capturing"
GETTERS = {Tensor.device.__get__: torch.device("cuda:0"), Tensor.is_cuda.__get__: True}
TO_HOST = {Tensor.cpu, Tensor.tolist, Tensor.numpy, Tensor.item}
FROM_HOST = {torch.tensor, torch.as_tensor, Tensor.new_tensor}
PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "convolution", "convolution_backward")
Phase = Literal["eager", "capture", "replay"]


class Stream:
    """Waits for others; `FakeCuda.waits` has the two handles, and how many operations came before."""

    made = itertools.count()
    device = torch.device("cuda:0")
    cuda: "FakeCuda"

    def __init__(self, device: Any = None, handle: int | None = None) -> None:
        self.handle = 1 + next(Stream.made) % POOLED if handle is None else handle

    def wait_stream(self, other: "Stream") -> None:
        self.cuda.waits.append((self.handle, other.handle, self.cuda.kernels.total()))

    def synchronize(self) -> None:
        pass


class CUDAGraph:
    """Operations of a step, and what they wrote before the recording was undone."""

    cuda: "FakeCuda"

    def __init__(self) -> None:
        self.operations: list[tuple[Any, Any, Any, Any]] = []
        self.own: set[int] = set()  # storages made in the recording
        self.saved: dict[int, tuple[Any, Any]] = {}  # of others, before the first write
        self.broken = ""
        self.handle: object = None
        self.ended = False
        self.cuda.graphs.add(self)

    def pool(self) -> object:
        if not self.ended:
            raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")
        return self.handle

    def capture_begin(self, pool: object = None, capture_error_mode: str = "global", **_: object) -> None:
        if self.cuda.current_stream().handle == 0:
            raise RuntimeError("CUDA graphs must be captured on a non-default stream.")
        if capture_error_mode != "thread_local" and threading.active_count() > 1:
            raise RuntimeError("another thread would break this recording")
        self.handle = pool or object()
        self.cuda.local.graph = self
        self.cuda.recording.append(self.handle)

    def capture_end(self) -> None:
        self.cuda.local.graph = None
        with self.cuda.away(), torch.no_grad():
            for storage, before in self.saved.values():
                storage.copy_(before)
            for _, _, _, result in self.operations:  # until it is replayed, its memory holds anything
                for leaf in tree_leaves(result):
                    if isinstance(leaf, Tensor) and key_of(leaf) in self.own and leaf.is_floating_point():
                        leaf.detach().fill_(torch.nan)
        if self.broken:
            raise torch.AcceleratorError(
                "CUDA error: operation failed due to a previous error during capture"
            )
        self.ended = True
        self.cuda.recording.remove(self.handle)
        self.cuda.captures += 1
        self.cuda.pools.add(self.handle)

    @torch.no_grad()
    def replay(self) -> None:
        self.cuda.replays += 1
        with self.cuda.away():
            for operation, args, kwargs, result in self.operations:
                self.cuda.meet(operation, args, "replay")
                again = operation(*args, **kwargs)
                for old, new in zip(tree_leaves(result), tree_leaves(again), strict=True):
                    if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():  # no view, not in place
                        old.copy_(new)


class Places(TorchFunctionMode):
    """Tensors say that they are on the GPU; what is made there is made here."""

    def __init__(self, cuda: "FakeCuda") -> None:
        super().__init__()
        self.cuda = cuda

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function in GETTERS:
            return GETTERS[function]
        there = any(is_cuda(leaf) for leaf in (*args[1:], *kwargs.values()))
        moves = function is Tensor.to and CPU in (*args[1:], *kwargs.values())
        if moves or function in TO_HOST:
            self.cuda.wait()
        elif self.cuda.graph is not None and function in FROM_HOST:
            self.cuda.refuse()
        if there:
            args, kwargs = tree_map_only(torch.device, here_for, (args, kwargs))
            kwargs = {name: "cpu" if value == "cuda" else value for name, value in kwargs.items()}
        result = function(*args, **kwargs)
        return result.clone() if moves or function is Tensor.cpu else result


def is_cuda(leaf: object) -> bool:
    return leaf == "cuda" if isinstance(leaf, str) else isinstance(leaf, torch.device) and leaf.type == "cuda"


def here_for(device: torch.device) -> torch.device:
    return CPU if device.type == "cuda" else device


class Operations(TorchDispatchMode):
    """Every operation, as the current stream does it."""

    def __init__(self, cuda: "FakeCuda") -> None:
        super().__init__()
        self.cuda = cuda

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.cuda.operate(operation, args, kwargs or {})

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: PyTorch would import its compiler and wrap every operation."""
        return False


class FakeCuda:
    """fault(phase, name of the operation, sizes of its tensors) gives an error to raise, or None.

    kernels: whether Triton's run, which needs its interpreter (`triton_kernels`).
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        capability: tuple[int, int] = (9, 0),
        gpus: int = 1,
        kernels: bool = False,
    ) -> None:
        self.fault: Callable[[Phase, str, list[tuple[int, ...]]], BaseException | None] = lambda *_: None
        self.graphs: weakref.WeakSet[CUDAGraph] = weakref.WeakSet()
        self.pools: set[object] = set()
        self.recording: list[object] = []  # pools that the allocator believes to be recorded into
        self.captures = self.replays = 0
        self.kernels: Counter[str] = Counter()  # of operations outside of replays, views left out
        self.set_up: set[tuple[str, bool]] = set()  # products whose library has been called, by thread
        self.local = threading.local()
        stream = type("Stream", (Stream,), {"cuda": self})
        self.default = stream(handle=0)
        self.waits: list[tuple[int, int, int]] = []
        self.memory = SimpleNamespace(free=2**34, reserved=0, allocated=0)
        self.chosen: list[int] = []
        graph = type("CUDAGraph", (CUDAGraph,), {"cuda": self})
        properties = SimpleNamespace(total_memory=2**34, multi_processor_count=132, name="Fake H100")
        for name, value in {
            "Stream": stream,
            "CUDAGraph": graph,
            "stream": self.stream,
            "current_stream": lambda device=None: self.current_stream(),
            "set_stream": lambda stream: setattr(self.local, "stream", stream),
            "is_available": lambda: True,
            "is_initialized": lambda: True,
            "device_count": lambda: gpus,
            "current_device": lambda: 0,
            "set_device": self.chosen.append,
            "synchronize": lambda device=None: self.wait(),
            "get_device_capability": lambda device=None: capability,
            "get_device_name": lambda device=None: "Fake H100",
            "get_device_properties": lambda device=None: properties,
            "get_arch_list": lambda: ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"],
            "mem_get_info": lambda device=None: (self.memory.free, 2**34),
            "memory_reserved": lambda device=None: self.memory.reserved,
            "memory_allocated": lambda device=None: self.memory.allocated,
            "max_memory_allocated": lambda device=None: self.memory.allocated,
            "reset_peak_memory_stats": lambda device=None: None,
            "set_per_process_memory_fraction": lambda share, device=None: None,
            "empty_cache": self.empty_cache,
            "graph_pool_handle": object,
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)
        if not kernels:
            monkeypatch.setattr(compile, "problem_of_triton", lambda: "no kernel runs on a stand-in")
        capturing = SimpleNamespace(is_capturing=lambda: self.graph is not None)
        monkeypatch.setattr(torch.accelerator, "current_stream", lambda device=None: capturing)
        for name, value in {
            "_cuda_endAllocateToPool": lambda gpu, pool: self.recording.remove(pool),
            "_cuda_releasePool": lambda gpu, pool: None,
        }.items():
            monkeypatch.setattr(torch._C, name, value, raising=False)

    @contextlib.contextmanager
    def here(self) -> Iterator["FakeCuda"]:
        """In the block, and in this thread, tensors are on the GPU."""
        if getattr(self.local, "inside", False):
            yield self
            return
        self.local.inside = True
        try:
            with Places(self), Operations(self):
                yield self
        finally:
            self.local.inside = False

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """In the block operations are the host's own."""
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            yield

    @property
    def graph(self) -> CUDAGraph | None:
        return getattr(self.local, "graph", None)

    def current_stream(self) -> Stream:
        stream: Stream = getattr(self.local, "stream", self.default)
        return stream

    def stream(self, stream: Stream | None) -> "OnStream":
        return OnStream(self, stream)

    def empty_cache(self) -> None:
        self.memory.reserved = self.memory.allocated

    def wait(self) -> None:
        """The host waits for the current stream, which no recording allows."""
        self.refuse()

    def refuse(self) -> None:
        if self.graph is not None:
            self.graph.broken = WAITS
            raise torch.AcceleratorError(WAITS)

    def meet(self, operation: Any, args: Any, phase: Phase) -> None:
        """Raise what is to go wrong in this operation."""
        sizes = [tuple(leaf.shape) for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]
        error = self.fault(phase, name_of(operation), sizes)
        try:
            if error is not None:
                if self.graph is not None:
                    self.graph.broken = str(error)
                raise error
        finally:
            del error  # it would hold this frame, and this frame it

    def operate(self, operation: Any, args: Any, kwargs: Any) -> Any:
        graph, name = self.graph, name_of(operation)
        if torch.Tag.data_dependent_output in operation.tags or (
            torch.Tag.dynamic_output_shape in operation.tags and not selects_by_number(operation, args)
        ):
            self.wait()
        # Fused attention is tagged for a dropout that it does not do here.
        if torch.Tag.nondeterministic_seeded in operation.tags and "attention" not in name:
            self.refuse()
        self.meet(operation, args, "eager" if graph is None else "capture")
        if name in PRODUCTS:
            # Handles of libraries are a thread's own, and on a GPU autograd has a thread of its own.
            of_backward = torch._C._current_autograd_node() is not None
            if graph is not None and (name, of_backward) not in self.set_up:
                graph.broken = "CUBLAS_STATUS_NOT_INITIALIZED"
                raise RuntimeError(f"CUDA error: {graph.broken} when calling `cublasCreate(handle)`")
            self.set_up.add((name, of_backward))
        written = {key_of(tensor): tensor.untyped_storage() for tensor in written_by(operation, args, kwargs)}
        inputs = {key_of(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        if graph is not None:
            for key, storage in written.items():
                if key not in graph.own and key not in graph.saved:
                    graph.saved[key] = storage, storage.clone()
        result = operation(*args, **kwargs)
        outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        made = {key_of(leaf) for leaf in outputs} - inputs
        if made or written:
            self.kernels[name] += 1
            if graph is not None:
                graph.own |= made
                graph.operations.append((operation, args, kwargs, result))
        elif not outputs:
            self.kernels[name] += 1
        return result


class OnStream:
    """Not left where `__exit__` is not called, as by torch.cuda.graph after a failed recording."""

    def __init__(self, cuda: FakeCuda, stream: Stream | None) -> None:
        self.cuda, self.stream = cuda, stream

    def __enter__(self) -> None:
        self.before = self.cuda.current_stream()
        self.cuda.local.stream = self.stream or self.before

    def __exit__(self, *_: object) -> None:
        self.cuda.local.stream = self.before


def key_of(tensor: Tensor) -> int:
    """A number that is equal for tensors sharing memory."""
    return tensor.untyped_storage()._cdata


def name_of(operation: Any) -> str:
    return str(operation._schema.name).partition("::")[2]


def written_by(operation: Any, args: Any, kwargs: Any) -> Iterator[Tensor]:
    """The tensors that an operation writes to in place."""
    for index, argument in enumerate(operation._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[index] if index < len(args) else kwargs.get(argument.name)
            yield from (leaf for leaf in tree_leaves(given) if isinstance(leaf, Tensor))


def selects_by_number(operation: Any, args: Any) -> bool:
    """x[i] with integers: known shape, unlike x[mask]."""
    if operation is not torch.ops.aten.index.Tensor:
        return False
    return all(index is None or index.dtype == torch.long for index in args[1])
