"""Run the stage `models` of stages/regimes_models: K23's models without networks."""

import pandas as pd

from ncpipe.figures.save import save_figure
from ncpipe.papers.k23.curves import CURVES, Point
from ncpipe.papers.k23.figures import model_curves
from ncpipe.papers.outputs import MODELS
from ncpipe.system.artifacts import publish_folder
from ncpipe.system.console import say
from ncpipe.training.device import fix_sums


def write_models() -> None:
    """Compute the models of K23 from formulas and numerically, without networks; write data/models."""
    fix_sums(1)  # matrices of a few rows: threads would wait for each other
    rows: list[Point] = []
    for curve in CURVES:
        rows += curve()
        say(f"models: {curve.__name__.replace('_', ' ')}")
    points = pd.DataFrame(rows)
    with publish_folder(MODELS) as folder:
        points.to_csv(folder / "curves.csv", index=False, lineterminator="\n")
        save_figure(model_curves(points), folder, "models")
