"""Compiled parts of residual blocks against NumPy twins, their derivatives, and PyTorch's operations."""

import numpy as np
import pytest
import reference
import torch
from conftest import architecture, experiment, image_data, token_data, vector_data
from torch import Tensor

from ncpipe.config.run import Run
from ncpipe.models import residual_block
from ncpipe.models.layers import (
    Affine,
    OneLayerMLP,
    OneMatrixAttention,
    TwoMatrixAttention,
    layer_norm,
)
from ncpipe.models.residual_block import add_attention, add_mlp, attention_is_compiled, mlp_is_compiled
from ncpipe.training.loop import train_batch

pytest.importorskip("numba")

CPU = torch.device("cpu")
EPS = 1e-5
TOKENS = 3
FORMS = [(part, norm) for part in ("mlp", "attention") for norm in ("post", "pre")]
Tensors = tuple[Tensor, ...]


def inputs(
    part: str, norm: str, runs: int, samples: int, width: int, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    """x, the stream if pre-LN, and the parameters."""
    generator = torch.Generator().manual_seed(0)
    rows, square = (runs, samples * TOKENS, width), (runs, width, width)
    shapes = [rows] * (1 + (norm == "pre")) + [square, (runs, width) if part == "mlp" else square]
    drawn = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    return [
        (tensor / width**0.5 if tensor.shape == square else tensor).to(dtype).contiguous() for tensor in drawn
    ]


def module_of(part: str, first: Tensor, second: Tensor) -> OneLayerMLP | OneMatrixAttention:
    """The part with these parameters, which it takes as they are: gradients reach them."""
    width = first.shape[-1]
    if part == "mlp":
        mlp = OneLayerMLP(width)
        del mlp.lin.weight, mlp.lin.bias
        mlp.lin.weight, mlp.lin.bias = first, second
        return mlp
    attention = OneMatrixAttention(width)
    del attention.qk.weight, attention.vo.weight
    attention.qk.weight, attention.vo.weight = first, second
    return attention


def compiled(part: str, *given: Tensor) -> Tensors:
    """LN(t) and, pre-LN, t."""
    x, *stream, first, second = given
    module = module_of(part, first, second)
    if isinstance(module, OneLayerMLP):
        found = add_mlp(x, *(stream or [None]), module, EPS)
    else:
        found = add_attention(x, *(stream or [None]), module, TOKENS, EPS)
    assert (found[1] is None) == (not stream)
    return tuple(tensor for tensor in found if tensor is not None)


@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
@pytest.mark.parametrize(("runs", "samples", "width"), [(1, 1, 3), (2, 5, 17), (3, 13, 64)])
@pytest.mark.parametrize(("part", "norm"), FORMS)
def test_part_is_its_definition(
    part: str, norm: str, runs: int, samples: int, width: int, dtype: torch.dtype, error: float
) -> None:
    """Red: another run's bias, a mean over too many entries, eps outside the root, a mask off by one."""
    given = inputs(part, norm, runs, samples, width, dtype)
    found = [tensor.double().numpy() for tensor in compiled(part, *given)]
    for run in range(runs):
        x, *stream, first, second = (tensor[run].double().numpy() for tensor in given)
        if part == "mlp":
            added = reference.mlp({"lin.weight": first, "lin.bias": second}, "", x.T)
        else:
            parameters = {"qk.weight": first, "vo.weight": second}
            added = np.hstack(
                [
                    reference.attention(parameters, "", x[start : start + TOKENS].T)
                    for start in range(0, len(x), TOKENS)
                ]
            )
        total = (stream[0] if stream else x).T + added
        expected = [reference.layer_norm(total, EPS), total]
        for own, twin in zip(found, expected, strict=False):
            np.testing.assert_allclose(own[run], twin.T, rtol=0, atol=error)


@pytest.mark.parametrize(("part", "norm"), FORMS)
def test_gradients_are_derivatives(part: str, norm: str) -> None:
    """First and second ones, against differences. Pre-LN x is itself a function of the stream.

    Red: the way from the stream through x counted twice in the second ones.
    """
    given = [tensor.requires_grad_() for tensor in inputs(part, norm, 2, 2, 3)]

    def function(*given: Tensor) -> Tensors:
        return compiled(part, *given)

    assert torch.autograd.gradcheck(function, given)
    assert torch.autograd.gradgradcheck(function, given)
    if norm == "pre":
        _, stream, *parameters = given

        def block(*own: Tensor) -> Tensors:
            return compiled(part, layer_norm(own[0], EPS), *own)

        assert torch.autograd.gradgradcheck(block, (stream, *parameters))


@pytest.mark.parametrize("width", [5, 64])
@pytest.mark.parametrize(("part", "norm"), FORMS)
def test_bytes_of_a_run_do_not_depend_on_its_neighbours(part: str, norm: str, width: int) -> None:
    given = inputs(part, norm, 3, 17, width, torch.float32)
    generator = torch.Generator().manual_seed(1)
    slopes = [torch.randn(given[0].shape, generator=generator) for _ in range(1 + (norm == "pre"))]

    def results(runs: slice) -> list[Tensor]:
        own = [tensor[runs].clone().requires_grad_() for tensor in given]
        found = compiled(part, *own)
        gradients = torch.autograd.grad(found, own, [slope[runs].clone() for slope in slopes])
        return [*(tensor.detach() for tensor in found), *gradients]

    together = results(slice(0, 3))
    for run in range(3):
        for all_runs, alone in zip(together, results(slice(run, run + 1)), strict=True):
            assert torch.equal(all_runs[run : run + 1], alone)


@pytest.mark.parametrize(("part", "norm"), FORMS)
def test_tensors_that_are_not_contiguous(part: str, norm: str) -> None:
    """The gradient of a sum is one number with strides of 0."""
    given = [tensor.requires_grad_() for tensor in inputs(part, norm, 2, 2, 4)]
    results = compiled(part, *given)
    expected = torch.autograd.grad(results, given, [torch.ones_like(result) for result in results])
    own = [given[0].detach().mT.contiguous().mT.requires_grad_(), *given[1:]]
    found = torch.autograd.grad(sum(result.sum() for result in compiled(part, *own)), own)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_nan_stays_in_its_rows(norm: str) -> None:
    """A run that diverges must not be taken for one that does not. Red: max(NaN, 0) = 0."""
    x, *stream, weight, bias = inputs("mlp", norm, 1, 2, 5)
    bias[0, 2] = torch.nan
    assert compiled("mlp", x, *stream, weight, bias)[0].isnan().all()
    for part in ("mlp", "attention"):
        given = inputs(part, norm, 1, 2, 5)
        given[0][0, 1, 0] = torch.nan
        rows = compiled(part, *given)[0].isnan().all(-1)[0].tolist()
        later = part == "attention"  # which the sample's later tokens attend to
        assert rows == [False, True, later, False, False, False]


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("name", ["L-RN1", "L-T11"])
def test_training_without_numba_differs_by_rounding(
    name: str, norm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch = {} if name == "L-RN1" else {"patch": 2}
    run = Run("e", 4, 0, experiment(epochs=6, model=architecture(name, norm, **patch)))
    for data in [vector_data()] if name == "L-RN1" else [image_data(), token_data()]:
        with monkeypatch.context() as patched:
            patched.setattr(residual_block, "FEWEST_NUMBERS", 0)
            (with_numba,) = train_batch([run], data, CPU, "float64")
            patched.setattr(residual_block, "can_compile", lambda: False)
            (without,) = train_batch([run], data, CPU, "float64")
        assert any(
            not torch.equal(with_numba.state[key], without.state[key]) for key in without.state
        )  # both were taken
        for key, value in without.state.items():
            torch.testing.assert_close(with_numba.state[key], value, rtol=1e-7, atol=1e-9)


def stacked(module: torch.nn.Module, runs: int) -> None:
    for affine in module.modules():
        if isinstance(affine, Affine):
            affine.weight = torch.nn.Parameter(torch.zeros(runs, 64, 64))


def test_what_is_compiled() -> None:
    """Red: a limit on the rows of all runs together, by which a run's rounding depends on its neighbours."""
    limit = residual_block.FEWEST_NUMBERS // 64
    mlp, attention, other = OneLayerMLP(64), OneMatrixAttention(64), TwoMatrixAttention(64)
    for runs in (1, 6):
        for module in (mlp, attention, other):
            stacked(module, runs)
        many, few = torch.zeros(runs, limit, 64), torch.zeros(runs, limit - 1, 64)
        assert mlp_is_compiled(mlp, many)
        assert not mlp_is_compiled(mlp, few)
        assert attention_is_compiled(attention, many, 4)
        assert not attention_is_compiled(attention, few, 4)
        assert not attention_is_compiled(attention, many, 65)  # whose weights are not kept
        assert not attention_is_compiled(other, many, 4)
        with torch.no_grad():
            assert not mlp_is_compiled(mlp, many)
