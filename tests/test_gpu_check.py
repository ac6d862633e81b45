"""benchmarks/gpu_check.py on the stand-in for CUDA: every section runs, and what is wrong is a failure."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import loaded
from fake_cuda import CUDA, FakeCuda

from ncpipe.datasets.prepared import Prepared
from ncpipe.runs import batches
from ncpipe.training import device

pytestmark = pytest.mark.usefixtures("cuda_flags")

gpu_check = loaded(Path(__file__).resolve().parent.parent / "benchmarks" / "gpu_check.py")

TINY = gpu_check.Size(
    epochs=6,
    samples=20,
    depths=(2,),
    timed=(2,),
    sessions=3,
    width=8,
    runs=4,
    square=8,
    nodes=5,
    repeats=2,
    seconds=-1e9,
)
SHOWN = ("L-RN1",)  # of the kinds: all train in test_fake_cuda.py


@pytest.fixture
def cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """One kind of training; whatever is meant for the GPU is on the stand-in, in any thread."""
    monkeypatch.chdir(tmp_path)
    cuda = FakeCuda(monkeypatch)
    monkeypatch.setattr(gpu_check, "KINDS", {kind: gpu_check.KINDS[kind] for kind in SHOWN})
    monkeypatch.setattr(gpu_check, "QUICK", TINY)
    monkeypatch.setattr(gpu_check, "PANELS", gpu_check.PANELS[:1])
    monkeypatch.setattr(gpu_check, "STEPS", gpu_check.STEPS[:1])

    def there(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*given: Any, **options: Any) -> Any:
            if CUDA not in given:
                return function(*given, **options)
            with cuda.here():
                return function(*given, **options)

        return call

    monkeypatch.setattr(gpu_check, "train_batch", there(gpu_check.train_batch))
    monkeypatch.setattr(batches, "train_batch", there(batches.train_batch))
    monkeypatch.setitem(gpu_check.SECTIONS, "kernels", there(gpu_check.kernels))

    def limit(share: float, gpu: Any = None) -> None:
        def fault(phase: str, operation: str, sizes: list[tuple[int, ...]]) -> BaseException | None:
            full = operation == "bmm" and sizes[0][0] > 2
            return torch.AcceleratorError("CUDA error: out of memory") if full and share < 1 else None

        cuda.fault = fault

    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", limit)
    return cuda


def test_every_section_ends_in_a_table(cuda: FakeCuda, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_check.main(["--quick", "--json", "all.json"]) == 0
    text = capsys.readouterr().out
    for heading in ("Facts", "Correctness", "Safety", "Kernels", "Steps", "Panels"):
        assert f"\n### {heading}\n\n| what |" in text
    assert "Fake H100" in text
    assert "| 4 runs in 0.7 of their memory: halved 1 times, 4 done | yes |" in text
    assert text.endswith("All checks passed.\n")
    written = json.loads(Path("all.json").read_text())
    assert [row["what"] for row in written["rows"]["correctness"]] == list(SHOWN)
    assert written["failed"] == []


def test_other_weights_and_errors_are_failures(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Red: an exit code of 0 although a GPU computes something else, or a section ends in an error."""
    original = gpu_check.train_batch

    def wrong(runs: Any, data: Prepared, place: torch.device, *given: Any, **options: Any) -> Any:
        found = original(runs, data, place, *given, **options)
        if place == CUDA:
            found[0].state["last.weight"][0, 0] += 1e-4
        return found

    monkeypatch.setattr(gpu_check, "train_batch", wrong)
    monkeypatch.setattr(
        gpu_check, "SECTIONS", {"facts": lambda *_: 1 / 0, "correctness": gpu_check.correctness}
    )
    assert gpu_check.main(["--quick"]) == 1
    text = capsys.readouterr().out
    assert "| ZeroDivisionError: division by zero | **no** |" in text
    assert "**2 failed**: facts: ZeroDivisionError: division by zero; correctness: L-RN1" in text


def test_without_a_gpu_it_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(device, "NVIDIA_DRIVER", Path("nowhere"))
    with pytest.raises(SystemExit, match=r"gpu_check: no CUDA device that this PyTorch can use"):
        gpu_check.main([])


@pytest.mark.parametrize(("depth", "value"), [(1, 5.0), (2, 10.0), (5, 16.0), (68, 200.0)])
def test_depths_between_those_that_were_timed(depth: int, value: float) -> None:
    assert gpu_check.between({2: 10.0, 8: 22.0, 34: 100.0}, depth) == pytest.approx(value)
