"""Define how the commands of `ncpipe` parse arguments, and the options that several of them have."""

import pkgutil
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand, TyperGroup

from ncpipe.system.errors import InputError

PACKAGE = Path(__file__).parents[1]


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


def add(app: typer.Typer, name: str, function: str, panel: str | None = None, torch: bool = False) -> None:
    """Add a command to a group. Its function is imported when it is used, so that the program starts fast.

    function: its module below `ncpipe`, a colon and its name. Its parameters are the command's arguments, and
    the first paragraph of its docstring is the command's help.
    torch: whether its module imports PyTorch, which takes seconds.
    """
    module, _, definition = function.partition(":")
    source = (PACKAGE / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
    docstring = source.partition(f"\ndef {definition}(")[2].partition('"""')[2].partition('"""')[0]
    about = docstring.partition("\n\n")[0]

    class Lazy(TyperCommand):
        def make_context(self, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
            if torch and not extra.get("resilient_parsing"):  # as where the shell completes words
                announce(name)
            return self.loaded().make_context(info_name, args, parent, **extra)

        def loaded(self) -> Any:
            alone = typer.Typer(add_completion=False)
            runs = pkgutil.resolve_name(f"ncpipe.{function}")
            settings = getattr(runs, "context_settings", None)
            alone.command(name, cls=Command, help=about, context_settings=settings)(runs)
            return typer.main.get_command(alone)

    app.command(name, cls=Lazy, help=about, rich_help_panel=panel)(lambda: None)


def announce(command: str) -> None:
    """Print that a command loads PyTorch, which takes seconds."""
    from ncpipe.system.console import say

    say(f"{command}: loading PyTorch")


def complete_experiment(incomplete: str) -> list[str]:
    """Return the experiments that begin with `incomplete`; empty if params.yaml cannot be read."""
    from ncpipe.config.params import load_params

    try:
        return [name for name in load_params().experiments if name.startswith(incomplete)]
    except InputError:
        return []


def _number(text: str) -> float:
    """Return a number as params.yaml would have it: 1 stays a whole number, which 1.0 is not."""
    from ncpipe.config.yaml_file import parse_number

    try:
        return parse_number(text)
    except InputError as error:
        raise typer.BadParameter(str(error)) from None


Experiment = Annotated[
    str,
    typer.Option(
        "--experiment",
        metavar="NAME",
        help="Name under `experiments` in params.yaml.",
        autocompletion=complete_experiment,
    ),
]
Device = Annotated[
    Literal["auto", "cpu", "cuda", "mps"] | None,
    typer.Option(help="Overrides compute.device in params.yaml."),
]

Value = Annotated[
    float | None,
    typer.Option(
        parser=_number, metavar="NUMBER", help="Value of the key sweep.axis, in a study that has one."
    ),
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
