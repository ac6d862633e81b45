"""Kill fills on two workers at random moments: python killed_fills.py FOLDER KILLS

Every fill is a process of its own, forked from this one, which has loaded PyTorch. Some have another clone's
fill of the same store beside them, which has to end well. In the end the store has the bytes of a fill that
was left alone, nothing was lost on the way, and no claim is left. Prints how many checkpoints were resumed.
"""

import os
import random
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path

import torch
from conftest import contents, experiment_tree, prepare_sweep

from ncpipe.commands.fill import fill_store
from ncpipe.runs import fill  # noqa: F401
from ncpipe.runs.run_claims import FOLDER
from ncpipe.system.signals import came_of_interrupt, install_signal_handlers, note_ctrl_c

RUNS = 8
SAID = "said.txt"


def make(folder: Path, cache: Path) -> None:
    """A clone whose store is below `cache`: four experiments of two seeds, each half a second or so."""
    (folder / ".dvc").mkdir(parents=True)
    (folder / ".dvc/config").write_text(f"[cache]\n    dir = {cache}\n")
    os.chdir(folder)
    trees = {f"e{index}": experiment_tree(epochs=600 + index, log_every=100) for index in range(4)}
    prepare_sweep([2], [0, 1], **trees)


def start(place: Path) -> int:
    """Start a fill in a folder; return its process."""
    if process := os.fork():
        return process
    code = 1
    try:
        log = os.open(place / SAID, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 2)
        os.setsid()
        note_ctrl_c()
        install_signal_handlers()
        os.chdir(place)
        fill_store(None, 2, 0.02)
        code = 0
    except BaseException as error:
        if came_of_interrupt(error):
            code = 130
        else:
            traceback.print_exc()
    finally:
        os._exit(code)


def end_of(process: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def results(store: Path) -> dict[str, str]:
    """The bytes of all finished runs."""
    found = contents(store).items() if store.is_dir() else ()
    return {name: digest for name, digest in found if len(name.partition("/")[0]) == 64}


def await_checkpoint(store: Path, process: int) -> None:
    """Return when there is a checkpoint, or the process has ended."""
    while not list(store.glob("*.checkpoint")):
        if os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return
        time.sleep(0.01)


def main(base: Path, kills: int) -> None:
    whole, place, other = base / "whole", base / "place", base / "other"
    make(whole, whole / "cache")
    assert end_of(start(whole)) == 0
    expected = results(whole / "cache/ncpipe")
    make(other, place / "cache")
    make(place, place / "cache")
    store, chance = place / "cache/ncpipe", random.Random(0)
    before: dict[str, str] = {}
    for index in range(kills):
        victim = start(place)
        beside = start(other) if index % 4 == 3 else None
        time.sleep(chance.uniform(0.05, 3.0))
        if index % 2:  # else it is too early for a checkpoint on a slow machine
            await_checkpoint(store, victim)
        os.kill(victim, (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)[index % 3])
        assert end_of(victim) in (0, 130, -signal.SIGKILL), (place / SAID).read_text()
        assert beside is None or end_of(beside) == 0, (other / SAID).read_text()
        now = results(store)
        assert before.items() <= now.items() <= expected.items()
        before = now
        if now == expected:  # from the beginning
            shutil.rmtree(store)
            before = {}
    assert end_of(start(place)) == 0
    assert results(store) == expected
    assert not list((store / FOLDER).iterdir())
    assert not list(store.glob("*.checkpoint"))
    print(sum((folder / SAID).read_text().count(", from the checkpoint after ") for folder in (place, other)))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), int(sys.argv[2]))
