"""Collect the contents of the report from a study's tables, figures and claims (`ncpipe.report.page`)."""

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from ncpipe.config.params import Params, Purpose
from ncpipe.config.study import Study
from ncpipe.figures.labels import DATA_NAMES, caption
from ncpipe.metrics.study_metrics import own_metrics
from ncpipe.report import first_screen
from ncpipe.report.chart_data import chart_data, plain
from ncpipe.report.grids import Grid, grid
from ncpipe.report.page import Chapter, Contents, Picture, Provenance, read_pictures
from ncpipe.report.result_grids import claim_grids, power_grids, side_by_side, verdict_counts
from ncpipe.report.words import WORDS, network_words
from ncpipe.system.artifacts import CLAIMS, CLAIMS_TABLE, FIGURES, RESULTS
from ncpipe.tables.convergence import failure_lines
from ncpipe.tables.files import present, read_measured, read_table
from ncpipe.tables.keys import distinct, line_keys, name_of, rows_at, symbol, x_column
from ncpipe.tables.rates import in_columns, rate_table
from ncpipe.tables.stage_tables import DATA, parse_table, stage_texts

RULES = ("sweep", "convergence", "slopes", "effective_depth")  # of params.yaml, besides the experiments
COMMANDS = {
    "dvc repro": "which runs what is stale",
    "dvc repro report": "which makes this page",
    "ncpipe report --to FILE": "which adds the commit, the machine and how long training took",
}
RUN_COLUMNS = (
    "experiment", "depth", "x", "seed", "converged", "selected", "reason", "loss", "loss_gap", "fit",
    "inner_penalty", "last_penalty", "train_error", "test_error", "loss_moved", "gradient_norm",
)  # fmt: skip
FAILED_COLUMNS = (
    "experiment", "depth", "x", "seed", "selected", "reason", "last_train_error", "loss_moved",
    "gradient_norm", "diverged_at_epoch",
)  # fmt: skip
OWN_COLUMNS = ("metric", "experiment", "depth", "x", "split", "mean", "std", "runs")


def contents(
    params: Params | None,
    records: Sequence[Mapping[str, Any]],
    stages: Sequence[Path],
    here: Mapping[str, str],
) -> Contents:
    """Return the contents of the page.

    params: None for a study without runs. records: run.json of every run of the grid. stages: folders of
    further stages whose tables and figures the page shows. here: facts about this machine and checkout.
    """
    path = CLAIMS / CLAIMS_TABLE
    claims = claim_grids(read_table(path, "claims"), path.read_bytes()) if path.is_file() else []
    if params is None:
        lead = [f"{verdict_counts(claims)}."] if claims else []
        page = Contents("Neural collapse: models without networks", lead, provenance=Provenance(here=here))
    else:
        page = _contents_with_runs(params, claims, _provenance(params, records, here))
    pictures, grids = [*page.pictures, *_stage_pictures(stages)], [*page.grids, *_stage_grids(stages)]
    return dataclasses.replace(page, claims=claims, pictures=pictures, grids=grids, again=COMMANDS)


