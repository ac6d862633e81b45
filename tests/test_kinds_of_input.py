"""Arrays, labels, batches and loaders of every kind: equal numbers, or one line that is true."""

import re
import warnings
from array import array
from collections import namedtuple
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from conftest import refused_by
from torch import Tensor, nn
from torch.masked import masked_tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import ncpipe as nc
from ncpipe.metrics.causal import measure_causal_lm
from ncpipe.metrics.hooks import measure_model
from ncpipe.metrics.table import Measurement, measure, measure_batches
from ncpipe.metrics.vocabulary import measure_token_arrays
from ncpipe.system.errors import MeasurementWarning

pytestmark = [
    pytest.mark.filterwarnings("ignore::ncpipe.system.errors.MeasurementWarning"),
    pytest.mark.filterwarnings("ignore:.*(nested tensors|MaskedTensors|Sparse CSR):UserWarning"),
]
K, D, N = 160, 6, 600
INTEGERS = [torch.uint8, torch.uint16, torch.uint64]
Pair = namedtuple("Pair", ["h", "unused"])


class Head(nn.Module):
    """The features are the inputs (n, D) or (n, T, D) themselves."""

    def __init__(self, classes: int = K) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(D, classes)

    def forward(self, h: Tensor) -> Tensor:
        return self.fc(h)


def drawn(classes: int = K) -> tuple[Tensor, Tensor]:
    labels = torch.arange(N) % classes
    return torch.randn(N, D, generator=torch.Generator().manual_seed(0)) + labels.unsqueeze(1), labels


def numbers(measured: Any) -> dict[Any, Any]:
    """The values of rows of measurements by their names, or the arrays that were collected."""
    if isinstance(measured, dict):
        return measured
    return {(row.layer, row.split, row.metric): row.value for row in measured}


def same(measured: Any, expected: Any) -> None:
    measured, expected = numbers(measured), numbers(expected)
    assert measured.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(measured[name], value, rtol=1e-9, err_msg=str(name))


def of_classes(labels: Tensor, classes: Any) -> list[Measurement]:
    return measure_model(Head(), "fc", [(drawn()[0], labels)], classes=classes)


def of_next_tokens(labels: Tensor, _: Any) -> list[Measurement]:
    batch = {"h": drawn()[0].view(-1, 10, D), "labels": labels.view(-1, 10)}
    return measure_causal_lm(Head(), [batch], unembedding="fc", min_per_class=1, shift=False)


def of_token_arrays(labels: Tensor, _: Any) -> list[Measurement]:
    return measure_token_arrays(drawn()[0], labels)


@pytest.mark.parametrize(
    ("rows", "classes", "kinds"),
    [
        (of_classes, "all", INTEGERS),
        (of_classes, "present", INTEGERS[:1]),
        (of_classes, list(range(150, 160)), INTEGERS[:1]),
        (of_next_tokens, None, INTEGERS),
        (of_token_arrays, None, INTEGERS),
    ],
)
def test_labels_of_any_integer_type_lose_no_class(
    rows: Callable[[Tensor, Any], list[Measurement]], classes: Any, kinds: list[torch.dtype]
) -> None:
    """Red: -100 compared in uint8, where it is the class 156."""
    labels = drawn()[1]
    expected = rows(labels, classes)
    for kind in kinds:
        same(rows(labels.to(kind), classes), expected)


@pytest.mark.parametrize("classes", [5, K])
def test_tensors_that_learn_are_measured(classes: int) -> None:
    """The weight of a layer is one."""
    (h, labels), fc = drawn(classes), Head(classes).fc
    expected = measure(h, labels, fc.weight.detach(), fc.bias.detach(), h, labels)
    learning = h.clone().requires_grad_()
    same(measure(learning, labels, fc.weight, fc.bias, learning, labels), expected)

    def batches() -> list[tuple[Tensor, Tensor]]:
        return [(learning, labels)]

    same(measure_batches(batches, classes, batches, fc.weight, fc.bias), expected)
    tokens = measure_token_arrays(h, labels, fc.weight.detach(), fc.bias.detach())
    same(measure_token_arrays(learning, labels, fc.weight, fc.bias), tokens)


