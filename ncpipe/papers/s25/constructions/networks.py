"""Build the networks of S25 App. A as weights of this package's modules.

M  distinct samples    K  classes    d  width    B  blocks    all float64
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from torch import Tensor

from ncpipe.papers.s25.constructions.assumptions import (
    check_assumptions,
    distinct_samples,
    is_transformer,
    paper_loss,
    paper_model,
)
from ncpipe.papers.s25.constructions.blocks import (
    Blocks,
    Constants,
    Layout,
    Plan,
    idle,
    join,
    make_plan,
    printed_factor,
    stage_one,
    stage_two,
)
from ncpipe.papers.s25.constructions.embeddings import (
    State,
    on_sphere,
    resnet_embedding,
    transformer_embedding,
)
from ncpipe.study import (
    Bound,
    Count,
    Index,
    InputError,
    Prepared,
    Run,
    Split,
    TrainedRun,
    cross_entropy,
    frames,
    gufm,
    half_squared_error,
)

LEAST_SECOND = 2  # one block divides the angle by L_2 = 1
LENGTHS_TRIED = 24
FACTORS_TRIED = [2.0 ** (step / 2) for step in range(1, 25)]  # of stage 2, up to L_2^4


@dataclass(frozen=True)
class Choices:
    """What the existence proof leaves open.

    constants: of `Plan`. draws: first layers tried for a ResNet. detours: arcs tried where a geodesic comes
    too near to another sample. attention_exponent: p of gamma(L) = L^-p in a transformer's first block.
    """

    constants: Constants
    draws: Count
    detours: Index
    attention_exponent: Annotated[float, Bound(low=0, open_low=True)]


WARM_START = Choices("sharp", draws=64, detours=32, attention_exponent=0.25)  # where training may start


@dataclass(frozen=True)
class Construction:
    """A constructed network: its plan, how its depth is used, the optimum it aims at, its weights."""

    plan: Plan
    layout: Layout
    optimum: gufm.Optimum
    state: State


def construct(run: Run, data: Prepared, choices: Choices, layout: Layout | None = None) -> Construction:
    """Build Theorem 4.3's construction (4.6's for two-layer blocks) on the training samples of `data`.

    L = M L_1 + K L_2 + 1 + idle blocks. Without a given layout, `printed` constants take L_1 = L_2 as large
    as L allows (`even_layout`), and `sharp` ones the layout with the lowest regularised loss (`best_layout`):
    L_2 one of `LENGTHS_TRIED` values between 2 and (L - 1 - M)/K, spread evenly on a log scale, L_1 the
    largest that leaves room for it, angles divided by one of `FACTORS_TRIED`. Raises InputError where
    an assumption is not met (`check_assumptions`) or L is too small.
    """
    check_assumptions(run, data)
    distinct, _ = distinct_samples(run, data)
    embedding = embedding_of(run, data, distinct, choices)
    starts = starts_of(run, data, distinct, embedding)
    solved = turned_towards(optimum_of(run, data), starts, distinct.labels)
    plan = make_plan(starts, distinct.labels, solved.features, choices.constants, choices.detours)
    if layout is None:
        printed = choices.constants == "printed"
        layout = even_layout(run, plan) if printed else best_layout(run, plan, solved)
    elif plan.samples * layout.first + plan.classes * layout.second + layout.idle != run.depth - 1:
        raise InputError(f"{run.name}: {layout} does not sum to L - 1 with N = {plan.samples}")
    blocks = join([*moving_blocks(plan, layout), idle(layout.idle, plan.width)])
    mlps = [block_weights(blocks, index, paper_model(run).mlp_width) for index in range(len(blocks))]
    return Construction(plan, layout, solved, network_state(run, embedding, mlps, solved))


def embedding_of(run: Run, data: Prepared, distinct: Split, choices: Choices) -> State:
    """Return the first layer, and a transformer's first attention, which separate `distinct` samples."""
    if is_transformer(run):
        return transformer_embedding(run, data, run.depth**-choices.attention_exponent)
    return resnet_embedding(run, distinct.inputs, choices.draws)


