"""Metrics at their limits: coinciding, diverged and extreme features, many classes, any type of array.

Class statistics against a two-pass twin, for every way of cutting, ordering and storing the samples; pairs of
classes tile by tile. The conformance suite has every metric exactly, of ordinary, collapsed, dead features.
"""

import math

import numpy as np
import pytest
import torch
from conftest import normal, rotation, split_values
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from ncpipe.metrics import pairs, statistics
from ncpipe.metrics.checks import check_arrays
from ncpipe.metrics.collapse import nc1_pinv
from ncpipe.metrics.hooks import measure_model
from ncpipe.metrics.nearest import LargestLogits, NearestMeans
from ncpipe.metrics.pairs import tiles
from ncpipe.metrics.sample_statistics import SampleAccumulator
from ncpipe.metrics.statistics import ClassStatistics, StatisticsAccumulator, class_statistics
from ncpipe.metrics.table import Measurement, measure, measure_batches, measure_layer
from ncpipe.metrics.uniformity import means_uniformity, unc3_cosine, weight_margin, weight_uniformity
from ncpipe.system.errors import InputError, MeasurementWarning

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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_large_coordinate_in_half_precision_hides_no_direction(dtype: torch.dtype) -> None:
    """As inner layers of language models have it. What entries lose is a direction only of lower rank.

    Red: a cutoff in proportion to all of the means, by which the large coordinate takes all of their rank.
    """
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(4).repeat(100)
    means, noise = (torch.randn(count, 64, generator=generator) for count in (4, 400))
    features = (0.3 * means)[labels] + 0.1 * noise
    features[:, 0] = 1000.0
    narrow = features.to(dtype)
    value, rank = pinv_and_rank(narrow, labels, 4)
    assert rank == 3
    assert value == pytest.approx(pinv_and_rank(narrow.double(), labels, 4)[0], rel=1e-12)
    flat = (means[:, :2] @ noise[:2])[labels].to(dtype)  # of rank 2
    assert pinv_and_rank(flat, labels, 4)[1] == 2


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
    few, single, unequal = check_arrays(features[some], labels[some])
    test = features[some], labels[some]
    values = measure(features, labels, test_features=test[0], test_labels=test[1])
    assert values.warnings == tuple(line.replace("train", "test") for line in (few, single, unequal))
    assert "7 train samples of width 9" in few
    assert "class 0 has one sample" in single


# Extreme scales, and arrays of every type


def by_key(rows: list[Measurement]) -> dict[tuple[str, str], float]:
    return {(row.split, row.metric): row.value for row in rows}


def extreme_case() -> list[Tensor]:
    """Features, labels, weight, test features of ordinary size."""
    features, labels, weight, _ = case(0, 4, 8, 6)
    return [features, labels, weight, features + 0.9 * normal(*features.shape, seed=3)]


def times_two_to(array: Tensor, exponent: int) -> Tensor:
    return torch.from_numpy(np.ldexp(array.numpy(), exponent))


@pytest.mark.parametrize(
    ("exponent", "weight_exponent"),
    [(-1010, 0), (-500, 1000), (-151, -1000), (-150, 0), (151, 1000), (500, -1000), (1015, 1000)],
)
def test_a_power_of_two_changes_no_digit(exponent: int, weight_exponent: int) -> None:
    """Beyond 2^+-512 squares leave float64, tcv too; beyond 2^+-256 the fourth powers in dnc1_trace_pinv."""
    features, labels, weight, test = extreme_case()
    before = by_key(measure(features, labels, weight, None, test, labels, shots=(2,)))
    moved = [times_two_to(features, exponent), labels, times_two_to(weight, weight_exponent)]
    after = by_key(measure(*moved, None, times_two_to(test, exponent), labels, shots=(2,)))
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
    for stats in (in_turn.result(), merged.result()):
        assert stats.exponent == at_once.exponent
        torch.testing.assert_close(stats.means, at_once.means, rtol=1e-13, atol=0)
        torch.testing.assert_close(stats.squares, at_once.squares, rtol=1e-13, atol=0)
    assert ClassStatistics.from_tensors(**at_once.tensors()) == at_once


def test_margins_whose_sum_leaves_float64_have_a_mean() -> None:
    features, labels, weight, _ = extreme_case()
    ordinary = split_values(measure(features, labels, weight), "train")["margin_mean"]
    scaled = split_values(measure(features, labels, times_two_to(weight, 1018)), "train")["margin_mean"]
    assert scaled == math.ldexp(ordinary, 1018)


FLOATS = ["f2", ">f2", "f4", ">f4", "f8", ">f8", "g"]


def values(rows: list[Measurement]) -> list[float]:
    return [row.value for row in rows]


@pytest.mark.parametrize("kind", FLOATS)
def test_numpy_floats_of_every_type(kind: str) -> None:
    features, labels, weight, test = (array.numpy() for array in extreme_case())
    stored = features.astype(kind), labels, weight.astype(kind), None, test.astype(kind), labels
    plain = [array if array is None or array.dtype.kind == "i" else array.astype("f8") for array in stored]
    assert values(measure(*stored)) == values(measure(*plain))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2])
