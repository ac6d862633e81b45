"""Metrics as functions: `nc.functional.nc1_trace_ratio(features, labels)` is one number.

Every metric of the catalogue that arrays alone define has a function of its name, which follows from its
entry. Tensors on any device, arrays and nested lists are taken; the work is done in float64, and a Python
float comes back. Each call passes over the samples anew: `nc.measure` computes all metrics in two passes.
`dir(nc.functional)` lists the functions, and `help` explains each.

N  samples    K  classes    d  feature width
"""

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from ncpipe.metrics import geometry
from ncpipe.metrics.catalogue import CATALOGUE, ENTRIES, SINGULAR, WEIGHTS
from ncpipe.metrics.checks import Array, as_tensor, check_arrays, check_finite, check_widths, count_classes
from ncpipe.metrics.meters import SampleMeter
from ncpipe.metrics.statistics import ClassStatistics, class_statistics
from ncpipe.metrics.table import (
    MARGIN_QUANTILES,
    OF_STATISTICS,
    OF_WEIGHT,
    TEST,
    TRAIN,
    means_spectrum,
    spectrum_metrics,
    two_pass_metrics,
)
from ncpipe.metrics.uniformity import uniform_duality, weight_uniformity
from ncpipe.metrics.vocabulary import many_class_metrics
from ncpipe.system.errors import InputError

Split = tuple[Array, Array]


def _weight_metric(name: str, weight: Array) -> float:
    rows = as_tensor(weight)
    if rows.ndim != 2 or len(rows) < 2 or not rows.shape[1]:
        raise InputError(f"weight must be (classes, width) of at least 2 classes, not {tuple(rows.shape)}")
    check_finite("weight", rows)
    if name in OF_WEIGHT:
        return OF_WEIGHT[name](rows.double())
    family = weight_uniformity(rows) if name.startswith("gnc2") else dict(spectrum_metrics("weights", rows))
    return float(family[name])


def _statistics_metric(name: str, features: Array, labels: Array) -> float:
    statistics = _Samples(features, labels).statistics
    if name in OF_STATISTICS:
        return OF_STATISTICS[name](statistics)
    ranks = name.endswith("rank_means")
    return float((dict(means_spectrum(statistics)) if ranks else many_class_metrics(statistics))[name])


def _duality_metric(name: str, features: Array, labels: Array, weight: Array) -> float:
    samples = _Samples(features, labels, weight)
    assert samples.weight is not None
    rows = samples.weight.to(samples.features.device)
    if name == "nc3_duality":
        return geometry.nc3_duality(samples.statistics, rows)
    return uniform_duality(samples.statistics, rows)[name]


def _direction_metric(name: str, features: Array, labels: Array) -> float:
    return _Samples(features, labels).value(name)


def _alignment_metric(name: str, features: Array, labels: Array, weight: Array) -> float:
    return _Samples(features, labels, weight).value(name)


def _margin_metric(
    name: str, features: Array, labels: Array, weight: Array, bias: Array | None = None
) -> float:
    return _Samples(features, labels, weight, bias).value(name)


def _nearest_metric(name: str, features: Array, labels: Array, *, train: Split | None = None) -> float:
    return _Samples(features, labels, train=train).value(name)


def _decision_metric(
    name: str,
    features: Array,
    labels: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    train: Split | None = None,
) -> float:
    return _Samples(features, labels, weight, bias, train).value(name)


def _distance_metric(name: str, features: Array, labels: Array, *, train: Split) -> float:
    return _Samples(features, labels, train=train).value(name)


class _Samples:
    """Checked arrays of one split, with what is computed of them; arguments as in the metrics' functions."""

    def __init__(
        self,
        features: Array,
        labels: Array,
        weight: Array | None = None,
        bias: Array | None = None,
        train: Split | None = None,
    ) -> None:
        self.features, self.labels = as_tensor(features), as_tensor(labels)
        self.weight, self.bias = (None if each is None else as_tensor(each) for each in (weight, bias))
        known = None if train is None else (as_tensor(train[0]), as_tensor(train[1]))
        about = self.labels if known is None else known[1]
        classes = count_classes(about) if self.weight is None else len(self.weight)
        split = TRAIN if known is None else TEST
        check_arrays(self.features, self.labels, self.weight, self.bias, classes, split)
        self.statistics = class_statistics(self.features, self.labels, classes)
        self.train: ClassStatistics | None = None
        if known is not None:
            check_arrays(*known, None, None, classes, TRAIN)
            check_widths([known[0], self.features])
            self.train = class_statistics(*known, classes)

    def value(self, name: str) -> float:
        """Return a metric of single samples, in a second pass."""
        meter = SampleMeter(
            self.statistics, self.weight, self.bias, self.train, spread=name.startswith("nc1_pinv")
        )
        meter.update(self.features, self.labels)
        about = self.statistics if self.train is None else self.train
        return float(dict(two_pass_metrics(self.statistics, meter.result(), about))[name])


