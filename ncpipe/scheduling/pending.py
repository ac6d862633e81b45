"""Which runs of the sweep have no result yet, and who may train them."""

import contextlib
from pathlib import Path

from filelock import FileLock

from ncpipe.artifacts import AHEAD, PREPARED, RUNS
from ncpipe.errors import InputError
from ncpipe.params import Params
from ncpipe.scheduling.store import waits
from ncpipe.specs import Compute
from ncpipe.stamps import Stamp, check_whole, data_checksum, is_current


def batch_lock(stamp: Stamp) -> FileLock:
    """Held by who trains runs of this shape. The system frees it if its holder dies."""
    return FileLock(AHEAD / f"{stamp.batch_key()[:16]}.lock")


def sweep_stamps(params: Params, compute: Compute) -> list[Stamp]:
    """The stamps of the sweep's runs, less those whose data are not prepared yet."""
    stamps = []
    checksums: dict[Path, str] = {}
    for run in params.grid():
        with contextlib.suppress(InputError):
            checksum = checksums.get(run.data) or data_checksum(PREPARED / run.data)
            checksums[run.data] = checksum
            stamps.append(Stamp(run, checksum, compute))
    return stamps


def is_placed(stamp: Stamp) -> bool:
    """Whether a run's result is in its place, to the bit what was trained."""
    folder = RUNS / stamp.run.path
    with contextlib.suppress(InputError):
        check_whole(folder)
        return is_current(folder, stamp)
    return False


def is_missing(stamp: Stamp) -> bool:
    """Whether a run has its result neither in its place nor in the store."""
    return not waits(stamp.key()) and not is_current(RUNS / stamp.run.path, stamp)
