"""Doors into other people's loops, tried with their own libraries."""

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ncpipe.metrics.hooks import measure_model
from ncpipe.metrics.statistics import ClassStatistics, class_statistics
from ncpipe.metrics.table import TEST, TRAIN, measure
from ncpipe.system.errors import InputError

SECOND_PASS = {"nc1_pinv", "nc1_pinv_rank", "ncc_error"}
CLOSE = 1e-12  # of float64 features, summed in another order


@pytest.fixture(scope="module", autouse=True)
def _metrics() -> None:
    """Importing them takes seconds, which tests of other modules need not wait for."""
    global ClassCollapse, MetricCollection, SampleCollapse
    from torchmetrics import MetricCollection

    from ncpipe.integrations.torchmetrics import ClassCollapse, SampleCollapse


def samples(classes: int = 4, width: int = 6, seed: int = 0) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(60) % classes
    means = torch.randn(classes, width, generator=draw)
    return means[labels] + 0.3 * torch.randn(60, width, generator=draw), labels


def table(rows: Any, split: str | None = None) -> dict[str, float]:
    """Values by metric, of one split or of all, but single singular values."""
    of_split = [row for row in rows if split in (None, row.split)]
    return {row.metric: row.value for row in of_split if not row.metric.startswith("singular_")}


def wanted(features: Tensor, labels: Tensor) -> dict[str, float]:
    return {n: v for n, v in table(measure(features, labels)).items() if n not in SECOND_PASS}


CASTS = {
    "to(float32)": lambda model: model.to(torch.float32),
    "to(like)": lambda model: model.to(torch.zeros(1)),
    "half()": lambda model: model.half(),
    "set_dtype": lambda model: [metric.set_dtype(torch.float32) for metric in model.metrics.values()],
}


@pytest.mark.parametrize("cast", CASTS.values(), ids=CASTS)
def test_a_cast_of_the_model_that_holds_it_changes_nothing(cast: Any) -> None:
    """Half of the samples before it, half after it, and after a reset. Red: float32 states, whose update
    fails or rounds."""
    features, labels = doubles()
    first = ClassCollapse(4, 6)
    first.update(features, labels)
    model = torch.nn.Module()
    model.metrics = torch.nn.ModuleDict(
        {"first": ClassCollapse(4, 6), "second": SampleCollapse(first.statistics(), *classifier())}
    )

    def found() -> dict[str, float]:
        for metric in model.metrics.values():
            metric.update(features[30:], labels[30:])
        return {name: value for metric in model.metrics.values() for name, value in metric.compute().items()}

    for metric in model.metrics.values():
        metric.update(features[:30], labels[:30])
    cast(model)
    every = table(measure(features, labels, *classifier()))
    assert found() == pytest.approx(every, rel=CLOSE, abs=CLOSE)
    for metric in model.metrics.values():
        metric.reset()
        metric.update(features[:30], labels[:30])
    assert found() == pytest.approx(every, rel=CLOSE, abs=CLOSE)


def classifier(classes: int = 4, width: int = 6) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(5)
    return torch.randn(classes, width, generator=draw), torch.randn(classes, generator=draw)


def doubles(width: int = 6, seed: int = 0) -> tuple[Tensor, Tensor]:
    features, labels = samples(width=width, seed=seed)
    return features.double(), labels


def once_more(metric: Any, features: Tensor, labels: Tensor, size: int = 7, seed: int = 3) -> Any:
    """The same samples in other batches and another order than the first pass had."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    for rows in order.split(size):
        metric.update(features[rows], labels[rows])
    return metric


class Tagger(torch.nn.Module):
    """The features are the inputs (B, T, d) themselves, the classifier that of `classifier`."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(6, 5).double()
        with torch.no_grad():
            for parameter, value in zip(self.fc.parameters(), classifier(5), strict=True):
                parameter.copy_(value)

    def forward(self, features: Tensor, attention_mask: Tensor) -> Tensor:
        return self.fc(features)