def optimum_of(run: Run, data: Prepared) -> gufm.Optimum:
    """Return the features model's optimum for the run's loss, width and lambda_L."""
    spec = run.spec
    strength = spec.penalty.last_strength(run.depth)
    model = paper_model(run)
    return gufm.optimum(paper_loss(run), data.classes, model.width, strength, model.last_bias)


def even_layout(run: Run, plan: Plan) -> Layout:
    """Return L_1 = L_2, as large as L allows, with angles divided as the text does."""
    length, rest = divmod(run.depth - 1, plan.samples + plan.classes)
    least = LEAST_SECOND * (plan.samples + plan.classes) + 1
    if length < LEAST_SECOND:
        raise too_shallow(run, plan, f"2 (N + K) + 1 = {least}")
    return Layout(length, length, rest, printed_factor(plan, length))


def best_layout(run: Run, plan: Plan, solved: gufm.Optimum) -> Layout:
    """Return the layout of L with the lowest regularised loss among those tried; see `construct`."""
    room = run.depth - 1 - plan.samples
    if room < LEAST_SECOND * plan.classes:
        least = plan.samples + LEAST_SECOND * plan.classes + 1
        raise too_shallow(run, plan, f"N + {LEAST_SECOND}K + 1 = {least}")
    most = room // plan.classes
    spread = torch.logspace(math.log10(LEAST_SECOND), math.log10(most), LENGTHS_TRIED, dtype=torch.float64)
    layers = 1 if paper_model(run).mlp_width is None else 2
    biases = run.spec.penalty.biases
    half = run.spec.penalty.inner_strength(run.depth) / 2
    best, least_loss = None, math.inf
    for second in sorted({min(most, max(LEAST_SECOND, round(value))) for value in spread.tolist()}):
        first, rest = divmod(run.depth - 1 - plan.classes * second, plan.samples)
        moving = half * stage_one(plan, first).square(layers, biases)
        for factor in (factor for factor in FACTORS_TRIED if factor <= second**4):
            layout = Layout(first, second, rest, factor)
            ends = end_features(plan, layout.factor)
            fit = mean_loss(ends, plan.labels, solved, paper_loss(run))
            loss = fit + moving + half * stage_two(plan, second, layout.factor).square(layers, biases)
            if loss < least_loss:
                best, least_loss = layout, loss
    assert best is not None
    return best


def mean_loss(features: Tensor, labels: Tensor, last: gufm.Optimum, loss: gufm.Loss) -> float:
    """Return the loss without penalties of features (N, d) under a last layer; labels (N,)."""
    logits = features @ last.weight.T
    if last.bias is not None:
        logits = logits + last.bias
    if loss == "ce":
        return cross_entropy(logits, labels, "mean").item()
    return half_squared_error(logits, labels, over=(0, 1)).item() / len(labels)


def too_shallow(run: Run, plan: Plan, least: str) -> InputError:
    """Return the error for an L below the construction's least depth."""
    return InputError(
        f"{run.name}: L = {run.depth} is too shallow for {plan.samples} distinct samples of {plan.classes} "
        f"classes: the construction needs L >= {least}; deepen it or take fewer samples"
    )


def moving_blocks(plan: Plan, layout: Layout) -> tuple[Blocks, Blocks]:
    """Return the blocks of stage 1 and of stage 2."""
    return stage_one(plan, layout.first), stage_two(plan, layout.second, layout.factor)


def end_features(plan: Plan, factor: float) -> Tensor:
    """Return the features (M, d) after both stages, in closed form; see `stage_two`."""
    targets = plan.targets[plan.labels]
    rests = plan.rests()
    along = (rests * targets).sum(1, keepdim=True) / plan.width * targets
    ends = along + (rests - along) / factor
    return plan.width**0.5 * ends / ends.norm(dim=1, keepdim=True)


