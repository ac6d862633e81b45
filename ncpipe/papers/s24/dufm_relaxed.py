"""Bound within-class variability in the deep features model with a smoothed ReLU [S24 Def. 7, Thm 8]."""

import math

import torch
from torch import Tensor

from ncpipe.papers.s24.dufm import Dufm
from ncpipe.study import InputError, numerical


def relaxed_relu(inputs: Tensor, epsilon: float) -> Tensor:
    """Return a sigma_epsilon of Def. 7: ReLU outside (0, epsilon), x^2 (2 epsilon - x)/epsilon^2 inside.

    Continuously differentiable, with a slope of at most 4/3; below ReLU and rising inside.
    """
    if not epsilon > 0:
        raise InputError(f"epsilon: {epsilon:g}; the ReLU is smoothed on an interval of positive length")
    share = (inputs / epsilon).clamp(0, 1)
    return inputs.clamp(min=0) * share * (2 - share)


def within_class_bound(model: Dufm, width: int, epsilon: float) -> float:
    """Return the printed bound on the distance of two samples of a class, in any layer [Thm 8].

    6 epsilon sqrt(D (L+1))/((L+1)^(L+1) lambda_H prod_l lambda_Wl sqrt(n)), D = `width` the widest of the
    layers 2..L. Raises InputError for a lambda above 1/(L+1), which the theorem leaves out.
    docs/results/corrections.md says why its proof does not give this bound.
    """
    depth = model.depth
    if max(model.features, *model.weights) > 1 / (depth + 1):
        raise InputError(f"the bound holds for lambdas of at most 1/(L + 1) = {1 / (depth + 1):g}")
    product = math.exp(model.log_product) / model.per_class
    top = 6 * epsilon * math.sqrt(width * (depth + 1))
    return top / ((depth + 1) ** (depth + 1) * product * math.sqrt(model.per_class))


def apart_within_classes(
    model: Dufm, width: int, epsilon: float, *, starts: int, seed: int
) -> tuple[float, float]:
    """Return the largest distance of two features of a class in any layer where descents end, and the loss.

    The end of lowest loss of L-BFGS from standard normal matrices, every layer `width` wide; features H_1 of
    all N samples are free.
    """
    classes, copies = model.classes, model.per_class
    targets = torch.eye(classes, dtype=torch.float64).repeat_interleave(copies, 0)
    shapes = [(len(targets), width), *[(width, width)] * (model.depth - 1), (classes, width)]
    sizes = [rows * columns for rows, columns in shapes]

    def forward(flat: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Return H_1, W_1..W_L, and the layers before and after each activation, the output last."""
        parts = flat.split(sizes)
        matrices = [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
        steps = [matrices[0], matrices[0] @ matrices[1].T]
        for weight in matrices[2:]:
            steps.append(relaxed_relu(steps[-1], epsilon))
            steps.append(steps[-1] @ weight.T)
        return matrices, steps

    def objective(flat: Tensor) -> Tensor:
        matrices, steps = forward(flat)
        decays = [model.features, *model.weights]
        penalties = [
            decay / 2 * matrix.square().sum() for decay, matrix in zip(decays, matrices, strict=True)
        ]
        return (steps[-1] - targets).square().sum() / (2 * len(targets)) + sum(penalties)

    end = numerical.least(objective, sum(sizes), starts=starts, seed=seed)
    _, steps = forward(end.point)
    by_class = [layer.view(classes, copies, -1) for layer in steps[:-1]]  # the output is no layer of features
    apart = max(float(torch.cdist(layer, layer).max()) for layer in by_class)
    return apart, end.value