def tagged(classes: list[int], seed: int) -> list[dict[str, Tensor]]:
    """Batches of 8 sequences of 5 positions, with an ignored label and a masked position in each."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.tensor(classes)[torch.randint(len(classes), (24, 5), generator=draw)]
    labels[:, 0] = -1
    features = torch.randn(24, 5, 6, generator=draw, dtype=torch.float64)
    whole = {"features": features, "labels": labels, "attention_mask": (torch.arange(5) < 4).repeat(24, 1)}
    return [{name: tensor[start : start + 8] for name, tensor in whole.items()} for start in (0, 8, 16)]


@pytest.mark.filterwarnings("ignore::ncpipe.system.errors.MeasurementWarning")
@pytest.mark.parametrize("measured", ["all", "present", [1, 3]])
def test_selections_are_those_of_measure_model(measured: Any) -> None:
    """Train and held-out positions. Red: a mask or index without effect, labels that keep their numbers, rows
    of W that are not the classes', present ones of the held-out samples."""
    train = tagged([0, 1, 3] if measured == "present" else [0, 1, 2, 3, 4], 1)
    test = tagged([0, 1, 2, 3, 4], 2)
    options: dict[str, Any] = {"classes": measured, "ignore_index": -1, "mask": "attention_mask"}
    rows = measure_model(Tagger(), "fc", train, test, **options)

    def updated(metric: Any, batches: list[dict[str, Tensor]]) -> Any:
        for batch in batches:
            metric.update(batch["features"], batch["labels"], batch["attention_mask"])
        return metric

    first = updated(ClassCollapse(5, 6, measured, ignore_index=-1), train)
    classes = first.measured_classes()
    assert classes == {"all": [0, 1, 2, 3, 4], "present": [0, 1, 3]}.get(str(measured), [1, 3])
    held_out = updated(ClassCollapse(5, 6, classes, ignore_index=-1), test)
    for split, firsts, batches, learned in (
        (TRAIN, first, train, None),
        (TEST, held_out, test, first.statistics()),
    ):
        second = SampleCollapse(
            firsts.statistics(), *classifier(5), train=learned, classes=classes, ignore_index=-1
        )
        values = firsts.compute() | updated(second, batches).compute()
        for name, expected in table(rows, split).items():
            assert values[name] == pytest.approx(expected, rel=1e-9, abs=1e-9, nan_ok=True), name


def halves(scale: float) -> tuple[list[Any], list[tuple[Tensor, Tensor]]]:
    """Of the first half, which has no sample of class 3, and of the second."""
    features, labels = doubles()
    order = labels.argsort(stable=True)
    parts = [(scale * features[rows], labels[rows]) for rows in (order[:40], order[40:])]
    metrics = [ClassCollapse(4, 6) for _ in parts]
    for metric, part in zip(metrics, parts, strict=True):
        metric.update(*part)
    return metrics, parts


@pytest.mark.parametrize("scale", [1.0, 1e200])
def test_two_halves_are_merged_to_the_whole(scale: float) -> None:
    """Red: merged states averaged, or one half's origins taken for the other's."""
    metrics, parts = halves(scale)
    features, labels = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    metrics[1].merge_state(metrics[0])
    stats = metrics[1].statistics()
    seconds = [SampleCollapse(stats, *classifier()) for _ in parts]
    for metric, part in zip(seconds, parts, strict=True):
        once_more(metric, *part)
    seconds[0].merge_state(seconds[1])
    expected = table(measure(features, labels, *classifier()))
    values = metrics[1].compute() | seconds[0].compute()
    assert values == pytest.approx(expected, rel=CLOSE, abs=CLOSE)


def test_half_of_the_samples_is_no_second_pass() -> None:
    metrics, parts = halves(1.0)
    metrics[0].merge_state(metrics[1].metric_state)
    metric = once_more(SampleCollapse(metrics[0].statistics()), *parts[0])
    with pytest.raises(InputError, match="means are of 60 samples, and 40 were given"):
        metric.compute()
    metric.reset()
    expected = table(measure(*(torch.cat(tensors) for tensors in zip(*parts, strict=True))))
    values = once_more(once_more(metric, *parts[0]), *parts[1]).compute()
    assert values == pytest.approx({name: expected[name] for name in SECOND_PASS}, rel=CLOSE)


def test_states_about_other_means_are_not_merged() -> None:
    features, labels = doubles()
    one, other = (
        once_more(SampleCollapse(class_statistics(scale * features, labels, 4)), scale * features, labels)
        for scale in (1.0, 2.0)
    )
    with pytest.raises(InputError, match="given different means"):
        one.merge_state(other)


