"""Compute the losses of DNC and SRG solutions of the deep unconstrained features model [S24 Def. 2, 9-11].

    1/(2N) |W_L relu(W_{L-1} ... relu(W_1 H_1)) - Y|^2 + sum_l lambda_Wl/2 |W_l|^2 + lambda_H/2 |H_1|^2

over the features H_1 of N = K n samples and W_1..W_L; Y one-hot, no biases, classes of n samples each. With
the best scale of every layer all L + 1 penalties are equal, to s/2, and the loss is

    L(s) = 1/2 sum_i 1/(m_i s^L/(G Lambda) + K) + L s/2,    Lambda = n lambda_H prod_l lambda_Wl

with m_i and G of the shape (`dufm_shapes`): least losses depend on all decays and on n through Lambda only.
S24's q is s/p for SRG, p = sqrt(n lambda_H lambda_W1) (sqrt(2) + sqrt((r-1)(r-2))), and s/(K lambda_W(L-1))
for DNC. docs/low_rank.md has the derivation.

K  classes    L  depth    n  samples of a class    r  points, K = r(r-1)/2
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from ncpipe.papers.s24.dufm_shapes import Constants, dnc_constants, largest_points, srg_constants
from ncpipe.study import InputError

GRID = 400  # scales a minimum is searched on; two minima of one shape lie far apart
LEAST_CLASSES = 6  # of an SRG solution


@dataclass(frozen=True)
class Dufm:
    """K classes of n samples, lambda_H and (lambda_W1, ..., lambda_WL), whose number is the depth."""

    classes: int
    per_class: int
    features: float
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        if self.classes < 2 or self.per_class < 1:
            sizes = f"{self.classes} classes of {self.per_class}"
            raise InputError(f"{sizes}; the features model needs 2 classes and a sample of each")
        if self.depth < 2:
            raise InputError(f"weights: {self.depth} decays; a deep features model has at least 2 layers")
        if not all(0 < decay < math.inf for decay in (self.features, *self.weights)):
            raise InputError("lambda_H and every lambda_W must be positive and finite")

    @property
    def depth(self) -> int:
        return len(self.weights)

    @property
    def log_product(self) -> float:
        """log Lambda = log(n lambda_H prod_l lambda_Wl), all that least losses depend on beside K and L."""
        return math.log(self.per_class * self.features) + sum(map(math.log, self.weights))


@dataclass(frozen=True)
class Level:
    """A shape's least loss, and the s at which it is attained; 1/2 at s = 0, where every matrix is 0."""

    value: float
    scale: float


def equal_decays(classes: int, per_class: int, depth: int, decay: float) -> Dufm:
    """Return the model with one lambda for features and all layers."""
    return Dufm(classes, per_class, decay, (decay,) * depth)


def equal_strength(model: Dufm) -> float:
    """Return g = Lambda^(1/(L+1)): with n = 1 and g for every decay least losses are the same."""
    return math.exp(model.log_product / (model.depth + 1))


def least_loss(constants: Constants, model: Dufm) -> Level:
    """Minimise L(s), of a shape that holds `constants.classes` of the K classes, over s >= 0, 0 included.

    It can have several local minima. None lies below the first inflection point of the fit's terms, where all
    are concave, nor where the penalties alone exceed the loss at 0. A grid in between is searched and
    refined.
    """
    unit = _unit(constants, model)
    best = Level(_loss(constants, model, unit, 0.0), 0.0)
    lowest, highest = _inflection(constants, model), 2 * best.value / (model.depth * unit)
    if lowest >= highest:
        return best

    def slope(u: float) -> float:
        return unit - _fit_slope(constants, model, u)

    grid = np.geomspace(lowest, highest, GRID)
    slopes = [slope(u) for u in grid]
    for before, after, left, right in zip(grid, grid[1:], slopes, slopes[1:], strict=False):
        if left < 0 <= right:
            u = float(brentq(slope, before, after, xtol=1e-15 * before, rtol=1e-15))
            value = _loss(constants, model, unit, u)
            if value < best.value:
                best = Level(value, u * unit)
    return best


def dnc_loss(model: Dufm) -> float:
    """Return the loss of the best solution with deep neural collapse."""
    return least_loss(dnc_constants(model.classes), model).value


def srg_loss(model: Dufm, minus: int = 2) -> float:
    """Return the loss of the SRG solution; if K is no binomial coefficient, of the better one of Def. 11.

    minus: of `srg_shape`. Raises InputError for fewer than 6 classes, and where no such row of signs exists.
    """
    points = largest_points(model.classes)
    if points * (points - 1) // 2 == model.classes:
        return least_loss(srg_constants(points, minus), model).value
    return min(srg_with_dnc_loss(model, minus), srg_cut_loss(model, minus))


def srg_with_dnc_loss(model: Dufm, minus: int = 2) -> float:
    """Return the loss of construction 1: SRG for the largest r(r-1)/2 <= K classes, DNC for the rest."""
    return sum(least_loss(constants, model).value for constants in parts(model, minus))


def parts(model: Dufm, minus: int = 2) -> list[Constants]:
    """Return the blocks of construction 1; one where K is a binomial coefficient."""
    block = srg_constants(largest_points(model.classes), minus)
    rest = model.classes - block.classes
    return [block, dnc_constants(rest)] if rest else [block]


