"""Train residual blocks of stacked runs fast: one-layer MLPs and one-matrix attention.

`ncpipe.models.compiled_block` has loops for a CPU, `ncpipe.models.triton_block` kernels for a GPU, and
`ncpipe.models.layers` the same by PyTorch's operations. A block here takes the residual stream and
x = LN(stream), and returns both after it. Post-LN, the residual stream is x itself, and the sum before LN is
not kept.

S  runs    M  rows: samples x tokens    d  width
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import torch
from torch import Tensor

from ncpipe.models.layers import (
    LONGEST_BY_PRODUCTS,
    MLP,
    Affine,
    Attention,
    OneLayerMLP,
    OneMatrixAttention,
    attend,
    layer_norm,
    triton_problem,
)
from ncpipe.system.compile import can_compile
from ncpipe.system.console import say

# Rows x width of one run. With fewer, as in mini-batches of 128 vectors, calling the loops takes longer than
# it saves: threads of other batches wait for Python meanwhile. Not counted over the runs, whose rounding is
# their own.
FEWEST_NUMBERS = 3 * 2**13
KERNEL_WIDTHS = (16, 32, 64)  # of the kernels on a GPU


def mlp_is_compiled(mlp: MLP, x: Tensor) -> TypeGuard[OneLayerMLP]:
    """Return whether `add_mlp` takes this MLP and its input x (S, M, d).

    It does for stacked runs with gradients: on a CPU for many rows, on a GPU in float32 and for some widths.
    """
    return isinstance(mlp, OneLayerMLP) and _fits(mlp.lin, x)


def attention_is_compiled(attention: Attention, x: Tensor, tokens: int) -> TypeGuard[OneMatrixAttention]:
    """Return whether `add_attention` takes this attention and its input x (S, M, d); as `mlp_is_compiled`."""
    return (
        isinstance(attention, OneMatrixAttention) and tokens <= LONGEST_BY_PRODUCTS and _fits(attention.qk, x)
    )


def _fits(layer: Affine, x: Tensor) -> bool:
    if layer.weight.dim() != 3 or not torch.is_grad_enabled():
        return False
    if layer.weight.is_cuda:
        reason = _kernel_problem(x)
        if reason:
            _report(reason)
        return not reason
    return layer.weight.device.type == "cpu" and x[0].numel() >= FEWEST_NUMBERS and can_compile()


def _kernel_problem(x: Tensor) -> str:
    """Return why no kernel computes a half block of x on a GPU; '' if one does."""
    if x.dtype != torch.float32:
        return f"they have no {str(x.dtype).removeprefix('torch.')}"
    if x.shape[-1] not in KERNEL_WIDTHS:
        return f"they have widths {', '.join(map(str, KERNEL_WIDTHS))}, and model.width is {x.shape[-1]}"
    return triton_problem()


@functools.cache
def _report(reason: str) -> None:
    say(f"train: PyTorch's operations are taken in place of ncpipe's kernels, which are faster: {reason}")


def add_mlp(x: Tensor, stream: Tensor | None, mlp: OneLayerMLP, eps: float) -> tuple[Tensor, Tensor | None]:
    """Return LN(t) and t = stream + ReLU(W x + b), both (S, M, d) like x.

    Post-LN the stream is x, so that None is given and returned for it. Differs by rounding from PyTorch's
    operations.
    """
    return _MLP.apply(x, stream, mlp.lin.weight, mlp.lin.bias, eps)


def add_attention(
    x: Tensor, stream: Tensor | None, attention: OneMatrixAttention, tokens: int, eps: float
) -> tuple[Tensor, Tensor | None]:
    """Return the same as `add_mlp` for causal attention over samples of `tokens` rows, in the MLP's place."""
    weights = attention.qk.weight, attention.vo.weight
    return _Attention.apply(x, stream, *weights, tokens, eps)


