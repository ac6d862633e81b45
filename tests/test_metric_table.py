"""Every metric of the table against printed formulas in NumPy, under invariances and in its limits."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_metrics import all_metrics, held_out_collapse, weight_metrics
from torch import Tensor

from ncpipe.metrics.checks import check_arrays
from ncpipe.metrics.collapse import cdnv, dnc1_trace_pinv, nc1_pinv, nc1_trace_ratio
from ncpipe.metrics.decisions import effective_depth
from ncpipe.metrics.geometry import nc2_condition, nc2_equiangular, nc2_equinorm, nc2_means, nc3_duality
from ncpipe.metrics.meters import SampleMeter, SampleStatistics
from ncpipe.metrics.spectrum import effective_rank, numerical_rank, singular_values, stable_rank
from ncpipe.metrics.statistics import ClassStatistics, class_statistics
from ncpipe.metrics.table import Measurement, measure_arrays, measure_batches, measure_layer, measure_matrix
from ncpipe.system.errors import InputError

Case = tuple[Tensor, Tensor, Tensor, Tensor]
SCALE_FREE = {"nc1_trace_ratio", "nc1_pinv", "cdnv", "nc2_means", "nc3_duality", "nc3_cosine", "ncc_error"}
SCALE_FREE |= {"nc2_equinorm_means", "nc2_equiangular_means", "nc2_condition", "effective_rank_means"}
SHIFT_FREE = {
    "nc1_trace_ratio",
    "nc1_pinv",
    "dnc1_trace_pinv",
    "tcv",
    "cdnv",
    "nc2_means",
    "nc2_equinorm_means",
}
SHIFT_FREE |= {"nc2_equiangular_means", "nc3_duality", "ncc_error"}


def case(seed: int, classes: int = 4, per_class: int = 6, width: int = 9, spread: float = 0.3) -> Case:
    """Features, labels, weight and bias; unequal class sizes."""
    generator = torch.Generator().manual_seed(seed)
    options = {"generator": generator, "dtype": torch.float64}
    labels = torch.arange(classes).repeat_interleave(per_class)
    labels = torch.cat([labels, torch.randint(classes, (per_class,), generator=generator)])
    means = torch.randn(classes, width, **options)
    features = means[labels] + spread * torch.randn(len(labels), width, **options)
    return features, labels, torch.randn(classes, width, **options), torch.randn(classes, **options)


def second_pass(features: Tensor, labels: Tensor, classes: int) -> tuple[ClassStatistics, SampleStatistics]:
    seen = class_statistics(features, labels, classes)
    meter = SampleMeter(seen)
    meter.update(features, labels)
    return seen, meter.result()


def pinv_and_rank(features: Tensor, labels: Tensor, classes: int) -> tuple[float, int]:
    seen, samples = second_pass(features, labels, classes)
    return nc1_pinv(seen, samples.spread)


def rotation(width: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(width, width, generator=generator, dtype=torch.float64))[0]


def split_values(rows: list[Measurement], split: str) -> dict[str, float]:
    return {row.metric: row.value for row in rows if row.split == split}


@settings(deadline=None, max_examples=30)
@given(
    st.integers(0, 10_000),
    st.integers(2, 6),
    st.integers(1, 7),
    st.integers(6, 12),
    st.sampled_from([0.1, 1.0, 3.0]),
)
def test_the_naive_twin_agrees_on_every_metric(
    seed: int, classes: int, per_class: int, width: int, spread: float
) -> None:
    """Every name of the table is in the twin and the other way round."""
    features, labels, weight, bias = case(seed, classes, per_class, width, spread)
    rows = measure_arrays(features, labels, weight, bias, batch_size=5)
    h, y, w, b = (t.numpy() for t in (features, labels, weight, bias))
    assert split_values(rows, "train") == pytest.approx(all_metrics(h, y, w, b), rel=1e-7, abs=1e-12)
    found = split_values(rows, "weights")
    assert found.pop("nc2_etf") <= 1
    assert found.pop("nc2_identity") <= 1
    assert found == pytest.approx(weight_metrics(w), rel=1e-7)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 10_000), st.integers(1, 40), st.booleans())
def test_batches_and_array_types_change_nothing(seed: int, batch_size: int, as_numpy: bool) -> None:
    features, labels, weight, bias = case(seed)
    held_out, held_out_labels, _, _ = case(seed + 1)
    given_arrays = [features, labels, weight, bias, held_out, held_out_labels]
    whole = measure_arrays(*given_arrays)
    if as_numpy:
        given_arrays = [t.numpy() for t in given_arrays]
    cut = measure_arrays(*given_arrays, batch_size=batch_size)
    assert [(r.layer, r.split, r.metric) for r in cut] == [(r.layer, r.split, r.metric) for r in whole]
    assert [r.value for r in cut] == pytest.approx([r.value for r in whole], rel=1e-9, abs=1e-13)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_stored_precision_is_converted_not_computed_in(dtype: torch.dtype) -> None:
    features, labels, weight, _ = (t.to(dtype) if t.is_floating_point() else t for t in case(2))
    low = measure_arrays(features, labels, weight)
    high = measure_arrays(features.double(), labels, weight.double())
    assert [r.value for r in low] == pytest.approx([r.value for r in high], rel=1e-12, abs=1e-15)


def test_held_out_samples_are_measured_about_the_train_means() -> None:
    """Means of the test split itself would make strong_test_collapse the test split's NC1."""
    features, labels, weight, bias = case(0)
    held_out, held_out_labels, _, _ = case(0, spread=2.0)
    held_out = held_out + 0.3
    rows = measure_arrays(features, labels, weight, bias, held_out, held_out_labels)
    found = split_values(rows, "test")
    wanted = held_out_collapse(*(t.numpy() for t in (features, labels, held_out, held_out_labels)))
    assert (found["weak_test_collapse"], found["strong_test_collapse"]) == pytest.approx(wanted, rel=1e-12)
    means = class_statistics(features, labels, 4).means
    decided = torch.cdist(held_out, means).argmin(1)
    assert found["ncc_error"] == (decided != held_out_labels).double().mean().item() > 0
    classified = (held_out @ weight.T + bias).argmax(1)
    assert found["nc4_mismatch"] == (decided != classified).double().mean().item() > 0
    assert "strong_test_collapse" not in split_values(rows, "train")


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 10_000), st.floats(1e-3, 1e3), st.permutations(range(4)), st.floats(-100, 100))
def test_invariances(seed: int, scale: float, relabel: list[int], shift: float) -> None:
    """Rotations and names of classes change nothing; scales and translations not what is free of them."""
    features, labels, weight, bias = case(seed)
    base = split_values(measure_arrays(features, labels, weight, bias), "train")
    names = torch.tensor(relabel)
    back, turn = torch.argsort(names), rotation(9, seed)
    moved = measure_arrays(features @ turn, names[labels], (weight @ turn)[back], bias[back])
    assert split_values(moved, "train") == pytest.approx(base, rel=1e-8, abs=1e-12)
    found = split_values(measure_arrays(scale * features, labels, weight), "train")
    assert {m: found[m] for m in SCALE_FREE} == pytest.approx({m: base[m] for m in SCALE_FREE}, rel=1e-8)
    found = split_values(measure_arrays(features + shift, labels, weight), "train")
    assert {m: found[m] for m in SHIFT_FREE} == pytest.approx({m: base[m] for m in SHIFT_FREE}, rel=1e-7)


