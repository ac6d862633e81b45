"""Stage report: one page of everything that a study found."""

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from ncpipe.commands.stage_times import stage_times
from ncpipe.config.params import PARAMS_FILE, Params, Purpose, load_params
from ncpipe.figures.labels import caption
from ncpipe.metrics.catalogue import own_metrics
from ncpipe.papers.outputs import REPORTED
from ncpipe.report.chart_data import chart_data
from ncpipe.report.grids import Cell, Grid, data_uri, grid
from ncpipe.report.page import Chapter, Contents, Provenance, render
from ncpipe.report.pictures import Picture, read_pictures
from ncpipe.report.rates import rate_rows
from ncpipe.report.result_grids import claim_grids, power_grids, side_by_side, verdict_counts
from ncpipe.runs.engines.job_log import JOB_LOG, cost_table, read_costs
from ncpipe.runs.fingerprint import RUN_RECORD
from ncpipe.system.artifacts import (
    CLAIMS,
    CLAIMS_TABLE,
    FIGURES,
    REPORT,
    RESULTS,
    RUNS,
    publish_file,
    read_json,
)
from ncpipe.system.console import duration, say
from ncpipe.tables.convergence import failure_lines
from ncpipe.tables.files import present, read_measured, read_table
from ncpipe.tables.headlines import headline_series
from ncpipe.tables.keys import distinct, line_keys, name_of, rows_at, symbol, x_column
from ncpipe.tables.sentences import rate, short_answer

RULES = ("sweep", "convergence", "slopes", "effective_depth")  # of params.yaml, besides the experiments
AGAIN = {"dvc repro": "which runs what is stale", "dvc repro report": "which makes this page"}
RUN_COLUMNS = {
    "experiment": "experiment", "depth": "L", "x": "x", "seed": "seed", "converged": "converged",
    "reason": "reason", "loss": "loss", "loss_gap": "loss gap", "fit": "fit",
    "inner_penalty": "inner penalty", "last_penalty": "last penalty",
    "train_error": "train error", "test_error": "test error", "loss_moved": "loss moved",
    "gradient_norm": "gradient",
}  # fmt: skip
FAILED_COLUMNS = {
    "experiment": "experiment", "depth": "L", "x": "x", "seed": "seed", "reason": "reason",
    "last_train_error": "train error", "loss_moved": "loss moved", "gradient_norm": "gradient",
    "diverged_at_epoch": "diverged at epoch",
}  # fmt: skip
OWN_COLUMNS = {
    "metric": "metric", "experiment": "experiment", "depth": "L", "x": "x", "split": "split",
    "mean": "mean", "std": "standard deviation", "runs": "runs",
}  # fmt: skip


def report() -> None:
    """Write data/report.html from data/: the same bytes for the same results on the same machine."""
    write_page(REPORT, contents())


def report_to(target: Path, times: bool) -> None:
    """Write the same page with the current commit, whether it was changed, the machine and its packages.

    times: with what the stages and training took too.
    """
    from ncpipe.commands.publish import machine, provenance, source, versions

    if times and PARAMS_FILE.is_file():
        told = provenance(load_params())
    else:
        told = {"source": source(), "machine": machine()}
    made = told["source"]
    here = {
        "Written on": ", ".join(f"{key} {value}" for key, value in told["machine"].items()),
        "Written with": ", ".join(f"{name} {number}" for name, number in versions().items()),
    }
    if made:
        changed = f"with changes in {', '.join(made['changed'])}" if made["changed"] else "unchanged"
        here = {"Commit": f"{made['commit']}, {changed}"} | here
    for name, own in told.get("training", {}).items():
        here[f"Training of {name}"] = ", ".join(f"{key.replace('_', ' ')} {own[key]}" for key in own)
    if times and (took := stage_times()):
        own = ", ".join(f"{stage} {duration(seconds)}" for stage, seconds in took.items())
        here["Stages, when each of their items last ran here"] = own
    page = contents(here)
    if times and (costs := read_costs()):
        head, *rows = cost_table(costs)
        note = "Jobs, tasks of Ray and sweeps of this machine that trained here."
        cells = [list(map(Cell, row)) for row in rows]
        costs_grid = Grid(
            "costs", "What training cost", note, list(head), cells, data_uri(JOB_LOG.read_bytes())
        )
        page = dataclasses.replace(page, grids=[*page.grids, costs_grid])
    write_page(target, page)


