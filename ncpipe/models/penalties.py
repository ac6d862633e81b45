"""Which parameters the penalty holds for and with which lambda, decided by their roles [S25 eq. 7, 11]."""

from collections.abc import Mapping

from torch import Tensor

from ncpipe.models.network import Role
from ncpipe.specs import Penalty


def is_penalised(role: Role, dimensions: int, penalty: Penalty) -> bool:
    """Whether a parameter is: matrices (two dimensions or more) of the inner layers and of the last one.

    With `biases` also the inner layers' vectors.
    """
    if role == "inner":
        return dimensions > 1 or penalty.biases
    return role == "last" and dimensions > 1


def strength_of(role: Role, dimensions: int, penalty: Penalty, depth: int) -> float:
    """lambda of a parameter: lambda_L of the last layer's weights, 0 where the penalty does not hold."""
    if not is_penalised(role, dimensions, penalty):
        return 0.0
    return penalty.last_strength(depth) if role == "last" else penalty.inner_strength(depth)


def penalties(
    penalty: Penalty, depth: int, roles: Mapping[str, Role], state: Mapping[str, Tensor]
) -> tuple[float, float]:
    """lambda_L/2 |W_L|^2, and lambda/2 |.|^2 of all else that is penalised, of a state, in float64."""
    last, inner = 0.0, 0.0
    for name, tensor in state.items():
        if not is_penalised(roles[name], tensor.dim(), penalty):
            continue
        square = tensor.double().square().sum().item()
        if roles[name] == "last":
            last += square
        else:
            inner += square
    return penalty.last_strength(depth) / 2 * last, penalty.inner_strength(depth) / 2 * inner
