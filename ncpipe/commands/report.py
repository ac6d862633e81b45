"""Run the stage report: collect a study's tables, figures and claims on one page (`ncpipe.report`)."""

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer
import yaml

from ncpipe.config.params import PARAMS_FILE, Params, Purpose, load_params, load_params_if_any
from ncpipe.config.study import load_study, loaded
from ncpipe.figures.labels import DATA_NAMES, caption
from ncpipe.metrics.study_metrics import own_metrics
from ncpipe.papers.outputs import REPORTED
from ncpipe.report.chart_data import chart_data, plain
from ncpipe.report.first_screen import (
    answer,
    asked,
    at_several,
    found,
    how_sure,
    next_steps,
    rate_rows,
    trained,
)
from ncpipe.report.grids import Grid, grid
from ncpipe.report.page import Chapter, Contents, Picture, Provenance, read_pictures, render
from ncpipe.report.result_grids import claim_grids, power_grids, side_by_side, verdict_counts
from ncpipe.report.words import WORDS, network_words
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
from ncpipe.system.console import say
from ncpipe.system.errors import InputError
from ncpipe.tables.convergence import failure_lines
from ncpipe.tables.files import present, read_measured, read_table
from ncpipe.tables.keys import distinct, line_keys, name_of, rows_at, symbol, x_column
from ncpipe.tables.rates import in_columns, rate_table
from ncpipe.tables.stage_tables import DATA, parse_table, stage_texts

RULES = ("sweep", "convergence", "slopes", "effective_depth")  # of params.yaml, besides the experiments
COMMANDS = {
    "dvc repro": "which runs what is stale",
    "dvc repro report": "which makes this page",
    "ncpipe report --to FILE --times": "which adds the commit, the machine and how long training took",
}
RUN_COLUMNS = {
    "experiment": "experiment", "depth": "L", "x": "x", "seed": "seed", "converged": "converged",
    "selected": "used", "reason": "reason", "loss": "loss", "loss_gap": "loss gap", "fit": "fit",
    "inner_penalty": "inner penalty", "last_penalty": "last penalty",
    "train_error": "train error", "test_error": "test error", "loss_moved": "loss moved",
    "gradient_norm": "gradient",
}  # fmt: skip
FAILED_COLUMNS = {
    "experiment": "experiment", "depth": "L", "x": "x", "seed": "seed", "selected": "used",
    "reason": "reason", "last_train_error": "train error",
    "loss_moved": "loss moved", "gradient_norm": "gradient",
    "diverged_at_epoch": "diverged at epoch",
}  # fmt: skip
OWN_COLUMNS = {
    "metric": "metric", "experiment": "experiment", "depth": "L", "x": "x", "split": "split",
    "mean": "mean", "std": "standard deviation", "runs": "runs",
}  # fmt: skip


def report(
    target: Annotated[
        Path | None, typer.Option("--to", help="File to write instead, with commit and machine.")
    ] = None,
    times: Annotated[bool, typer.Option("--times", help="With --to: add the time of training.")] = False,
) -> None:
    """Write the report, data/report.html: figures, tables and claims in one file that needs no network.

    Equal results give equal bytes on the same machine, but not with --to.
    """
    if times and target is None:
        raise InputError("report: --times needs --to, because data/report.html has no times")
    if target is None:
        write_page(REPORT, contents())
        return
    if target.is_dir():
        raise InputError(f"{target}: is a folder; give a file, for example {target / 'report.html'}")
    from ncpipe.commands.publish import machine, provenance, source, versions

    if times and PARAMS_FILE.is_file():
        facts = provenance(load_params())
    else:
        facts = {"source": source(), "machine": machine()}
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
    write_page(target, contents(here))


def write_page(target: Path, page: Contents) -> None:
    """Write a page, and print where to open it and its size."""
    with publish_file(target) as partial:
        partial.write_text(render(page), encoding="utf-8", newline="\n")
    say(f"report: open {target} ({target.stat().st_size / 1e6:.1f} MB)")


def contents(here: Mapping[str, str] | None = None) -> Contents:
    """Return the contents of the page. here: facts about this machine and checkout, for the provenance."""
    params, claims = load_params_if_any([CLAIMS, DATA]), _claims()
    if params is not None:
        return _contents_with_runs(params, claims, here or {})
    load_study(Path())
    return Contents(
        title="Neural collapse: models without networks",
        lead=[f"{verdict_counts(claims)}."] if claims else [],
        claims=claims,
        pictures=_stage_pictures(),
        grids=list(_stage_grids()),
        provenance=Provenance(here=here or {}),
        again=COMMANDS,
    )


