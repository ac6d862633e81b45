"""Kernels for a GPU in Triton's interpreter, against float64: what `test_triton_block` runs.

    TRITON_INTERPRET=1 pytest tests/triton_kernels.py

The variable must be set before Triton is imported, so a process of its own runs them. Tensors pass for a
GPU's (`fake_cuda`), so that everything goes the way that it goes there.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import test_fake_cuda
import torch
import triton
from conftest import architecture, experiment, image_data, loaded, normal, vector_data
from fake_cuda import CPU, CUDA, FakeCuda
from half_blocks import EPS, Given, HalfBlock, assert_close, compiled, definition, double, inputs, results
from torch import Tensor
from training_cases import ADAM, assert_same

from ncpipe.config.run import Run
from ncpipe.models import triton_block
from ncpipe.models.layers import layer_norm
from ncpipe.training import cuda_graph
from ncpipe.training.loop import train_batch

pytestmark = pytest.mark.usefixtures("cuda_flags")

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    """Two programs of a run, so that each takes several tiles."""
    assert triton.knobs.runtime.interpret
    monkeypatch.setattr(triton_block, "PARTS", 2)
    cuda = FakeCuda(monkeypatch, kernels=True)
    with cuda.here():
        yield cuda


SHAPES = [  # part, tokens, samples, runs, width
    ("mlp", 1, 1, 1, 32),
    ("mlp", 1, 32, 2, 16),
    ("mlp", 1, 133, 2, 64),
    ("attention", 1, 37, 1, 16),
    ("attention", 3, 41, 2, 32),
    ("attention", 4, 17, 1, 64),
    ("attention", 16, 5, 2, 64),
    ("attention", 32, 2, 1, 16),
    ("attention", 33, 3, 2, 16),
    ("attention", 64, 2, 1, 64),
]


@pytest.mark.parametrize(
    ("part", "tokens", "samples", "runs", "width", "norm"),
    [*((*shape, "post") for shape in SHAPES), *((*shape, "pre") for shape in SHAPES[2::2])],
)
def test_half_block_is_its_definition(
    part: str, tokens: int, samples: int, runs: int, width: int, norm: str, cuda: FakeCuda
) -> None:
    """And its gradients. Red: another run's matrix, rows of a tile that are no rows, a sample in two tiles, a
    mask off by one, tiles or programs left out of a weight's gradient."""
    given = inputs(part, norm, runs, tokens * samples, width, torch.float32)
    with cuda.away():
        expected = results(definition, part, double(given), tokens)
    before = cuda.kernels.copy()
    actual = results(compiled, part, given, tokens)
    assert_close(actual, expected)
    launched = cuda.kernels - before
    assert {name: launched[name] for name in launched if part in name} == {
        f"{part}_forward": 1,
        f"{part}_backward": 1,
    }
    copied = [name for name in launched if name in ("clone", "copy_", "bmm", "sum")]
    assert not copied


@pytest.mark.parametrize(("part", "tokens"), [("mlp", 1), ("attention", 3), ("attention", 40)])
def test_bytes_are_the_same_twice_and_beside_other_runs(part: str, tokens: int, cuda: FakeCuda) -> None:
    """Red: a number of programs, and so an order of sums, that depends on the runs."""
    given = inputs(part, "pre", 2, 120, 16, torch.float32)
    together, again = (results(compiled, part, given, tokens) for _ in "ab")
    for name, value in together.items():
        assert torch.equal(again[name], value), name
    alone = results(compiled, part, {name: tensor[1:2] for name, tensor in given.items()}, tokens)
    for name, value in alone.items():
        assert torch.equal(value, together[name][1:2]), name


def test_nan_stays_in_its_run(cuda: FakeCuda) -> None:
    """Red: max(NaN, 0) = 0, by which a run that diverges passes for one that does not."""
    for part, tokens in (("mlp", 1), ("attention", 4)):
        given = inputs(part, "post", 2, 40, 16, torch.float32)
        given["second"][0, 3] = math.nan
        tensors = results(compiled, part, given, tokens)
        for value in tensors.values():
            assert value[0].isnan().any()
            assert not value[1].isnan().any()


