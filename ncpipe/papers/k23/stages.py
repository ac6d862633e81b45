"""Offer the stage `models` of stages/regimes_models: K23's models without networks."""

from typing import Any

import pandas as pd

from ncpipe.papers.k23.curves import CURVES
from ncpipe.papers.k23.figures import model_curves
from ncpipe.study import Stage


def models() -> dict[str, Any]:
    """Compute the models of K23 from formulas and numerically, without networks."""
    points = pd.DataFrame([point for curve in CURVES for point in curve()])
    return {"curves": points, "models": model_curves(points)}


STAGES = {"models": Stage(models)}
