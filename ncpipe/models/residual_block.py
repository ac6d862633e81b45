"""Train post-LN residual blocks with one-layer MLPs of stacked runs fast on a CPU.

`ncpipe.models.compiled_block` has the loops. S  runs    M  rows    d  width
"""

from typing import Any

import torch
from torch import Tensor

from ncpipe.models.layers import Affine, layer_norm
from ncpipe.system.compile import HAS_NUMBA

# Rows x width of one run. With fewer, as in mini-batches of 128, calling the loop takes longer than it saves:
# threads of other batches wait for Python meanwhile. Not counted over the runs, whose rounding is their own.
FEWEST_NUMBERS = 3 * 2**13


def is_compiled(layer: Affine, x: Tensor) -> bool:
    """Return whether `compiled_residual_block` takes this layer and its input x (S, M, d).

    It does for many rows of stacked runs on a CPU, with gradients. Estimates on the meta device count
    PyTorch's operations, which keep more for the backward pass.
    """
    stacked = layer.weight.dim() == 3 and layer.weight.device.type == "cpu"
    return HAS_NUMBA and stacked and torch.is_grad_enabled() and x[0].numel() >= FEWEST_NUMBERS


def compiled_residual_block(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """Return LN(x + ReLU(x W^T + b)) for x (S, M, d), weight (S, d, d), bias (S, d).

    Differs by rounding from PyTorch's operations.
    """
    assert bias is not None
    y: Tensor = _ResidualBlock.apply(x, weight, bias, eps)
    return y


def _plain(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return layer_norm(x + torch.relu(torch.baddbmm(bias.unsqueeze(1), x, weight.mT)), eps)


class _ResidualBlock(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        from ncpipe.models.compiled_block import finish_block  # loads numba

        y, x = torch.bmm(x, weight.mT), x.contiguous()
        active, scale = torch.empty_like(y, dtype=torch.bool), y.new_empty(y.shape[:2])
        finish_block(*_arrays(x, bias), eps, *_arrays(y, active, scale))
        ctx.save_for_backward(x, weight, bias, y, active, scale)
        ctx.eps = eps
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        from ncpipe.models.compiled_block import finish_block_backward

        x, weight, bias, y, active, scale = ctx.saved_tensors
        if torch.is_grad_enabled():  # somebody differentiates the gradient
            inputs = (x, weight, bias)
            found = torch.autograd.grad(_plain(*inputs, ctx.eps), inputs, g, create_graph=True)
            return found[0], found[1], found[2], None
        of_x, of_z = torch.empty_like(y), torch.empty_like(y)
        finish_block_backward(*_arrays(g, y, active, scale, of_x, of_z))
        return of_x.baddbmm_(of_z, weight), torch.bmm(of_z.mT, x), of_z.sum(1), None


def _arrays(*tensors: Tensor) -> list[Any]:
    """Return contiguous arrays, which share the memory of tensors that are contiguous."""
    return [tensor.detach().contiguous().numpy() for tensor in tensors]
