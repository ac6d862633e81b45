"""Two-layer ReLU networks on orthogonally separable data, from small weights [2510.21078].

f(x) = V relu(W x), cross-entropy without decay. Inputs are vertices of a simplex and noise, so small that
those of one class have positive products, those of two classes negative ones.

N  samples    K  classes    h  hidden units
"""

from functools import cache
from typing import Annotated, Literal

import torch
from torch import Tensor

from ncpipe.study import Bound, Count, Index, InputError, Positive, cross_entropy, frames

Classes = Annotated[int, Bound(low=3)]
Part = Literal["within", "means", "classifier"]
RATE = 0.1  # of a step, over the loss and the weights' square: so that late steps neither shrink nor diverge
LEAST = 1e-13  # loss at which a descent ends; float64 has no digits of a smaller one


def shallow_cosine(
    part: Part,
    classes: Classes,
    per_class: Count,
    hidden: Count,
    noise: Positive,
    start: Positive,
    steps: Count,
    seed: Index,
) -> float:
    """Return the given cosine of last-layer features after descent from weights of size `start`.

    within: the least between two samples of a class. means: the largest between means of two classes.
    classifier: the least between a row of V and its class's mean less the mean of all features.
    InputError for noise that breaks orthogonal separability.
    """
    features, classifier, labels = _trained(classes, per_class, hidden, noise, start, steps, seed)
    return _cosine(part, features, classifier, labels)


@cache
def _trained(
    classes: int, per_class: int, hidden: int, noise: float, start: float, steps: int, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return features (N, h), V (K, h) and labels (N,)."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(classes).repeat_interleave(per_class)
    vertices = frames.simplex_frame(classes)[labels]
    inputs = vertices + noise * torch.randn(vertices.shape, generator=draw, dtype=torch.float64)
    same = labels[:, None] == labels
    products = inputs @ inputs.T
    if not (products[same] > 0).all() or not (products[~same] < 0).all():
        raise InputError(f"noise: {noise:g} leaves inputs that are not orthogonally separable; give less")
    lower = torch.randn(hidden, classes - 1, generator=draw, dtype=torch.float64)
    upper = torch.randn(classes, hidden, generator=draw, dtype=torch.float64)
    upper = upper / upper.norm(dim=0) * lower.norm(dim=1)  # balanced, as Assumption 2 has it
    weights = [start * lower, start * upper]
    for _ in range(steps):
        free = [weight.requires_grad_() for weight in weights]
        loss = cross_entropy((inputs @ free[0].T).relu() @ free[1].T, labels).sum()
        slopes = torch.autograd.grad(loss, free)
        weights = [weight.detach() for weight in free]
        if loss < LEAST:
            break
        rate = RATE / (float(loss.detach()) * (1 + sum(float(weight.square().sum()) for weight in weights)))
        weights = [weight - rate * slope for weight, slope in zip(weights, slopes, strict=True)]
    return (inputs @ weights[0].T).relu(), weights[1], labels


def _cosine(part: Part, features: Tensor, classifier: Tensor, labels: Tensor) -> float:
    unit = torch.nn.functional.normalize
    if part == "within":
        cosines = unit(features) @ unit(features).T
        return float(cosines[labels[:, None] == labels].min())
    means = torch.stack([features[labels == k].mean(0) for k in range(len(classifier))])
    if part == "means":
        return float((unit(means) @ unit(means).T).fill_diagonal_(-1).max())
    return float((unit(means - features.mean(0)) * unit(classifier)).sum(1).min())
