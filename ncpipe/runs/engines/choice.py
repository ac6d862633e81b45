"""Open the engine that engine.yaml or --engine names, and make its tasks."""

from collections.abc import Sequence

from ncpipe.config.specs import Compute
from ncpipe.runs.batches import groups
from ncpipe.runs.engines.engine import Engine
from ncpipe.runs.engines.options import Options, Settings
from ncpipe.runs.engines.task import DryRun, Task, task_of
from ncpipe.runs.fingerprint import RunFingerprint


def open_engine(options: Options, settings: Settings) -> Engine:
    """Return the engine `slurm` or `ray`. Raises InputError if a package that it needs is missing."""
    if options.engine == "slurm":
        from ncpipe.runs.engines.slurm import SlurmEngine

        return SlurmEngine(options.slurm, settings.keep_options, settings.keys)
    from ncpipe.runs.engines.ray_cluster import RayEngine

    return RayEngine(options.ray, settings)


def dry_run(tasks: Sequence[Task], options: Options, compute: Compute) -> DryRun:
    """Return what Slurm or Ray would do with these tasks."""
    if options.engine == "slurm":
        from ncpipe.runs.engines import slurm

        return slurm.dry_run(tasks, options.slurm)
    from ncpipe.runs.engines import ray_cluster

    return ray_cluster.dry_run(tasks, options.ray, compute)


def tasks_of(missing: Sequence[RunFingerprint], settings: Settings) -> list[Task]:
    """Return one task per shape and number of epochs done; engines split tasks further."""
    return [task_of(group, settings.checkpoint_seconds, settings.workers) for group in groups(missing)]