def test_a_second_pass_goes_on_from_its_state_with_the_means_in_it() -> None:
    """Also where it is read into a metric about other means. Red: means no part of the state."""
    features, labels = doubles()
    stats = class_statistics(features, labels, 4)
    metric = SampleCollapse(stats, *classifier())
    metric.persistent(True)
    whole = once_more(metric.clone(), features, labels).compute()
    once_more(metric, features[:30], labels[:30])
    turned = ClassStatistics(stats.counts, stats.means.flip(0), 2 * stats.squares, entry_rounding=1e-3)
    other = SampleCollapse(turned, *classifier())
    other.persistent(True)
    once_more(other, features[:8], labels[:8])
    other.load_state_dict(pickle.loads(pickle.dumps(metric.state_dict())))
    once_more(other, features[30:], labels[30:])
    assert other.compute() == pytest.approx(whole, rel=CLOSE, abs=CLOSE)


def test_a_reset_keeps_loaded_means() -> None:
    """Red: the means and weight of the constructor, which `reset` of torchmetrics brings back."""
    features, labels = doubles()
    statistics, (weight, bias) = class_statistics(features, labels, 4), classifier()
    first, second = SampleCollapse(statistics, weight, bias), SampleCollapse(statistics, -weight, bias)
    for metric in (first, second):
        metric.persistent(True)
    second.load_state_dict(first.state_dict())
    second.reset()
    values = [once_more(metric, features, labels).compute() for metric in (first, second)]
    assert values[1] == values[0]


def test_forward_goes_on_like_update() -> None:
    """The value is the batch's alone. Red: states stacked by every call, or lost if one fails."""
    features, labels = samples()
    metric = ClassCollapse(4, 6)
    for start in range(0, 60, 20):
        batch = features[start : start + 20], labels[start : start + 20]
        assert metric(*batch) == pytest.approx(wanted(*batch), rel=1e-9)
        with pytest.raises(InputError, match="class"):
            metric(features[:1], labels[:1])
    assert metric.compute() == pytest.approx(wanted(features, labels), rel=1e-9)


def test_means_of_all_processes_are_what_each_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red: statistics of one process alone; a state that stays gathered after an error."""
    metrics, _ = halves(1.0)
    metrics.append(metrics[0].clone())
    metrics[2].merge_state(metrics[1])

    def gather(state: Tensor, group: Any = None) -> list[Tensor]:
        name = next(name for name in metrics[0]._defaults if getattr(metrics[0], name) is state)
        return [getattr(metric, name) for metric in metrics[:processes]]

    metrics[0].distributed_available_fn, metrics[0].dist_sync_fn = (lambda: True), gather
    processes = 2
    actual, expected = metrics[0].statistics(), metrics[2].statistics()
    assert torch.equal(actual.means, expected.means)
    processes = 1
    with pytest.raises(InputError, match="class 3 has no samples"):
        metrics[0].statistics()
    assert metrics[0].counts.shape == (4,)


def test_second_passes_of_a_collection_keep_their_own_samples() -> None:
    """Of weights that are close, and labels left out from the second batch on."""
    features, labels = doubles()
    first = ClassCollapse(4, 6)
    first.update(features, labels)
    weight, bias = classifier()
    classifiers = {"one": (weight, -100), "close": (weight + 1e-7 * torch.eye(4, 6), -100)}
    together = MetricCollection(
        {
            name: SampleCollapse(first.statistics(), matrix, bias, ignore_index=index)
            for name, (matrix, index) in classifiers.items()
        }
    )
    for rows in torch.arange(60).split(20):
        together.update(features[rows], labels[rows])
    assert len(together.compute_groups) == 2
    values = together.compute()
    for name, (matrix, _) in classifiers.items():
        margins = (features @ matrix.double().T + bias).numpy()
        right = margins[np.arange(60), labels]
        margins[np.arange(60), labels] = -np.inf
        key = next(key for key in values if key.endswith(f"{name}_margin_min"))
        assert float(values[key]) == pytest.approx((right - margins.max(1)).min(), rel=1e-12)