class _MLP(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, stream: Tensor | None, weight: Tensor, bias: Tensor, eps: float
    ) -> tuple[Tensor, Tensor | None]:
        ctx.eps, ctx.on_gpu, x = eps, x.is_cuda, x.contiguous()
        if ctx.on_gpu:
            from ncpipe.models.triton_block import mlp_forward  # loads Triton

            stream = None if stream is None else stream.contiguous()
            y, active, scale, *total = mlp_forward(x, stream, weight, bias, eps)
            ctx.save_for_backward(x, stream, weight, bias, active, y, scale)
            return y, total[0] if total else None
        from ncpipe.models.compiled_block import add_relu  # loads numba

        z = torch.bmm(x, weight.mT)
        y = z if stream is None else torch.empty_like(z)
        active, scale = torch.empty_like(z, dtype=torch.bool), z.new_empty(z.shape[:2])
        add_relu(*_arrays(x if stream is None else stream, bias, z), eps, *_arrays(active, y, scale))
        ctx.save_for_backward(x, stream, weight, bias, active, y, scale)
        return y, None if stream is None else z

    @staticmethod
    def backward(ctx: Any, g: Tensor, of_sum: Tensor | None) -> tuple[Tensor | None, ...]:
        x, stream, weight, bias, active, y, scale = ctx.saved_tensors
        if torch.is_grad_enabled():  # somebody differentiates the gradient

            def added(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
                return torch.relu(torch.baddbmm(bias.unsqueeze(1), x, weight.mT))

            return *_differentiate(added, stream, (x, weight, bias), ctx.eps, (g, of_sum)), None
        if ctx.on_gpu:
            from ncpipe.models.triton_block import mlp_backward

            of_x, both, *of_base = mlp_backward(g, of_sum, x, stream is not None, weight, active, y, scale)
            of_weight = both[:, : weight[0].numel()].view_as(weight)
            return of_x, of_base[0] if of_base else None, of_weight, both[:, weight[0].numel() :], None
        from ncpipe.models.compiled_block import add_backward

        of_stream, of_z = torch.empty_like(y), torch.empty_like(y)
        add_backward(*_arrays(g, _rows(of_sum, y), active, y, scale, of_stream, of_z))
        of_parameters = torch.bmm(of_z.mT, x), of_z.sum(1)
        if stream is None:
            return of_stream.baddbmm_(of_z, weight), None, *of_parameters, None
        return torch.bmm(of_z, weight), of_stream, *of_parameters, None


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, stream: Tensor | None, qk: Tensor, vo: Tensor, tokens: int, eps: float
    ) -> tuple[Tensor, Tensor | None]:
        ctx.eps, ctx.tokens, ctx.on_gpu, x = eps, tokens, x.is_cuda, x.contiguous()
        if ctx.on_gpu:
            from ncpipe.models.triton_block import attention_forward

            stream = None if stream is None else stream.contiguous()
            y, query, attended, log_sum, scale, *total = attention_forward(x, stream, qk, vo, tokens, eps)
            ctx.save_for_backward(x, stream, qk, vo, query, log_sum, attended, y, scale)
            return y, total[0] if total else None
        from ncpipe.models.compiled_block import add, attend_rows

        query, attended = torch.bmm(x, qk.mT), torch.empty_like(x)
        weights, scale = x.new_empty(*x.shape[:2], tokens), x.new_empty(x.shape[:2])
        attend_rows(*_arrays(query, x, weights, attended))
        z = torch.bmm(attended, vo.mT)
        y = z if stream is None else torch.empty_like(z)
        add(*_arrays(x if stream is None else stream, z), eps, *_arrays(y, scale))
        ctx.save_for_backward(x, stream, qk, vo, query, weights, attended, y, scale)
        return y, None if stream is None else z

    @staticmethod
    def backward(ctx: Any, g: Tensor, of_sum: Tensor | None) -> tuple[Tensor | None, ...]:
        x, stream, qk, vo, query, weights, attended, y, scale = ctx.saved_tensors
        if torch.is_grad_enabled():

            def added(x: Tensor, qk: Tensor, vo: Tensor) -> Tensor:
                return attend(x @ qk.mT, x, x, ctx.tokens) @ vo.mT

            return *_differentiate(added, stream, (x, qk, vo), ctx.eps, (g, of_sum)), None, None
        if ctx.on_gpu:
            from ncpipe.models.triton_block import attention_backward

            saved = query, attended, weights, y, scale  # in place of weights the logs of softmax's sums
            of_x, both, *of_base = attention_backward(
                g, of_sum, x, stream is not None, qk, vo, *saved, ctx.tokens
            )
            return of_x, of_base[0] if of_base else None, *both.unbind(1), None, None
        from ncpipe.models.compiled_block import add_backward, attend_rows_backward

        of_z, of_query = torch.empty_like(y), torch.empty_like(y)
        no_relu = torch.empty_like(y[:, :0], dtype=torch.bool)
        add_backward(*_arrays(g, _rows(of_sum, y), no_relu, y, scale, of_z, of_z))
        of_attended, of_vo = torch.bmm(of_z, vo), torch.bmm(of_z.mT, attended)
        of_x = of_z if stream is None else torch.zeros_like(y)
        attend_rows_backward(*_arrays(of_attended, query, x, weights, of_query, of_x))
        of_qk = torch.bmm(of_query.mT, x)
        return of_x.baddbmm_(of_query, qk), None if stream is None else of_z, of_qk, of_vo, None, None


def _differentiate(
    added: Callable[..., Tensor],
    stream: Tensor | None,
    inputs: Sequence[Tensor],
    eps: float,
    gradients: Sequence[Tensor | None],
) -> tuple[Tensor | None, ...]:
    """Return the gradients of x, the stream and the parameters by PyTorch's operations, to be differentiated.

    inputs: x and the parameters, of which `added` makes what is added to the stream. gradients: of LN(t) and,
    if there is a stream, of the sum t.
    """
    # Views, because x is itself a function of the stream: each is asked for its own gradient alone.
    x, *parameters = views = [tensor.view_as(tensor) for tensor in inputs]
    base = x if stream is None else stream.view_as(stream)
    total = base + added(*views)
    if stream is None:
        of_x, *of_parameters = torch.autograd.grad(
            layer_norm(total, eps), views, gradients[0], create_graph=True
        )
        return of_x, None, *of_parameters
    return torch.autograd.grad(
        (layer_norm(total, eps), total), (x, base, *parameters), gradients, create_graph=True
    )


def _rows(of_sum: Tensor | None, y: Tensor) -> Tensor:
    """Return the gradient of the sum, or one without rows where there is none."""
    return y[:, :0] if of_sum is None else of_sum


def _arrays(*tensors: Tensor) -> list[Any]:
    """Return contiguous arrays, which share the memory of tensors that are contiguous."""
    return [tensor.detach().contiguous().numpy() for tensor in tensors]
