"""Define the commands of single papers: `ncpipe s25 ...`, `ncpipe s24 ...` and `ncpipe k23 ...`.

Each parses its arguments and calls one function of `ncpipe.papers`. `ncpipe.commands.cli` has all others.
"""

import typer

from ncpipe.commands.options import CheckpointSeconds, Command, Device, Experiment, Group, Workers, announce


def _app(description: str) -> typer.Typer:
    return typer.Typer(cls=Group, help=description, no_args_is_help=True)


s25 = _app("Stages of S25: collapse is optimal in deep ResNets and transformers (stages/theory).")
s24 = _app(
    "Stages of S24: low-rank solutions with a lower loss than collapse (stages/low_rank, low_rank_real)."
)
k23 = _app("Stages of the review K23: its models without networks (stages/regimes_models).")
APPS = {"s25": s25, "s24": s24, "k23": k23}


@s25.command(cls=Command)
def construct(experiment: Experiment) -> None:
    """Build the networks of S25's existence proofs on an experiment's data, and measure them."""
    announce(f"construct {experiment}")
    from ncpipe.papers.s25.commands.construct import construct as construct_experiment

    construct_experiment(experiment)


@s25.command(cls=Command)
def counterexample() -> None:
    """Compute the counterexample of S25, Appendix C: with blocks of two layers, collapse is not optimal."""
    announce("counterexample")
    from ncpipe.papers.s25.commands.counterexample import write_counterexample

    write_counterexample()


@s25.command(cls=Command)
def theory() -> None:
    """Compare trained networks with constructed ones; write the tables and figures of stages/theory."""
    from ncpipe.papers.s25.commands.theory import theory as compare

    compare()


@k23.command(cls=Command)
def models() -> None:
    """Compute the models of K23 from formulas and numerically, without networks; write data/models."""
    announce("models")
    from ncpipe.papers.k23.commands import write_models

    write_models()


@s24.command(cls=Command)
def series(
    experiment: Experiment,
    device: Device = None,
    workers: Workers = None,
    checkpoint_seconds: CheckpointSeconds = 60.0,
) -> None:
    """Train and measure the runs that `series` in params.yaml adds to an experiment."""
    announce(f"series {experiment}")
    from ncpipe.papers.s24.commands.series import series as train_and_measure

    train_and_measure(experiment, device, workers, checkpoint_seconds)


@s24.command("low-rank", cls=Command)
def low_rank() -> None:
    """Compare deep unconstrained features models with deep neural collapse and low-rank solutions."""
    from ncpipe.papers.s24.commands.low_rank import low_rank as compare

    compare()


@s24.command("low-rank-real", cls=Command)
def low_rank_real() -> None:
    """Compare networks with a deep head on real data with deep neural collapse and low-rank solutions."""
    from ncpipe.papers.s24.commands.low_rank_real import low_rank_real as compare

    compare()
