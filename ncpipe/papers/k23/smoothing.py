"""Solve the UFM with label smoothing, of width at least K - 1: soft targets (1 - delta) e_y + delta/K.

The optimum keeps its directions and shrinks. Under cross-entropy smoothing adds delta (K-1)/K times the logit
gap to the loss, as more decay would: kappa + delta replaces kappa.

K  classes
"""

import math

from ncpipe.study import ufm


def ufm_contrast(loss: ufm.Loss, classes: int, kappa: float, delta: float) -> float:
    """Return alpha of the optimal logits alpha E_K; 0 from kappa + delta = 1 on.

    log(K/(kappa + delta) - K + 1) for cross-entropy and 1 - kappa - delta for MSE, where logits without bias
    have a common part too. kappa: of `ufm.kappa`. Raises InputError for an unknown loss.
    """
    ufm.check_loss(loss)
    total = kappa + delta
    if total >= 1:
        return 0.0
    return math.log(classes / total - classes + 1) if loss == "ce" else 1 - total


def ufm_value(loss: ufm.Loss, classes: int, kappa: float, delta: float) -> float:
    """Return the least value of the UFM with decay and an unpenalised bias (cross-entropy: or without)."""
    contrast = ufm_contrast(loss, classes, kappa, delta)
    share = (classes - 1) / classes
    if loss == "ce":
        return math.log1p((classes - 1) * math.exp(-contrast)) + (kappa + delta) * share * contrast
    return share * ((contrast - 1 + delta) ** 2 / 2 + kappa * contrast)
