"""The compiled residual block of L-RN1 against a NumPy twin, its derivatives, and PyTorch's operations."""

import numpy as np
import pytest
import torch
from conftest import experiment, vector_data
from reference import layer_norm
from torch import Tensor

from ncpipe.config.specs import Run
from ncpipe.models import residual_block
from ncpipe.models.layers import Affine
from ncpipe.models.residual_block import compiled_residual_block
from ncpipe.training.loop import train_batch

pytest.importorskip("numba")

CPU = torch.device("cpu")
EPS = 1e-5


def inputs(
    runs: int, rows: int, width: int, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = (runs, rows, width), (runs, width, width), (runs, width)
    x, weight, bias = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return x.to(dtype), (weight / width**0.5).to(dtype), bias.to(dtype)


@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize(("runs", "rows", "width"), [(1, 1, 3), (2, 5, 17), (3, 40, 64)])
def test_block_is_its_definition(runs: int, rows: int, width: int, dtype: torch.dtype, error: float) -> None:
    """Red: another run's bias, a mean over too many entries, eps outside the root."""
    x, weight, bias = inputs(runs, rows, width, dtype)
    found = compiled_residual_block(x, weight, bias, EPS).double().numpy()
    for run in range(runs):
        h, w, b = (tensor[run].double().numpy() for tensor in (x, weight, bias))
        expected = layer_norm((h + np.maximum(h @ w.T + b, 0)).T, EPS).T
        np.testing.assert_allclose(found[run], expected, rtol=0, atol=error)


def test_gradients_are_derivatives() -> None:
    """First and second ones, against differences."""
    x, weight, bias = (tensor.requires_grad_() for tensor in inputs(2, 3, 5))
    assert torch.autograd.gradcheck(lambda *given: compiled_residual_block(*given, EPS), (x, weight, bias))
    assert torch.autograd.gradgradcheck(
        lambda *given: compiled_residual_block(*given, EPS), (x, weight, bias)
    )


@pytest.mark.parametrize("width", [5, 64])
def test_bytes_of_a_run_do_not_depend_on_its_neighbours(width: int) -> None:
    given = inputs(3, 50, width, torch.float32)
    slopes = torch.randn(3, 50, width, generator=torch.Generator().manual_seed(1))

    def results(runs: slice) -> list[Tensor]:
        own = [tensor[runs].clone().requires_grad_() for tensor in given]
        y = compiled_residual_block(*own, EPS)
        return [y.detach(), *torch.autograd.grad(y, own, slopes[runs].clone())]

    together = results(slice(0, 3))
    for run in range(3):
        for all_runs, alone in zip(together, results(slice(run, run + 1)), strict=True):
            assert torch.equal(all_runs[run : run + 1], alone)


def test_tensors_that_are_not_contiguous() -> None:
    """The gradient of a sum is one number with strides of 0."""
    x, weight, bias = inputs(2, 6, 4)
    own = [tensor.clone().requires_grad_() for tensor in (x.mT.contiguous().mT, weight, bias)]
    (compiled_residual_block(*own, EPS) ** 2).sum().backward()
    plain = [tensor.clone().requires_grad_() for tensor in (x, weight, bias)]
    (residual_block._plain(*plain, EPS) ** 2).sum().backward()
    for found, expected in zip(own, plain, strict=True):
        torch.testing.assert_close(found.grad, expected.grad)
    y = compiled_residual_block(*own, EPS)
    for found, expected in zip(
        torch.autograd.grad(y.sum(), own),
        torch.autograd.grad(residual_block._plain(*plain, EPS).sum(), plain),
        strict=True,
    ):
        torch.testing.assert_close(found, expected)


def test_nan_stays_in_its_row() -> None:
    """A run that diverges must not be taken for one that does not. Red: max(NaN, 0) = 0."""
    x, weight, bias = inputs(1, 4, 5)
    bias[0, 2] = torch.nan
    assert compiled_residual_block(x, weight, bias, EPS).isnan().all()
    x, weight, bias = inputs(1, 4, 5)
    x[0, 1, 0] = torch.nan
    assert compiled_residual_block(x, weight, bias, EPS).isnan().all(-1).tolist() == [
        [False, True, False, False]
    ]


def test_training_without_numba_differs_by_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    run, data = Run("e", 4, 0, experiment(epochs=20)), vector_data()
    monkeypatch.setattr(residual_block, "FEWEST_NUMBERS", 0)
    (compiled,) = train_batch([run], data, CPU, "float64")
    monkeypatch.setattr(residual_block, "HAS_NUMBA", False)
    (plain,) = train_batch([run], data, CPU, "float64")
    assert any(
        not torch.equal(compiled.state[name], plain.state[name]) for name in plain.state
    )  # both were taken
    for name, value in plain.state.items():
        torch.testing.assert_close(compiled.state[name], value, rtol=1e-7, atol=1e-9)


def test_few_rows_are_not_compiled_whatever_runs_there_are() -> None:
    """Red: a limit on the rows of all runs together, by which a run's rounding depends on its neighbours."""
    layer = Affine(64, 64)
    limit = residual_block.FEWEST_NUMBERS // 64
    for runs in (1, 6):
        layer.weight = torch.nn.Parameter(torch.zeros(runs, 64, 64))
        assert residual_block.is_compiled(layer, torch.zeros(runs, limit, 64))
        assert not residual_block.is_compiled(layer, torch.zeros(runs, limit - 1, 64))
