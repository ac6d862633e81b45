"""Run the stage measure: compute every metric of an experiment's runs and write tables.

`ncpipe.features.run_metrics` measures one run; `ncpipe.commands.aggregate` combines the tables.
"""

import math
from dataclasses import asdict
from typing import Any

import pandas as pd
import torch

from ncpipe.commands.options import Experiment, Processes
from ncpipe.config.params import load_params
from ncpipe.config.run import Run
from ncpipe.features.files import features_at, read_features
from ncpipe.features.run_metrics import (
    GRAM_COLUMNS,
    gram_rows,
    last_layer_metrics,
    measure_run,
    study_columns,
)
from ncpipe.features.trained_run import TrainedRun
from ncpipe.runs.fingerprint import RUN_RECORD, RunFingerprint, fingerprints_of
from ncpipe.runs.grid import read_grid
from ncpipe.runs.measured import Kept, taken_too
from ncpipe.runs.pool import process_count, share
from ncpipe.runs.run_folder import COLUMNS, read_history, read_state
from ncpipe.system.artifacts import FEATURES, METRICS, RUNS, publish_folder, read_json, sha256_of
from ncpipe.system.console import plural, say
from ncpipe.training.device import fix_sums

Rows = dict[str, list[dict[str, Any]]]  # by table


def measure(experiment: Experiment, workers: Processes = None) -> None:
    """Compute every metric of an experiment's runs from their features, and write tidy tables.

    These are data/metrics/EXPERIMENT/{measurements,places,runs,history,gram}.csv. Rows that were measured
    before are taken (`ncpipe.runs.measured`).
    """
    params = load_params()
    tables: Rows = {name: [] for name in ("measurements", "runs", "history", "gram", "places")}
    runs = read_grid(params, experiment)
    fingerprints = fingerprints_of(runs, params.compute)
    kept = Kept("measure", params.experiments[experiment], params.study)
    subjects = [
        kept.subject(fingerprint, _digests_of_features(fingerprint.run)) for fingerprint in fingerprints
    ]
    rows_of_runs = [kept.take(subject) for subject in subjects]
    missing = [index for index, rows in enumerate(rows_of_runs) if rows is None]
    say(f"measure {experiment}: {plural(len(missing), 'run')}{taken_too(len(runs) - len(missing))}")
    processes = process_count(workers, params.compute.threads)
    measured = share(rows_of_run, [fingerprints[index] for index in missing], processes)
    for index, rows_of_one in zip(missing, measured, strict=True):
        rows_of_runs[index] = rows_of_one
    kept.keep((subjects[index], rows_of_runs[index]) for index in missing)
    for name, all_rows in tables.items():
        all_rows += [row for rows in rows_of_runs for row in rows[name]]
    tables["places"] = [dict(row) for row in dict.fromkeys(tuple(row.items()) for row in tables["places"])]
    keys = runs[0].columns  # of no classes, and of runs that all diverged before their first row
    empty = {"gram": [*keys, *GRAM_COLUMNS], "history": [*keys, *COLUMNS]}
    with publish_folder(METRICS / experiment) as folder:
        for name, rows in tables.items():
            table = pd.DataFrame(rows, columns=None if rows else empty.get(name))
            table.to_csv(folder / f"{name}.csv", index=False, lineterminator="\n")


def _digests_of_features(run: Run) -> dict[str, str]:
    """Return the SHA-256 of a run's files of features, by path."""
    path = FEATURES / run.path
    files = [path.with_suffix(".safetensors"), *sorted(path.glob("*"))]
    return {file.as_posix(): sha256_of(file) for file in files if file.is_file()}


def rows_of_run(fingerprint: RunFingerprint) -> Rows:
    """Return the rows of one run by table, from its files."""
    fix_sums(fingerprint.compute.threads)  # as in the stage extract
    torch.set_flush_denormal(False)  # the default, which extracting features in this process changes
    run, key = fingerprint.run, fingerprint.run.columns
    setting = {column: value for column, value in key.items() if column != "seed"}
    features = read_features((FEATURES / run.path).with_suffix(".safetensors"))
    state = read_state(RUNS / run.path, fingerprint)
    diverged = read_json(RUNS / run.path / RUN_RECORD)["outcome"]["diverged_at_epoch"]
    trained = TrainedRun(run, state, fingerprint.compute.double(), seen=features, diverged_at=diverged)
    description = {**trained.row, **study_columns(trained, {*key, *trained.row})}
    return {
        "measurements": [key | asdict(row) for row in measure_run(trained)],
        "runs": [key | description],
        "history": [key | row | _metrics_at(run, row["epoch"]) for row in _history(run)],
        "gram": [key | row for row in gram_rows(features)],
        "places": [
            setting | {"layer": layer, "position": position}
            for layer, position in features.metadata.positions.items()
        ],
    }


def _history(run: Run) -> list[dict[str, float]]:
    """Return the rows of a run's history; an own loop logs none of the start, whose metrics get one."""
    rows = read_history(RUNS / run.path)
    start = run.spec.training and 0 in run.spec.snapshot_epochs() and rows and rows[0]["epoch"] > 0
    return [dict.fromkeys(rows[0], math.nan) | {"epoch": 0}, *rows] if start else rows


def _metrics_at(run: Run, epoch: float) -> dict[str, float]:
    """Return the metrics of `history` at an epoch; empty if the epoch's weights were not kept."""
    if run.spec.history is None or epoch not in run.spec.snapshot_epochs():
        return {}
    features = read_features(features_at(FEATURES / run.path, int(epoch)))
    key = f"experiments.{run.experiment}.history.metrics"
    return last_layer_metrics(run, features, run.spec.history.metrics, key)
