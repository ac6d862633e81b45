"""Kernels of half blocks for a GPU: where they are taken, and `triton_kernels` in Triton's interpreter."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from fake_cuda import FakeCuda
from test_imports import imports_of, modules

from ncpipe.models import residual_block
from ncpipe.models.layers import Affine, OneLayerMLP, OneMatrixAttention
from ncpipe.models.residual_block import attention_is_compiled, mlp_is_compiled
from ncpipe.system import compile

TESTS = Path(__file__).resolve().parent


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("which", ["not long", pytest.param("long", marks=pytest.mark.long)])
def test_kernels_in_the_interpreter(which: str) -> None:
    """The tests of triton_kernels.py pass, in a process of their own."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        which,
        str(TESTS / "triton_kernels.py"),
    ]
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=TESTS.parent, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout


def blocks(width: int, dtype: torch.dtype) -> tuple[OneLayerMLP, OneMatrixAttention, torch.Tensor]:
    """Half blocks of two stacked runs, and their input."""
    mlp, attention = OneLayerMLP(width), OneMatrixAttention(width)
    for affine in (mlp.lin, attention.qk, attention.vo):
        assert isinstance(affine, Affine)
        affine.weight = torch.nn.Parameter(torch.zeros(2, width, width, dtype=dtype))
    return mlp, attention, torch.zeros(2, 12, width, dtype=dtype)


@pytest.mark.parametrize(
    ("width", "dtype", "problem", "capability", "hip", "reason"),
    [
        (64, torch.float32, "", (8, 0), None, ""),
        (16, torch.float32, "", (12, 0), None, ""),
        (64, torch.float64, "", (9, 0), None, "they have no float64"),
        (48, torch.float32, "", (9, 0), None, "they have widths 16, 32, 64, and model.width is 48"),
        (64, torch.float32, "Triton is not installed", (9, 0), None, "Triton is not installed"),
        (64, torch.float32, "", (7, 5), None, "the card has compute capability 7.5, and they need 8.0"),
        (64, torch.float32, "", (9, 0), "6.4", "they have not been tried with ROCm"),
    ],
)
def test_where_no_kernel_is_taken_one_line_says_why_once(
    width: int, dtype: torch.dtype, problem: str, capability: tuple[int, int], hip: str | None, reason: str,
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Red: an error in place of PyTorch's operations; silence, or a line for each block and step."""
    monkeypatch.setattr(torch.version, "hip", hip)
    residual_block._report.cache_clear()
    mlp, attention, x = blocks(width, dtype)
    with FakeCuda(monkeypatch, capability, kernels=True).here():
        monkeypatch.setattr(compile, "problem_of_triton", lambda: problem)
        with torch.no_grad():
            assert not mlp_is_compiled(mlp, x)
        assert capfd.readouterr().err == ""
        for _ in "ab":
            assert mlp_is_compiled(mlp, x) == (not reason)
            assert attention_is_compiled(attention, x, 4) == (not reason)
        assert not attention_is_compiled(attention, x, 65)
    slow = f"train: PyTorch's operations are taken in place of ncpipe's kernels, which are faster: {reason}\n"
    assert capfd.readouterr().err == (slow if reason else "")


INTEGERS = {"rows", "tiles", "tile_rows", "tokens", "weight_step", "bias_step", "qk_step", "vo_step"}
LARGEST = ("_attention_backward", "tf32", True, 90)
COMPILED = [
    (name, precision, long, card)
    for name in ("_mlp_forward", "_mlp_backward", "_attention_forward", "_attention_backward")
    for precision in ("tf32x3", "tf32")
    for long in ((False, True) if "attention" in name else (False,))
    for card in (80, 90, 120)
]


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize(
    ("name", "precision", "long", "card"),
    [LARGEST, *(pytest.param(*case, marks=pytest.mark.long) for case in COMPILED if case != LARGEST)],
)
def test_kernels_compile_for_every_card_and_fit_into_its_shared_memory(
    name: str, precision: str, long: bool, card: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a card. Red: a compiler's error, or `out of resource: shared memory`, hours later on one."""
    from triton import compile as compiled
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from ncpipe.models import triton_block

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernel = getattr(triton_block, name)
    fixed = {"D": 64, "PRECISION": precision, "LONG": long}
    fixed |= dict.fromkeys(("total_ptr", "of_sum_ptr", "of_stream_ptr"))
    kinds = dict.fromkeys(INTEGERS, "i32") | dict.fromkeys(("eps", "factor"), "fp32") | {"active_ptr": "*i8"}
    signature = {
        argument: "constexpr" if argument in fixed else kinds.get(argument, "*fp32")
        for argument in kernel.arg_names
    }
    constants = {argument: fixed[argument] for argument in kernel.arg_names if argument in fixed}
    source = ASTSource(kernel, signature, constants)
    options = {"num_warps": triton_block.WARPS, "num_stages": 1}
    assert compiled(source, GPUTarget("cuda", card, 32), options).metadata.shared <= 48 * 1024


def test_triton_that_is_missing_or_broken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Red: an ImportError in place of PyTorch's operations."""
    for name in [name for name in sys.modules if name.split(".")[0] == "triton"]:
        monkeypatch.delitem(sys.modules, name)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "triton", None)
        assert compile.problem_of_triton.__wrapped__() == "Triton is not installed"
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton/__init__.py").write_text("raise OSError('libcuda.so: not found')")
    monkeypatch.syspath_prepend(tmp_path)
    problem = compile.problem_of_triton.__wrapped__()
    assert problem == "Triton cannot be imported (OSError: libcuda.so: not found)"


def test_only_the_kernels_import_triton_and_they_count_in_the_digest_of_training() -> None:
    """Red: a library that needs Triton; kernels that may change without their runs training again."""
    users = {
        path.stem for path in modules() if any(name.split(".")[0] == "triton" for name in imports_of(path))
    }
    assert users == {"triton_block", "compile"}
