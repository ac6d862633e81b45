"""The metrics on a GPU are those on the CPU: on a real one, and on a stand-in that keeps tensors apart."""

from collections.abc import Callable

import pytest
import torch
from away import Away, OtherDevice
from test_metric_table import case
from torch import Tensor

from ncpipe.metrics.statistics import StatisticsAccumulator
from ncpipe.metrics.table import measure


def gpu(tensor: Tensor) -> Tensor:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return tensor.cuda()


@pytest.mark.parametrize("move", [Away, gpu])
@pytest.mark.parametrize("moved", [(0, 1, 2, 3, 4, 5), (0, 1, 4, 5), (0, 4)])
def test_every_metric_is_that_of_the_cpu(move: Callable[[Tensor], Tensor], moved: tuple[int, ...]) -> None:
    """Red: a tensor made on the CPU beside features that are not, or read by NumPy where it is.

    Labels and classifier may stay on the CPU.
    """
    arrays = [*case(0), *case(1)[:2]]
    here = measure(*arrays)
    with OtherDevice():
        there = measure(*(move(t) if i in moved else t for i, t in enumerate(arrays)))
    assert [(row.split, row.metric) for row in there] == [(row.split, row.metric) for row in here]
    assert [row.value for row in there] == pytest.approx([row.value for row in here], rel=1e-10, abs=1e-13)


@pytest.mark.parametrize("move", [Away, gpu])
def test_accumulators_merge_where_they_are(move: Callable[[Tensor], Tensor]) -> None:
    features, labels, _, _ = case(0)
    with OtherDevice():
        rows = move(features)
        whole, part = (StatisticsAccumulator(4, 9, rows.device) for _ in range(2))
        whole.update(rows[:9], labels[:9])
        part.update(rows[9:], labels[9:])
        whole.merge(part)
        counts = whole.result().counts
    assert counts.tolist() == torch.bincount(labels).tolist()


@pytest.mark.parametrize("move", [Away, gpu])
def test_statistics_of_some_tokens_are_those_of_the_cpu(move: Callable[[Tensor], Tensor]) -> None:
    vocabulary = 5000
    labels = torch.cat([torch.arange(40), torch.arange(20) + vocabulary - 20, torch.arange(30)])
    features = torch.randn(2, len(labels), 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    here = StatisticsAccumulator(vocabulary, 3)
    with OtherDevice():
        away = [move(batch) for batch in features]
        there = StatisticsAccumulator(vocabulary, 3, away[0].device)
        for batch, other in zip(features, away, strict=True):
            here.update(batch, labels)
            there.update(other, labels)
        found = there.result_of(move(labels.unique()))
        expected = here.result_of(labels.unique())
        assert found.counts.tolist() == expected.counts.tolist()
        for name in ("means", "squares"):
            own = torch.tensor(getattr(found, name).tolist(), dtype=torch.float64)
            torch.testing.assert_close(own, getattr(expected, name), rtol=1e-12, atol=1e-15)
