"""List the commands of the program `ncpipe`, and report its errors.

A command's options stand with its function. `ncpipe.commands.options` has those that several commands share.
"""

import functools
import io
import os
import sys
from typing import Annotated

import typer
from safetensors import SafetensorError

from ncpipe import __version__
from ncpipe.commands.options import Group, add
from ncpipe.system.artifacts import remove_tried_links
from ncpipe.system.errors import InputError
from ncpipe.system.signals import came_of_interrupt, install_signal_handlers

app = typer.Typer(
    cls=Group,
    name="ncpipe",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def print_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def program(
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Measure neural collapse over a sweep of networks, depths and seeds. Commands read params.yaml in the
    current folder and write below data/; `dvc repro` runs the stages that are stale. `ncpipe metrics`
    measures any stored features."""
    if address := os.environ.get("DVC_STAGE"):  # set by DVC for the stages that it runs
        from ncpipe.commands.code import check_unedited

        check_unedited(address)


command = functools.partial(add, app)
stage = functools.partial(add, app, panel="Stages, which `dvc repro` runs")

stage("code", "commands.code:write_code")
stage("grid", "commands.grid:write_grid")
stage("fetch", "commands.fetch:fetch")
stage("train", "commands.train:train")
stage("fill", "commands.fill:fill_store")
command("clean", "commands.clean:clean")
command("sweep", "commands.sweep:sweep")
stage("extract", "commands.extract:extract_experiment", torch=True)
stage("measure", "commands.measure:measure", torch=True)
stage("aggregate", "commands.aggregate:aggregate")
stage("plot", "commands.plot:plot")
command("publish", "commands.publish:publish")
stage("claims", "commands.claims:claims")
stage("report", "commands.report:report")
command("stage", "commands.stage:run_stage")
command("compare", "commands.compare:compare")
command("metrics", "commands.metrics:print_metrics")
command("status", "commands.status:status")
command("repair", "commands.repair:repair")
command("new", "commands.new:create_study")
command("schema", "commands.json_schema:write_schema")


def _is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, MemoryError):
        return True
    if "torch" not in sys.modules:
        return False
    from ncpipe.training.device import is_out_of_memory

    return is_out_of_memory(error)


def _study_error(error: Exception) -> InputError | None:
    """Return the mistake in study.py that caused an error; None if there is none."""
    if "ncpipe.config.study" not in sys.modules:
        return None
    from ncpipe.config.study import study_error

    return study_error(error)


def run_cli() -> None:
    """Run the program; report mistakes of the user and a full disk in one line, without a traceback."""
    install_signal_handlers()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that has no minus sign
    if "DVC_STAGE" in os.environ:
        remove_tried_links()
    try:
        app(prog_name="ncpipe")
    except InputError as error:
        sys.exit("\n".join(f"ncpipe: {line}" for line in str(error).splitlines()))
    except Exception as error:
        if _is_out_of_memory(error):
            message = "not enough memory on this machine; make data, model.width or the depth smaller"
        elif mistake := _study_error(error):
            message = str(mistake)
        elif isinstance(error, OSError):
            message = f"{error.filename}: " * bool(error.filename) + (error.strerror or str(error))
        elif isinstance(error, SafetensorError):  # while writing: readers raise InputError
            message = str(error)
        elif came_of_interrupt(error):
            raise KeyboardInterrupt from None
        else:
            raise
        sys.exit(f"ncpipe: {message}; nothing half-written was kept")
    except SystemExit as stop:
        if stop.code == 130:  # typer's exit code after Ctrl-C
            raise KeyboardInterrupt from None
        raise
