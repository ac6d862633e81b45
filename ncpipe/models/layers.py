"""Define the layers of S25's architectures: affine maps, normalisations, MLPs, attention, embeddings.

Every module reads its parameters with or without a leading run axis: a weight (o, i) belongs to one
network, a weight (S, o, i) to S networks of one shape that go through the same call side by side.
Shapes below leave that axis out; inputs carry it too, or are shared by all runs where it says so.

    d  width    M  rows: samples x tokens    C  tokens per sample    K  classes
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ncpipe.system import compile

# Up to this many tokens the fused kernel is slower than products (on a CPU twice the time at C = 4).
LONGEST_BY_PRODUCTS = 64
PRODUCTS_AT_A_TIME = 132  # as many as an H100 has processors
PRODUCT_SIDE = 64  # of the part of a product that one of them computes
FEWEST_ROWS = 128  # of a part of a product over rows
SHORT_ROW = 1024  # numbers; powers of 2 up to it have a kernel of their own on a GPU


class Affine(nn.Module):
    """x (M, i) -> x W^T + b, with W (o, i) and, if `bias`, b (o,)."""

    def __init__(self, inputs: int, outputs: int, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        stacked = self.weight.dim() == 3
        if stacked and x.is_cuda:
            return _LongAffine.apply(x, self.weight, self.bias)
        if stacked and x.dim() == 2:  # inputs shared by the runs
            x = x.expand(self.weight.shape[0], *x.shape)
        if self.bias is None:
            return x @ self.weight.mT
        if stacked:
            return torch.baddbmm(self.bias.unsqueeze(-2), x, self.weight.mT)
        return F.linear(x, self.weight, self.bias)


class _LongAffine(torch.autograd.Function):
    """x (S, M, i) or (M, i) -> x W^T + b of stacked runs; the gradient of W (S, o, i) is summed in parts."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        x = x.expand(len(weight), *x.shape[-2:])
        return x @ weight.mT if bias is None else torch.baddbmm(bias.unsqueeze(1), x, weight.mT)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_x = torch.bmm(g, weight) if ctx.needs_input_grad[0] else None
        if of_x is not None and x.dim() == 2:
            of_x = of_x.sum(0)
        return of_x, weight_gradient(g, x), g.sum(1) if ctx.has_bias else None


