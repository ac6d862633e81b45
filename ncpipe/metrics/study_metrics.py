"""The metrics of a study's study.py beside the package's: their entries, and what is wrong with one."""

import re
from collections.abc import Callable, Mapping

from ncpipe.config.arguments import READABLE, argument_names, unreadable
from ncpipe.config.study import Study, mistake
from ncpipe.config.unions import metrics_of_study
from ncpipe.metrics.catalogue import SUFFIXES, UNKNOWN, Metric, entry_of_package

WHERE = re.compile(r"(every|last), (both|train|test|target|train and test|every split|weights)(;|$)")
SHORT = 60  # most characters of a metric's group, and of its value at collapse
# Of what functions of study.py's metrics may name: what differs between splits, what the last layer alone
# has, and what is kept of weights on the way through training.
OF_SAMPLES = frozenset({"classes", "train", "samples", "train_samples", "logits", "labels"})
LAST_ALONE = frozenset({"logits", "labels", "weight", "bias"})
KEPT_ON_THE_WAY = frozenset({"classes", "train", "weight", "bias", "roles", "spec", "depth"})


def own_metrics(study: Study) -> Mapping[Metric, Callable[..., float]]:
    """Return the metrics of a study.py, with their functions; raise InputError for a wrong entry."""
    for metric in study.metrics:
        if not isinstance(metric, Metric):
            kind = type(metric).__name__
            raise mistake(
                "METRICS", f"METRICS has a key of type {kind}; expected a Metric ({Metric.__module__})"
            )
        if entry_of_package(metric.name) is not UNKNOWN or not metric.name.isidentifier():
            problem = "is no name" if not metric.name.isidentifier() else "exists already, in the package"
            raise mistake("METRICS", f"the metric {metric.name!r} {problem}; take another name")
        if problem := _wrong_field(metric):
            raise mistake("METRICS", f"the metric {metric.name!r} has {problem}")
    for metric, function in study.metrics.items():
        if problem := unreadable(function, READABLE["METRICS"]):
            raise mistake(function, f"METRICS[{metric.name}] {problem}", "METRICS")
    return study.metrics


def _wrong_field(metric: Metric) -> str:
    """Return the first field of an own metric that no table or figure can show; '' if there is none."""
    if metric.scale not in ("log", "linear"):
        return f"the scale {metric.scale!r}; write log or linear"
    for name in ("group", "collapse", "meaning", "formula", "interval", "source", "where", "label"):
        value = getattr(metric, name)
        if not isinstance(value, str) or len(value.splitlines()) > 1:
            return f"the {name} {value!r}; write one line of text"
    for name, example in (("group", "NC1"), ("collapse", "0, or - if it has no value there")):
        value = getattr(metric, name)
        if not 0 < len(value.strip()) <= SHORT:
            return f"the {name} {value!r}; write a short text, such as {example}"
    if metric.order is not None and (not isinstance(metric.order, int) or metric.order < 1):
        return f"the order {metric.order!r}; write a whole number from 1, or None"
    if metric.rounding not in ("features", "loss", "none"):
        return f"the rounding {metric.rounding!r}; write features, loss or none"
    if not WHERE.match(metric.where):
        return f"where {metric.where!r}; write layers and splits, as 'every, both' or 'last, weights'"
    return ""


def wrong_place(metric: Metric, function: Callable[..., float]) -> str:
    """Return where an own metric is measured, if that is not what its `where` says; '' if it is."""
    if not of_samples(function):
        right = "last, weights"
    else:
        right = "every, both" if LAST_ALONE.isdisjoint(argument_names(function)) else "last, both"
    layers, splits = (part.strip() for part in metric.where.partition(";")[0].split(",", 1))
    same = layers == right.partition(",")[0] and (splits == "weights") == right.endswith("weights")
    return "" if same else right


def of_samples(function: Callable[..., float]) -> bool:
    """Return whether a metric's function takes anything that differs between splits."""
    return not OF_SAMPLES.isdisjoint(argument_names(function))


def own_splits(function: Callable[..., float]) -> tuple[str, ...]:
    """Return the splits on which a metric of study.py is plotted, where they are measured."""
    return ("train", "test", "target") if of_samples(function) else ("weights",)


def entry(name: str) -> Metric:
    """Return a metric's entry, of the study or of the package, or UNKNOWN."""
    return next((metric for metric in metrics_of_study() if metric.name == name), entry_of_package(name))


def series_entry(name: str) -> Metric:
    """Return the entry of a name that `series_name` made."""
    return entry(re.sub(rf"({'|'.join(SUFFIXES.values())})$", "", name))
