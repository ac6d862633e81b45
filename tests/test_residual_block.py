"""Compiled parts of residual blocks against their definition, its derivatives, and PyTorch's operations."""

import pytest
import torch
from conftest import architecture, experiment, image_data, token_data, vector_data
from half_blocks import EPS, assert_close, compiled, definition, double, inputs, results
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
from ncpipe.models.residual_block import attention_is_compiled, mlp_is_compiled
from ncpipe.training.loop import train_batch

pytest.importorskip("numba")

CPU = torch.device("cpu")
TOKENS = 3
FORMS = [(part, norm) for part in ("mlp", "attention") for norm in ("post", "pre")]


@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
@pytest.mark.parametrize(("runs", "samples", "width"), [(1, 1, 3), (2, 5, 17), (3, 13, 64)])
@pytest.mark.parametrize(("part", "norm"), FORMS)
def test_part_is_its_definition(
    part: str, norm: str, runs: int, samples: int, width: int, dtype: torch.dtype, error: float
) -> None:
    """And its gradients. Red: another run's bias, a mean over too many entries, eps outside the root, a mask
    off by one."""
    given = inputs(part, norm, runs, samples * TOKENS, width, dtype)
    expected = results(definition, part, double(given), TOKENS)
    assert_close(results(compiled, part, given, TOKENS), expected, error)


@pytest.mark.parametrize(("part", "norm"), FORMS)
def test_second_derivatives(part: str, norm: str) -> None:
    """Against differences. Pre-LN x is itself a function of the stream.

    Red: the way from the stream through x counted twice.
    """
    given = inputs(part, norm, 2, 2 * TOKENS, 3)

    def function(*values: Tensor) -> tuple[Tensor, ...]:
        return compiled(part, dict(zip(given, values, strict=True)), TOKENS)

    leaves = [tensor.clone().requires_grad_() for tensor in given.values()]
    assert torch.autograd.gradgradcheck(function, leaves)
    if norm == "pre":
        _, stream, *parameters = leaves
        assert torch.autograd.gradgradcheck(
            lambda stream, *rest: function(layer_norm(stream, EPS), stream, *rest), (stream, *parameters)
        )


@pytest.mark.parametrize("width", [5, 64])
@pytest.mark.parametrize(("part", "norm"), FORMS)
def test_bytes_of_a_run_do_not_depend_on_its_neighbours(part: str, norm: str, width: int) -> None:
    given = inputs(part, norm, 3, 17 * TOKENS, width, torch.float32)
    together = results(compiled, part, given, TOKENS)
    for run in range(3):
        alone = {name: tensor[run : run + 1].clone() for name, tensor in given.items()}
        for name, value in results(compiled, part, alone, TOKENS).items():
            assert torch.equal(together[name][run : run + 1], value)


@pytest.mark.parametrize(("part", "norm"), FORMS)
def test_tensors_that_are_not_contiguous(part: str, norm: str) -> None:
    """The gradient of a sum is one number with strides of 0."""
    given = {n: t.clone().requires_grad_() for n, t in inputs(part, norm, 2, 2 * TOKENS, 4).items()}
    outputs = compiled(part, given, TOKENS)
    expected = torch.autograd.grad(outputs, list(given.values()), [torch.ones_like(y) for y in outputs])
    turned = given | {"x": given["x"].detach().mT.contiguous().mT.requires_grad_()}
    total = sum(y.sum() for y in compiled(part, turned, TOKENS))
    for gradient, reference in zip(torch.autograd.grad(total, list(turned.values())), expected, strict=True):
        torch.testing.assert_close(gradient, reference)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_nan_stays_in_its_rows(norm: str) -> None:
    """A run that diverges must not be taken for one that does not. Red: max(NaN, 0) = 0."""
    given = inputs("mlp", norm, 1, 2 * TOKENS, 5)
    given["second"][0, 2] = torch.nan
    assert compiled("mlp", given, TOKENS)[0].isnan().all()
    for part in ("mlp", "attention"):
        given = inputs(part, norm, 1, 2 * TOKENS, 5)
        given["x"][0, 1, 0] = torch.nan
        rows = compiled(part, given, TOKENS)[0].isnan().all(-1)[0].tolist()
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
