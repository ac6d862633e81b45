"""A trained network's objective on its whole training set.

N  samples    d  feature width    K  classes
"""

import torch
from torch import Tensor

from ncpipe.config.specs import Run
from ncpipe.datasets.prepared import Split
from ncpipe.metrics.losses import unregularised_loss
from ncpipe.training.objective import Outputs, class_counts, fit_times_samples


def fit_of(run: Run, train: Split, weight: Tensor, bias: Tensor | None) -> float:
    """Return the loss without penalties in float64, of features (N, d) as inputs and of the last layer."""
    if run.spec.loss == "ce" or run.spec.loss == "mse":
        return unregularised_loss(train.inputs, train.labels, weight, bias, run.spec.loss)
    logits = train.inputs @ weight.T if bias is None else train.inputs @ weight.T + bias
    with torch.no_grad():
        counts = class_counts(train.labels, len(weight))
        outputs = outputs_of(train.inputs, logits, train.labels, weight, counts)
        return (fit_times_samples(outputs, run.spec.loss) / len(train)).item()


def outputs_of(features: Tensor, logits: Tensor, labels: Tensor, weight: Tensor, counts: Tensor) -> Outputs:
    """Return one network's outputs as those of a stack; counts (K,): of the whole training set."""
    logits, labels, features, weight = (each.unsqueeze(0) for each in (logits, labels, features, weight))
    return Outputs(logits, labels, features, weight, counts=counts)