def turned_towards(solved: gufm.Optimum, starts: Tensor, labels: Tensor) -> gufm.Optimum:
    """Rotate the optimum within the zero-sum space to be nearest to the samples: maximise sum x^T h.

    starts (M, d), labels (M,). All rotations are optima; this one makes the paths short.
    """
    basis = frames.zero_sum_basis(starts.shape[1])
    u, _, v = torch.linalg.svd((solved.features @ basis.T)[labels].T @ (starts @ basis.T))
    turn = basis.T @ (u @ v) @ basis
    return gufm.Optimum(solved.fit, solved.penalty, solved.weight @ turn, solved.features @ turn, solved.bias)


@torch.no_grad()
def starts_of(run: Run, data: Prepared, samples: Split, embedding: State) -> Tensor:
    """Return the features (M, d) of `samples` before the first block that moves them, by a forward pass.

    Behind lin_0 and LN, or behind the first block and LN of a transformer.
    """
    shallow = replace(run, depth=1)
    weights = network_state(shallow, embedding, [], optimum_of(run, data))
    network: Any = TrainedRun(shallow, weights, prepared=data).network
    return on_sphere(network.features(samples.inputs, samples.lengths))


def network_state(run: Run, embedding: State, mlps: Sequence[State], solved: gufm.Optimum) -> State:
    """Return all parameters of the run's module: first layers, MLPs of L - 1 blocks, last layer.

    A transformer's L - 1 blocks follow a first one that only attends; all other parameters are 0.
    """
    model = paper_model(run)
    state = dict(embedding)
    if not is_transformer(run):
        for index, mlp in enumerate(mlps):
            state |= {f"blocks.{index}.{name}": tensor for name, tensor in mlp.items()}
    else:
        matrices = ("q", "k", "v", "o") if model.two_matrix_attention else ("qk", "vo")
        nothing = torch.zeros(model.width, model.width, dtype=torch.float64)
        first = block_weights(idle(1, model.width), 0, model.mlp_width)
        for index, mlp in enumerate([first, *mlps]):
            for name in matrices:
                state.setdefault(f"blocks.{index}.attention.{name}.weight", nothing)
            state |= {f"blocks.{index}.mlp.{name}": tensor for name, tensor in mlp.items()}
    state["last.weight"] = solved.weight
    if solved.bias is not None:
        state["last.bias"] = solved.bias
    return state


def block_weights(blocks: Blocks, index: int, mlp_width: int | None) -> State:
    """Return weights and biases of one block's MLP, with one layer or two of width `mlp_width` >= d.

    Two layers share the strength as square roots; the second projects on `kept` [S25 Theorem 4.6]. Units
    beyond the d-th are not used.
    """
    strength, output, key = blocks.strength[index], blocks.output[index], blocks.key[index]
    width = len(key)
    matrix = torch.outer(output, key)
    shift = -blocks.threshold[index] * torch.ones(width, dtype=torch.float64)
    if mlp_width is None:
        return {"lin.weight": strength * matrix, "lin.bias": strength * shift}
    root = strength.sqrt()
    unused = (0, 0, 0, mlp_width - width)
    second = root * torch.outer(blocks.kept[index], blocks.kept[index])
    return {
        "lin1.weight": torch.nn.functional.pad(root * matrix, unused),
        "lin1.bias": torch.nn.functional.pad(root * shift, unused[2:]),
        "lin2.weight": torch.nn.functional.pad(second, unused[2:]),
        "lin2.bias": torch.zeros(width, dtype=torch.float64),
    }


def warm_start(run: Run, data: Prepared) -> State:
    """Return the weights of the construction with the least strengths, for training to start from."""
    return construct(run, data, WARM_START).state


STARTS = {"construction": warm_start}
