"""Draw the figures of S24 in docs/results/low_rank/s24 from the tables beside them.

    uv run python docs/results/low_rank_figures.py [stages/low_rank/data/low_rank]

With a folder of the study's tables, these are copied first, without matrices that no figure here shows.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from ncpipe.figures.save import save_figure
from ncpipe.papers.s24.figures.study import study_figures

FOLDER = Path(__file__).resolve().parent / "low_rank/s24"
# The paper's figure of each.
SHOWN = {
    "solutions": "1",
    "through_training_k10_training": "2, top",
    "level_ratios": "3, left",
    "rank_penalty": "3, middle",
    "against_axis_k10_width": "3, right",
    "loss_split": "5, left",
    "class_means": "5",
    "run_k4_starts": "5, middle",
    "run_k15_deep": "6",
    "run_k15_deep_training": "6",
    "run_k6": "7",
    "run_k15": "8",
    "run_k15_training": "8",
    "against_axis_k10_rate": "9, right",
}


def copy_tables(folder: Path) -> None:
    """Copy the study's tables, of class means those that a figure here shows."""
    for path in folder.glob("*.csv"):
        table = pd.read_csv(path, dtype=str, keep_default_na=False)
        if path.stem == "class_means":
            table = table[_shown(table)]
        if not path.stem.startswith("against_axis"):  # which follow from `series`
            table.to_csv(FOLDER / path.name, index=False, lineterminator="\n")


def _shown(means: pd.DataFrame) -> pd.Series:
    """Return which rows the runs' own figures show, or class_means, which has the sweep's runs."""
    runs = {name.removeprefix("run_") for name in SHOWN if name.startswith("run_")}
    layer = means["layer"]
    depth = layer.str.removeprefix("~").str[1:].astype(int).groupby(means["experiment"]).transform("max")
    inner, last = "M" + (depth - 1).astype(str), "M" + depth.astype(str)
    layers = (layer == "~M2") | (layer == inner) | (layer == "~" + inner) | (layer == "~" + last)
    return layers & ((means["x"] != "") | means["experiment"].isin(runs))


def figures() -> dict[str, Callable[[], Figure]]:
    """Return the published figures by name."""
    drawn = study_figures({path.stem: pd.read_csv(path) for path in sorted(FOLDER.glob("*.csv"))})
    return {name: drawn[name] for name in SHOWN}


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        copy_tables(Path(argument))
    for name, figure in figures().items():
        save_figure(figure(), FOLDER, name)
        (FOLDER / f"{name}.svg").unlink()