def _contents_with_runs(params: Params, claims: list[Grid], here: Mapping[str, str]) -> Contents:
    runs, points, slopes, history = (
        read_table(RESULTS / f"{name}.csv", "aggregate") for name in ("runs", "points", "slopes", "history")
    )
    measurements, places = (
        read_measured(table, params.sweep.experiments) for table in ("measurements", "places")
    )
    runs = runs.assign(reason=runs["reason"].astype(object).fillna(""))  # all are nan if every run converged
    against = "depth L" if x_column(runs) == "depth" else symbol(runs)
    leave_out = read_table(RESULTS / "slopes_leave_out.csv", "aggregate")
    rates = rate_table(slopes, leave_out, runs, slopes)
    alts = {"depth_sweep": _spoken(rates), "loss_gap": _spoken(rates[rates["series"] == "loss gap"])}
    present(FIGURES / "depth_sweep.svg", "plot")
    headline, *pictures = read_pictures(FIGURES, "", against, alts)
    chapters = _chapters(params, runs, points, slopes, rates)
    measured = set(points["metric"])
    kind = "regression" if "nrc1" in measured else "tags" if "tags_angle" in measured else "classes"
    collapse = WORDS["collapse"][kind]
    failed = runs[~runs["converged"]]
    charts = chart_data(runs, points, slopes, history, measurements, places)
    rows = rate_rows(runs, points, slopes, _line_networks(params, runs))
    return Contents(
        title=f"{collapse['name']} {f'against {against}' if at_several(runs) else ''}".strip(),
        lead=[collapse["means"]],
        collapse=kind,
        summary={
            "Asked": asked(runs, {chapter.name: chapter.question for chapter in chapters}),
            "Trained": [trained(runs)],
            "Found": found(runs, points, slopes),
            "How sure": how_sure(runs, params.slopes.level, verdict_counts(claims) if claims else ""),
            "Next": next_steps(runs, rows),
        },
        rates=rows,
        headline=headline,
        networks=_networks(runs),
        metrics={plain(series["metric"]): series["means"] for series in charts["series"]},
        chapters=chapters,
        claims=claims,
        pictures=[*pictures, *_stage_pictures()],
        charts=charts,
        failures=failure_lines(runs, params.convergence),
        failed=grid("failed", "Which they are", failed, FAILED_COLUMNS) if len(failed) else None,
        grids=[
            *_own_metrics(points),
            *side_by_side(runs, points, params.slopes),
            *power_grids(slopes, symbol(runs), _bytes("slopes")),
            grid("runs", "Runs", runs, RUN_COLUMNS, csv=_bytes("runs")),
            *_stage_grids(),
        ],
        provenance=_provenance(params, here),
        again=COMMANDS,
    )


def _chapters(
    params: Params,
    runs: pd.DataFrame,
    points: pd.DataFrame,
    slopes: pd.DataFrame,
    rates: pd.DataFrame,
) -> list[Chapter]:
    lines = distinct(runs, line_keys(runs))
    chapters = []
    for name in params.sweep.experiments:
        purpose = (params.about or {}).get(name, Purpose(""))
        own = runs[runs["experiment"] == name]
        of_name = (rates["line"] == name) | rates["line"].str.startswith(f"{name} at L = ")
        answers = [
            (f"L = {line['depth']}: " if "depth" in line else "") + answer(line, points, slopes, runs)
            for line in lines
            if line["experiment"] == name
        ]
        shown = in_columns(rates[of_name])
        network, expected = _network(params, own), purpose.expected or ""
        chapters.append(Chapter(name, network, purpose.question, expected, answers, shown))
    return chapters


def _network(params: Params, runs: pd.DataFrame) -> str:
    """Return networks that differ in depth, axis and seed alone, in words and by name, with their scale."""
    depths = ", ".join(str(depth) for depth in sorted(runs["depth"].unique()))
    text = caption(runs.iloc[0].to_dict() | {"depth": depths})
    short = text.replace("\n", ", ").replace("\\lambda", "λ").replace("$", "")
    experiment, name, norm = runs[["experiment", "architecture", "norm"]].iloc[0]
    kind = network_words(name, norm)
    scale = (params.about or {}).get(experiment, Purpose("")).scale
    return "; ".join(filter(None, [short if kind == name else f"{kind}: {short}", scale]))