def test_tensors_of_every_float_type(dtype: torch.dtype) -> None:
    features, labels, weight, _ = extreme_case()
    stored = features.to(dtype), labels, weight.to(dtype), None, features.to(dtype), labels
    converted = [array.double() if array is not None and array is not labels else array for array in stored]
    assert values(measure(*stored)) == values(measure(*converted))


def test_arrays_that_may_not_be_written() -> None:
    features, labels, _, _ = (array.numpy() for array in extreme_case())
    expected = values(measure(features, labels))
    features.flags.writeable = labels.flags.writeable = False
    assert values(measure(features, labels)) == expected
    assert values(measure(np.asfortranarray(features), labels)) == expected


# Class statistics


def twin(features: Tensor, labels: Tensor) -> dict[str, np.ndarray]:
    """Two passes in long double, class by class."""
    h, y = features.numpy().astype(np.longdouble), labels.numpy()
    means = np.stack([np.mean(h[y == k], axis=0) for k in range(y.max() + 1)])
    centred = h - means[y]
    squares = np.array([np.sum(centred[y == k] ** 2) for k in range(len(means))])
    return {"counts": np.bincount(y), "means": means, "squares": squares}


def assert_same(actual: ClassStatistics, expected: dict[str, np.ndarray], rel: float) -> None:
    assert actual.counts.tolist() == expected["counts"].tolist()
    for name in ("means", "squares"):
        array = expected[name].astype(float)
        np.testing.assert_allclose(
            actual.tensors()[name].numpy(), array, rtol=rel, atol=rel * np.abs(array).max()
        )


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.integers(0, 60), st.integers(0, 60), st.sampled_from([0.0, 1e6]))
def test_merging_is_seeing_everything_at_once(seed: int, first: int, second: int, offset: float) -> None:
    """Each part may lack classes that the others have."""
    features, labels, *_ = case(seed, 4, 12, 3, 1e-3)
    features += offset
    cuts = sorted([first, second])
    total = StatisticsAccumulator(4, 3)
    for rows, expected in zip(
        torch.tensor_split(features, cuts), torch.tensor_split(labels, cuts), strict=True
    ):
        part = StatisticsAccumulator(4, 3)
        part.update(rows, expected)
        total.merge(part)
    assert_same(total.result(), twin(features, labels), 1e-10)
    total.update(features, labels)  # a merged accumulator goes on
    assert_same(total.result(), twin(features.repeat(2, 1), labels.repeat(2)), 1e-10)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_any_float_type_and_chunk_size(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels, *_ = case(5, 3, 80, 7)
    stored = features.to(dtype)
    expected = twin(stored.double(), labels)
    assert_same(class_statistics(stored, labels, 3), expected, 1e-12)
    monkeypatch.setitem(statistics.CHUNK_ENTRIES, "cpu", 1)  # 64 rows a chunk
    assert_same(class_statistics(stored.T.contiguous().T, labels.int(), 3), expected, 1e-12)


def test_equal_samples_give_exactly_zero() -> None:
    features = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))[[0, 1, 2, 2, 1, 0, 0]]
    stats = class_statistics(features, torch.tensor([0, 1, 2, 2, 1, 0, 0]), 3)
    assert stats.squares.tolist() == [0, 0, 0]
    assert stats.means.equal(features[:3])


# Pairs of classes


