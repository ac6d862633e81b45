"""`ncpipe status`: how far the sweep is, run by run. Asks nothing of DVC, and takes no lock."""

import csv
import functools
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ncpipe.config.params import load_params
from ncpipe.config.specs import Run
from ncpipe.runs.engines.jobs import Job, read_jobs
from ncpipe.runs.engines.slurm_commands import job_states, summary
from ncpipe.runs.fingerprint import RunFingerprint, is_current
from ncpipe.runs.heartbeat import Heartbeat, heartbeats
from ncpipe.runs.store import has, saved_epochs, sweep_fingerprints
from ncpipe.runs.training_log import failure_log
from ncpipe.system.artifacts import RESULTS, RUNS
from ncpipe.system.console import duration
from ncpipe.system.errors import InputError

REFRESH = 2.0  # seconds
ASK_JOBS = 30.0  # seconds between two questions to a scheduler
PLAIN_WIDTH = 120  # columns where no terminal says how many there are

STATES = {
    "done": "the result of params.yaml, data and code as they are now",
    "trained": "in the store, for its stage",
    "training": "now",
    "queued": "in a job, and not begun",
    "failed": "could not be trained, its log says why",
    "begun": "has a checkpoint, and nobody trains it",
    "stale": "the result of other params, data or code",
    "waiting": "nothing yet",
}
ENDED = ("done", "trained")
FAILED = "not converged"  # beside the states: by data/results


def status(watch: bool) -> None:
    """Print, per experiment and depth, how many runs are in which state, and the batches in training.

    watch: again and again, until all runs are done or Ctrl-C; on a terminal in one place.
    """
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=PLAIN_WIDTH)
    if not watch:
        console.print(_page()[0])
        return
    try:
        with Live(console=console, auto_refresh=False) as live:
            while True:
                page, done = _page()
                live.update(page, refresh=True)
                if done:
                    return
                time.sleep(REFRESH)
    except KeyboardInterrupt:
        return


@dataclass(frozen=True)
class Seen:
    """states: of every run. not_converged: some of those that are done. training: a line for each batch, one
    for all that trains in the same process, and one for all jobs of a cluster."""

    states: dict[Run, str]
    not_converged: set[Run]
    training: list[str]

    @property
    def done(self) -> bool:
        return set(self.states.values()) == {"done"}

    def failures(self) -> dict[Run, Path]:
        """Return the runs that could not be trained, with the logs that say why."""
        return {run: failure_log(run) for run, state in self.states.items() if state == "failed"}

    def summary(self) -> str:
        found = Counter(self.states.values())
        return ", ".join(f"{count} {state} ({STATES[state]})" for state, count in found.items())


def look() -> Seen:
    """Return the state of every run of the sweep."""
    params = load_params()
    fingerprints = {
        fingerprint.run: fingerprint for fingerprint in sweep_fingerprints(params, params.compute)
    }
    alive = list(heartbeats())
    training = {key for heartbeat in alive for key in heartbeat.keys}
    jobs = read_jobs()
    queued = {key for job in jobs for key in job.keys}
    states = {run: _state(run, fingerprints.get(run), training, queued) for run in params.grid()}
    names = {fingerprint.key(): run for run, fingerprint in fingerprints.items()}
    own = [heartbeat for heartbeat in alive if set(heartbeat.keys) & set(names)]
    lines = [_line(heartbeat, names) for heartbeat in own]
    if left := [heartbeat.whole for heartbeat in own if heartbeat.whole is not None]:
        lines.append(f"all training: about {duration(max(left))} to go")
    return Seen(states, _not_converged(states), lines + _job_lines(jobs))


def _page() -> tuple[RenderableType, bool]:
    """Return what to print, and whether every run is done."""
    seen = look()
    columns, rows = counted(seen)
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="left" if column == "experiment" else "right")
    for row in rows:
        table.add_row(*row)
    lines = [*seen.training, *(f"{run.name} failed: {log}" for run, log in seen.failures().items())]
    return Group(table, Text(""), *map(Text, [*lines, seen.summary()])), seen.done


def _job_lines(jobs: list[Job]) -> list[str]:
    """Return how many jobs run and wait, and how many have ended and are to be collected."""
    if not jobs:
        return []
    try:
        line = _summary(tuple(job.id for job in jobs), int(time.monotonic() // ASK_JOBS))
    except InputError as error:
        line = str(error)
    return [f"jobs: {line}"]


@functools.lru_cache(maxsize=1)
def _summary(ids: tuple[str, ...], turn: int) -> str:
    """Asked once a turn: a scheduler has many users."""
    jobs = [job for job in read_jobs() if job.id in ids]
    return summary(jobs, job_states(jobs))


def _state(run: Run, fingerprint: RunFingerprint | None, training: set[str], queued: set[str]) -> str:
    """fingerprint: None while the run's data are not prepared."""
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
            return "begun"
    return "stale" if (RUNS / run.path).exists() else "waiting"


def _not_converged(states: dict[Run, str]) -> set[Run]:
    """Return the finished runs that did not converge by data/results."""
    failed = set()
    kinds = {name: type(value) for name, value in next(iter(states)).columns.items()}
    try:
        with (RESULTS / "runs.csv").open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                if row["converged"] != "True":
                    failed.add(tuple(kind(row[name]) for name, kind in kinds.items()))
    except (OSError, ValueError, KeyError):  # none yet, or another version's
        return set()
    return {run for run, state in states.items() if state == "done" and _key(run) in failed}


def _key(run: Run) -> tuple[object, ...]:
    return tuple(run.columns.values())


def counted(seen: Seen) -> tuple[list[str], list[list[str]]]:
    """Return columns, and a row for each setting of the sweep; states that no run is in have no column."""
    states, failed = seen.states, seen.not_converged
    shown = [state for state in STATES if state in states.values()]
    axis = next(iter(states)).axis
    columns = ["experiment", "L", *([axis] if axis else []), "runs", *shown, *([FAILED] if failed else [])]
    places: dict[tuple[object, ...], list[Run]] = {}
    for run in states:
        places.setdefault(_key(run)[:-1], []).append(run)
    rows = []
    for place, runs in places.items():
        counts = Counter(states[run] for run in runs)
        cells: list[object] = [place[0], place[1], *place[3:], len(runs), *(counts[state] for state in shown)]
        cells += [len(failed.intersection(runs))] if failed else []
        rows.append(["·" if cell == 0 and index > 1 else str(cell) for index, cell in enumerate(cells)])
    return columns, rows


def _line(heartbeat: Heartbeat, names: dict[str, Run]) -> str:
    runs = [names[key] for key in heartbeat.keys if key in names]
    left = "" if heartbeat.left is None else f", about {duration(heartbeat.left)} to go"
    return f"{_names(runs)}: epoch {heartbeat.epoch} of {heartbeat.epochs}{left}"


def _names(runs: Sequence[Run]) -> str:
    return runs[0].name + (f" and {len(runs) - 1} beside it" if len(runs) > 1 else "")
