"""What a benchmark times by difference: a number that is positive and steady, or none."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import loaded

training = loaded(Path(__file__).resolve().parent.parent / "benchmarks" / "training.py")


def times(*seconds: float) -> Callable[[], float]:
    return itertools.cycle(seconds).__next__


@pytest.mark.parametrize(
    ("noise", "found"),
    [
        ([0, 0, 0, 0, 0], 2.0),
        ([0.1, -0.1, 0.05, 0, 30], 2.05),  # another program, once
        ([3, -3, 2, -2, 1], None),
        ([-4, -4, -4, -4, -4], None),  # less than nothing, however steady
    ],
)
def test_a_difference_is_positive_and_steady_or_not_measured(noise: list[float], found: float | None) -> None:
    """Red: the best of a few times less the best of others."""
    more = times(*(3 + extra for extra in noise))
    assert training.timed_difference(times(1), more) == (found and pytest.approx(found))


def test_it_is_repeated_until_it_is_steady() -> None:
    """Red: a fixed number of repetitions."""
    restless, steady = [5.0, 9, 1.5, 7, 4], [3.0] * 20
    assert training.timed_difference(times(1), times(*restless, *steady)) == pytest.approx(2)
