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

from torch import Tensor

from ncpipe.datasets.tensors import Array, as_tensor
from ncpipe.metrics.catalogue import CATALOGUE, ENTRIES, FAMILIES, FEW_SHOT, SINGULAR, TRANSFERS
from ncpipe.metrics.checks import check_arrays, check_finite, check_widths, count_classes
from ncpipe.metrics.entry import OF_CLASSIFIER, Family
from ncpipe.metrics.few_shot import decision_axes
from ncpipe.metrics.sample_statistics import SampleAccumulator
from ncpipe.metrics.statistics import ClassStatistics, class_statistics
from ncpipe.metrics.table import TEST, TRAIN
from ncpipe.metrics.transfer import EPISODES, check_shots, episode_generator
from ncpipe.system.errors import InputError

Split = tuple[Array, Array]
OF_DECISIONS = {"mismatched", "margins"}  # what the bias changes
OF_FEW_SHOTS = {"axes", "target", "rows"}


def _given(needs: frozenset[str], arrays: dict[str, Any]) -> dict[str, Any]:
    """Return what a metric's function takes, of checked arrays."""
    weight, bias = (None if arrays.get(n) is None else as_tensor(arrays[n], n) for n in ("weight", "bias"))
    if "features" not in arrays:
        assert weight is not None
        if weight.ndim != 2 or len(weight) < 2 or not weight.shape[1]:
            raise InputError(
                f"weight must be (classes, width) of at least 2 classes, not {tuple(weight.shape)}"
            )
        check_finite("weight", weight)
        return {"weight": weight.double()}
    features, labels = (as_tensor(arrays[name], name) for name in ("features", "labels"))
    train = arrays.get("train")
    known = None if train is None else _pair(train)
    classes = count_classes(labels if known is None else known[1], weight)
    check_arrays(features, labels, weight, bias, classes, TRAIN if known is None else TEST)
    given: dict[str, Any] = {"statistics": class_statistics(features, labels, classes)}
    if needs & OF_FEW_SHOTS:
        return _of_few_shots(features, labels, given["statistics"], arrays)
    if weight is not None:
        given["weight"] = weight.to(features.device)
    if known is not None:
        check_arrays(*known, None, None, classes, TRAIN)
        check_widths([known[0], features])
        given["train"] = class_statistics(*known, classes)
    if not needs <= given.keys():
        accumulator = SampleAccumulator(
            given["statistics"], weight, bias, given.get("train"), spread="spread" in needs
        )
        accumulator.update(features, labels)
        found = accumulator.result()
        given |= found.tensors() | {"samples": found}
    return given


def _pair(train: Split) -> tuple[Tensor, Tensor]:
    features, labels = train
    return as_tensor(features, "train features"), as_tensor(labels, "train labels")


def _of_few_shots(
    features: Tensor,
    labels: Tensor,
    statistics: ClassStatistics,
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """Return what the metrics of `few_shot` take, of checked arrays and their shots."""
    given: dict[str, Any] = {"target": statistics, "axes": decision_axes(features, labels, statistics)}
    if "shots" not in options:
        return given
    given |= {"rows": features.double().cpu(), "labels": labels.long().cpu()}
    given = {"episodes": EPISODES, **options} | given
    check_shots([given["shots"]], given["episodes"], given["labels"])
    return given | {"generator": episode_generator(options.get("seed", 0), given["shots"])}


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
EXAMPLES = {
    "features": "[[1.0, 0.2], [1.0, -0.2], [-1.0, 0.2], [-1.0, 0.0]]",
    "labels": "[0, 0, 1, 1]",
    "weight": "[[1.0, 0.1], [-1.0, 0.0]]",
    "train": "([[1.0, 0.0], [-1.0, 0.1]], [0, 1])",
    "shots": "1",
    "ridge": "0.1",
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
    (family,) = (each for each in (*FAMILIES, *FEW_SHOT) if name in [entry.name for entry in each.entries])
    signature = inspect.Signature(_parameters(family), return_annotation=float)

    def function(*given: Any, **named: Any) -> float:
        arrays = signature.bind(*given, **named).arguments
        return float(dict(family.values(_given(family.needs, arrays)))[name])

    function.__name__ = function.__qualname__ = name
    function.__module__ = __name__
    function.__signature__ = signature  # type: ignore[attr-defined]
    function.__doc__ = _docstring(name, function, list(signature.parameters.values()))
    return function


def _parameters(family: Family) -> list[inspect.Parameter]:
    """Return the arguments from which follows what a metric needs."""
    needs = family.needs
    taken: set[str] = {"weight"} if needs & OF_CLASSIFIER else set()
    defaults: dict[str, Any] = {}
    if needs != {"weight"}:
        taken |= {"features", "labels"} | (needs & {"train", "shots", "ridge"})
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
        if name in taken or name in defaults
    ]


def _docstring(name: str, function: Callable[..., float], parameters: list[inspect.Parameter]) -> str:
    """Return what `help` shows; the example's value is the one that the function returns."""
    metric = CATALOGUE[name]
    about = f"{metric.formula}. In {metric.interval}; at collapse: {metric.collapse}"
    about += f", and {metric.direction} is closer to it." if metric.direction else "."
    if metric.source:
        about += f" Source: {metric.source}, a work of docs/metric_tables.md."
    needed = [each.name for each in parameters if each.default is each.empty]
    named = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
    called = ", ".join(f"{each}={each}" if each in named else each for each in needed)
    values = {each: ast.literal_eval(EXAMPLES[each]) for each in needed}
    return "\n".join(
        [
            f"Return the {metric.group} metric `{name}`: {metric.meaning}.",
            "",
            *textwrap.wrap(about, WIDTH, break_long_words=False),
            "",
            "Args:",
            *(f"    {each.name}: {ARGUMENTS[each.name][1]}." for each in parameters),
            "",
            "Raises InputError on arrays that cannot be measured.",
            "",
            ">>> import ncpipe as nc",
            *(f">>> {each} = {EXAMPLES[each]}" for each in needed),
            f">>> round(nc.functional.{name}({called}), 6)",
            f"{round(function(**values), 6)}",
        ]
    )
