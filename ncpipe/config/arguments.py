"""Pass functions of a study.py the arguments that they name: `def nc0(weight)` gets a weight."""

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

# What functions of study.py may name, each by its table (docs/extending.md explains them).
READABLE: Mapping[str, tuple[str, ...]] = {
    "LOSSES": ("logits", "labels", "features", "weight", "counts", "spec"),
    "METRICS": (
        *("classes", "train", "samples", "train_samples", "logits", "labels"),
        *("weight", "bias", "weights", "roles", "spec", "depth"),
    ),
    "OPTIMIZERS": ("weights", "gradients", "state", "step", "rate", "roles", "decayed", "spec"),
}


def argument_names(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of a function's parameters without a default; () if it has no signature."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some builtins have none
        return ()
    return tuple(each.name for each in parameters if each.default is each.empty)


def call_by_name(function: Callable[..., Any], given: Mapping[str, Any]) -> Any:
    """Call the function with those of `given` that it names."""
    return function(**{name: given[name] for name in argument_names(function)})


def unreadable(function: Callable[..., Any], known: Collection[str]) -> str:
    """Return why a function cannot be called with the known arguments; '' if it can."""
    names = argument_names(function)
    listed = ", ".join(known)
    if not names:
        return f"takes no arguments by name; it may name {listed}"
    unknown = [name for name in names if name not in known]
    return f"takes {unknown[0]!r}, which nothing gives; it may name {listed}" if unknown else ""
