"""What commands say, from several threads at a time."""

import io
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ncpipe.commands.console import say


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
