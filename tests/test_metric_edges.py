"""Metrics where classes coincide, scales are extreme, samples lie halfway, or arrays are of unusual types."""

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from ncpipe.metrics import statistics
from ncpipe.metrics.decisions import misalignments
from ncpipe.metrics.hooks import measure_model
from ncpipe.metrics.statistics import ClassStatistics, StatisticsAccumulator, class_statistics
from ncpipe.metrics.table import Measurement, measure_arrays, measure_batches
from ncpipe.system.errors import InputError

NEVER = 10**9
INFINITE = ["nc1_trace_ratio", "nc1_pinv", "dnc1_trace_pinv", "cdnv"]
INFINITE_ON_TEST = [*INFINITE, "weak_test_collapse", "strong_test_collapse"]
UNDEFINED = ["nc2_means", "nc2_equinorm_means", "nc2_equiangular_means", "nc3_duality"]
IN_UNITS = ("margin", "tcv", "dnc1", "singular")  # all other metrics are free of the features' scale


@pytest.fixture(scope="module", autouse=True, params=["tensors", "compiled"])
def loop(request: pytest.FixtureRequest) -> Iterator[None]:
    """Both ways of the first pass."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "compiled":
            pytest.importorskip("numba")
        patch.setattr(statistics, "COMPILED_FROM", 0 if request.param == "compiled" else NEVER)
        yield


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def split_values(rows: list[Measurement], split: str) -> dict[str, float]:
    return {row.metric: row.value for row in rows if row.split == split}


def by_key(rows: list[Measurement]) -> dict[tuple[str, str], float]:
    return {(row.split, row.metric): row.value for row in rows}


def assert_no_collapse(rows: list[Measurement], classes: int) -> None:
    for split in ("train", "test"):
        found = split_values(rows, split)
        infinite = INFINITE_ON_TEST if split == "test" else INFINITE
        assert {metric: found[metric] for metric in infinite} == dict.fromkeys(infinite, math.inf)
        assert [metric for metric in UNDEFINED if not math.isnan(found[metric])] == []
        assert found["nc1_pinv_rank"] == 0
        assert found["ncc_error"] == pytest.approx(1 - 1 / classes)  # all in class 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("classes", [2, 3, 5, 8, 10, 100])
def test_identical_features_never_read_as_collapsed(classes: int, dtype: torch.dtype) -> None:
    """The mean of K equal means is another number for K = 3; its rounding is no direction."""
    features = normal(7).to(dtype).expand(3 * classes, 7)
    labels = torch.arange(classes).repeat(3)
    rows = measure_arrays(features, labels, normal(classes, 7), None, features, labels, batch_size=11)
    assert_no_collapse(rows, classes)


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("width", [2, 40])
def test_classes_of_the_same_samples_in_other_orders_coincide(width: int, mirrored: bool) -> None:
    """Their means differ by rounding at the size of the samples, also where the means themselves are 0."""
    samples, draw = normal(6, width), generator(1)
    if mirrored:
        samples = torch.cat([samples, -samples])
    features = torch.cat([samples[torch.randperm(len(samples), generator=draw)] for _ in range(4)])
    labels = torch.arange(4).repeat_interleave(len(samples))
    found = class_statistics(features, labels, 4)
    assert (found.means - found.means[0]).abs().max() > 0
    rows = measure_arrays(features, labels, normal(4, width), None, features, labels)
    assert_no_collapse(rows, 4)
    if mirrored:
        assert split_values(rows, "train")["rank_means"] == 0
        assert math.isnan(split_values(rows, "train")["nc2_condition"])


def test_a_dead_model_reads_as_dead() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    with torch.no_grad():
        model[0].weight.zero_()
        model[0].bias.copy_(normal(6).abs())
    data = DataLoader(TensorDataset(normal(30, 4).float(), torch.arange(30) % 3), batch_size=7)
    assert_no_collapse(measure_model(model, "2", data, data), 3)


def test_two_of_four_classes_that_coincide_are_seen_by_pairs_only() -> None:
    means = normal(4, 6)
    means[2] = means[0]
    labels = torch.arange(4).repeat(5)
    found = split_values(measure_arrays(means[labels] + 1e-3 * normal(1, 6).expand(20, 6), labels), "train")
    assert found["cdnv"] == math.inf
    assert found["nc1_pinv_rank"] == 2
    assert found["nc1_trace_ratio"] < 1e-25
    assert found["ncc_error"] == 1 / 4  # class 2 goes to class 0


def test_a_class_mean_at_the_centre_has_no_direction() -> None:
    """(-1, 0, 1) times a vector: the rounding of the middle one is none either."""
    means = torch.tensor([[-1.0], [0.0], [1.0]], dtype=torch.float64) * normal(1, 5) + normal(1, 5, seed=1)
    labels = torch.arange(3).repeat(4)
    found = split_values(measure_arrays(means[labels], labels, normal(3, 5)), "train")
    assert all(math.isnan(found[m]) for m in ("nc2_means", "nc2_equiangular_means", "nc3_duality"))
    assert found["nc2_equinorm_means"] == pytest.approx(math.sqrt(1 / 2), rel=1e-14)
    assert found["nc1_trace_ratio"] == 0


def test_what_is_above_the_cutoff_counts() -> None:
    """1e-12 of the means' size is far above rounding: today's values, not inf."""
    means = 1 + 1e-12 * normal(3, 4)
    labels = torch.arange(3).repeat(2)
    found = split_values(measure_arrays(means[labels], labels), "train")
    assert found["nc1_trace_ratio"] == found["cdnv"] == found["ncc_error"] == 0
    assert found["nc1_pinv_rank"] == 2


def extreme_case() -> list[Tensor]:
    """Features, labels, weight, test features of ordinary size."""
    labels = torch.arange(40) % 4
    means = normal(4, 6)
    features = means[labels] + 0.3 * normal(40, 6, seed=1)
    return [features, labels, normal(4, 6, seed=2), means[labels] + 0.9 * normal(40, 6, seed=3)]


def times_two_to(array: Tensor, exponent: int) -> Tensor:
    return torch.from_numpy(np.ldexp(array.numpy(), exponent))


@pytest.mark.parametrize("weight_exponent", [-1000, 0, 1000])
@pytest.mark.parametrize("exponent", [-1010, -500, -151, -150, 100, 151, 500, 1015])
def test_a_power_of_two_changes_no_digit(exponent: int, weight_exponent: int) -> None:
    """Beyond 2^+-512 squares leave float64, tcv too; beyond 2^+-256 the fourth powers in dnc1_trace_pinv."""
    features, labels, weight, test = extreme_case()
    before = by_key(measure_arrays(features, labels, weight, None, test, labels))
    moved = [times_two_to(features, exponent), labels, times_two_to(weight, weight_exponent)]
    after = by_key(measure_arrays(*moved, None, times_two_to(test, exponent), labels))
    powers = {"margin": exponent + weight_exponent, "tcv": 2 * exponent, "dnc1": 4 * exponent}
    squared = {"nc0_row_sum": 2 * weight_exponent}
    for (split, metric), value in before.items():
        power = exponent if split != "weights" else weight_exponent
        power = powers.get(metric.split("_")[0], power if metric.startswith("singular") else 0)
        power = squared.get(metric, power)
        if power < 1015 or metric != "margin_mean":  # of margins of inf and -inf there is no mean
            with np.errstate(over="ignore"):
                assert after[split, metric] == np.ldexp(value, power), (split, metric)


@settings(deadline=None, max_examples=20)
@given(st.floats(-290, 290), st.integers(1, 40))
def test_any_scale_in_any_batches(decimal: float, batch_size: int) -> None:
    features, labels, weight, test = extreme_case()
    before = by_key(measure_arrays(features, labels, weight, None, test, labels))
    scale = 10.0**decimal
    rows = measure_arrays(scale * features, labels, weight, None, scale * test, labels, batch_size=batch_size)
    free = {key: value for key, value in by_key(rows).items() if not key[1].startswith(IN_UNITS)}
    assert free == pytest.approx({key: before[key] for key in free}, rel=1e-11, abs=1e-13)


def test_a_bias_keeps_its_part_in_extreme_logits() -> None:
    features, labels, weight, _ = extreme_case()
    bias = normal(4, seed=5)
    before = split_values(measure_arrays(features, labels, weight, bias), "train")
    moved = [times_two_to(features, 700), labels, times_two_to(weight, -200), times_two_to(bias, 500)]
    after = split_values(measure_arrays(*moved), "train")
    assert after["nc4_mismatch"] == before["nc4_mismatch"] > 0
    assert after["margin_p50"] == math.ldexp(before["margin_p50"], 500)
    tiny = split_values(measure_arrays(times_two_to(features, -1000), labels, weight, bias), "train")
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
    ordinary = split_values(measure_arrays(features, labels, weight), "train")["margin_mean"]
    found = split_values(measure_arrays(features, labels, times_two_to(weight, 1018)), "train")["margin_mean"]
    assert found == math.ldexp(ordinary, 1018)


def test_margins_of_held_out_samples_much_smaller_than_the_train_means() -> None:
    features, labels, weight, test = extreme_case()
    alone = split_values(measure_arrays(test, labels, weight), "train")
    rows = measure_arrays(features, labels, weight, None, times_two_to(test, -400), labels)
    found = split_values(rows, "test")
    assert math.ldexp(found["margin_mean"], 400) == pytest.approx(alone["margin_mean"], rel=1e-12)


@pytest.mark.parametrize("powers", [(700, 690), (690, 700), (-700, -690), (100, -60), (300, -300)])
def test_splits_of_different_scales_meet_in_one_unit(powers: tuple[int, int]) -> None:
    features, labels, _, test = extreme_case()
    near = split_values(
        measure_arrays(features, labels, None, None, times_two_to(test, powers[1] - powers[0]), labels),
        "test",
    )
    far = split_values(
        measure_arrays(
            times_two_to(features, powers[0]), labels, None, None, times_two_to(test, powers[1]), labels
        ),
        "test",
    )
    for metric in ("weak_test_collapse", "strong_test_collapse", "ncc_error", "nc1_pinv"):
        assert far[metric] == pytest.approx(near[metric], rel=1e-14)


def test_misalignment_of_samples_of_every_length() -> None:
    weight, labels = normal(3, 5), torch.arange(9) % 3
    features = normal(9, 5)
    lengths = 10.0 ** torch.linspace(-300, 300, 9, dtype=torch.float64).unsqueeze(1)
    wanted = misalignments(features, labels, weight)
    torch.testing.assert_close(misalignments(features * lengths, labels, weight), wanted, rtol=1e-13, atol=0)
    uneven = weight * 10.0 ** torch.tensor([[-200.0], [0.0], [200.0]], dtype=torch.float64)
    torch.testing.assert_close(misalignments(features, labels, uneven), wanted, rtol=1e-13, atol=0)


def test_means_far_closer_than_the_others_are_told_apart() -> None:
    """|mu|^2/2 - h mu of means 1 from the centre cannot see 1e-18; distances can."""
    means = torch.stack([0 * normal(5), 1e-9 * normal(5), 1 + 0 * normal(5), -normal(5).abs()])
    labels = torch.arange(4).repeat_interleave(10)
    features = means[labels] + 1e-11 * normal(40, 5)
    rows = measure_arrays(features, labels, None, None, features, labels)
    assert split_values(rows, "train")["ncc_error"] == 0
    weak, strong = (split_values(rows, "test")[f"{kind}_test_collapse"] for kind in ("weak", "strong"))
    assert weak == pytest.approx(strong, rel=1e-9)


@pytest.mark.parametrize("batch_size", [1, 2, 3, 5, 64])
def test_halfway_goes_to_the_lowest_class_in_any_batch(batch_size: int) -> None:
    """The sums of squares of (0.1, 0.2, 0.3) and (0.3, 0.1, 0.2) round differently."""
    means = torch.tensor([[0.1, 0.2, 0.3], [0.3, 0.1, 0.2], [0.2, 0.3, 0.1], [0.9, 0.9, 0.9]])
    places = torch.tensor([[0, 1, 2, 3], [2, 1, 0, 3], [1, 2, 0, 3]])
    for order in places:
        train = means[order].double()
        halfway = torch.zeros(37, 3, dtype=torch.float64)
        labels = torch.arange(37) % 4
        rows = measure_arrays(train, torch.arange(4), None, None, halfway, labels, batch_size=batch_size)
        assert split_values(rows, "test")["ncc_error"] == (labels != 0).double().mean().item()


@pytest.mark.parametrize("batch_size", [1, 3, 16])
def test_equal_logits_go_to_the_lowest_class_in_any_batch(batch_size: int) -> None:
    """Rows of W that are equal, or give equal logits but for rounding."""
    labels = torch.arange(48) % 3
    means = torch.tensor([[3.0, 0.0, 0.0], [0.0, 3.0, 0.0], [0.0, 0.0, 3.0]], dtype=torch.float64)
    features = means[labels]
    row = normal(1, 3)
    for weight, at_once in ((row.expand(3, 3), 64), (0 * means, 64)):
        for size in (batch_size, at_once):
            rows = measure_arrays(features, labels, weight, torch.full((3,), 0.7), batch_size=size)
            assert split_values(rows, "train")["nc4_mismatch"] == 2 / 3  # the classifier says 0 everywhere


@pytest.mark.parametrize("batch_size", [1, 5, 64])
def test_ties_that_rounding_would_break(batch_size: int) -> None:
    """0 between means that are each other's negatives, of samples in other orders; sums in other orders."""
    labels = torch.tensor([0, 1] * 10)
    for seed in range(8):
        draw, half = generator(seed), normal(10, 6, seed=seed)
        features = torch.stack([half, -half[torch.randperm(10, generator=draw)]], 1).reshape(20, 6)
        row = normal(6, seed=seed + 100)
        weight = torch.stack([row, row[torch.randperm(6, generator=draw)]])
        test = torch.stack([torch.zeros(6, dtype=torch.float64), torch.ones(6, dtype=torch.float64)])
        rows = measure_arrays(
            features, labels, weight, None, test.repeat(10, 1), labels, batch_size=batch_size
        )
        means = class_statistics(features, labels, 2).means
        nearest = [0, int(means[1].sum() > means[0].sum())]
        found = split_values(rows, "test")
        assert found["ncc_error"] == (nearest[0] != 0) / 2 + (nearest[1] != 1) / 2
        assert found["nc4_mismatch"] == sum(nearest) / 2  # the classifier says 0


