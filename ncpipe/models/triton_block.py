"""Compute half blocks of stacked runs, and layer norm of short rows, in one kernel each way on a GPU.

Needs Triton and float32. A half block is y = LN(t), t = base + f(x), where base is the stream pre-LN and x
post-LN, and f an MLP, ReLU(W x + b), or causal attention with a matrix for scores and one for values.
`ncpipe.models.residual_block` makes blocks of these functions, as of the loops of `compiled_block` on a CPU.

A program takes some tiles of a run. A tile is whole samples, of at most ROWS rows together; a sample of more
tokens is a tile by itself, in two parts. Products of a tile stay on the chip. A weight's gradient is summed
over the tiles of a program and then over the programs, whose number depends on the rows alone: the order of
a sum is not the card's, and the same twice. Shared memory of 48 kB suffices, which every card has.

S  runs    M  rows: samples x tokens    C  tokens per sample    d  width (16, 32 or 64)
"""

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = tl.constexpr(32)
# Programs of a run: five runs have one for each of an H100's 132 processors, whose registers it fills.
PARTS = 26
WARPS = 8  # of a half block: the registers of 4 are too few
NORM_NUMBERS = 4096  # that a program of layer norm alone takes


# ---- Kernels --------------------------------------------------------------------------------------------
# Names of tensors end in _ptr. What is None is left out when the kernel is compiled. `origin` is the run's
# first row, and `at` has the entries of a part of a tile, counted from there.


@triton.jit
def _normalise(t, eps, D: tl.constexpr):
    """Return LN of rows (ROWS, D), and 1/sqrt(variance + eps)."""
    centred = t - (tl.sum(t, 1) / D)[:, None]
    scale = 1 / tl.sqrt(tl.sum(centred * centred, 1) / D + eps)
    return centred * scale[:, None], scale


@triton.jit
def _normalise_backward(g, y, scale, D: tl.constexpr):
    """Return the gradient of the rows from that of y, which is their LN."""
    mean, slope = tl.sum(g, 1) / D, tl.sum(g * y, 1) / D
    return (g - mean[:, None] - y * slope[:, None]) * scale[:, None]


