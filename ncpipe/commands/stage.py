"""Run a stage of a study's own, an entry of STAGES in its study.py (`ncpipe stage`)."""

import inspect
import math
import sys
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ncpipe.commands.options import CheckpointSeconds, Command, Device, Experiment, Workers
from ncpipe.config.params import load_params_and_study
from ncpipe.config.records import read
from ncpipe.config.stages import PER_EXPERIMENT, Stage
from ncpipe.config.study import FILE, mistake_of, study_errors
from ncpipe.config.study_reads import called_by
from ncpipe.system.artifacts import publish_folder
from ncpipe.system.console import say
from ncpipe.system.errors import InputError, cut, shown, suggest
from ncpipe.tables.stage_tables import DATA

# Options of ncpipe's own commands, with their help and environment variables.
KNOWN = {
    PER_EXPERIMENT: Experiment,
    "device": Device,
    "workers": Workers,
    "checkpoint_seconds": CheckpointSeconds,
}
WRITTEN = "rows (dicts), a DataFrame, or a dict of these, of matplotlib Figures and of pairs of both by name"


def run_stage(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of an entry of STAGES in study.py.")],
) -> None:
    """Run a stage of the study's own; write what its function returns to data/NAME.

    Options after NAME are the parameters of the function: `ncpipe stage NAME --help` lists them. A stage with
    the option --experiment runs once for each experiment, and writes to data/NAME/EXPERIMENT.
    """
    params, study = load_params_and_study([Path(FILE)])
    if "torch" in sys.modules:  # the study computes with it; these decide the last digits of sums
        from ncpipe.training.device import fix_sums

        fix_sums(1 if params is None else params.compute.threads)
    stages = study.stages
    if name not in stages:
        hint = suggest(name, stages) if stages else f"{FILE} beside params.yaml has no table STAGES"
        raise InputError(cut(f"stage: unknown {shown(name)}; {hint}"))
    experiments = None if params is None else params.experiments
    alone = typer.Typer(add_completion=False)
    alone.command(name, cls=Command)(_command(name, stages[name], experiments))
    command = typer.main.get_command(alone)
    code = command.main(list(context.args), f"ncpipe stage {name}", standalone_mode=False)
    if code:  # 130 after Ctrl-C, which typer returns here
        raise typer.Exit(code)


# What follows NAME is for the function, --help too.
run_stage.context_settings = {  # type: ignore[attr-defined]
    "allow_extra_args": True,
    "allow_interspersed_args": False,
    "ignore_unknown_options": True,
}


def _command(name: str, stage: Stage, experiments: Collection[str] | None) -> Callable[..., None]:
    """Return a function with the stage's options, as typer reads them, that runs the stage.

    experiments: what the option --experiment may name; None without params.yaml.
    """
    kinds = stage.options()

    def command(**options: Any) -> None:
        for key, kind in kinds.items():
            if key not in KNOWN:
                options[key] = read(kind, options[key], f"--{key.replace('_', '-')}")
        chosen = options.get(PER_EXPERIMENT)
        if chosen is not None and experiments is not None and chosen not in experiments:
            raise InputError(cut(f"--experiment: unknown {shown(chosen)}; {suggest(chosen, experiments)}"))
        write_stage(name, stage, options)

    parameters = inspect.signature(stage.function).parameters.values()
    annotated = {key: KNOWN.get(key) or _without_bounds(kind) for key, kind in kinds.items()}
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [key.replace(annotation=annotated[key.name], kind=key.KEYWORD_ONLY) for key in parameters]
    )
    command.__annotations__ = annotated
    command.__doc__ = (inspect.getdoc(stage.function) or "").partition("\n\n")[0]
    return command


def _without_bounds(kind: Any) -> Any:
    """Return a type without our ranges, which `read` checks; as an option, never as an argument."""
    if typing.get_origin(kind) is Annotated:
        kind = typing.get_args(kind)[0]
    return Annotated[kind, typer.Option()]


def write_stage(name: str, stage: Stage, options: Mapping[str, Any]) -> None:
    """Run a stage, and write what it returns to data/NAME, or data/NAME/EXPERIMENT; all of it, or nothing.

    Raises InputError if it returns something else.
    """

    def wrong(result: str) -> InputError:
        return mistake_of(stage.function, f"gives {result}")

    target = DATA / name
    if stage.per_experiment:
        target /= options[PER_EXPERIMENT]
    with study_errors(), called_by(None), publish_folder(target) as folder:
        result = stage.function(**options)
        parts = result if isinstance(result, Mapping) else {name: result}
        if not parts:
            raise wrong(f"nothing; return {WRITTEN}")
        for key, part in parts.items():
            if not (isinstance(key, str) and key.isidentifier()):
                raise wrong(f"the name {key!r}; write letters, digits and _")
            pair = isinstance(part, tuple) and len(part) == 2 and not isinstance(part[1], Mapping)
            for table_or_figure in part if pair else (part,):
                _write(folder, key, table_or_figure, wrong)
    say(f"{name}: {target} has {', '.join(parts)}")


def _write(folder: Path, key: str, part: Any, wrong: Callable[[str], InputError]) -> None:
    """Write a table as CSV, or a figure as PNG and SVG."""
    import pandas as pd  # takes half a second, which --help does not wait for
    from matplotlib.figure import Figure

    if isinstance(part, Figure):
        from ncpipe.figures.save import save_figure

        save_figure(part, folder, key)
        return
    if not isinstance(part, pd.DataFrame):
        if isinstance(part, str | Mapping) or not isinstance(part, Iterable):
            raise wrong(f"{type(part).__name__}; return {WRITTEN}")
        rows = list(part)
        if unfit := [row for row in rows if not isinstance(row, Mapping)]:
            raise wrong(f"a row of type {type(unfit[0]).__name__}; return {WRITTEN}")
        part = pd.DataFrame([{name: _number(value, wrong) for name, value in row.items()} for row in rows])
    if part.empty:
        raise wrong(f"no rows for {key}, so nothing is written")
    part.to_csv(folder / f"{key}.csv", index=False, lineterminator="\n")


def _number(value: Any, wrong: Callable[[str], InputError]) -> Any:
    """Return an entry of a row, the number in a tensor or array of one; raise InputError of a larger one."""
    if not hasattr(value, "shape"):
        return value
    if math.prod(value.shape) != 1:
        raise wrong(f"{type(value).__name__} {tuple(value.shape)} in a row; give each number a column")
    return value.item()
