"""Measure constructed networks as trained ones are: rows of the theory study's tables.

N  samples    K  classes    d  width    all float64
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

from ncpipe import functional
from ncpipe.papers.s25.constructions.assumptions import paper_model
from ncpipe.papers.s25.constructions.blocks import stage_one_bound, stage_two_bound
from ncpipe.papers.s25.constructions.embeddings import State
from ncpipe.papers.s25.constructions.networks import Choices, construct, moving_blocks, optimum_of
from ncpipe.papers.s25.counterexample import (
    NoiseSubspace,
    aligned_embedding,
    collapse_price,
    collapsing_state,
    kept_share,
    motionless,
    near_collapsed_data,
)
from ncpipe.papers.s25.shifts import shifts
from ncpipe.study import InputError, Prepared, Run, TrainedRun

Kind = Literal["printed", "sharp", "shifts"]
# N distinct samples, m, kappa; a `Layout`; penalty of each stage, and S25's bound on its matrices, which says
# nothing where biases are penalised too.
STAGES = (
    "samples", "margin", "cap", "stage_one_blocks", "stage_two_blocks", "stage_two_factor",
    "stage_one_penalty", "stage_two_penalty", "stage_one_bound", "stage_two_bound",
)  # fmt: skip


def constructed_row(run: Run, data: Prepared, kind: Kind, choices: Choices) -> dict[str, Any]:
    """Return one constructed network's penalties, by stage and with bounds, and its metrics.

    `shifts` is the network of biases of `ncpipe.papers.s25.shifts`; it has no STAGES (NaN).
    Raises InputError where L is too small or an assumption is not met.
    """
    if kind == "shifts":
        return dict.fromkeys(STAGES, math.nan) | measured(run, data, shifts(run, data, choices))
    built = construct(run, data, replace(choices, constants=kind))
    plan, layout = built.plan, built.layout
    layers = 1 if paper_model(run).mlp_width is None else 2
    biases, strength = run.spec.penalty.biases, run.spec.penalty.inner_strength(run.depth)
    first, second = (strength / 2 * part.square(layers, biases) for part in moving_blocks(plan, layout))
    bounds = (
        stage_one_bound(plan, layout.first, strength, layers),
        stage_two_bound(plan, layout.second, strength, layers),
    )
    lengths = plan.samples, plan.margin, plan.cap, layout.first, layout.second, layout.factor
    stages = *lengths, first, second, *((math.nan, math.nan) if biases else bounds)
    return dict(zip(STAGES, stages, strict=True)) | measured(run, data, built.state)


OF_OBJECTIVE = ("loss", "fit", "last_penalty", "inner_penalty")
OF_GAP = ("bound", "bound_detail", "loss_optimum", "loss_gap", "gap_gufm", "gap_fit", "gap_last_penalty")
METRICS = ("nc1_trace_ratio", "nc2_etf", "nc2_identity", "nc3_cosine")


def measured(run: Run, data: Prepared, state: State) -> dict[str, Any]:
    """Return objective, gap to L*_GUFM, NC1-NC3 and train error of a network with these weights."""
    network = TrainedRun(run, state, prepared=data)
    row, metrics = network.row, network.measure(METRICS)
    columns = {name: row[name] for name in (*OF_OBJECTIVE, *OF_GAP)}
    return columns | {name: metrics[name] for name in METRICS} | {"train_error": row["train_error"]}


# lambda(L) and lambda_L of the three cases of S25 sec. 4.3 and App. C, for a strength lambda.
REGIMES: dict[str, Callable[[float], dict[str, Any]]] = {
    "constant": lambda strength: {"rule": "constant", "last_layer": None},
    "uniform": lambda strength: {"rule": "over_depth", "last_layer": None},
    "theorem_4_6": lambda strength: {"rule": "over_depth", "last_layer": strength},
}
PLACES: tuple[NoiseSubspace, ...] = ("within", "beside")


def counterexample_rows(
    run: Run, classes: int, per_class: int, sizes: Sequence[float], depths: Sequence[int], seed: int
) -> Iterator[dict[str, Any]]:
    """Yield App. C's example: gain and price of collapse, by place of the noise, regime, size and depth.

    run: an L-RN2 whose penalty's value is the strength of all regimes. Sizes are varied at the first depth,
    depths at the first size. motionless_gap: gap of the network that does not move the data: the possible
    gain.
    collapsing_gap: that of Theorem 4.6's second stage, with its penalty. shifts_gap: that of the network of
    biases, NaN where L is too small.
    """
    if run.spec.model.architecture != "L-RN2" or run.spec.model.last_bias:
        raise InputError("App. C's example is about L-RN2 without a last bias")
    cases = [(size, depths[0]) for size in sizes] + [(sizes[0], depth) for depth in depths[1:]]
    strength = run.spec.penalty.value
    for place in PLACES:
        for regime, penalty in REGIMES.items():
            for size, depth in cases:
                changed = replace(run.spec.penalty, **penalty(strength))
                case = replace(run, depth=depth, spec=replace(run.spec, penalty=changed))
                data = near_collapsed_data(classes, per_class, size, place, seed)
                key = {"place": place, "regime": regime, "size": size, "depth": depth}
                yield key | _counterexample_row(case, data)


def _counterexample_row(run: Run, data: Prepared) -> dict[str, Any]:
    penalty, labels = run.spec.penalty, data.train.labels
    solved = optimum_of(run, data)
    features, still = motionless(run, data)
    gap = still.value - solved.value
    price = collapse_price(features, labels, penalty.inner_strength(run.depth))
    embedding = aligned_embedding(solved, data.train.inputs.shape[1])
    collapsing = measured(run, data, collapsing_state(run, data, embedding, features))
    return {
        "inner_strength": penalty.inner_strength(run.depth),
        "last_strength": penalty.last_strength(run.depth),
        "loss_optimum": solved.value,
        "motionless_gap": gap,
        "motionless_nc1": functional.nc1_trace_ratio(features, labels),
        "price": price,
        "kept_share": kept_share(gap, price),
        "collapsing_gap": collapsing["loss_gap"],
        "collapsing_nc1": collapsing["nc1_trace_ratio"],
        "shifts_gap": _shifts_gap(run, data),
    }


def _shifts_gap(run: Run, data: Prepared) -> float:
    choices = Choices("sharp", draws=1, detours=0, attention_exponent=1.0)
    try:
        return measured(run, data, shifts(run, data, choices))["loss_gap"]
    except InputError:
        return float("nan")
