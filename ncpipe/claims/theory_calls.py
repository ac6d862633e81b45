"""Compute numbers of the theory for claims with `quantity: theory`, which call these functions by name.

These are of the generalised unconstrained features model [S25 Def. 3.5, Lemma 4.2]; a study.py adds its own
calls. The function with `_numerical` behind its name computes the same number by numerical minimisation,
which shares no formula with it.
"""

from collections.abc import Callable
from typing import Annotated

import torch
from scipy.optimize import minimize_scalar

from ncpipe.config.bounds import Bound, Count, Index, Positive
from ncpipe.metrics.table import measure
from ncpipe.models.loss_functions import LOSSES
from ncpipe.system.randomness import seeded_generator
from ncpipe.theory import gufm
from ncpipe.theory.frames import simplex_frame, zero_sum_basis
from ncpipe.theory.numerical import NumericalOptimum, minimise_gufm
from ncpipe.theory.ufm import Loss

Classes = Annotated[int, Bound(low=2)]


def gufm_value(loss: Loss, classes: Classes, width: Count, strength: Positive, bias: bool = False) -> float:
    """Return the least regularised loss for features of length sqrt(d)."""
    return gufm.optimal_value(loss, classes, width, strength, bias)


def gufm_value_numerical(
    loss: Loss, classes: Classes, width: Count, strength: Positive, bias: bool = False
) -> float:
    return _minimum(loss, classes, width, strength, bias, per_class=1).value


def gufm_collapse(
    loss: Loss, classes: Classes, width: Count, strength: Positive, per_class: Count, bias: bool = False
) -> float:
    """Return the largest of NC1, NC2 and NC3 at a numerical minimum with n free features per class."""
    minimum = _minimum(loss, classes, width, strength, bias, per_class)
    labels = torch.arange(classes).repeat_interleave(per_class)
    values = measure(minimum.features, labels, minimum.weight)
    nc2 = "nc2_identity" if loss == "mse" and not bias else "nc2_etf"
    return max(values["nc1_trace_ratio"], values[nc2], values["nc3_cosine"])


def gufm_rescaled(
    loss: Loss, classes: Classes, width: Count, strength: Positive, seed: Index, bias: bool = False
) -> float:
    """Return the loss of a random collapsed pair with W at its best scale, over the least loss."""
    orthogonal = loss == "mse" and not bias
    frame = torch.eye(classes).double() if orthogonal else simplex_frame(classes)
    basis = zero_sum_basis(width)
    least_value = gufm.optimal_value(loss, classes, width, strength, bias)  # says which widths have room
    normal = torch.randn(width - 1, frame.shape[1], generator=seeded_generator(seed, "frame"))
    rows = frame @ torch.linalg.qr(normal.double()).Q.T @ basis
    logits, targets = width**0.5 * rows @ rows.T, torch.eye(classes).double()
    centre = 1 / classes if loss == "mse" and bias else 0.0

    def value(scale: float) -> float:
        fit = LOSSES[loss](scale * logits + centre, targets).mean()
        return float(fit + strength / 2 * scale**2 * rows.square().sum())

    best = minimize_scalar(value, bounds=(0, 100), method="bounded", options={"xatol": 1e-10})
    return float(best.fun) / least_value


def _minimum(
    loss: Loss, classes: int, width: int, strength: float, bias: bool, per_class: int
) -> NumericalOptimum:
    """Return a numerical minimum, the best of four starts."""
    targets = torch.eye(classes).repeat_interleave(per_class, 0)
    counts = torch.ones(len(targets))
    return minimise_gufm(LOSSES[loss], targets, counts, width, strength, bias, starts=4, seed=0)


THEORY_CALLS: dict[str, tuple[Callable[..., float], ...]] = {
    "gufm.value": (gufm_value, gufm_value_numerical),
    "gufm.collapse": (gufm_collapse,),
    "gufm.rescaled": (gufm_rescaled,),
}
