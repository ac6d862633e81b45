"""Descent on small problems in float64."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

Array = np.ndarray
Bounds = Sequence[tuple[float | None, float | None]]


class End(NamedTuple):
    """Where a descent stopped: the loss and the free numbers."""

    value: float
    point: Array


def descend(
    objective: Callable[[Tensor], Tensor],
    start: Array,
    *,
    steps: int,
    slope: float,
    bounds: Bounds | None = None,
) -> End:
    """Return the end of L-BFGS from a start, after at most `steps` or at a largest derivative of `slope`."""

    def evaluate(values: Array) -> tuple[float, Array]:
        flat = torch.from_numpy(values).requires_grad_()
        value = objective(flat)
        (gradient,) = torch.autograd.grad(value, flat)
        return value.item(), gradient.numpy()

    options = {"maxiter": steps, "maxfun": 2 * steps, "maxcor": 20, "ftol": 0.0, "gtol": slope}
    found = minimize(evaluate, start, jac=True, bounds=bounds, method="L-BFGS-B", options=options)
    return End(float(found.fun), found.x)
