"""K23's models without networks: formulas and matrices on one curve."""

import numpy as np
import pandas as pd
import pytest

from ncpipe.papers.k23 import curves
from ncpipe.papers.k23.figures import PANELS

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


def test_the_curves_have_a_panel_each():
    """The slow ones are run by the study alone."""
    named = {
        point.panel for curve in (*QUICK, curves.separability, curves.along_central_path) for point in curve()
    }
    assert named <= set(PANELS)