@pytest.mark.parametrize("kind", ["autocast", torch.bfloat16, torch.float16])
def test_narrow_networks_are_measured_in_a_loop_of_ones_own(kind: Any) -> None:
    """Between two steps, in autocast's block too; gradients are the same. Features are what the head sees."""
    (h, labels), net = drawn(5), nn.Sequential(nn.Linear(D, D), Head(5))
    torch.manual_seed(0)
    mixed = kind == "autocast"
    if not mixed:
        net, h = net.to(kind), h.to(kind)

    def gradient(measured: bool) -> Tensor:
        net.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            rows = measure_model(net, "1.fc", [(h, labels)]) if measured else []
            nn.functional.cross_entropy(net(h), labels).backward()
            if measured:
                features = net[0](h).detach()
                assert features.dtype == (torch.bfloat16 if mixed else kind)
                same(rows, measure(features, labels, net[1].fc.weight, net[1].fc.bias))
        result: Tensor = net[0].weight.grad
        return result

    assert torch.equal(gradient(measured=False), gradient(measured=True))


def test_inputs_may_be_a_named_tuple() -> None:
    (h, labels), net = drawn(), Head()
    rows = measure_model(net, "fc", [(Pair(h, h), labels)], forward=lambda net, inputs: net(inputs.h))
    same(rows, measure_model(net, "fc", [(h, labels)]))


def test_a_chosen_class_with_one_sample_has_its_own_number() -> None:
    (h, labels), net = drawn(), Head()
    some = (labels != 7) | (torch.arange(N) == 7)
    with pytest.warns(MeasurementWarning, match="train class 7 has one sample"):
        measure_model(net, "fc", [(h[some], labels[some])], classes=[3, 7, 9])


@pytest.mark.parametrize("measure", [measure, measure_token_arrays])
def test_lists_are_arrays(measure: Any) -> None:
    """Nested ones, and rows of either kind. Red: `'list' object has no attribute 'dtype'`."""
    (h, labels), fc = drawn(5), Head(5).fc
    h, weight, bias = h.double(), fc.weight.detach().double(), fc.bias.detach().double()
    expected = measure(h, labels, weight, bias, h, labels)
    split = h.tolist(), labels.tolist()
    same(measure(*split, weight.tolist(), bias.tolist(), *split), expected)
    same(measure([*h.numpy()], tuple(labels.tolist()), [*weight], [*bias], [*h], [*labels]), expected)


def test_held_out_tokens_may_be_far_larger() -> None:
    """As in `measure`: nothing overflows on the way to a share."""
    h, labels = drawn(5)
    rows, expected = (
        numbers(function(h.double(), labels, None, None, 1e200 * h.double(), labels))
        for function in (measure_token_arrays, measure)
    )
    assert rows["last", "test", "ncc_error"] == expected["last", "test", "ncc_error"]


# --- arrays of other libraries --------------------------------------------------------------------------

ROWS, CLASSES, HEAD = np.random.default_rng(0).standard_normal((24, 3)), np.arange(24) % 3, np.eye(3)
MASK = ROWS > 1.5
MASKED = "a masked array; give the samples that are kept, without a mask"
TEXT = "number the classes, as numpy.unique(labels, return_inverse=True)[1] does"


def quietly(make: Callable[[], Any]) -> Any:
    """Make a tensor of a prototype of PyTorch's, which warns."""
    with warnings.catch_warnings(action="ignore"):
        return make()


def frame(kind: str) -> pd.DataFrame:
    return pd.DataFrame(ROWS).astype(kind)


