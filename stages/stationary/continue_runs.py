"""Continue a trained run by L-BFGS in float64, and measure what moves.

python continue_runs.py EXPERIMENT DEPTH SEED    write data/continued/EXPERIMENT/L<depth>/s<seed>.csv
python continue_runs.py                          write data/continued.csv, all of these
"""

import dataclasses
import sys
from pathlib import Path

import pandas as pd
import torch

from ncpipe.config.experiment import History
from ncpipe.config.optimizer_specs import ConstantSchedule, Lbfgs
from ncpipe.config.params import load_params
from ncpipe.datasets.prepared import read_prepared
from ncpipe.features.extraction import extract
from ncpipe.features.run_metrics import history_metrics
from ncpipe.runs.fingerprint import RunFingerprint, fingerprints_of
from ncpipe.runs.run_folder import read_state
from ncpipe.system.artifacts import PREPARED, RUNS, publish_file
from ncpipe.training.device import prepare_device
from ncpipe.training.loop import train_batch

ITERATIONS = 300
MEASURED = (30, 100, ITERATIONS)
METRICS = ("nc1_trace_ratio", "nc2_etf", "nc3_cosine")
FOLDER, TABLE = Path("data/continued"), Path("data/continued.csv")


def continued(fingerprint: RunFingerprint) -> list[dict[str, object]]:
    """Return a row for the end of training and one for each number of iterations in MEASURED.

    A row has the regularised loss, its gradient's norm, the train error and METRICS, all in float64.
    """
    run, compute = fingerprint.run, dataclasses.replace(fingerprint.compute, precision="float64")
    data, device = read_prepared(PREPARED / run.data), prepare_device(compute)
    state = read_state(RUNS / run.path, fingerprint)
    spec = dataclasses.replace(
        run.spec,
        optimizer=Lbfgs("lbfgs", learning_rate=1.0, memory=20),
        schedule=ConstantSchedule("constant"),
        epochs=ITERATIONS,
        log_every=ITERATIONS,
        history=History(METRICS, tuple(n / ITERATIONS for n in (0, *MEASURED))),
    )
    further = dataclasses.replace(run, spec=spec)
    (found,) = train_batch([further], data, device, "float64", starts=[state])
    rows = []
    for row in found.history:
        measured = extract(found.run, found.snapshots[row.epoch], data, device)
        rows.append(
            run.columns
            | {"iterations": row.epoch, "loss": row.loss, "gradient_norm": measured.gradient_norm}
            | {"train_error": row.train_error}
            | history_metrics(found.run, measured)
        )
    return rows


def main(experiment: str | None = None, depth: str = "", seed: str = "") -> None:
    params = load_params()
    if experiment is None:
        target = TABLE
        found = pd.concat([pd.read_csv((FOLDER / run.path).with_suffix(".csv")) for run in params.grid()])
    else:
        torch.set_num_threads(params.compute.threads)
        run = params.run(experiment, int(depth), int(seed))
        target = (FOLDER / run.path).with_suffix(".csv")
        (fingerprint,) = fingerprints_of([run], params.compute)
        found = pd.DataFrame(continued(fingerprint))
    with publish_file(target) as partial:
        found.to_csv(partial, index=False, lineterminator="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
