"""Define how the commands of `ncpipe` parse arguments, and the options that several of them have."""

from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand, TyperGroup

from ncpipe.system.errors import InputError

ALL = "all"  # instead of a depth or a seed


class Command(TyperCommand):
    """Parses a command whose arguments can also be written as options, `--depth 2 --seed 0`.

    DVC writes an item of a stage's matrix in this form and quotes its values. It does not quote values that
    are written one by one into a command, so a shell would run what follows a semicolon in them.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        names = [f"--{param.name}" for param in self.get_params(ctx) if param.param_type_name == "argument"]
        named: dict[str, str] = {}
        rest = []
        words = iter(args)
        for word in words:
            name, equals, value = word.partition("=")
            if name not in names or name in named:
                rest.append(word)
            elif equals or (value := next(words, "")):
                named[name] = value
            else:
                rest.append(word)
        if named:
            places = [names.index(name) for name in named]
            plain = self._count_plain(ctx, rest)  # as in `train NAME --depth 2`
            if min(places) < plain:
                ctx.fail(f"give {names[min(places)]} once, after the arguments that are no options")
            rest += ["--", *(named.get(name, ALL) for name in names[plain : max(places) + 1])]
        return super().parse_args(ctx, rest)

    def _count_plain(self, ctx: Any, words: list[str]) -> int:
        """Return how many of the words are neither options nor values of options."""
        arguments = [param.name for param in self.get_params(ctx) if param.param_type_name == "argument"]
        options, extra, _ = self.make_parser(ctx).parse_args(list(words))
        return sum(isinstance(options.get(name), str) for name in arguments) + len(extra)

    def get_params(self, ctx: Any) -> Any:
        return _with_plain_types(super().get_params(ctx))


class Group(TyperGroup):
    """Holds commands, with the same types in its help as `Command`."""

    def get_params(self, ctx: Any) -> Any:
        return _with_plain_types(super().get_params(ctx))


def _with_plain_types(params: Any) -> Any:
    """Return the parameters with types for the help: none for flags, int|all for a number or all."""
    for param in params:
        if getattr(param, "is_flag", False):
            param.display_type_rich = lambda ctx: None
        elif getattr(getattr(param, "type_descriptor", None), "annotation", None) is Any:
            param.display_type_rich = lambda ctx: "<int|all>"  # `int_or_all` is the only such parser
    return params


def int_or_all(text: str) -> int | None:
    """Parse a depth or a seed; None stands for all of them."""
    if text == ALL:
        return None
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a whole number; give a number, or {ALL}") from None


def complete_experiment(incomplete: str) -> list[str]:
    """Return the experiments that begin with `incomplete`; empty if params.yaml cannot be read."""
    from ncpipe.config.params import load_params

    try:
        return [name for name in load_params().experiments if name.startswith(incomplete)]
    except InputError:
        return []


Experiment = Annotated[
    str,
    typer.Argument(
        metavar="EXPERIMENT",
        help="Name under `experiments` in params.yaml.",
        autocompletion=complete_experiment,
    ),
]
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
