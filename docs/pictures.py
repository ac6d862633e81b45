"""Draw the documentation's diagrams: docs/pipeline.svg, docs/collapse.svg and docs/rooms.svg.

python docs/pictures.py
"""

from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Wedge

FOLDER = Path(__file__).parent
PAGE = FOLDER.parent / "ncpipe" / "report" / "templates"  # the report carries its own copy of collapse.svg
BLUE, ORANGE, GREEN, GREY = "#0072b2", "#e69f00", "#009e73", "#555555"
COLORS = (BLUE, ORANGE, GREEN)

# name: (column, row, what it does)
STAGES = {
    "code": (0, 1, "code digests"),
    "grid": (1, 0, "list of runs"),
    "fetch": (1, 1, "data"),
    "fill": (2, 0, "all new runs"),
    "train": (2, 1, "one run"),
    "extract": (3, 1, "features"),
    "measure": (4, 1, "metrics"),
    "aggregate": (5, 1, "means, slopes"),
    "plot": (6, 1.5, "figures"),
    "claims": (6, 0.5, "verdicts"),
    "report": (7, 1, "one page"),
}
ARROWS = [
    ("code", "fetch"),
    ("code", "grid"),
    ("grid", "fill"),
    ("fetch", "fill"),
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
    {"report": "the HTML page"},
    {"features": "passes of trained runs", "figures": "tables to figures"},
    {"training": "stacks of runs, objective, optimizers", "claims": "claims.yaml and verdicts"},
    {"theory": "optima and the gap to them", "tables": "convergence, means, slopes"},
    {"metrics": "catalogue and collapse metrics"},
    {"models": "one file a family of networks"},
    {"datasets": "sources, checks, balance, labels"},
    {"config": "params.yaml and study.py as frozen specs"},
    {"system": "artifacts, errors, console, randomness, signals"},
]
TORCHLESS = ("figures", "report", "tables")


def box(
    axes: Axes, centre: tuple[float, float], size: tuple[float, float], name: str, text: str, color: str
) -> None:
    """Draw a box with a name and below it what the thing does."""
    (x, y), (width, height) = centre, size
    corner = (x - width / 2, y - height / 2)
    axes.add_patch(FancyBboxPatch(corner, width, height, "round,pad=0.02", fc="white", ec=color, lw=1.4))
    axes.text(x, y + 0.18 * height, name, ha="center", va="center", weight="bold")
    axes.text(x, y - 0.22 * height, text, ha="center", va="center", size=8, color=GREY)


def pipeline() -> Figure:
    """Return the stages of dvc.yaml from left to right, with what each makes."""
    figure, axes = plt.subplots(figsize=(12.5, 2.3))
    for name, (column, row, text) in STAGES.items():
        box(axes, (column, row), (0.78, 0.42), name, text, BLUE)
    arrow = {"arrowstyle": "->", "color": GREY, "shrinkA": 0, "shrinkB": 0}
    for first, second in ARROWS:
        (x, y, _), (to_x, to_y, _) = STAGES[first], STAGES[second]
        axes.annotate("", (to_x - 0.42, to_y), (x + 0.42, y), arrowprops=arrow)
    axes.annotate("", (2, 0.76), (2, 0.24), arrowprops=arrow | {"linestyle": "--"})
    axes.text(
        2.5,
        0.02,
        "fill trains all missing runs at once; train takes its run from the store.",
        color=GREY,
        size=8,
    )
    axes.text(2.5, -0.17, "The list of runs also goes to extract, measure and aggregate.", color=GREY, size=8)
    axes.text(-0.4, 1.55, "A stage runs again if its parameters, data or code changed.", color=GREY, size=9)
    axes.set(xlim=(-0.5, 7.5), ylim=(-0.35, 1.85))
    axes.axis("off")
    return figure


