"""The `ncpipe` program: arguments in, one call out. Stages import what they need only when they run."""

import functools
import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from safetensors import SafetensorError

from ncpipe import __version__
from ncpipe.commands import paper_commands
from ncpipe.commands.options import (
    ALL,
    CheckpointSeconds,
    Command,
    Device,
    Experiment,
    Group,
    Processes,
    Value,
    Workers,
    begin,
)
from ncpipe.papers.outputs import PARENTS
from ncpipe.system.artifacts import RUNS, remove_tried_links
from ncpipe.system.errors import InputError
from ncpipe.system.signals import came_of_interrupt, install_signal_handlers

app = typer.Typer(
    cls=Group,
    name="ncpipe",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
command = functools.partial(app.command, cls=Command)
stage = functools.partial(command, rich_help_panel="Stages, which `dvc repro` runs")


for name, paper in paper_commands.APPS.items():
    app.add_typer(paper, name=name, rich_help_panel="Stages of one paper's studies")


def _all_or_number(text: str) -> int | None:
    """Read a depth or a seed; None for all of them."""
    if text == ALL:
        return None
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no whole number; give a number, or {ALL}") from None


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
    if address := os.environ.get("DVC_STAGE"):  # which DVC sets for what it runs
        from ncpipe.commands.code import check_unedited

        check_unedited(address)


@stage()
def code() -> None:
    """Write a digest of every other stage's code to data/code, by which DVC sees that code has changed."""
    from ncpipe.commands.code import write_code

    write_code()


@stage()
def grid() -> None:
    """Check params.yaml and write the runs of the sweep to data/grid, one table per experiment."""
    from ncpipe.commands.grid import write_grid

    write_grid()


@stage()
def fetch(
    experiment: Experiment,
    mirror: Annotated[
        Path | None,
        typer.Option(
            envvar="NCPIPE_MIRROR",
            help="Folder with the official files, read instead of the network.",
            show_default=False,
        ),
    ] = None,
    value: Value = None,
) -> None:
    """Download an experiment's data set, or read it from a mirror; balance, normalise, check and store it."""
    from ncpipe.commands.fetch import fetch as fetch_data

    fetch_data(experiment, mirror, _number(value))


@stage()
def train(
    experiment: Experiment,
    depth: Annotated[
        Any, typer.Argument(parser=_all_or_number, metavar="DEPTH", help=f"Depth of the network, or {ALL}.")
    ] = None,
    seed: Annotated[
        Any,
        typer.Argument(
            parser=_all_or_number, metavar="SEED", help=f"Seed of weights and mini-batches, or {ALL}."
        ),
    ] = None,
    device: Device = None,
    alone: Annotated[
        bool, typer.Option("--alone", help="Train these runs only, without missing runs of the same shape.")
    ] = False,
    workers: Workers = None,
    checkpoint_seconds: CheckpointSeconds = 60.0,
    value: Value = None,
) -> None:
    """Train an experiment's runs, or take them from the store; write them to data/runs.

    Without DEPTH, SEED or --value, all depths, seeds or values of the sweep. Missing runs of the sweep whose
    networks have the same shape train in the same batch."""
    from ncpipe.commands.train import train as train_runs

    train_runs(experiment, depth, seed, device, alone, workers, checkpoint_seconds, _number(value))


@stage()
def fill(
    device: Device = None, workers: Workers = None, checkpoint_seconds: CheckpointSeconds = 60.0
) -> None:
    """Train all missing runs of the sweep into the store, in parallel on all cores."""
    from ncpipe.commands.fill import fill_store

    fill_store(device, workers, checkpoint_seconds)


@command()
def clean(
    older_than: Annotated[
        str | None,
        typer.Option(
            metavar="AGE",
            help="Remove what was not used for this time, for example 12h, 30d or 8w.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List what would be removed; remove nothing.")
    ] = False,
) -> None:
    """List stored runs and checkpoints by last use; with --older-than, remove old ones."""
    from ncpipe.commands.clean import clean as clean_store

    clean_store(older_than, dry_run)


@command()
def sweep(
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print the batches with their memory and time, or the jobs; train nothing.",
        ),
    ] = False,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Train the other batches when one fails.")
    ] = False,
    device: Device = None,
    workers: Workers = None,
    checkpoint_seconds: CheckpointSeconds = 60.0,
    engine: Annotated[
        Literal["local", "slurm", "ray"] | None,
        typer.Option(
            help="Where to train, instead of `engine` in engine.yaml (docs/clusters.md).", show_default=False
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            "-o",
            metavar="KEY=VALUE",
            help="Option of the engine, as in engine.yaml; may be repeated.",
            show_default=False,
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(help="Address of a Ray cluster; short for -o address=ADDRESS.", show_default=False),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Submit jobs to Slurm and exit; the jobs continue.")
    ] = False,
    collect: Annotated[
        bool,
        typer.Option("--collect", help="Collect the runs that jobs have finished; submit lost ones again."),
    ] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel the jobs of this folder.")] = False,
) -> None:
    """Bring the pipeline up to date: train missing runs in parallel, then run `dvc repro`."""
    if dry_run + detach + collect + cancel > 1:
        raise InputError("sweep: give one of --dry-run, --detach, --collect and --cancel")
    from ncpipe.runs.engines.options import load_options

    given = [*(option or ()), *([] if address is None else [f"address={address}"])]
    options = load_options(engine, given)
    if dry_run:
        from ncpipe.commands.stale import what_is_stale
        from ncpipe.config.params import load_params

        stale = what_is_stale(load_params(), device)
        if stale.nothing:
            print("nothing to train\nthe rest is up to date")
            return
    begin("sweep")
    from ncpipe.commands.sweep import cancel_jobs, print_plan
    from ncpipe.commands.sweep import sweep as run_sweep

    if dry_run:
        print_plan(stale, workers, options)
    elif cancel:
        cancel_jobs()
    else:
        jobs: Literal["wait", "detach", "collect"] = "detach" if detach else "collect" if collect else "wait"
        run_sweep(device, workers, checkpoint_seconds, keep_going, options, jobs)


