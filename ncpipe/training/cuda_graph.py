"""Record training steps as CUDA graphs: one launch for a step in place of hundreds.

`ncpipe.training.session` runs its first-order steps through it.
"""

import threading
from collections import Counter
from collections.abc import Callable

import torch

WARM_UP = 3  # calls of a step that are not recorded: libraries set themselves up in them
_ONE_AT_A_TIME = threading.Lock()  # a process records one graph at a time


class CudaGraphStep:
    """The steps of a session, recorded as CUDA graphs and then replayed; on other devices just called.

    A step must read and write the same memory every time, take nothing from the host that changes, leave
    nothing but that memory behind, and never wait for the device.

    A session warms up and records on a stream of its own: PyTorch frees cuBLAS's workspace of a stream as
    soon as one of the graphs recorded on it is deleted. For the same reason its graphs, which share their
    memory, must be deleted together: nothing may keep a session alive but the frame that trains it.
    """

    def __init__(self, device: torch.device) -> None:
        self.aside = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.calls: Counter[int] = Counter()
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def __call__(self, kind: int, step: Callable[[], None]) -> None:
        """Run `step`, or replay its recording; the same kind must always be the same step."""
        if self.aside is None:
            step()
        elif kind in self.graphs:
            self.graphs[kind].replay()
        elif self.calls[kind] < WARM_UP:
            self.calls[kind] += 1
            here = torch.cuda.current_stream(self.aside.device)
            self.aside.wait_stream(here)
            with torch.cuda.stream(self.aside):
                step()
            here.wait_stream(self.aside)
        else:
            self.graphs[kind] = self._record(step, self.aside)
            self.graphs[kind].replay()

    def _record(self, step: Callable[[], None], aside: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        memory = next((other.pool() for other in self.graphs.values()), None)
        with _ONE_AT_A_TIME, torch.cuda.graph(graph, memory, aside, capture_error_mode="thread_local"):
            step()
        return graph
