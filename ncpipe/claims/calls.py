"""Check the functions that claims name by `call`, and their arguments.

`ncpipe.claims.theory_calls` has those of the theory, `ncpipe.claims.run_calls` those of runs, and a study.py
its own of both.
"""

import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from ncpipe.claims.ledger import Claim
from ncpipe.config.records import check
from ncpipe.config.study import loaded
from ncpipe.system.errors import InputError, cut, shown, suggest, word

GIVEN = ("claim", "tables")  # parameters of a function of runs, before those of claims.yaml


class Call(NamedTuple):
    """Holds a function for a number; `check` computes the same number of a theory in another way."""

    number: Callable[..., Any]
    check: Callable[..., float] | None = None


Calls = dict[str, Call]


def with_own(calls: Mapping[str, tuple[Callable[..., Any], ...]]) -> Calls:
    """Return calls of the package and those of the study whose params.yaml was read last.

    Raises InputError if the study has one of the same name.
    """
    for name in calls.keys() & loaded().calls.keys():
        raise loaded().mistake("CALLS", f"the call {name!r} exists already, in the package; rename it")
    return {name: Call(*functions) for name, functions in {**calls, **loaded().calls}.items()}


def check_calls(claims: Iterable[Claim], calls: Calls) -> None:
    """Raise InputError with one line per mistake in the calls, before evaluating them takes minutes.

    Only `evaluate` finds arguments outside the theory's range.
    """
    mistakes = []
    for claim in claims:
        try:
            checked(claim, calls)
        except InputError as error:
            mistakes.append(str(error))
    if mistakes:
        raise InputError("\n".join(mistakes))


def checked(claim: Claim, calls: Calls) -> tuple[Call, dict[str, Any]]:
    """Return the call of a claim and its arguments; raise InputError with a line for each mistake."""
    if claim.call not in calls:
        raise InputError(
            cut(f"claims.yaml: {claim.id}.call: unknown {shown(claim.call)}; {suggest(claim.call, calls)}")
        )
    call = calls[claim.call]
    if ("tables" in inspect.signature(call.number).parameters) == (claim.quantity == "theory"):
        other = "computed" if claim.quantity == "theory" else "theory"
        raise InputError(f"claims.yaml: {claim.id}.quantity: {claim.call} is a call of `quantity: {other}`")
    if claim.against == "numerical" and call.check is None:
        raise InputError(
            f"claims.yaml: {claim.id}.against: {claim.call} has no numerical check; give a number"
        )
    return call, _arguments(claim, call.number)


def _arguments(claim: Claim, function: Callable[..., float]) -> dict[str, Any]:
    """Return the claim's arguments, checked with the function's annotations; without one, a number."""
    signature = inspect.signature(function).parameters
    parameters = {name: each for name, each in signature.items() if name not in GIVEN}
    hints = typing.get_type_hints(function, include_extras=True)
    kinds = {name: hints.get(name, float) for name in parameters}
    mistakes = [
        f"{claim.id}.args.{word(name)}: unknown; {suggest(name, kinds)}"
        for name in claim.args
        if name not in kinds
    ]
    found = {}
    for name, parameter in parameters.items():
        if name in claim.args:
            found[name], wrong = check(kinds[name], claim.args[name], f"{claim.id}.args.{name}")
            mistakes += wrong
        elif parameter.default is inspect.Parameter.empty:
            mistakes.append(f"{claim.id}.args.{name}: missing; add it")
    if mistakes:
        raise InputError("\n".join(cut(f"claims.yaml: {line}") for line in mistakes))
    return found