RIGHT: dict[str, tuple[Any, Any]] = {
    "pandas": (pd.DataFrame(ROWS), pd.Series(CLASSES)),
    "pandas Float64, Int64": (frame("Float64"), pd.Series(CLASSES, dtype="Int64")),
    "pandas sparse": (pd.DataFrame(ROWS).astype("Sparse[float]"), pd.Series(CLASSES, dtype="Sparse[int]")),
    "pandas categories": (frame("float64"), pd.Series(CLASSES).astype("category")),
    "an array of pandas": (frame("Float64"), pd.array(CLASSES, dtype="UInt8")),
    "Python's numbers": (ROWS.astype(object), CLASSES.astype(object)),
    "decimals and fractions": (
        [[Decimal(row[0]), Fraction(row[1]), row[2]] for row in ROWS.tolist()],
        CLASSES.tolist(),
    ),
    "masked without a mask": (np.ma.array(ROWS), np.ma.array(CLASSES, mask=np.zeros(24, bool))),
    "lists of arrays": ([*ROWS], [*CLASSES]),
    "lists of tensors that learn": ([*torch.from_numpy(ROWS).requires_grad_()], [*torch.from_numpy(CLASSES)]),
    "lists of Series": ([pd.Series(row) for row in ROWS], CLASSES.tolist()),
    "other order of bytes": (ROWS.astype(">f8"), CLASSES.astype(">i4")),
    "views": (np.repeat(ROWS, 2, 0)[::2], CLASSES[::-1][::-1]),
    "matrices": (quietly(lambda: np.matrix(ROWS)), CLASSES.astype(np.uint64)),
    "ranges, memory": (memoryview(ROWS), array("b", CLASSES.tolist())),
}
WRONG: dict[str, tuple[Any, str]] = {
    "masked": (np.ma.array(ROWS, mask=MASK), MASKED),
    "a masked row": ([*np.ma.array(ROWS, mask=MASK)], MASKED),
    "a masked tensor": (
        quietly(lambda: masked_tensor(torch.from_numpy(ROWS), torch.from_numpy(~MASK))),
        "a masked tensor; give the samples that are kept, without a mask",
    ),
    "SciPy's sparse": (scipy.sparse.csr_array(ROWS), "a sparse csr_array; give a dense array"),
    "sparse rows": (quietly(torch.from_numpy(ROWS).to_sparse_csr), "a sparse tensor; give its to_dense()"),
    "nested": (
        quietly(lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])),
        "a nested tensor; pad it",
    ),
    "meta": (torch.ones(24, 3, device="meta"), "a tensor on the device meta, which holds no numbers"),
    "complex": (ROWS + 0j, "an array of type complex128 holds no real numbers"),
    "a complex tensor": (torch.from_numpy(ROWS + 0j), "a tensor of type complex128 holds no real numbers"),
    "dates": (ROWS.astype("M8[s]"), "an array of type datetime64[s] holds no real numbers"),
    "records": (np.zeros(24, [("a", "f8")]), "an array of type [('a', '<f8')] holds no real numbers"),
    "text": (ROWS.astype(str), "text holds no real numbers"),
    "none in a list": ([[None, 1.0]] * 24, "an array with None, a missing value, holds no real numbers"),
    "missing": (pd.array([pd.NA] * 24), "an array with <NA>, a missing value, holds no real numbers"),
    "objects": (np.array([object] * 24), "an array with <class 'object'> holds no real numbers"),
    "nothing": (None, "NoneType is no array; give an array, a tensor or lists"),
    "a mapping": ({"features": ROWS}, "dict is no array; give an array, a tensor or lists"),
    "a generator": ((row for row in ROWS), "generator is no array; give an array, a tensor or lists"),
    "batches": (
        [torch.from_numpy(ROWS[:12]), torch.from_numpy(ROWS[12:])],
        "a list whose rows make no array, their shapes are (12, 3); concatenate batches, torch.cat or numpy",
    ),
    "ragged": ([[1.0, 2.0], [3.0]], "a list whose rows make no array; give an array or a tensor"),
    "too large": (np.full((24, 3), 2**63, np.uint64), "has a number above 9223372036854775807"),
    "too large for any type": ([[2**70]] * 24, "has a number above 9223372036854775807"),
}  # fmt: skip
# Each argument, with what takes it. What is refused of one is refused of all.
ARGUMENTS: dict[str, Callable[[Any], object]] = {
    "features": lambda given: nc.measure(given, CLASSES),
    "labels": lambda given: nc.measure(ROWS, given),
    "weight": lambda given: nc.measure(ROWS, CLASSES, given),
    "bias": lambda given: nc.measure(ROWS, CLASSES, HEAD, given),
    "test_features": lambda given: nc.measure(ROWS, CLASSES, None, None, given, CLASSES),
    "test_labels": lambda given: nc.measure(ROWS, CLASSES, None, None, ROWS, given),
    "ood": lambda given: nc.measure(ROWS, CLASSES, None, None, ROWS, CLASSES, ood=given),
    "targets": lambda given: nc.measure_regression(ROWS, given),
}
OPTIONAL = {"weight", "bias", "test_features", "test_labels", "ood"}  # for which None is nothing


