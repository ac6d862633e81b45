"""PyTorch, imported when something of it is first used.

The modules that compute metrics take it from here, because tables, figures and commands read the entries that
stand beside the functions, and importing PyTorch takes seconds. `Tensor` is for annotations alone.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch as torch
    from torch import Tensor as Tensor
else:
    Tensor = Any

    class _Torch:
        def __getattr__(self, name: str) -> object:
            return getattr(importlib.import_module("torch"), name)

    torch = _Torch()
