"""Ask without PyTorch whether `ncpipe sweep` has nothing to do; `commands.sweep` prints the plan."""

from ncpipe.commands.code import edited_stages
from ncpipe.config.params import load_params
from ncpipe.config.specs import Device
from ncpipe.datasets.stored import FACTS
from ncpipe.runs.dvc import stale_stages
from ncpipe.runs.engines.jobs import read_jobs
from ncpipe.runs.store import needs_training, sweep_fingerprints
from ncpipe.system.artifacts import PREPARED


def nothing_to_do(device: Device | None) -> bool:
    """Return whether every run is trained, no job is under way and no stage of DVC's is stale.

    DVC is asked last, and only if the rest is up to date: it takes longest.
    """
    params = load_params()
    if read_jobs() or not all((PREPARED / run.data / FACTS).is_file() for run in params.grid()):
        return False
    if any(
        needs_training(fingerprint) for fingerprint in sweep_fingerprints(params, params.compute_on(device))
    ):
        return False
    return not (stale_stages() - {"code", "fill"} or edited_stages(params) - {("fill", None)})
