"""Define the `ncpipe` program: each command parses its arguments and calls one function.

Commands import what they need when they run, so that the program starts fast. `ncpipe.commands.options` has
the options that several commands share, `ncpipe.commands.paper_commands` those of single papers.
"""

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
    CheckpointSeconds,
    Command,
    Device,
    Experiment,
    ExperimentIfAny,
    Group,
    Processes,
    Value,
    Workers,
    announce,
    complete_experiment,
    named_runs,
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


def print_version(given: bool) -> None:
    if given:
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


@stage()
def code() -> None:
    """Write digests of every other stage's code to data/code, by which DVC detects changes of the code."""
    from ncpipe.commands.code import write_code

    write_code()


@stage()
def grid() -> None:
    """Check params.yaml, and write a table of each experiment's runs to data/grid."""
    from ncpipe.commands.grid import write_grid

    write_grid()


@stage()
def fetch(
    experiment: Experiment,
    mirror: Annotated[
        Path | None,
        typer.Option(
            envvar="NCPIPE_MIRROR", help="Folder with the official files, which are then not downloaded."
        ),
    ] = None,
    value: Value = None,
) -> None:
    """Download an experiment's data set or read it from a mirror; check, balance, normalise and store it."""
    from ncpipe.commands.fetch import fetch as fetch_data

    fetch_data(experiment, mirror, _number(value))


@stage()
def train(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME DEPTH SEED",
            help="Short for --experiment NAME --depth DEPTH --seed SEED.",
            autocompletion=complete_experiment,
        ),
    ] = None,
    experiment: ExperimentIfAny = None,
    depth: Annotated[int | None, typer.Option(help="Depth of the network.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of weights and mini-batches.")] = None,
    device: Device = None,
    workers: Workers = None,
    checkpoint_seconds: CheckpointSeconds = 60.0,
    value: Value = None,
) -> None:
    """Take an experiment's runs from the store, or train exactly these; write them to data/runs.

    Without --depth, --seed or --value, this means all of the sweep."""
    from ncpipe.commands.train import train as train_runs

    experiment, depth, seed = named_runs(words, experiment, depth, seed)
    train_runs(experiment, depth, seed, device, workers, checkpoint_seconds, _number(value))


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
            help="Remove what was not used for this time: a number with h, d or w, for example 30d.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List what would be removed; remove nothing.")
    ] = False,
) -> None:
    """List stored runs and checkpoints by the time of their last use; with --older-than, remove old ones."""
    from ncpipe.commands.clean import clean as clean_store

    clean_store(older_than, dry_run)


@command()
def sweep(
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print the runs that would train, and what Slurm would be given; train nothing.",
        ),
    ] = False,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="After an error, train the other batches.")
    ] = False,
    device: Device = None,
    workers: Workers = None,
    checkpoint_seconds: CheckpointSeconds = 60.0,
    engine: Annotated[
        Literal["local", "slurm", "ray"] | None,
        typer.Option(help="Where to train; overrides `engine` in engine.yaml (docs/clusters.md)."),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            "-o",
            metavar="KEY=VALUE",
            help="Option of the engine, as in engine.yaml; can be repeated.",
        ),
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="Address of a Ray cluster; short for -o address=ADDRESS.")
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Submit jobs to Slurm and exit; the jobs continue.")
    ] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Cancel all jobs that were submitted from this folder.")
    ] = False,
) -> None:
    """Bring the pipeline up to date: train missing runs in parallel, then run `dvc repro`."""
    if dry_run + detach + cancel > 1:
        raise InputError("sweep: give one of --dry-run, --detach and --cancel")
    from ncpipe.runs.engines.options import load_options

    overrides = [*(option or ()), *([] if address is None else [f"address={address}"])]
    options = load_options(engine, overrides)
    if dry_run:
        from ncpipe.commands.stale import find_stale
        from ncpipe.config.params import load_params

        stale = find_stale(load_params(), device)
        if stale.nothing:
            print("nothing to train\nall other stages are up to date")
            return
    announce("sweep")
    from ncpipe.commands.sweep import cancel_jobs, print_plan
    from ncpipe.commands.sweep import sweep as run_sweep

    if dry_run:
        print_plan(stale, workers, options)
    elif cancel:
        cancel_jobs()
    else:
        run_sweep(device, workers, checkpoint_seconds, keep_going, options, detach)


