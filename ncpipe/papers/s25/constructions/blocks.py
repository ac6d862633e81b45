"""Build the rank-one blocks of S25's existence proofs, which move one sample at a time [S25 App. A].

Blocks move the samples, one after the other, along an arc to the rim of a cap about their class's optimal
feature (stage 1: N groups of L_1 blocks), then all samples of a class at once into the cap's centre (stage 2:
K groups of L_2 blocks). All other samples stay where they are: for them the ReLU is 0.

M  distinct samples    K  classes    d  width    B  blocks    all float64
On the sphere |x| = sqrt(d), x^T 1 = 0; `margin` m and `cap` kappa (the text's c m) are shares of d:
x^T y <= d (1 - m) for a sample x that moves and any other y, and the cap about h is x^T h >= d (1 - kappa).
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ncpipe.papers.s25.constructions.curves import Arc, arc_between, cut_at
from ncpipe.papers.s25.constructions.embeddings import on_sphere
from ncpipe.study import InputError, seeded_generator

Constants = Literal["printed", "sharp"]
CAP_SHARE = 0.9  # of the widest cap that stage 2 admits
LEAST_MARGIN = 1e-9  # below it float64 cannot tell two samples apart by their products
EQUALISING_STEPS = 12


@dataclass(frozen=True)
class Plan:
    """Where the samples start, end, and how they get there.

    starts (M, d): features before the first block, by class. labels (M,). targets (K, d): optimal features.
    arcs: of every sample from its start to the rim of its cap; None where it starts inside. constants:
    `printed` takes the strengths of the text; `sharp` the least that the same blocks need, by each block's
    own margin.
    """

    starts: Tensor
    labels: Tensor
    targets: Tensor
    arcs: tuple[Arc | None, ...]
    margin: float
    cap: float
    constants: Constants

    @property
    def width(self) -> int:
        return self.starts.shape[1]

    @property
    def samples(self) -> int:
        return len(self.starts)

    @property
    def classes(self) -> int:
        return len(self.targets)

    def rests(self) -> Tensor:
        """Return the positions (M, d) of the samples after stage 1."""
        pairs = zip(self.starts, self.arcs, strict=True)
        return torch.stack([start if arc is None else arc.end for start, arc in pairs])


@dataclass(frozen=True)
class Blocks:
    """B residual branches x -> relu(strength (output key^T x - threshold 1)), one after the other.

    As weights: W = strength output key^T and b = -strength threshold 1 [S25 eq. 14]; strength (B,) is the
    singular value and so the norm of W, output and key (B, d) are unit vectors, threshold (B,). kept (B, d):
    unit vector on which the second matrix of a two-layer block projects. A block of strength 0 is the
    identity.
    """

    strength: Tensor
    output: Tensor
    key: Tensor
    threshold: Tensor
    kept: Tensor

    def __len__(self) -> int:
        return len(self.strength)

    def square(self, layers: int, biases: bool = False) -> float:
        """Return sum |W|^2 over all matrices, plus |b|^2 if `biases`, of one-layer or two-layer blocks."""
        matrices = self.strength.square() if layers == 1 else 2 * self.strength
        if not biases:
            return matrices.sum().item()
        shifts = self.key.shape[1] * self.threshold.square()
        return (matrices + (self.strength.square() if layers == 1 else self.strength) * shifts).sum().item()


@dataclass(frozen=True)
class Layout:
    """L = M first + K second + 1 + idle: blocks of each group of stage 1, of stage 2, and identities.

    factor: what stage 2 divides the tangents of the angles to the targets by.
    """

    first: int
    second: int
    idle: int
    factor: float


def make_plan(starts: Tensor, labels: Tensor, targets: Tensor, constants: Constants, detours: int) -> Plan:
    """Choose cap, arcs and margin for samples `starts` (M, d) of classes `labels` (M,) and targets (K, d).

    A sample moves along the geodesic. If that comes nearer to another sample than any two samples are at the
    start, it takes the arc with the largest margin of those through `detours` random points of the sphere.
    Raises InputError where two samples start at the same point or no arc is free.
    """
    width = starts.shape[1]
    products = (starts @ starts.T).fill_diagonal_(-math.inf) / width
    apart = 1 - products.max().item()
    if apart < LEAST_MARGIN:
        first, second = divmod(int(products.argmax()), len(starts))
        raise InputError(
            f"samples {first} and {second} of the construction start at one point (1 - cos = {apart:.1e}); "
            "take another seed, a larger width or other data"
        )
    cap = cap_size(targets, constants)
    waypoints = _waypoints(detours, width)
    positions = starts.clone()
    arcs: list[Arc | None] = []
    margin = apart
    for index, label in enumerate(labels.tolist()):
        target = targets[label]
        if (starts[index] @ target).item() >= width * (1 - cap):
            arcs.append(None)
            continue
        others = torch.cat([positions[:index], positions[index + 1 :]])
        arc, clearance = _free_arc(starts[index], target, others, cap, apart, waypoints)
        margin = min(margin, clearance)
        positions[index] = arc.end
        arcs.append(arc)
    if margin < LEAST_MARGIN:
        raise InputError(
            f"the construction finds no free path for some sample (margin {margin:.1e}); "
            "take another seed or a larger width"
        )
    return Plan(starts, labels, targets, tuple(arcs), margin, cap, constants)


def cap_size(targets: Tensor, constants: Constants) -> float:
    """Return kappa of the caps about the targets (K, d), at most 1/2.

    printed: 10 kappa = 1 - max cos [S25 App. A, property 5]. sharp: CAP_SHARE of the largest kappa for which
    every sample in another cap, at an angle of at least phi - arccos(1 - kappa), leaves the ReLU closed:
    (1 + kappa max_i h_i) cos(phi - arccos(1 - kappa)) <= 1 - 2 kappa, h the unit vector to the target.
    """
    units = targets / targets.norm(dim=1, keepdim=True)
    cosine = (units @ units.T).fill_diagonal_(-1.0).max().item()
    if constants == "printed":
        return (1 - cosine) / 10
    angle, tallest = math.acos(max(-1.0, min(1.0, cosine))), units.max().item()

    def closed(cap: float) -> bool:
        nearest = angle - math.acos(1 - cap)
        return nearest > 0 and (1 + cap * tallest) * max(0.0, math.cos(nearest)) <= 1 - 2 * cap

    low, high = 0.0, 0.5
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if closed(middle) else (low, middle)
    return CAP_SHARE * low


def stage_one(plan: Plan, blocks: int) -> Blocks:
    """Return M groups of `blocks` blocks; group i moves sample i along its arc [S25 eq. 14]."""
    positions = plan.starts.clone()
    groups = []
    for index, arc in enumerate(plan.arcs):
        if arc is None:
            groups.append(idle(blocks, plan.width))
            continue
        others = torch.cat([positions[:index], positions[index + 1 :]])
        groups.append(_arc_blocks(arc, others, blocks, plan))
        positions[index] = arc.end
    return join(groups)


def stage_two(plan: Plan, blocks: int, factor: float) -> Blocks:
    """Return K groups of `blocks` equal blocks; group j moves class j to its target.

    One block of strength s divides the tangent of the angle to the target by exactly
    1 + s kappa/sqrt(d + kappa^2); together they divide it by `factor`.
    The text's weights need the unit vector h/sqrt(d) in place of h, else the ReLU cuts them off.
    """
    root, norm = plan.width**0.5, math.hypot(plan.width**0.5, plan.cap)
    strength = math.expm1(math.log(factor) / blocks) * norm / plan.cap
    groups = []
    for target in plan.targets:
        unit = target / root
        groups.append(
            Blocks(
                torch.full((blocks,), strength, dtype=torch.float64),
                ((1 + plan.cap * unit) / norm).expand(blocks, -1),
                unit.expand(blocks, -1),
                torch.full((blocks,), (1 - 2 * plan.cap) * root / norm, dtype=torch.float64),
                unit.expand(blocks, -1),
            )
        )
    return join(groups)


def printed_factor(plan: Plan, blocks: int) -> float:
    """Return the factor of the text's strength 16 sqrt(d) log(L_2)/(kappa L_2); L_2 would suffice."""
    root, norm = plan.width**0.5, math.hypot(plan.width**0.5, plan.cap)
    return (1 + 16 * root * math.log(blocks) / (norm * blocks)) ** blocks


