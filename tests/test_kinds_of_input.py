"""Labels of every integer type, tensors that learn, and mistakes: equal numbers, or one line that is true."""

from collections import namedtuple
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ncpipe.metrics.causal import measure_causal_lm
from ncpipe.metrics.hooks import measure_model
from ncpipe.metrics.table import Measurement, measure, measure_batches
from ncpipe.metrics.vocabulary import measure_token_arrays
from ncpipe.system.errors import InputError, MeasurementWarning

pytestmark = pytest.mark.filterwarnings("ignore::ncpipe.system.errors.MeasurementWarning")
K, D, N = 200, 6, 600
INTEGERS = [torch.uint8, torch.int16, torch.int32, torch.uint16, torch.uint32, torch.uint64]
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


def values(rows: list[Measurement]) -> dict[tuple[str, str], float]:
    return {(row.split, row.metric): row.value for row in rows}


def same(found: list[Measurement], wanted: list[Measurement]) -> None:
    assert values(found) == pytest.approx(values(wanted), rel=1e-9, nan_ok=True)


@pytest.mark.parametrize("classes", ["all", "present", list(range(150, 160))])
@pytest.mark.parametrize("kind", INTEGERS)
def test_labels_of_any_integer_type_lose_no_class(kind: torch.dtype, classes: Any) -> None:
    """Red: -100 compared in uint8, where it is the class 156."""
    (h, labels), net = drawn(), Head()
    wanted = measure_model(net, "fc", [(h, labels)], classes=classes)
    same(measure_model(net, "fc", [(h, labels.to(kind))], classes=classes), wanted)


@pytest.mark.parametrize("kind", INTEGERS)
def test_next_tokens_of_any_integer_type_lose_no_class(kind: torch.dtype) -> None:
    (h, labels), net = drawn(), Head()

    def rows(labels: Tensor) -> list[Measurement]:
        batch = {"h": h.view(-1, 10, D), "labels": labels.view(-1, 10)}
        return measure_causal_lm(net, [batch], unembedding="fc", min_per_class=1, shift=False)

    same(rows(labels.to(kind)), rows(labels))


@pytest.mark.parametrize("kind", INTEGERS)
@pytest.mark.parametrize("measure", [measure, measure_token_arrays])
def test_arrays_of_any_integer_type(measure: Any, kind: torch.dtype) -> None:
    h, labels = drawn()
    same(measure(h, labels.to(kind)), measure(h, labels))


@pytest.mark.parametrize("classes", [5, K])
def test_tensors_that_learn_are_measured(classes: int) -> None:
    """The weight of a layer is one."""
    (h, labels), fc = drawn(classes), Head(classes).fc
    wanted = measure(h, labels, fc.weight.detach(), fc.bias.detach(), h, labels)
    learning = h.clone().requires_grad_()
    same(measure(learning, labels, fc.weight, fc.bias, learning, labels), wanted)

    def batches() -> list[tuple[Tensor, Tensor]]:
        return [(learning, labels)]

    same(measure_batches(batches, classes, batches, fc.weight, fc.bias), wanted)
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
        found: Tensor = net[0].weight.grad
        return found

    assert torch.equal(gradient(measured=False), gradient(measured=True))


def test_inputs_may_be_a_named_tuple() -> None:
    (h, labels), net = drawn(), Head()
    found = measure_model(net, "fc", [(Pair(h, h), labels)], forward=lambda net, inputs: net(inputs.h))
    same(found, measure_model(net, "fc", [(h, labels)]))


@pytest.mark.parametrize("split", ["loader", "test_loader"])
def test_a_chosen_class_without_samples_has_its_own_number(split: str) -> None:
    """Red: its place among the chosen classes."""
    (h, labels), net = drawn(), Head()
    some = labels != 7
    loaders = {"loader": [(h, labels)], split: [(h[some], labels[some])]}
    with pytest.raises(InputError, match=rf"^{split}: class 7 has no samples; leave it out of `classes`$"):
        measure_model(net, "fc", **loaders, classes=[3, 7, 9])


def test_a_chosen_class_with_one_sample_has_its_own_number() -> None:
    (h, labels), net = drawn(), Head()
    some = (labels != 7) | (torch.arange(N) == 7)
    with pytest.warns(MeasurementWarning, match="train class 7 has one sample"):
        measure_model(net, "fc", [(h[some], labels[some])], classes=[3, 7, 9])


def test_a_loader_of_which_nothing_is_left_has_batches() -> None:
    (h, labels), net = drawn(), Head()
    with pytest.raises(InputError, match="loader: no sample is left; `ignore_index` or `mask` leaves out"):
        measure_model(net, "fc", [(h, torch.full_like(labels, -100))])


@pytest.mark.parametrize("measure", [measure, measure_token_arrays])
def test_splits_of_different_widths_are_one_line(measure: Any) -> None:
    h, labels = drawn()
    with pytest.raises(InputError, match="train and test features differ in width: 6 and 5"):
        measure(h, labels, test_features=h[:, :5], test_labels=labels)


@pytest.mark.parametrize("measure", [measure, measure_token_arrays])
def test_lists_are_arrays(measure: Any) -> None:
    """Nested ones, and rows of either kind. Red: `'list' object has no attribute 'dtype'`."""
    (h, labels), fc = drawn(5), Head(5).fc
    h, weight, bias = h.double(), fc.weight.detach().double(), fc.bias.detach().double()
    wanted = measure(h, labels, weight, bias, h, labels)
    split = h.tolist(), labels.tolist()
    same(measure(*split, weight.tolist(), bias.tolist(), *split), wanted)
    same(measure([*h.numpy()], tuple(labels.tolist()), [*weight], [*bias], [*h], [*labels]), wanted)


@pytest.mark.parametrize("measure", [measure, measure_token_arrays])
@pytest.mark.parametrize(
    ("features", "message"),
    [
        ([[1.0, 2.0], [3.0]], "a list whose rows make no array"),
        ([torch.zeros(2), torch.zeros(3)], "a list whose rows make no array"),
        ([["a", "b"], ["c", "d"]], "holds no real numbers"),
        ([None, None], "holds no real numbers"),
        ([1.0, 2.0], "features"),
    ],
)
def test_lists_of_anything_else_are_one_line(measure: Any, features: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        measure(features, [0, 1])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("size", [0, -1, 2.5, None])
def test_batches_without_samples_are_one_line(size: Any) -> None:
    with pytest.raises(InputError, match=r"^batch_size: a whole number of samples, 1 or more, not "):
        measure(*drawn(), batch_size=size)


def test_held_out_tokens_may_be_far_larger() -> None:
    """As in `measure`: nothing overflows on the way to a share."""
    h, labels = drawn(5)
    rows = measure_token_arrays(h.double(), labels, None, None, 1e200 * h.double(), labels)
    wanted = measure(h.double(), labels, None, None, 1e200 * h.double(), labels)
    assert values(rows)["test", "ncc_error"] == values(wanted)["test", "ncc_error"]
