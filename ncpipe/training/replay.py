"""On a CUDA device, one launch for a whole training step in place of hundreds."""

from collections.abc import Callable

import torch


class Replay:
    """A step that is recorded as a CUDA graph and then replayed; on other devices it is just called.

    The step must read and write the same memory every time and never wait for the device. Its first calls
    run as they are, on a stream of their own: libraries set themselves up in them.
    """

    WARM_UP = 3

    def __init__(self, step: Callable[[], None], device: torch.device) -> None:
        self.step, self.device = step, device
        self.calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        if self.device.type != "cuda":
            self.step()
        elif self.graph is not None:
            self.graph.replay()
        elif self.calls < self.WARM_UP:
            self.calls += 1
            here, aside = torch.cuda.current_stream(self.device), torch.cuda.Stream(self.device)
            aside.wait_stream(here)
            with torch.cuda.stream(aside):
                self.step()
            here.wait_stream(aside)
        else:
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
                self.step()
            self.graph.replay()
