"""Set a last layer to the nearest-class-mean rule, for losses that train none.

It is recomputed from all training samples before each row of the history and at the end, and saved with the
weights, like the statistics of `ncpipe.training.batch_statistics`.

S  runs    N  samples    K  classes    d  feature width
"""

import torch

from ncpipe.datasets.prepared import Split
from ncpipe.training.stack import Stack


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
