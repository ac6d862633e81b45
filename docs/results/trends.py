"""Write docs/results/trends.md, and draw the figures of choices, from trends.yaml and the published tables.

    uv run python docs/results/trends.py

A row of trends.yaml names a published experiment; slopes, intervals and losses come from its folder. Slopes
over different depths or seeds are not comparable, so each choice stands below the panel over the same ones.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import yaml
from continued import COLUMNS, ends
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from render import FOLDER, NOTHING, SERIES, published, short, table, with_interval

from ncpipe.figures.drawing import DASHES, draw_key, draw_means, key_entry, label_rows, row_grid
from ncpipe.figures.save import save_figure
from ncpipe.figures.style import FAINT, INK, Colour, metric_colours
from ncpipe.tables.floors import float32_level_of
from ncpipe.tables.slopes import Replicates, turns_back
from ncpipe.tables.summary import in_two_groups

METRICS = ("NC1", "NC2", "NC3")
LEVEL = 0.95
PAGE = FOLDER / "trends.md"
PENALTY = [f"penalty_{key}" for key in ("rule", "value", "last_layer", "biases", "scope")]
LOWEST = "lowest loss at each depth"
SEEDS = "seeds"  # the figure of a panel with more seeds
FALLS, RISES, UNCLEAR = *metric_colours(2), FAINT
# Figures of one study's choices, with the panels that it has some of.
LINES = {
    ("optimizer_mnist", "choices"): ("Figure 2, a", "Figure 1, row 4", "Figure 2, c"),
    ("mini_batches", "choices"): ("Figure 2, a",),
}


@dataclass(frozen=True)
class Choice:
    """Holds one experiment of a panel's table, and what it is called."""

    text: str
    folder: str
    experiment: str = ""
    value: float | None = None
    further: bool = False
    inputs: str = ""

    @property
    def name(self) -> str:
        return self.experiment or self.folder

    @cached_property
    def runs(self) -> pd.DataFrame:
        """The used runs with depth, seed, loss, NC1, NC2 and NC3, which are NaN where they are not used."""
        if not (FOLDER / self.folder).is_dir():
            raise SystemExit(f"trends.yaml: docs/results/{self.folder} does not exist; publish it first")
        if self.further:
            after = list(ends()[self.name].values())[-1].reset_index()
            found = after.rename(columns={column: title for title, column in COLUMNS.items()})
            return found.assign(converged=math.nan)
        runs, points = (self._own(published(self.folder, name)) for name in ("runs", "points"))
        found = runs[runs["selected"]]
        for title in METRICS:
            metric, split = SERIES[title]
            own = points[(points["metric"] == metric) & (points["split"] == split) & points["used"]]
            values = own[["depth", "seed", "value"]].rename(columns={"value": title})
            found = found.merge(values, on=["depth", "seed"], how="left")
        return found

    def _own(self, rows: pd.DataFrame) -> pd.DataFrame:
        rows = rows[rows["experiment"] == self.name]
        return rows if self.value is None else rows[rows["x"] == self.value]

    @property
    def penalty(self) -> list[str]:
        """What is penalised how strongly, as in runs.csv."""
        first = {"penalty_scope": "matrices"} | self.runs.iloc[0].to_dict()  # of before it was a key
        return [str(first[key]) for key in PENALTY]

    @property
    def depths(self) -> tuple[int, ...]:
        return tuple(sorted(self.runs["depth"].unique().tolist()))

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(sorted(self.runs["seed"].unique().tolist()))

    def over(self, other: "Choice") -> pd.DataFrame:
        """Return the runs at another choice's depths and seeds."""
        return self.runs[self.runs["depth"].isin(other.depths) & self.runs["seed"].isin(other.seeds)]


