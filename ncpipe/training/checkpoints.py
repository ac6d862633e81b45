"""What a run needs to go on after its process died: one file per run, replaced whole.

A file begins with what it is, its own name, which is its run's key, the epochs that are done and the SHA-256
of all of it. They are compared before anything is loaded: a file with a flipped bit, cut short, of another
run or another version of torch is dropped, and its run trains from the beginning.
"""

import hashlib
import io
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ncpipe.system.artifacts import reach_disk, remove
from ncpipe.system.console import say
from ncpipe.system.errors import cut

KIND = f"ncpipe checkpoint 2, torch {torch.__version__}".encode()

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
        partials = [partial_of(file) for file in self.files]
        try:
            for file, partial, state in zip(self.files, partials, states, strict=True):
                buffer = io.BytesIO()
                torch.save(state, buffer)
                body = buffer.getbuffer()
                head = _head(file, state["epoch"])
                file.parent.mkdir(parents=True, exist_ok=True)
                with partial.open("wb") as out:
                    out.write(b"".join([head, _digest(head, body), b"\n"]))
                    out.write(body)
            reach_disk(partials)
            for file, partial in zip(self.files, partials, strict=True):
                os.replace(partial, file)
        except BaseException:
            for partial in partials:
                partial.unlink(missing_ok=True)
            raise
        reach_disk({file.parent for file in self.files})
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
            remove(file)
            partial_of(file).unlink(missing_ok=True)

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


def partial_of(file: Path) -> Path:
    """Where a checkpoint is written before it is renamed."""
    return file.with_name(f".{file.name}.partial")


def read_checkpoint(file: Path) -> State | None:
    """A run's state, or None if there is none. What is not its whole checkpoint is dropped, and said.

    So is what a kill has left of the writing of one.
    """
    partial_of(file).unlink(missing_ok=True)
    if not os.path.lexists(file):
        return None
    try:
        _, body = _read(file)
        state: State = torch.load(io.BytesIO(body), weights_only=True)
    except Exception as error:  # whatever it is, the run can train without it
        remove(file)
        reason = cut(str(error).partition("\n")[0])
        say(f"{file}: {reason}; it is dropped, its run trains from the beginning")
        return None
    return state


def epochs_done(file: Path) -> int:
    """Epochs after which a run's checkpoint was written; 0 if there is none to go on from."""
    try:
        return _read(file)[0]
    except (OSError, ValueError):
        return 0


def _read(file: Path) -> tuple[int, bytes]:
    """Epochs that are done, and the state as it was saved; ValueError says why it is not that."""
    content = file.read_bytes()
    kind, name, epoch, digest, body = (content.split(b"\n", 4) + [b""] * 4)[:5]
    head = content[: len(kind) + len(name) + len(epoch) + 3]
    if digest != _digest(head, body):
        raise ValueError("damaged, or of another version")
    if head != _head(file, int(epoch)):
        raise ValueError("another run's checkpoint, or of another version of torch")
    return int(epoch), body


def _head(file: Path, epoch: int) -> bytes:
    return b"\n".join([KIND, file.name.encode(), str(epoch).encode(), b""])


def _digest(head: bytes, body: bytes | memoryview) -> bytes:
    digest = hashlib.sha256(head)
    digest.update(body)
    return digest.hexdigest().encode()
