"""Decide from histories which runs converged and which are used, and count the others by reason."""

import math

import numpy as np
import pandas as pd

from ncpipe.config.params import Convergence
from ncpipe.tables.keys import run_keys, symbol, x_column

WATCHED = ["loss", "fit", "penalty", "train_error"]
# What may be missing in all rows: both parts of an own loop's loss, or the errors of vectors.
MAY_LACK = (["fit", "penalty"], ["train_error"])
# Reasons why a run did not converge; the first that holds is the run's.
DIVERGED = "diverged"
NO_HISTORY = "no history"
TRAIN_ERROR = "train error"
GRADIENT = "gradient"
LOSS_MOVING = "loss moving"
SHORT_HISTORY = "history too short"
ADVICE = {
    DIVERGED: "lower optimizer.learning_rate",
    NO_HISTORY: "train them again",
    SHORT_HISTORY: "raise epochs or convergence.window, or lower log_every",
}
LIMITED = {  # the column of runs.csv and the key of `convergence` that bounds it
    TRAIN_ERROR: ("last_train_error", "train_error"),
    LOSS_MOVING: ("loss_moved", "tolerance"),
    GRADIENT: ("gradient_share", "gradient"),
}
UNFIT = [DIVERGED, NO_HISTORY, TRAIN_ERROR]  # of runs that do not fit the data, or nobody knows


def judge_runs(runs: pd.DataFrame, history: pd.DataFrame, rule: Convergence) -> pd.DataFrame:
    """Return `runs` with converged, selected, reason ('' where converged), last_train_error, loss_moved and
    gradient_share.

    selected: whether means, slopes and claims use the run.

    A run converged if its history passes `judge_run` and its gradient is small enough (`with_gradient`).
    """
    histories = dict(iter(history.groupby(run_keys(runs))))
    nothing = history.iloc[:0]
    keys = runs[run_keys(runs)].itertuples(index=False, name=None)
    verdicts = [
        judge_run(histories.get(key, nothing), bool(finished), rule)
        for key, finished in zip(keys, runs["finished"], strict=True)
    ]
    judged = runs.assign(
        converged=False,
        selected=False,
        reason=[reason for reason, _, _ in verdicts],
        last_train_error=[error for _, error, _ in verdicts],
        loss_moved=[moved for _, _, moved in verdicts],
    )
    return with_gradient(judged, rule)


def with_gradient(runs: pd.DataFrame, rule: Convergence) -> pd.DataFrame:
    """Return judged runs with the reason `gradient` where gradient_share exceeds `rule.gradient`.

    The columns gradient_share, converged and selected are written anew. A run that does not fit the data
    keeps its reason. A share that is NaN is not small.
    """
    shares = gradient_shares(runs)
    reasons = runs["reason"]
    if rule.gradient is not None:
        reasons = reasons.mask(~reasons.isin(UNFIT) & ~(shares <= rule.gradient), GRADIENT)
    judged = runs.assign(reason=reasons, gradient_share=shares, converged=reasons == "")
    selected = judged["converged"] if rule.use == "converged" else ~reasons.isin(UNFIT)
    return judged.assign(selected=selected)


def gradient_shares(runs: pd.DataFrame) -> pd.Series:
    """Return the gradient norm of each run's regularised loss over that of its penalty alone.

    At a stationary point the gradient of the fit cancels that of the penalty, and the share is 0. It is 1
    where the fit has no gradient, so that the weights decay freely. A factor of the loss does not change it.

    The penalty's squared gradient norm is 2 (lambda P + lambda_L P_L), for P = lambda/2 |W|^2 of all inner
    weights and P_L of the last ones. NaN where there is no penalty, and where the loss or its gradient is
    unknown. It is wrong if inner layers differ in lambda, or if features carry a penalty that is not lambda.
    """
    over = runs["depth"].where(runs["penalty_rule"] == "over_depth", 1)
    inner = runs["penalty_value"] / over
    squares = 2 * (inner * runs["inner_penalty"] + runs["last_strength"] * runs["last_penalty"])
    return runs["gradient_norm"] / np.sqrt(squares.where(squares > 0))


