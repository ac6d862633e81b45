"""Collapse as a torchmetrics Metric, for loops that have such; needs torchmetrics, the extra `doors`.

B  samples of a batch    K  classes    d  feature width    P  processes
"""

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from ncpipe.metrics.catalogue import SINGULAR
from ncpipe.metrics.statistics import ClassStatistics, StatisticsAccumulator
from ncpipe.metrics.table import one_pass_metrics


class ClassCollapse(Metric):
    """Every metric of docs/metrics.md that one pass over features and labels gives, by name.

    update(features (B, d), labels (B,)) in any batches; compute() -> values of all samples so far, merged
    over processes; raises InputError for a class without a sample. The state is float64 whatever the features
    are. What needs a second pass (`nc1_pinv`, decisions, margins) and what needs weights is not among them.
    """

    full_state_update = False
    higher_is_better = None
    is_differentiable = False

    def __init__(self, classes: int, width: int, **options: Any) -> None:
        """options: torchmetrics' own."""
        super().__init__(**options)
        self.classes, self.width = classes, width
        for name, tensor in StatisticsAccumulator(classes, width).tensors().items():
            self.add_state(name, tensor, dist_reduce_fx=None)

    def update(self, features: Tensor, labels: Tensor) -> None:
        """Add samples."""
        held = StatisticsAccumulator.from_tensors(**self._held())
        held.update(features.detach(), labels)
        for name, tensor in held.tensors().items():
            setattr(self, name, tensor)

    def compute(self) -> dict[str, float]:
        """Values by name, without singular values one by one."""
        return {
            metric: value
            for metric, value in one_pass_metrics(self.statistics())
            if not metric.startswith(SINGULAR)
        }

    def statistics(self) -> ClassStatistics:
        """What the values follow from."""
        held = self._held()
        if held["counts"].dim() == 1:
            return StatisticsAccumulator.from_tensors(**held).result()
        first, *others = (  # gathered: each has an axis of processes in front
            StatisticsAccumulator.from_tensors(**{name: tensor[place] for name, tensor in held.items()})
            for place in range(len(held["counts"]))
        )
        for other in others:
            first.merge(other)
        return first.result()

    def _held(self) -> dict[str, Tensor]:
        # A list of equal tensors where torchmetrics has gathered them without stacking.
        values = {name: getattr(self, name) for name in self._defaults}
        return {name: torch.stack(v) if isinstance(v, list) else v for name, v in values.items()}