SIDE = 4  # vectors of a tile's side, so that small sets have many tiles


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e8])
@pytest.mark.parametrize("classes", [3, 4, 5, 9, 30])
def test_tiles_have_every_pair_once(classes: int, offset: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where two are equal and all are far from 0. Red: a last tile left out, a pair in two tiles."""
    vectors = normal(classes, 7) + offset
    vectors[-1] = vectors[0]
    vectors[1] = vectors[0] + 1e-6
    expected = torch.linalg.vector_norm(vectors.unsqueeze(1) - vectors, dim=2)
    monkeypatch.setattr(pairs, "TILE_ENTRIES", SIDE**2)
    distances = torch.full((classes, classes), math.nan, dtype=torch.float64)
    parts = []
    for tile in tiles(vectors):
        assert tile.distances.numel() <= SIDE**2
        assert not bool(distances[tile.rows, tile.columns].isfinite().any())
        distances[tile.rows, tile.columns] = tile.distances
        parts.append(tile.pairs(tile.distances))
    above = torch.triu(torch.ones(classes, classes, dtype=torch.bool))
    torch.testing.assert_close(distances[above], expected[above], rtol=1e-12, atol=0)
    assert sum(map(len, parts)) == classes * (classes - 1) // 2


@pytest.mark.parametrize("width", [1, 4, 64, 500])
def test_distances_are_exact_to_what_is_promised(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against long double, of pairs on both sides of NEAR, where products round most.

    Red: the promise of d 2^-52, by up to six times at d = 4.
    """
    monkeypatch.setattr(pairs, "TILE_ENTRIES", SIDE**2)
    far = normal(1, width).expand(40, width)
    vectors = torch.cat([far * (1 + 0.12 * normal(40, width)), -far * (1 + 0.12 * normal(40, width, seed=1))])
    exact = vectors.numpy().astype(np.longdouble)
    promised = 32 * (width + 3) * 2.0**-52
    for tile in tiles(vectors):
        expected = np.sqrt(((exact[tile.rows, None] - exact[None, tile.columns]) ** 2).sum(-1))
        error = np.abs(tile.distances.numpy() - expected)
        assert (error <= promised * expected).all()


def test_ties_are_found_tile_by_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Classes 0, 6 and 11 have one mean and one row: all three go to 0. Red: pairs within a tile alone."""
    means = normal(12, 3)
    means[6] = means[11] = means[0]
    labels = torch.arange(12).repeat(2)
    stats = class_statistics(
        means[labels] + 1e-3 * torch.tensor([[1.0], [-1.0]]).repeat_interleave(12, 0), labels, 12
    )
    monkeypatch.setattr(pairs, "TILE_ENTRIES", SIDE**2)
    expected = [0, 1, 2, 3, 4, 5, 0, 7, 8, 9, 10, 0]
    assert NearestMeans(stats, stats)._lowest_coinciding.tolist() == expected
    logits = LargestLogits(means, torch.zeros(12, dtype=torch.float64), torch.tensor(1.0))
    assert logits._lowest_equal.tolist() == expected


# More classes than a simplex has corners, K > d + 1

# The last of a code that is not known.
UNDEFINED = {"nc2_means", "nc2_equiangular_means", "nc3_duality", "gnc2_code_means"}
UNDEFINED_WEIGHTS = {"nc2_etf", "nc2_identity", "nc2_equiangular_weights", "gnc2_code_weights"}


def test_a_simplex_of_d_plus_1_still_fits() -> None:
    """Red: K > d."""
    features, labels, weight, _ = case(0, 5, 3, 4)
    names = {row.metric for row in measure(features, labels, weight)}
    assert not any(name.startswith(("gnc2", "unc3")) for name in names)
    simplex = torch.linalg.svd(torch.eye(5, dtype=torch.float64) - 0.2)[0][:, :4]
    assert split_values(measure(features, labels, simplex), "weights")["nc2_etf"] < 1e-14


def test_where_directions_coincide_or_are_none() -> None:
    """Two means that point the same way to rounding, far from 0; a mean at the centre; a row of zeros."""
    rows = normal(8, 3)
    rows[1] = 2 * rows[0]
    assert weight_uniformity(rows)[:3] == (math.inf, math.inf, 1)
    means = normal(4, 2)
    means[1] = 2 * means[0] + torch.tensor([2e-13, 0])
    means = torch.cat([means, -means])  # about 0
    far = class_statistics(means + 100, torch.arange(8), 8)
    assert means_uniformity(far)[0] == math.inf
    near = class_statistics(means, torch.arange(8), 8)
    assert 0 < means_uniformity(near)[0] < math.inf
    rows[1] = 0
    assert all(math.isnan(value) for value in weight_uniformity(rows))
    assert math.isnan(unc3_cosine(near, rows[:, :2]))


def test_a_model_of_many_classes_says_what_is_undefined() -> None:
    features, labels, *_ = case(0, 100, 3, 9)
    network = nn.Sequential(nn.Linear(9, 100)).double()
    with pytest.warns(MeasurementWarning, match="100 classes of width 9: no simplex has more than 10"):
        rows = measure_model(network, "0", [(features[:300], labels[:300])])
    metrics = split_values(rows, "train") | split_values(rows, "weights")
    assert {name for name, value in metrics.items() if math.isnan(value)} == UNDEFINED | UNDEFINED_WEIGHTS


def test_softmax_codes_have_their_margin() -> None:
    """A simplex, also with two pairs in orthogonal spaces, an orthoplex, a polygon; coinciding, too many."""
    simplex = torch.linalg.svd(torch.eye(4, dtype=torch.float64) - 0.25)[0][:, :3]
    pair = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    turns = torch.arange(7, dtype=torch.float64) * 2 * math.pi / 7
    for code in (
        simplex,
        pair.expand(2, 5),
        torch.block_diag(simplex, pair, 3 * pair) @ rotation(5, 0),
        torch.block_diag(*[pair] * 4) @ rotation(4, 1),
        torch.stack([turns.cos(), turns.sin()], 1),
    ):
        assert weight_margin(code)[1] == pytest.approx(0, abs=1e-14)
    assert weight_margin(torch.cat([code, code[:1]])) == pytest.approx((0, 1), abs=1e-14)
    assert math.isnan(weight_margin(normal(257, 3))[0])