@pytest.mark.parametrize("kind", RIGHT)
def test_arrays_of_any_library_give_the_numbers_of_numpy(kind: str) -> None:
    given, labels = RIGHT[kind]
    expected = nc.measure(ROWS, CLASSES, ROWS[:3], None, ROWS, CLASSES, ood=2 * ROWS)
    head = given[:3] if isinstance(given, list | np.ndarray) else ROWS[:3]
    same(nc.measure(given, labels, head, None, given, labels, ood=2 * ROWS), expected)
    assert nc.functional.cdnv(given, labels) == expected["last", "train", "cdnv"]
    targets = nc.measure_regression(ROWS, ROWS, ROWS[:3])
    same(nc.measure_regression(given, given, head), targets)


@pytest.mark.parametrize("argument", ARGUMENTS)
@pytest.mark.parametrize("kind", WRONG)
def test_what_a_conversion_would_garble_is_one_line_with_the_arguments_name(kind: str, argument: str) -> None:
    """Red: a mask dropped, a traceback, a line about something else."""
    given, line = WRONG[kind]
    if (given is None and argument in OPTIONAL) or kind == "a generator":
        given = iter([1.0]) if given is not None else {}
        line = line if given else "dict is no array"
        line = line.replace("generator", type(given).__name__)
    message = refused_by(ARGUMENTS[argument], given)
    assert message.removeprefix(f"{argument}:").removeprefix(argument).strip().startswith(line)
    assert message.startswith(argument)


def test_labels_of_text_say_how_to_number_them() -> None:
    names = np.array(["cat", "dog", "bird"])[CLASSES]
    for labels in (names, names.astype(object), names.tolist(), pd.Series(names), pd.Categorical(names)):
        with pytest.raises(nc.InputError, match=re.escape(TEXT)):
            nc.measure(ROWS, labels)
        with pytest.raises(nc.InputError, match=re.escape(TEXT)):
            measure_model(Head(3), "fc", [(drawn(3)[0], labels)])


def test_batches_and_classifiers_of_arrays_are_taken() -> None:
    """Red: `'numpy.ndarray' object has no attribute 'detach'`."""
    expected = nc.measure(ROWS, CLASSES, HEAD)
    actual = nc.measure_batches(lambda: [(ROWS, CLASSES)], 3, weight=HEAD)  # type: ignore[arg-type,list-item]
    same(actual, expected)
    for features, argument in ((np.ma.array(ROWS, mask=MASK), "features"), (ROWS + 0j, "features")):
        with pytest.raises(nc.InputError, match=f"^{argument}: "):
            nc.measure_batches(lambda features=features: [(features, CLASSES)], 3)  # type: ignore[misc]


# --- batches --------------------------------------------------------------------------------------------

TOKENS: dict[str, Any] = {"unembedding": "fc", "min_per_class": 1, "shift": False}
# What takes a network and a loader.
LOADED: dict[str, Callable[[nn.Module, Any], Any]] = {
    "classes": lambda net, loader: measure_model(net, "fc", loader, classes=[0, 2, 3]),
    "classes present": lambda net, loader: measure_model(net, "fc", loader, classes="present"),
    "test samples": lambda net, loader: measure_model(net, "fc", [drawn(5)], loader),
    "features": lambda net, loader: nc.collect_features(net, "fc", loader),
    "a monitor": lambda net, loader: nc.CollapseMonitor("fc", loader).values(net),
    "targets": lambda net, loader: nc.measure_regression_model(net, "fc", loader),
    "tags": lambda net, loader: nc.measure_multilabel_model(net, "fc", loader),
    "tokens": lambda net, loader: measure_causal_lm(net, loader, **TOKENS),
}