def judge_run(history: pd.DataFrame, finished: bool, rule: Convergence) -> tuple[str, float, float]:
    """Return why one run did not converge ('' if it did), its last train error and how much its loss moved.

    It converged if all of these hold:

    - it finished, and loss, fit, penalty and train error are finite in every logged row (fit and penalty
      where they are logged at all, which an own loop does not);
    - the last logged train error is at most `rule.train_error`, if there is one: targets that are vectors
      have none;
    - its regularised loss reached a plateau: over the rows logged in the last `rule.window` share of the
      epochs (including the row at the window's edge), max - min <= `rule.tolerance` * |last loss|. A window
      with fewer than two rows counts as no plateau.

    The movement of the loss is (max - min)/|last loss|. Both numbers are NaN for runs that diverged or have
    no history. The movement is also NaN if the window has fewer than two rows.

    A plateau does not prove a stationary point: it also occurs if the schedule ends at a learning rate of 0,
    or if a line search fails. The order of the rows does not matter.
    """
    epoch = history["epoch"].to_numpy()
    order = np.argsort(epoch)
    epoch = epoch[order]
    logged = {name: history[name].to_numpy(dtype=float)[order] for name in WATCHED}
    # Of an own loop's start there are metrics alone.
    kept = (epoch > 0) | ~np.isnan([*logged.values()]).all(axis=0)
    epoch, logged = epoch[kept], {name: values[kept] for name, values in logged.items()}
    for names in MAY_LACK:
        if np.isnan([logged[name] for name in names]).all():
            logged = {name: values for name, values in logged.items() if name not in names}
    if not finished or not np.isfinite([*logged.values()]).all():
        return DIVERGED, math.nan, math.nan
    if not len(epoch):
        return NO_HISTORY, math.nan, math.nan
    train_error = float(logged["train_error"][-1]) if "train_error" in logged else math.nan
    moved = _movement(epoch, logged["loss"], rule.window)
    if train_error > rule.train_error:
        return TRAIN_ERROR, train_error, moved
    if math.isnan(moved):
        return SHORT_HISTORY, train_error, moved
    return "" if moved <= rule.tolerance else LOSS_MOVING, train_error, moved


def failure_lines(runs: pd.DataFrame, rule: Convergence) -> list[str]:
    """Return a line for each experiment and reason: how many runs, at which L, their values, and what helps.

    runs: from `judge_runs` with the same rule; the lines are in their order.
    """
    lines = []
    for (name, reason), failed in runs[~runs["converged"]].groupby(["experiment", "reason"], sort=False):
        every = runs[runs["experiment"] == name]
        problem, advice = str(reason), ADVICE.get(str(reason), "")
        if reason in LIMITED:
            column, key = LIMITED[str(reason)]
            problem = f"{reason} ({column} {_range(failed[column])} > {getattr(rule, key):g})"
            advice = f"raise epochs or convergence.{key}"
            if failed[column].isna().all():  # a gradient with batch norm, or without a penalty
                problem, advice = f"{reason} (no {column})", f"set convergence.{key} to null"
        lines.append(f"{name}: {len(failed)} of {len(every)} runs {problem}{_where(failed, every)}: {advice}")
    return lines


def _movement(epoch: np.ndarray, loss: np.ndarray, window: float) -> float:
    span = window * epoch[-1] + 1e-9  # for rounding, as in 0.29 * 100 = 28.999...
    tail = loss[epoch[-1] - epoch <= span]
    if len(tail) < 2:
        return math.nan
    moved, final = float(np.ptp(tail)), abs(float(tail[-1]))
    return moved / final if final else (math.inf if moved else 0.0)


def _where(failed: pd.DataFrame, runs: pd.DataFrame) -> str:
    column = x_column(runs)
    values = sorted(failed[column].unique())
    if len(values) == runs[column].nunique():
        return ""
    return f" ({symbol(runs)} = {', '.join(f'{value:g}' for value in values)})"


def _range(values: pd.Series) -> str:
    low, high = f"{values.min():.2g}", f"{values.max():.2g}"
    return low if low == high else f"{low} to {high}"
