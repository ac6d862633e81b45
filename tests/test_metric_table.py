"""The table of metrics where means coincide or a layer diverged, and what its arrays have to be.

The conformance suite has every metric exactly, of ordinary, collapsed, dead and extreme features.
"""

import math

import pytest
import torch
from torch import Tensor

from ncpipe.metrics.checks import check_arrays
from ncpipe.metrics.collapse import nc1_pinv
from ncpipe.metrics.sample_statistics import SampleAccumulator
from ncpipe.metrics.statistics import class_statistics
from ncpipe.metrics.table import measure_batches, measure_layer
from ncpipe.system.errors import InputError

Case = tuple[Tensor, Tensor, Tensor, Tensor]


def case(seed: int, classes: int = 4, per_class: int = 6, width: int = 9, spread: float = 0.3) -> Case:
    """Features, labels, weight and bias; unequal class sizes."""
    generator = torch.Generator().manual_seed(seed)
    options = {"generator": generator, "dtype": torch.float64}
    labels = torch.arange(classes).repeat_interleave(per_class)
    labels = torch.cat([labels, torch.randint(classes, (per_class,), generator=generator)])
    means = torch.randn(classes, width, **options)
    features = means[labels] + spread * torch.randn(len(labels), width, **options)
    return features, labels, torch.randn(classes, width, **options), torch.randn(classes, **options)


def pinv_and_rank(features: Tensor, labels: Tensor, classes: int) -> tuple[float, int]:
    seen = class_statistics(features, labels, classes)
    accumulator = SampleAccumulator(seen)
    accumulator.update(features, labels)
    return nc1_pinv(seen, accumulator.result().spread)


def test_what_rounding_leaves_of_far_means_is_no_direction() -> None:
    """Four equal means at 1e6, whose spacing in float64 is 1e-10, a few spacings off. Red: a cutoff in
    proportion to the centred means, which takes these for three directions."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(4).repeat(6)
    noise = torch.randn(4, 12, generator=generator, dtype=torch.float64)
    for size, rank in ((3e-10, 0), (3e-4, 3)):
        features = (1e6 + size * noise)[labels]
        assert pinv_and_rank(features, labels, 4)[1] == rank


def test_a_diverged_layer_is_nan_not_a_crash() -> None:
    features, labels, weight, _ = case(0)
    features[5, 2] = torch.nan
    seen = class_statistics(features, labels, 4)
    accumulator = SampleAccumulator(seen, weight)
    accumulator.update(features, labels)
    rows = measure_layer("3", "train", seen, accumulator.result(), seen, weight)
    values = {row.metric: row.value for row in rows}
    assert values.pop("nc1_pinv_rank") == 0
    defined = {metric for metric, value in values.items() if not math.isnan(value)}
    assert {metric for metric in defined if not metric.startswith("margin_p")} == set()
    with pytest.raises(InputError, match="train features of layer 3 hold NaN or inf"):
        measure_batches(lambda: [(features, labels)], 4, layer="3")


@pytest.mark.parametrize(("keep", "passes"), [(0.25, 1), (0, 2)])
def test_batches_are_read_once_where_they_fit(keep: float, passes: int) -> None:
    features, labels, weight, _ = case(0)
    starts = {"train": 0, "test": 0}

    def batches(split: str) -> list[tuple[Tensor, Tensor]]:
        starts[split] += 1
        return [(features[:7], labels[:7]), (features[7:], labels[7:])]

    rows = measure_batches(lambda: batches("train"), 4, lambda: batches("test"), weight, layer="3", keep=keep)
    assert starts == {"train": passes, "test": passes}
    assert {row.layer for row in rows} == {"3"}
    assert {row.split for row in rows} == {"train", "test", "weights"}
    with pytest.raises(InputError, match=r"train\(\): it gave no samples"):
        measure_batches(list, 4)


def test_what_check_arrays_warns_of() -> None:
    features, labels, weight, bias = case(0)
    (unbalanced,) = check_arrays(features.numpy(), labels.numpy(), weight, bias)
    assert unbalanced.startswith("train classes are not balanced, 6 to 9 samples: nc2_*, nc3_* need not")
    features, labels = features[:24], labels[:24]
    assert check_arrays(features.numpy(), labels.numpy(), weight, bias) == []
    huge = torch.full_like(features, 60_000).half()  # finite, though their sum is not
    assert check_arrays(huge, labels) == []
    some = [0, 6, 7, 12, 13, 18, 19]
    few, single, _ = check_arrays(features[some], labels[some])
    assert "7 train samples of width 9" in few
    assert "class 0 has one sample" in single
