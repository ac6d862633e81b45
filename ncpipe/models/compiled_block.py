"""Compute LN(x + ReLU(z + b)) of stacked runs, and its gradient, in one loop over the rows. Needs numba.

PyTorch takes four passes over memory for the same, and its layer normalisation of short rows is slow.

S  runs    M  rows    d  width
"""

import numpy as np

from ncpipe.system.compile import compiled

# Sums may be taken in any order, several terms at a time. NaN and infinity stay what they are.
ANY_ORDER = {"reassoc", "contract"}


def _both_precisions(arguments: str) -> list[str]:
    """Return the signatures with arrays of float32 and of float64 for names of numbers of dimensions."""
    found = []
    for number in ("float32", "float64"):
        typed = arguments.replace("three", f"{number}[:,:,::1]").replace("two", f"{number}[:,::1]")
        found.append(f"void({typed})")
    return found


@compiled(_both_precisions("three, two, float64, three, boolean[:,:,::1], two"), ANY_ORDER)
def finish_block(
    x: np.ndarray, bias: np.ndarray, eps: float, y: np.ndarray, active: np.ndarray, scale: np.ndarray
) -> None:
    """Replace z in y (S, M, d) by LN(x + ReLU(z + bias)), for x (S, M, d) and bias (S, d).

    Writes where the ReLU is active to `active` (S, M, d), and 1/sqrt(variance + eps) to `scale` (S, M).
    """
    runs, rows, width = x.shape
    zero, one, count, small = x.dtype.type(0), x.dtype.type(1), x.dtype.type(width), x.dtype.type(eps)
    for s in range(runs):
        for i in range(rows):
            total = squares = zero
            for j in range(width):
                z = y[s, i, j] + bias[s, j]
                active[s, i, j] = not z <= 0  # NaN passes
                y[s, i, j] = x[s, i, j] + (zero if z <= 0 else z)
                total += y[s, i, j]
            mean = total / count
            for j in range(width):
                squares += (y[s, i, j] - mean) * (y[s, i, j] - mean)
            factor = one / np.sqrt(squares / count + small)
            for j in range(width):
                y[s, i, j] = (y[s, i, j] - mean) * factor
            scale[s, i] = factor


@compiled(_both_precisions("three, three, boolean[:,:,::1], two, three, three"), ANY_ORDER)
def finish_block_backward(
    g: np.ndarray,
    y: np.ndarray,
    active: np.ndarray,
    scale: np.ndarray,
    of_x: np.ndarray,
    of_z: np.ndarray,
) -> None:
    """Write the gradients of x and of z to of_x and of_z (S, M, d), from that of y, g (S, M, d)."""
    runs, rows, width = g.shape
    zero, count = g.dtype.type(0), g.dtype.type(width)
    for s in range(runs):
        for i in range(rows):
            total = product = zero
            for j in range(width):
                total += g[s, i, j]
                product += g[s, i, j] * y[s, i, j]
            mean, slope, factor = total / count, product / count, scale[s, i]
            for j in range(width):
                gradient = (g[s, i, j] - mean - y[s, i, j] * slope) * factor
                of_x[s, i, j] = gradient
                of_z[s, i, j] = gradient if active[s, i, j] else zero
