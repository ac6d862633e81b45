"""Metrics at extreme scales to the last bit, and of every array type.

Of all metrics, those of `ncpipe.metrics.collapse`, `ncpipe.metrics.spectrum` and `ncpipe.metrics.classifier`
among them. The conformance suite has coinciding classes, ties and most scales exactly.
"""

import math

import numpy as np
import pytest
import torch
from conftest import normal, split_values
from torch import Tensor

from ncpipe.metrics.statistics import ClassStatistics, StatisticsAccumulator, class_statistics
from ncpipe.metrics.table import Measurement, measure, measure_batches
from ncpipe.system.errors import InputError


def by_key(rows: list[Measurement]) -> dict[tuple[str, str], float]:
    return {(row.split, row.metric): row.value for row in rows}


def extreme_case() -> list[Tensor]:
    """Features, labels, weight, test features of ordinary size."""
    labels = torch.arange(40) % 4
    means = normal(4, 6)
    features = means[labels] + 0.3 * normal(40, 6, seed=1)
    return [features, labels, normal(4, 6, seed=2), means[labels] + 0.9 * normal(40, 6, seed=3)]


def times_two_to(array: Tensor, exponent: int) -> Tensor:
    return torch.from_numpy(np.ldexp(array.numpy(), exponent))


@pytest.mark.parametrize(
    ("exponent", "weight_exponent"),
    [(-1010, 0), (-500, 1000), (-151, -1000), (-150, 0), (151, 1000), (500, -1000), (1015, 1000)],
)
def test_a_power_of_two_changes_no_digit(exponent: int, weight_exponent: int) -> None:
    """Beyond 2^+-512 squares leave float64, tcv too; beyond 2^+-256 the fourth powers in dnc1_trace_pinv."""
    features, labels, weight, test = extreme_case()
    before = by_key(measure(features, labels, weight, None, test, labels))
    moved = [times_two_to(features, exponent), labels, times_two_to(weight, weight_exponent)]
    after = by_key(measure(*moved, None, times_two_to(test, exponent), labels))
    powers = {
        "margin": exponent + weight_exponent,
        "tcv": 2 * exponent,
        "dnc1": 4 * exponent,
        "feature": exponent,
    }
    squared = {"nc0_row_sum": 2 * weight_exponent}
    for (split, metric), value in before.items():
        power = exponent if split != "weights" else weight_exponent
        power = powers.get(metric.split("_")[0], power if metric.startswith("singular") else 0)
        power = squared.get(metric, power)
        if power < 1015 or metric != "margin_mean":  # of margins of inf and -inf there is no mean
            with np.errstate(over="ignore"):
                assert after[split, metric] == np.ldexp(value, power), (split, metric)


def test_a_bias_keeps_its_part_in_extreme_logits() -> None:
    features, labels, weight, _ = extreme_case()
    bias = normal(4, seed=5)
    before = split_values(measure(features, labels, weight, bias), "train")
    moved = [times_two_to(features, 700), labels, times_two_to(weight, -200), times_two_to(bias, 500)]
    after = split_values(measure(*moved), "train")
    assert after["nc4_mismatch"] == before["nc4_mismatch"] > 0
    assert after["margin_p50"] == math.ldexp(before["margin_p50"], 500)
    tiny = split_values(measure(times_two_to(features, -1000), labels, weight, bias), "train")
    assert tiny["margin_min"] == pytest.approx((bias.min() - bias.max()).item())


def test_units_follow_what_comes() -> None:
    """First zeros, then tiny batches, then large ones; and accumulators of different units merged."""
    features, labels, _, _ = extreme_case()
    parts = [0 * features, 1e-200 * features, 1e-200 * features + 1, 1e250 * features]
    everything = torch.cat(parts), labels.repeat(4)
    at_once = class_statistics(*everything, 4)
    assert at_once.exponent > 800
    in_turn, merged = StatisticsAccumulator(4, 6), StatisticsAccumulator(4, 6)
    for part in parts:
        in_turn.update(part, labels)
        alone = StatisticsAccumulator(4, 6)
        alone.update(part, labels)
        merged.merge(alone)
    for found in (in_turn.result(), merged.result()):
        assert found.exponent == at_once.exponent
        torch.testing.assert_close(found.means, at_once.means, rtol=1e-13, atol=0)
        torch.testing.assert_close(found.squares, at_once.squares, rtol=1e-13, atol=0)
    assert ClassStatistics.from_tensors(**at_once.tensors()) == at_once


def test_margins_whose_sum_leaves_float64_have_a_mean() -> None:
    features, labels, weight, _ = extreme_case()
    ordinary = split_values(measure(features, labels, weight), "train")["margin_mean"]
    found = split_values(measure(features, labels, times_two_to(weight, 1018)), "train")["margin_mean"]
    assert found == math.ldexp(ordinary, 1018)


FLOATS = ["f2", ">f2", "f4", ">f4", "f8", ">f8", "g"]
INTEGERS = ["i1", "i2", "i4", "i8", ">i4", ">i8", "u1", "u2", "u4", "u8", ">u2", ">u8"]


def values(rows: list[Measurement]) -> list[float]:
    return [row.value for row in rows]


@pytest.mark.parametrize("kind", FLOATS)
def test_numpy_floats_of_every_type(kind: str) -> None:
    features, labels, weight, test = (array.numpy() for array in extreme_case())
    stored = features.astype(kind), labels, weight.astype(kind), None, test.astype(kind), labels
    plain = [array if array is None or array.dtype.kind == "i" else array.astype("f8") for array in stored]
    assert values(measure(*stored)) == values(measure(*plain))


@pytest.mark.parametrize("kind", INTEGERS)
def test_labels_of_every_integer_type(kind: str) -> None:
    features, labels, weight, _ = extreme_case()
    expected = values(measure(features, labels, weight))
    stored = labels.numpy().astype(kind)
    assert values(measure(features, stored, weight)) == expected
    if ">" not in kind:
        tensor = torch.from_numpy(stored)
        assert values(measure(features, tensor, weight)) == expected
        assert values(measure_batches(lambda: [(features, tensor)], 4, weight=weight)) == expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2])
def test_tensors_of_every_float_type(dtype: torch.dtype) -> None:
    features, labels, weight, _ = extreme_case()
    stored = features.to(dtype)
    assert values(measure(stored, labels, weight)) == values(measure(stored.double(), labels, weight))


def test_arrays_that_may_not_be_written_or_hold_no_numbers() -> None:
    features, labels, _, _ = (array.numpy() for array in extreme_case())
    expected = values(measure(features, labels))
    features.flags.writeable = labels.flags.writeable = False
    assert values(measure(features, labels)) == expected
    assert values(measure(np.asfortranarray(features), labels)) == expected
    for kind in ("U8", complex):
        with pytest.raises(InputError, match="holds no real numbers"):
            measure(features.astype(kind), labels)