def rooms() -> Figure:
    """Return the folders of the package from top to bottom: each imports only from lower levels."""
    figure, axes = plt.subplots(figsize=(9, 6.2))
    for level, row in enumerate(ROOMS):
        width = 9 / len(row)
        for index, (name, text) in enumerate(row.items()):
            color = GREEN if name in TORCHLESS else BLUE
            box(axes, ((index + 0.5) * width, 0.36 - level), (width - 0.1, 0.72), name, text, color)
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
    """Return NC1 to NC4 of three classes in the plane, above during training and below after collapse."""
    figure, panels = plt.subplots(2, 4, figsize=(11, 5.8), layout="constrained")
    angles = np.pi / 2 + 2 * np.pi * np.arange(3) / 3
    simplex = np.stack([np.cos(angles), np.sin(angles)], 1)
    noise = np.random.default_rng(3).standard_normal((3, 24, 2))
    means = np.array([[0.18, 0.82], [-0.76, 0.16], [0.58, -0.98]])
    turn = np.array([[0.9, -0.5], [0.5, 0.9]])
    during = (means, 0.75 * means @ turn, means[:, None] + 0.16 * noise)
    after = (simplex, 0.65 * simplex, simplex[:, None] + 0.008 * noise)
    for row, (state, (centres, weights, samples)) in zip(
        panels, {"during training": during, "after collapse": after}.items(), strict=True
    ):
        draw_variability(row[0], centres, samples)
        draw_angles(row[1], centres)
        draw_alignment(row[2], centres, weights)
        draw_decisions(row[3], centres, weights)
        row[0].text(-1.5, 0, state, rotation=90, ha="center", va="center", size=11, weight="bold")
        for axes in row:
            axes.set(xlim=(-1.4, 1.4), ylim=(-1.4, 1.4), aspect="equal")
            axes.axis("off")
    titles = (
        "NC1: a class is one point",
        "NC2: equal lengths and angles",
        "NC3: rows lie along means",
        "NC4: nearest mean decides",
    )
    for axes, title in zip(panels[0], titles, strict=True):
        axes.set_title(title, size=11)
    return figure


def draw_variability(axes: Axes, means: np.ndarray, samples: np.ndarray) -> None:
    """Draw samples (K, n, 2) as dots about their class means (K, 2)."""
    for mean, own, color in zip(means, samples, COLORS, strict=True):
        axes.scatter(own[:, 0], own[:, 1], s=10, color=color, alpha=0.6, lw=0)
        axes.plot(*mean, "x", color="black", ms=6)


def draw_angles(axes: Axes, means: np.ndarray) -> None:
    """Draw class means (K, 2) from their own mean, with the angles between neighbours in degrees."""
    centred = means - means.mean(0)
    turns = np.degrees(np.arctan2(centred[:, 1], centred[:, 0])) % 360
    for mean, color in zip(centred, COLORS, strict=True):
        axes.plot([0, mean[0]], [0, mean[1]], color=color, lw=1.6)
        axes.plot(*mean, "x", color="black", ms=6)
    ordered = np.sort(turns)
    for start, end in zip(ordered, [*ordered[1:], ordered[0] + 360], strict=True):
        axes.add_patch(Wedge((0, 0), 0.26, start, end, width=0.0, ec=GREY, lw=1))
        middle = np.radians((start + end) / 2)
        place = (0.52 * np.cos(middle), 0.52 * np.sin(middle))
        axes.annotate(f"{end - start:.0f}°", place, ha="center", va="center", size=9.5, color=GREY)


def draw_alignment(axes: Axes, means: np.ndarray, rows: np.ndarray) -> None:
    """Draw the classifier's rows (K, 2) as arrows beside the lines to the class means (K, 2)."""
    centred = means - means.mean(0)
    for mean, row, color in zip(centred, rows, COLORS, strict=True):
        axes.plot([0, mean[0]], [0, mean[1]], "--", color=GREY, lw=1)
        axes.annotate(
            "", row, (0, 0), arrowprops={"arrowstyle": "-|>", "color": color, "lw": 2, "shrinkA": 0}
        )
        axes.plot(*mean, "x", color="black", ms=6)


def draw_decisions(axes: Axes, means: np.ndarray, rows: np.ndarray) -> None:
    """Draw the classifier's regions in colour and the borders of the nearest-mean rule as lines."""
    ticks = np.linspace(-1.35, 1.35, 41)
    places = np.stack(np.meshgrid(ticks, ticks), -1)
    scores = places @ rows.T
    nearness = -np.linalg.norm(places[:, :, None] - (means - means.mean(0)), axis=-1)
    for label, color in enumerate(COLORS):
        axes.contourf(ticks, ticks, lead(scores, label), [0, 9], colors=[color], alpha=0.3)
        axes.contour(ticks, ticks, lead(nearness, label), [0], colors="black", linewidths=1)
    for mean in means - means.mean(0):
        axes.plot(*mean, "x", color="black", ms=6)


def lead(scores: np.ndarray, label: int) -> np.ndarray:
    """Return by how much a class's score (..., K) exceeds the best of the others."""
    return scores[..., label] - np.delete(scores, label, axis=-1).max(-1)


def main() -> None:
    matplotlib.rcParams["svg.hashsalt"] = "ncpipe"
    for name, figure in {"pipeline": pipeline(), "collapse": collapse(), "rooms": rooms()}.items():
        figure.savefig(FOLDER / f"{name}.svg", bbox_inches="tight", metadata={"Date": None})
    (PAGE / "collapse.svg").write_bytes((FOLDER / "collapse.svg").read_bytes())


if __name__ == "__main__":
    main()
