"""Print the state of every run of the sweep (`ncpipe status`). Calls no DVC."""

import socket
from collections import Counter

from ncpipe.config.params import load_params
from ncpipe.config.run import Run
from ncpipe.runs.engines.arrays import read_arrays
from ncpipe.runs.engines.slurm_commands import array_states, summary
from ncpipe.runs.fingerprint import RunFingerprint, is_current
from ncpipe.runs.run_claims import Claim, claimed_keys, claims
from ncpipe.runs.store import has, saved_epochs, sweep_fingerprints
from ncpipe.runs.training_log import failure_log
from ncpipe.system.artifacts import RUNS
from ncpipe.system.console import duration
from ncpipe.system.errors import InputError
from ncpipe.system.text_table import aligned

STATES = {
    "done": "the result of the present params.yaml, data and code",
    "trained": "in the store, not yet in data/runs",
    "training": "now",
    "queued": "left to jobs of Slurm",
    "failed": "training failed, see its log",
    "stopped": "has a checkpoint, resumes with the next sweep",
    "stale": "the result of earlier parameters, data or code, or its data are not prepared",
    "waiting": "not started",
}


def status() -> None:
    """Print how many runs of the sweep are done, training (with epoch and time left), waiting and stale."""
    states, lines = sweep_states()
    columns, rows = count_states(states)
    table = aligned([columns, *rows], range(1, len(columns)))
    failed = [run for run, state in states.items() if state == "failed"]
    failures = [f"{run.name}: failed, see {failure_log(run)}" for run in failed]
    counts = Counter(states.values())
    meanings = ", ".join(f"{count} {state} ({STATES[state]})" for state, count in counts.items())
    print(*table, "", *lines, *failures, meanings, sep="\n")


def sweep_states() -> tuple[dict[Run, str], list[str]]:
    """Return the state of every run, and lines about what trains, the time left and jobs of Slurm."""
    params = load_params()
    fingerprints = {
        fingerprint.run: fingerprint for fingerprint in sweep_fingerprints(params, params.compute)
    }
    alive, training = claims(), claimed_keys()
    arrays = read_arrays()
    queued = {key for array in arrays for key in array.keys}
    states = {run: _state(run, fingerprints.get(run), training, queued) for run in params.grid()}
    names = {fingerprint.key(): run for run, fingerprint in fingerprints.items()}
    of_sweep = [claim for claim in alive if set(claim.keys) & set(names)]
    lines = [_line(claim, names) for claim in of_sweep]
    if left := [claim.whole for claim in of_sweep if claim.whole is not None]:
        lines.append(f"all training: about {duration(max(left))} left")
    if arrays:
        try:
            lines.append(f"jobs: {summary(array_states(arrays))}")
        except InputError as error:
            lines.append(f"jobs: {error}")
    return states, lines


def _state(run: Run, fingerprint: RunFingerprint | None, training: set[str], queued: set[str]) -> str:
    """Return the state of a run. fingerprint: None before its data are prepared."""
    if fingerprint is not None:
        if is_current(RUNS / run.path, fingerprint):
            return "done"
        if has(fingerprint.key()):
            return "trained"
        if fingerprint.key() in training:
            return "training"
        if fingerprint.key() in queued:
            return "queued"
        if failure_log(run).is_file():
            return "failed"
        if saved_epochs(fingerprint):
            return "stopped"
    return "stale" if (RUNS / run.path).exists() else "waiting"


def count_states(states: dict[Run, str]) -> tuple[list[str], list[list[str]]]:
    """Return the columns and rows of a table with a row per setting; states without a run have no column."""
    shown = [state for state in STATES if state in states.values()]
    axis = next(iter(states)).axis
    columns = ["experiment", "L", *([axis] if axis else []), "runs", *shown]
    settings: dict[tuple[object, ...], list[Run]] = {}
    for run in states:
        settings.setdefault(tuple(run.columns.values())[:-1], []).append(run)
    rows = []
    for key, runs in settings.items():
        counts = Counter(states[run] for run in runs)
        cells: list[object] = [key[0], key[1], *key[3:], len(runs), *(counts[state] for state in shown)]
        rows.append(["·" if cell == 0 and index > 1 else str(cell) for index, cell in enumerate(cells)])
    return columns, rows


def _line(claim: Claim, names: dict[str, Run]) -> str:
    """Return which runs train together, how far they are, and where if that is another machine."""
    runs = [run for key, run in names.items() if key in claim.keys]
    left = "" if claim.left is None else f", about {duration(claim.left)} left"
    others = f" and {len(runs) - 1} more" if len(runs) > 1 else ""
    place = "" if claim.host == socket.gethostname() else f" on {claim.host}"
    return f"{runs[0].name}{others}: epoch {claim.epoch} of {claim.epochs}{left}{place}"
