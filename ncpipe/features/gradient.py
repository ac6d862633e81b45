"""How far from stationary a trained run ended: the gradient of its objective, in float64.

N  samples
"""

import math

import torch

from ncpipe.datasets.prepared import Prepared
from ncpipe.models.build import arrange, input_shape
from ncpipe.models.network import Network, batch_norms
from ncpipe.models.penalties import entry_strength, strengths
from ncpipe.specs import Run
from ncpipe.training.objective import FITS

ROWS = 2_000  # samples x tokens of one pass, which keeps what its way back needs


def gradient_norm(network: Network, run: Run, data: Prepared, device: torch.device) -> float:
    """|gradient| of the regularised loss on the whole training set [S25 eq. 7], over all that is learned.

    The Euclidean norm, biases and embedding layers included; of a float64 network. It has the unit of a loss
    over that of a weight, and is 0 at a stationary point. At a kink of ReLU, where such training often ends,
    it is that of one side, and need not be small. NaN or inf where the loss is not finite; NaN with batch
    norm, under which the objective is no sum over samples.
    """
    if batch_norms(network):
        return math.nan
    samples = arrange(data.train, data.kind, run.spec.model, device, torch.float64)
    rows = max(1, ROWS // input_shape(data, run.spec.model).rows)
    roles = network.roles()
    learned = [name for name, role in roles.items() if role != "frozen"]
    parameters = [network.get_parameter(name) for name in learned]
    total = [torch.zeros_like(parameter) for parameter in parameters]
    of_features = entry_strength(run.spec.penalty, run.depth) / 2
    for start in range(0, len(samples), rows):
        part = samples[start : start + rows]
        if of_features:
            logits, entering = network.with_entering(part.inputs, part.lengths)
            fit = of_features * entering.square().sum()
        else:
            logits, fit = network(part.inputs, part.lengths), torch.zeros((), dtype=torch.float64)
        fit = fit + FITS[run.spec.loss](logits.unsqueeze(0), part.labels.unsqueeze(0)).sum() / len(samples)
        for sum_, own in zip(total, torch.autograd.grad(fit, parameters), strict=True):
            sum_.add_(own)
    squares = torch.zeros((), dtype=torch.float64, device=device)
    dimensions = {name: network.get_parameter(name).dim() for name in roles}
    by_name = strengths(roles, dimensions, run.spec.penalty, run.depth)
    for name, parameter, sum_ in zip(learned, parameters, total, strict=True):
        sum_.add_(parameter.detach(), alpha=by_name[name])
        squares += sum_.square().sum()
    return squares.sqrt().item()
