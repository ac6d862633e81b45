"""Build DNC and SRG solutions of the deep unconstrained features model as matrices [S24 Def. 9-11].

Every sample of a class has the class's features; the problem is that of n = 1 with n lambda_H. ReLU changes
nothing in the layers 2..L-1. A layer is at least as wide as its shape (`dufm_shapes`), and zeros fill the
rest. All in float64; `dufm` has their losses in closed form.

K  classes    d_l  width of layer l    rows of features are classes (or samples), W_l (d_{l+1}, d_l)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from ncpipe.papers.s24.dufm import Dufm, larger_model, least_loss, parts, srg_cut_loss, srg_with_dnc_loss
from ncpipe.papers.s24.dufm_shapes import (
    Shape,
    dnc_constants,
    dnc_shape,
    largest_points,
    srg_constants,
    srg_shape,
)
from ncpipe.study import InputError


@dataclass(frozen=True)
class Solution:
    """features (K, d_1): H_1, a row for each class. weights: W_1, ..., W_L."""

    features: Tensor
    weights: tuple[Tensor, ...]


def objective(model: Dufm, features: Tensor, weights: Sequence[Tensor]) -> float:
    """Return the loss of features (N, d_1), ordered by class; N = K n, or K if a class's n are equal."""
    return sum(losses(model, features, weights))


def losses(model: Dufm, features: Tensor, weights: Sequence[Tensor]) -> tuple[float, ...]:
    """Return the error, the penalties of W_1, ..., W_L and that of H_1; arguments as of `objective`."""
    copies = len(features) // model.classes
    if copies not in (1, model.per_class) or copies * model.classes != len(features):
        expected = f"{model.classes} (one of each class) or {model.classes * model.per_class}"
        raise InputError(f"features of {len(features)} samples; expected {expected}")
    targets = torch.eye(model.classes, dtype=torch.float64).repeat_interleave(copies, 0)
    error = (layers(features, weights)[-1] - targets).square().sum() / (2 * len(targets))
    penalties = [
        decay / 2 * weight.square().sum() for decay, weight in zip(model.weights, weights, strict=True)
    ]
    of_features = model.per_class / copies * model.features / 2 * features.square().sum()
    return tuple(part.item() for part in (error, *penalties, of_features))


