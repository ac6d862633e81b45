"""Which runs converged, decided from their histories; a run that did not says why."""

import math

import numpy as np
import pandas as pd

from ncpipe.params import Convergence
from ncpipe.tables.points import RUN

WATCHED = ["loss", "fit", "penalty", "train_error"]


def judge_runs(runs: pd.DataFrame, history: pd.DataFrame, rule: Convergence) -> pd.DataFrame:
    """`runs` with the columns `converged` (bool) and `reason` ('' where converged); rows as they came."""
    histories = dict(iter(history.groupby(RUN)))
    nothing = history.iloc[:0]
    keys = runs[RUN].itertuples(index=False, name=None)
    reasons = [
        failure_reason(histories.get(key, nothing), bool(finished), rule)
        for key, finished in zip(keys, runs["finished"], strict=True)
    ]
    return runs.assign(converged=[reason == "" for reason in reasons], reason=reasons)


def failure_reason(history: pd.DataFrame, finished: bool, rule: Convergence) -> str:
    """Why one run did not converge, in one phrase; '' if it did.

    It converged when, all of it:

    - it finished, and loss, fit, penalty and train error are finite in every logged row;
    - the last logged train error is at most `rule.train_error`;
    - its regularised loss settled: over the rows logged in the last `rule.window` share of the epochs
      (the row at the window's edge included), max - min <= `rule.tolerance` * |last loss|. Fewer than two
      rows there cannot tell, which counts as not settled.

    A schedule that ends at a learning rate of 0 settles any loss: `converged` says that the run ended well,
    not that it ended at a stationary point. Only the epochs of the rows count, not their order.
    """
    if history.empty:
        return "no history" if finished else "diverged before the first logged epoch"
    rows = history.sort_values("epoch")
    epoch = rows["epoch"].to_numpy()
    broken = epoch[~np.isfinite(rows[WATCHED].to_numpy(dtype=float)).all(axis=1)]
    if not finished or len(broken):
        return f"diverged at epoch {broken[0] if len(broken) else epoch[-1]}"
    train_error = float(rows["train_error"].iloc[-1])
    if train_error > rule.train_error:
        return f"train error {train_error:.3g} > {rule.train_error:g}"
    return _unsettled_reason(epoch, rows["loss"].to_numpy(), rule)


def _unsettled_reason(epoch: np.ndarray, loss: np.ndarray, rule: Convergence) -> str:
    span = rule.window * epoch[-1] + 1e-9  # epochs are whole: only 0.29 * 100 = 28.999... needs the slack
    tail = loss[epoch[-1] - epoch <= span]
    where = f"the last {100 * rule.window:.3g} % of epochs"
    if len(tail) < 2:
        return f"history too short: {len(tail)} logged row in {where}"
    moved, final = float(np.ptp(tail)), abs(float(tail[-1]))
    if moved <= rule.tolerance * final:
        return ""
    share = 100 * moved / final if final else math.inf
    return f"loss still moving: {share:.3g} % over {where}"
