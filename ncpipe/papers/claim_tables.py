"""Name the papers whose studies have runs of their own for claims, besides those of `aggregate`."""

from collections.abc import Callable
from dataclasses import replace

import pandas as pd

from ncpipe.claims.run_calls import Tables
from ncpipe.papers.s24.tables.low_rank import claim_runs

OWN_RUNS: tuple[Callable[[], pd.DataFrame | None], ...] = (claim_runs,)


def with_own_runs(tables: Tables) -> Tables:
    """Return the tables, with the runs of a paper's own stage in place of `aggregate`'s where it has run."""
    for read_runs in OWN_RUNS:
        if (runs := read_runs()) is not None:
            tables = replace(tables, runs=runs)
    return tables
