"""Run the stage construct: networks of S25's existence proofs on an experiment's data."""

from dataclasses import asdict
from typing import Any

import pandas as pd

from ncpipe.config.params import load_params
from ncpipe.datasets.prepared import read_prepared
from ncpipe.papers.outputs import CONSTRUCTED
from ncpipe.papers.s25.study_rows import constructed_row
from ncpipe.system.artifacts import PREPARED, publish_folder
from ncpipe.system.console import say
from ncpipe.system.errors import InputError
from ncpipe.theory.constructions.assumptions import assumptions
from ncpipe.theory.constructions.networks import Choices
from ncpipe.training.device import fix_sums


def construct(experiment: str) -> None:
    """Construct networks on prepared data; write data/constructed/EXPERIMENT/{networks,assumptions}.csv.

    A depth that is too small for a kind of network has no row but a line on the terminal.
    """
    params = load_params()
    fix_sums(params.compute.threads)
    study = params.study().constructed
    data = read_prepared(PREPARED / experiment)
    choices = Choices("sharp", study.draws, study.detours, study.attention_exponent)
    rows: list[dict[str, Any]] = []
    for kind in study.kinds:
        for depth in sorted(study.depths):
            run = params.run(experiment, depth, study.seed)
            key = {"experiment": experiment, "kind": kind, "depth": depth}
            try:
                rows.append(key | constructed_row(run, data, kind, choices))
            except InputError as error:
                say(f"construct {kind}: {error}")
    if not rows:
        raise InputError(f"theory.constructed.depths: no depth is deep enough for {experiment}")
    deepest = params.run(experiment, max(study.depths), study.seed)
    checked = [{"experiment": experiment} | asdict(entry) for entry in assumptions(deepest, data)]
    with publish_folder(CONSTRUCTED / experiment) as folder:
        for name, table in (("networks", pd.DataFrame(rows)), ("assumptions", pd.DataFrame(checked))):
            table.to_csv(folder / f"{name}.csv", index=False, lineterminator="\n")
