"""Select the runs to use in every reasonable way, and fit slopes over each selection.

Which runs are used is a choice: S25 leaves out runs that did not converge, and a run that still moves has
often a lower loss than those that stopped. A result that holds under one choice alone is none.
"""

import pandas as pd

from ncpipe.config.params import Slopes
from ncpipe.tables.convergence import GRADIENT, UNFIT
from ncpipe.tables.keys import line_keys
from ncpipe.tables.points import SERIES
from ncpipe.tables.slopes import FIT, loglog_slopes

TOLERANCES = (0.005, 0.01, 0.02)  # of the regularised loss, over `convergence.window`
ALL = "all that fit"
ADDED = ["converged", "selected", "log10", "used", "reason"]  # by `usable_points`


def selections(runs: pd.DataFrame) -> dict[str, pd.Series]:
    """Return for each selection, by name, which runs are used: a column of booleans.

    `all that fit`: all runs that ended finite with a train error of at most `convergence.train_error`.
    `moved <= 1 %`, likewise for each of TOLERANCES: those of them whose loss moved by at most that, and whose
    gradient is within `convergence.gradient`: these had settled.

    runs: of `convergence.judge_runs`.
    """
    fits = ~runs["reason"].isin(UNFIT)
    short = fits & (runs["reason"] != GRADIENT)
    settled = {f"moved <= {100 * most:g} %": short & (runs["loss_moved"] <= most) for most in TOLERANCES}
    return {ALL: fits} | settled


def selected_slopes(measurements: pd.DataFrame, runs: pd.DataFrame, rule: Slopes) -> pd.DataFrame:
    """Return the fits of `slopes.loglog_slopes` over each selection: a row per series and selection."""
    tables = []
    for name, selected in selections(runs).items():
        fits = loglog_slopes(measurements, runs.assign(selected=selected), rule)
        keys = [*line_keys(runs), *SERIES]
        tables.append(fits[[*keys, *FIT]].assign(selection=name)[[*keys, "selection", *FIT]])
    return pd.concat(tables, ignore_index=True)
