"""A disk that fails, or a process that is killed, at the n-th change to a folder, counted over all processes.

What libraries write by themselves (SQLite, safetensors) is not counted; what they are handed is.
"""

import errno
import os
import signal
import sys
import threading
from typing import Any

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
CHANGES = ("os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "os.truncate")
KINDS = ("kill", "tear", "ENOSPC", "EIO")  # tear: a file has been emptied, and is not written any more


def arm(root: str, log: str, at: int, kind: str) -> None:
    """Write every opening to write, rename, link, removal and fsync below `root` to a log, a line each; let
    the at-th fail (0: none does)."""
    number = os.open(f"{log}.count", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    lines = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    within, one = threading.local(), threading.Lock()

    def change(event: str, path: Any) -> None:
        name = os.path.abspath(os.fsdecode(path))
        if not name.startswith(root) or "__pycache__" in name or getattr(within, "now", False):
            return
        within.now = True
        try:
            with one:  # of the threads: what is appended says how many there were before, of all processes
                os.write(number, b".")
                count = os.lseek(number, 0, os.SEEK_CUR)
            os.write(lines, f"{count} {event} {os.path.relpath(name, root)}\n".encode())
            if count == at:
                if kind == "tear" and event == "open" and not os.path.isdir(name):  # O_TMPFILE opens a folder
                    os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC))
                if kind in ("kill", "tear"):
                    os.kill(os.getpid(), signal.SIGKILL)
                code = getattr(errno, kind)
                raise OSError(code, os.strerror(code), name)
        finally:
            within.now = False

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if isinstance(path, (str, bytes)) and isinstance(flags, int) and flags & WRITES:
                change(event, path)
        elif event in CHANGES and isinstance(arguments[0], (str, bytes, os.PathLike)):
            change(event, arguments[1] if event in ("os.rename", "os.link") else arguments[0])

    sync = os.fsync

    def synced(handle: int) -> None:
        change("fsync", os.readlink(f"/proc/self/fd/{handle}"))
        sync(handle)

    os.fsync = synced
    sys.addaudithook(hook)
