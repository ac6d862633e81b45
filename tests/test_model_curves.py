"""K23's models without networks: formulas and matrices on one curve."""

import numpy as np
import pytest

from ncpipe.papers.k23 import curves
from ncpipe.papers.k23.figures import PANELS


def test_quick_curves_have_a_panel_each() -> None:
    """The slow ones are run by the study alone, and test_claims.py compares formulas with matrices."""
    quick = (curves.subspace, curves.two_layers, curves.balance, curves.separability)
    points = [point for curve in quick for point in curve()]
    assert {point.panel for point in points} == {"subspace", "two_linear", "balance", "separability"}
    assert {(point.panel, point.series) for point in points} <= {
        (name, series) for name, panel in PANELS.items() for series in panel.series
    }


def test_the_central_path_starts_at_one_and_ends_in_its_powers() -> None:
    """Red: another start, or omega in place of NC1. NC1 falls as t^-1/2 and as 1/t."""
    points = list(curves.along_central_path())
    for kind, power in (("tangent", -0.5), ("whitening", -1.0)):
        own = [point for point in points if point.series == kind]
        assert 0.9 < own[0].y < 1
        (x, y), (further, lower) = ((point.x, point.y) for point in (own[-5], own[-1]))
        assert np.log(lower / y) / np.log(further / x) == pytest.approx(power, abs=0.03)
