"""Minimise the deep unconstrained features model from many starts at once, float64.

Adam with a cosine schedule minimises the problem with one decay g for everything, which has the same minima
up to the scale of the layers (`equal_strength`). The best solutions have pre-activations of 0, at kinks of
the ReLU: the gradient does not vanish there and L-BFGS stalls, so judge an end by its loss and its ranks.

S  starts    N  samples (K classes, or K n)    d  width of every layer    L  depth
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ncpipe.papers.s24.dufm import Dufm, equal_strength
from ncpipe.papers.s24.dufm_solutions import Solution, objective

BETAS = (0.9, 0.999)
EPSILON = 1e-12  # in Adam's denominator; derivatives are about 1e-3
LAST_RATE = 1e-5


@dataclass(frozen=True)
class Ends:
    """Where the starts ended, lowest loss first. values (S,); solutions in the model's own scale."""

    values: Tensor
    solutions: tuple[Solution, ...]

    @property
    def value(self) -> float:
        """The lowest loss found."""
        return self.values[0].item()


def minimise(
    model: Dufm,
    width: int,
    *,
    starts: int,
    seed: int,
    steps: int = 4000,
    rate: float = 0.02,
    collapsed: bool = True,
) -> Ends:
    """Run Adam from matrices of N(0, 1/width); start j uses seed + j and does not depend on the others.

    collapsed: one column of features for each class, n of which stand for the model's (Theorem 6 says that
    optima are like this in layer L); else N = K n free ones.
    """
    samples = model.classes * (1 if collapsed else model.per_class)
    sizes = _sizes(model, samples, width)
    count = sum(rows * columns for rows, columns in sizes)
    generators = [torch.Generator().manual_seed(seed + j) for j in range(starts)]
    draws = [torch.randn(count, generator=generator).double() for generator in generators]
    return _descend(model, torch.stack(draws) / width**0.5, sizes, steps, rate)


def descend(model: Dufm, starts: Sequence[Solution], *, steps: int = 4000, rate: float = 0.002) -> Ends:
    """Run Adam from given matrices, all of one size and a hidden width that all layers share."""
    samples, width = starts[0].features.shape
    sizes = _sizes(model, samples, width)
    strength = equal_strength(model)
    scales = [math.sqrt(decay / strength) for decay in _decays(model)]
    flat = [
        torch.cat([(scale * matrix).flatten() for scale, matrix in zip(scales, start, strict=True)])
        for start in ((one.features, *one.weights) for one in starts)
    ]
    return _descend(model, torch.stack(flat), sizes, steps, rate)


def _sizes(model: Dufm, samples: int, width: int) -> list[tuple[int, int]]:
    return [(samples, width)] + [(width, width)] * (model.depth - 1) + [(model.classes, width)]


def _decays(model: Dufm) -> list[float]:
    """Return n lambda_H, of a class's one column, and lambda_W1..lambda_WL."""
    return [model.per_class * model.features, *model.weights]


def _descend(model: Dufm, flat: Tensor, sizes: list[tuple[int, int]], steps: int, rate: float) -> Ends:
    """Run Adam on flat (S, P), the matrices of all starts."""
    strength = equal_strength(model)
    copies = sizes[0][0] // model.classes
    targets = torch.eye(model.classes, dtype=torch.float64).repeat_interleave(copies, 0)
    decays = torch.full_like(flat[0], strength)
    decays[: sizes[0][0] * sizes[0][1]] /= copies
    gradient = torch.zeros_like(flat)
    here, slopes = _views(flat, sizes), _views(gradient, sizes)
    first, second = torch.zeros_like(flat), torch.zeros_like(flat)
    for step in range(1, steps + 1):
        gradient_into(here, slopes, targets)
        gradient.addcmul_(decays, flat)
        first.lerp_(gradient, 1 - BETAS[0])
        second.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
        size = LAST_RATE + (rate - LAST_RATE) * (1 + math.cos(math.pi * step / steps)) / 2
        root = (second / (1 - BETAS[1] ** step)).sqrt_().add_(EPSILON)
        flat.addcdiv_(first, root, value=-size / (1 - BETAS[0] ** step))
    return _ends(model, here)


def _views(flat: Tensor, sizes: list[tuple[int, int]]) -> list[Tensor]:
    lengths = [rows * columns for rows, columns in sizes]
    parts = flat.split(lengths, dim=1)
    return [part.unflatten(1, size) for part, size in zip(parts, sizes, strict=True)]


def gradient_into(matrices: list[Tensor], slopes: list[Tensor], targets: Tensor) -> None:
    """Write the derivatives of 1/(2N) |f - Y|^2 for each start into `slopes`."""
    inputs = [matrices[0]]  # of every layer
    for weight in matrices[1:-1]:
        inputs.append(torch.bmm(inputs[-1], weight.mT).clamp_(min=0))
    back = (torch.bmm(inputs[-1], matrices[-1].mT) - targets) / len(targets)
    for layer in range(len(matrices) - 1, 0, -1):
        slopes[layer].copy_(torch.bmm(back.mT, inputs[layer - 1]))
        back = torch.bmm(back, matrices[layer])
        if layer > 1:
            back.mul_(inputs[layer - 1] > 0)
    slopes[0].copy_(back)


def _ends(model: Dufm, matrices: list[Tensor]) -> Ends:
    """Rescale each start's matrices from equal decays to the model's, with the same penalties; sort them."""
    strength = equal_strength(model)
    scales = [math.sqrt(strength / decay) for decay in _decays(model)]
    scaled = [scale * matrix for scale, matrix in zip(scales, matrices, strict=True)]
    solutions = [Solution(features, tuple(weights)) for features, *weights in zip(*scaled, strict=True)]
    pairs = [(objective(model, end.features, end.weights), end) for end in solutions]
    values, ends = zip(*sorted(pairs, key=lambda pair: pair[0]), strict=True)
    return Ends(torch.tensor(values, dtype=torch.float64), ends)
