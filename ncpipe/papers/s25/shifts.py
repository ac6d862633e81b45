"""Construct networks whose residual branches have only biases, at the optimum of the features model.

S25's objective leaves biases out of the penalty [eq. 7]. A block with W = 0 is x -> LN(x + b), at no cost,
and LN makes it a map that folds the sphere: where -b lies on the line through two samples x and y, outside
the segment between them, x + b and y + b point the same way and LN makes them one. N - K such blocks merge
the samples of every class, a few more place the K points that are left. So at a finite depth the regularised
loss is L*_GUFM itself, whatever lambda, for one-layer and two-layer blocks alike.

M  distinct samples    K  classes    d  width    B  blocks    all float64
"""

import math

import torch
from torch import Tensor
from torch.autograd.functional import jacobian as jacobian_of

from ncpipe.papers.s25.constructions.assumptions import check_assumptions, distinct_samples, paper_model
from ncpipe.papers.s25.constructions.blocks import idle
from ncpipe.papers.s25.constructions.embeddings import State, on_sphere
from ncpipe.papers.s25.constructions.networks import (
    Choices,
    block_weights,
    embedding_of,
    network_state,
    optimum_of,
    starts_of,
    turned_towards,
)
from ncpipe.study import InputError, Prepared, Run, frames, seeded_generator

PAIRS = 12  # nearest pairs of a class that are tried for the next merger
REACHES = torch.logspace(-1, 1.5, 24, dtype=torch.float64)  # places of -b on a pair's line, in its distances
PLACED = 1e-24  # sum of squared errors of the cosines at which the last points count as placed
STEPS = 80
ATTEMPTS = 3


def shifts(run: Run, data: Prepared, choices: Choices) -> State:
    """Return weights whose biases move the samples to an optimum of the features model; inner matrices are 0.

    Needs LN without eps: with one, LN does not make two parallel vectors one. The first attention of a
    transformer is the one matrix with a penalty. Raises InputError where an assumption is not met or L is too
    small.
    """
    check_assumptions(run, data)
    if paper_model(run).layer_norm_eps != 0:
        raise InputError(f"{run.name}: merging samples by biases needs model.layer_norm_eps: 0")
    distinct, _ = distinct_samples(run, data)
    embedding = embedding_of(run, data, distinct, choices)
    width = paper_model(run).width
    points = starts_of(run, data, distinct, embedding)
    merging = merge_classes(points, distinct.labels)
    for shift in merging:
        points = on_sphere(points + shift)
    ends = torch.stack([points[distinct.labels == k][0] for k in range(data.classes)])
    solved = optimum_of(run, data)
    room = run.depth - 1 - len(merging)
    placing = place_classes(ends, solved.features, room, run.name)
    for shift in placing:
        ends = on_sphere(ends + shift)
    solved = turned_towards(solved, ends, torch.arange(data.classes))
    biases = torch.cat([merging, placing, torch.zeros(room - len(placing), width, dtype=torch.float64)])
    blocks = [_bias_block(bias, paper_model(run).mlp_width) for bias in biases]
    return network_state(run, embedding, blocks, solved)


def merge_classes(points: Tensor, labels: Tensor) -> Tensor:
    """Return shifts (M - K, d) after which all `points` (M, d) of a class are one; labels (M,).

    Each merges one pair: of the nearest pairs of a class, and the places of -b on their lines, the choice
    that leaves all other points furthest apart.
    """
    mergers = []
    while len(points) > len(labels.unique()):
        largest, best, dropped = -1.0, points[0], 0
        for keep, drop in _nearest_pairs(points, labels):
            offsets = -points[keep] - REACHES.unsqueeze(1) * (points[keep] - points[drop])
            rest = torch.cat([points[:drop], points[drop + 1 :]])
            apart = _separations(rest + offsets.unsqueeze(1))
            if apart.max() > largest:
                largest, best, dropped = apart.max().item(), offsets[apart.argmax()], drop
        mergers.append(best)
        points = on_sphere(torch.cat([points[:dropped], points[dropped + 1 :]]) + best)
        labels = torch.cat([labels[:dropped], labels[dropped + 1 :]])
    return torch.stack(mergers) if mergers else points.new_empty(0, points.shape[1])


def place_classes(points: Tensor, targets: Tensor, room: int, name: str) -> Tensor:
    """Return shifts (B, d), with the least B <= room found, that move K points to the targets' shape (K, d).

    The shape: all cosines, so up to a rotation. Gauss-Newton steps with damping (Levenberg-Marquardt) on all
    biases at once, from small random ones.
    """
    basis = frames.zero_sum_basis(points.shape[1])
    for blocks in range(1, room + 1):
        for attempt in range(ATTEMPTS):
            generator = seeded_generator(attempt, "construction shifts")
            start = torch.randn(blocks, len(basis), generator=generator, dtype=torch.float64)
            coordinates, error = _solve(points, targets, 0.3 * start, basis)
            if error < PLACED:
                return coordinates @ basis
    raise InputError(
        f"{name}: {max(room, 0)} blocks left after merging do not place the {len(points)} classes; deepen it"
    )


def _nearest_pairs(points: Tensor, labels: Tensor) -> list[tuple[int, int]]:
    products = points @ points.T
    same = (labels.unsqueeze(0) == labels.unsqueeze(1)).triu(1)
    order = products.masked_fill(~same, -math.inf).flatten().argsort(descending=True, stable=True)
    count = min(PAIRS, int(same.sum()))
    pairs = [divmod(int(index), len(points)) for index in order[:count]]
    return pairs + [(second, first) for first, second in pairs]


def _separations(points: Tensor) -> Tensor:
    """Return 1 - largest cosine of two different rows, for every (M, d) of points (T, M, d); (T,)."""
    units = points / points.norm(dim=2, keepdim=True)
    cosines = units @ units.mT
    return 1 - cosines.diagonal_scatter(cosines.new_full(units.shape[:2], -1.0), dim1=1, dim2=2).amax((1, 2))


def _solve(points: Tensor, targets: Tensor, start: Tensor, basis: Tensor) -> tuple[Tensor, float]:
    """Return biases (B, d - 1) in `basis` and the sum of squared errors of the cosines after them."""
    width = targets.shape[1]
    first, second = torch.triu_indices(len(targets), len(targets), 1).unbind()
    cosines = (targets[first] * targets[second]).sum(1) / width

    def residual(biases: Tensor) -> Tensor:
        x = points
        for bias in biases.view_as(start):
            x = on_sphere(x + bias @ basis)
        return (x[first] * x[second]).sum(1) / width - cosines

    biases, damping = start.flatten(), 1e-2
    left = residual(biases)
    for _ in range(STEPS):
        jacobian = jacobian_of(residual, biases)
        gram = jacobian @ jacobian.T
        while damping < 1e6:
            damped = gram + damping * torch.eye(len(gram), dtype=torch.float64)
            trial = biases - jacobian.T @ torch.linalg.solve(damped, left)
            rest = residual(trial)
            if rest.square().sum() < left.square().sum():
                biases, left, damping = trial, rest, max(damping / 3, 1e-15)
                break
            damping *= 4
        else:
            break
        if left.square().sum() < 1e-30:
            break
    return biases.view_as(start), left.square().sum().item()


def _bias_block(bias: Tensor, mlp_width: int | None) -> State:
    """Return a block that adds `bias` (d,); one-layer blocks up to a multiple of 1, which LN removes."""
    still = block_weights(idle(1, len(bias)), 0, mlp_width)
    return still | ({"lin.bias": bias - bias.min() + 1} if mlp_width is None else {"lin2.bias": bias})
