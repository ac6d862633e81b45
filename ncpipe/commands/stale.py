"""Find what of the sweep is not up to date (for `ncpipe sweep --dry-run`), without loading PyTorch."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ncpipe.commands.code import edited_stages
from ncpipe.config.params import Params
from ncpipe.config.run import Compute, Device
from ncpipe.runs.dvc import stale_stages
from ncpipe.runs.fingerprint import RunFingerprint, fingerprint_of
from ncpipe.runs.store import needs_training, sweep_fingerprints

UNKNOWN = "0" * 64  # stands for the checksum of data that are not prepared


@dataclass(frozen=True)
class Stale:
    """Holds what is not up to date.

    missing: runs that need training and have prepared data. unprepared: runs without prepared data.
    stages: the stages that DVC reports as changed, without `code` and `fill`.
    edited: the stages, with their experiments, whose code was edited since `code` ran, without `fill`.
    """

    params: Params
    compute: Compute
    missing: list[RunFingerprint]
    unprepared: list[RunFingerprint]
    stages: set[str]
    edited: set[tuple[str, str | None]]


def find_stale(params: Params, device: Device | None) -> Stale:
    """Return what is not up to date; calls `dvc status`, which takes longest, in another thread."""
    with ThreadPoolExecutor(1) as pool:
        status = pool.submit(stale_stages)
        edited = {stage for stage in edited_stages(params) if stage[1] in (None, *params.sweep.experiments)}
        compute = params.compute_on(device)
        prepared = sweep_fingerprints(params, compute)
        known = {fingerprint.run for fingerprint in prepared}
        missing = [fingerprint for fingerprint in prepared if needs_training(fingerprint)]
        unprepared = [fingerprint_of(run, UNKNOWN, compute) for run in params.grid() if run not in known]
        stages = status.result() - {"code", "fill"}
    return Stale(params, compute, missing, unprepared, stages, edited - {("fill", None)})