@dataclass(frozen=True)
class PanelOfChoices:
    """Holds a panel of S25 with the choices that it is compared with."""

    panel: str
    title: str
    inputs: str
    sentence: str
    base: Choice
    choices: tuple[Choice, ...]

    @property
    def more(self) -> Choice | None:
        """Further seeds of the panel at one depth, if they are among the choices."""
        return next((each for each in self.choices if not {*each.seeds} & {*self.base.seeds}), None)

    def groups(self) -> Iterator[tuple[pd.DataFrame | None, list[Choice]]]:
        """Yield the choices with the same depths and seeds together, after the panel's runs at those.

        These runs are None where they are all of the panel's, or none.
        """
        whole = (self.base.depths, self.base.seeds)
        found: dict[Any, list[Choice]] = {}
        for choice in self.choices:
            found.setdefault((choice.depths, choice.seeds), []).append(choice)
        for key in sorted(found, key=lambda key: key != whole):
            same = self.base.over(found[key][0])
            yield None if key == whole or same.empty else same, found[key]

    def lowest(self) -> pd.DataFrame:
        """Return at each depth the run of least loss, of the panel's and all choices' with its objective.

        At depths at which all of these have runs, further seeds at one depth aside.
        """
        same = [
            choice.runs
            for choice in self.choices
            if (choice.further or (not choice.inputs and choice.penalty == self.base.penalty))
            and len(choice.depths) > 1
        ]
        tables = [self.base.runs, *same]
        shared = set.intersection(*(set(table["depth"]) for table in tables))
        runs = pd.concat(tables, ignore_index=True).dropna(subset=METRICS)
        runs = runs[runs["depth"].isin(shared)]
        return runs.loc[runs.groupby("depth")["loss"].idxmin()]


def panels() -> list[PanelOfChoices]:
    """Return the rows of trends.yaml."""
    rows = yaml.safe_load((FOLDER / "trends.yaml").read_text(encoding="utf-8"))
    return [
        PanelOfChoices(
            row["panel"], row["title"], row["inputs"], row["sentence"],
            Choice(row["base"], row["folder"], row.get("experiment", "")),
            tuple(Choice(**choice) for choice in row["choices"]),
        )
        for row in rows
    ]  # fmt: skip


def fit(runs: pd.DataFrame, title: str) -> dict[str, Any]:
    """Return the power of L of a metric over some runs, NaN of one depth, and whether all is rounding.

    turns: whether a line is rejected and the means turn back, so that a claim about the slope is undecided.
    """
    by_depth = np.log10(runs.dropna(subset=[title]).set_index("depth")[title]).groupby("depth")
    groups = [own.to_numpy() for _, own in by_depth]
    found = Replicates(np.array(list(by_depth.groups)), groups, LEVEL).fit(0)
    turns = found["rejected"] and turns_back(by_depth.mean().tolist(), found["slope"])
    level = float32_level_of(SERIES[title][0])
    return found | {"rounding": bool((runs[title].dropna() <= level).all()), "turns": bool(turns)}


def cell(found: Mapping[str, Any]) -> str:
    """Return a fit for a table: bold if it worsens, with † if a line is rejected, ‡ if it turns back too."""
    if found["rounding"] or math.isnan(found["slope"]):
        return "rounding" if found["rounding"] else NOTHING
    bold = "**" * (tendency(found) == RISES)
    sign = "‡" if found["turns"] else "†" * bool(found["rejected"])
    return f"{with_interval(found['slope'], found['low'], found['high'], bold)}{sign}"


def tendency(found: Mapping[str, Any]) -> Colour:
    """Return the colour of a fit that falls or rises, or UNCLEAR where 0 is in its interval or it turns back.

    INK without an interval, as of one run at each depth.
    """
    if math.isnan(found["low"]):
        return INK
    if found["turns"] or found["low"] <= 0 <= found["high"]:
        return UNCLEAR
    return FALLS if found["high"] < 0 else RISES


def cells(text: str, inputs: str, runs: pd.DataFrame) -> list[str]:
    """Return a row of a panel's table."""
    depths = sorted(runs["depth"].unique())
    losses = np.exp(np.log(runs["loss"]).groupby(runs["depth"]).mean())
    ends = losses if len(losses) == 1 else losses.iloc[[0, -1]]
    settled = runs["converged"].sum() if runs["converged"].notna().all() else math.nan
    count = f"{len(runs)}" if math.isnan(settled) else f"{int(settled)} of {len(runs)}"
    return [
        text,
        inputs,
        ", ".join(map(str, depths)),
        *(cell(fit(runs, title)) for title in METRICS),
        " → ".join(short(loss, 3) for loss in ends),
        count,
    ]


