"""Metrics as functions: `nc.functional.nc1_trace_ratio(features, labels)` is one number.

Every metric of classes that features, labels and weights define has a function of its name, which follows
from its entry. Tensors on any device, arrays and nested lists are taken; the work is done in float64, and a
Python float comes back. Each call passes over the samples anew: `nc.measure` computes all metrics in two
passes. `dir(nc.functional)` lists the functions, and `help` explains each.

N  samples    K  classes    d  feature width
"""

import inspect
import math
import textwrap
from collections.abc import Callable, Mapping
from functools import cache
from numbers import Real
from typing import Any

from torch import Tensor

from ncpipe.datasets.tensors import Array, as_tensor
from ncpipe.metrics.catalogue import CATALOGUE, ENTRIES, FAMILIES, FEW_SHOT, SINGULAR, TRANSFERS
from ncpipe.metrics.checks import (
    as_tensors,
    check_arrays,
    check_finite,
    check_shots,
    check_widths,
    count_classes,
)
from ncpipe.metrics.entry import OF_CLASSIFIER, Family
from ncpipe.metrics.few_shot import decision_axes
from ncpipe.metrics.powers_of_two import times_two_to, unit_of
from ncpipe.metrics.sample_statistics import SampleAccumulator
from ncpipe.metrics.statistics import ClassStatistics, class_statistics
from ncpipe.metrics.table import EPISODES, TEST, TRAIN, episode_generator
from ncpipe.system.errors import InputError, shown

Split = tuple[Array, Array]
OF_DECISIONS = {"mismatched", "margins"}  # what the bias changes
OF_FEW_SHOTS = {"axes", "target", "rows"}


