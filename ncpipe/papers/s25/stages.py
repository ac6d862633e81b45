"""Offer the stages of stages/theory: networks of S25's proofs beside trained ones, and App. C's example."""

import sys
import typing
from dataclasses import asdict
from typing import Any

import pandas as pd

from ncpipe.papers.s25 import proof_networks
from ncpipe.papers.s25.constructions.assumptions import assumptions
from ncpipe.papers.s25.constructions.networks import Choices
from ncpipe.papers.s25.params import TheoryParams
from ncpipe.papers.s25.study_rows import constructed_row, counterexample_rows
from ncpipe.study import InputError, Stage, TrainedRun, drawing, load_params, stage_table


def constructed(experiment: str) -> dict[str, Any]:
    """Build the networks of S25's existence proofs on an experiment's data, and measure them.

    networks: a row for each kind and depth; a depth that is too small for a kind has a line on the terminal
    in its place. assumptions: of the theorems, checked at the largest depth.
    """
    params = load_params()
    asked = typing.cast(TheoryParams, params).theory.constructed
    choices = Choices("sharp", asked.draws, asked.detours, asked.attention_exponent)
    deepest = params.run(experiment, max(asked.depths), asked.seed)
    data = TrainedRun(deepest, {}).data
    rows: list[dict[str, Any]] = []
    for kind in asked.kinds:
        for depth in sorted(asked.depths):
            run = params.run(experiment, depth, asked.seed)
            key = {"experiment": experiment, "kind": kind, "depth": depth}
            try:
                rows.append(key | constructed_row(run, data, kind, choices))
            except InputError as error:
                print(f"{kind}: {error}", file=sys.stderr)
    if not rows:
        raise InputError(f"theory.constructed.depths: no depth is deep enough for {experiment}")
    checked = [{"experiment": experiment} | asdict(entry) for entry in assumptions(deepest, data)]
    return {"networks": rows, "assumptions": checked}


def counterexample() -> list[dict[str, Any]]:
    """Compute the counterexample of S25, Appendix C: with blocks of two layers, collapse is not optimal."""
    params = load_params()
    asked = typing.cast(TheoryParams, params).theory.counterexample
    run = params.run(asked.experiment, asked.depths[0], asked.seed)
    return [*counterexample_rows(run, asked.classes, asked.per_class, asked.sizes, asked.depths, asked.seed)]


def theory() -> dict[str, Any]:
    """Compare trained networks with constructed ones.

    Tables: networks, slopes (powers of L of the constructed networks), assumptions, counterexample. Figures:
    constructed_gap, trained_and_constructed, counterexample.
    """
    order = load_params().sweep.experiments
    runs, summary = (stage_table("results", name) for name in ("runs", "summary"))
    nc2 = {name: _nc2_of(runs[runs["experiment"] == name].iloc[0]) for name in order}
    networks, checked = (
        _ordered(stage_table("constructed", name), order) for name in ("networks", "assumptions")
    )
    networks = proof_networks.with_nc2(networks, nc2)
    example = stage_table("counterexample")
    captions, labels = (
        {name: known[name] for name in order}
        for known in (drawing.by_experiment(text, runs) for text in (drawing.caption, drawing.row_label))
    )
    trained = proof_networks.trained_means(summary, nc2)
    return {
        "networks": networks,
        "slopes": proof_networks.constructed_slopes(networks),
        "assumptions": checked,
        "constructed_gap": proof_networks.constructed_gap(networks, captions),
        "trained_and_constructed": proof_networks.trained_and_constructed(networks, trained, labels),
        "counterexample": (example, proof_networks.counterexample(example)),
    }


def _ordered(table: pd.DataFrame, order: tuple[str, ...]) -> pd.DataFrame:
    """Return the rows in the order of the sweep's experiments."""
    return pd.concat([table[table["experiment"] == name] for name in order], ignore_index=True)


def _nc2_of(run: pd.Series) -> str:
    """Return the NC2 metric for an experiment's loss [S25 Def. 3.4]."""
    return "nc2_identity" if run["loss_name"] == "mse" and not run["last_bias"] else "nc2_etf"


STAGES = {
    "constructed": Stage(constructed, report=False),
    "counterexample": Stage(counterexample, report=False),
    "theory": Stage(theory),
}