def stage_one_bound(plan: Plan, blocks: int, strength: float, layers: int) -> float:
    """Return the upper bound on lambda/2 sum |W|^2 of stage 1 with lambda = `strength` [S25 App. A].

    One-layer blocks 32 d pi^2 lambda M/(L_1 m^2), two-layer blocks 16 sqrt(d) pi lambda M/m.
    """
    if layers == 1:
        return 32 * plan.width * math.pi**2 * strength * plan.samples / (blocks * plan.margin**2)
    return 16 * plan.width**0.5 * math.pi * strength * plan.samples / plan.margin


def stage_two_bound(plan: Plan, blocks: int, strength: float, layers: int) -> float:
    """Return the bound for stage 2: 2^7 K d lambda log(L_2)^2/(kappa^2 L_2).

    With two-layer blocks it is 16 K sqrt(d) log(L_2) lambda/kappa. The text writes N for the number K of
    groups, and m for kappa = c m. Holds for factors up to L_2^4 and for
    the printed one.
    """
    logarithm = math.log(blocks)
    if layers == 1:
        return 2**7 * plan.classes * plan.width * strength * logarithm**2 / (plan.cap**2 * blocks)
    return 16 * plan.classes * plan.width**0.5 * logarithm * strength / plan.cap


def idle(blocks: int, width: int) -> Blocks:
    """Return identity blocks."""
    rows, entries = torch.zeros(blocks, width).double(), torch.zeros(blocks).double()
    return Blocks(entries, rows, rows, entries, rows)


