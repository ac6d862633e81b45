"""Run the stage report: collect a study's tables, figures and claims on one page (`ncpipe.report`)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from ncpipe.config.params import PARAMS_FILE, load_params, load_params_and_study
from ncpipe.report.contents import contents
from ncpipe.report.page import render
from ncpipe.runs.fingerprint import RUN_RECORD
from ncpipe.runs.provenance import machine, provenance, source, versions
from ncpipe.system.artifacts import CLAIMS, REPORT, RUNS, publish_file, read_json
from ncpipe.system.console import say
from ncpipe.system.errors import InputError
from ncpipe.tables.stage_tables import DATA


def report(
    target: Annotated[
        Path | None,
        typer.Option("--to", help="File to write instead, with commit, machine and time of training."),
    ] = None,
) -> None:
    """Write the report, data/report.html: figures, tables and claims in one file that needs no network.

    Equal results give equal bytes on the same machine, but not with --to.
    """
    if target is None:
        _write(REPORT, {})
        return
    if target.is_dir():
        raise InputError(f"{target}: is a folder; give a file, for example {target / 'report.html'}")
    untrained = {"source": source(), "machine": machine()}
    facts = provenance(load_params()) if PARAMS_FILE.is_file() else untrained
    here = {
        "Written on": ", ".join(f"{key} {value}" for key, value in facts["machine"].items()),
        "Written with": ", ".join(f"{name} {number}" for name, number in versions().items()),
    }
    if git := facts["source"]:
        changed = f"with changes in {', '.join(git['changed'])}" if git["changed"] else "unchanged"
        here = {"Commit": f"{git['commit']}, {changed}"} | here
    for name, training in facts.get("training", {}).items():
        values = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in training.items())
        here[f"Training of {name}"] = values
    _write(target, here)


def _write(target: Path, here: Mapping[str, str]) -> None:
    """Write the page, and print where to open it and its size. here: facts about this machine."""
    params, study = load_params_and_study([CLAIMS, DATA])
    records = [] if params is None else [read_json(RUNS / run.path / RUN_RECORD) for run in params.grid()]
    stages = [DATA / name for name, stage in study.stages.items() if stage.report]
    with publish_file(target) as partial:
        page = render(contents(params, records, stages, here))
        partial.write_text(page, encoding="utf-8", newline="\n")
    say(f"report: open {target} ({target.stat().st_size / 1e6:.1f} MB)")
