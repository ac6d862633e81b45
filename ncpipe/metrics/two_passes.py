"""Run the two passes over a split's samples from which all metrics follow, for several layers together.

B  samples of a batch    K  classes    d  a layer's width
"""

from collections.abc import Iterable, Mapping

from torch import Tensor

from ncpipe.metrics.sample_statistics import SampleAccumulator, SampleStatistics
from ncpipe.metrics.statistics import ClassStatistics, StatisticsAccumulator

Batches = Iterable[tuple[Mapping[str, Tensor], Tensor]]  # features (B, d) by layer, labels (B,)
Classifiers = Mapping[str, tuple[Tensor | None, Tensor | None]]  # weight (K, d) and bias (K,) by layer
# Relative errors of a deep network's features that other batches make, of TF32 products in some of them.
FLOAT32_ROUNDING, FLOAT64_ROUNDING = 1e-5, 1e-12
SUM_ROUNDING = 1e-9  # relative, of a sum of squares about class means


def first_pass(batches: Batches, classes: int) -> dict[str, ClassStatistics]:
    """Return each layer's ClassStatistics, in the layers' order; {} without batches.

    Computed on the device of a layer's first batch. Raises InputError for an empty class, and for batches
    that `StatisticsAccumulator.update` refuses.
    """
    accumulators: dict[str, StatisticsAccumulator] = {}
    for layers, labels in batches:
        for layer, features in layers.items():
            if layer not in accumulators:
                accumulators[layer] = StatisticsAccumulator(classes, features.shape[1], features.device)
            accumulators[layer].update(features, labels)
    return {layer: accumulator.result() for layer, accumulator in accumulators.items()}


def second_pass(
    batches: Batches,
    own: Mapping[str, ClassStatistics],
    classifiers: Classifiers,
    train: Mapping[str, ClassStatistics] | None = None,
) -> dict[str, SampleStatistics]:
    """Return each layer's SampleStatistics about the means that the first pass found.

    own: the same samples' first pass; train: the train split's, where `own` is another's. classifiers: of
    the layers that have one.
    """
    accumulators = {}
    for layer, seen in own.items():
        weight, bias = classifiers.get(layer, (None, None))
        accumulators[layer] = SampleAccumulator(seen, weight, bias, None if train is None else train[layer])
    for layers, labels in batches:
        for layer, features in layers.items():
            accumulators[layer].update(features, labels)
    return {layer: accumulator.result() for layer, accumulator in accumulators.items()}


def same_samples(seen: ClassStatistics, again: SampleStatistics, rounding: float = FLOAT32_ROUNDING) -> bool:
    """Return whether both passes had the same samples: the same N and sum |h - mu_y|^2.

    rounding: relative size of the errors e of features h that come in other batches. They change the sum by
    2 (h - mu_y) e + |e|^2, at most 2 sqrt(sum |h - mu_y|^2 sum |e|^2) + sum |e|^2 (Cauchy-Schwarz). So the
    tolerance falls with the spread within classes: random augmentation of a collapsed network is more than
    it, though little beside the features themselves.
    """
    within = seen.squares.sum()
    errors = rounding**2 * (within + (seen.counts * seen.means.square().sum(1)).sum())
    allowed = SUM_ROUNDING * within + 2 * (within.clamp(min=0) * errors).sqrt() + errors
    return bool(again.samples == seen.samples) and not bool((again.within - within).abs() > allowed)


def pass_rounding(eps: float) -> float:
    """Return the relative error of a network's features in other batches, of its coarsest type's epsilon.

    Most samples round alike in a batch of the same size, so that errors of coarse types are rare.
    """
    return FLOAT64_ROUNDING if eps < 2.0**-40 else max(FLOAT32_ROUNDING, eps / 8)
