"""Define how the commands of `ncpipe` parse arguments, and the options that several of them have."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand, TyperGroup

from ncpipe.system.errors import InputError


class Command(TyperCommand):
    """A command whose help says of no switch that it takes a value."""

    def get_params(self, ctx: Any) -> Any:
        return _without_types_of_flags(super().get_params(ctx))


class Group(TyperGroup):
    """Holds commands, with the same help as `Command`."""

    def get_params(self, ctx: Any) -> Any:
        return _without_types_of_flags(super().get_params(ctx))


def _without_types_of_flags(params: Any) -> Any:
    for param in params:
        if getattr(param, "is_flag", False):
            param.display_type_rich = lambda ctx: None
    return params


def named_runs(
    words: Sequence[str] | None, experiment: str | None, depth: int | None, seed: int | None
) -> tuple[str, int | None, int | None]:
    """Return experiment, depth and seed of `train NAME DEPTH SEED`; options may stand for the last words.

    DVC writes options. It quotes their values, so that no shell runs what follows a semicolon in them.
    """
    words = words or ()
    options: tuple[str | int | None, ...] = (experiment, depth, seed)
    if len(words) > len(options) or any(option is not None for option in options[: len(words)]):
        raise typer.BadParameter("give experiment, depth and seed once: ncpipe train NAME DEPTH SEED")
    given: list[str | int | None] = [*words, *options[len(words) :]]
    if given[0] is None:
        raise typer.BadParameter("which experiment? ncpipe train NAME DEPTH SEED")
    try:
        depth, seed = [None if number is None else int(number) for number in given[1:]]
    except ValueError:
        raise typer.BadParameter(f"{' '.join(words[1:])}: depth and seed are whole numbers") from None
    return str(given[0]), depth, seed


def complete_experiment(incomplete: str) -> list[str]:
    """Return the experiments that begin with `incomplete`; empty if params.yaml cannot be read."""
    from ncpipe.config.params import load_params

    try:
        return [name for name in load_params().experiments if name.startswith(incomplete)]
    except InputError:
        return []


_EXPERIMENT = typer.Option(
    "--experiment",
    metavar="NAME",
    help="Name under `experiments` in params.yaml.",
    autocompletion=complete_experiment,
)
Experiment = Annotated[str, _EXPERIMENT]
ExperimentIfAny = Annotated[str | None, _EXPERIMENT]
Device = Annotated[
    Literal["auto", "cpu", "cuda", "mps"] | None,
    typer.Option(help="Overrides compute.device in params.yaml."),
]

Value = Annotated[
    str | None, typer.Option(help="Value of the key sweep.axis, in a study that has one.", metavar="NUMBER")
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1,
        envvar="NCPIPE_WORKERS",
        help="Batches that train at the same time. Default: cores / compute.threads; a few on a GPU.",
    ),
]
Processes = Annotated[
    int | None,
    typer.Option(
        "--workers",
        min=1,
        envvar="NCPIPE_WORKERS",
        help="Processes to use. Default: cores / compute.threads; 1 if there is little work.",
    ),
]
CheckpointSeconds = Annotated[
    float,
    typer.Option(min=0, envvar="NCPIPE_CHECKPOINT_SECONDS", help="Seconds between two checkpoints of a run."),
]


def announce(command: str) -> None:
    """Print that a command loads PyTorch, which takes seconds."""
    from ncpipe.system.console import say

    say(f"{command}: loading PyTorch")
