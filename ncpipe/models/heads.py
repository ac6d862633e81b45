"""Fix a network's last layer and put its features on a sphere, where its spec or its loss requires it.

K  classes    d  feature width
"""

import torch
from torch import Tensor

from ncpipe.config.loss_specs import Loss, has_cosines, ignores_lengths, name_of, too_narrow
from ncpipe.models.network import Network
from ncpipe.system.errors import InputError


def configure_for_loss(network: Network, loss: Loss) -> Network:
    """Return the network with what the loss requires: features on a sphere, cosines, a fixed last layer."""
    network.on_sphere = ignores_lengths(loss)
    network.cosines = has_cosines(loss)
    network.fixed_last = network.fixed_last or name_of(loss) == "supcon"
    return network


@torch.no_grad()
def set_simplex(network: Network, length: float, generator: torch.Generator) -> None:
    """Set the last layer's rows to a simplex ETF (`simplex_rows`)."""
    weight = network.last.weight
    weight.copy_(simplex_rows(weight.shape[0], weight.shape[1], length, generator))


def simplex_rows(classes: int, width: int, length: float, generator: torch.Generator) -> Tensor:
    """Return A = a sqrt(K/(K-1)) V U^T (K, d) float64: rows of length a = `length`, cosines -1/(K-1).

    V (K, K-1): Helmert's orthonormal columns, orthogonal to 1. U (d, K-1): orthonormal columns, uniformly
    oriented. A A^T = a^2 K/(K-1) (I - 11^T/K) [K23 3.1.6]. Raises InputError where d < K - 1.
    """
    check_simplex_fits(classes, width)
    drawn = torch.randn(width, classes - 1, dtype=torch.float64, generator=generator)
    orientation, upper = torch.linalg.qr(drawn)
    orientation = orientation * upper.diagonal().sign()  # uniform only so
    steps = torch.arange(1, classes, dtype=torch.float64)
    helmert = torch.ones(classes, classes - 1, dtype=torch.float64).triu() - torch.diag(steps, -1)[:, :-1]
    rows: Tensor = helmert / (steps * (steps + 1)).sqrt() @ orientation.T
    return length * (classes / (classes - 1)) ** 0.5 * rows


def check_simplex_fits(classes: int, width: int) -> None:
    """Raise InputError unless a simplex of K rows fits into d dimensions, d >= K - 1."""
    if problem := too_narrow(classes, width):
        raise InputError(problem)