# What each function takes. Metrics that are not named here are of class statistics.
FORMS: Mapping[str, Callable[..., float]] = {
    **dict.fromkeys(("nc3_duality", "unc3_cosine", "unc3_spread"), _duality_metric),
    **dict.fromkeys(("nc1_pinv", "nc1_pinv_rank"), _direction_metric),
    "nc3_cosine": _alignment_metric,
    **dict.fromkeys(("margin_min", "margin_mean", *MARGIN_QUANTILES), _margin_metric),
    "ncc_error": _nearest_metric,
    "nc4_mismatch": _decision_metric,
    **dict.fromkeys(("weak_test_collapse", "strong_test_collapse"), _distance_metric),
}
ARGUMENTS = {
    "features": "(N, d), of any float type",
    "labels": "(N,), integers in 0..K-1, each at least once",
    "weight": "(K, d), the classifier's rows",
    "bias": "(K,), the classifier's, where it has one",
    "train": "features and labels of the training samples, where the others are held-out ones",
}
EXAMPLES = {
    "features": "[[1.0, 0.2], [1.0, -0.2], [-1.0, 0.2], [-1.0, 0.0]]",
    "labels": "[0, 0, 1, 1]",
    "weight": "[[1.0, 0.1], [-1.0, 0.0]]",
    "train": "([[1.0, 0.0], [-1.0, 0.1]], [0, 1])",
}
WIDTH = 100  # characters of a docstring's lines
__all__ = [metric.name for metric in ENTRIES if not metric.name.startswith(SINGULAR)]


def __getattr__(name: str) -> Callable[..., float]:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _function(name)


def __dir__() -> list[str]:
    return sorted(__all__)


@cache
def _function(name: str) -> Callable[..., float]:
    """Return a metric's function, with the signature of its form and a docstring of its entry."""
    of_weight = CATALOGUE[name].where.startswith(WEIGHTS)
    form = FORMS.get(name, _weight_metric if of_weight else _statistics_metric)

    def function(*given: Any, **named: Any) -> float:
        return form(name, *given, **named)

    _, *parameters = inspect.signature(form).parameters.values()
    function.__name__ = function.__qualname__ = name
    function.__module__ = __name__
    function.__signature__ = inspect.Signature(parameters, return_annotation=float)  # type: ignore[attr-defined]
    function.__doc__ = _docstring(name, function, parameters)
    return function


def _docstring(name: str, function: Callable[..., float], parameters: list[inspect.Parameter]) -> str:
    """Return what `help` shows; the example's value is the one that the function returns."""
    metric = CATALOGUE[name]
    about = f"{metric.formula}. In {metric.interval}; at collapse: {metric.collapse}"
    about += f", and {metric.direction} is closer to it." if metric.direction else "."
    if metric.source:
        about += f" Source: {metric.source}, a work of docs/metric_tables.md."
    needed = [each.name for each in parameters if each.default is each.empty]
    called = ", ".join(f"{each}={each}" if each == "train" else each for each in needed)
    values = {each: ast.literal_eval(EXAMPLES[each]) for each in needed}
    return "\n".join(
        [
            f"Return the {metric.group} metric `{name}`: {metric.meaning}.",
            "",
            *textwrap.wrap(about, WIDTH, break_long_words=False),
            "",
            "Args:",
            *(f"    {each.name}: {ARGUMENTS[each.name]}." for each in parameters),
            "",
            "Raises InputError on arrays that cannot be measured.",
            "",
            ">>> import ncpipe as nc",
            *(f">>> {each} = {EXAMPLES[each]}" for each in needed),
            f">>> round(nc.functional.{name}({called}), 6)",
            f"{round(function(**values), 6)}",
        ]
    )
