"""Which tiles are fastest on this card? Times half blocks by PARTS, ROWS and WARPS of models/triton_block.py.

    python benchmarks/gpu_tiles.py

Prints a Markdown table: microseconds both ways of each case, or why a choice does not run. Each choice is
compiled and checked in a process of its own, all at once, and timed alone; two minutes on 16 cores. No other
program should use the GPU meanwhile.
"""

import fcntl
import functools
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import triton.language as tl
from gpu_check import (
    KERNEL_ERROR,
    QUICK,
    Size,
    captured_seconds,
    half_block_error,
    half_block_gradients,
    half_block_inputs,
)

from ncpipe.config.run import Compute
from ncpipe.models import triton_block
from ncpipe.training.device import prepare_device

CHOICES = [  # programs of a run, rows of a tile, warps of a program
    (parts, rows, warps) for rows, warps in ((32, 8), (32, 4), (64, 8), (16, 4)) for parts in (26, 52, 132)
]
CASES = {  # part, tokens, norm, runs, rows of a run
    "mlp, 5 x 4000": ("mlp", 1, "post", 5, 4000),
    "mlp, 3 x 32,000": ("mlp", 1, "pre", 3, 32000),
    "4 tokens, 5 x 4000": ("attention", 4, "post", 5, 4000),
    "16 tokens, 3 x 16,000": ("attention", 16, "post", 3, 16000),
    "64 tokens, 3 x 32,000": ("attention", 64, "pre", 3, 32000),
}
WIDTH = 64


def measured(choice: Sequence[int], lock: Path, size: Size = QUICK) -> dict[str, str]:
    """Return microseconds of a half block both ways by case, or what is wrong. lock: to time alone."""
    parts, rows, warps = choice
    triton_block.PARTS, triton_block.ROWS, triton_block.WARPS = parts, tl.constexpr(rows), warps
    cuda = torch.device("cuda")
    prepare_device(Compute("cuda", 1, "float32"))
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        found, ready = _checked(cuda)
        fcntl.flock(file, fcntl.LOCK_EX)  # when no other process compiles or checks
        for name, call in ready.items():
            found[name] = f"{1e6 * captured_seconds(call, cuda, size):.0f}"
    return {name: found[name] for name in CASES}


def _checked(cuda: torch.device) -> tuple[dict[str, str], dict[str, Callable[[], object]]]:
    """Return what is wrong by case, and the calls of the other cases."""
    found: dict[str, str] = {}
    ready: dict[str, Callable[[], object]] = {}
    for name, (part, tokens, norm, runs, rows_of_run) in CASES.items():
        given = half_block_inputs(part, tokens, norm, runs, rows_of_run, WIDTH, cuda)
        try:
            off, same = half_block_error(part, tokens, given)
        except Exception as error:  # more shared memory than the card has, for example
            found[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:60]}"
            continue
        if not off <= KERNEL_ERROR["float32"] or not same:
            found[name] = f"wrong: error {off:.1e}, {'the same' if same else 'other bytes'} twice"
            continue
        ready[name] = functools.partial(half_block_gradients, part, tokens, given)
    return found, ready


def table(rows: dict[tuple[int, ...], dict[str, str]]) -> str:
    lines = [f"| PARTS, ROWS, WARPS | {' | '.join(CASES)} |", "|---" * (len(CASES) + 1) + "|"]
    lines += [
        f"| {', '.join(map(str, choice))} | {' | '.join(row.values())} |" for choice, row in rows.items()
    ]
    return "\n".join(lines)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        lock = str(Path(folder) / "lock")

        def start(choice: Sequence[int]) -> "subprocess.Popen[str]":
            command = [sys.executable, __file__, lock, *map(str, choice)]
            return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

        processes: dict[tuple[int, ...], Any] = {choice: start(choice) for choice in CHOICES}
        rows = {}
        for choice, process in processes.items():
            text, _ = process.communicate()
            rows[choice] = json.loads(text) if process.returncode == 0 else dict.fromkeys(CASES, "failed")
    print(table(rows))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measured([int(text) for text in sys.argv[2:]], Path(sys.argv[1]))))
    else:
        main()
