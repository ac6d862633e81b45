"""Runs and measurements as the stages before `aggregate` write them, made up."""

import math

import pandas as pd

from ncpipe.tables.keys import RUN

DEPTHS = (2, 3, 5, 8, 13)


def grid(experiments=("a",), depths=DEPTHS, seeds=(0, 1, 2), converged=True):
    rows = [(name, depth, seed) for name in experiments for depth in depths for seed in seeds]
    penalty = {"penalty_rule": "constant", "penalty_value": 0.005, "last_strength": 0.005}
    return pd.DataFrame(rows, columns=RUN).assign(
        converged=converged, selected=converged, finished=converged, gradient_norm=1e-3,
        **penalty, inner_penalty=0.5, last_penalty=0.5,
    )  # fmt: skip


def measure(runs, value, metric="nc1_trace_ratio", split="train", layer="last"):
    """One measurement per run; value: function of (depth, seed)."""
    values = [float(value(depth, seed)) for depth, seed in zip(runs["depth"], runs["seed"], strict=True)]
    return runs[RUN].assign(layer=layer, split=split, metric=metric, value=values)


def places_of(table):
    """Positions of the layers of a ResNet (X1, ..., last) or a transformer (embedding, A1, B1, ..., last)."""
    layers = table[["experiment", "depth", "layer"]].drop_duplicates()
    transformers = set(layers.loc[layers["layer"] == "embedding", "experiment"])

    def position(experiment, depth, layer):
        if layer == "last":
            return depth + 0.5 * (experiment in transformers)
        return 0.0 if layer == "embedding" else int(layer[1:]) - 0.5 * (layer[0] == "A")

    steps = layers[layers["layer"].str.fullmatch(r"last|embedding|[XAB]\d+")]
    return steps.assign(position=[position(*row) for row in steps.itertuples(index=False, name=None)])


def noisy(depth, seed):
    return 0.3 * depth**-0.4 * (1 + 0.1 * math.sin(17 * depth + 5 * seed))


def set_converged(runs, failed):
    """`runs` without the (depth, seed) pairs of `failed` among the converged, which are the selected."""
    pairs = list(zip(runs["depth"], runs["seed"], strict=True))
    converged = [pair not in failed for pair in pairs]
    return runs.assign(converged=converged, selected=converged)
