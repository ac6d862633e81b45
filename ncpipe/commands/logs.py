"""Print the logs of the processes that trained a run, on any machine (`ncpipe logs`)."""

from ncpipe.config.bounds import Number
from ncpipe.config.params import load_params
from ncpipe.datasets.stored import data_checksum
from ncpipe.runs.engines.job_log import logs_of
from ncpipe.runs.fingerprint import fingerprint_of
from ncpipe.runs.training_log import failure_log
from ncpipe.system.artifacts import PREPARED
from ncpipe.system.errors import InputError


def logs(experiment: str, depth: int, seed: int, value: Number | None = None) -> None:
    """Print every log of a run, the oldest first, each after a line with its job and file.

    The run is that of the present params.yaml, data and code. Runs of the same batch share a log. Raises
    InputError if there is none.
    """
    params = load_params()
    run = params.run(experiment, depth, seed, value)
    key = fingerprint_of(run, data_checksum(PREPARED / run.data), params.compute).key()
    paths = [(head, path) for head, path in logs_of(key) if path.is_file()]
    paths.sort(key=lambda named: named[1].stat().st_mtime)
    if (failed := failure_log(run)).is_file():
        paths.append(("error", failed))
    if not paths:
        raise InputError(
            f"{run.name}: no log of this run with the present params.yaml, data and code; see ncpipe status"
        )
    for head, path in paths:
        print(f"==> {head}: {path}")
        print(path.read_text(encoding="utf-8", errors="replace"))
