"""Declare the options of the stages of single papers that have any; `ncpipe.papers` has no options."""

from ncpipe.commands.options import CheckpointSeconds, Device, Experiment, Workers
from ncpipe.papers.s24.commands import series as of_s24
from ncpipe.papers.s25.commands import construct as of_s25


def construct(experiment: Experiment) -> None:
    """Build the networks of S25's existence proofs on an experiment's data, and measure them."""
    of_s25.construct(experiment)


def series(
    experiment: Experiment,
    device: Device = None,
    workers: Workers = None,
    checkpoint_seconds: CheckpointSeconds = 60.0,
) -> None:
    """Train and measure the runs that `series` in params.yaml adds to an experiment."""
    of_s24.series(experiment, device, workers, checkpoint_seconds)