def _networks(runs: pd.DataFrame) -> dict[str, str]:
    """Return what each architecture and data set of the sweep is, in words."""
    named = distinct(runs, ["architecture", "norm"])
    networks = {str(own["architecture"]): network_words(own["architecture"], own["norm"]) for own in named}
    sources = dict.fromkeys(runs["source"].astype(str))
    return networks | {DATA_NAMES[name]: WORDS["data"][name] for name in sources if name in WORDS["data"]}


def _line_networks(params: Params, runs: pd.DataFrame) -> dict[str, str]:
    """Return the caption of each line (`keys.name_of`), those of one experiment together."""
    lines = distinct(runs, line_keys(runs))
    return {
        name_of(line): _network(params, rows_at(runs, line))
        for name in params.sweep.experiments
        for line in lines
        if line["experiment"] == name
    }


def _spoken(rates: pd.DataFrame) -> str:
    """Return a table of rates for readers who hear the page."""
    cells = rates.iloc[:, :4].itertuples(index=False, name=None)
    return " ".join(f"{line}: {series} {change} {rate}." for line, series, change, rate in cells)


def _bytes(name: str) -> bytes:
    return (RESULTS / f"{name}.csv").read_bytes()


def _own_metrics(points: pd.DataFrame) -> Iterator[Grid]:
    """Yield a table with a row for each metric of study.py, experiment, depth (or x) and split."""
    names = [metric.name for metric in own_metrics()]
    rows = points[points["metric"].isin(names) & (points["layer"] == "last") & points["selected"]]
    if not len(rows):
        return
    keys = [key for key in ("experiment", "depth", "x", "metric", "split") if key in rows]
    values = rows.groupby(keys, sort=False)["value"]
    table = values.agg(mean="mean", std="std", runs="size").reset_index()
    note = "At the last layer, of the runs used."
    yield grid("own-metrics", "The study's own metrics", table, OWN_COLUMNS, note)


def _claims() -> list[Grid]:
    path = CLAIMS / CLAIMS_TABLE
    return claim_grids(read_table(path, "claims"), path.read_bytes()) if path.is_file() else []


def _reported() -> list[Path]:
    """Return the folders of further stages whose tables and figures the report shows."""
    return [*REPORTED, *(DATA / name for name, stage in loaded().stages.items() if stage.report)]


def _stage_pictures() -> list[Picture]:
    """Return the figures of further stages."""
    return [
        picture
        for folder in _reported()
        for each in (folder, *sorted(filter(Path.is_dir, folder.glob("*"))))
        for picture in read_pictures(each, f"{'-'.join(each.relative_to(DATA).parts)}-", "", {})
    ]


def _stage_grids() -> Iterator[Grid]:
    """Yield the tables of further stages, with every column."""
    for folder in _reported():
        for name, text in stage_texts(folder.name).items():
            table = parse_table(text)
            columns = {str(column): str(column).replace("_", " ") for column in table.columns}
            key = f"{folder.name}-{name}"
            yield grid(key, name.replace("_", " "), table, columns, csv=text.encode())


def _provenance(params: Params, here: Mapping[str, str]) -> Provenance:
    """Return what run.json records of the runs, and parameters; raise InputError if a run has no folder."""
    runs = params.grid()
    records = [read_json(RUNS / run.path / RUN_RECORD) for run in runs]
    facts: dict[str, list[str]] = {}
    for heading, keys in {
        "Trained on": ("device",),
        "Threads of a batch, precision": ("threads", "precision"),
        "Versions": ("ncpipe", "torch"),
    }.items():
        facts[heading] = list(dict.fromkeys(_joined(record, keys) for record in records))
    for heading, key in (
        ("Digest of the code that trained", "code"),
        ("Checksum of the data", "data_checksum"),
    ):
        lines = [
            f"{run.experiment}: {_entry(record, key)}" for run, record in zip(runs, records, strict=True)
        ]
        facts[heading] = list(dict.fromkeys(lines))
    rules = {name: dataclasses.asdict(getattr(params, name)) for name in RULES}
    specs = {"the sweep and its tables": yaml.safe_dump(json.loads(json.dumps(rules)))}
    for run, record in zip(runs, records, strict=True):
        if run.experiment not in specs:
            specs[run.experiment] = yaml.safe_dump(record["inputs"]["spec"], sort_keys=True)
    return Provenance(facts, specs, here)


def _joined(record: Mapping[str, Any], keys: Sequence[str]) -> str:
    return ", ".join(f"{key} {_entry(record, key)}" for key in keys)


def _entry(record: Mapping[str, Any], key: str) -> object:
    for part in ("computed_with", "inputs"):
        if key in record[part]:
            return record[part][key]
    return "unknown"
