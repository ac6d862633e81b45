"""The metrics on a GPU are those on the CPU: on a real one, and on a stand-in that keeps tensors apart."""

import ast
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from away import Away, OtherDevice
from conftest import normal
from test_metric_table import case
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import ncpipe as nc
from ncpipe.metrics.statistics import StatisticsAccumulator
from ncpipe.metrics.table import measure


def gpu(tensor: Tensor) -> Tensor:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return tensor.cuda()


@pytest.mark.parametrize("move", [Away, gpu])
@pytest.mark.parametrize("moved", [(0, 1, 2, 3, 4, 5), (0, 1, 4, 5), (0, 4), (0, 1), (4, 5)])
def test_every_metric_is_that_of_the_cpu(move: Callable[[Tensor], Tensor], moved: tuple[int, ...]) -> None:
    """Red: a tensor made on the CPU beside features that are not, or read by NumPy where it is.

    Labels, classifier and either split may stay on the CPU.
    """
    arrays = [*case(0), *case(1)[:2]]
    here = measure(*arrays)
    with OtherDevice():
        there = measure(*(move(t) if i in moved else t for i, t in enumerate(arrays)))
    assert [(row.split, row.metric) for row in there] == [(row.split, row.metric) for row in here]
    assert [row.value for row in there] == pytest.approx([row.value for row in here], rel=1e-10, abs=1e-13)


@pytest.mark.parametrize("move", [Away, gpu])
@pytest.mark.parametrize("function", [nc.measure, nc.measure_regression])
def test_tags_targets_and_classifier_may_stay_on_the_cpu(
    function: Callable[..., nc.Measurements], move: Callable[[Tensor], Tensor]
) -> None:
    """Or all are on the device. Red: a product of what is here with what is there."""
    answers = TAGS if function is nc.measure else HELD_OUT.repeat(3, 1)[:30, :3]
    here = function(ROWS, answers, HEAD, BIAS)
    for rest in ((answers, HEAD, BIAS), (move(answers), move(HEAD), move(BIAS))):
        with OtherDevice():
            there = function(move(ROWS), *rest)
        assert there.to_dict() == pytest.approx(here.to_dict(), rel=1e-10, abs=1e-13)


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
    on_cpu = StatisticsAccumulator(vocabulary, 3)
    with OtherDevice():
        away = [move(batch) for batch in features]
        on_device = StatisticsAccumulator(vocabulary, 3, away[0].device)
        for batch, moved in zip(features, away, strict=True):
            on_cpu.update(batch, labels)
            on_device.update(moved, labels)
        actual = on_device.result_of(move(labels.unique()))
        expected = on_cpu.result_of(labels.unique())
        assert actual.counts.tolist() == expected.counts.tolist()
        for name in ("means", "squares"):
            values = torch.tensor(getattr(actual, name).tolist(), dtype=torch.float64)
            torch.testing.assert_close(values, getattr(expected, name), rtol=1e-12, atol=1e-15)


# --- PyTorch's own defaults -------------------------------------------------------------------------------

ROWS, CLASSES, HEAD = normal(30, 4, seed=1), torch.arange(30) % 3, normal(3, 4, seed=2)
HELD_OUT, OTHER, BIAS = normal(12, 4, seed=3), normal(9, 4, seed=4), normal(3, seed=5)
TAGS = torch.eye(3, dtype=torch.int64)[CLASSES] | torch.eye(3, dtype=torch.int64)[torch.arange(30) // 3 % 3]
TOKENS = torch.randint(9, (8, 12), generator=torch.Generator().manual_seed(0))
GIVEN = {
    "features": ROWS,
    "labels": CLASSES,
    "weight": HEAD,
    "train": (ROWS, CLASSES),
    "shots": 3,
    "ridge": 0.1,
}


class Net(nn.Module):
    """Two layers, or an embedding and its unembedding."""

    def __init__(self, first: nn.Module, outputs: int) -> None:
        super().__init__()
        self.body, self.fc = first, nn.Linear(4, outputs)
        with torch.no_grad():
            for place, parameter in enumerate(self.parameters()):
                parameter.copy_(normal(*parameter.shape, seed=place))

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.body(inputs).tanh())
        return logits


def of_metrics() -> list[object]:
    from ncpipe.integrations.torchmetrics import ClassCollapse, SampleCollapse

    first = ClassCollapse(3, 4)
    first.update(ROWS, CLASSES)
    second = SampleCollapse(first.statistics(), HEAD, BIAS)
    second.update(ROWS, CLASSES)
    return sorted((first.compute() | second.compute()).items())


def of_functions() -> list[object]:
    results = []
    for name in dir(nc.functional):
        function = getattr(nc.functional, name)
        needed = [n for n, p in inspect.signature(function).parameters.items() if p.default is p.empty]
        results.append((name, function(**{argument: GIVEN[argument] for argument in needed})))
    return results


def of_a_file(folder: Path, extreme: float = 1.0) -> object:
    np.savez(
        folder / "file.npz", features=extreme * ROWS.numpy(), labels=CLASSES.numpy(), weight=HEAD.numpy()
    )
    return nc.measure_file(folder / "file.npz", shots=[2])


