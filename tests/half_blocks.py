"""Half blocks as the paper writes them, for tests of the loops on a CPU and of the kernels on a GPU."""

import math
from collections.abc import Callable

import torch
from conftest import normal
from torch import Tensor

from ncpipe.models.layers import OneLayerMLP, OneMatrixAttention
from ncpipe.models.residual_block import add_attention, add_mlp

EPS = 1e-5
Given = dict[str, Tensor]
HalfBlock = Callable[[str, Given, int], tuple[Tensor, ...]]


def inputs(
    part: str, norm: str, runs: int, rows: int, width: int, dtype: torch.dtype = torch.float64
) -> Given:
    """x, the stream if pre-LN, and the parameters, which are views of one buffer as in a stack."""
    numbers = width * width + (width if part == "mlp" else width * width)
    values = (normal(runs, numbers + 16, seed=1) / width**0.5).to(dtype)
    matrix, rest = values[:, : width * width], values[:, width * width : numbers]
    given = {"x": normal(runs, rows, width).to(dtype)}
    if norm == "pre":
        given["stream"] = normal(runs, rows, width, seed=2).to(dtype)
    given["first"] = matrix.unflatten(1, (width, width))
    given["second"] = rest if part == "mlp" else rest.unflatten(1, (width, width))
    return given


def compiled(part: str, given: Given, tokens: int) -> tuple[Tensor, ...]:
    """LN(t) and, pre-LN, t, by the loops or the kernels, whose gradients reach the parameters."""
    x, stream, width = given["x"], given.get("stream"), given["x"].shape[-1]
    if part == "mlp":
        mlp = OneLayerMLP(width)
        del mlp.lin.weight, mlp.lin.bias
        mlp.lin.weight, mlp.lin.bias = given["first"], given["second"]
        outputs = add_mlp(x, stream, mlp, EPS)
    else:
        attention = OneMatrixAttention(width)
        del attention.qk.weight, attention.vo.weight
        attention.qk.weight, attention.vo.weight = given["first"], given["second"]
        outputs = add_attention(x, stream, attention, tokens, EPS)
    assert (outputs[1] is None) == (stream is None)
    return tuple(tensor for tensor in outputs if tensor is not None)


def definition(part: str, given: Given, tokens: int) -> tuple[Tensor, ...]:
    """The same, as the paper writes it."""
    x, first, second = given["x"], given["first"], given["second"]
    if part == "mlp":
        added = torch.relu(x @ first.mT + second.unsqueeze(1))
    else:
        samples, queries = (tensor.unflatten(1, (-1, tokens)) for tensor in (x, x @ first.mT))
        scores = queries @ samples.mT / math.sqrt(x.shape[-1])
        mask = torch.full((tokens, tokens), -math.inf, dtype=x.dtype).triu(1)
        added = (torch.softmax(scores + mask, -1) @ samples).flatten(1, 2) @ second.mT
    total = given.get("stream", x) + added
    centred = total - total.mean(-1, keepdim=True)
    normalised = centred / (centred.square().mean(-1, keepdim=True) + EPS).sqrt()
    return (normalised, total) if "stream" in given else (normalised,)


def results(function: HalfBlock, part: str, given: Given, tokens: int) -> dict[str, Tensor]:
    """Results, and gradients of what they are multiplied with, which is the same in each run."""
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in given.items()}
    outputs = function(part, leaves, tokens)
    slopes = [
        normal(*output.shape[1:], seed=seed).to(output.dtype).repeat(len(output), 1, 1)
        for seed, output in enumerate(outputs)
    ]
    gradients = torch.autograd.grad(outputs, list(leaves.values()), slopes)
    values = {f"result {index}": output.detach() for index, output in enumerate(outputs)}
    return values | dict(zip(leaves, gradients, strict=True))


def double(given: Given) -> Given:
    return {name: tensor.double() for name, tensor in given.items()}


def assert_close(actual: dict[str, Tensor], expected: dict[str, Tensor], error: float = 2e-6) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        scale = max(float(value.abs().max()), 1e-2)
        assert float((actual[name].double() - value).abs().max()) < error * scale, name
