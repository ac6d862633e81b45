"""What of the sweep is not up to date; without PyTorch, whose import takes longer than the answer."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from ncpipe.commands.code import edited_stages
from ncpipe.config.params import Params
from ncpipe.config.specs import Compute, Device
from ncpipe.runs.dvc import stale_stages
from ncpipe.runs.engines.jobs import read_jobs
from ncpipe.runs.fingerprint import RunFingerprint
from ncpipe.runs.store import needs_training, sweep_fingerprints

UNKNOWN = "0" * 64  # checksum of data that are not prepared


@dataclass(frozen=True)
class Stale:
    """missing: runs that need training, of those whose data are prepared; unprepared: the others.

    stages: what DVC reports as changed. edited: stages, with their experiments, whose code was edited since
    `code` ran. Both leave `fill` out. jobs: whether jobs of a cluster are under way. seconds: that DVC took.
    """

    params: Params
    compute: Compute
    missing: list[RunFingerprint]
    unprepared: list[RunFingerprint]
    stages: set[str]
    edited: set[tuple[str, str | None]]
    jobs: bool
    seconds: float

    @property
    def nothing(self) -> bool:
        return not (self.missing or self.unprepared or self.stages or self.edited or self.jobs)


def find_stale(params: Params, device: Device | None) -> Stale:
    """Ask DVC, which takes longest, and meanwhile the code and the store; once each."""
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(_ask_dvc)
        found = _look(params, device)
        stages, seconds = asked.result()
    return replace(found, stages=stages, seconds=seconds)


def _ask_dvc() -> tuple[set[str], float]:
    """Return its stale stages and the seconds it took; what follows from `code` it knows after that ran."""
    begin = time.monotonic()
    return stale_stages() - {"code", "fill"}, time.monotonic() - begin


def _look(params: Params, device: Device | None) -> Stale:
    """Return all but what DVC knows."""
    edited = {stage for stage in edited_stages(params) if stage[1] in (None, *params.sweep.experiments)}
    compute = params.compute_on(device)
    prepared = sweep_fingerprints(params, compute)
    known = {fingerprint.run for fingerprint in prepared}
    return Stale(
        params=params,
        compute=compute,
        missing=[fingerprint for fingerprint in prepared if needs_training(fingerprint)],
        unprepared=[RunFingerprint(run, UNKNOWN, compute) for run in params.grid() if run not in known],
        stages=set(),
        edited=edited - {("fill", None)},
        jobs=bool(read_jobs()),
        seconds=0.0,
    )