def weight_gradient(g: Tensor, x: Tensor) -> Tensor:
    """Return g^T x (S, o, i) of g (S, M, o) and x (S, M, i), or (M, i) of all runs.

    It is a sum over parts of the M rows: one small product over thousands of rows would keep few of a GPU's
    processors busy, and rounds more. The parts depend on the shapes alone, so that the sum is the same every
    time. Of shared x, which may be large, nothing is copied.
    """
    if x.dim() == 2:
        together = weight_gradient(g.transpose(0, 1).flatten(1).unsqueeze(0), x.unsqueeze(0))
        return together.unflatten(1, (len(g), -1)).squeeze(0)
    runs, rows, _ = x.shape
    tiles = -(-g.shape[2] // PRODUCT_SIDE) * -(-x.shape[2] // PRODUCT_SIDE)
    parts = max(min(PRODUCTS_AT_A_TIME // (runs * tiles), rows // FEWEST_ROWS), 1)
    while rows % parts:
        parts -= 1
    if parts == 1:
        return torch.bmm(g.mT, x)
    g, x = (tensor.reshape(runs * parts, rows // parts, tensor.shape[2]) for tensor in (g, x))
    return torch.bmm(g.mT, x).unflatten(0, (runs, parts)).sum(1)


def layer_norm(x: Tensor, eps: float) -> Tensor:
    """Return (x - mean)/sqrt(variance + eps) (..., d) over d [S25 sec. 3]; population variance.

    The result has mean 0 and, up to eps, norm sqrt(d).
    """
    if x.is_cuda and _kernel_normalises(x):
        return _ShortLayerNorm.apply(x, eps)
    # With a weight of ones PyTorch takes another kernel, which is nearly twice as fast on a CPU.
    weight = None if x.is_cuda else x.new_ones(x.shape[-1])
    return F.layer_norm(x, x.shape[-1:], weight, eps=eps)


def triton_problem() -> str:
    """Return why Triton's kernels do not run on this machine's GPU; '' if they do."""
    if problem := compile.problem_of_triton():
        return problem
    if torch.version.hip is not None:
        return "they have not been tried with ROCm"
    major, minor = torch.cuda.get_device_capability()
    return f"the card has compute capability {major}.{minor}, and they need 8.0" if major < 8 else ""


def _kernel_normalises(x: Tensor) -> bool:
    """Return whether a kernel for short rows does: with gradients, in float32, and not within vmap."""
    width = x.shape[-1]
    short = x.dtype == torch.float32 and 16 <= width <= SHORT_ROW and width & (width - 1) == 0
    traced = torch._C._functorch.is_functorch_wrapped_tensor(x)
    return short and torch.is_grad_enabled() and not traced and not triton_problem()


class _ShortLayerNorm(torch.autograd.Function):
    """LN of x (..., d) on a GPU, where PyTorch's takes a block of threads for each row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> Tensor:
        from ncpipe.models.triton_block import norm_forward  # loads Triton

        normalised: tuple[Tensor, Tensor] = norm_forward(x.contiguous(), eps)
        ctx.save_for_backward(x, *normalised)
        ctx.eps = eps
        return normalised[0]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        from ncpipe.models.triton_block import norm_backward

        x, y, scale = ctx.saved_tensors
        if torch.is_grad_enabled():  # somebody differentiates the gradient
            expected = F.layer_norm(x, x.shape[-1:], eps=ctx.eps)
            return *torch.autograd.grad(expected, x, g, create_graph=True), None
        return norm_backward(g, y, scale), None


class BatchNorm(nn.Module):
    """x (M, d) -> gain (x - mean)/sqrt(variance + eps) + shift, by the statistics of the M rows.

    In evaluation mode by the running ones, which in training mode are set to those of the latest batch.
    Population variance, in both.
    """

    momentum = 1.0
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))

    @torch.no_grad()
    def reset(self) -> None:
        """Set the gain to 1 and the shift to 0."""
        self.weight.fill_(1)
        self.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            if x.shape[-2] == 1:  # as PyTorch's, whose words these are
                raise ValueError("Expected more than 1 value per channel when training")
            mean = x.mean(-2, keepdim=True)
            variance = (x - mean).square().mean(-2, keepdim=True)
            with torch.no_grad():
                self.running_mean.copy_(mean.squeeze(-2))
                self.running_var.copy_(variance.squeeze(-2))
        else:
            mean, variance = self.running_mean.unsqueeze(-2), self.running_var.unsqueeze(-2)
        scale = self.weight.unsqueeze(-2) * torch.rsqrt(variance + self.eps)
        return (x - mean) * scale + self.bias.unsqueeze(-2)


class OneLayerMLP(nn.Module):
    """x -> ReLU(W x + b) [S25 eq. 1, 5], as post_activation(pre_activation(x))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lin = Affine(width, width)

    def pre_activation(self, x: Tensor) -> Tensor:
        """Return what enters the ReLU."""
        return self.lin(x)

    def post_activation(self, z: Tensor) -> Tensor:
        """Return the MLP's output from what enters the ReLU."""
        return torch.relu(z)


class TwoLayerMLP(nn.Module):
    """x -> W2 ReLU(W1 x + b1) + b2 [S25 eq. 2, 5], as post_activation(pre_activation(x))."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.lin1 = Affine(width, hidden)
        self.lin2 = Affine(hidden, width)

    def pre_activation(self, x: Tensor) -> Tensor:
        """Return what enters the ReLU."""
        return self.lin1(x)

    def post_activation(self, z: Tensor) -> Tensor:
        """Return the MLP's output from what enters the ReLU."""
        return self.lin2(torch.relu(z))


MLP = OneLayerMLP | TwoLayerMLP


def mlp(width: int, hidden: int | None) -> MLP:
    """Return a block's MLP: two-layer with a hidden width, one-layer without."""
    return OneLayerMLP(width) if hidden is None else TwoLayerMLP(width, hidden)


class OneMatrixAttention(nn.Module):
    """Z -> W_VO Z A, A = softmax(mask + Z^T W_QK Z / sqrt(d)), one matrix each [S25 eq. 6, L-T1x]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qk = Affine(width, width, bias=False)
        self.vo = Affine(width, width, bias=False)

    def forward(self, z: Tensor, tokens: int) -> Tensor:
        return self.vo(attend(self.qk(z), z, z, tokens))

    def of_last(self, z: Tensor, tokens: int, lengths: Tensor | None) -> Tensor:
        """Return the rows (N, d) of the tokens that samples predict from, at the cost of these alone."""
        query = self.qk(at_last_token(z, tokens, lengths))
        return self.vo(attend_from_last(query, z, z, tokens, lengths))


class TwoMatrixAttention(nn.Module):
    """Z -> W_O W_V Z A, A = softmax(mask + Z^T W_K^T W_Q Z / sqrt(d)) [S25 eq. 6, L-T2x]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.q = Affine(width, width, bias=False)
        self.k = Affine(width, width, bias=False)
        self.v = Affine(width, width, bias=False)
        self.o = Affine(width, width, bias=False)

    def forward(self, z: Tensor, tokens: int) -> Tensor:
        return self.o(attend(self.q(z), self.k(z), self.v(z), tokens))

    def of_last(self, z: Tensor, tokens: int, lengths: Tensor | None) -> Tensor:
        """Return the rows (N, d) of the tokens that samples predict from: their queries and outputs alone."""
        query = self.q(at_last_token(z, tokens, lengths))
        return self.o(attend_from_last(query, self.k(z), self.v(z), tokens, lengths))


Attention = OneMatrixAttention | TwoMatrixAttention


def attend(query: Tensor, key: Tensor, value: Tensor, tokens: int) -> Tensor:
    """Return causal single-head attention over samples of `tokens` rows each; all three are (N*C, d).

    Row j of a sample averages the values i <= j with weights softmax_i(query_j . key_i / sqrt(d)): the
    columns of S25's A, whose mask is -inf below the diagonal.
    """
    query, key, value = (x.unflatten(-2, (-1, tokens)) for x in (query, key, value))
    kernel = attend_by_products if tokens <= LONGEST_BY_PRODUCTS else attend_fused
    return kernel(query, key, value).flatten(-3, -2)


def attend_by_products(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Compute causal attention (..., C, d) in three steps; keeps the C x C weights for the backward pass."""
    return _Attention.apply(query, key, value)[0]


class _Attention(torch.autograd.Function):
    """Causal attention by products (..., C, d), and its weights (..., C, C).

    With four tokens autograd's own backward pass takes about half as long again: it scales a copy of the
    keys, and computes their gradient as a (d, C) matrix, for which CPU kernels are slow. As the weights are
    an output too, the backward pass can itself be differentiated.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        tokens, width = query.shape[-2:]
        mask = torch.full((tokens, tokens), -math.inf, dtype=query.dtype, device=query.device).triu(1)
        weights = torch.softmax((query @ key.mT) * width**-0.5 + mask, -1)
        return weights @ value, weights

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs, output[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, of_weights: Tensor | None) -> tuple[Tensor, ...]:
        query, key, value, weights = ctx.saved_tensors
        if gradient is None:  # only a second derivative asks for that of the weights alone
            gradient = torch.zeros_like(value)
        slopes = gradient @ value.mT
        if of_weights is not None:
            slopes = slopes + of_weights
        slopes = weights * (slopes - (weights * slopes).sum(-1, keepdim=True)) * query.shape[-1] ** -0.5
        return slopes @ key, slopes.mT @ query, weights.mT @ gradient


def attend_from_last(
    query: Tensor, key: Tensor, value: Tensor, tokens: int, lengths: Tensor | None
) -> Tensor:
    """Return what each sample's last token attends to (N, d): query (N, d), key and value (N*C, d).

    With `lengths` (N,) the last token is row `lengths` - 1, and no later row is read.
    """
    key, value = (x.unflatten(-2, (-1, tokens)) for x in (key, value))
    scores = (query.unsqueeze(-2) @ key.mT) * query.shape[-1] ** -0.5
    if lengths is not None:
        padding = torch.arange(tokens, device=lengths.device) >= lengths.unsqueeze(-1)
        scores = scores.masked_fill(padding.unsqueeze(-2), -math.inf)
    return (torch.softmax(scores, -1) @ value).squeeze(-2)


def at_last_token(z: Tensor, tokens: int, lengths: Tensor | None) -> Tensor:
    """Return (N, d) of z (N*C, d): each sample's last row, or row `lengths` - 1 if lengths (N,) are given.

    Padding follows the real tokens, so under the causal mask no earlier row has read any padding.
    """
    z = z.unflatten(-2, (-1, tokens))
    if lengths is None:
        return z[..., -1, :]
    index = (lengths - 1).unsqueeze(-1).unsqueeze(-1)
    return torch.take_along_dim(z, index.expand(*z.shape[:-2], 1, 1), dim=-2).squeeze(-2)


def attend_fused(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Compute causal attention (..., C, d) in one kernel, without the C x C weights in memory."""
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


class PatchEmbedding(nn.Module):
    """Patches (N, C, p) -> (N*C, d): W_e patch + W_p[position] [S25 Def. 3.2, App. B.1]."""

    def __init__(self, patch_size: int, tokens: int, width: int) -> None:
        super().__init__()
        self.patches = Affine(patch_size, width, bias=False)
        self.positions = nn.Parameter(torch.empty(tokens, width))

    def forward(self, x: Tensor) -> Tensor:
        z = self.patches(x.flatten(-3, -2)).unflatten(-2, (-1, x.shape[-2]))
        return (z + self.positions.unsqueeze(-3)).flatten(-3, -2)


class TokenEmbedding(nn.Module):
    """Token ids (N, C) -> (N*C, d): row W_e[token] + W_p[position] [S25 Def. 3.2]."""

    def __init__(self, vocabulary: int, tokens: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Parameter(torch.empty(vocabulary, width))
        self.positions = nn.Parameter(torch.empty(tokens, width))

    def forward(self, x: Tensor) -> Tensor:
        table: Tensor = self.tokens
        if table.dim() == 3:  # one lookup in the runs' tables laid end to end
            runs, vocabulary, _ = table.shape
            offsets = torch.arange(0, runs * vocabulary, vocabulary, device=x.device)
            x, table = x + offsets.view(-1, 1, 1), table.flatten(0, 1)
        return (F.embedding(x, table) + self.positions.unsqueeze(-3)).flatten(-3, -2)
