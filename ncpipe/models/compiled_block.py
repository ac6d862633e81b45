"""Compute what a residual block does beside its matrix products, and the gradients, in loops over rows.

Needs numba. PyTorch takes several passes over memory for the same, its layer normalisation of short rows is
slow, and so are its products of tiny matrices, which attention over few tokens has.
`ncpipe.models.residual_block` makes blocks of these loops and of PyTorch's products.

S  runs    M  rows: samples x tokens    C  tokens per sample    d  width
"""

import numpy as np

from ncpipe.system.compile import compiled

# Sums may be taken in any order, several terms at a time. NaN and infinity stay what they are.
ANY_ORDER = {"reassoc", "contract"}


def _both_precisions(arguments: str, result: str = "void") -> list[str]:
    """Return the signatures for arrays of float32 and of float64, whose numbers of dimensions are named."""
    dimensions = {"one": "[::1]", "two": "[:,::1]", "three": "[:,:,::1]"}
    signatures = []
    for number in ("float32", "float64"):
        types = [
            number + dimensions[kind] if kind in dimensions else kind.replace("number", number)
            for kind in (*arguments.split(), result)
        ]
        signatures.append(f"{types[-1]}({', '.join(types[:-1])})")
    return signatures


@compiled(_both_precisions("one float64 one", "number"), ANY_ORDER)
def _normalise(x: np.ndarray, eps: float, y: np.ndarray) -> float:
    """Write LN(x) to y (d,), which may be x itself, and return 1/sqrt(variance + eps)."""
    zero, one, count, small = x.dtype.type(0), x.dtype.type(1), x.dtype.type(len(x)), x.dtype.type(eps)
    total = squares = zero
    for j in range(len(x)):
        total += x[j]
    mean = total / count
    for j in range(len(x)):
        squares += (x[j] - mean) * (x[j] - mean)
    factor = one / np.sqrt(squares / count + small)
    for j in range(len(x)):
        y[j] = (x[j] - mean) * factor
    return factor


@compiled(_both_precisions("one one number one"), ANY_ORDER)
def _normalise_backward(g: np.ndarray, y: np.ndarray, scale: float, of_x: np.ndarray) -> None:
    """Write the gradient of x to of_x (d,) from that of y = LN(x), g; scale is what `_normalise` returned."""
    zero, count = g.dtype.type(0), g.dtype.type(len(g))
    total = product = zero
    for j in range(len(g)):
        total += g[j]
        product += g[j] * y[j]
    mean, slope = total / count, product / count
    for j in range(len(g)):
        of_x[j] = (g[j] - mean - y[j] * slope) * scale


@compiled(_both_precisions("three three float64 three two"), ANY_ORDER)
def add(stream: np.ndarray, z: np.ndarray, eps: float, y: np.ndarray, scale: np.ndarray) -> None:
    """Replace z (S, M, d) by stream + z, and write its LN to y (S, M, d), which may be z itself.

    Writes 1/sqrt(variance + eps) to `scale` (S, M).
    """
    runs, rows, width = stream.shape
    for s in range(runs):
        for i in range(rows):
            for j in range(width):
                z[s, i, j] += stream[s, i, j]
            scale[s, i] = _normalise(z[s, i], eps, y[s, i])


@compiled(_both_precisions("three two three float64 boolean[:,:,::1] three two"), ANY_ORDER)
def add_relu(
    stream: np.ndarray,
    bias: np.ndarray,
    z: np.ndarray,
    eps: float,
    active: np.ndarray,
    y: np.ndarray,
    scale: np.ndarray,
) -> None:
    """Replace z (S, M, d) by stream + ReLU(z + bias), and write its LN to y (S, M, d), which may be z itself.

    bias is (S, d). Writes where the ReLU is active to `active` (S, M, d), and 1/sqrt(variance + eps) to
    `scale` (S, M).
    """
    runs, rows, width = stream.shape
    zero = stream.dtype.type(0)
    for s in range(runs):
        for i in range(rows):
            for j in range(width):
                entry = z[s, i, j] + bias[s, j]
                active[s, i, j] = not entry <= 0  # NaN passes
                z[s, i, j] = stream[s, i, j] + (zero if entry <= 0 else entry)
            scale[s, i] = _normalise(z[s, i], eps, y[s, i])


