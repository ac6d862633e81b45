"""How far a trained run's decayed matrices are from rank K, against what the spread of their inputs allows.

At a critical point of fit + lambda/2 |W|^2 the distance |W - nearest of rank K| is at most

    (sqrt(sum_i |delta_i|^2) sqrt(N TCV) + |G|)/lambda

with h_i what enters the matrix for sample i, TCV = tr Sigma_W of these, delta_i the gradient of the fit by
what comes out of it, and G the gradient of the whole objective by W, 0 at a critical point. It holds for
every matrix that meets each sample once, batch norm or not, and for any loss.

N  training samples    K  classes
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ncpipe.config.run import Run
from ncpipe.datasets.prepared import Prepared, Split
from ncpipe.features.objective import strengths_of, sum_of_fits
from ncpipe.metrics.collapse import tcv
from ncpipe.metrics.statistics import class_statistics
from ncpipe.models.build import prepare_split
from ncpipe.models.layers import Affine
from ncpipe.models.network import Network
from ncpipe.models.penalties import head_input_strength

ROWS = 20_000  # samples of the one pass, which keeps what its way back needs


@dataclass(frozen=True)
class MatrixRank:
    """Of one matrix, in the Frobenius norm: its size, its distance from rank K, the bound of the distance."""

    size: float
    distance: float
    bound: float


def matrix_ranks(network: Network, run: Run, data: Prepared, device: torch.device) -> dict[str, MatrixRank]:
    """Return the ranks of the matrices before the last layer of a float64 network, by name, in order.

    None of networks that leave some of what they learn without decay, of mini-batches, which batch norm sees
    one by one, of data that do not fit into one pass, have a label for each token or have no classes, and of
    weights that diverged.
    """
    spec = run.spec
    if spec.penalty.scope != "all" or spec.batch_size != "full" or len(data.train) > ROWS:
        return {}
    if type(data.train) is not Split:
        return {}
    if not all(bool(parameter.isfinite().all()) for parameter in network.parameters()):
        return {}
    network = copy.deepcopy(network).train()  # batch norm by the statistics of the batch, as in training
    samples = prepare_split(data.train, data.kind, spec.model, device, torch.float64)
    met: dict[str, tuple[Tensor, Tensor]] = {}
    for name, module in _maps(network):
        module.register_forward_hook(lambda _, x, z, name=name: met.__setitem__(name, (x[0], z)))
    output = network.forward_with_features(samples.inputs, samples.lengths)
    counts = samples.counts(data.classes)
    seen = (output.features, output.logits, samples.labels, network.last.weight, counts)
    fit = sum_of_fits(run, *seen) / len(samples)
    fit = fit + head_input_strength(spec, run.depth) / 2 * output.head_input.square().sum()
    decays = strengths_of(network, run)
    names = [
        name
        for name, (x, _) in met.items()
        if x.shape[:-1] == (len(samples),) and decays[f"{name}.weight"] > 0
    ]
    if not names:
        return {}
    deltas = torch.autograd.grad(fit, [met[name][1] for name in names])
    ranks = {}
    for name, delta in zip(names, deltas, strict=True):
        weight = network.get_parameter(f"{name}.weight").detach()
        h, decay = met[name][0].detach(), decays[f"{name}.weight"]
        variation = len(samples) * tcv(class_statistics(h, samples.labels, data.classes))
        gradient = (delta.T @ h + decay * weight).norm().item()
        distance = torch.linalg.svdvals(weight)[data.classes :].norm().item()
        bound = (delta.norm().item() * variation**0.5 + gradient) / decay
        ranks[name] = MatrixRank(weight.norm().item(), distance, bound)
    return ranks


def _maps(network: Network) -> Iterator[tuple[str, nn.Module]]:
    for name, module in network.named_modules():
        if isinstance(module, Affine | nn.Linear) and module is not network.last:
            yield name, module
