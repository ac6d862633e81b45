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
    return tuple(parameter.name for parameter in parameters if parameter.default is parameter.empty)


def call_by_name(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Call the function with those of the arguments that it names."""
    return function(**{name: arguments[name] for name in argument_names(function)})


def unreadable(function: Callable[..., Any], arguments: Collection[str]) -> str:
    """Return why a function cannot be called with arguments of these names; '' if it can."""
    names = argument_names(function)
    listed = ", ".join(arguments)
    if not names:
        return f"takes no arguments by name; it may name {listed}"
    unknown = [name for name in names if name not in arguments]
    return f"takes {unknown[0]!r}, which nothing gives; it may name {listed}" if unknown else ""