@compiled(_both_precisions("three three boolean[:,:,::1] three two three three"), ANY_ORDER)
def add_backward(
    g: np.ndarray,
    of_sum: np.ndarray,
    active: np.ndarray,
    y: np.ndarray,
    scale: np.ndarray,
    of_stream: np.ndarray,
    of_z: np.ndarray,
) -> None:
    """Write the gradients of the stream and of z to of_stream and of_z (S, M, d), for `add` and `add_relu`.

    g is the gradient of y, and of_sum that of the sum, which has no rows where nothing else reads the sum.
    `active` has no rows for `add`: the gradients are one then, and of_z is left as it is.
    """
    runs, rows, width = g.shape
    zero = g.dtype.type(0)
    sum_is_read, has_relu = of_sum.shape[1] > 0, active.shape[1] > 0
    for s in range(runs):
        for i in range(rows):
            _normalise_backward(g[s, i], y[s, i], scale[s, i], of_stream[s, i])
            if sum_is_read:
                for j in range(width):
                    of_stream[s, i, j] += of_sum[s, i, j]
            if has_relu:
                for j in range(width):
                    of_z[s, i, j] = of_stream[s, i, j] if active[s, i, j] else zero


@compiled(_both_precisions("three three three three"), ANY_ORDER)
def attend_rows(query: np.ndarray, x: np.ndarray, weights: np.ndarray, attended: np.ndarray) -> None:
    """Write causal attention of queries to the rows x to `attended` (S, M, d), and its weights (S, M, C).

    Row i of a sample takes rows k <= i with weights softmax_k(query_i . x_k / sqrt(d)); other weights are
    left as they are.
    """
    runs, rows, width = x.shape
    tokens = weights.shape[2]
    zero, factor = x.dtype.type(0), x.dtype.type(1) / np.sqrt(x.dtype.type(width))
    for s in range(runs):
        for i in range(rows):
            first = i - i % tokens
            row, largest = weights[s, i], x.dtype.type(-np.inf)
            for k in range(first, i + 1):
                score = zero
                for j in range(width):
                    score += query[s, i, j] * x[s, k, j]
                row[k - first] = score * factor
                largest = max(largest, row[k - first])
            total = zero
            for k in range(i + 1 - first):
                row[k] = np.exp(row[k] - largest)
                total += row[k]
            for j in range(width):
                attended[s, i, j] = zero
            for k in range(first, i + 1):
                weight = row[k - first] / total
                row[k - first] = weight
                for j in range(width):
                    attended[s, i, j] += weight * x[s, k, j]


@compiled(_both_precisions("three three three three three three"), ANY_ORDER)
def attend_rows_backward(
    g: np.ndarray,
    query: np.ndarray,
    x: np.ndarray,
    weights: np.ndarray,
    of_query: np.ndarray,
    of_x: np.ndarray,
) -> None:
    """Write the gradient of the queries to of_query, and add that of x to of_x (S, M, d).

    g is the gradient of what `attend_rows` writes to `attended`.
    """
    runs, rows, width = x.shape
    tokens = weights.shape[2]
    zero, factor = x.dtype.type(0), x.dtype.type(1) / np.sqrt(x.dtype.type(width))
    slopes = np.empty(tokens, x.dtype)
    for s in range(runs):
        for i in range(rows):
            first = i - i % tokens
            mean = zero
            for k in range(first, i + 1):
                slope = zero
                for j in range(width):
                    slope += g[s, i, j] * x[s, k, j]
                slopes[k - first] = slope
                mean += weights[s, i, k - first] * slope
            for j in range(width):
                of_query[s, i, j] = zero
            for k in range(first, i + 1):
                weight = weights[s, i, k - first]
                slope = weight * (slopes[k - first] - mean) * factor
                for j in range(width):
                    of_query[s, i, j] += slope * x[s, k, j]
                    of_x[s, k, j] += weight * g[s, i, j] + slope * query[s, i, j]