@stage()
def extract(experiment: Experiment, device: Device = None, workers: Processes = None) -> None:
    """Pass both splits through an experiment's networks; write features and layer statistics in float64."""
    begin(f"extract {experiment}")
    from ncpipe.commands.extract import double_compute, extract_experiment
    from ncpipe.config.params import load_params
    from ncpipe.runs.store import link_to_dvc_cache
    from ncpipe.training.device import prepare_device

    double = double_compute(load_params().compute, device)
    on_cpu = prepare_device(double).type == "cpu"  # a GPU is one process's
    with _worker_pool(experiment, workers if on_cpu else 1) as pool:
        extract_experiment(experiment, device, pool.map)
    # By now DVC's cache has the runs.
    link_to_dvc_cache(path.parent for path in (RUNS / experiment).rglob("run.json"))


@stage()
def measure(experiment: Experiment, workers: Processes = None) -> None:
    """Compute every metric of an experiment's runs from their features; write tidy tables."""
    begin(f"measure {experiment}")
    from ncpipe.commands.measure import measure as measure_experiment

    with _worker_pool(experiment, workers) as pool:
        measure_experiment(experiment, pool.map)


def _worker_pool(experiment: str, workers: int | None) -> Any:
    """Return processes that share an experiment's runs; workers: None for one per core."""
    from ncpipe.config.bounds import usable_cores
    from ncpipe.config.params import load_params
    from ncpipe.runs.pool import WorkerPool

    params = load_params()
    processes = workers or max(1, usable_cores() // params.compute.threads)
    return WorkerPool(processes, len(params.runs_of(experiment)))


@stage()
def aggregate() -> None:
    """Judge convergence, average over seeds, fit log-log slopes; write data/results."""
    from ncpipe.commands.aggregate import aggregate as aggregate_sweep

    aggregate_sweep()


@stage()
def plot(
    sources: Annotated[
        list[Path] | None,
        typer.Option(
            "--from", help="Folder that `ncpipe publish` wrote; may be repeated.", show_default=False
        ),
    ] = None,
    target: Annotated[
        Path | None,
        typer.Option("--to", help="With --from: folder for the figures.", show_default=False),
    ] = None,
) -> None:
    """Draw the figures of the sweep, or with --from those of published tables, as PNG and SVG."""
    from ncpipe.commands.plot import plot as plot_sweep
    from ncpipe.commands.plot import plot_published

    if (sources is None) != (target is None):
        raise InputError("give --from and --to together: what to draw, and the folder to draw into")
    if sources is None or target is None:
        plot_sweep()
    else:
        plot_published(sources, target)


@command()
def publish(
    folder: Annotated[
        Path, typer.Argument(help="Folder to write; an existing one is replaced.", show_default=False)
    ],
) -> None:
    """Copy the sweep's tables, claims and parameters, with their provenance, to a folder to commit."""
    from ncpipe.commands.publish import publish as publish_sweep

    publish_sweep(folder)


@stage()
def claims(
    everything: Annotated[
        bool, typer.Option("--all", help="Print the published claims of all studies; nothing is computed.")
    ] = False,
    published: Annotated[
        Path, typer.Option("--from", metavar="FOLDER", help="With --all: folder of published tables.")
    ] = Path("docs/results"),
) -> None:
    """Compare the claims of claims.yaml with this sweep's numbers; write data/claims."""
    if everything:
        from ncpipe.commands.claims import print_all

        print_all(published)
        return
    from ncpipe.commands.claims import claims as judge_claims

    judge_claims()


@stage()
def report(
    revisions: Annotated[
        list[str] | None,
        typer.Argument(help="With --compare: revisions, as for `ncpipe compare`.", show_default=False),
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Write a page that compares revisions with the first one.")
    ] = False,
    target: Annotated[
        Path | None,
        typer.Option(
            "--to",
            help="File to write instead, with commit and machine. With --compare, the default is "
            "data/comparison.html.",
            show_default=False,
        ),
    ] = None,
    times: Annotated[
        bool, typer.Option("--times", help="With --to: add the times of stages and training.")
    ] = False,
    live: Annotated[
        bool,
        typer.Option(
            "--live", help="Serve the report and the progress of the runs on this machine, until Ctrl-C."
        ),
    ] = False,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="With --live: port; 0 chooses a free one.")
    ] = 8765,
) -> None:
    """Write the report, data/report.html: figures, tables and claims in one file that needs no network."""
    from ncpipe.commands.report import report as write_page
    from ncpipe.commands.report import report_to

    if bool(revisions) != compare:
        raise InputError(
            "report: give --compare and what to compare, as `ncpipe report --compare HEAD workspace`"
        )
    if times and (compare or target is None):
        raise InputError("report: --times goes with --to; the stage's own page has no times")
    if live and (compare or target is not None):
        raise InputError("report: --live goes with neither --compare nor --to")
    if live:
        from ncpipe.commands.report_live import serve

        serve(port)
    elif revisions:
        from ncpipe.commands.report_comparison import report_comparison

        report_comparison(revisions, target)
    elif target is None:
        write_page()
    else:
        report_to(target, times)


