"""The metrics on a GPU are those on the CPU: on a real one, and on a stand-in that keeps tensors apart."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_metric_table import case
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from ncpipe.metrics.statistics import StatisticsAccumulator
from ncpipe.metrics.table import measure_arrays

AWAY = torch.device("meta")  # the one other device that every build of torch has
CROSSING = (torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default)  # may take tensors of two devices


class Away(Tensor):
    """A CPU tensor that passes for one on a GPU: on another device, never mixed with CPU tensors."""

    inner: Tensor
    is_cuda = property(lambda self: True)  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, inner: Tensor) -> "Away":
        layout = {"strides": inner.stride(), "storage_offset": inner.storage_offset(), "dtype": inner.dtype}
        made = Tensor._make_wrapper_subclass(cls, inner.size(), **layout, device=AWAY)
        made.inner = inner
        return made

    def tolist(self) -> Any:
        return self.inner.tolist()

    def numpy(self, **_: Any) -> Any:
        raise TypeError("can't convert a tensor on another device to numpy")

    @classmethod
    def __torch_dispatch__(cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(operation, args, kwargs or {})


class OtherDevice(TorchDispatchMode):
    """Tensors made on AWAY are Away."""

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(operation, args, kwargs or {})


def run(operation: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    away = {id(tensor.inner): tensor for tensor in tensors if isinstance(tensor, Away)}
    if away and operation not in CROSSING and any(t.dim() and not isinstance(t, Away) for t in tensors):
        raise RuntimeError(f"{operation}: expected all tensors to be on the same device")
    there = isinstance(args[0], Away) if operation is CROSSING[0] else bool(away)
    if kwargs.get("device") is not None:
        there = torch.device(kwargs["device"]) == AWAY
        if there or away:
            kwargs = kwargs | {"device": torch.device("cpu")}

    def wrap(leaf: Any) -> Any:
        # What was written to in place, or given as out=, comes back as itself.
        return away.get(id(leaf), Away(leaf)) if there and isinstance(leaf, Tensor) else leaf

    args, kwargs = tree_map(lambda leaf: leaf.inner if isinstance(leaf, Away) else leaf, (args, kwargs))
    return tree_map(wrap, operation(*args, **kwargs))


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
    here = measure_arrays(*arrays)
    with OtherDevice():
        there = measure_arrays(*(move(t) if i in moved else t for i, t in enumerate(arrays)))
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


def test_the_stand_in_keeps_devices_apart() -> None:
    with OtherDevice(), pytest.raises(RuntimeError, match="same device"):
        torch.ones(3, device=AWAY) + torch.ones(3)
    with pytest.raises(TypeError, match="numpy"):
        Away(torch.ones(3)).numpy()