@stage()
def extract(experiment: Experiment, device: Device = None, workers: Processes = None) -> None:
    """Compute the features and layer statistics of an experiment's networks on both splits, in float64."""
    announce(f"extract {experiment}")
    from ncpipe.commands.extract import double_compute, extract_experiment
    from ncpipe.config.params import load_params
    from ncpipe.runs.store import link_to_dvc_cache
    from ncpipe.training.device import prepare_device

    double = double_compute(load_params().compute, device)
    on_cpu = prepare_device(double).type == "cpu"  # a GPU has one process
    extract_experiment(experiment, device, _sharing(workers if on_cpu else 1))
    # DVC's cache has the runs by now.
    link_to_dvc_cache(path.parent for path in (RUNS / experiment).rglob("run.json"))


@stage()
def measure(experiment: Experiment, workers: Processes = None) -> None:
    """Compute every metric of an experiment's runs from their features, and write tidy tables."""
    announce(f"measure {experiment}")
    from ncpipe.commands.measure import measure as measure_experiment

    measure_experiment(experiment, _sharing(workers))


def _sharing(workers: int | None) -> Any:
    """Return a `map` that shares runs among processes. workers: None for one per core."""
    from ncpipe.config.params import load_params
    from ncpipe.runs.pool import share
    from ncpipe.system.machine import usable_cores

    return functools.partial(share, most=workers or max(1, usable_cores() // load_params().compute.threads))


@stage()
def aggregate() -> None:
    """Decide which runs converged, average over seeds and fit log-log slopes; write data/results."""
    from ncpipe.commands.aggregate import aggregate as aggregate_sweep

    aggregate_sweep()


@stage()
def plot(
    sources: Annotated[
        list[Path] | None, typer.Option("--from", help="Folder written by `ncpipe publish`; can be repeated.")
    ] = None,
    target: Annotated[Path | None, typer.Option("--to", help="With --from: folder for the figures.")] = None,
) -> None:
    """Draw the figures of the sweep, or with --from those of published tables, as PNG and SVG."""
    from ncpipe.commands.plot import plot as plot_sweep
    from ncpipe.commands.plot import plot_published

    if (sources is None) != (target is None):
        raise InputError("plot: give both --from and --to: the published folder, and one for the figures")
    if sources is None or target is None:
        plot_sweep()
    else:
        plot_published(sources, target)


@command()
def publish(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder to write; replaced if it exists.")],
    figure: Annotated[
        list[str] | None,
        typer.Option(help="Further figure of data/figures, such as layers; can be repeated."),
    ] = None,
) -> None:
    """Copy the sweep's tables, claims and parameters, with their provenance, to a folder for git."""
    from ncpipe.commands.publish import publish as publish_sweep

    publish_sweep(folder, figure or ())


@stage()
def claims(
    everything: Annotated[
        bool, typer.Option("--all", help="Print the published claims of all studies; compute nothing.")
    ] = False,
    published: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FOLDER",
            help="With --all: folder with published tables. Default: docs/results.",
        ),
    ] = None,
) -> None:
    """Compare the claims of claims.yaml with this sweep's numbers; write data/claims."""
    if everything:
        from ncpipe.commands.claims import print_all

        print_all(published or Path("docs/results"))
        return
    if published is not None:
        raise InputError("claims: --from needs --all")
    from ncpipe.commands.claims import claims as judge_claims

    judge_claims()


@stage()
def report(
    target: Annotated[
        Path | None,
        typer.Option(
            "--to",
            help="File to write instead, with commit and machine.",
        ),
    ] = None,
    times: Annotated[bool, typer.Option("--times", help="With --to: add the time of training.")] = False,
) -> None:
    """Write the report, data/report.html: figures, tables and claims in one file that needs no network."""
    from ncpipe.commands.report import report as write_page
    from ncpipe.commands.report import report_to

    if times and target is None:
        raise InputError("report: --times needs --to, because data/report.html has no times")
    if target is not None and target.is_dir():
        raise InputError(f"{target}: is a folder; give a file, for example {target / 'report.html'}")
    if target is None:
        write_page()
    else:
        report_to(target, times)


@command()
def compare(
    revisions: Annotated[
        list[str],
        typer.Argument(
            help="DVC experiments, git revisions or `workspace`. All are compared with the first."
        ),
    ],
    as_csv: Annotated[bool, typer.Option("--csv", help="Print a long CSV table with all digits.")] = False,
) -> None:
    """Compare revisions: print parameters that differ, and slopes, gaps and counts of each experiment."""
    from ncpipe.commands.compare import compare as compare_revisions

    compare_revisions(revisions, as_csv)


