"""benchmarks/gpu_check.py on the stand-in for CUDA: every section runs, and what is wrong is a failure."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import loaded
from fake_cuda import CPU, CUDA, FakeCuda
from torch.utils.flop_counter import FlopCounterMode

from ncpipe.datasets.prepared import Prepared
from ncpipe.models.build import build_model, input_shape, prepare_split
from ncpipe.runs import batches

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
    small = (("cifar10_rn1", 20, None, (2,)), ("cifar10_t11", 20, 16, (2,)))
    monkeypatch.setattr(gpu_check, "SIDE_BY_SIDE", small)
    for section in ("half blocks", "kernels", "side by side", "share of the limit"):
        monkeypatch.setitem(gpu_check.SECTIONS, section, there(gpu_check.SECTIONS[section]))

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
    for heading in gpu_check.SECTIONS:
        assert f"\n### {heading.capitalize()}\n\n| what |" in text
    assert "| none, PyTorch's operations are taken: no kernel runs on a stand-in |" in text
    for name in ("L-RN1, 20, L = 2", "L-T11, 20 of 4 patches, L = 2"):
        assert text.count(f"| {name} | ") == 2  # side by side, and beside the limit
    assert "Fake H100" in text
    assert "| 4 runs in 0.7 of their memory: halved 1 times, 4 done | yes |" in text
    assert text.endswith("All checks passed.\n")
    written = json.loads(Path("all.json").read_text())
    assert [row["what"] for row in written["rows"]["correctness"]] == list(SHOWN)
    assert written["failed"] == []


def test_a_section_ends_with_the_row_that_spends_its_time(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Red: half an hour; rows that are missing in silence."""
    assert gpu_check.BUDGETS.keys() == gpu_check.SECTIONS.keys()
    assert sum(gpu_check.BUDGETS.values()) <= 9 * 60
    monkeypatch.setattr(gpu_check, "BUDGETS", dict.fromkeys(gpu_check.SECTIONS, -1))
    timed = ("correctness", "side by side", "share of the limit", "steps", "panels")
    assert gpu_check.main(["--quick", "--only", *timed]) == 0
    assert capsys.readouterr().out.count("left out for want of time: ") == len(timed)


def test_the_limit_is_that_of_every_product_and_number() -> None:
    """Against the numbers of PyTorch's counter for the forward pass, whose inner products count three times.

    Red: a product left out, or samples taken for rows.
    """
    for name, patch, tokens in (("cifar10_rn1", None, 1), ("cifar10_t11", 8, 16)):
        settings = [gpu_check.Setting(name, 20, patch, depth) for depth in (2, 3)]
        spec = settings[0].spec
        data = gpu_check.noise(spec.data, 20)
        split = prepare_split(data.train, "image", spec.model, CPU, torch.float32)
        forward = []
        for setting in settings:
            network = build_model(spec.model, input_shape(data, spec.model), 10, setting.depth, 0)
            with FlopCounterMode(display=False) as counter, torch.no_grad():
                network(split.inputs)
            forward.append(counter.get_total_flops())
        low, high = map(gpu_check.least_work, settings)
        assert high[0] - low[0] == 3 * (forward[1] - forward[0])
        assert high[1] - low[1] == 25 * 20 * tokens * 64 * (1 if patch is None else 2)


def test_other_weights_and_errors_are_failures(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Red: an exit code of 0 although a GPU computes something else, or a section ends in an error."""
    original = gpu_check.train_batch

    def wrong(runs: Any, data: Prepared, place: torch.device, *arguments: Any, **options: Any) -> Any:
        trained = original(runs, data, place, *arguments, **options)
        if place == CUDA:
            trained[0].state["last.weight"][0, 0] += 1e-4
        return trained

    monkeypatch.setattr(gpu_check, "train_batch", wrong)
    monkeypatch.setattr(
        gpu_check, "SECTIONS", {"facts": lambda *_: 1 / 0, "correctness": gpu_check.correctness}
    )
    assert gpu_check.main(["--quick"]) == 1
    text = capsys.readouterr().out
    assert "| ZeroDivisionError: division by zero | **no** |" in text
    assert "**2 failed**: facts: ZeroDivisionError: division by zero; correctness: L-RN1" in text
