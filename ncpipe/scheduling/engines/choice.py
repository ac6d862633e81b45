"""Which engine a sweep has, and what it is given."""

from collections.abc import Callable, Mapping, Sequence

from ncpipe.scheduling.batches import groups
from ncpipe.scheduling.engines.local import LocalEngine
from ncpipe.scheduling.engines.options import Options, Settings
from ncpipe.scheduling.engines.protocol import Engine
from ncpipe.scheduling.engines.work import Work, work_of
from ncpipe.stamps import Stamp


def open_engine(options: Options, settings: Settings) -> Engine:
    """The engine that the options name; InputError if what it needs is not installed."""
    return ENGINES[options.engine](options, settings)


def works_of(missing: Sequence[Stamp], settings: Settings) -> list[Work]:
    """Runs as work, a piece for each shape (and number of epochs done), which engines split further."""
    return [work_of(group, settings.checkpoint_seconds, settings.workers) for group in groups(missing)]


def _local(options: Options, settings: Settings) -> Engine:
    return LocalEngine(settings)


def _slurm(options: Options, settings: Settings) -> Engine:
    from ncpipe.scheduling.engines.slurm import SlurmEngine

    return SlurmEngine(options.slurm)


def _ray(options: Options, settings: Settings) -> Engine:
    from ncpipe.scheduling.engines.ray_cluster import RayEngine

    return RayEngine(options.ray, settings)


ENGINES: Mapping[str, Callable[[Options, Settings], Engine]] = {"local": _local, "slurm": _slurm, "ray": _ray}
