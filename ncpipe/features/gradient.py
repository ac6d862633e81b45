"""How far from stationary a trained run ended: the gradient of its objective, in float64.

N  samples    d  feature width
"""

import math

import torch
from torch import Tensor

from ncpipe.config.run import Run
from ncpipe.config.specs import OwnLoss
from ncpipe.datasets.prepared import Prepared, Split
from ncpipe.features.objective import strengths_of, sum_of_fits
from ncpipe.models.build import input_shape, prepare_split
from ncpipe.models.network import Network, mixes_samples
from ncpipe.models.penalties import head_input_strength
from ncpipe.training.objective import compares_samples

ROWS = 2_000  # samples x tokens of one pass, which keeps what its way back needs
# Rows x width x depth of one pass on a GPU: 4 GB, if it keeps 16 numbers for each.
NUMBERS_ON_A_GPU = 2**25


def gradient_norm(network: Network, run: Run, data: Prepared, device: torch.device) -> float:
    """Return |gradient| of the regularised loss on the training set [S25 eq. 7], over all that is learned.

    The Euclidean norm, biases and embedding layers included; of a float64 network. It has the unit of a loss
    over that of a weight, and is 0 at a stationary point. At a kink of ReLU, where such training often ends,
    it is that of one side, and need not be small. NaN or inf where the loss is not finite; NaN with batch
    norm, under which the objective is no sum over samples, and for a study's own loss that compares samples.
    """
    if mixes_samples(network) or (isinstance(run.spec.loss, OwnLoss) and compares_samples(run.spec.loss)):
        return math.nan
    samples = prepare_split(data.train, data.kind, run.spec.model, device, torch.float64)
    rows = ROWS
    if device.type == "cuda" and network.batched:  # others may keep far more of a row than its width
        rows = max(ROWS, NUMBERS_ON_A_GPU // (run.spec.model.width * run.depth))
    rows = max(1, rows // input_shape(data, run.spec.model).rows)
    learned = [name for name, role in network.roles().items() if role != "frozen"]
    parameters = [network.get_parameter(name) for name in learned]
    total = [torch.zeros_like(parameter) for parameter in parameters]
    of_features = head_input_strength(run.spec, run.depth) / 2
    by_feature = _by_feature(network, run, samples, rows) if compares_samples(run.spec.loss) else None
    counts = samples.counts(data.classes)
    for start in range(0, len(samples), rows):
        part = samples[start : start + rows]
        output = network.forward_with_features(part.inputs, part.lengths)
        fit = torch.zeros((), dtype=torch.float64, device=device)
        if of_features:
            fit = of_features * output.head_input.square().sum()
        if by_feature is not None:  # by the chain rule: a sample's features are its own
            fit = fit + (output.features * by_feature[start : start + rows]).sum()
        else:
            seen = (output.features, output.logits, part.targets, network.last.weight, counts)
            fit = fit + sum_of_fits(run, *seen) / samples.predictions
        for sum_, gradient in zip(total, torch.autograd.grad(fit, parameters), strict=True):
            sum_.add_(gradient)
    squares = torch.zeros((), dtype=torch.float64, device=device)
    by_name = strengths_of(network, run)
    for name, parameter, sum_ in zip(learned, parameters, total, strict=True):
        sum_.add_(parameter.detach(), alpha=by_name[name])
        squares += sum_.square().sum()
    return squares.sqrt().item()


def _by_feature(network: Network, run: Run, samples: Split, rows: int) -> Tensor:
    """Return the gradient (N, d) of the loss by each sample's features; holds all pairs' similarities."""
    with torch.no_grad():
        parts = [samples[start : start + rows] for start in range(0, len(samples), rows)]
        features = torch.cat([network.features(part.inputs, part.lengths) for part in parts])
        logits = network.last(features)
    features.requires_grad_()
    counts = samples.counts(len(network.last.weight))
    fit = sum_of_fits(run, features, logits, samples.labels, network.last.weight, counts) / len(samples)
    (gradient,) = torch.autograd.grad(fit, features)
    return gradient