def _contents_with_runs(params: Params, claims: list[Grid], provenance: Provenance) -> Contents:
    runs, points, slopes, history = (
        read_table(RESULTS / f"{name}.csv", "aggregate") for name in ("runs", "points", "slopes", "history")
    )
    measurements, places = (
        read_measured(table, params.sweep.experiments) for table in ("measurements", "places")
    )
    runs = runs.assign(reason=runs["reason"].astype(object).fillna(""))  # all are nan if every run converged
    places_of = {name: place for place, name in enumerate(params.sweep.experiments)}
    runs = runs.sort_values("experiment", key=lambda column: column.map(places_of), kind="stable")
    against = "depth L" if x_column(runs) == "depth" else symbol(runs)
    leave_out = read_table(RESULTS / "slopes_leave_out.csv", "aggregate")
    rates = rate_table(slopes, leave_out, runs, slopes)
    alts = {"depth_sweep": _alt_text(rates), "loss_gap": _alt_text(rates[rates["series"] == "loss gap"])}
    present(FIGURES / "depth_sweep.svg", "plot")
    headline, *pictures = read_pictures(FIGURES, "", against, alts)
    chapters = _chapters(params, runs, points, slopes, rates)
    measured = set(points["metric"])
    kind = "regression" if "nrc1" in measured else "tags" if "tags_angle" in measured else "classes"
    collapse = WORDS["collapse"][kind]
    failed = runs[~runs["converged"]]
    charts = chart_data(runs, points, slopes, history, measurements, places)
    verdicts = verdict_counts(claims) if claims else ""
    rows = first_screen.rate_rows(runs, points, slopes, _line_networks(params, runs))
    return Contents(
        title=f"{collapse['name']} {f'against {against}' if first_screen.at_several(runs) else ''}".strip(),
        lead=[collapse["means"]],
        collapse=kind,
        summary={
            "Asked": first_screen.asked(runs, {chapter.name: chapter.question for chapter in chapters}),
            "Trained": [first_screen.trained(runs)],
            "Found": first_screen.findings(runs, points, slopes),
            "How sure": first_screen.how_sure(runs, params.slopes.level, verdicts),
            "Next": first_screen.next_steps(runs, rows),
        },
        rates=rows,
        headline=headline,
        networks=_networks(runs),
        metrics={plain(series["metric"]): series["means"] for series in charts["series"]},
        chapters=chapters,
        pictures=pictures,
        charts=charts,
        failures=failure_lines(runs, params.convergence),
        failed=grid("failed", "Which they are", failed, FAILED_COLUMNS) if len(failed) else None,
        grids=[
            *_own_metrics(params.study, points),
            *side_by_side(runs, points, params.slopes),
            *power_grids(slopes, symbol(runs), _bytes("slopes")),
            grid("runs", "Runs", runs, RUN_COLUMNS, csv=_bytes("runs")),
        ],
        provenance=provenance,
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
        runs_of_name = runs[runs["experiment"] == name]
        of_name = (rates["line"] == name) | rates["line"].str.startswith(f"{name} at L = ")
        of_lines = {line.get("depth"): line for line in lines if line["experiment"] == name}
        answers = [
            f"L = {depth}: " * (depth is not None) + first_screen.answer(line, points, slopes, runs)
            for depth, line in of_lines.items()
        ]
        shown = in_columns(rates[of_name])
        network, expected = _network(params, runs_of_name), purpose.expected or ""
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
    networks = {str(net["architecture"]): network_words(net["architecture"], net["norm"]) for net in named}
    sources = dict.fromkeys(runs["source"].astype(str))
    return networks | {DATA_NAMES[name]: WORDS["data"][name] for name in sources if name in WORDS["data"]}


def _line_networks(params: Params, runs: pd.DataFrame) -> dict[str, str]:
    """Return the caption of each line (`keys.name_of`)."""
    return {name_of(line): _network(params, rows_at(runs, line)) for line in distinct(runs, line_keys(runs))}


def _alt_text(rates: pd.DataFrame) -> str:
    """Return a table of rates for readers who hear the page."""
    cells = rates.iloc[:, :4].itertuples(index=False, name=None)
    return " ".join(f"{line}: {series} {change} {rate}." for line, series, change, rate in cells)


def _bytes(name: str) -> bytes:
    return (RESULTS / f"{name}.csv").read_bytes()


def _own_metrics(study: Study, points: pd.DataFrame) -> Iterator[Grid]:
    """Yield a table with a row for each metric of study.py, experiment, depth (or x) and split."""
    names = [metric.name for metric in own_metrics(study)]
    rows = points[points["metric"].isin(names) & (points["layer"] == "last") & points["selected"]]
    if not len(rows):
        return
    keys = [key for key in ("experiment", "depth", "x", "metric", "split") if key in rows]
    values = rows.groupby(keys, sort=False)["value"]
    table = values.agg(mean="mean", std="std", runs="count").reset_index()
    note = "At the last layer, of the runs used."
    yield grid("own-metrics", "The study's own metrics", table, OWN_COLUMNS, note)


def _stage_pictures(stages: Sequence[Path]) -> list[Picture]:
    """Return the figures of further stages."""
    return [
        picture
        for folder in stages
        for place in (folder, *sorted(filter(Path.is_dir, folder.glob("*"))))
        for picture in read_pictures(place, f"{'-'.join(place.relative_to(DATA).parts)}-", "", {})
    ]


def _stage_grids(stages: Sequence[Path]) -> Iterator[Grid]:
    """Yield the tables of further stages, with every column."""
    for folder in stages:
        for name, text in stage_texts(folder.name).items():
            table = parse_table(text)
            key = f"{folder.name}-{name}"
            yield grid(key, name.replace("_", " "), table, map(str, table.columns), csv=text.encode())


def _provenance(params: Params, records: Sequence[Mapping[str, Any]], here: Mapping[str, str]) -> Provenance:
    """Return what run.json records of the runs, and parameters."""
    runs = params.grid()
    facts: dict[str, list[str]] = {}
    for heading, keys in {
        "Trained on": ("device",),
        "Threads of a batch, precision": ("threads", "precision"),
        "Versions": ("ncpipe", "torch"),
    }.items():
        parts = (", ".join(f"{key} {_entry(record, key)}" for key in keys) for record in records)
        facts[heading] = list(dict.fromkeys(parts))
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


def _entry(record: Mapping[str, Any], key: str) -> object:
    for part in ("computed_with", "inputs"):
        if key in record[part]:
            return record[part][key]
    return "unknown"
