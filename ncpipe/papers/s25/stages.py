"""Offer the stages of stages/theory: networks of S25's proofs beside trained ones, and App. C's example."""

import sys
import typing
from dataclasses import asdict
from typing import Any

import pandas as pd

from ncpipe.datasets.prepared import read_prepared
from ncpipe.figures.labels import by_experiment, caption, row_label
from ncpipe.papers.s25 import proof_networks
from ncpipe.papers.s25.constructions.assumptions import assumptions
from ncpipe.papers.s25.constructions.networks import Choices
from ncpipe.papers.s25.params import TheoryParams
from ncpipe.papers.s25.study_rows import constructed_row, counterexample_rows
from ncpipe.study import InputError, Stage, load_params, stage_table
from ncpipe.system.artifacts import PREPARED, RESULTS
from ncpipe.tables.files import read_table
from ncpipe.tables.headlines import nc2_of
from ncpipe.training.device import fix_sums


def constructed(experiment: str) -> dict[str, Any]:
    """Build the networks of S25's existence proofs on an experiment's data, and measure them.

    networks: a row for each kind and depth; a depth that is too small for a kind has a line on the terminal
    in its place. assumptions: of the theorems, checked at the largest depth.
    """
    params = load_params()
    fix_sums(params.compute.threads)
    asked = typing.cast(TheoryParams, params).theory.constructed
    data = read_prepared(PREPARED / experiment)
    choices = Choices("sharp", asked.draws, asked.detours, asked.attention_exponent)
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
    deepest = params.run(experiment, max(asked.depths), asked.seed)
    checked = [{"experiment": experiment} | asdict(entry) for entry in assumptions(deepest, data)]
    return {"networks": rows, "assumptions": checked}


def counterexample() -> list[dict[str, Any]]:
    """Compute the counterexample of S25, Appendix C: with blocks of two layers, collapse is not optimal."""
    params = load_params()
    fix_sums(params.compute.threads)
    asked = typing.cast(TheoryParams, params).theory.counterexample
    run = params.run(asked.experiment, asked.depths[0], asked.seed)
    return [*counterexample_rows(run, asked.classes, asked.per_class, asked.sizes, asked.depths, asked.seed)]


def theory() -> dict[str, Any]:
    """Compare trained networks with constructed ones.

    Tables: networks, slopes (powers of L of the constructed networks), assumptions, counterexample. Figures:
    constructed_gap, trained_and_constructed, counterexample.
    """
    order = load_params().sweep.experiments
    runs, summary = (read_table(RESULTS / f"{name}.csv", "aggregate") for name in ("runs", "summary"))
    nc2 = {name: _nc2_of(runs[runs["experiment"] == name].iloc[0]) for name in order}
    networks, checked = (
        _ordered(stage_table("constructed", name), order) for name in ("networks", "assumptions")
    )
    networks = proof_networks.with_nc2(networks, nc2)
    example = stage_table("counterexample")
    captions, labels = (
        {name: known[name] for name in order}
        for known in (by_experiment(caption, runs), by_experiment(row_label, runs))
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
    """Return the NC2 metric for an experiment's loss."""
    return nc2_of(str(run["loss_name"]), bool(run["last_bias"]))


STAGES = {
    "constructed": Stage(constructed, report=False),
    "counterexample": Stage(counterexample, report=False),
    "theory": Stage(theory),
}
