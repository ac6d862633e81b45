"""The nearest-class-mean rule as a last layer, for losses that learn none.

Like the statistics of batch norm it follows from all training samples: before each row of the history and at
the end it becomes that of the features as they are, and it is saved with the weights.

S  runs    N  samples    K  classes    d  feature width
"""

import torch

from ncpipe.datasets.prepared import Split
from ncpipe.training.stack import Stack


@torch.no_grad()
def set_nearest_means(stack: Stack, samples: Split, rows: int) -> None:
    """W = class means mu, b = -|mu|^2/2: the largest logit mu_k h - |mu_k|^2/2 is the nearest mean's.

    Of all samples (N, ...) that the runs share, `rows` at a time.
    """
    runs, classes, width = stack.last_weight.shape
    sums = stack.values.new_zeros(runs, classes, width)
    for start in range(0, len(samples), rows):
        part = samples[start : start + rows]
        sums.index_add_(1, part.labels, stack.forward_with_features(part).features)
    counts = torch.bincount(samples.labels, minlength=classes).to(sums.dtype)
    means = sums / counts.unsqueeze(1)
    stack.set_last(means, -means.square().sum(2) / 2)
