"""Machine code of the loop that runs, and numba that is installed but broken."""

import importlib
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ncpipe.models.layers import OneLayerMLP
from ncpipe.models.residual_block import FEWEST_NUMBERS, mlp_is_compiled
from ncpipe.system.compile import can_compile


@pytest.fixture
def broken_numba(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "numba").mkdir()
    (tmp_path / "numba/__init__.py").write_text("raise ImportError('Numba needs NumPy 2.3 or less.\\nGot 9')")
    for name in [name for name in sys.modules if name.split(".")[0] == "numba"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    can_compile.cache_clear()
    yield
    can_compile.cache_clear()


@pytest.mark.usefixtures("broken_numba")
def test_pytorch_takes_over_with_one_line_once() -> None:
    """Red: an ImportError in training."""
    with pytest.warns(UserWarning, match="numba cannot be imported") as caught:
        assert [mlp_is_compiled(*large_mlp()) for _ in range(2)] == [False, False]
    [line] = [str(warning.message) for warning in caught]
    assert line == (
        "numba cannot be imported (ImportError: Numba needs NumPy 2.3 or less. Got 9); PyTorch's operations "
        "are used, which take longer"
    )


def large_mlp() -> tuple[OneLayerMLP, torch.Tensor]:
    """Return stacked blocks of two runs and their input, which the loops would take."""
    mlp = OneLayerMLP(64)
    mlp.lin.weight = torch.nn.Parameter(torch.zeros(2, 64, 64))
    return mlp, torch.zeros(2, FEWEST_NUMBERS // 64, 64)


LOOP = """
from pathlib import Path
from ncpipe.system.compile import compiled
{above}

@compiled(["float64(float64)"], {flags})
def loop(x):
    return {value}
"""
HALF = """\
from ncpipe.system.compile import compiled

@compiled(["float64(float64)"])
def half(x):
    return x * {}
"""
# Of each edit: the lines above the loop, its flags and value, a file beside it; before, after, and what is
# then right for 3.0, or for NaN where the flags tell the compiler that there are none.
EDITS = {
    "a constant": (("", "()", "x * 2.0", ""), ("", "()", "x * 5.0", ""), 15.0),
    "a constant above": (("A = 2.0", "()", "x * A", ""), ("A = 5.0", "()", "x * A", ""), 15.0),
    "a constant of another file": (
        ("from beside import A", "()", "x * A", "A = 2.0\n"),
        ("from beside import A", "()", "x * A", "A = 5.0\n"),
        15.0,
    ),
    "a loop of another file": (
        ("from beside import half", "()", "half(x)", HALF.format(0.5)),
        ("from beside import half", "()", "half(x)", HALF.format(0.25)),
        0.75,
    ),
    "options of another file": (
        ("from beside import FLAGS", "FLAGS", "1.0 if x != x else 2.0", "FLAGS = {'nnan'}\n"),
        ("from beside import FLAGS", "FLAGS", "1.0 if x != x else 2.0", "FLAGS = ()\n"),
        1.0,
    ),
}


@pytest.mark.parametrize(
    ("edit", "in_flight"),
    [*((edit, False) for edit in EDITS), ("a constant", True), ("a loop of another file", True)],
)
def test_machine_code_is_of_the_loop_that_runs(
    edit: str, in_flight: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an edit, made before the next import or while the loop is compiled.

    Red: a cache of machine code that is named by the loop's file and bytecode alone."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before, after, expected = EDITS[edit]

    def write(version: tuple[str, str, str, str], first: str = "") -> None:
        above, flags, value, beside = version
        (tmp_path / "loops.py").write_text(
            LOOP.format(above=(above or "pass") + first, flags=flags, value=value)
        )
        (tmp_path / "beside.py").write_text(beside)

    def result() -> float:
        for name in ("loops", "beside"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        importlib.invalidate_caches()
        output: float = importlib.import_module("loops").loop(math.nan if "options" in edit else 3.0)
        return output

    write(after)
    texts = {name: (tmp_path / name).read_text() for name in ("loops.py", "beside.py")}
    edits = "".join(f"; Path({str(tmp_path / name)!r}).write_text({text!r})" for name, text in texts.items())
    write(before, edits if in_flight else "")
    assert result() != expected
    write(after)
    assert result() == expected
    assert result() == expected  # from the cache


def test_a_loop_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red: a key that differs in each process, as that of a set or an address does."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "beside.py").write_text(HALF.format(0.5))
    text = LOOP.format(
        above="from beside import half; A = (1, 2.0)", flags="{'contract', 'nsz'}", value="half(x) + A[1]"
    )
    (tmp_path / "loops.py").write_text(f"{text}\nprint(sum(loop.stats.cache_hits.values()), loop(3.0))\n")
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    processes = [
        subprocess.run(
            [sys.executable, "-m", "loops"], env=environment, capture_output=True, text=True, check=True
        )
        for _ in range(2)
    ]
    assert [process.stdout.split() for process in processes] == [["0", "3.5"], ["1", "3.5"]]
