"""Collapse metrics on shapes whose values are known, against the naive twin, and under invariances."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import nc1, nc2, nc3
from torch import Tensor

from ncpipe.metrics import collapse
from ncpipe.metrics.decisions import misalignments
from ncpipe.metrics.geometry import (
    nc0_relative,
    nc0_row_sum,
    nc2_etf,
    nc2_identity,
    simplex_etf_gram,
)
from ncpipe.metrics.losses import logits_of, prediction_error, unregularised_loss
from ncpipe.metrics.statistics import class_statistics
from ncpipe.system.errors import InputError


def nc1_trace_ratio(features: Tensor, labels: Tensor, classes: int) -> float:
    return collapse.nc1_trace_ratio(class_statistics(features, labels, classes))


def nc3_cosine(features: Tensor, labels: Tensor, weight: Tensor) -> float:
    return misalignments(features, labels, weight).mean().item()


def random_case(
    seed: int, classes: int = 4, per_class: int = 6, width: int = 9
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(classes).repeat_interleave(per_class)
    means = torch.randn(classes, width, generator=generator, dtype=torch.float64)
    noise = torch.randn(len(labels), width, generator=generator, dtype=torch.float64)
    weight = torch.randn(classes, width, generator=generator, dtype=torch.float64)
    return means[labels] + 0.3 * noise, labels, weight


def rotation(width: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(width, width, generator=generator, dtype=torch.float64))[0]


def simplex_etf(classes: int, width: int, seed: int = 0) -> Tensor:
    """Rows: a simplex ETF of unit vectors in a random orientation."""
    frame = simplex_etf_gram(classes) * (classes / (classes - 1)) ** 0.5
    return frame @ rotation(width, seed)[:classes]


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_nc0_is_0_for_a_simplex_and_1_for_equal_rows(classes: int) -> None:
    """A shift of every row by s adds K |s|^2. Red: |W|^2 in place of its sum; a division by K^2."""
    simplex, shift = simplex_etf(classes, 16), rotation(16, 3)[0]
    assert nc0_row_sum(5 * simplex) < 1e-25
    assert nc0_relative(5 * simplex) < 1e-25
    assert nc0_row_sum(simplex + 2 * shift) == pytest.approx(4 * classes, rel=1e-12)
    assert nc0_relative(simplex + 2 * shift) == pytest.approx(4 / 5, rel=1e-12)
    equal = shift.expand(classes, -1)
    assert nc0_relative(1e-200 * equal) == pytest.approx(1, rel=1e-14)
    assert math.isnan(nc0_relative(torch.zeros(classes, 3)))


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_perfect_collapse_is_zero(classes: int) -> None:
    weight = 3.7 * simplex_etf(classes, 16)
    labels = torch.arange(classes).repeat_interleave(5)
    features = 8 * simplex_etf(classes, 16)[labels]
    assert nc1_trace_ratio(features, labels, classes) <= 1e-25
    assert nc2_etf(weight) < 1e-14
    assert nc3_cosine(features, labels, weight) <= 1e-25
    frame = 0.2 * rotation(16, 1)[:classes]
    assert nc2_identity(frame) < 1e-14


@pytest.mark.parametrize("classes", [2, 5, 10])
def test_distance_between_the_two_nc2_shapes(classes: int) -> None:
    """An orthogonal frame is 1/sqrt(K) from the ETF Gram, and the ETF Gram 1/sqrt(K) from the identity."""
    assert nc2_etf(rotation(16, 2)[:classes]) == pytest.approx(classes**-0.5, rel=1e-12)
    assert nc2_identity(simplex_etf(classes, 16)) == pytest.approx(classes**-0.5, rel=1e-12)


def test_nc1_of_planted_noise() -> None:
    """tr(Sigma_W) = sigma^2 d in expectation; the sample's own value is exact to its standard error."""
    classes, per_class, width, sigma = 5, 4000, 20, 0.1
    labels = torch.arange(classes).repeat_interleave(per_class)
    means = simplex_etf(classes, width)
    noise = torch.randn(len(labels), width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = sigma**2 * width * (1 - 1 / per_class)  # over tr(Sigma_B) = 1
    found = nc1_trace_ratio(means[labels] + sigma * noise, labels, classes)
    assert found == pytest.approx(expected, rel=4 * (2 / (len(labels) * width)) ** 0.5)


def test_nc1_of_two_points_per_class_is_exact() -> None:
    """h = mu_k +- delta e: tr(Sigma_W) = delta^2, and tr(Sigma_B) = 1 for unit ETF means."""
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    features = simplex_etf(3, 6)[labels]
    features[::2, 0] += 1e-6
    features[1::2, 0] -= 1e-6
    assert nc1_trace_ratio(features, labels, 3) == pytest.approx(1e-12, rel=1e-9)


def test_nc1_keeps_its_digits_far_from_the_origin() -> None:
    """E|h|^2 - |mu|^2 would lose everything here."""
    features, labels, _ = random_case(0)
    assert nc1_trace_ratio(features + 1e6, labels, 4) == pytest.approx(
        nc1(features.numpy(), labels.numpy()), rel=1e-8
    )


def test_nc3_of_a_known_angle() -> None:
    weight = torch.eye(2, 3, dtype=torch.float64)
    angles = torch.tensor([1e-5, 0.3, 2.0, math.pi], dtype=torch.float64)
    features = torch.stack([angles.cos(), torch.zeros(4, dtype=torch.float64), 7 * angles.sin()], 1)
    features[:, 2] /= 7
    labels = torch.zeros(4, dtype=torch.long)
    for i in range(4):
        found = nc3_cosine(5 * features[i : i + 1], labels[:1], weight)
        assert found == pytest.approx(2 * math.sin(angles[i].item() / 2) ** 2, rel=1e-9)


def test_limits() -> None:
    features, labels, weight = random_case(1)
    assert nc1_trace_ratio(torch.zeros_like(features), labels, 4) == math.inf
    assert nc1_trace_ratio(torch.cat([features, -features]), torch.cat([labels, labels]), 4) > 1e20
    zero = torch.zeros_like(weight)
    assert math.isnan(nc2_etf(zero))
    assert math.isnan(nc2_identity(zero))
    assert math.isnan(nc3_cosine(features, labels, zero))
    assert nc2_etf(1e-200 * weight) == pytest.approx(nc2_etf(weight), rel=1e-12)


def test_negative_scales_are_not_allowed() -> None:
    """All rows equal: W W^T = 11^T has no ETF part, so the best c >= 0 is 0 and the distance is 1."""
    assert nc2_etf(torch.ones(4, 6)) == pytest.approx(1.0)


def test_an_empty_class_is_named() -> None:
    features, labels, _ = random_case(0)
    with pytest.raises(InputError, match="class 2 has no samples"):
        class_statistics(features[labels != 2], labels[labels != 2], 4)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10_000), st.integers(2, 6), st.integers(2, 7))
