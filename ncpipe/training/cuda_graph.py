"""Record training steps as CUDA graphs: one launch for a step in place of hundreds.

`ncpipe.training.descent` runs its steps through them, each session on a stream of its own, so that those of
several threads overlap.
"""

import contextlib
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ncpipe.system.console import say
from ncpipe.system.errors import cut
from ncpipe.training.device import is_out_of_memory

WARM_UP = 3  # calls of a step that are not recorded: libraries set themselves up in them
_ONE_AT_A_TIME = threading.Lock()  # a process records one graph at a time
# Streams that no session uses, by GPU. PyTorch has 32 for a GPU and gives them out in turn, in use or not.
_FREE_STREAMS: defaultdict[int, list[torch.cuda.Stream]] = defaultdict(list)


@contextlib.contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """Run the block on a CUDA stream that no other block uses; on other devices just run it.

    The block sees all work that the thread launched before it, and work after it sees the block's.
    """
    if device.type != "cuda":
        yield
        return
    with _ONE_AT_A_TIME:
        free = _FREE_STREAMS[torch.cuda.current_device()]
        stream = free.pop() if free else torch.cuda.Stream()
    here = torch.cuda.current_stream()
    try:
        stream.wait_stream(here)
        with torch.cuda.stream(stream):
            yield
        here.wait_stream(stream)
    finally:
        free.append(stream)


class CudaGraphStep:
    """The steps of a session, recorded as CUDA graphs and then replayed; on other devices just called.

    A step must read and write the same memory every time, take nothing from the host that changes, leave
    nothing but that memory behind, and never wait for the device. A step that cannot be recorded, such as one
    with a loss of study.py that reads a number on the host, is reported once and called from then on.

    It warms up and records on the current stream, which must be the session's own (`own_stream`): PyTorch
    frees cuBLAS's workspace of a stream as soon as one of the graphs recorded on it is deleted. For the same
    reason its graphs, which share their memory, must be deleted together: nothing may keep a session alive
    but the frame that trains it.
    """

    def __init__(self, device: torch.device) -> None:
        self.records = device.type == "cuda"
        self.calls: Counter[int] = Counter()
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self.memory: Any = None  # the pool that the graphs share

    def __call__(self, kind: int, step: Callable[[], None]) -> None:
        """Run `step`, or replay its recording; the same kind must always be the same step."""
        if self.records and kind not in self.graphs and self.calls[kind] >= WARM_UP:
            self.records = self._record(kind, step)
        if kind in self.graphs:
            self.graphs[kind].replay()
        else:
            self.calls[kind] += 1
            step()

    def _record(self, kind: int, step: Callable[[], None]) -> bool:
        """Record a step, which does not execute it; return whether that was possible.

        Too little memory is no reason to go on without a recording: it is raised.
        """
        graph, here = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        self.memory = self.memory or torch.cuda.graph_pool_handle()
        try:
            with (
                _ONE_AT_A_TIME,
                torch.cuda.graph(graph, self.memory, here, capture_error_mode="thread_local"),
            ):
                step()
        except RuntimeError as error:
            _abandon(graph, self.memory)
            if is_out_of_memory(error):
                raise
            reason = " ".join(str(error.__context__ or error).split())
            say(cut(f"train: no CUDA graph of this step, so it is launched operation by operation: {reason}"))
            return False
        self.graphs[kind] = graph
        return True


def _abandon(graph: torch.cuda.CUDAGraph, memory: Any) -> None:
    """Give back the memory of a recording that did not end well, as PyTorch does only for one that did.

    Otherwise its allocator believes for ever that something is being recorded, and no longer frees memory
    that it keeps when it runs out.
    """
    try:
        graph.pool()
    except RuntimeError:
        gpu = torch.cuda.current_device()
        with contextlib.suppress(
            RuntimeError
        ):  # it has stopped already, if the recording ended but is of no use
            torch._C._cuda_endAllocateToPool(gpu, memory)
        torch._C._cuda_releasePool(gpu, memory)
