"""K23's models without networks: formulas and matrices on one curve, and the figure of them."""

import numpy as np
import pandas as pd
import pytest

from ncpipe.figures.save import save_figure
from ncpipe.papers.k23 import curves
from ncpipe.papers.k23.curves import Point
from ncpipe.papers.k23.figures import PANELS, model_curves

QUICK = (curves.subspace, curves.two_layers, curves.balance)


@pytest.mark.parametrize("curve", QUICK, ids=lambda curve: curve.__name__)
def test_what_is_found_lies_on_the_formula(curve):
    points = pd.DataFrame(curve())
    for _, own in points.groupby("series"):
        closed, found = (own[own["how"] == how] for how in ("closed", "found"))
        away = np.abs(found["x"].to_numpy()[:, None] - closed["x"].to_numpy()).min(1) > 0.01
        expected = np.interp(found["x"], closed["x"], closed["y"])
        assert found["y"].to_numpy()[~away] == pytest.approx(expected[~away], rel=0.02, abs=0.02)
        assert len(found) >= 3


def test_every_panel_is_drawn_in_its_place(tmp_path):
    rows = [
        Point(panel, series, how, x, 0.5 + x)
        for panel, spec in PANELS.items()
        for series in spec.series
        for how in ("closed", "found")
        for x in (0.1, 0.2, 0.4)
    ]
    figure = model_curves(pd.DataFrame(rows))
    titles = [axes.get_title() for axes in figure.axes if axes.get_visible()]
    assert titles == [panel.title for panel in PANELS.values()]
    assert all(path.stat().st_size for path in save_figure(figure, tmp_path, "models"))
    lone = model_curves(pd.DataFrame(rows[:6]))
    assert sum(axes.get_visible() for axes in lone.axes) == 1


def test_the_curves_have_a_panel_each():
    """The slow ones are run by the study alone."""
    named = {
        point.panel for curve in (*QUICK, curves.separability, curves.along_central_path) for point in curve()
    }
    assert named <= set(PANELS)