def test_the_naive_twin_agrees(seed: int, classes: int, per_class: int) -> None:
    features, labels, weight = random_case(seed, classes, per_class)
    h, y, w = features.numpy(), labels.numpy(), weight.numpy()
    assert nc1_trace_ratio(features, labels, classes) == pytest.approx(nc1(h, y), rel=1e-10)
    assert nc2_etf(weight) == pytest.approx(nc2(w, np.eye(classes) - 1 / classes), rel=1e-7)
    assert nc2_identity(weight) == pytest.approx(nc2(w, np.eye(classes)), rel=1e-7)
    assert nc3_cosine(features, labels, weight) == pytest.approx(nc3(h, y, w), rel=1e-10)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10_000), st.floats(1e-3, 1e3), st.permutations(range(4)))
def test_invariances(seed: int, scale: float, relabel: list[int]) -> None:
    """Rotations, scales and the naming of classes change nothing."""
    features, labels, weight = random_case(seed)
    turn = rotation(9, seed)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    moved, moved_weight = (scale * features @ turn)[order], 2.5 * weight @ turn
    names = torch.tensor(relabel)
    moved_labels = names[labels][order]
    moved_weight = moved_weight[torch.argsort(names)]
    assert nc1_trace_ratio(moved, moved_labels, 4) == pytest.approx(
        nc1_trace_ratio(features, labels, 4), rel=1e-9
    )
    assert nc3_cosine(moved, moved_labels, moved_weight) == pytest.approx(
        nc3_cosine(features, labels, weight), rel=1e-9
    )
    assert nc2_etf(moved_weight) == pytest.approx(nc2_etf(weight), rel=1e-9)
    assert nc2_identity(moved_weight) == pytest.approx(nc2_identity(weight), rel=1e-9)


def test_unbalanced_classes_weigh_by_class_between_and_by_sample_within() -> None:
    features, labels, _ = random_case(3)
    keep = torch.ones(len(labels), dtype=torch.bool)
    keep[:4] = False
    found = nc1_trace_ratio(features[keep], labels[keep], 4)
    assert found == pytest.approx(nc1(features[keep].numpy(), labels[keep].numpy()), rel=1e-10)


def test_losses_by_hand() -> None:
    features = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
    labels = torch.tensor([0, 1, 1])
    weight, bias = torch.eye(2), torch.tensor([0.5, 0.0])
    logits = [[1.5, 0.0], [0.5, 2.0], [1.5, 1.0]]
    assert logits_of(features, weight, bias).tolist() == logits
    ce = sum(math.log(sum(map(math.exp, f))) - f[y] for f, y in zip(logits, labels.tolist(), strict=True)) / 3
    assert unregularised_loss(features, labels, weight, bias, "ce") == pytest.approx(ce, rel=1e-14)
    mse = (0.25 + 0.0 + 0.25 + 1.0 + 2.25 + 0.0) / 6
    assert unregularised_loss(features, labels, weight, bias, "mse") == pytest.approx(mse, rel=1e-14)
    assert prediction_error(features, labels, weight, bias) == pytest.approx(1 / 3)
    assert prediction_error(features, labels, weight, None) == pytest.approx(1 / 3)