def section(panel: PanelOfChoices) -> str:
    """Return a panel's heading, sentence and table."""
    heads = ["choice", "inputs", "L", *METRICS, "loss", "converged"]
    rows = [cells(f"**published:** {panel.base.text}", panel.inputs, panel.base.runs)]
    for same, choices in panel.groups():
        if same is not None:
            rows.append(cells(f"published, {same['seed'].nunique()} seeds", panel.inputs, same))
        rows += [cells(choice.text, choice.inputs or panel.inputs, choice.runs) for choice in choices]
    rows.append(cells(LOWEST, panel.inputs, panel.lowest()))
    head = f"## {panel.panel}: {panel.title}\n\n"
    nothing = "" if panel.choices else "\nNo other choice is published yet.\n"
    seeds = (
        f"\n![NC1, NC2 and NC3 of single networks against their loss](trends/{SEEDS}.png)\n"
        if panel.more
        else ""
    )
    return f"{head}**{panel.sentence.strip()}**\n\n{table(heads, rows)}\n{seeds}{nothing}"


def page() -> str:
    """Return the text of docs/results/trends.md."""
    head = (FOLDER / "trends.md.jinja").read_text(encoding="utf-8").split("\n", 1)[1]
    return head.replace("{{ panels }}\n", "\n".join(map(section, panels())))


def forest() -> Figure:
    """Draw the powers of L of NC1, NC2 and NC3 with their intervals, a row per choice, grouped by panel.

    Each panel ends with that of the runs of lowest loss, which are one at each depth and so have no interval.
    """
    rows: list[tuple[str, pd.DataFrame | None, str]] = []  # label, runs, marker; a heading has no runs
    for panel in panels():
        rows.append((f"{panel.panel}: {panel.title}", None, ""))
        rows.append((panel.base.text, panel.base.runs, "D"))
        for same, choices in panel.groups():
            if same is not None:
                spelled = ", ".join(map(str, sorted(same["depth"].unique())))
                rows.append((f"the panel over L = {spelled}, {same['seed'].nunique()} seeds", same, "|"))
            rows += [(choice.text, choice.runs, "o") for choice in choices]
        rows.append((LOWEST, panel.lowest(), "x"))
    with row_grid(1, len(METRICS), 0.165 * len(rows), 0.7) as (figure, grid):
        for axes, title in zip(grid[0], METRICS, strict=True):
            _draw_slopes(axes, rows, title)
        grid[0, 0].set_yticks(range(len(rows)), [mathtext(label) for label, _, _ in rows], fontsize=7)
        for label, (_, runs, _) in zip(grid[0, 0].get_yticklabels(), rows, strict=True):
            if runs is None:
                label.set_fontweight("bold")
        for axes in grid[0, 1:]:
            axes.set_yticks(range(len(rows)), [""] * len(rows))
        marks = [("all depths of a panel", INK, "D"), ("the panel over a choice's $L$ and seeds", INK, "|"),
                 ("a choice", INK, "o"), ("runs of lowest loss, one a depth", INK, "x"),
                 ("falls with depth", FALLS, "s"), ("rises with depth", RISES, "s"),
                 ("undecided: interval includes 0, or turns back", UNCLEAR, "s")]  # fmt: skip
        handles = [
            key_entry(label, colour, marker=mark, markersize=4, linewidth=0) for label, colour, mark in marks
        ]
        draw_key(figure, handles, 3)
    return figure


def _draw_slopes(axes: Axes, rows: list[tuple[str, pd.DataFrame | None, str]], title: str) -> None:
    axes.axvline(0, color=INK, linewidth=0.8)
    for place, (_, runs, marker) in enumerate(rows):
        if runs is None:
            continue
        found = fit(runs, title)
        if found["rounding"] or math.isnan(found["slope"]):
            note = "rounding" if found["rounding"] else "one depth"
            axes.text(0.03, place, note, fontsize=6, va="center", color=FAINT)
            continue
        colour = tendency(found)
        axes.plot([found["low"], found["high"]], [place, place], color=colour, linewidth=1.1)
        axes.plot(found["slope"], place, marker, color=colour, markersize=6 if marker == "|" else 3.5)
    axes.set_xlim(-2, 2)  # an interval that is wider leaves the panel
    axes.set_ylim(len(rows) - 0.5, -0.7)
    axes.set_title(title)
    axes.set_xlabel("power of $L$")
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")


