"""Compute what follows from the whole training set, before each row of the history and at the end.

In training mode batch norm normalises by the statistics of each batch and reads no running ones. Its running
statistics become those of all training samples without augmentation: means and population variances as seen
in training mode. Samples pass in parts, whose statistics are pooled; with one part they are exact. They are
saved with the weights, and later measurements run the network in evaluation mode with them. So is the last
layer of a loss that trains none: it becomes the nearest-class-mean rule.

S  runs    c  channels    N  samples    K  classes    d  feature width
"""

import torch
from torch import Tensor, nn

from ncpipe.datasets.prepared import Split
from ncpipe.models.layers import BatchNorm
from ncpipe.models.network import batch_norms
from ncpipe.training.stack import Stack

PART = 1000  # fewest samples of a part: with fewer, deep layers see another network


@torch.no_grad()
def refresh_bn_statistics(stack: Stack, samples: Split, rows: int) -> None:
    """Compute the statistics of all samples (N, ...) and leave the stack in evaluation mode.

    Each of p parts takes every p-th sample, because samples are ordered by class. rows: samples of a part,
    where that is more than PART.
    """
    if norms := batch_norms(stack.network):
        pools = {name: Pool(norm) for name, norm in norms.items()}
        for name in norms:  # a run that diverged has left NaN, and 0 NaN is NaN
            for statistic in _statistics(stack, name):
                statistic.zero_()
        stack.train(True)
        parts = -(-len(samples) // max(rows, PART))
        for start in range(parts):
            part = samples[start::parts]
            stack.forward_with_features(part)
            for name, pool in pools.items():
                pool.add(len(part), *_statistics(stack, name))
        for name, pool in pools.items():
            pool.close(*_statistics(stack, name))
    stack.train(False)


def _statistics(stack: Stack, name: str) -> tuple[Tensor, Tensor]:
    """Return the running mean and variance of one batch norm, (S, c) each."""
    return stack.buffers[f"{name}.running_mean"], stack.buffers[f"{name}.running_var"]


@torch.no_grad()
def set_nearest_means(stack: Stack, samples: Split, rows: int) -> None:
    """Set W to the class means mu and b to -|mu|^2/2, so that the largest logit is the nearest mean's.

    The logit of class k is mu_k h - |mu_k|^2/2. Means are over all samples (N, ...), `rows` at a time.
    """
    runs, classes, width = stack.last_weight.shape
    sums = stack.values.new_zeros(runs, classes, width)
    for start in range(0, len(samples), rows):
        part = samples[start : start + rows]
        # index_add_ would add in another order each time on a GPU.
        members = torch.nn.functional.one_hot(part.labels, classes).to(sums.dtype)
        sums += members.T @ stack.forward_with_features(part).features
    counts = torch.bincount(samples.labels, minlength=classes).to(sums.dtype)
    means = sums / counts.unsqueeze(1)
    stack.set_last(means, -means.square().sum(2) / 2)


class Pool:
    """Pool one batch norm's statistics over several batches, in float64 on the CPU.

    Until `close` the running statistics are those of the latest batch alone.
    """

    def __init__(self, norm: nn.Module) -> None:
        self.norm = norm
        self.samples = 0
        self.sums: list[Tensor] = []
        self.entries = 0  # of a channel in the latest batch
        self.momentum = norm.momentum
        norm.momentum = 1.0  # type: ignore[assignment]
        self.hook = norm.register_forward_pre_hook(self._count)

    def _count(self, norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self.entries = inputs[0].numel() // inputs[0].shape[1]

    def add(self, samples: int, mean: Tensor, variance: Tensor) -> None:
        """Add the statistics (S, c) of a batch."""
        mean, variance = mean.cpu().double(), variance.cpu().double()
        if not isinstance(self.norm, BatchNorm):  # PyTorch's is the unbiased estimate
            variance = variance * ((self.entries - 1) / self.entries)
        self.samples += samples
        self.sums.append(samples * torch.stack([mean, variance + mean.square()]))

    def close(self, mean: Tensor, variance: Tensor) -> None:
        """Write the pooled statistics and restore the module."""
        self.hook.remove()
        self.norm.momentum = self.momentum
        first, second = torch.stack(self.sums).sum(0) / self.samples
        mean.copy_(first)
        variance.copy_((second - first.square()).clamp(min=0))
