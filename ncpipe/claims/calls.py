"""Hold the functions that claims name by `call`, and check their arguments.

`ncpipe.claims.theory_calls` has those of the theory, `ncpipe.claims.run_calls` those of runs, and a study.py
its own of both.
"""

import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ncpipe.config.records import check
from ncpipe.system.errors import InputError, cut, suggest, word

TABLE_PARAMETERS = ("claim", "tables")  # parameters of a function of runs, before those of claims.yaml


class Call(NamedTuple):
    """Holds a function for a number; `check` computes the same number of a theory in another way."""

    number: Callable[..., Any]
    check: Callable[..., float] | None = None

    @property
    def of_runs(self) -> bool:
        """Whether the number is one of runs."""
        return "tables" in inspect.signature(self.number).parameters


Functions = Mapping[str, tuple[Callable[..., Any], ...]]  # of a Call, by its name


def arguments_of(function: Callable[..., Any], args: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Return arguments, checked with the function's annotations; without one, a number.

    Raises InputError with a line for each mistake, which begins with the path.
    """
    parameters = dict(inspect.signature(function).parameters)
    for name in TABLE_PARAMETERS:
        parameters.pop(name, None)
    hints = typing.get_type_hints(function, include_extras=True)
    kinds = {name: hints.get(name, float) for name in parameters}
    mistakes = [f"{path}.{word(name)}: unknown; {suggest(name, kinds)}" for name in args if name not in kinds]
    arguments = {}
    for name, parameter in parameters.items():
        if name in args:
            arguments[name], problems = check(kinds[name], args[name], f"{path}.{name}")
            mistakes += problems
        elif parameter.default is inspect.Parameter.empty:
            mistakes.append(f"{path}.{name}: missing; add it")
    if mistakes:
        raise InputError("\n".join(map(cut, mistakes)))
    return arguments
