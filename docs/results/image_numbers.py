"""Draw docs/results/transformers_images/images.png: what depth does with more and with fewer images.

    uv run python docs/results/image_numbers.py

Its points are those of the published tables: `by_images` of 250 and 2000 images from transformers_images, and
of 1000 from the panels with the same seeds. render.py writes the same numbers into README.md.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ncpipe.figures.drawing import draw_key, draw_means, row_grid
from ncpipe.figures.save import save_figure
from ncpipe.figures.style import depth_colours

FOLDER = Path(__file__).resolve().parent
STUDY = "transformers_images"
PANELS = {"CIFAR-10": "cifar10_t11_1000", "MNIST": "mnist_t11_1000"}
METRICS = {"NC1": ("nc1_trace_ratio", "train"), "NC2": ("nc2_etf", "weights"), "NC3": ("nc3_cosine", "train")}
DEPTHS = (2, 13)
CLASSES, PER_CLASS = 10, 100  # of the panels


def by_images() -> Iterator[tuple[str, int, dict[str, list[np.ndarray]]]]:
    """Yield for each data set and number of images log10 of each metric: (seeds,) at each of DEPTHS."""
    few = pd.read_csv(FOLDER / STUDY / "points.csv")
    for source, panel in PANELS.items():
        own = few[few["experiment"] == panel.removesuffix("_1000")]
        same = pd.read_csv(FOLDER / panel / "points.csv").assign(x=PER_CLASS)
        same = same[same["seed"].isin(own["seed"])]
        for x, part in pd.concat([own, same]).groupby("x"):
            values = {}
            for title, (metric, split) in METRICS.items():
                used = part[part["used"] & (part["metric"] == metric) & (part["split"] == split)]
                values[title] = [used.loc[used["depth"] == depth, "log10"].to_numpy() for depth in DEPTHS]
            yield source, CLASSES * int(float(str(x))), values


def draw() -> Figure:
    """Draw a row per data set: log10 of NC1, NC2 and NC3 against the number of images, a line per depth."""
    colours = depth_colours(DEPTHS)
    numbers = list(by_images())
    with row_grid(len(PANELS), len(METRICS), 1.7, sharex=True) as (figure, grid):
        for line, source in zip(grid, PANELS, strict=True):
            own = {images: values for name, images, values in numbers if name == source}
            for axes, title in zip(line, METRICS, strict=True):
                for place, depth in enumerate(DEPTHS):
                    groups = [values[title][place] for values in own.values()]
                    means = [float(group.mean()) for group in groups]
                    errors = [float(group.std(ddof=1)) for group in groups]
                    draw_means(axes, list(own), means, errors, color=colours[depth], label=f"$L = {depth}$")
                axes.set_xscale("log")
                axes.set_xticks(list(own), [str(images) for images in own])
                axes.minorticks_off()
            line[0].set_ylabel(f"L-T11 on {source},\nimages of 4 patches")
        for axes, title in zip(grid[0], METRICS, strict=True):
            axes.set_title(rf"$\log_{{10}}$ {title}")
        for axes in grid[-1]:
            axes.set_xlabel("training images")
        draw_key(figure, grid[0][0].get_legend_handles_labels()[0], 2)
    return figure


if __name__ == "__main__":
    save_figure(draw(), FOLDER / STUDY, "images")
