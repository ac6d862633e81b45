"""The optimum of the features model whose targets are vectors [Andriopoulos et al. 2024, eq. 1, Thm 4.1].

|W H + b 1^T - Y|^2/(2 N) + lambda_H |H|^2/(2 N) + lambda_W |W|^2/2, with c = lambda_W lambda_H.

N  samples    t  numbers of a target    d  width
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ncpipe.metrics.nrc import covariance as covariance
from ncpipe.system.errors import InputError


@dataclass(frozen=True)
class RegressionOptimum:
    """The global minimum, by its terms; all float64.

    fit: of the targets. last_penalty: lambda_W/2 |W|^2. feature_penalty: lambda_H/(2 N) |H|^2, which is the
    same number. gram: W W^T (t, t). rank: of it.
    """

    fit: float
    last_penalty: float
    feature_penalty: float
    gram: Tensor
    rank: int

    @property
    def loss(self) -> float:
        return self.fit + self.last_penalty + self.feature_penalty


def regression_optimum(moment: Tensor, weight: float, features: float, width: int) -> RegressionOptimum:
    """Return the optimum for targets with covariance Sigma = `moment` (t, t), about 0 without a bias.

    weight, features: lambda_W and lambda_H, both positive. Of the `width` largest eigenvalues s^2 of Sigma
    those above c are fitted: W W^T = sqrt(lambda_H/lambda_W) (s - sqrt(c)) along their axes, and c is left of
    their variance. All others are left as they are. The least loss is the sum of sqrt(c) (s - sqrt(c)/2) over
    the fitted ones and of s^2/2 over the others. Raises InputError for penalties that are not positive.
    """
    if not (min(weight, features) > 0 and math.isfinite(weight * features)):
        raise InputError(f"lambda_W {weight:g}, lambda_H {features:g}; both must be positive, and finite")
    root = math.sqrt(weight * features)
    variances, axes = torch.linalg.eigh(moment.double())
    deviations = variances.clamp(min=0).sqrt()  # rounding leaves variances of 0 below 0
    kept = (deviations > root) & (torch.arange(len(deviations)) >= len(deviations) - width)
    above = torch.where(kept, deviations - root, 0.0)
    fit = torch.where(kept, root**2, deviations.square()).sum() / 2
    penalty = float(root / 2 * above.sum())
    gram = math.sqrt(features / weight) * axes * above @ axes.T
    return RegressionOptimum(float(fit), penalty, penalty, gram, int(kept.sum()))
