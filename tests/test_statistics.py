"""Class statistics against a two-pass twin, for every way of cutting, ordering and storing the samples."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ncpipe.metrics import statistics
from ncpipe.metrics.sample_statistics import SampleAccumulator, SampleStatistics
from ncpipe.metrics.statistics import ClassStatistics, StatisticsAccumulator, class_statistics


def samples(
    seed: int, classes: int, rows: int, width: int, offset: float = 0.0, spread: float = 1.0
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.cat([torch.arange(classes), torch.randint(classes, (rows,), generator=generator)])
    labels = labels[torch.randperm(len(labels), generator=generator)]
    means = torch.randn(classes, width, generator=generator, dtype=torch.float64)
    noise = torch.randn(len(labels), width, generator=generator, dtype=torch.float64)
    return offset + means[labels] + spread * noise, labels


def class_means(features: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return np.stack([np.mean(features[labels == k], axis=0) for k in range(labels.max() + 1)])


def twin(features: Tensor, labels: Tensor) -> dict[str, np.ndarray]:
    """Two passes in long double, class by class."""
    h, y = features.numpy().astype(np.longdouble), labels.numpy()
    means = class_means(h, y)
    centred = h - means[y]
    squares = np.array([np.sum(centred[y == k] ** 2) for k in range(len(means))])
    return {"counts": np.bincount(y), "means": means, "squares": squares}


def assert_same(found: ClassStatistics, expected: dict[str, np.ndarray], rel: float) -> None:
    assert found.counts.tolist() == expected["counts"].tolist()
    for name in ("means", "squares"):
        wanted = expected[name].astype(float)
        np.testing.assert_allclose(
            found.tensors()[name].numpy(), wanted, rtol=rel, atol=rel * np.abs(wanted).max()
        )


def accumulate(features: Tensor, labels: Tensor, cuts: list[int]) -> StatisticsAccumulator:
    accumulator = StatisticsAccumulator(int(labels.max()) + 1, features.shape[1])
    for rows, wanted in zip(
        torch.tensor_split(features, cuts), torch.tensor_split(labels, cuts), strict=True
    ):
        accumulator.update(rows, wanted)
    return accumulator


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10_000), st.integers(0, 60), st.integers(0, 60), st.sampled_from([0.0, 1e6]))
def test_merging_is_seeing_everything_at_once(seed: int, first: int, second: int, offset: float) -> None:
    """Each part may lack classes that the others have."""
    features, labels = samples(seed, 4, 56, 3, offset, 1e-3)
    cuts = sorted([first, second])
    total = StatisticsAccumulator(4, 3)
    for rows, wanted in zip(
        torch.tensor_split(features, cuts), torch.tensor_split(labels, cuts), strict=True
    ):
        part = StatisticsAccumulator(4, 3)
        part.update(rows, wanted)
        total.merge(part)
    assert_same(total.result(), twin(features, labels), 1e-10)
    total.update(features, labels)  # a merged accumulator goes on
    assert_same(total.result(), twin(features.repeat(2, 1), labels.repeat(2)), 1e-10)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_any_float_type_and_chunk_size(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels = samples(5, 3, 300, 7)
    stored = features.to(dtype)
    expected = twin(stored.double(), labels)
    assert_same(class_statistics(stored, labels, 3), expected, 1e-12)
    monkeypatch.setitem(statistics.CHUNK_ENTRIES, "cpu", 1)  # 64 rows a chunk
    assert_same(class_statistics(stored.T.contiguous().T, labels.int(), 3), expected, 1e-12)


def test_equal_samples_give_exactly_zero() -> None:
    features = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))[[0, 1, 2, 2, 1, 0, 0]]
    found = accumulate(features, torch.tensor([0, 1, 2, 2, 1, 0, 0]), [2, 5]).result()
    assert found.squares.tolist() == [0, 0, 0]
    assert found.means.equal(features[:3])


def test_statistics_survive_a_file() -> None:
    features, labels = samples(1, 3, 30, 4)
    seen = class_statistics(features, labels, 3)
    assert ClassStatistics.from_tensors(**seen.tensors()) == seen
    for weight, train in ((None, None), (torch.ones(3, 4), None), (torch.ones(3, 4), seen)):
        accumulator = SampleAccumulator(seen, weight, train=train)
        accumulator.update(features, labels)
        found = accumulator.result()
        assert SampleStatistics(**found.tensors()) == found
