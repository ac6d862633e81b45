"""Ends in good order: SIGTERM is what Ctrl-C is, and a stage does not outlive the DVC that runs it."""

import contextlib
import os
import signal
import threading
import time
from typing import Any

LOOK = 0.5  # seconds between two looks at the parents
ONE_STOP = 2.0  # seconds within which a second signal is the same request
SHELLS = ("sh", "bash", "dash", "zsh", "fish", "ksh")  # DVC starts a stage through one


def install_signal_handlers() -> None:
    """Let SIGTERM, and the end of the DVC that runs this stage, end this process as Ctrl-C does.

    Without it a stage goes on when its `dvc repro` is terminated, and the next one trains the same runs.
    """
    signal.signal(signal.SIGTERM, _note)
    if "DVC_STAGE" in os.environ:  # what a user starts in the background may outlive the shell
        threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()


def note_ctrl_c() -> None:
    """Note each Ctrl-C from now on, for `ctrl_c_was_lost`, besides raising KeyboardInterrupt.

    Python drops an exception that is raised in a destructor, in a callback of C code or while the interpreter
    ends. While a stage runs DVC ignores Ctrl-C and looks at the exit code alone, so the pipeline would go on.
    """
    _noted.clear()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where a shell has it ignored
        signal.signal(signal.SIGINT, _note)


def ctrl_c_was_lost() -> bool:
    """Return whether there was a Ctrl-C or SIGTERM so far; from now on one ends the process at once."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is _note:
            signal.signal(number, signal.SIG_DFL)
    return bool(_noted)


_noted: list[float] = []  # when a stop was asked for


def _note(number: int, frame: Any) -> None:
    """Raise KeyboardInterrupt, once for a request to stop that arrives twice.

    `uv run` passes on what its whole process group has received, and `_watch` sees DVC end of the same
    signal. A second exception would end what the first began: writing the last checkpoint.
    """
    now = time.monotonic()
    if _noted and now - _noted[-1] < ONE_STOP:
        return
    _noted.append(now)
    raise KeyboardInterrupt


def came_of_interrupt(error: BaseException) -> bool:
    """Return whether an error began as Ctrl-C.

    One that comes while Python waits for a thread, just as it takes the lock back, ends as a RuntimeError of
    that lock.
    """
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, KeyboardInterrupt):
            return True
        seen = seen.__context__
    return False


def _watch(parent: int) -> None:
    """End this process when its parent, or a shell's own one behind it, has ended."""
    import psutil

    starters = []
    with contextlib.suppress(psutil.Error):
        starters.append(psutil.Process(parent))
        if starters[0].name() in SHELLS and (above := starters[0].parent()) is not None:
            starters.append(above)
    while os.getppid() == parent:
        if not all(_lives(starter) for starter in starters):
            break
        time.sleep(LOOK)
    # To the main thread, which may wait for others.
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


def _lives(process: Any) -> bool:
    import psutil

    try:
        return bool(process.is_running()) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
