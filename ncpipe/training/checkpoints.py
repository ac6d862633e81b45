"""What a run needs to go on after its process died: one file per run, replaced whole."""

import io
import os
import pickle
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

State = dict[str, Any]  # tensors on the CPU, numbers, and lists and mappings of these


class Checkpoints:
    """The files of a batch's runs, written at most every `seconds`.

    Each run has a file of its own, so that it can go on beside others than those it started with: any that
    have done as many epochs.
    """

    def __init__(self, files: Sequence[Path], seconds: float) -> None:
        self.files, self.seconds = list(files), seconds
        self._written = time.monotonic()

    def due(self) -> bool:
        """Whether it is time to write."""
        return time.monotonic() - self._written >= self.seconds

    def write(self, states: Sequence[State]) -> None:
        """Replace every file; a kill at any moment leaves each file old or new. OSError: disk full."""
        for file, state in zip(self.files, states, strict=True):
            buffer = io.BytesIO()
            torch.save(state, buffer)
            partial = file.with_name(f".{file.name}.partial")
            file.parent.mkdir(parents=True, exist_ok=True)
            partial.write_bytes(buffer.getbuffer())
            os.replace(partial, file)
        self._written = time.monotonic()

    def read(self) -> list[State]:
        """One state per run, all after as many epochs; [] if there is none of the kind."""
        states = [read_checkpoint(file) for file in self.files]
        found = [state for state in states if state is not None]
        together = len(found) == len(states) and len({state["epoch"] for state in found}) == 1
        return found if together else []

    def remove(self) -> None:
        """Delete the files: their runs are finished."""
        for file in self.files:
            file.unlink(missing_ok=True)

    def of(self, index: int) -> "Checkpoints":
        """Those of one run."""
        return Checkpoints([self.files[index]], self.seconds)


def copied(value: Any, device: torch.device) -> Any:
    """A value of a State with tensors of its own, on a device."""
    if isinstance(value, Tensor):
        return value.to(device, copy=True)
    if isinstance(value, dict):
        return {name: copied(part, device) for name, part in value.items()}
    if isinstance(value, list):
        return [copied(part, device) for part in value]
    return value


def read_checkpoint(file: Path) -> State | None:
    """A run's state, or None if there is none. A damaged file is deleted: its run starts anew."""
    try:
        state: State = torch.load(file, weights_only=True)
        return state
    except FileNotFoundError:
        return None
    except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError):
        file.unlink(missing_ok=True)
        return None


def epochs_done(file: Path) -> int:
    """Epochs after which a run's checkpoint was written; 0 if there is none."""
    state = read_checkpoint(file)
    return 0 if state is None else int(state["epoch"])
