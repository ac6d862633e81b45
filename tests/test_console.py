"""What commands say, from several threads at a time, and the bar below it."""

import io
import math
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import Terminal

from ncpipe.system import console
from ncpipe.system.console import Progress, say


def test_lines_of_several_threads_stay_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red: a line and its end written one after the other, with another thread's line between them."""
    path, together = tmp_path / "said", threading.Barrier(2)

    def speak(number: int) -> None:
        for _ in range(5000):
            together.wait()
            say(f"thread {number}")

    raw = path.open("wb", buffering=0)  # as standard error is under PYTHONUNBUFFERED
    with io.TextIOWrapper(raw, write_through=True) as file, ThreadPoolExecutor(2) as pool:
        monkeypatch.setattr(sys, "stderr", file)
        list(pool.map(speak, range(2)))
    assert sorted(path.read_text().splitlines()) == ["thread 0"] * 5000 + ["thread 1"] * 5000


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Standard error as a terminal on which every change of a bar is shown. Pytest would undo a fixture."""
    made = Terminal()
    monkeypatch.setattr(sys, "stderr", made)
    monkeypatch.setattr(console, "REFRESH", 0.0)
    monkeypatch.setenv("COLUMNS", "120")
    return made


def test_a_line_never_shares_its_row_with_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red: a line written behind the bar, or a bar that stays above it."""
    terminal = on_terminal(monkeypatch)
    progress = Progress("some", 3, 100.0)
    progress.add(10.0, "one L=2 seed=0", "3 of 30", lambda: 0.5)
    say("a line")
    progress.add(10.0, "one L=2 seed=0", "6 of 30", lambda: 0.25)
    say("another")
    *lines, bar = terminal.screen
    assert lines == ["a line", "another"]
    assert bar.startswith("some:  20%|")
    progress.close()
    assert terminal.screen == ["a line", "another", ""]


def test_the_bar_says_which_epoch_loss_and_run_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    progress = Progress("some", 7, 100.0, finished=2)
    assert "2 of 7 runs, " in terminal.screen[-1]
    progress.add(10.0, "one L=2 seed=0", "3 of 30", lambda: 0.12345)
    progress.add(10.0, "one L=3 seed=0", "4 of 30", lambda: 0.5)
    assert "2 of 7 runs; one L=2 seed=0 epoch 3 of 30, loss 0.123, " in terminal.screen[-1]
    progress.finish("one L=2 seed=0", 3)
    assert "5 of 7 runs, " in terminal.screen[-1]
    assert "; one L=3 seed=0 epoch 4 of 30, loss 0.5, " in terminal.screen[-1]
    progress.close()


def test_after_a_resume_the_bar_starts_at_the_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red: a bar from 0; a time to go that takes the checkpoint's epochs for work of this session."""
    terminal = on_terminal(monkeypatch)
    progress = Progress("some", 1, 100.0, done=60.0)
    assert terminal.screen[-1].startswith("some:  60%|")
    monkeypatch.setattr(progress, "seconds", lambda: 5.0)
    progress.add(20.0, "one L=2 seed=0", "24 of 30", lambda: math.nan)
    assert terminal.screen[-1].startswith("some:  80%|")
    assert progress.left() == pytest.approx(5.0)
    progress.close()


def test_an_estimate_that_has_passed_is_not_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """While the last run still trains. Red: about 0 s to go, for minutes."""
    for work, said in ((100.0, "some: 3 of 4 runs, 18 a minute"), (50.0, "a minute, about 10 s to go")):
        progress = Progress("some", 4, 100.0)
        monkeypatch.setattr(progress, "seconds", lambda: 10.0)
        progress.add(work, "one", "3 of 3", lambda: 0.0)
        progress.finish("one", 3)
        progress.close()
        assert capsys.readouterr().err.endswith(f"{said}\n")


def test_off_a_terminal_no_loss_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    """It would make a GPU wait."""
    progress = Progress("some", 1, 100.0)
    progress.add(50.0, "one L=2 seed=0", "15 of 30", lambda: pytest.fail("was asked for"))
    progress.close()
    assert capsys.readouterr().err == ""
