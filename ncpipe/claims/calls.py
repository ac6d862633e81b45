"""Check the functions that claims name by `call`, and their arguments.

`ncpipe.claims.theory_calls` has those of the theory, `ncpipe.claims.run_calls` those of runs, and a study.py
its own of both.
"""

import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ncpipe.config.records import check
from ncpipe.config.study import mistake
from ncpipe.system.errors import InputError, cut, suggest, word

GIVEN = ("claim", "tables")  # parameters of a function of runs, before those of claims.yaml


class Call(NamedTuple):
    """Holds a function for a number; `check` computes the same number of a theory in another way."""

    number: Callable[..., Any]
    check: Callable[..., float] | None = None

    @property
    def of_runs(self) -> bool:
        """Whether the number is one of runs."""
        return "tables" in inspect.signature(self.number).parameters


Calls = dict[str, Call]
Functions = Mapping[str, tuple[Callable[..., Any], ...]]


def with_own(calls: Functions, own: Functions) -> Calls:
    """Return calls of the package and of a study; raise InputError if both have one of the same name."""
    for name in calls.keys() & own.keys():
        raise mistake("CALLS", f"the call {name!r} exists already, in the package; rename it")
    return {name: Call(*functions) for name, functions in {**calls, **own}.items()}


def arguments_of(function: Callable[..., Any], args: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Return arguments, checked with the function's annotations; without one, a number.

    Raises InputError with a line for each mistake, which begins with the path.
    """
    signature = inspect.signature(function).parameters
    parameters = {name: each for name, each in signature.items() if name not in GIVEN}
    hints = typing.get_type_hints(function, include_extras=True)
    kinds = {name: hints.get(name, float) for name in parameters}
    mistakes = [f"{path}.{word(name)}: unknown; {suggest(name, kinds)}" for name in args if name not in kinds]
    arguments = {}
    for name, parameter in parameters.items():
        if name in args:
            arguments[name], wrong = check(kinds[name], args[name], f"{path}.{name}")
            mistakes += wrong
        elif parameter.default is inspect.Parameter.empty:
            mistakes.append(f"{path}.{name}: missing; add it")
    if mistakes:
        raise InputError("\n".join(map(cut, mistakes)))
    return arguments
