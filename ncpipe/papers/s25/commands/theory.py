"""Run the stage theory: compare trained and constructed networks."""

import pandas as pd

from ncpipe.config.params import load_params
from ncpipe.figures.labels import by_experiment, caption, row_label
from ncpipe.figures.save import save_figure
from ncpipe.papers.outputs import CONSTRUCTED, COUNTEREXAMPLE, THEORY
from ncpipe.papers.s25.proof_networks import (
    constructed_gap,
    constructed_slopes,
    counterexample,
    trained_and_constructed,
    trained_means,
    with_nc2,
)
from ncpipe.system.artifacts import RESULTS, publish_folder
from ncpipe.system.console import say
from ncpipe.tables.files import read_table
from ncpipe.tables.headlines import nc2_of


def theory() -> None:
    """Compare trained networks with constructed ones; write the tables and figures of stages/theory.

    networks.csv, slopes.csv (powers of L of the constructed networks), assumptions.csv, counterexample.csv;
    constructed_gap, trained_and_constructed, counterexample as PNG and SVG.
    """
    order = load_params().sweep.experiments
    runs, summary = (read_table(RESULTS / f"{name}.csv", "aggregate") for name in ("runs", "summary"))
    nc2 = {name: _nc2_of(runs[runs["experiment"] == name].iloc[0]) for name in order}
    networks = with_nc2(_joined(order, "networks"), nc2)
    slopes = constructed_slopes(networks)
    example = read_table(COUNTEREXAMPLE, "counterexample")
    captions, labels = (
        {name: known[name] for name in order}
        for known in (by_experiment(caption, runs), by_experiment(row_label, runs))
    )
    with publish_folder(THEORY) as folder:
        tables = {"networks": networks, "slopes": slopes, "counterexample": example}
        for name, table in (tables | {"assumptions": _joined(order, "assumptions")}).items():
            table.to_csv(folder / f"{name}.csv", index=False, lineterminator="\n")
        trained = trained_means(summary, nc2)
        save_figure(constructed_gap(networks, captions), folder, "constructed_gap")
        save_figure(trained_and_constructed(networks, trained, labels), folder, "trained_and_constructed")
        save_figure(counterexample(example), folder, "counterexample")
    for _, row in slopes[(slopes["column"] == "inner_penalty") & slopes["slope"].notna()].iterrows():
        say(f"{row['experiment']}, {row['kind']} construction: inner penalty as L^{row['slope']:.2f}")


def _joined(order: tuple[str, ...], name: str) -> pd.DataFrame:
    tables = [read_table(CONSTRUCTED / experiment / f"{name}.csv", "construct") for experiment in order]
    return pd.concat(tables, ignore_index=True)


def _nc2_of(run: pd.Series) -> str:
    """Return the NC2 metric for an experiment's loss."""
    return nc2_of(str(run["loss_name"]), bool(run["last_bias"]))
