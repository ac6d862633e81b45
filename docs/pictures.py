"""Draw the documentation's diagrams: docs/pipeline.svg, docs/collapse.svg and docs/rooms.svg.

python docs/pictures.py
"""

from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

FOLDER = Path(__file__).parent
BLUE, ORANGE, GREEN, GREY = "#0072b2", "#e69f00", "#009e73", "#666666"

# name: (column, row, what it does)
STAGES = {
    "code": (0, 1, "digests of code"),
    "grid": (0, 0, "list of runs"),
    "fetch": (1, 1, "data"),
    "train": (2, 1, "networks"),
    "extract": (3, 1, "features"),
    "measure": (4, 1, "metrics"),
    "aggregate": (5, 1, "means, slopes"),
    "plot": (6, 1.5, "figures"),
    "claims": (6, 0.5, "verdicts"),
    "report": (7, 1, "one page"),
}
ARROWS = [
    ("code", "fetch"),
    ("fetch", "train"),
    ("train", "extract"),
    ("extract", "measure"),
    ("measure", "aggregate"),
    ("aggregate", "plot"),
    ("aggregate", "claims"),
    ("plot", "report"),
    ("claims", "report"),
]
# The folders of the package by level, as tests/test_imports.py holds them, with what each holds.
ROOMS = [
    {"commands": "one file a command: load, call, write"},
    {"integrations": "Trainer, Lightning, torchmetrics, notebook", "papers": "what one paper's studies need"},
    {"runs": "store, fingerprints, digests of code, engines"},
    {
        "features": "passes of trained runs",
        "figures": "tables to figures",
        "report": "the HTML page",
    },
    {"training": "stacks of runs, objective, optimizers", "claims": "claims.yaml and verdicts"},
    {"theory": "optima and the gap to them", "tables": "convergence, means, slopes"},
    {"models": "one file a family of networks", "metrics": "catalogue and collapse metrics"},
    {"datasets": "sources, checks, balance, labels"},
    {"config": "params.yaml and study.py as frozen specs"},
    {"system": "artifacts, errors, console, randomness, signals"},
]
TORCHLESS = ("figures", "report", "tables")


def pipeline() -> Figure:
    """Return the stages of dvc.yaml from left to right, with what each makes."""
    figure, axes = plt.subplots(figsize=(11, 2.2))
    for name, (column, row, text) in STAGES.items():
        box = FancyBboxPatch(
            (column - 0.38, row - 0.2), 0.76, 0.4, "round,pad=0.02", fc="white", ec=BLUE, lw=1.4
        )
        axes.add_patch(box)
        axes.text(column, row + 0.06, name, ha="center", va="center", weight="bold")
        axes.text(column, row - 0.1, text, ha="center", va="center", size=7.5, color=GREY)
    for first, second in ARROWS:
        (x, y, _), (to_x, to_y, _) = STAGES[first], STAGES[second]
        arrow = {"arrowstyle": "->", "color": GREY, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", (to_x - 0.41, to_y), (x + 0.41, y), arrowprops=arrow)
    axes.annotate(
        "",
        (5 - 0.2, 0.77),
        (0.41, 0),
        arrowprops={"arrowstyle": "->", "color": GREY, "connectionstyle": "angle3,angleA=0,angleB=60"},
    )
    axes.text(-0.38, 1.55, "params.yaml and code decide which stages run", color=GREY, size=9)
    axes.set(xlim=(-0.5, 7.5), ylim=(-0.35, 1.85))
    axes.axis("off")
    return figure


def rooms() -> Figure:
    """Return the folders of the package from top to bottom: each imports only from lower levels."""
    figure, axes = plt.subplots(figsize=(9, 6.2))
    for level, row in enumerate(ROOMS):
        width = 9 / len(row)
        for index, (name, text) in enumerate(row.items()):
            left, bottom = index * width + 0.05, -level
            color = GREEN if name in TORCHLESS else BLUE
            box = FancyBboxPatch(
                (left, bottom), width - 0.1, 0.72, "round,pad=0.02", fc="white", ec=color, lw=1.4
            )
            axes.add_patch(box)
            middle = left + (width - 0.1) / 2
            axes.text(middle, bottom + 0.49, name, ha="center", va="center", weight="bold")
            axes.text(middle, bottom + 0.2, text, ha="center", va="center", size=8, color=GREY)
    bottom = 1 - len(ROOMS)
    axes.annotate("", (9.3, bottom), (9.3, 0.7), arrowprops={"arrowstyle": "->", "color": GREY})
    axes.text(
        9.45, bottom / 2 + 0.35, "imports point down", rotation=270, ha="center", va="center", color=GREY
    )
    axes.text(0, bottom - 0.35, "green: never imports torch", size=9, color=GREEN)
    axes.set(xlim=(-0.1, 9.7), ylim=(bottom - 0.5, 0.85))
    axes.axis("off")
    return figure


def collapse() -> Figure:
    """Return three classes in the plane, before and after collapse, with the rows of the classifier."""
    figure, (before, after) = plt.subplots(1, 2, figsize=(8, 4))
    angles = np.pi / 2 + 2 * np.pi * np.arange(3) / 3
    simplex = np.stack([np.cos(angles), np.sin(angles)], 1)
    generator = np.random.default_rng(3)
    means = np.array([[0.1, 0.9], [-0.95, 0.1], [0.55, -0.45]])
    rows = means @ np.array([[0.9, -0.35], [0.35, 0.9]])
    draw(before, means, rows, means[:, None] + 0.16 * generator.standard_normal((3, 40, 2)))
    before.set_title("during training", size=11)
    draw(after, simplex, simplex * 0.8, simplex[:, None] + 0.008 * generator.standard_normal((3, 40, 2)))
    after.set_title("after collapse", size=11)
    after.annotate("NC1: a class is one point", simplex[0], (0.15, 1.22), size=9, color=GREY)
    after.text(0, -1.2, "NC2: means have equal lengths and equal angles", ha="center", size=9, color=GREY)
    after.text(0, -1.4, "NC3: each classifier row lies along its mean", ha="center", size=9, color=GREY)
    return figure


def draw(axes: Axes, means: np.ndarray, rows: np.ndarray, samples: np.ndarray) -> None:
    """Draw samples (K, n, 2) as dots, means (K, 2) as crosses and rows (K, 2) as arrows."""
    for mean, row, own, color in zip(means, rows, samples, (BLUE, ORANGE, GREEN), strict=True):
        axes.scatter(*own.T, s=10, color=color, alpha=0.6, lw=0)
        axes.annotate("", row, (0, 0), arrowprops={"arrowstyle": "-|>", "color": color, "lw": 1.6})
        axes.plot(*mean, "x", color="black", ms=5)
    axes.set(xlim=(-1.4, 1.4), ylim=(-1.5, 1.4), aspect="equal")
    axes.axis("off")


def main() -> None:
    matplotlib.rcParams["svg.hashsalt"] = "ncpipe"
    for name, figure in {"pipeline": pipeline(), "collapse": collapse(), "rooms": rooms()}.items():
        figure.savefig(FOLDER / f"{name}.svg", bbox_inches="tight", metadata={"Date": None})


if __name__ == "__main__":
    main()