def test_planted_clusters_have_the_closed_form() -> None:
    """Orthogonal means of length 1, noise sigma: every expectation by hand, to its standard error."""
    classes, per_class, width, sigma = 4, 5000, 20, 0.1
    labels = torch.arange(classes).repeat_interleave(per_class)
    noise = torch.randn(len(labels), width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    means = torch.eye(classes, width, dtype=torch.float64)
    features = means[labels] + sigma * noise
    found = class_statistics(features, labels, classes)
    variance = sigma**2 * width
    error = 5 * (2 / (len(labels) * 3)) ** 0.5 + 0.01  # the narrowest average is over K-1 directions
    assert nc1_trace_ratio(found) == pytest.approx(variance / (1 - 1 / classes), rel=error)
    # Sigma_B = 1/K on K-1 directions, so Sigma_B^+ = K there.
    value, rank = pinv_and_rank(features, labels, classes)
    assert rank == classes - 1
    assert value == pytest.approx(sigma**2 * (classes - 1), rel=error)
    assert dnc1_trace_pinv(found) == pytest.approx(variance / (classes * (classes - 1)), rel=error)
    assert cdnv(found) == pytest.approx(variance / 2, rel=error)
    assert nc2_condition(found) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_exact_collapse_is_zero(classes: int) -> None:
    means = 3 * torch.eye(classes, 12, dtype=torch.float64) @ rotation(12, 1)
    labels = torch.arange(classes).repeat(7)
    centred = means - means.mean(0)
    rows = measure_arrays(means[labels], labels, centred, None, means[labels][:classes], labels[:classes])
    found = split_values(rows, "train")
    for metric in ("nc1_trace_ratio", "nc1_pinv", "dnc1_trace_pinv", "cdnv"):
        assert 0 <= found[metric] <= 1e-25
    for metric in ("nc2_means", "nc2_equinorm_means", "nc2_equiangular_means", "nc3_duality"):
        assert found[metric] <= 1e-14
    assert found["ncc_error"] == found["nc4_mismatch"] == 0
    assert found["nc2_condition"] == pytest.approx(1, rel=1e-12)
    assert found["nc1_pinv_rank"] == classes - 1
    assert found["rank_means"] == classes
    assert found["effective_rank_means"] == pytest.approx(classes)
    held_out = split_values(rows, "test")
    assert held_out["weak_test_collapse"] <= held_out["strong_test_collapse"] <= 1e-25


def test_coincident_means_are_infinitely_far_from_collapse() -> None:
    features, labels, weight, _ = case(0)
    flat = class_statistics(torch.ones_like(features), labels, 4)
    assert nc1_trace_ratio(flat) == cdnv(flat) == dnc1_trace_pinv(flat) == math.inf
    assert pinv_and_rank(torch.ones_like(features), labels, 4) == (math.inf, 0)
    for value in (nc2_means(flat), nc2_equinorm(flat.centred_means()), nc3_duality(flat, weight)):
        assert math.isnan(value)
    assert nc2_condition(flat) == math.inf
    features = features.index_copy(0, torch.nonzero(labels == 1).flatten(), features[labels == 1] * 0)
    features = features.index_copy(0, torch.nonzero(labels == 3).flatten(), features[labels == 3] * 0)
    pair = class_statistics(features, labels, 4)
    assert cdnv(pair) == math.inf > nc1_trace_ratio(pair)
    assert pinv_and_rank(features, labels, 4)[1] == 2


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
    meter = SampleMeter(seen, weight)
    meter.update(features, labels)
    rows = measure_layer("3", "train", seen, meter.result(), seen, weight)
    values = {row.metric: row.value for row in rows}
    assert values.pop("nc1_pinv_rank") == 0
    defined = {metric for metric, value in values.items() if not math.isnan(value)}
    assert {metric for metric in defined if not metric.startswith("margin_p")} == set()
    with pytest.raises(InputError, match="train features of layer 3 hold NaN or inf"):
        measure_batches(lambda: [(features, labels)], 4, layer="3")


def test_zero_weights_have_no_geometry() -> None:
    features, labels, weight, _ = case(0)
    rows = measure_arrays(features, labels, 0 * weight)
    weights = split_values(rows, "weights")
    for metric in ("nc2_etf", "nc2_identity", "nc2_equinorm_weights", "nc2_equiangular_weights"):
        assert math.isnan(weights[metric])
    assert weights["rank_weights"] == 0
    found = split_values(rows, "train")
    assert math.isnan(found["nc3_cosine"])
    assert math.isnan(found["nc3_duality"])
    assert found["margin_min"] == 0


def test_float32_pinv_of_a_d_by_d_matrix_is_not_used() -> None:
    """Known trap: with NumPy's cutoff of 1e-15, a float32 Sigma_B's rounding is inverted too."""
    features, labels, _, _ = case(0, classes=5, per_class=40, width=64, spread=1e-3)
    value, rank = pinv_and_rank(features.float(), labels, 5)
    truth = all_metrics(features.numpy(), labels.numpy(), np.ones((5, 64)), np.ones(5))["nc1_pinv"]
    assert rank == 4
    assert value == pytest.approx(truth, rel=1e-4)
    means = class_statistics(features, labels, 5).centred_means().float()
    naive = np.linalg.pinv((means.T @ means / 5).numpy())
    assert np.linalg.norm(naive, 2) > 1e5  # the true inverse's largest eigenvalue is below 1


def test_nearest_means_keep_their_digits_far_from_the_origin() -> None:
    """|h|^2 - 2 h mu + |mu|^2 in float64 cannot tell means 1e-3 apart at 1e6."""
    means = 1e6 + 1e-3 * torch.randn(5, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    seen, samples = second_pass(means.repeat(2, 1), torch.arange(5).repeat(2), 5)
    assert seen.means.equal(means)
    assert samples.wrong == 0
    meter = SampleMeter(seen)
    meter.update(means + 1e-6, torch.arange(5))
    assert meter.result().wrong == 0


def test_cdnv_keeps_its_digits_far_from_the_origin() -> None:
    """Distances by |a|^2 - 2ab + |b|^2 would be off by a tenth here, and their order unknown."""
    features, labels, _, _ = case(0, classes=40, width=30)
    near = cdnv(class_statistics(features, labels, 40))
    assert cdnv(class_statistics(features + 1e7, labels, 40)) == pytest.approx(near, rel=1e-7)


def test_weak_and_strong_collapse_part_where_a_class_is_mistaken() -> None:
    features = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    found = split_values(
        measure_arrays(features, torch.tensor([0, 1]), None, None, features, torch.tensor([1, 0])), "test"
    )
    assert (found["weak_test_collapse"], found["strong_test_collapse"], found["ncc_error"]) == (0, 4, 1)


def test_frames_by_hand() -> None:
    """Two vectors of lengths 1 and 3 at a right angle."""
    vectors = torch.tensor([[1.0, 0.0], [0.0, 3.0]])
    assert nc2_equinorm(vectors) == pytest.approx(1 / 2)
    assert nc2_equiangular(vectors) == pytest.approx(1)
    values = singular_values(vectors)
    assert values.tolist() == [3, 1]
    assert stable_rank(values) == pytest.approx(10 / 9)
    assert effective_rank(values) == pytest.approx(4 / 27**0.25)  # exp of the entropy of (3/4, 1/4)
    assert numerical_rank(torch.tensor([1.0, 2e-3, 5e-4])) == 2
    assert {row.metric for row in measure_matrix("2", vectors)} >= {"rank_weights", "singular_weights_002"}


def test_effective_depth() -> None:
    assert effective_depth([0.5, 0.1, 0.2, 0.0], 0.1) == 2
    assert effective_depth([0.5, 0.4, 0.3], 0.1) == 3
    assert effective_depth([0.0], 0.0) == 1


def test_batches_are_read_once_a_pass() -> None:
    features, labels, weight, _ = case(0)
    starts = {"train": 0, "test": 0}

    def batches(split: str) -> list[tuple[Tensor, Tensor]]:
        starts[split] += 1
        return [(features[:7], labels[:7]), (features[7:], labels[7:])]

    rows = measure_batches(lambda: batches("train"), 4, lambda: batches("test"), weight, layer="3")
    assert starts == {"train": 2, "test": 2}
    assert {row.layer for row in rows} == {"3"}
    assert {row.split for row in rows} == {"train", "test", "weights"}
    with pytest.raises(InputError, match="train batches are empty"):
        measure_batches(list, 4)


def test_what_check_arrays_refuses() -> None:
    features, labels, weight, bias = case(0)
    bad = features.clone()
    bad[7, 3] = torch.nan
    for message, arrays in {
        "train features hold NaN or inf, first in row 7": (bad, labels),
        r"features must be \(samples, width\)": (features[0], labels),
        "labels must be 30 integers": (features, labels[1:]),
        "class 2 has no train samples": (features[labels != 2], labels[labels != 2]),
        r"label -1 of sample 0 is not in 0\.\.2": (features, labels - 1),
        r"label 3 of sample \d+ is not in 0\.\.2": (features, labels, weight[:3]),
        r"weight must have a row per class.*\(4, 9\), not \(4, 8\)": (features, labels, weight[:, 1:]),
        "weight hold NaN": (features, labels, weight / 0, bias),
        "bias must have an entry per class": (features, labels, weight, bias[1:]),
        "a bias needs a weight": (features, labels, None, bias),
        "labels name 1 class": (features, 0 * labels),
    }.items():
        with pytest.raises(InputError, match=message):
            check_arrays(*arrays)
    with pytest.raises(InputError, match="come together"):
        measure_arrays(features, labels, test_features=features)
    with pytest.raises(InputError, match="class 0 has no test samples"):
        measure_arrays(features, labels, None, None, features[labels > 0], labels[labels > 0])


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