@triton.jit
def _norm_forward(x_ptr, y_ptr, scale_ptr, rows, eps, D: tl.constexpr, TILE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    at, used = row[:, None] * D + tl.arange(0, D)[None, :], row < rows
    y, scale = _normalise(tl.load(x_ptr + at, used[:, None], 0.0), eps, D)
    tl.store(y_ptr + at, y, used[:, None])
    tl.store(scale_ptr + row, scale, used)


@triton.jit
def _norm_backward(g_ptr, y_ptr, scale_ptr, of_x_ptr, rows, D: tl.constexpr, TILE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    at, used = row[:, None] * D + tl.arange(0, D)[None, :], row < rows
    g, y = tl.load(g_ptr + at, used[:, None], 0.0), tl.load(y_ptr + at, used[:, None], 0.0)
    scale = tl.load(scale_ptr + row, used, 0.0)
    tl.store(of_x_ptr + at, _normalise_backward(g, y, scale, D), used[:, None])


@triton.jit
def _square(ptr, step, D: tl.constexpr):
    """Return a run's matrix; `step` is the distance of two runs' matrices."""
    column = tl.arange(0, D)
    return tl.load(ptr + tl.program_id(1).to(tl.int64) * step + column[:, None] * D + column[None, :])


@triton.jit
def _part(tile, tile_rows, first, rows, D: tl.constexpr):
    """Return which of a tile's rows from `first` on are used, their numbers and their entries."""
    inside = first + tl.arange(0, ROWS)
    row = tile * tile_rows + inside
    return (inside < tile_rows) & (row < rows), row, row[:, None] * D + tl.arange(0, D)[None, :]


@triton.jit
def _read(ptr, origin, at, used, D: tl.constexpr):
    return tl.load(ptr + origin * D + at, used[:, None], 0.0)


@triton.jit
def _write(ptr, value, origin, at, used, D: tl.constexpr):
    tl.store(ptr + origin * D + at, value, used[:, None])


@triton.jit
def _add(z, base_ptr, y_ptr, total_ptr, scale_ptr, origin, row, at, used, eps, D: tl.constexpr):
    """Write LN(base + z) with its scale and, if it is asked for, base + z."""
    t = _read(base_ptr, origin, at, used, D) + z
    y, scale = _normalise(t, eps, D)
    _write(y_ptr, y, origin, at, used, D)
    tl.store(scale_ptr + origin + row, scale, used)
    if total_ptr is not None:
        _write(total_ptr, t, origin, at, used, D)


@triton.jit
def _add_backward(g_ptr, of_sum_ptr, y_ptr, scale_ptr, origin, row, at, used, D: tl.constexpr):
    """Return the gradient of base + z, of which something else may read the sum."""
    scale = tl.load(scale_ptr + origin + row, used, 0.0)
    g, y = _read(g_ptr, origin, at, used, D), _read(y_ptr, origin, at, used, D)
    of_total = _normalise_backward(g, y, scale, D)
    if of_sum_ptr is not None:
        of_total += _read(of_sum_ptr, origin, at, used, D)
    return of_total


@triton.jit
def _mlp_forward(
    x_ptr, base_ptr, weight_ptr, bias_ptr, y_ptr, total_ptr, active_ptr, scale_ptr,
    rows, tiles, weight_step, bias_step, eps, D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    run = tl.program_id(1).to(tl.int64)
    origin = run * rows
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        used, row, at = _part(tile, ROWS, 0, rows, D)
        weight = tl.trans(_square(weight_ptr, weight_step, D))
        z = tl.dot(_read(x_ptr, origin, at, used, D), weight, input_precision=PRECISION)
        z += tl.load(bias_ptr + run * bias_step + tl.arange(0, D))[None, :]
        stopped = z <= 0  # not NaN, which passes
        _write(active_ptr, (stopped == 0).to(tl.int8), origin, at, used, D)
        z = tl.where(stopped, 0.0, z)
        _add(z, base_ptr, y_ptr, total_ptr, scale_ptr, origin, row, at, used, eps, D)


@triton.jit
def _mlp_backward(
    g_ptr, of_sum_ptr, x_ptr, weight_ptr, active_ptr, y_ptr, scale_ptr, of_x_ptr, of_stream_ptr, parts_ptr,
    rows, tiles, weight_step, D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    run = tl.program_id(1).to(tl.int64)
    origin = run * rows
    of_weight, of_bias = tl.zeros((D, D), tl.float32), tl.zeros((D,), tl.float32)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        used, row, at = _part(tile, ROWS, 0, rows, D)
        of_total = _add_backward(g_ptr, of_sum_ptr, y_ptr, scale_ptr, origin, row, at, used, D)
        active = tl.load(active_ptr + origin * D + at, used[:, None], 0)
        of_z = tl.where(active != 0, of_total, 0.0)
        x = _read(x_ptr, origin, at, used, D)
        of_weight = tl.dot(tl.trans(of_z), x, of_weight, input_precision=PRECISION)
        of_bias += tl.sum(of_z, 0)
        # In the loop, because matrices that are kept for it do not fit into the registers.
        of_x = tl.dot(of_z, _square(weight_ptr, weight_step, D), input_precision=PRECISION)
        if of_stream_ptr is None:
            of_x += of_total
        else:
            _write(of_stream_ptr, of_total, origin, at, used, D)
        _write(of_x_ptr, of_x, origin, at, used, D)
    column = tl.arange(0, D)
    parts_ptr += (tl.program_id(0) * tl.num_programs(1) + run) * (D * D + D)
    tl.store(parts_ptr + column[:, None] * D + column[None, :], of_weight)
    tl.store(parts_ptr + D * D + column, of_bias)


@triton.jit
def _scores(query, x, first, other, tokens, factor, PRECISION: tl.constexpr):
    """Return what rows from `first` on of a tile ask of its rows from `other` on; -inf for rows not seen."""
    row, seen = (first + tl.arange(0, ROWS))[:, None], (other + tl.arange(0, ROWS))[None, :]
    scores = tl.dot(query, tl.trans(x), input_precision=PRECISION) * factor
    return tl.where((row // tokens == seen // tokens) & (seen <= row), scores, float("-inf"))


@triton.jit
def _attention_forward(
    x_ptr, base_ptr, qk_ptr, vo_ptr, y_ptr, total_ptr, query_ptr, attended_ptr, log_sum_ptr, scale_ptr,
    rows, tiles, tile_rows, tokens, qk_step, vo_step, factor, eps,
    LONG: tl.constexpr, D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    origin = tl.program_id(1).to(tl.int64) * rows
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        for first in tl.static_range(0, 2 * ROWS if LONG else ROWS, ROWS):
            used, row, at = _part(tile, tile_rows, first, rows, D)
            x = _read(x_ptr, origin, at, used, D)
            query = tl.dot(x, tl.trans(_square(qk_ptr, qk_step, D)), input_precision=PRECISION)
            _write(query_ptr, query, origin, at, used, D)
            scores = _scores(query, x, first, first, tokens, factor, PRECISION)
            largest = tl.max(scores, 1)
            if first > 0:
                earlier_used, _, earlier_at = _part(tile, tile_rows, 0, rows, D)
                earlier = _read(x_ptr, origin, earlier_at, earlier_used, D)
                of_earlier = _scores(query, earlier, first, 0, tokens, factor, PRECISION)
                largest = tl.maximum(largest, tl.max(of_earlier, 1))
            weights = tl.exp(scores - largest[:, None])
            total = tl.sum(weights, 1)
            attended = tl.dot(weights, x, input_precision=PRECISION)
            if first > 0:
                weights = tl.exp(of_earlier - largest[:, None])
                total += tl.sum(weights, 1)
                attended = tl.dot(weights, earlier, attended, input_precision=PRECISION)
            attended = attended / total[:, None]
            _write(attended_ptr, attended, origin, at, used, D)
            tl.store(log_sum_ptr + origin + row, largest + tl.log(total), used)
            z = tl.dot(attended, tl.trans(_square(vo_ptr, vo_step, D)), input_precision=PRECISION)
            _add(z, base_ptr, y_ptr, total_ptr, scale_ptr, origin, row, at, used, eps, D)


@triton.jit
def _pair(
    query, of_attended, mean, log_sum, x, of_query, of_x, first, other, tokens, factor,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Add to the gradients of queries in the rows from `first` on, and of x in the rows from `other` on."""
    weights = tl.exp(_scores(query, x, first, other, tokens, factor, PRECISION) - log_sum[:, None])
    slopes = tl.dot(of_attended, tl.trans(x), input_precision=PRECISION)
    if mean is None:
        mean = tl.sum(weights * slopes, 1)
    slopes = weights * (slopes - mean[:, None]) * factor
    of_x = tl.dot(tl.trans(weights), of_attended, of_x, input_precision=PRECISION)
    of_x = tl.dot(tl.trans(slopes), query, of_x, input_precision=PRECISION)
    return tl.dot(slopes, x, of_query, input_precision=PRECISION), of_x


@triton.jit
def _attention_backward(
    g_ptr, of_sum_ptr, x_ptr, qk_ptr, vo_ptr, query_ptr, attended_ptr, log_sum_ptr, y_ptr, scale_ptr,
    of_x_ptr, of_stream_ptr, parts_ptr, rows, tiles, tile_rows, tokens, qk_step, vo_step, factor,
    LONG: tl.constexpr, D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    run = tl.program_id(1).to(tl.int64)
    origin = run * rows
    of_qk, of_vo = tl.zeros((D, D), tl.float32), tl.zeros((D, D), tl.float32)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        of_x = tl.zeros((ROWS, D), tl.float32)
        for back in range(0, 2 * ROWS if LONG else ROWS, ROWS):  # later rows add to earlier ones
            first = (ROWS if LONG else 0) - back
            used, row, at = _part(tile, tile_rows, first, rows, D)
            of_total = _add_backward(g_ptr, of_sum_ptr, y_ptr, scale_ptr, origin, row, at, used, D)
            if of_stream_ptr is None:
                of_x += of_total
            else:
                _write(of_stream_ptr, of_total, origin, at, used, D)
            attended = _read(attended_ptr, origin, at, used, D)
            of_vo = tl.dot(tl.trans(of_total), attended, of_vo, input_precision=PRECISION)
            of_attended = tl.dot(of_total, _square(vo_ptr, vo_step, D), input_precision=PRECISION)
            # The mean slope of a row, weighted; in one part it is exact where a row attends to one alone.
            mean = tl.sum(of_attended * attended, 1) if LONG else None
            x, query = _read(x_ptr, origin, at, used, D), _read(query_ptr, origin, at, used, D)
            log_sum = tl.load(log_sum_ptr + origin + row, used, 0.0)
            of_query, of_x = _pair(
                query, of_attended, mean, log_sum, x, tl.zeros((ROWS, D), tl.float32), of_x,
                first, first, tokens, factor, PRECISION,
            )  # fmt: skip
            of_earlier = tl.zeros((ROWS, D), tl.float32)
            if LONG and first > 0:
                earlier_used, _, earlier_at = _part(tile, tile_rows, 0, rows, D)
                earlier = _read(x_ptr, origin, earlier_at, earlier_used, D)
                of_query, of_earlier = _pair(
                    query, of_attended, mean, log_sum, earlier, of_query, of_earlier,
                    first, 0, tokens, factor, PRECISION,
                )  # fmt: skip
            of_qk = tl.dot(tl.trans(of_query), x, of_qk, input_precision=PRECISION)
            of_x = tl.dot(of_query, _square(qk_ptr, qk_step, D), of_x, input_precision=PRECISION)
            _write(of_x_ptr, of_x, origin, at, used, D)
            of_x = of_earlier
    column = tl.arange(0, D)
    square = column[:, None] * D + column[None, :]
    parts_ptr += (tl.program_id(0) * tl.num_programs(1) + run) * (2 * D * D)
    tl.store(parts_ptr + square, of_qk)
    tl.store(parts_ptr + D * D + square, of_vo)


# ---- Their calls ----------------------------------------------------------------------------------------

_LIBRARY = torch.library.Library("ncpipe", "DEF")


def _operation(function: Callable[..., Any]) -> Any:
    """Make a function an operation of PyTorch, so that what counts or records operations sees it.

    torch.library.custom_op does the same, but its first call imports PyTorch's compiler, which takes seconds.
    """
    schema = torch.library.infer_schema(function, mutates_args=())
    _LIBRARY.define(function.__name__ + schema)
    _LIBRARY.impl(function.__name__, function, "CompositeExplicitAutograd")
    return getattr(torch.ops.ncpipe, function.__name__)


def _precision() -> str:
    """Return how products are computed: in TF32, or in three products of TF32 as exactly as in float32."""
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "tf32x3"


def _as_list(tensor: Tensor | None) -> list[Tensor]:
    return [] if tensor is None else [tensor]


def _square_matrices(weight: Tensor) -> Tensor:
    """Return matrices (S, d, d) of contiguous rows, which may lie apart, as those of a stack do."""
    width = weight.shape[-1]
    return weight if weight.stride()[1:] == (width, 1) else weight.contiguous()


def _tiles(rows: int, tokens: int) -> tuple[int, int]:
    """Return how many rows a tile has at most, all of whole samples, and how many tiles there are."""
    tile_rows = max(ROWS.value // tokens, 1) * tokens
    return tile_rows, triton.cdiv(rows, tile_rows)


@_operation
def norm_forward(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return LN(x) of contiguous x (..., d), and 1/sqrt(variance + eps) of each row; d a power of 2."""
    width, y = x.shape[-1], torch.empty_like(x)
    rows, tile = x.numel() // width, max(NORM_NUMBERS // width, 1)
    scale = x.new_empty(x.shape[:-1])
    _norm_forward[(triton.cdiv(rows, tile),)](x, y, scale, rows, eps, D=width, TILE=tile)
    return y, scale


@_operation
def norm_backward(g: Tensor, y: Tensor, scale: Tensor) -> Tensor:
    """Return the gradient of x from g, that of y."""
    width, of_x, g = y.shape[-1], torch.empty_like(y), g.contiguous()
    rows, tile = y.numel() // width, max(NORM_NUMBERS // width, 1)
    _norm_backward[(triton.cdiv(rows, tile),)](g, y, scale, of_x, rows, D=width, TILE=tile)
    return of_x


@_operation
def mlp_forward(x: Tensor, stream: Tensor | None, weight: Tensor, bias: Tensor, eps: float) -> list[Tensor]:
    """Return y, where the ReLU is active, LN's scale and, if there is a stream, t.

    x and the stream (S, M, d) are contiguous; weight (S, d, d), bias (S, d).
    """
    (runs, rows, width), weight = x.shape, _square_matrices(weight)
    _, tiles = _tiles(rows, 1)
    y, active, scale = torch.empty_like(x), torch.empty_like(x, dtype=torch.int8), x.new_empty(runs, rows)
    total = None if stream is None else torch.empty_like(x)
    _mlp_forward[min(tiles, PARTS), runs](
        x, x if stream is None else stream, weight, bias, y, total, active, scale,
        rows, tiles, weight.stride(0), bias.stride(0), eps,
        D=width, PRECISION=_precision(), num_warps=WARPS, num_stages=1,
    )  # fmt: skip
    return [y, active, scale, *_as_list(total)]


@_operation
def mlp_backward(
    g: Tensor, of_sum: Tensor | None, x: Tensor, pre_norm: bool, weight: Tensor, active: Tensor, y: Tensor,
    scale: Tensor,
) -> list[Tensor]:  # fmt: skip
    """Return the gradients of x, of weight and bias as one (S, d*d + d) and, pre-LN, of the stream.

    g is the gradient of y, and of_sum, if there is one, that of t.
    """
    (runs, rows, width), weight = x.shape, _square_matrices(weight)
    _, tiles = _tiles(rows, 1)
    of_x, parts = torch.empty_like(x), x.new_empty(min(tiles, PARTS), runs, width * (width + 1))
    of_stream = torch.empty_like(x) if pre_norm else None
    _mlp_backward[len(parts), runs](
        g.contiguous(), None if of_sum is None else of_sum.contiguous(), x, weight, active, y, scale,
        of_x, of_stream, parts, rows, tiles, weight.stride(0),
        D=width, PRECISION=_precision(), num_warps=WARPS, num_stages=1,
    )  # fmt: skip
    return [of_x, parts.sum(0), *_as_list(of_stream)]


@_operation
def attention_forward(
    x: Tensor, stream: Tensor | None, qk: Tensor, vo: Tensor, tokens: int, eps: float
) -> list[Tensor]:
    """Return y, queries, what rows attend to, the log of softmax's sum, LN's scale and, pre-LN, t.

    x and the stream (S, M, d) are contiguous; qk and vo (S, d, d); samples have at most 2 ROWS tokens.
    """
    (runs, rows, width), qk, vo = x.shape, _square_matrices(qk), _square_matrices(vo)
    tile_rows, tiles = _tiles(rows, tokens)
    y, query, attended = (torch.empty_like(x) for _ in range(3))
    log_sum, scale = (x.new_empty(runs, rows) for _ in range(2))
    total = None if stream is None else torch.empty_like(x)
    _attention_forward[min(tiles, PARTS), runs](
        x, x if stream is None else stream, qk, vo, y, total, query, attended, log_sum, scale,
        rows, tiles, tile_rows, tokens, qk.stride(0), vo.stride(0), width**-0.5, eps,
        LONG=tile_rows > ROWS.value, D=width, PRECISION=_precision(), num_warps=WARPS, num_stages=1,
    )  # fmt: skip
    return [y, query, attended, log_sum, scale, *_as_list(total)]


@_operation
def attention_backward(
    g: Tensor, of_sum: Tensor | None, x: Tensor, pre_norm: bool, qk: Tensor, vo: Tensor, query: Tensor,
    attended: Tensor, log_sum: Tensor, y: Tensor, scale: Tensor, tokens: int,
) -> list[Tensor]:  # fmt: skip
    """Return the gradients of x, of qk and vo as one (S, 2, d, d) and, pre-LN, of the stream."""
    (runs, rows, width), qk, vo = x.shape, _square_matrices(qk), _square_matrices(vo)
    tile_rows, tiles = _tiles(rows, tokens)
    of_x, parts = torch.empty_like(x), x.new_empty(min(tiles, PARTS), runs, 2, width, width)
    of_stream = torch.empty_like(x) if pre_norm else None
    _attention_backward[len(parts), runs](
        g.contiguous(), None if of_sum is None else of_sum.contiguous(), x, qk, vo, query, attended, log_sum,
        y, scale, of_x, of_stream, parts,
        rows, tiles, tile_rows, tokens, qk.stride(0), vo.stride(0), width**-0.5,
        LONG=tile_rows > ROWS.value, D=width, PRECISION=_precision(), num_warps=WARPS, num_stages=1,
    )  # fmt: skip
    return [of_x, parts.sum(0), *_as_list(of_stream)]