def join(groups: list[Blocks]) -> Blocks:
    """Concatenate groups of blocks."""
    fields = zip(*(vars(group).values() for group in groups), strict=True)
    return Blocks(*(torch.cat(parts) for parts in fields))


def _free_arc(
    start: Tensor, target: Tensor, others: Tensor, cap: float, apart: float, waypoints: Tensor
) -> tuple[Arc, float]:
    """Return the arc to the cap's rim with the largest margin to the others, and the margin."""
    level = len(start) * (1 - cap)
    best: tuple[float, float, Arc] | None = None
    for through in (None, *waypoints):
        arc = cut_at(arc_between(start, target, through), target, level)
        clearance = min(1 - arc.nearest_products(others).max().item() / len(start), apart)
        if best is None or (clearance, -arc.length) > best[:2]:
            best = (clearance, -arc.length, arc)
        if through is None and clearance == apart:
            break
    assert best is not None
    return best[2], best[0]


def _arc_blocks(arc: Arc, others: Tensor, blocks: int, plan: Plan) -> Blocks:
    """Return blocks that move one sample along its arc, past `others` (M - 1, d) [S25 eq. 14].

    Displacement r needs strength 2 r sqrt(d + m^2/4)/(m sqrt(d)).
    """
    width, printed = plan.width, plan.constants == "printed"
    places = _printed_places(arc, blocks, plan) if printed else _equalised_places(arc, others, blocks)
    points = arc.at(places)
    steps = points.diff(dim=0)
    lengths = steps.norm(dim=1)
    margins = _margins(points[:-1], others)
    if printed:
        margins = torch.full_like(margins, plan.margin)
    norms = torch.sqrt(width + margins.square() / 4)
    moves = lengths > 0
    strength = torch.where(moves, 2 * lengths * norms / (margins * width**0.5), 0.0)
    directions = steps / torch.where(moves, lengths, 1.0).unsqueeze(1)
    output = (1 + margins.unsqueeze(1) / 2 * directions) / norms.unsqueeze(1)
    return Blocks(
        strength,
        output,
        points[:-1] / width**0.5,
        (1 - margins / 2) * width**0.5 / norms,
        (1 + directions) / math.sqrt(width + 1),
    )


def _margins(points: Tensor, others: Tensor) -> Tensor:
    """Return the margin (B,) of each point to the others; the plan's is never larger."""
    return 1 - (points @ others.T).amax(1) / points.shape[1]


def _printed_places(arc: Arc, blocks: int, plan: Plan) -> Tensor:
    """Return places (blocks + 1,) for the text's strength 4 sqrt(d) beta/(L_1 m), arcs sqrt(d) beta long.

    beta must be the whole angle: with the angle still to go, as printed, a share e^-2 of it is never covered.
    The sample arrives after about half of the blocks; the last block that moves it takes what is left.
    """
    strength = 4 * arc.length / (blocks * plan.margin)
    step = strength * plan.margin * plan.width**0.5 / (2 * math.hypot(plan.width**0.5, plan.margin / 2))
    turn = max(2 * math.asin(min(1.0, step / (2 * arc.radius))), arc.angle / blocks)
    return (turn * torch.arange(blocks + 1, dtype=torch.float64)).clamp(max=arc.angle)


def _equalised_places(arc: Arc, others: Tensor, blocks: int) -> Tensor:
    """Return places (blocks + 1,) that make all blocks about equally strong: small margins, small steps.

    By convexity this is the least sum of squares in the limit of many blocks.
    """
    share = np.linspace(0.0, 1.0, blocks + 1)
    places = torch.from_numpy(arc.angle * share)
    best, least = places, math.inf
    for _ in range(EQUALISING_STEPS):
        points = arc.at(places)
        weights = points.diff(dim=0).norm(dim=1) / _margins(points[:-1], others)
        total = weights.square().sum().item()
        if total < least:
            best, least = places, total
        passed = np.concatenate([[0.0], np.cumsum(weights.numpy())])
        places = torch.from_numpy(np.interp(share, passed / passed[-1], places.numpy()))
    return best


def _waypoints(count: int, width: int) -> Tensor:
    """Draw points (count, d) uniformly on the sphere, the same on every call."""
    generator = seeded_generator(0, "construction detours")
    return on_sphere(torch.randn(count, width, generator=generator, dtype=torch.float64))