def _checked(needs: frozenset[str], arrays: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a metric's function, of checked arrays."""
    weight, bias = as_tensors(weight=arrays.get("weight"), bias=arrays.get("bias"))
    if "features" not in arrays:
        assert weight is not None
        if weight.ndim != 2 or len(weight) < 2 or not weight.shape[1]:
            raise InputError(
                f"weight must be (classes, width) of at least 2 classes, not {tuple(weight.shape)}"
            )
        check_finite("weight", weight)
        return {"weight": weight.double()}
    features, labels = (as_tensor(arrays[name], name) for name in ("features", "labels"))
    train = None
    if "train" in arrays and arrays["train"] is not None:
        train_features, train_labels = arrays["train"]
        train = as_tensor(train_features, "train features"), as_tensor(train_labels, "train labels")
    classes = count_classes(labels if train is None else train[1], weight)
    check_arrays(features, labels, weight, bias, classes, TRAIN if train is None else TEST)
    statistics = class_statistics(features, labels, classes)
    if needs & OF_FEW_SHOTS:
        return _few_shot_arguments(features, labels, statistics, arrays)
    arguments: dict[str, Any] = {"statistics": statistics}
    if weight is not None:
        arguments["weight"] = weight.to(features.device)
    if train is not None:
        check_arrays(*train, None, None, classes, TRAIN)
        check_widths([train[0], features])
        arguments["train"] = class_statistics(*train, classes).to(features.device)
    if not needs <= arguments.keys():
        about = arguments.get("train")
        accumulator = SampleAccumulator(statistics, weight, bias, about, spread="spread" in needs)
        accumulator.update(features, labels)
        samples = accumulator.result()
        arguments |= samples.tensors() | {"samples": samples}
    return arguments


def _few_shot_arguments(
    features: Tensor, labels: Tensor, statistics: ClassStatistics, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of the metrics of `few_shot`, of checked arrays and their shots."""
    arguments = {"target": statistics, "axes": decision_axes(features, labels, statistics)}
    if "shots" not in options:
        return arguments
    shots, episodes = options["shots"], options.get("episodes", EPISODES)
    ridge = options.get("ridge", 1.0)
    if not (isinstance(ridge, Real) and 0 < float(ridge) < math.inf):
        raise InputError(f"ridge: a number above 0, not {shown(ridge)}")
    check_shots([shots], episodes, labels)
    rows = features.double().cpu()
    rows = times_two_to(rows, -unit_of(rows))
    arguments |= {"rows": rows, "labels": labels.long().cpu(), "episodes": episodes}
    generator = episode_generator(options.get("seed", 0), shots)
    return {**options, **arguments, "generator": generator}


# Those that are no arrays are given by name alone.
ARGUMENTS: dict[str, tuple[Any, str]] = {
    "features": (Array, "(N, d), of any float type"),
    "labels": (Array, "(N,), integers in 0..K-1, each at least once"),
    "weight": (Array, "(K, d), the classifier's rows"),
    "bias": (Array, "(K,), the classifier's, where it has one"),
    "train": (Split, "features and labels of the training samples, where the others are held-out ones"),
    "shots": (int, "of each class, fewer than its samples"),
    "ridge": (float, "strength of the regression's penalty, relative to the features' spread"),
    "episodes": (int, "draws of the shots, of which the error is the mean"),
    "seed": (int, "of the draws"),
}
EXAMPLES: dict[str, Any] = {
    "features": [[1.0, 0.2], [1.0, -0.2], [-1.0, 0.2], [-1.0, 0.0]],
    "labels": [0, 0, 1, 1],
    "weight": [[1.0, 0.1], [-1.0, 0.0]],
    "train": ([[1.0, 0.0], [-1.0, 0.1]], [0, 1]),
    "shots": 1,
    "ridge": 0.1,
}
WIDTH = 100  # characters of a docstring's lines
__all__ = [entry.name for entry in (*ENTRIES, *TRANSFERS) if not entry.name.startswith(SINGULAR)]


def __getattr__(name: str) -> Callable[..., float]:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _function(name)


def __dir__() -> list[str]:
    return sorted(__all__)


@cache
def _function(name: str) -> Callable[..., float]:
    """Return a metric's function, with a signature of what it needs and a docstring of its entry."""
    (family,) = (f for f in (*FAMILIES, *FEW_SHOT) if name in [entry.name for entry in f.entries])
    signature = inspect.Signature(_parameters(family), return_annotation=float)

    def function(*args: Any, **kwargs: Any) -> float:
        arrays = signature.bind(*args, **kwargs).arguments
        return float(dict(family.values(_checked(family.needs, arrays)))[name])

    function.__name__ = function.__qualname__ = name
    function.__module__ = __name__
    function.__signature__ = signature  # type: ignore[attr-defined]
    function.__doc__ = _docstring(name, function, list(signature.parameters.values()))
    return function


def _parameters(family: Family) -> list[inspect.Parameter]:
    """Return the arguments from which follows what a metric needs."""
    needs = family.needs
    required: set[str] = {"weight"} if needs & OF_CLASSIFIER else set()
    defaults: dict[str, Any] = {}
    if needs != {"weight"}:
        required |= {"features", "labels"} | (needs & {"train", "shots", "ridge"})
    if needs & OF_DECISIONS:
        defaults["bias"] = None
    if "train" not in needs and needs & {"wrong", "mismatched"}:
        defaults["train"] = None
    if "episodes" in needs:
        defaults |= {"episodes": EPISODES, "seed": 0}
    return [
        inspect.Parameter(
            name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD if kind is Array else inspect.Parameter.KEYWORD_ONLY,
            default=defaults.get(name, inspect.Parameter.empty),
            annotation=kind | None if name in defaults and defaults[name] is None else kind,
        )
        for name, (kind, _) in ARGUMENTS.items()
        if name in required or name in defaults
    ]


def _docstring(name: str, function: Callable[..., float], parameters: list[inspect.Parameter]) -> str:
    """Return what `help` shows; the example's value is the one that the function returns."""
    metric = CATALOGUE[name]
    about = f"{metric.formula}. In {metric.interval}; at collapse: {metric.collapse}"
    about += f", and {metric.direction} is closer to it." if metric.direction else "."
    if metric.source:
        about += f" Source: {metric.source}, a work of docs/metric_tables.md."
    required = [parameter for parameter in parameters if parameter.default is parameter.empty]
    call = ", ".join(f"{p.name}={p.name}" if p.kind is p.KEYWORD_ONLY else p.name for p in required)
    example = {parameter.name: EXAMPLES[parameter.name] for parameter in required}
    return "\n".join(
        [
            f"Return the {metric.group} metric `{name}`: {metric.meaning}.",
            "",
            *textwrap.wrap(about, WIDTH, break_long_words=False),
            "",
            "Args:",
            *(f"    {parameter.name}: {ARGUMENTS[parameter.name][1]}." for parameter in parameters),
            "",
            "Raises InputError on arrays that cannot be measured.",
            "",
            ">>> import ncpipe as nc",
            *(f">>> {argument} = {value!r}" for argument, value in example.items()),
            f">>> round(nc.functional.{name}({call}), 6)",
            f"{round(function(**example), 6)}",
        ]
    )
