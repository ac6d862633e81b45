"""Evaluate claims about theory, which call a function by name (`ncpipe.papers.theory_calls`, study.py)."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from ncpipe.claims.calls import Calls, checked
from ncpipe.claims.evidence import Answer
from ncpipe.claims.ledger import Claim
from ncpipe.system.errors import InputError, cut


def evaluate(claim: Claim, calls: Calls) -> Answer:
    """Return the exact number of a claim's call; its `target` is the number of `against`.

    Raises InputError, which begins with the claim's id, for an unknown call, a missing, unknown or bad
    argument, arguments outside the theory's range or whose number is not finite, and `numerical` if the call
    has no check.
    """
    call, arguments = checked(claim, calls)
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