@command()
def metrics(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help=".npz or .safetensors file with features (N,d) and labels (N,); optional: weight (K,d), "
            "bias (K,), test_features, test_labels, ood_features.",
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with inf and nan as strings.")] = False,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print CSV with the columns layer, split, metric, value.")
    ] = False,
    classes: Annotated[
        Literal["all", "present"],
        typer.Option(help="`present` leaves out classes without samples, as in a vocabulary of tokens."),
    ] = "all",
    min_per_class: Annotated[
        int | None,
        typer.Option(min=1, help="Leave out classes with fewer samples; implies --classes present."),
    ] = None,
    decisions: Annotated[
        int,
        typer.Option(min=1, help="With --classes present: samples drawn for NC3, NC4 and margins."),
    ] = 2000,
    shots: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            help="Also print directional CDNV, and nearest-mean errors of so many samples of each class with "
            "their bounds, as of a frozen encoder; may be repeated.",
        ),
    ] = None,
) -> None:
    """Print every collapse metric (NC1 to NC4) of features stored in FILE; needs no params.yaml."""
    if as_json and as_csv:
        raise InputError("metrics: give --json or --csv, not both")
    from ncpipe.commands.metrics import Present, print_metrics

    present = classes == "present" or min_per_class is not None
    print_metrics(
        file,
        "json" if as_json else "csv" if as_csv else "table",
        Present(min_per_class or 1, decisions) if present else None,
        shots or (),
    )


@command()
def conformance(
    function: Annotated[
        str | None,
        typer.Argument(
            metavar="MODULE:FUNCTION",
            help="Function that takes NumPy arrays features (N, d) and labels (N,), and any of weight, bias, "
            "test_features, test_labels. It returns a dict of metrics, or one number.",
        ),
    ] = None,
    npz_command: Annotated[
        str | None,
        typer.Option(help="Program to test instead; {} stands for a file's path. It prints JSON."),
    ] = None,
    metric: Annotated[str | None, typer.Option(help="Test only this metric.")] = None,
) -> None:
    """Test an implementation of collapse metrics on files whose exact metrics are known."""
    from ncpipe.commands.conformance import conformance as score

    if not score(function, npz_command, metric):
        raise typer.Exit(1)


@command()
def status(
    watch: Annotated[
        bool, typer.Option("--watch", help="Print again every two seconds until all runs are done.")
    ] = False,
) -> None:
    """Print how many runs of the sweep are done, training (with epoch and time left), waiting and stale."""
    from ncpipe.commands.status import status as print_status

    print_status(watch)


@command()
def repair(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Damaged results below data/ to remove, so that `dvc repro` computes them again."
        ),
    ] = None,
) -> None:
    """Remove damaged files from DVC's cache, with their copies in data/."""
    from ncpipe.commands.repair import repair as repair_dvc

    repair_dvc(paths or ())


@command()
def new(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="Name of the study, created as stages/NAME in this checkout. A path instead of a name "
            "creates a separate git and DVC project there, which runs the installed package.",
        ),
    ],
    own_code: Annotated[
        bool,
        typer.Option(
            "--own-code",
            help="Add a study.py with examples of an own network, data set, metric, loss and optimizer.",
        ),
    ] = False,
    axis: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Key to vary besides depth, for example model.width."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Own data set: an .npz or .safetensors file, which is copied."),
    ] = None,
    kind: Annotated[
        Literal["vector", "image", "tokens"] | None,
        typer.Option(help="With --data: what its inputs are, where their shape and type leave it open."),
    ] = None,
    own_loop: Annotated[
        bool,
        typer.Option(
            "--own-loop",
            help="Add a study.py with an own training loop: a small ResNet on augmented images of digits.",
        ),
    ] = False,
) -> None:
    """Create a new study from the template."""
    from ncpipe.commands.new import Extras, create_study

    create_study(name, Extras(own_code, axis, data, kind, own_loop))


@command()
def schema() -> None:
    """Write JSON schemas with which editors complete and explain the keys of params.yaml and claims.yaml."""
    from ncpipe.commands.json_schema import write_schema

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
    """Return the mistake in study.py that caused an error; None if there is none."""
    if "ncpipe.config.study" not in sys.modules:
        return None
    from ncpipe.config.study import study_error

    return study_error(error)


def run_cli() -> None:
    """Run the program; report mistakes of the user and a full disk in one line, without a traceback."""
    install_signal_handlers()
    if "DVC_STAGE" in os.environ:
        remove_tried_links(PARENTS)
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
