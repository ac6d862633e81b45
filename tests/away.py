"""A stand-in for a GPU: CPU tensors that pass for another device's and refuse to mix with the CPU's."""

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

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


class FromHost(TorchFunctionMode):
    """Tensors made there from numbers have them: torch makes those of a meta tensor nowhere."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function is torch.tensor and torch.device(kwargs.get("device") or "cpu") == AWAY:
            return torch.tensor(*args, **kwargs | {"device": "cpu"}).to(AWAY)
        if function is Tensor.new_tensor and isinstance(args[0], Away):
            return torch.tensor(args[1], dtype=args[0].dtype).to(AWAY)
        return function(*args, **kwargs)


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