def of_a_subset() -> list[int]:
    from ncpipe.integrations.transformers import sample_subset  # takes seconds to import

    return list(sample_subset(TensorDataset(ROWS), 5, 0).indices)  # type: ignore[attr-defined]


NETWORK, DECODER = Net(nn.Linear(4, 4), 3).double(), Net(nn.Embedding(9, 4), 9)
BATCHES, TESTS = [(ROWS[:20], CLASSES[:20]), (ROWS[20:], CLASSES[20:])], [(HELD_OUT, CLASSES[:12])]
CAUSAL: dict[str, Any] = {"unembedding": "fc", "min_per_class": 1}
MEASURED: dict[str, Callable[[Path], object]] = {
    "arrays": lambda _: nc.measure(
        ROWS, CLASSES, HEAD, BIAS, HELD_OUT, CLASSES[:12], ood=OTHER, shots=[1, 3]
    ),
    "lists": lambda _: nc.measure(ROWS.tolist(), CLASSES.tolist(), HEAD.tolist(), shots=[2]),
    "float32": lambda _: nc.measure(ROWS.float(), CLASSES.int(), HEAD.float()),
    "extreme": lambda _: nc.measure(1e200 * ROWS, CLASSES, HEAD, None, HELD_OUT, CLASSES[:12]),
    "one sample": lambda _: nc.measure(ROWS[:3], CLASSES[:3], HEAD),
    "tags": lambda _: nc.measure(ROWS, TAGS, HEAD, BIAS),
    "tokens": lambda _: nc.measure_tokens(ROWS.reshape(6, 5, 4), CLASSES[:6], [5, 1, 4, 2, 3, 5]),
    "regression": lambda _: nc.measure_regression(ROWS, HELD_OUT.repeat(3, 1)[:30, :3], HEAD, BIAS),
    "batches": lambda _: nc.measure_batches(lambda: BATCHES, 3, lambda: TESTS, HEAD, BIAS),
    "file": of_a_file,
    "functions": lambda _: of_functions(),
    "model": lambda _: nc.measure_model(
        NETWORK, "fc", BATCHES, TESTS, [(OTHER, CLASSES[:9])], layers=["body"]
    ),
    "classes": lambda _: nc.measure_model(NETWORK, "fc", BATCHES, classes=[0, 2]),
    "present": lambda _: nc.measure_model(NETWORK, "fc", BATCHES, classes="present"),
    "lists of labels": lambda _: nc.measure_model(NETWORK, "fc", [(ROWS, CLASSES.tolist())]),
    "model of tags": lambda _: nc.measure_multilabel_model(NETWORK, "fc", [(ROWS, TAGS)]),
    "model of targets": lambda _: nc.measure_regression_model(NETWORK, "fc", [(ROWS, ROWS[:, :3])]),
    "features": lambda _: [(k, v.tolist()) for k, v in nc.collect_features(NETWORK, "fc", BATCHES).items()],
    "language": lambda _: nc.measure_causal_lm(DECODER, [(TOKENS, TOKENS)], [(TOKENS, TOKENS)], **CAUSAL),
    "monitor": lambda _: nc.CollapseMonitor("fc", BATCHES).values(NETWORK),
    "torchmetrics": lambda _: of_metrics(),
    "subset": lambda _: of_a_subset(),
}


def flat(values: Any) -> list[Any]:
    if isinstance(values, nc.Measurements):
        values = values.to_dict()
    return repr(sorted(values.items()) if isinstance(values, dict) else values).split(", ")


@pytest.mark.filterwarnings("ignore::ncpipe.MeasurementWarning")
@pytest.mark.parametrize("measured", MEASURED)
def test_defaults_of_pytorch_change_no_bit(measured: str, tmp_path: Path) -> None:
    """Red: a tensor made on the default device, or of the default type."""
    expected = flat(MEASURED[measured](tmp_path))
    for device, kind in (("meta", torch.float32), ("cpu", torch.float64), ("meta", torch.float64)):
        torch.set_default_device(device)
        torch.set_default_dtype(kind)
        try:
            actual = MEASURED[measured](tmp_path)
        finally:
            torch.set_default_device(None)
            torch.set_default_dtype(torch.float32)
        assert flat(actual) == expected


MAKERS = {"zeros", "ones", "empty", "full", "eye", "tensor", "arange", "linspace", "logspace", "as_tensor"}
MAKERS |= {"rand", "randn", "randint", "randperm", "scalar_tensor", "tril_indices", "triu_indices", "asarray"}
MAKERS = {f"torch.{name}" for name in MAKERS}


@pytest.mark.parametrize("folder", ["metrics", "integrations", "system"])
def test_each_tensor_names_its_device(folder: str) -> None:
    """Of what `import ncpipe` reaches, which runs in other people's processes."""
    left = []
    for file in sorted((Path(nc.__file__).parent / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or ast.unparse(node.func) not in MAKERS:
                continue
            if "device" not in {keyword.arg for keyword in node.keywords}:
                left.append(f"{file.name}:{node.lineno}")
    assert not left
