"""What follows from a metric's entry in the catalogue: nothing else has to know a new metric."""

import sys

import pandas as pd
import pytest
import torch
from made_tables import grid, measure, noisy

from ncpipe.config.params import Slopes
from ncpipe.figures.labels import Column
from ncpipe.metrics import catalogue, table
from ncpipe.metrics.collapse import between_trace
from ncpipe.metrics.entry import families_of, metric
from ncpipe.metrics.sample_statistics import SampleStatistics
from ncpipe.metrics.statistics import ClassStatistics
from ncpipe.tables.floors import QUADRATIC_FLOOR
from ncpipe.tables.points import usable_points
from ncpipe.tables.slopes import leave_out_slopes, loglog_slopes

RULE = Slopes(seed=0, level=0.9)


@metric(
    "NC1", "0", "largest variance of a class", "max_k Var_k / tr Σ_B", "[0, ∞]", "nobody", order=2,
    label="NC1 (largest)",
)  # fmt: skip
def nc1_largest_class(statistics: ClassStatistics) -> float:
    return ((statistics.squares / statistics.counts).max() / between_trace(statistics)).item()


@metric("NC4", "0", "share beyond", "a share", "[0, 1]", scale="linear")
def share_beyond(samples: SampleStatistics, misalignment: torch.Tensor) -> float:
    return 0.25


FAMILIES = families_of((sys.modules[__name__],), catalogue.GROUPS)
NEW, SHARE = (family.entries[0] for family in FAMILIES)


@pytest.fixture(autouse=True)
def two_more_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions with their entries, in a module of the catalogue: nothing else."""
    monkeypatch.setattr(table, "OF_STATISTICS", [*table.OF_STATISTICS, FAMILIES[0]])
    monkeypatch.setattr(table, "OF_SAMPLES", [*table.OF_SAMPLES, FAMILIES[1]])
    every = catalogue.CATALOGUE | {entry.name: entry for entry in (NEW, SHARE)}
    for module in ("catalogue", "measurements"):
        monkeypatch.setattr(f"ncpipe.metrics.{module}.CATALOGUE", every)


def test_it_is_measured_and_printed_among_its_group() -> None:
    """Red: a list of names in the report."""
    draw = torch.Generator().manual_seed(0)
    features, labels = torch.randn(30, 4, generator=draw), torch.arange(30) % 3
    rows = table.measure(features, labels, torch.randn(3, 4, generator=draw))
    assert (rows["last", "train", SHARE.name], rows[NEW.name] > 0) == (0.25, True)
    lines = [line.split() for line in str(rows).splitlines()]
    (row,) = [line for line in lines if NEW.name in line]
    assert " ".join(row).endswith("0 largest variance of a class")
    heads = [line[0] for line in lines if line and line[0] in {"NC1", "NC2", "NC4"}]
    place = lines.index(row)
    assert heads.count("NC1") == 1
    assert place < next(i for i, line in enumerate(lines) if line[:1] == ["NC2"])


def test_its_floor_is_of_its_order() -> None:
    """Red: floors that a table of their own has."""
    runs = grid(depths=(2,), seeds=(0, 1))
    values = [QUADRATIC_FLOOR, 2 * QUADRATIC_FLOOR]
    points = usable_points(measure(runs, lambda _, seed: values[seed], NEW.name), runs)
    assert points["reason"].tolist() == ["at the rounding floor", ""]


@pytest.mark.parametrize("slopes", [loglog_slopes, leave_out_slopes])
def test_what_is_on_a_log_scale_gets_a_power_law(slopes) -> None:
    """Red: slopes of whatever was measured."""
    runs = grid()
    measured = [measure(runs, noisy, name) for name in (NEW.name, SHARE.name, "nc1_pinv_rank", "margin_p05")]
    fits = slopes(pd.concat(measured, ignore_index=True), runs, RULE)
    assert set(fits["metric"]) == {NEW.name}


def test_figures_call_it_by_its_entry() -> None:
    assert Column(NEW.name, "train").title == r"$\log_{10}$ NC1 (largest)"
    assert Column(SHARE.name, "test").title == "share beyond, test"
