"""Run the stage plot: draw the figures of the sweep, or of published tables (`ncpipe.figures`)."""

import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_args

import pandas as pd
import typer
from matplotlib.figure import Figure

from ncpipe.claims.claim import Scale
from ncpipe.config.params import PARAMS_FILE, load_params
from ncpipe.config.study import call, mistake, mistake_of
from ncpipe.config.yaml_file import read_yaml
from ncpipe.figures.claim_panels import claim_panels
from ncpipe.figures.save import save_figure
from ncpipe.figures.sweep import sweep_figures
from ncpipe.figures.x_axis import with_lines
from ncpipe.system.artifacts import (
    CLAIMS_POINTS,
    CLAIMS_TABLE,
    FIGURES,
    PROVENANCE,
    RESULTS,
    publish_folder,
    read_json,
)
from ncpipe.system.errors import InputError
from ncpipe.tables.files import read_csv, read_table
from ncpipe.tables.keys import symbol, x_column


@dataclass(frozen=True)
class Published:
    """Holds the tables of published folders by name, and of their experiments the labels and scales.

    further: figures that one folder has besides those that all have.
    """

    tables: dict[str, pd.DataFrame]
    labels: dict[str, str]
    scales: dict[str, str]
    further: tuple[str, ...] = ()


# The tables of depth_sweep and loss_gap, and slopes_leave_out, which rates.txt also quotes.
PUBLISHED = ("runs", "points", "summary", "slopes", "slopes_leave_out")


def plot(
    sources: Annotated[
        list[Path] | None, typer.Option("--from", help="Folder written by `ncpipe publish`; can be repeated.")
    ] = None,
    target: Annotated[Path | None, typer.Option("--to", help="With --from: folder for the figures.")] = None,
) -> None:
    """Draw the figures of the sweep, or with --from those of published tables, as PNG and SVG.

    In data/figures these are depth_sweep, loss_gap, layers, train_test, heat_maps, spectra, and
    curves_EXPERIMENT for each experiment. With --from, see `plot_published`.
    """
    if (sources is None) != (target is None):
        raise InputError("plot: give both --from and --to: the published folder, and one for the figures")
    if sources is not None and target is not None:
        plot_published(sources, target)
        return
    with publish_folder(FIGURES) as folder:
        for name, figure in _figures().items():
            save_figure(figure(), folder, name)


def _figures() -> Mapping[str, Callable[[], Figure]]:
    params = load_params()
    figures = dict(sweep_figures(params.sweep.experiments, _table))
    for name, function in params.study.figures.items():
        if name in figures or not re.fullmatch(r"\w+", str(name)):
            raise mistake("FIGURES", f"the figure {name!r} exists already, or is no name of a file")
        figures[name] = partial(_own_figure, function)
    return figures


def _table(name: str) -> pd.DataFrame:
    return read_table(RESULTS / f"{name}.csv", "aggregate")


def _own_figure(function: Callable[..., Figure]) -> Figure:
    figure = call(function, _table)
    if not isinstance(figure, Figure):
        raise mistake_of(function, f"gives {type(figure).__name__}; return a matplotlib Figure")
    return figure


def plot_published(sources: Sequence[Path], target: Path) -> None:
    """Draw depth_sweep and loss_gap from published tables, with one row of panels for each experiment.

    panels and further published figures too, if there is one folder and it has them. Trains nothing. `about`
    of a folder's params.yaml has the `label` and `scale` of its experiments; one without a scale has the
    smallest of its claims. Rows are in the order of the folders. Other files in `target` are kept.
    """
    published = read_published(sources)
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target) as folder:
        for name, figure in figures_of_published(published):
            for path in save_figure(figure, Path(folder), name):
                os.replace(path, target / path.name)


def read_published(sources: Sequence[Path]) -> Published:
    """Return the concatenated tables of published folders; InputError if two have the same experiment."""
    for path in (source / f"{name}.csv" for source in sources for name in PUBLISHED):
        if not path.is_file():
            raise InputError(f"{path}: not found; give a folder written by ncpipe publish")
    parts = {
        name: [read_table(source / f"{name}.csv", "publish") for source in sources] for name in PUBLISHED
    }
    owner: dict[str, Path] = {}
    for source, runs in zip(sources, parts["runs"], strict=True):
        for experiment in runs["experiment"].unique():
            if experiment in owner:
                raise InputError(
                    f"{source}: {experiment} is also in {owner[experiment]}; give each experiment once"
                )
            owner[experiment] = source
    if len(axes := {symbol(runs) for runs in parts["runs"]}) > 1:
        raise InputError(
            f"plot: the folders have different x axes, {' and '.join(sorted(axes))}; plot them separately"
        )
    labels: dict[str, str] = {}
    scales: dict[str, str] = {}
    for name, source in owner.items():
        about = _about(source).get(name) or {}
        labels |= {name: about["label"]} if about.get("label") else {}
        scale = about.get("scale") or _scale_of_claims(source, name)
        scales |= {name: scale} if scale else {}
    tables = {name: pd.concat(of_folders, ignore_index=True) for name, of_folders in parts.items()}
    if len(sources) == 1 and (panels := sources[0] / CLAIMS_POINTS).is_file():
        tables["panels"] = read_csv(panels).fillna({"name": "", "xlabel": ""})
    further: Mapping[str, list[str]] = {}
    if len(sources) == 1 and (provenance := sources[0] / PROVENANCE).is_file():
        further = read_json(provenance).get("figures", {})
    for name in {name for names in further.values() for name in names} - tables.keys():
        tables[name] = read_table(sources[0] / f"{name}.csv", "publish")
    return Published(tables, labels, scales, tuple(further))


def _about(source: Path) -> Mapping[str, Any]:
    """Return `about` of a published folder's params.yaml, which another version may have written."""
    path = source / PARAMS_FILE.name
    return (read_yaml(path).get("about") or {}) if path.is_file() else {}


def _scale_of_claims(source: Path, experiment: str) -> str:
    """Return the smallest scale of the published claims about an experiment, or nothing."""
    path = source / CLAIMS_TABLE
    if not path.is_file():
        return ""
    rows = read_csv(path)
    scales = set(rows.loc[rows["about"].str.split(",").str[0] == experiment, "scale"])
    return next((scale for scale in reversed(get_args(Scale)) if scale in scales), "")


def figures_of_published(published: Published) -> Iterator[tuple[str, Figure]]:
    """Yield depth_sweep and, if any run has a gap, loss_gap, and panels, if there are some, by name.

    A sweep whose lines have a single depth, or value, each has no figure against it.
    """
    tables = published.tables
    order = list(tables["runs"]["experiment"].unique())
    figures = sweep_figures(order, tables.__getitem__, published.labels, published.scales)
    runs = with_lines(tables["runs"])
    swept = runs.groupby("experiment")[x_column(runs)].nunique().max() > 1
    for name in ("depth_sweep", "loss_gap"):
        if swept and name in figures:
            yield name, figures[name]()
    for name in published.further:
        yield name, figures[name]()
    if "panels" in tables:
        scale = "; ".join(sorted(set(published.scales.values())))
        yield "panels", claim_panels(tables["panels"], {}, published.labels, scale)
