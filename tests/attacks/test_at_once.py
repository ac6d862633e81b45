"""Stopped by whoever may stop it, and started twice: everything ends, and the next call ends with the bytes
of one that was left alone. Long forms all (-m attack): each is minutes of DVC.

Each test's docstring ends with the fault that would turn it red.
"""

import os
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest
from pipeline import ROOT, TIMEOUT, Clone, trained_in
from small_sweep import OUTPUTS, prepared

from ncpipe.runs.run_claims import FOLDER

pytestmark = [
    pytest.mark.attack,
    pytest.mark.skipif(not (ROOT / ".git").exists(), reason="clones the repository, and this is no checkout"),
    pytest.mark.skipif(os.name == "nt", reason="stops process groups"),
]
BOTH = ["train@alpha-2-0", "train@alpha-2-1"]
LONG = 6000  # epochs: seconds in which to be stopped
REPRO, SWEEP = ["dvc", "repro"], ["ncpipe", "sweep"]


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A clone whose data are prepared, its runs seconds long. Not to be changed."""
    clone = prepared(tmp_path_factory.mktemp("fresh"))
    clone.edit_params("experiments.alpha.epochs", LONG)
    clone.edit_params("experiments.alpha.log_every", LONG // 20)
    clone.commit()
    return clone


@pytest.fixture(scope="module")
def whole(fresh: Clone, tmp_path_factory: pytest.TempPathFactory) -> Clone:
    clone = fresh.copy(tmp_path_factory.mktemp("whole") / "clone")
    clone.repro()
    return clone


def wait_for_training(clone: Clone) -> None:
    """Until some epochs are done: before, there is nothing to keep."""
    while not any((clone.store / FOLDER).glob("*.json")):
        time.sleep(0.05)
    time.sleep(1)


@pytest.mark.parametrize("group", [False, True], ids=["the process", "its group"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_repro_leaves_nobody_behind(
    number: signal.Signals, group: bool, fresh: Clone, whole: Clone, tmp_path: Path
) -> None:
    """In training. Ctrl-C to DVC alone is no end: DVC leaves it to its stage, which does not hear it.

    Red: a stage that outlives its DVC; what it had trained lost; a lock that has to be removed by hand."""
    clone = fresh.copy(tmp_path / "clone")
    process = clone.start(*REPRO)
    assert process.stdout is not None
    watchdog = threading.Timer(TIMEOUT, os.killpg, (process.pid, signal.SIGKILL))
    watchdog.start()
    said = []
    for line in process.stdout:  # to its end: nobody writes any more
        said.append(line)
        if trained_in(line):
            wait_for_training(clone)
            os.killpg(process.pid, number) if group else process.send_signal(number)
    code = process.wait()
    watchdog.cancel()
    process.stdout.close()
    if (number, group) == (signal.SIGINT, False):
        assert code == 0
    else:
        assert code != 0
        assert "ncpipe: interrupted" in "".join(said)
        assert len(list(clone.store.glob("*.checkpoint"))) == 2
    clone.repro()
    assert clone.digests(*OUTPUTS) == whole.digests(*OUTPUTS)


@pytest.mark.parametrize("checkouts", [1, 2])
@pytest.mark.parametrize("pair", [(REPRO, REPRO), (REPRO, SWEEP), (SWEEP, SWEEP)], ids=str)
def test_two_at_once(
    pair: tuple[list[str], list[str]], checkouts: int, fresh: Clone, whole: Clone, tmp_path: Path
) -> None:
    """In one checkout DVC may turn one of them away, in a line of its own; in two both go well.

    Red: a run that both train; a result of one that the other takes away for good."""
    clones = [fresh.copy(tmp_path / str(index) / "clone") for index in range(checkouts)] * 2
    processes = [clone.start(*command) for clone, command in zip(clones, pair, strict=False)]
    outputs: dict[int, str] = {}

    def read(index: int) -> None:
        outputs[index] = processes[index].communicate(timeout=TIMEOUT)[0]

    readers = [threading.Thread(target=read, args=(index,)) for index in range(2)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    codes = [process.returncode for process in processes]
    if checkouts == 2:
        assert codes == [0, 0], outputs
        assert [trained_in(outputs[index]) for index in range(2)] == [BOTH, BOTH]
    else:
        assert trained_in(outputs[0] + outputs[1]) == BOTH, outputs
        for code, text in zip(codes, outputs.values(), strict=True):
            assert not code or "lock" in text or "busy" in text or "blocked" in text, text
    for clone in clones[:checkouts]:
        again = clone.run(*SWEEP)
        assert again.trained == []
        assert clone.digests(*OUTPUTS) == whole.digests(*OUTPUTS)
        shutil.rmtree(clone.folder)
