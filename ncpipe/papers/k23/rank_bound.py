"""Compare the distance of decayed weights from rank K with its bound by total cluster variation.

At a critical point of fit + lambda/2 sum |W_l|^2 every matrix is W_l = -1/lambda sum_i delta_i h_i^T, with
delta_i the gradient of the fit by sample i's pre-activation and h_i the layer's input. With class means in
place of the h_i the sum has rank K at most, so that

    distance(W_l, rank K) <= |sum_i delta_i (h_i - mu_y)^T|/lambda
                          <= sqrt(sum_i |delta_i|^2) sqrt(N TCV)/lambda

where TCV = 1/N sum_i |h_i - mu_y|^2 = tr Sigma_W is the total cluster variation, its clusters the classes.
The abstract of Zangrando et al. (arXiv 2402.03991) states that the distance is at most a constant times
TCV/lambda; derivation and constant here are ours, and contain the root of this TCV. Where the gradient G_l of
the whole objective is not 0, |G_l|/lambda is added. The bound holds for every network in which a matrix reads
one vector per sample, whatever the loss and the other layers.

N  samples    K  classes    d  width    L  matrices
"""

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from ncpipe.study import Bound, Count, Index, NonNegative, Positive, cross_entropy, numerical

Classes = Annotated[int, Bound(low=2)]
Few = Annotated[int, Bound(2, 12)]  # L-BFGS takes minutes


@dataclass(frozen=True)
class LayerRank:
    """One matrix: Frobenius distance from rank K, its bound, TCV of the layer's input, |G_l|."""

    distance: float
    bound: float
    variation: float
    gradient: float


@dataclass(frozen=True)
class Clusters:
    """inputs (N, d) about random unit vectors, with standard deviation spread/sqrt(d), and labels (N,)."""

    inputs: Tensor
    labels: Tensor


def clusters(classes: int, modes: int, per_mode: int, width: int, spread: float, seed: int) -> Clusters:
    """Draw clusters: every class has several, each of as many samples."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes * modes, width, generator=generator, dtype=torch.float64)
    centres = centres / centres.norm(dim=1, keepdim=True)
    mode = torch.arange(classes * modes).repeat_interleave(per_mode)
    noise = torch.randn(len(mode), width, generator=generator, dtype=torch.float64)
    return Clusters(centres[mode] + spread * width**-0.5 * noise, mode % classes)


def trained_ranks(data: Clusters, depth: int, decay: float, seed: int) -> list[LayerRank]:
    """Train a tanh perceptron of L = depth matrices by L-BFGS and return the ranks of its matrices."""
    width, classes = data.inputs.shape[1], int(data.labels.max()) + 1
    shapes = [(width, width)] * (depth - 1) + [(classes, width)]
    sizes = [rows * columns for rows, columns in shapes]

    def matrices(flat: Tensor) -> list[Tensor]:
        return [part.view(shape) for part, shape in zip(flat.split(sizes), shapes, strict=True)]

    def objective(flat: Tensor) -> Tensor:
        value, _, _ = _forward(matrices(flat), data)
        return value + decay / 2 * flat.square().sum()

    end = numerical.least(objective, sum(sizes), starts=1, seed=seed)
    return layer_ranks(matrices(end.point), data, decay)


def layer_ranks(weights: list[Tensor], data: Clusters, decay: float) -> list[LayerRank]:
    """Return the ranks of the perceptron's matrices but the last, which has K rows, for any weights."""
    weights = [weight.detach().requires_grad_() for weight in weights]
    fit, entering, outgoing = _forward(weights, data)
    ranks = []
    classes = int(data.labels.max()) + 1
    deltas = torch.autograd.grad(fit, outgoing)
    for weight, inputs, delta in zip(weights[:-1], entering, deltas, strict=False):
        h, matrix = inputs.detach(), weight.detach()
        means = torch.stack([h[data.labels == label].mean(0) for label in range(classes)])
        variation = (h - means[data.labels]).square().sum() / len(h)
        gradient = (delta.T @ h + decay * matrix).norm()
        allowed = delta.norm() * (len(h) * variation).sqrt() + gradient
        beyond = torch.linalg.svdvals(matrix)[classes:].norm()
        ranks.append(LayerRank(*(x.item() for x in (beyond, allowed / decay, variation, gradient))))
    return ranks


def _forward(weights: list[Tensor], data: Clusters) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Return mean cross-entropy, the input (N, d) of each matrix, and its output."""
    entering, outgoing = [], []
    h = data.inputs
    for weight in weights:
        entering.append(h)
        outgoing.append(h @ weight.T)
        h = outgoing[-1].tanh()
    targets = torch.eye(len(weights[-1]), dtype=torch.float64)[data.labels]
    return cross_entropy(outgoing[-1], targets).mean(), entering, outgoing


def largest_share(
    classes: Classes,
    modes: Count,
    per_mode: Count,
    width: Few,
    depth: Few,
    decay: Positive,
    spread: NonNegative,
    seed: Index,
) -> float:
    """Return the largest share that a matrix's distance from rank K has of its bound by TCV."""
    samples = clusters(classes, modes, per_mode, width, spread, seed)
    return max(rank.distance / rank.bound for rank in trained_ranks(samples, depth, decay, seed))


def largest_distance(
    classes: Classes,
    modes: Count,
    per_mode: Count,
    width: Few,
    depth: Few,
    decay: Positive,
    spread: NonNegative,
    seed: Index,
) -> float:
    """Return the largest distance of a matrix of the inner layers from rank K."""
    samples = clusters(classes, modes, per_mode, width, spread, seed)
    return max(rank.distance for rank in trained_ranks(samples, depth, decay, seed))


def decay_slope(
    classes: Classes,
    modes: Count,
    per_mode: Count,
    width: Few,
    depth: Few,
    low: Positive,
    high: Positive,
    spread: NonNegative,
    seed: Index,
) -> float:
    """Return the slope of log distance of the first matrix from rank K on log decay, at a fixed TCV."""
    samples = clusters(classes, modes, per_mode, width, spread, seed)
    first, second = (trained_ranks(samples, depth, decay, seed)[0].distance for decay in (low, high))
    return math.log(second / first) / math.log(high / low)
