"""numba that is installed but broken."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ncpipe.metrics import statistics
from ncpipe.metrics.table import measure
from ncpipe.models.layers import OneLayerMLP
from ncpipe.models.residual_block import FEWEST_NUMBERS, mlp_is_compiled
from ncpipe.system.compile import can_compile


@pytest.fixture
def broken_numba(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "numba").mkdir()
    (tmp_path / "numba/__init__.py").write_text("raise ImportError('Numba needs NumPy 2.3 or less.\\nGot 9')")
    for name in [name for name in sys.modules if name.split(".")[0] == "numba"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    can_compile.cache_clear()
    yield
    can_compile.cache_clear()


@pytest.mark.usefixtures("broken_numba")
def test_pytorch_takes_over_with_one_line_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In measuring and in training. Red: an ImportError in place of either."""
    features, labels = torch.randn(12, 4, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3
    monkeypatch.setattr(statistics, "COMPILED_FROM", 10**9)
    expected = measure(features, labels)
    monkeypatch.setattr(statistics, "COMPILED_FROM", 0)
    with pytest.warns(UserWarning, match="numba cannot be imported") as caught:
        found = [measure(features, labels), measure(features, labels)]
    assert found == [expected, expected]
    assert not mlp_is_compiled(*large_mlp())
    [line] = [str(each.message) for each in caught]
    assert line == (
        "numba cannot be imported (ImportError: Numba needs NumPy 2.3 or less. Got 9); PyTorch's operations "
        "are used, which take longer"
    )


def large_mlp() -> tuple[OneLayerMLP, torch.Tensor]:
    """Return stacked blocks of two runs and their input, which the loops would take."""
    mlp = OneLayerMLP(64)
    mlp.lin.weight = torch.nn.Parameter(torch.zeros(2, 64, 64))
    return mlp, torch.zeros(2, FEWEST_NUMBERS // 64, 64)