@command()
def serve(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 chooses a free one.")] = 8765,
) -> None:
    """Serve the report on this machine while runs train, until Ctrl-C; the same as `report --live`."""
    from ncpipe.commands.report_live import serve as serve_page

    serve_page(port)


@command()
def compare(
    revisions: Annotated[
        list[str],
        typer.Argument(
            help="DVC experiments, git revisions or `workspace`; the others are compared with the first.",
            show_default=False,
        ),
    ],
    as_csv: Annotated[bool, typer.Option("--csv", help="Print a long CSV table with all digits.")] = False,
) -> None:
    """Compare revisions: parameters that differ and, for each experiment, slopes, gaps and counts."""
    from ncpipe.commands.compare import compare as compare_revisions

    compare_revisions(revisions, as_csv)


@command()
def metrics(
    file: Annotated[
        Path,
        typer.Argument(
            help=".npz or .safetensors with features (N,d), labels (N,); optional weight (K,d), bias (K,), "
            "test_features, test_labels.",
            show_default=False,
        ),
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print strict JSON, where inf and nan are strings.")
    ] = False,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print CSV with the columns layer, split, metric, value.")
    ] = False,
    classes: Annotated[
        Literal["all", "present"],
        typer.Option(help="`present` leaves out classes without samples, as for a vocabulary of tokens."),
    ] = "all",
    min_per_class: Annotated[
        int | None,
        typer.Option(min=1, help="Leave out classes with fewer samples; implies --classes present."),
    ] = None,
    decisions: Annotated[
        int,
        typer.Option(min=1, help="With --classes present: number of samples drawn for NC3, NC4 and margins."),
    ] = 2000,
) -> None:
    """Print every collapse metric (NC1 to NC4) of features stored in FILE; needs no params.yaml."""
    if as_json and as_csv:
        raise InputError("give --json or --csv, not both")
    from ncpipe.commands.metrics import Present, print_metrics

    present = classes == "present" or min_per_class is not None
    print_metrics(
        file,
        "json" if as_json else "csv" if as_csv else "table",
        Present(min_per_class or 1, decisions) if present else None,
    )


