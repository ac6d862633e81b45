"""Compute price and gain of collapsing nearly collapsed data with two-layer blocks [S25 App. C].

X = I_K (x) 1_n^T + E with E of size epsilon, and lin_0 that takes the k-th unit vector to the k-th optimal
feature. A residual branch without biases moves all features by at most |W_2 relu(W_1 X)|_F <= (|W_1|^2 +
|W_2|^2)/2 sqrt(N d), LN at most doubles that, and whatever is collapsed in the end has moved by sqrt(N tr
Sigma_W) at least. So collapse has a price of the order of lambda epsilon, while the gap to L*_GUFM that it
closes is of the order of epsilon^2. (The text has sqrt(N)/2 in place of sqrt(N d)/2, for features of norm 1.)

Biases have no penalty, and with them none of this holds: see `ncpipe.papers.s25.shifts`.

N  samples, n of each class    K  classes    d  width    all float64
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ncpipe import functional
from ncpipe.papers.s25.constructions.assumptions import paper_loss, paper_model
from ncpipe.papers.s25.constructions.blocks import idle, join, make_plan, stage_two
from ncpipe.papers.s25.constructions.embeddings import State
from ncpipe.papers.s25.constructions.networks import block_weights, network_state, optimum_of, starts_of
from ncpipe.study import (
    InputError,
    Prepared,
    Run,
    Split,
    cross_entropy,
    frames,
    gufm,
    half_squared_error,
    numerical,
    seeded_generator,
)

NoiseSubspace = Literal["within", "beside"]


def near_collapsed_data(
    classes: int, per_class: int, size: float, place: NoiseSubspace, seed: int
) -> Prepared:
    """Return X = I_K (x) 1_n^T + E, samples (N, D) by class; E has columns +e, -e of length `size`.

    Directions are uniform. `within`: D = K, as in the text. `beside`: E has K coordinates of its own, D = 2K.
    Both splits are the same. Raises InputError for an odd `per_class`.
    """
    if per_class % 2:
        raise InputError(f"per_class: {per_class} is odd; the perturbation comes in pairs")
    labels = torch.arange(classes).repeat_interleave(per_class)
    generator = seeded_generator(seed, "counterexample")
    half = torch.randn(classes, per_class // 2, classes, generator=generator, dtype=torch.float64)
    half = size * half / half.norm(dim=2, keepdim=True)
    noise = torch.cat([half, -half], 1).flatten(0, 1)
    units = torch.eye(classes, dtype=torch.float64)[labels]
    inputs = units + noise if place == "within" else torch.cat([units, noise], 1)
    split = Split(inputs, labels)
    facts = {"source": "S25 App. C", "size": size, "place": place, "seed": seed}
    return Prepared("vector", classes, None, split, split, facts)


def aligned_embedding(solved: gufm.Optimum, inputs: int) -> State:
    """Return lin_0 that maps the k-th unit vector to the k-th optimal feature: X_1 is close to collapse.

    Coordinates beyond the K-th, up to `inputs`, go to directions at right angles to all features.
    """
    classes, width = solved.features.shape
    basis = frames.zero_sum_basis(width)
    _, _, axes = torch.linalg.svd(solved.features @ basis.T)
    beside = width**0.5 * axes[classes:inputs] @ basis
    weight = torch.cat([solved.features, beside]).T.contiguous()
    return {"lin0.weight": weight, "lin0.bias": torch.zeros(width, dtype=torch.float64)}


def collapsing_state(run: Run, data: Prepared, embedding: State, features: Tensor) -> State:
    """Return Theorem 4.6's second stage on `features`: K groups of (L - 1)/K blocks, one per class."""
    solved = optimum_of(run, data)
    plan = make_plan(features, data.train.labels, solved.features, "sharp", 0)
    assert not any(plan.arcs), "near-collapsed data lie inside the caps"
    count, rest = divmod(run.depth - 1, plan.classes)
    if count < 2:
        raise InputError(
            f"L = {run.depth} is too shallow to collapse {plan.classes} classes; take 2K + 1 or more"
        )
    blocks = join([stage_two(plan, count, float(count)), idle(rest, plan.width)])
    mlps = [block_weights(blocks, index, paper_model(run).mlp_width) for index in range(len(blocks))]
    return network_state(run, embedding, mlps, solved)


def collapse_price(features: Tensor, labels: Tensor, strength: float) -> float:
    """Return the least penalty of bias-free two-layer blocks that collapse `features` (N, d).

    lambda/2 sum(|W_1|^2 + |W_2|^2) >= lambda/2 sqrt(tr Sigma_W/d), at any depth. Blocks that leave a spread
    tr Sigma_W' behind cost at least lambda/2 (sqrt(tr Sigma_W) - sqrt(tr Sigma_W'))/sqrt(d). strength: lambda
    of these matrices.
    """
    return strength / 2 * (functional.tcv(features, labels) / features.shape[1]) ** 0.5


def kept_share(gap: float, price: float) -> float:
    """Return the least share of sqrt(tr Sigma_W) after LN that an optimal network of such blocks keeps.

    A network that keeps the share s pays (1 - s) `price` at least; staying put costs `gap` above L*_GUFM. So
    no optimum behind the same first layer has s < 1 - gap/price, whatever its depth. 0 where this says
    nothing.
    """
    return max(0.0, 1 - gap / price)


def motionless(run: Run, data: Prepared) -> tuple[Tensor, gufm.Optimum]:
    """Return features (N, d) behind `aligned_embedding`, and the last layer that is best for them.

    A network that moves no sample, of inner matrices and biases that are 0, has these.
    """
    solved = optimum_of(run, data)
    embedding = aligned_embedding(solved, data.train.inputs.shape[1])
    features = starts_of(run, data, data.train, embedding)
    return features, best_last_layer(run, features, data.train.labels, solved)


def best_last_layer(run: Run, features: Tensor, labels: Tensor, start: gufm.Optimum) -> gufm.Optimum:
    """Return W_L without bias with the lowest fit + lambda_L/2 |W_L|^2 on `features` (N, d), `labels` (N,).

    By L-BFGS from `start`; the problem is strictly convex. W_L has rows of sum 0, as the features do.
    `features` of the result are those of `start`.
    """
    strength = run.spec.penalty.last_strength(run.depth)
    loss = cross_entropy if paper_loss(run) == "ce" else half_squared_error
    targets = F.one_hot(labels, len(start.weight)).double()
    basis = frames.zero_sum_basis(features.shape[1])
    reduced = features @ basis.T

    def value(flat: Tensor) -> Tensor:
        weight = flat.view(len(start.weight), -1)
        return loss(reduced @ weight.T, targets).mean() + strength / 2 * weight.square().sum()

    end = numerical.descend(value, (start.weight @ basis.T).flatten().numpy(), slope=1e-13)
    weight = torch.from_numpy(end.point).view(len(start.weight), -1) @ basis
    penalty = strength / 2 * weight.square().sum().item()
    return gufm.Optimum(end.value - penalty, penalty, weight, start.features, None)
