"""Split NC1 and NC3 into the parts of single classes and samples, as arrays.

N  samples    K  classes    d  feature width
"""

from collections.abc import Mapping

import numpy as np

from ncpipe.metrics.collapse import between_trace
from ncpipe.metrics.powers_of_two import times_two_to
from ncpipe.metrics.sample_statistics import SampleStatistics
from ncpipe.metrics.statistics import ClassStatistics
from ncpipe.metrics.uniformity import alignments
from ncpipe.system.lazy_torch import Tensor, torch

Arrays = dict[str, np.ndarray]


def parts_of(
    statistics: ClassStatistics,
    samples: SampleStatistics,
    weight: Tensor | None = None,
    numbers: Tensor | None = None,
) -> tuple[Arrays, Arrays]:
    """Return arrays (K,) of the measured classes, and (N,) of the samples, in the order of reading.

    weight (K, d): of the classifier. numbers (K,): of the classes; 0 to K-1 by default. Samples have {}
    unless they were kept.

    class and samples: a class's number and size. nc1_trace_ratio: its mean of |h - mu_k|^2 over tr(Sigma_B);
    the mean over all samples is the metric. mean_length: |mu_k - mu_G|. unc3_cosine:
    cos(w_k, mu_k - mu_G), with a classifier. nc3_cosine: its mean of 1 - cos(h, w_k), where single samples
    were kept too.

    label: the number of a sample's class. nc1_trace_ratio: |h - mu_y|^2 over tr(Sigma_B). nc3_cosine:
    1 - cos(h, w_y); margin: f_y less the largest other logit; both with a classifier. The mean of each is the
    metric of that name.
    """
    numbers = torch.arange(statistics.classes, device="cpu") if numbers is None else numbers
    counts, between = statistics.counts, between_trace(statistics)
    lengths = torch.linalg.vector_norm(statistics.centred_means, dim=1)
    of_classes: dict[str, Tensor | None] = {
        "class": numbers,
        "samples": counts,
        "nc1_trace_ratio": _over(statistics.squares / counts, between),
        "mean_length": times_two_to(lengths, statistics.exponent),
    }
    if weight is not None:
        of_classes["unc3_cosine"] = alignments(statistics, weight.to(counts.device))
    if samples.labels is None or samples.squares is None:
        return _arrays(of_classes), {}
    of_samples = {
        "label": numbers.to(samples.labels.device)[samples.labels],
        "nc1_trace_ratio": _over(samples.squares, between),
        "nc3_cosine": samples.cosines,
        "margin": samples.margins,
    }
    if samples.cosines is not None:
        # On the CPU: a GPU adds in another order every time.
        sums = torch.zeros(len(counts), dtype=torch.float64, device="cpu")
        sums.index_add_(0, samples.labels.cpu(), samples.cosines.cpu())
        of_classes["nc3_cosine"] = sums / counts.cpu()
    return _arrays(of_classes), _arrays(of_samples)


def _over(values: Tensor, between: Tensor) -> Tensor:
    """Return values over tr(Sigma_B); inf where it is 0, as the metric."""
    return values / between if between != 0 else torch.full_like(values, torch.inf)


def _arrays(parts: Mapping[str, Tensor | None]) -> Arrays:
    return {name: values.cpu().numpy() for name, values in parts.items() if values is not None}