def test_a_dead_layer_takes_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sample is equally near to every mean: no distances are compared."""
    monkeypatch.delattr(torch.linalg, "vecdot")
    features, labels = normal(1, 5).expand(60, 5), torch.arange(60) % 4
    assert split_values(measure_arrays(features, labels), "train")["ncc_error"] == 3 / 4


def test_batches_of_one_decide_like_all_at_once() -> None:
    """Integer points, many of them halfway between means or between logits."""
    points = torch.cartesian_prod(*[torch.arange(-3.0, 4.0)] * 3).double()
    means = torch.tensor([[1.0, 1, 1], [-1, 1, 1], [1, -1, 1], [-1, -1, -1]], dtype=torch.float64) / 3
    labels = torch.arange(len(points)) % 4
    found = [
        measure_arrays(means, torch.arange(4), 0.1 * means, None, points, labels, batch_size=size)
        for size in (1, 7, 512)
    ]
    distances = (points.unsqueeze(1) - 3 * means / 3).square().sum(2)
    nearest = (distances <= distances.amin(1, keepdim=True) + 1e-9).int().argmax(1)
    logits = points @ (3 * means).T
    largest = (logits >= logits.amax(1, keepdim=True) - 1e-9).int().argmax(1)
    for rows in found:
        test = split_values(rows, "test")
        assert test["ncc_error"] == (nearest != labels).double().mean().item()
        assert test["nc4_mismatch"] == (nearest != largest).double().mean().item()


FLOATS = ["f2", ">f2", "f4", ">f4", "f8", ">f8", "g"]
INTEGERS = ["i1", "i2", "i4", "i8", ">i4", ">i8", "u1", "u2", "u4", "u8", ">u2", ">u8"]


def values(rows: list[Measurement]) -> list[float]:
    return [row.value for row in rows]


@pytest.mark.parametrize("kind", FLOATS)
def test_numpy_floats_of_every_type(kind: str) -> None:
    features, labels, weight, test = (array.numpy() for array in extreme_case())
    stored = features.astype(kind), labels, weight.astype(kind), None, test.astype(kind), labels
    plain = [array if array is None or array.dtype.kind == "i" else array.astype("f8") for array in stored]
    assert values(measure_arrays(*stored)) == values(measure_arrays(*plain))


@pytest.mark.parametrize("kind", INTEGERS)
def test_labels_of_every_integer_type(kind: str) -> None:
    features, labels, weight, _ = extreme_case()
    expected = values(measure_arrays(features, labels, weight))
    stored = labels.numpy().astype(kind)
    assert values(measure_arrays(features, stored, weight)) == expected
    if ">" not in kind:
        tensor = torch.from_numpy(stored)
        assert values(measure_arrays(features, tensor, weight)) == expected
        assert values(measure_batches(lambda: [(features, tensor)], 4, weight=weight)) == expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2])
def test_tensors_of_every_float_type(dtype: torch.dtype) -> None:
    features, labels, weight, _ = extreme_case()
    stored = features.to(dtype)
    assert values(measure_arrays(stored, labels, weight)) == values(
        measure_arrays(stored.double(), labels, weight)
    )


def test_arrays_that_may_not_be_written_or_hold_no_numbers() -> None:
    features, labels, _, _ = (array.numpy() for array in extreme_case())
    expected = values(measure_arrays(features, labels))
    features.flags.writeable = labels.flags.writeable = False
    assert values(measure_arrays(features, labels)) == expected
    assert values(measure_arrays(np.asfortranarray(features), labels)) == expected
    for kind in ("U8", complex, object):
        with pytest.raises(InputError, match="holds no real numbers"):
            measure_arrays(features.astype(kind), labels)
