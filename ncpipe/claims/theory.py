"""Evaluate claims about theory, which call a function by name (`ncpipe.papers.theory_calls`, study.py)."""

import inspect
import math
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from ncpipe.claims.evidence import Answer
from ncpipe.claims.ledger import Theory
from ncpipe.config.records import check
from ncpipe.system.errors import InputError, cut, shown, suggest, word


class Call(NamedTuple):
    """Holds a function for a number of the theory; `check` computes the same number in another way."""

    number: Callable[..., float]
    check: Callable[..., float] | None = None


Calls = Mapping[str, Call]


def evaluate(claim: Theory, calls: Calls) -> Answer:
    """Return the exact number of a claim's call; its `target` is the number of `against`.

    Raises InputError, which begins with the claim's id, for an unknown call, a missing, unknown or bad
    argument, arguments outside the theory's range or whose number is not finite, and `numerical` if the call
    has no check.
    """
    call, arguments = _checked(claim, calls)
    try:
        value = _finite(call.number, arguments)
        if claim.against is None:
            return Answer(value, value, value)
        twin = call.check if claim.against == "numerical" else None
        other = _finite(twin, arguments) if twin else claim.against
    except InputError as error:
        raise InputError(cut(f"claims.yaml: {claim.id}.args: {error}")) from None
    assert isinstance(other, float)
    return Answer(value, value, value, target=other)


def _finite(function: Callable[..., float], arguments: Mapping[str, Any]) -> float:
    """Return a function's number; raise InputError if the arguments are too extreme to compute it."""
    try:
        value = function(**arguments)
    except InputError:
        raise
    except (ArithmeticError, ValueError, RuntimeError) as error:  # of solvers, beyond the range of float64
        text = " ".join(str(error).split())
        raise InputError(f"too extreme, the number cannot be computed ({text}); give others") from None
    if not math.isfinite(value):
        raise InputError(f"the number is {value:g} with these; give others")
    return value


def check_calls(claims: Iterable[Theory], calls: Calls) -> None:
    """Raise InputError with one line per mistake in the calls, before evaluating them takes minutes.

    Only `evaluate` finds arguments outside the theory's range.
    """
    mistakes = []
    for claim in claims:
        try:
            _checked(claim, calls)
        except InputError as error:
            mistakes.append(str(error))
    if mistakes:
        raise InputError("\n".join(mistakes))


def _checked(claim: Theory, calls: Calls) -> tuple[Call, dict[str, Any]]:
    """Return the call of a claim and its arguments."""
    if claim.call not in calls:
        raise InputError(
            cut(f"claims.yaml: {claim.id}.call: unknown {shown(claim.call)}; {suggest(claim.call, calls)}")
        )
    call = calls[claim.call]
    if claim.against == "numerical" and call.check is None:
        raise InputError(
            f"claims.yaml: {claim.id}.against: {claim.call} has no numerical check; give a number"
        )
    return call, _arguments(claim, call.number)


def _arguments(claim: Theory, function: Callable[..., float]) -> dict[str, Any]:
    """Return the claim's arguments, checked with the function's annotations; without one, a number."""
    parameters = inspect.signature(function).parameters
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