@command()
def conformance(
    function: Annotated[
        str | None,
        typer.Argument(
            metavar="MODULE:FUNCTION",
            help="Function of NumPy arrays features (N, d) and labels (N,), and weight, bias, test_features, "
            "test_labels if it names them. It returns values by metric, or one number.",
            show_default=False,
        ),
    ] = None,
    npz_command: Annotated[
        str | None,
        typer.Option(help="Program to score instead; {} is replaced by a file's path. It prints JSON."),
    ] = None,
    metric: Annotated[str | None, typer.Option(help="Only score this metric.")] = None,
) -> None:
    """Score an implementation of collapse metrics on files whose exact metrics are known."""
    from ncpipe.commands.conformance import conformance as score

    if not score(function, npz_command, metric):
        raise typer.Exit(1)


@command()
def status(
    watch: Annotated[
        bool, typer.Option("--watch", help="Print again every two seconds, until all is done.")
    ] = False,
) -> None:
    """Print the progress of the sweep: runs done, in training (epoch, time left), waiting and stale."""
    from ncpipe.commands.status import status as print_status

    print_status(watch)


@command()
def logs(
    experiment: Experiment,
    depth: Annotated[int, typer.Argument(help="Depth of the network.", show_default=False)],
    seed: Annotated[int, typer.Argument(help="Seed of weights and mini-batches.", show_default=False)],
    value: Value = None,
) -> None:
    """Print the log of a run's training, on this machine, in jobs of Slurm or in tasks of Ray."""
    from ncpipe.commands.logs import logs as print_logs

    print_logs(experiment, depth, seed, _number(value))


@command()
def repair(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Damaged results below data/ to remove, so that `dvc repro` makes them again.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Repair DVC's files after DVC was killed, and its damaged cache; print what was repaired."""
    from ncpipe.commands.repair import repair as repair_dvc

    repair_dvc(paths or ())


@command()
def new(
    place: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="Name of the study, made as stages/NAME in this checkout. A path makes a git and DVC "
            "project there, which runs the installed package.",
            show_default=False,
        ),
    ],
    own_code: Annotated[
        bool,
        typer.Option(
            "--own-code",
            help="Add study.py with a network, data set, metric, loss and optimizer of your own.",
        ),
    ] = False,
    axis: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Key to vary beside depth, for example model.width."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Data of your own: an .npz or .safetensors file, which is copied."),
    ] = None,
) -> None:
    """Create a study of your own from the template."""
    from ncpipe.commands.new import Wanted
    from ncpipe.commands.new import new as make_study

    make_study(place, Wanted(own_code, axis, data))


@command()
def schema() -> None:
    """Write the schemas by which editors complete and explain the keys of params.yaml and claims.yaml."""
    from ncpipe.commands.schema import write_schema

    write_schema()


def _number(text: str | None) -> int | float | None:
    from ncpipe.config.yaml_file import parse_number

    return None if text is None else parse_number(text)


def _is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, MemoryError):
        return True
    if "torch" not in sys.modules:
        return False
    from ncpipe.training.device import is_out_of_memory

    return is_out_of_memory(error)


def _study_error(error: Exception) -> InputError | None:
    """Return the mistake in study.py behind an error; None if it was none, or no study.py was read."""
    if "ncpipe.config.study" not in sys.modules:
        return None
    from ncpipe.config.study import study_error

    return study_error(error)


def run_cli() -> None:
    """Run the program: each mistake of the user and a full disk are one line, never a traceback."""
    from ncpipe.commands.stage_times import timed

    install_signal_handlers()
    if "DVC_STAGE" in os.environ:
        remove_tried_links(PARENTS)
    try:
        with timed(os.environ.get("DVC_STAGE")):
            app(prog_name="ncpipe")
    except InputError as error:
        sys.exit("\n".join(f"ncpipe: {line}" for line in str(error).splitlines()))
    except Exception as error:
        if _is_out_of_memory(error):
            said = "not enough memory on this machine; make data, model.width or the depth smaller"
        elif mistake := _study_error(error):
            said = str(mistake)
        elif isinstance(error, OSError):
            said = f"{error.filename}: " * bool(error.filename) + (error.strerror or str(error))
        elif isinstance(error, SafetensorError):  # readers turn theirs into an InputError: of a writer
            said = str(error)
        elif came_of_interrupt(error):
            raise KeyboardInterrupt from None
        else:
            raise
        sys.exit(f"ncpipe: {said}; nothing half-written was kept")
    except SystemExit as stop:
        if stop.code == 130:  # how typer ends on Ctrl-C, without a word
            raise KeyboardInterrupt from None
        raise