def write_page(target: Path, page: Contents) -> None:
    with publish_file(target) as partial:
        partial.write_text(render(page), encoding="utf-8", newline="\n")
    say(f"report: {target}, {target.stat().st_size / 1e6:.1f} MB")


def contents(here: Mapping[str, str] | None = None) -> Contents:
    """Return everything of a page. here: facts of this machine and checkout, if the page is to have them."""
    claims = _claims()
    if PARAMS_FILE.is_file():
        return _of_runs(load_params(), claims, here or {})
    pictures = [picture for folder in REPORTED for picture in _own_pictures(folder)]
    lead = [f"{verdict_counts(claims)}."] if claims else []
    return Contents(
        title="Neural collapse: models without networks",
        lead=lead,
        chapters=[],
        claims=claims,
        pictures=pictures,
        charts=None,
        failures=[],
        failed=None,
        grids=list(_own_grids()),
        provenance=Provenance(here=here or {}),
        again=AGAIN,
    )


def _of_runs(params: Params, claims: list[Grid], here: Mapping[str, str]) -> Contents:
    runs, points, slopes, history = (
        read_table(RESULTS / f"{name}.csv", "aggregate") for name in ("runs", "points", "slopes", "history")
    )
    measurements, places = (
        read_measured(table, params.sweep.experiments) for table in ("measurements", "places")
    )
    runs = runs.assign(reason=runs["reason"].fillna(""))
    against = "depth L" if x_column(runs) == "depth" else symbol(runs)
    sentences = present(RESULTS / "sentences.txt", "aggregate").read_text(encoding="utf-8").splitlines()
    alts = {"depth_sweep": " ".join(sentences), "loss_gap": _gap_sentence(slopes, runs)}
    headline, *pictures = read_pictures(_present_folder(FIGURES, "plot"), "", against, alts)
    chapters = _chapters(params, runs, slopes, sentences)
    bad = runs[~runs["converged"]]
    return Contents(
        title=f"Neural collapse against {against}",
        lead=["; ".join([_counted(params, runs), *([verdict_counts(claims)] if claims else [])]) + "."],
        rates=rate_rows(runs, slopes, {chapter.name: chapter.network for chapter in chapters}),
        headline=headline,
        chapters=chapters,
        claims=claims,
        pictures=[*pictures, *(picture for folder in REPORTED for picture in _own_pictures(folder))],
        charts=chart_data(runs, points, slopes, history, measurements, places),
        failures=failure_lines(runs, params.convergence),
        failed=grid("failed", "Which they are", bad, FAILED_COLUMNS) if len(bad) else None,
        grids=[
            *_own_metrics(points),
            *side_by_side(runs, points, params.slopes),
            *power_grids(slopes, symbol(runs), _bytes("slopes")),
            grid("runs", "Runs", runs, RUN_COLUMNS, csv=_bytes("runs")),
            *_own_grids(),
        ],
        provenance=_provenance(params, here),
        again=AGAIN,
    )


def _counted(params: Params, runs: pd.DataFrame) -> str:
    sweep = params.sweep
    axis = f", {sweep.axis} = {_listed(params.values())}" if sweep.axis else ""
    seeds = "1 seed" if len(sweep.seeds) == 1 else f"{len(sweep.seeds)} seeds"
    return (
        f"{int(runs['converged'].sum())} of {len(runs)} runs converged; "
        f"L = {_listed(sorted(sweep.depths))}{axis}; {seeds}"
    )


def _listed(values: Sequence[object]) -> str:
    return ", ".join(map(str, values))


def _chapters(
    params: Params, runs: pd.DataFrame, slopes: pd.DataFrame, sentences: Sequence[str]
) -> list[Chapter]:
    lines = distinct(runs, line_keys(runs))
    chapters = []
    for name in params.sweep.experiments:
        asked = (params.about or {}).get(name, Purpose(""))
        network = caption(runs[runs["experiment"] == name].iloc[0].to_dict())
        own = [line for line in sentences if line.startswith((f"{name}:", f"{name} at L = "))]
        plain = network.replace("\n", ", ").replace("\\lambda", "λ").replace("$", "")
        series = headline_series(runs[runs["experiment"] == name], slopes)
        answers = [
            (f"L = {line['depth']}: " if "depth" in line else "") + short_answer(line, slopes, runs, series)
            for line in lines
            if line["experiment"] == name
        ]
        chapters.append(Chapter(name, plain, asked.question, asked.expected or "", answers, own))
    return chapters


