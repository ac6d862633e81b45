"""Assign each parameter its lambda by its role [S25 eq. 7, 11]; `config.penalty_specs` has the keys."""

from collections.abc import Mapping

from torch import Tensor

from ncpipe.config.experiment import Experiment
from ncpipe.config.penalty_specs import Penalty
from ncpipe.models.network import INNER, Role


def is_penalised(role: Role, dimensions: int, penalty: Penalty) -> bool:
    """Return whether a parameter is penalised: by default matrices of the inner layers and the last layer.

    Matrices have two dimensions or more. With `biases` the inner layers' vectors are too; with the scope
    `all` every learned parameter of a layer, with `weights` every matrix among them, with `head` the matrices
    of the head and of the last layer only. Free features always are.
    """
    if role == "free":
        return True
    if penalty.scope in ("all", "weights"):
        return role in ("embedding", *INNER, "last") and (dimensions > 1 or penalty.scope == "all")
    if penalty.scope == "head":
        return role in ("head", "last") and dimensions > 1
    if role in INNER:
        return dimensions > 1 or penalty.biases
    return role == "last" and dimensions > 1


def head_input_strength(spec: Experiment, depth: int) -> float:
    """Return lambda_H of the features that enter a head or the last layer; 0 if they are not penalised."""
    return spec.penalty.feature_strength(depth) if spec.penalises_features else 0.0


def strengths(
    roles: Mapping[str, Role], dimensions: Mapping[str, int], penalty: Penalty, depth: int
) -> dict[str, float]:
    """Return each parameter's lambda: lambda_L in the last layer, lambda_H for free features, or 0.

    With `penalty.layers` each inner matrix has its own, in the order of `roles`.
    """
    lambdas = dict.fromkeys(roles, 0.0)
    of_layers = iter(penalty.layer_strengths(depth)[:-1]) if penalty.layers is not None else None
    for name, role in roles.items():
        if not is_penalised(role, dimensions[name], penalty):
            continue
        if role == "last":
            lambdas[name] = penalty.last_strength(depth)
        elif role == "free":
            lambdas[name] = penalty.feature_strength(depth)
        else:
            lambdas[name] = penalty.inner_strength(depth) if of_layers is None else next(of_layers)
    return lambdas


def penalties(
    penalty: Penalty, depth: int, roles: Mapping[str, Role], state: Mapping[str, Tensor]
) -> tuple[float, float]:
    """Return lambda_L/2 |W_L|^2 and the sum of all other penalties of a state, in float64."""
    parameters = {name: tensor for name, tensor in state.items() if name in roles}  # a buffer has no role
    dimensions = {name: tensor.dim() for name, tensor in parameters.items()}
    by_name = strengths(roles, dimensions, penalty, depth)
    last, offset = 0.0, 0.0
    inner: dict[float, float] = {}  # by lambda: one product with each
    for name, tensor in parameters.items():
        if not is_penalised(roles[name], dimensions[name], penalty):
            continue
        square = tensor.double().square().sum().item()
        if roles[name] != "last":
            inner[by_name[name]] = inner.get(by_name[name], 0.0) + square
        elif dimensions[name] > 1:
            last += square
        else:
            offset += square
    half = penalty.last_strength(depth) / 2
    return half * last, sum(strength / 2 * square for strength, square in inner.items()) + half * offset
