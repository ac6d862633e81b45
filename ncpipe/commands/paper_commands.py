"""Define the sub-commands of single papers: `ncpipe s25 ...`, `ncpipe s24 ...`, `ncpipe k23 ...`.

Each parses its arguments and calls one function of `ncpipe.papers`.
"""

import typer

from ncpipe.commands.options import CheckpointSeconds, Command, Device, Experiment, Group, Workers, begin


def _app(says: str) -> typer.Typer:
    return typer.Typer(cls=Group, help=says, no_args_is_help=True)


s25 = _app("Stages of the study of S25's proofs (stages/theory).")
s24 = _app("Stages of the studies of S24 (stages/low_rank, stages/low_rank_real).")
k23 = _app("Stage of the study of K23's models (stages/regimes_models).")
APPS = {"s25": s25, "s24": s24, "k23": k23}


@s25.command(cls=Command)
def construct(experiment: Experiment) -> None:
    """Build the networks of S25's existence proofs on an experiment's data, run and measure them."""
    begin(f"construct {experiment}")
    from ncpipe.papers.s25.commands.construct import construct as construct_experiment

    construct_experiment(experiment)


@s25.command(cls=Command)
def counterexample() -> None:
    """Compute S25 App. C's example: what collapse would cost two-layer blocks, and gain."""
    begin("counterexample")
    from ncpipe.papers.s25.commands.counterexample import write_counterexample

    write_counterexample()


@s25.command(cls=Command)
def theory() -> None:
    """Set trained beside constructed networks; write the theory study's tables and figures."""
    from ncpipe.papers.s25.commands.theory import theory as compare

    compare()


@k23.command(cls=Command)
def models() -> None:
    """Compute K23's models without networks, by formulas and by matrices; write data/models."""
    begin("models")
    from ncpipe.papers.k23.commands import write_models

    write_models()


@s24.command(cls=Command)
def series(
    experiment: Experiment,
    device: Device = None,
    workers: Workers = None,
    checkpoint_seconds: CheckpointSeconds = 60.0,
) -> None:
    """Train and measure the further runs that `series` of params.yaml asks of an experiment."""
    begin(f"series {experiment}")
    from ncpipe.papers.s24.commands.series import series as train_and_measure

    train_and_measure(experiment, device, workers, checkpoint_seconds)


@s24.command("low-rank", cls=Command)
def low_rank() -> None:
    """Set deep features models beside DNC and SRG; write the low-rank study's tables and figures."""
    from ncpipe.papers.s24.commands.low_rank import low_rank as compare

    compare()


@s24.command("low-rank-real", cls=Command)
def low_rank_real() -> None:
    """Set networks with a head on data beside DNC and SRG; write that study's tables and figures."""
    from ncpipe.papers.s24.commands.low_rank_real import low_rank_real as compare

    compare()
