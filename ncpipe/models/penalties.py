"""Which parameters the penalty holds for and with which lambda, decided by their roles [S25 eq. 7, 11]."""

from collections.abc import Mapping

from torch import Tensor

from ncpipe.models.network import Role
from ncpipe.specs import Penalty


def is_penalised(role: Role, dimensions: int, penalty: Penalty) -> bool:
    """Whether a parameter is: matrices (two dimensions or more) of the inner layers and of the last one.

    With `biases` also the inner layers' vectors; with the scope `all` whatever is learned by a layer.
    """
    if penalty.scope == "all":
        return role in ("embedding", "inner", "last")
    if role == "inner":
        return dimensions > 1 or penalty.biases
    return role == "last" and dimensions > 1


def strength_of(role: Role, dimensions: int, penalty: Penalty, depth: int) -> float:
    """lambda of a parameter: lambda_L in the last layer, 0 where the penalty does not hold."""
    if not is_penalised(role, dimensions, penalty):
        return 0.0
    return penalty.last_strength(depth) if role == "last" else penalty.inner_strength(depth)


def penalties(
    penalty: Penalty, depth: int, roles: Mapping[str, Role], state: Mapping[str, Tensor]
) -> tuple[float, float]:
    """lambda_L/2 |W_L|^2, and lambda/2 |.|^2 of all else that is penalised, of a state, in float64."""
    last, inner, offset = 0.0, 0.0, 0.0
    for name, tensor in state.items():
        if name not in roles or not is_penalised(roles[name], tensor.dim(), penalty):  # a buffer has no role
            continue
        square = tensor.double().square().sum().item()
        if roles[name] != "last":
            inner += square
        elif tensor.dim() > 1:
            last += square
        else:
            offset += square
    half = penalty.last_strength(depth) / 2
    return half * last, penalty.inner_strength(depth) / 2 * inner + half * offset
