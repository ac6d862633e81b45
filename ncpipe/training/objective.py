"""The regularised loss of S25 eq. 7 and 11, for every run of a stack at once.

S  runs    N  samples    K  classes    P  numbers per run
"""

from collections.abc import Sequence

from torch import Tensor

from ncpipe.losses import cross_entropy, half_squared_error
from ncpipe.models.penalties import entry_strength, is_penalised, strengths
from ncpipe.specs import Run
from ncpipe.training.stack import Stack


def sum_of_cross_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    """Over samples: logits (S, N, K), labels (S, N) -> (S,)."""
    return cross_entropy(logits, labels).sum(1)


def sum_of_squared_errors(logits: Tensor, labels: Tensor) -> Tensor:
    """The same of |f - y|^2/2, which divided by N is S25's MSE."""
    return half_squared_error(logits, labels, over=(1, 2))


FITS = {"ce": sum_of_cross_entropies, "mse": sum_of_squared_errors}


def penalty_strengths(stack: Stack, runs: Sequence[Run]) -> Tensor:
    """lambda of every number of every run, (S, P): lambda_L on W_L, 0 on what is not penalised."""
    roles, dimensions = stack.roles, stack.dimensions
    return stack.per_parameter([strengths(roles, dimensions, r.spec.penalty, r.depth) for r in runs])


def entering_strengths(stack: Stack, runs: Sequence[Run]) -> Tensor | None:
    """lambda_H (S,) of the features that enter the head; None where no run penalises them."""
    own = [entry_strength(r.spec.penalty, r.depth) for r in runs]
    scopes = {r.spec.penalty.scope == "head" for r in runs}
    assert len(scopes) == 1, "a stack does not mix runs with and without a penalty of features"
    return stack.values.new_tensor(own) if True in scopes else None


def decayed_numbers(stack: Stack, runs: Sequence[Run]) -> Tensor:
    """(S, P): 1 on every number that is penalised, whatever its lambda; there AdamW may decay."""
    roles, dimensions = stack.roles, stack.dimensions
    return stack.per_parameter(
        [
            {name: float(is_penalised(roles[name], dimensions[name], r.spec.penalty)) for name in roles}
            for r in runs
        ]
    )


def penalty(values: Tensor, strengths: Tensor) -> Tensor:
    """lambda/2 |theta_bar|^2 of each run: values, strengths (S, P) -> (S,)."""
    return (strengths * values.square()).sum(1) / 2