def lines(names: tuple[str, ...], folder: str) -> Figure:
    """Draw log10 of NC1, NC2 and NC3 against depth: a row per panel, a line per optimizer.

    A metric has one scale in all rows. Dots are runs. There is no mean between two groups of runs.
    """
    shown = sorted(
        (each for each in panels() if each.panel in names), key=lambda each: names.index(each.panel)
    )
    folders = {"optimizer_mnist", "mini_batches"} if folder == "optimizer_mnist" else {folder}
    own = {
        each.panel: [each.base, *(choice for choice in each.choices if choice.folder in folders)]
        for each in shown
    }
    texts = sorted({_optimizer(choice.text) for choices in own.values() for choice in choices})
    colours = dict(zip(texts, metric_colours(len(texts)), strict=True))
    with row_grid(len(shown), len(METRICS), 1.7, 0.5, sharex=True) as (figure, grid):
        for line, panel in zip(grid, shown, strict=True):
            for axes, title in zip(line, METRICS, strict=True):
                for choice in own[panel.panel]:
                    _draw_line(axes, choice, title, colours[_optimizer(choice.text)], choice is panel.base)
                axes.set_xscale("log")
                axes.set_xticks(panel.base.depths, [str(depth) for depth in panel.base.depths])
                axes.minorticks_off()
        for column in grid.T:
            low, high = zip(*(axes.get_ylim() for axes in column), strict=True)
            for axes in column:
                axes.set_ylim(min(low), max(high))
        labels = [mathtext("\n".join([each.panel, *each.title.split(", "), each.inputs])) for each in shown]
        label_rows(grid, labels, [rf"$\log_{{10}}$ {title}" for title in METRICS], "depth $L$")
        handles = [
            key_entry(text, colour, marker="o", markersize=3, linewidth=1.3)
            for text, colour in colours.items()
        ]
        handles += [key_entry("solid: the panel"), key_entry("dashed: another choice", linestyle=DASHES)]
        draw_key(figure, handles, 3)
    return figure


def single_networks(panel: PanelOfChoices) -> Figure:
    """Draw NC1, NC2 and NC3 against the loss, a dot per network, at the depth with more seeds."""
    assert panel.more
    (depth,) = panel.more.depths
    base = panel.base.runs[panel.base.runs["depth"] == depth]
    parts = [(f"published, {len(base)} seeds", base), (panel.more.text, panel.more.runs)]
    colours = metric_colours(len(parts))
    with row_grid(1, len(METRICS), 1.7, 0.4) as (figure, grid):
        for axes, title in zip(grid[0], METRICS, strict=True):
            for (_, runs), colour in zip(parts, colours, strict=True):
                axes.plot(runs["loss"], np.log10(runs[title]), "o", color=colour, markersize=3, alpha=0.8)
        labels = [mathtext("\n".join([panel.panel, *panel.title.split(", "), f"L = {depth}"]))]
        label_rows(grid, labels, [rf"$\log_{{10}}$ {title}" for title in METRICS], "regularised loss")
        handles = [
            key_entry(text, colour, marker="o", markersize=3, linewidth=0)
            for (text, _), colour in zip(parts, colours, strict=True)
        ]
        draw_key(figure, handles, 2)
    return figure


def _draw_line(axes: Axes, choice: Choice, title: str, colour: Colour, solid: bool) -> None:
    runs = choice.runs.dropna(subset=[title])
    log10 = np.log10(runs[title]).groupby(runs["depth"])
    one = ~log10.apply(lambda values: in_two_groups(values.to_numpy()))
    dashes: dict[str, Any] = {} if solid else {"linestyle": DASHES}
    means = log10.mean().where(one)
    draw_means(axes, means.index, means, log10.std().where(one), color=colour, **dashes)
    axes.plot(1.05 * runs["depth"], np.log10(runs[title]), "o", color=colour, markersize=1.6, alpha=0.6)


def _optimizer(text: str) -> str:
    """Return the optimizer that a choice's text names, in the words of a legend."""
    return mathtext(re.split(", (?:40|ε)", text.split("; ")[-1])[0])  # all with this beta2 have that epsilon


def mathtext(text: str) -> str:
    """Return words of the page with mathtext in place of glyphs that the figures' fonts lack."""
    for plain, tex in {"β₂": r"$\beta_2$", "λ_L": r"$\lambda_L$", "λ": r"$\lambda$"}.items():
        text = text.replace(plain, tex)
    return text


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    (FOLDER / "trends").mkdir(exist_ok=True)
    save_figure(forest(), FOLDER / "trends", "forest")
    for panel in panels():
        if panel.more:
            save_figure(single_networks(panel), FOLDER / "trends", SEEDS)
    for (folder, name), names in LINES.items():
        save_figure(lines(names, folder), FOLDER / folder, name)
