"""K23's models without networks: formulas and matrices on one curve; the study alone runs the slow ones."""

from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd
import pytest

from ncpipe.papers.k23 import curves
from ncpipe.papers.k23.figures import PANELS

QUICK = (curves.subspace, curves.two_layers, curves.balance)


@pytest.mark.parametrize("curve", QUICK, ids=lambda curve: curve.__name__)
def test_what_is_found_lies_on_the_formula(curve: Callable[[], Iterator[curves.Point]]) -> None:
    points = pd.DataFrame(curve())
    (panel,) = set(points["panel"])
    assert set(points["series"]) == set(PANELS[panel].series)
    for _, own in points.groupby("series"):
        closed, found = (own[own["how"] == how] for how in ("closed", "found"))
        away = np.abs(found["x"].to_numpy()[:, None] - closed["x"].to_numpy()).min(1) > 0.01
        expected = np.interp(found["x"], closed["x"], closed["y"])
        assert found["y"].to_numpy()[~away] == pytest.approx(expected[~away], rel=0.02, abs=0.02)
        assert len(found) >= 3


def test_impacts_of_each_power_have_a_series() -> None:
    assert {point.series for point in curves.separability()} == set(PANELS["separability"].series)


def test_the_central_path_starts_at_one_and_ends_in_its_powers() -> None:
    """Red: another start, or omega in place of NC1. NC1 falls as t^-1/2 and as 1/t."""
    points = list(curves.along_central_path())
    for kind, power in (("tangent", -0.5), ("whitening", -1.0)):
        own = [point for point in points if point.series == kind]
        assert 0.9 < own[0].y < 1
        (x, y), (further, lower) = ((point.x, point.y) for point in (own[-5], own[-1]))
        assert np.log(lower / y) / np.log(further / x) == pytest.approx(power, abs=0.03)