def _gap_sentence(slopes: pd.DataFrame, runs: pd.DataFrame) -> str:
    own = slopes[slopes["metric"] == "loss_gap"]
    said = []
    for line in distinct(runs, line_keys(runs)):
        for _, row in rows_at(own, line).iterrows():
            said.append(f"{name_of(line)}: the loss gap {rate(row, of=symbol(runs))}.")
    return " ".join(said)


def _present_folder(folder: Path, stage: str) -> Path:
    present(folder / "depth_sweep.svg", stage)
    return folder


def _bytes(name: str) -> bytes:
    return (RESULTS / f"{name}.csv").read_bytes()


def _own_metrics(points: pd.DataFrame) -> Iterator[Grid]:
    """Yield a table with a row for each metric of study.py, experiment, depth (or x) and split."""
    names = [metric.name for metric in own_metrics()]
    own = points[points["metric"].isin(names) & (points["layer"] == "last") & points["converged"]]
    if not len(own):
        return
    keys = [key for key in ("experiment", "depth", "x", "metric", "split") if key in own]
    values = own.groupby(keys, sort=False)["value"]
    table = values.agg(mean="mean", std="std", runs="size").reset_index()
    note = "At the last layer, of converged runs."
    yield grid("own-metrics", "The study's own metrics", table, OWN_COLUMNS, note)


def _claims() -> list[Grid]:
    path = CLAIMS / CLAIMS_TABLE
    return claim_grids(read_table(path, "claims"), path.read_bytes()) if path.is_file() else []


def _own_pictures(folder: Path) -> list[Picture]:
    return read_pictures(folder, f"{folder.name}-", "", {}) if folder.is_dir() else []


def _own_grids() -> Iterator[Grid]:
    """Yield the tables that the papers' own stages wrote, with every column."""
    for folder in REPORTED:
        for path in sorted(folder.glob("*.csv")):
            table = read_table(path, folder.name)
            columns = {str(column): str(column).replace("_", " ") for column in table.columns}
            name = f"{folder.name}-{path.stem}"
            yield grid(name, path.stem.replace("_", " "), table, columns, csv=path.read_bytes())


def _provenance(params: Params, here: Mapping[str, str]) -> Provenance:
    """Return what the runs record, and the rules of the tables; InputError if a run has no folder."""
    runs = params.grid()
    records = [read_json(RUNS / run.path / RUN_RECORD) for run in runs]
    said: dict[str, list[str]] = {}
    for heading, keys in {
        "Trained on": ("device",),
        "Threads of a batch, precision": ("threads", "precision"),
        "Versions": ("ncpipe", "torch"),
    }.items():
        said[heading] = list(dict.fromkeys(_joined(record, keys) for record in records))
    for heading, key in (
        ("Digest of the code that trained", "code"),
        ("Checksum of the data", "data_checksum"),
    ):
        of = [f"{run.experiment}: {_entry(record, key)}" for run, record in zip(runs, records, strict=True)]
        said[heading] = list(dict.fromkeys(of))
    rules = {name: dataclasses.asdict(getattr(params, name)) for name in RULES}
    specs = {"the sweep and its tables": yaml.safe_dump(json.loads(json.dumps(rules)))}
    for run, record in zip(runs, records, strict=True):
        specs.setdefault(run.experiment, yaml.safe_dump(record["inputs"]["spec"], sort_keys=True))
    return Provenance(said, specs, here)


def _joined(record: Mapping[str, Any], keys: Sequence[str]) -> str:
    return ", ".join(f"{key} {_entry(record, key)}" for key in keys)


def _entry(record: Mapping[str, Any], key: str) -> object:
    for part in ("computed_with", "inputs"):
        if key in record[part]:
            return record[part][key]
    return "unknown"
