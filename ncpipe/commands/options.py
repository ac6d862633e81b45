"""Define what the commands of `ncpipe` share: how arguments are read, and the options that several take."""

from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand, TyperGroup

from ncpipe.system.errors import InputError

ALL = "all"  # in place of a depth or a seed that is not named


class Command(TyperCommand):
    """A command whose help gives no type for options that are on or off, and whose arguments may be named.

    DVC writes a whole item of a matrix into a command as `--depth 2 --seed 0`, and quotes what a shell would
    read. Values put in one by one would not be quoted: a shell would run what follows a semicolon in them.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        names = [f"--{param.name}" for param in self.get_params(ctx) if param.param_type_name == "argument"]
        named: dict[str, str] = {}
        rest = []
        words = iter(args)
        for word in words:
            name, given, value = word.partition("=")
            if name not in names or name in named:
                rest.append(word)
            elif given or (value := next(words, "")):
                named[name] = value
            else:
                rest.append(word)
        if named:
            last = max(names.index(name) for name in named)
            rest += ["--", *(named.get(name, ALL) for name in names[: last + 1])]
        return super().parse_args(ctx, rest)

    def get_params(self, ctx: Any) -> Any:
        return _without_flag_types(super().get_params(ctx))


class Group(TyperGroup):
    """A group of commands whose help gives no type for options that are on or off."""

    def get_params(self, ctx: Any) -> Any:
        return _without_flag_types(super().get_params(ctx))


def _without_flag_types(params: Any) -> Any:
    for param in params:
        if getattr(param, "is_flag", False):
            param.display_type_rich = lambda ctx: None
    return params


def complete_experiment(incomplete: str) -> list[str]:
    """Return the experiments that begin with `incomplete`; none if params.yaml cannot be read."""
    from ncpipe.config.params import load_params

    try:
        return [name for name in load_params().experiments if name.startswith(incomplete)]
    except InputError:
        return []


Experiment = Annotated[
    str,
    typer.Argument(help="Name under `experiments` in params.yaml.", autocompletion=complete_experiment),
]
Device = Annotated[
    Literal["auto", "cpu", "cuda", "mps"] | None,
    typer.Option(help="Device to use instead of compute.device in params.yaml.", show_default=False),
]

Value = Annotated[
    str | None,
    typer.Option(
        help="Value of sweep.axis, in a study that has an axis.", metavar="NUMBER", show_default=False
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1,
        envvar="NCPIPE_WORKERS",
        help="Batches that train at the same time; by default cores / compute.threads, and 1 on a GPU.",
        show_default=False,
    ),
]
Processes = Annotated[
    int | None,
    typer.Option(
        "--workers",
        min=1,
        envvar="NCPIPE_WORKERS",
        help="Processes that share the runs; by default cores / compute.threads, and 1 for little work.",
        show_default=False,
    ),
]
CheckpointSeconds = Annotated[
    float,
    typer.Option(min=0, envvar="NCPIPE_CHECKPOINT_SECONDS", help="Seconds between two checkpoints of a run."),
]


def begin(what: str) -> None:
    """Print that PyTorch is being loaded, which takes seconds."""
    from ncpipe.system.console import say

    say(f"{what}: loading PyTorch")