def srg_cut_loss(model: Dufm, minus: int = 2) -> float:
    """Return the loss of construction 2: the smallest SRG solution of K' >= K classes, without K' - K.

    All classes fit equally well there, so any can be removed; here the last edges. Their rows of W_L are
    removed with their columns of H_1 (the definition forgets the rows). All else, the scale too, is that of
    K' classes. The loss is at most theirs.
    """
    larger, points = larger_model(model)
    constants = srg_constants(points, minus)
    scale = least_loss(constants, larger).scale
    share = model.classes / larger.classes
    power = (scale / _unit(constants, model)) ** model.depth
    # I - W_L M_L = diagonal I + adjacent G + shared 11^T, by its eigenvalues
    errors = [larger.classes / (value * power + larger.classes) for value in constants.eigenvalues]
    first, second, third = errors
    adjacent = (second - third) / (points - 2)
    diagonal = third + 2 * adjacent
    shared = (first - diagonal - 2 * (points - 2) * adjacent) / larger.classes
    pairs = _adjacent_pairs(points, model.classes)
    squares = model.classes * (diagonal + shared) ** 2 + 2 * pairs * (adjacent + shared) ** 2
    squares += (model.classes * (model.classes - 1) - 2 * pairs) * shared**2
    # L penalties s/2, of which H_1 has lost rows, and that of W_L, which has lost rows too
    last = share * _last_penalty(constants, larger, power)
    return squares / (2 * model.classes) + (model.depth - 1 + share) * scale / 2 + last


def larger_model(model: Dufm) -> tuple[Dufm, int]:
    """Return the model with the smallest K' = r(r-1)/2 >= K classes, and r."""
    points = largest_points(model.classes - 1) + 1
    return Dufm(points * (points - 1) // 2, model.per_class, model.features, model.weights), points


def srg_over_dnc(model: Dufm, minus: int = 2) -> float:
    """Return L_SRG/L_DNC; below 1 for K >= 6, L >= 4 and K >= 10, L = 3 [Thm 5], unless both are 1/2."""
    return srg_loss(model, minus) / dnc_loss(model)


def small_decay_ratio(points: int, depth: int, minus: int = 2) -> float:
    """Return rho, the limit of L_SRG/L_DNC as Lambda -> 0, for K = r(r-1)/2.

    Its slope in log K goes to (3 - L)/(2(L + 1)) for minus = 2 [Thm 5], which for L = 3 is 0: there rho falls
    to .923 at K = 10 and then rises to 1. For minus = floor(r/2) the slope goes to (1 - L)/(2(L + 1)).
    """
    constants = srg_constants(points, minus)
    pairs = zip(constants.eigenvalues, constants.multiplicities, strict=True)
    log_power = math.log(sum(count / value for value, count in pairs)) + constants.log_price(depth)
    return math.exp(log_power / (depth + 1)) / constants.classes


def dnc_threshold(classes: int, depth: int) -> float:
    """Return the largest Lambda with a DNC loss below 1/2: [(L-1)^((L-1)/L)/L^2]^L/K^(L+1).

    From there on the least loss of DNC is that of zero matrices, 1/2.
    """
    power = (depth - 1) * math.log(depth - 1) - 2 * depth * math.log(depth)
    return math.exp(power - (depth + 1) * math.log(classes))


def _unit(constants: Constants, model: Dufm) -> float:
    """Return (G Lambda)^(1/L), the unit of s: with s = u times it, the fit is a function of u^L."""
    return math.exp((constants.log_price(model.depth) + model.log_product) / model.depth)


def _loss(constants: Constants, model: Dufm, unit: float, u: float) -> float:
    """Return L(s) at s = u unit: error and the penalty of W_L [Lemma 17], and the other penalties."""
    power = u**model.depth
    fit = sum(
        count / (2 * (value * power + model.classes))
        for value, count in zip(constants.eigenvalues, constants.multiplicities, strict=True)
    )
    return fit + model.depth / 2 * unit * u


def _last_penalty(constants: Constants, model: Dufm, power: float) -> float:
    """Return lambda_WL/2 |W_L|^2 at u^L = power: the part of the fit that is not error [Lemma 17]."""
    terms = zip(constants.eigenvalues, constants.multiplicities, strict=True)
    return sum(count * value * power / (value * power + model.classes) ** 2 for value, count in terms) / 2


def _fit_slope(constants: Constants, model: Dufm, u: float) -> float:
    """Return minus the derivative of the fit in u, over L/2."""
    power = u**model.depth
    terms = zip(constants.eigenvalues, constants.multiplicities, strict=True)
    return sum(count * value * power / u / (value * power + model.classes) ** 2 for value, count in terms)


def _inflection(constants: Constants, model: Dufm) -> float:
    """Return the least inflection point u of a term 1/(m u^L + K)."""
    ratio = model.classes * (model.depth - 1) / ((model.depth + 1) * max(constants.eigenvalues))
    return float(ratio ** (1 / model.depth))


def _adjacent_pairs(points: int, classes: int) -> int:
    """Count pairs of edges with a common point among the first `classes` edges in lexicographic order."""
    degrees, left = [0] * points, classes
    for first in range(points - 1):
        for second in range(first + 1, min(points, first + 1 + left)):
            degrees[first] += 1
            degrees[second] += 1
        left = max(left - (points - 1 - first), 0)
    return sum(math.comb(degree, 2) for degree in degrees)
