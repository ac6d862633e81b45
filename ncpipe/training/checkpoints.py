"""Write and read checkpoints: one file for each run, from which training resumes after its process died.

A file begins with its kind, its own name (its run's key), the number of finished epochs and the SHA-256 of
all of it. These are compared before anything is loaded. A file that is damaged, of another run or of another
version of torch is deleted, and its run trains from the beginning. `ncpipe.training.session` fills the state.
"""

import hashlib
import io
import os
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ncpipe.system.artifacts import reach_disk, remove
from ncpipe.system.console import say
from ncpipe.system.errors import cut

KIND = f"ncpipe checkpoint 2, torch {torch.__version__}".encode()

State = dict[str, Any]  # tensors on the CPU, numbers, and lists and mappings of these


class Stopped(Exception):
    """Raised when training ends early on request; checkpoints are written."""


class Checkpoints:
    """The checkpoint files of a batch's runs, written at most every `seconds`.

    Each run has its own file, so it can resume beside any other runs that have finished as many epochs.
    check: raises an error if what the training reads has changed, so that no checkpoint is of another's.
    """

    def __init__(
        self, files: Sequence[Path], seconds: float, check: Callable[[], None] = lambda: None
    ) -> None:
        self.files, self.seconds, self.check = list(files), seconds, check
        self._written = time.monotonic()

    def due(self) -> bool:
        """Return whether `seconds` have passed since the last write."""
        return time.monotonic() - self._written >= self.seconds

    def write(self, states: Sequence[State]) -> None:
        """Replace every file atomically: a kill at any moment leaves each old or new.

        Raises OSError if the disk is full, and the error of `check`. Former checkpoints stay if another
        process, which believes that this one was killed, removes the new ones before they are in place.
        """
        self.check()
        number = secrets.token_hex(8)
        partials = [file.with_name(f".{file.name}.{number}") for file in self.files]
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
        except FileNotFoundError:
            return
        finally:
            for partial in partials:
                partial.unlink(missing_ok=True)
        reach_disk({file.parent for file in self.files})
        self._written = time.monotonic()

    def read(self) -> list[State]:
        """Return one state for each run; [] unless all have one, after the same number of epochs.

        Partial files that killed processes left are deleted, before training, which may need the room.
        """
        names = tuple(f".{file.name}." for file in self.files)
        for folder in {file.parent for file in self.files}:
            for path in folder.glob(".*"):
                if path.name.startswith(names):
                    path.unlink(missing_ok=True)
        states = [state for file in self.files if (state := read_checkpoint(file)) is not None]
        together = len(states) == len(self.files) and len({state["epoch"] for state in states}) == 1
        return states if together else []

    def remove(self) -> None:
        """Delete the files of finished runs."""
        for file in self.files:
            remove(file)


def copy_to(value: Any, device: torch.device) -> Any:
    """Return a copy of a State's value whose tensors are new, on a device."""
    if isinstance(value, Tensor):
        return value.to(device, copy=True)
    if isinstance(value, dict):
        return {name: copy_to(part, device) for name, part in value.items()}
    if isinstance(value, list):
        return [copy_to(part, device) for part in value]
    return value


def read_checkpoint(file: Path) -> State | None:
    """Return a run's state, or None if there is none.

    A file that is not a valid checkpoint of the run is deleted, with a line on the terminal. Raises OSError
    or MemoryError if it cannot be read now.
    """
    if not os.path.lexists(file):
        return None
    try:
        _, body = _read(file)
        state: State = torch.load(io.BytesIO(body), weights_only=True)
    except Exception as error:  # whatever it is, the run can train without it
        if isinstance(error, OSError | MemoryError) and file.is_file():  # it may be good: say what is wrong
            raise
        remove(file)
        reason = cut(str(error).partition("\n")[0])
        say(f"{file}: {reason}; deleted it, its run trains from the beginning")
        return None
    return state


def epochs_done(file: Path) -> int:
    """Return the number of epochs after which a run's checkpoint was written; 0 without a valid one."""
    try:
        return _read(file)[0]
    except (OSError, ValueError):
        return 0


def _read(file: Path) -> tuple[int, bytes]:
    """Return the number of finished epochs and the saved state; raise ValueError if the file is not valid."""
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