def layers(features: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    """Return W_1 H_1, ..., W_L H_L as rows (N, d_2), ..., (N, K): layers before the ReLU, and the output."""
    outputs = [features @ weights[0].T]
    for weight in weights[1:]:
        outputs.append(outputs[-1].clamp(min=0) @ weight.T)
    return outputs


def dnc_solution(model: Dufm, width: int | None = None) -> Solution:
    """Return the best solution with deep neural collapse [Def. 10]; of least width, or `width` >= K."""
    scale = least_loss(dnc_constants(model.classes), model).scale
    return _widened(_solution(dnc_shape(model.classes), model, scale), width)


def srg_solution(model: Dufm, minus: int = 2, width: int | None = None) -> Solution:
    """Return the best SRG solution [Def. 9]; if K is no binomial coefficient, the better one of Def. 11."""
    if srg_with_dnc_loss(model, minus) <= srg_cut_loss(model, minus):
        return srg_with_dnc_solution(model, minus, width)
    return srg_cut_solution(model, minus, width)


def srg_with_dnc_solution(model: Dufm, minus: int = 2, width: int | None = None) -> Solution:
    """Return construction 1, block-diagonal; the SRG solution itself where K is a binomial coefficient."""
    blocks = parts(model, minus)
    shapes = [srg_shape(largest_points(model.classes), minus), dnc_shape(blocks[-1].classes)][: len(blocks)]
    built = [
        _solution(shape, model, least_loss(block, model).scale)
        for shape, block in zip(shapes, blocks, strict=True)
    ]
    features = torch.block_diag(*(block.features for block in built))
    weights = [torch.block_diag(*layer) for layer in zip(*(block.weights for block in built), strict=True)]
    return _widened(Solution(features, tuple(weights)), width)


def srg_cut_solution(model: Dufm, minus: int = 2, width: int | None = None) -> Solution:
    """Return construction 2: the first K classes of the next larger SRG solution, rows of W_L cut too."""
    larger, points = larger_model(model)
    scale = least_loss(srg_constants(points, minus), larger).scale
    uncut = _solution(srg_shape(points, minus), larger, scale)
    *inner, last = uncut.weights
    cut = Solution(uncut.features[: model.classes], (*inner, last[: model.classes]))
    return _widened(cut, width)


def perturbed(solution: Solution, noise: float, seed: int) -> Solution:
    """Add Gaussian noise to every matrix, with `noise` times its root mean square as standard deviation."""
    generator = torch.Generator().manual_seed(seed)

    def moved(matrix: Tensor) -> Tensor:
        draw = torch.randn(matrix.shape, dtype=torch.float64, generator=generator)
        return matrix + noise * matrix.square().mean().sqrt() * draw

    return Solution(moved(solution.features), tuple(map(moved, solution.weights)))


def _solution(shape: Shape, model: Dufm, scale: float) -> Solution:
    """Return a shape's matrices at s: least squares in each layer, every penalty but W_L's equal to s/2."""
    if scale == 0:
        return _zero(shape, model)
    depth, decays = model.depth, model.weights
    decay_h = model.per_class * model.features
    # Class means of the layers 2..L before the ReLU, up to scale.
    goals = [shape.inner] * (depth - 2) + [shape.last]
    means, weights = [], []
    # H W^T = goal with lambda_W |W|^2 = h |H|^2 = s: both along the square root of the goal [Lemma 18]
    values, vectors = torch.linalg.eigh(goals[0].T @ goals[0])
    kept = values > values[-1] * len(values) * torch.finfo(torch.float64).eps
    values, vectors = values[kept], vectors[:, kept]
    root, inverse = (vectors * values**power @ vectors.T for power in (0.25, -0.25))
    trace = values.sqrt().sum()  # |goal|_*
    features = (scale / (decay_h * trace)).sqrt() * goals[0] @ inverse
    weights.append((scale / (decays[0] * trace)).sqrt() * root)
    means.append(features @ weights[0].T)
    for goal, decay in zip(goals[1:], decays[1:], strict=False):
        matrix = (torch.linalg.pinv(means[-1]) @ goal).T
        weights.append((scale / decay) ** 0.5 * matrix / matrix.norm())
        means.append(means[-1] @ weights[-1].T)
    last = means[-1].clamp(min=0)
    ridge = last.T @ last + model.classes * decays[-1] * torch.eye(last.shape[1], dtype=torch.float64)
    weights.append(torch.linalg.solve(ridge, last.T).T)  # W_L = M_L^T (M_L M_L^T + K lambda I)^-1
    return Solution(features, tuple(weights))


def _zero(shape: Shape, model: Dufm) -> Solution:
    inner = shape.inner.shape[1] if model.depth > 2 else shape.last.shape[1]
    widths = [inner] * (model.depth - 1) + [shape.last.shape[1], len(shape.last)]
    weights = [torch.zeros(after, before).double() for before, after in pairwise(widths)]
    return Solution(torch.zeros(len(shape.last), widths[0]).double(), tuple(weights))


def _widened(solution: Solution, width: int | None) -> Solution:
    """Pad every layer but the output with zeros up to `width`."""
    if width is None:
        return solution
    least = max(weight.shape[1] for weight in solution.weights)
    if width < least:
        raise InputError(f"width: {width} is below {least}, the widest layer of this solution")
    features, *inner = (_filled(matrix, width) for matrix in (solution.features, *solution.weights[:-1]))
    full = [torch.cat([m, torch.zeros(width - len(m), width).double()]) for m in inner]
    return Solution(features, (*full, _filled(solution.weights[-1], width)))


def _filled(matrix: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(matrix, (0, width - matrix.shape[1]))