def batches_of(measured: str, size: int = 200) -> list[tuple[Tensor, Tensor]]:
    """Samples in random order with the labels that an entry of LOADED takes, in batches."""
    order = torch.randperm(N, generator=torch.Generator().manual_seed(0))
    h, labels = (tensor[order] for tensor in drawn(5))
    tags = nn.functional.one_hot(labels, 5)
    labels = {"tags": tags, "targets": tags + 0.1 * h[:, :5]}.get(measured, labels)
    batches = [*zip(h.split(size), labels.split(size), strict=True)]
    return [(x.view(-1, 10, D), y.view(-1, 10)) for x, y in batches] if measured == "tokens" else batches


NONE = torch.empty(0, D), torch.empty(0, dtype=torch.int64)
# Batches without samples, as filters and collators leave them.
EMPTY: dict[str, Any] = {
    "tensors": NONE,
    "float labels": (NONE[0], torch.empty(0)),
    "lists": ([], []),
    "mapping": {"h": NONE[0], "labels": NONE[1]},
    "None": None,
    "empty list": [],
    "empty mapping": {},
}


@pytest.mark.parametrize("measured", LOADED)
@pytest.mark.parametrize("kind", EMPTY)
def test_empty_batches_change_nothing(kind: str, measured: str) -> None:
    """Two at the start, one within and one at the end; a loader of such alone is one line.

    Red: a classifier compared on no sample; a dtype of no label."""
    empty, net, batches = EMPTY[kind], Head(5), batches_of(measured)
    with_empty = [empty, empty, batches[0], empty, *batches[1:], empty]
    same(LOADED[measured](net, with_empty), LOADED[measured](net, batches))
    message = refused_by(LOADED[measured], net, [empty] * 2)
    assert re.match(r"(test_)?loader: it gave no samples; there is nothing to mea", message)


@pytest.mark.parametrize("mapping", [False, True])
@pytest.mark.parametrize("measured", LOADED)
def test_labels_of_a_batch_that_are_no_numbers_are_one_line(measured: str, mapping: bool) -> None:
    h = torch.from_numpy(np.repeat(ROWS, 2, 1)).float()
    for labels, line in (
        (["a"] * 24, "labels: text holds no real numbers; number the classes"),
        ({"class": CLASSES}, "labels: dict is no array"),
    ):
        batch = {"h": h, "labels": labels} if mapping else (h, labels)
        assert refused_by(LOADED[measured], Head(5), [batch]).startswith(line)


@pytest.mark.parametrize("kind", [torch.int64, torch.float32])
def test_empty_batches_of_arrays_change_nothing(kind: torch.dtype) -> None:
    from ncpipe.integrations.torchmetrics import ClassCollapse, SampleCollapse  # takes seconds to import

    h, labels = drawn(5)
    empty = torch.empty(0, D), torch.empty(0, dtype=kind)
    some = [empty, (h[:7], labels[:7]), empty, (h[7:], labels[7:]), empty]
    fc = Head(5).fc
    expected = measure(h, labels, fc.weight, fc.bias, h, labels)
    same(measure_batches(lambda: some, 5, lambda: some, fc.weight, fc.bias), expected)
    first = ClassCollapse(5, D)
    for batch in some:
        first.update(*batch)
    second = SampleCollapse(first.statistics(), fc.weight, fc.bias)
    for batch in some:
        second.update(*batch)
    known = {row.metric: row.value for row in expected if row.split != "test"}
    computed = first.compute() | second.compute()
    assert computed == pytest.approx({name: known[name] for name in computed}, rel=1e-9, nan_ok=True)


# --- loaders --------------------------------------------------------------------------------------------