@pytest.mark.parametrize("tokens", [4, 40])
def test_large_scores_do_not_overflow(tokens: int, cuda: FakeCuda) -> None:
    """Red: a largest score that is not that of all rows; scores of a few hundred as NaN."""
    given = inputs("attention", "post", 1, 80, 16, torch.float32)
    given["first"] = 200 * given["first"]
    with cuda.away():
        (expected,) = definition("attention", double(given), tokens)
    (actual,) = compiled("attention", given, tokens)
    assert float((actual - expected).abs().max()) < 1e-2


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("part", ["mlp", "attention"])
def test_second_derivatives_and_gradients_that_are_not_contiguous(
    part: str, norm: str, cuda: FakeCuda
) -> None:
    """Red: a second derivative of zero; strides that are taken for those of contiguous rows."""

    def derivatives(function: HalfBlock, given: Given) -> dict[str, Tensor]:
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in given.items()}
        outputs = function(part, leaves, 2)
        slopes = [normal(2, 16, 6, seed=seed).to(output.dtype).mT for seed, output in enumerate(outputs)]
        (turned,) = torch.autograd.grad(outputs, leaves["second"], slopes, retain_graph=True)
        first = torch.autograd.grad(outputs, list(leaves.values()), slopes, create_graph=True)
        total = torch.stack([gradient.square().sum() for gradient in first]).sum()
        second = torch.autograd.grad(total, list(leaves.values()))
        return {"not contiguous": turned} | dict(zip(leaves, second, strict=True))

    given = inputs(part, norm, 2, 6, 16, torch.float32)
    with cuda.away():
        expected = derivatives(definition, double(given))
    assert_close(derivatives(compiled, given), expected, 1e-4)


@pytest.mark.parametrize(("rows", "width"), [(1, 16), (259, 64), (37, 128), (9, 1024)])
def test_layer_norm_of_short_rows(rows: int, width: int, cuda: FakeCuda) -> None:
    """First and second derivatives too. Red: the last rows left out."""

    def norms(x: Tensor, by_kernel: bool) -> dict[str, Tensor]:
        x = x.detach().requires_grad_()
        y = layer_norm(x, EPS) if by_kernel else torch.nn.functional.layer_norm(x, x.shape[-1:], eps=EPS)
        slope = normal(*y.shape, seed=3).to(y.dtype)
        (alone,) = torch.autograd.grad(y, x, slope, retain_graph=True)
        (first,) = torch.autograd.grad(y, x, slope, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), x)
        return {"y": y.detach(), "alone": alone, "first": first.detach(), "second": second}

    given = normal(2, rows, width)
    with cuda.away():
        expected = norms(given, by_kernel=False)
    before = cuda.kernels.copy()
    assert_close(norms(given.float(), by_kernel=True), expected, 2e-5)
    launched = cuda.kernels - before
    assert (launched["norm_forward"], launched["norm_backward"]) == (1, 1)  # with create_graph by PyTorch
    assert layer_norm(given.float().requires_grad_(), EPS).sum().requires_grad
    assert not layer_norm(given, EPS).isnan().any()  # float64, by PyTorch


def test_layer_norm_within_vmap_is_pytorchs(cuda: FakeCuda) -> None:
    """A network of a study.py may have it. Red: an error of vmap, for which runs train one at a time."""
    x = normal(3, 5, 16).float()
    actual = torch.vmap(lambda rows: layer_norm(rows, EPS))(x)
    torch.testing.assert_close(actual, torch.nn.functional.layer_norm(x, (16,), eps=EPS))


