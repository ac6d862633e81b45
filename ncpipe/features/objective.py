"""Compute a trained network's loss on its whole training set, and the strength of its penalties.

N  samples    d  feature width    K  classes
"""

import torch
from torch import Tensor

from ncpipe.config.run import Run
from ncpipe.datasets.prepared import Split
from ncpipe.metrics.losses import logits_of, unregularised_loss
from ncpipe.models.network import Network
from ncpipe.models.penalties import strengths
from ncpipe.training.objective import Outputs, fit_times_samples


def fit_of(run: Run, train: Split, weight: Tensor, bias: Tensor | None) -> float:
    """Return the loss without penalties in float64, of features (N, d) as inputs and of the last layer."""
    if run.spec.loss == "ce" or run.spec.loss == "mse":
        return unregularised_loss(train.inputs, train.labels, weight, bias, run.spec.loss)
    with torch.no_grad():
        logits = logits_of(train.inputs, weight, bias)
        counts = train.counts(len(weight))
        return (sum_of_fits(run, train.inputs, logits, train.labels, weight, counts) / len(train)).item()


def sum_of_fits(
    run: Run, features: Tensor, logits: Tensor, labels: Tensor, weight: Tensor, counts: Tensor | None
) -> Tensor:
    """Return the loss without penalties, times N, of one network.

    counts (K,): of the whole training set, if it has classes.
    """
    logits, labels, features, weight = (tensor.unsqueeze(0) for tensor in (logits, labels, features, weight))
    return fit_times_samples(Outputs(logits, labels, features, weight, counts=counts), run.spec.loss).sum()


def strengths_of(network: Network, run: Run) -> dict[str, float]:
    """Return lambda of each parameter, by name."""
    roles = network.roles()
    dimensions = {name: network.get_parameter(name).dim() for name in roles}
    return strengths(roles, dimensions, run.spec.penalty, run.depth)