class Anew:
    """An iterator of its own that starts anew."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> "Anew":
        self.left = list(self.batches)
        return self

    def __next__(self) -> Any:
        if not self.left:
            raise StopIteration
        return self.left.pop(0)


class Once(Anew):
    def __init__(self, batches: list[Any]) -> None:
        self.left = list(batches)

    def __iter__(self) -> "Once":
        return self


class Refilled:
    """Fills the same two tensors with every batch, as buffers of a fast loader are."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        held = [torch.empty_like(tensor) for tensor in self.batches[0]]
        for batch in self.batches:
            yield tuple(buffer.copy_(tensor) for buffer, tensor in zip(held, batch, strict=True))


def test_what_gives_its_batches_once_is_taken_while_they_fit_into_memory() -> None:
    """Red: called good for one pass only."""
    h, labels = drawn(5)
    batches, net = [(h[:300], labels[:300]), (h[300:], labels[300:])], Head(5)
    same(measure_model(net, "fc", Anew(batches)), measure_model(net, "fc", batches))
    for once in (iter, lambda source: (batch for batch in source), Once):
        same(measure_model(net, "fc", once(batches)), measure_model(net, "fc", batches))
        with pytest.raises(nc.InputError, match=r"^loader: .* it gives its batches once; give a DataLoader"):
            measure_model(net, "fc", once(batches), keep=0)


@pytest.mark.parametrize("measured", LOADED)
def test_a_loader_may_fill_the_same_tensors_again(measured: str) -> None:
    """Red: targets kept by reference, all of them the last batch's."""
    net, batches = Head(5), batches_of(measured, 300)
    same(LOADED[measured](net, Refilled(batches)), LOADED[measured](net, batches))


class Rows(IterableDataset):
    """Its workers read all rows, or every one its own."""

    def __init__(self, shared: bool) -> None:
        self.shared = shared

    def __iter__(self) -> Iterator[Any]:
        h, labels = drawn(5)
        info = get_worker_info()
        step = (info.id, None, info.num_workers) if self.shared and info else (0, None, 1)
        yield from zip(h[slice(*step)], labels[slice(*step)], strict=True)


@pytest.mark.parametrize("shared", [True, False])
def test_workers_that_give_the_same_samples_are_named(shared: bool) -> None:
    """Red: each sample counted twice, in silence."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        arrays = nc.collect_features(Head(5), "fc", DataLoader(Rows(shared), 60, num_workers=2))
    messages = [str(warning.message) for warning in caught if warning.category is MeasurementWarning]
    assert len(arrays["labels"]) == (N if shared else 2 * N)
    assert [line[:66] for line in messages] == (
        [] if shared else ["the 2 workers of the loader's IterableDataset give the same samples"[:66]]
    )


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(D, 2, 8, batch_first=True)
        self.encoder, self.fc = nn.TransformerEncoder(layer, 2), nn.Linear(D, 5)

    def forward(self, tokens: Tensor, padded: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.encoder(tokens, src_key_padding_mask=padded)[:, 0])
        return logits


def test_inner_layers_of_an_encoder_with_padding_are_measured_or_one_line() -> None:
    """Red: NotImplementedError of a nested tensor."""
    draw = torch.Generator().manual_seed(0)
    tokens, padded = (
        torch.randn(60, 4, D, generator=draw),
        torch.arange(4) >= torch.arange(60).view(-1, 1) % 4 + 1,
    )
    net, labels = Encoder(), torch.arange(60) % 5
    inner: Any = {"encoder.layers.0": lambda values, inputs: values[:, 0]}
    with pytest.raises(
        nc.InputError, match=r"^layer 'encoder.layers.0' gives a nested tensor, without padding;"
    ):
        measure_model(net, "fc", [(tokens, padded, labels)], layers=inner)
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        rows = measure_model(net, "fc", [(tokens, padded, labels)], layers=inner)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    with torch.no_grad():
        first = net.eval().encoder.layers[0](tokens, src_key_padding_mask=padded)[:, 0]
    expected = measure(first, labels)["last", "train", "cdnv"]
    assert rows["encoder.layers.0", "train", "cdnv"] == pytest.approx(expected, rel=1e-4)