@pytest.mark.parametrize(
    ("name", "norm"), [("L-RN1", "post"), pytest.param("L-T11", "pre", marks=pytest.mark.long)]
)
def test_recorded_training_is_that_without_a_recording_and_near_the_cpus(
    name: str, norm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red: a kernel that a recording does not see, or that writes to what it reads."""
    patch = {} if name == "L-RN1" else {"patch": 2}
    spec = experiment(epochs=cuda_graph.WARM_UP + 2, model=architecture(name, norm, width=16, **patch))
    runs, data = [Run("e", 2, seed, spec) for seed in range(2)], image_data() if patch else vector_data()
    expected = train_batch(runs, data, CPU, "float32")
    trained = []
    for warm_up in (cuda_graph.WARM_UP, 10**9):
        monkeypatch.setattr(cuda_graph, "WARM_UP", warm_up)
        cuda = FakeCuda(monkeypatch, kernels=True)
        with cuda.here():
            trained.append(train_batch(runs, data, CUDA, "float32"))
        assert (cuda.captures > 0) == (warm_up < 10)
        assert cuda.kernels["mlp_backward"] > 0
    assert_same(*trained)
    for one, other in zip(trained[0], expected, strict=True):
        for key, value in other.state.items():
            torch.testing.assert_close(one.state[key], value, rtol=1e-3, atol=1e-4)


@pytest.mark.long
def test_gpu_check_compares_half_blocks_with_float64(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red: a wrong kernel that passes on a card."""
    gpu_check = loaded(Path(__file__).resolve().parent.parent / "benchmarks" / "gpu_check.py")
    monkeypatch.setattr(gpu_check, "HALF_BLOCKS", gpu_check.HALF_BLOCKS[:3:2])
    findings = gpu_check.Findings(gpu_check.Size(samples=20, nodes=1, repeats=2))
    gpu_check.half_blocks(findings, CUDA)
    assert [row["what"] for row in findings.rows["half blocks"]] == [
        "mlp, post-LN, float32",
        "attention, post-LN, 4 tokens, float32",
    ]
    assert not findings.failed
    monkeypatch.setattr(gpu_check, "HALF_BLOCKS", gpu_check.HALF_BLOCKS[:1])
    monkeypatch.setattr(gpu_check, "KERNEL_ERROR", {"float32": 1e-12})
    gpu_check.half_blocks(findings, CUDA)
    assert len(findings.failed) == 1


@pytest.mark.long
def test_a_step_by_kernels_has_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several runs with 13 blocks. Red: a half block by PyTorch's operations."""
    monkeypatch.setattr(test_fake_cuda, "FakeCuda", functools.partial(FakeCuda, kernels=True))
    model = architecture("L-T11", "post", width=16, patch=2)
    count = test_fake_cuda.kernels_of_a_step("L-T11", monkeypatch, runs=2, optimizer=ADAM, model=model)
    assert 50 < count <= 250


def test_a_choice_of_tiles_is_timed_or_named_as_wrong(
    cuda: FakeCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red: a choice that computes something else is offered as the fastest."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    gpu_tiles = loaded(BENCHMARKS / "gpu_tiles.py")
    monkeypatch.setattr(gpu_tiles, "CASES", {"small": ("mlp", 1, "post", 1, 8)})
    monkeypatch.setattr(gpu_tiles, "WIDTH", 16)
    for constant in ("PARTS", "ROWS", "WARPS"):
        monkeypatch.setattr(triton_block, constant, getattr(triton_block, constant))
    size = dataclasses.replace(gpu_tiles.QUICK, repeats=2, nodes=1)
    row = gpu_tiles.measured((2, 32, 8), tmp_path / "lock", size)
    assert row["small"].isdecimal(), row
    right = triton_block.mlp_forward
    monkeypatch.setattr(triton_block, "mlp_forward", lambda *given: [2 * tensor for tensor in right(*given)])
    wrong = gpu_tiles.measured((2, 32, 8), tmp_path / "lock", size)
    assert wrong["small"].startswith("wrong: error")
    assert gpu_tiles.table({(2, 32, 8): wrong}).count("\n") == 2
