"""Scripts beside the package: their names, and what a benchmark times by difference."""

import importlib.metadata
import importlib.util
import itertools
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import loaded

ROOT = Path(__file__).resolve().parent.parent
training = loaded(ROOT / "benchmarks" / "training.py")


def times(*seconds: float) -> Callable[[], float]:
    return itertools.cycle(seconds).__next__


def test_no_script_has_the_name_of_a_module_that_others_import() -> None:
    """Python finds what lies beside a script first. Red: a `coverage.py`, which numba then imports, though it
    does without where there is none."""
    scripts = [path for folder in ("benchmarks", "docs", "stages") for path in (ROOT / folder).rglob("*.py")]
    names = "|".join({path.stem for path in scripts})
    taken = sys.stdlib_module_names | importlib.metadata.packages_distributions().keys()
    imported = re.compile(rf"^ *(?:import|from) ({names})\b".encode(), re.M)
    for package in ("matplotlib", "numba", "pandas", "seaborn", "torch"):
        origin = importlib.util.find_spec(package).origin
        for file in Path(origin).parent.rglob("*.py"):
            taken |= {name.decode() for name in imported.findall(file.read_bytes())}
    assert len(scripts) > 20
    assert [str(path) for path in scripts if path.stem in taken] == []


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
