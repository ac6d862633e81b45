"""Define the deep unconstrained features model [S24 Def. 2]: every sample's features are parameters.

`ncpipe.papers.s24.dufm` has its optimal losses, `ncpipe.papers.s24.dufm_solutions` its solutions.

N  samples    B  samples of a batch    d  width    K  classes    n  samples of a class    L  depth
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from ncpipe.study import Bound, Family, Layer, Network, OwnModel, Positive


@dataclass(frozen=True)
class DufmModel(OwnModel):
    """L matrices without biases behind features that are learned themselves, ReLU between them [S24 Def. 2].

    architecture: dufm.
    width: width of the features and of every hidden layer.
    columns: initial features of a class, each drawn on its `own` or all `equal`.
    initialisation: normal.
    gain: weights are drawn with variance gain^2 / fan_in.
    feature_deviation: standard deviation of the features' drawn entries.
    """

    # fixed, and so no keys
    has_free_features: ClassVar[bool] = True  # type: ignore[misc]
    has_head: ClassVar[bool] = True  # type: ignore[misc]

    architecture: Literal["dufm"]
    width: Annotated[int, Bound(1, 10**6)]
    columns: Literal["own", "equal"]
    initialisation: Literal["normal"] = field()  # type: ignore[misc]  # a key
    gain: Positive
    feature_deviation: Positive

    @property
    def feature_width(self) -> int:
        return self.width

    def incompatibility(self, kind: str, source: str) -> str:
        if kind == "free":
            return ""
        return f"model.architecture: dufm learns its features and reads no {source}; take `source: free`"

    def depth_incompatibility(self, depth: int) -> str:
        return "" if depth >= 2 else "L >= 2 (L counts the last layer)"

    def free_features_incompatibility(self, experiment: Any) -> str:
        data, optimizer = experiment.data, experiment.optimizer.name
        if not data.reduced:
            return ""
        if self.columns != "equal":
            return "data.reduced: one sample stands for n that start equal; write `columns: equal` in model"
        if experiment.batch_size != "full":
            return "data.reduced: mini-batches move the samples of a class apart; write `batch_size: full`"
        if optimizer != "sgd":
            return (
                f"data.reduced: exact for gradient descent, not for {optimizer}; take `name: sgd`, or "
                "`per_class: 1` with penalty.features = n lambda_H, a problem with the same minima"
            )
        return ""


class Map(nn.Module):
    """x (N, i) -> x W^T, with W (o, i); both may have a leading axis of runs that train side by side."""

    bias = None

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.mT


class Dufm(Network):
    """W_L relu(W_{L-1} ... relu(W_1 H_1)); the rows of `free` are H_1, one for each sample.

    Where `shape.copies` = n' > 1, one row F stands for the n' equal samples of a class, and H_1 = F/sqrt(n').
    Then lambda_H |F|^2 is the penalty of all n', and a step of gradient descent on F moves H_1 as far as each
    of the n' moves in the whole problem. Rows of a class start equal with `columns: equal`.
    """

    batched = True

    def __init__(self, spec: DufmModel, shape: Any, classes: int, depth: int) -> None:
        super().__init__()
        self.scale = shape.copies**-0.5
        equal = spec.columns == "equal" and shape.copies == 1
        self.per_class = shape.size // classes if equal else 1
        self.gain, self.deviation = spec.gain, spec.feature_deviation
        width = spec.width
        self.free = nn.Parameter(torch.empty(shape.size, width))
        self.maps = nn.ModuleList(Map(width, width) for _ in range(depth - 1))
        self.last = Map(width, classes)  # type: ignore[assignment]
        self.positions = [Fraction(index, depth - 1) for index in range(depth)]

    @property
    def length(self) -> Fraction:
        """L - 1: the layers between the free features and those that the last layer sees."""
        return Fraction(len(self.maps))

    def parameter_groups(self) -> Mapping[Any, Iterable[Any]]:
        return {"free": [self.free], "inner": [self.maps], "last": [self.last]}

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        """Draw H_1 from N(0, deviation^2) and matrices from N(0, gain^2/d)."""
        samples, width = self.free.shape
        drawn = torch.empty(samples // self.per_class, width, dtype=self.free.dtype)
        drawn.normal_(0.0, self.deviation / self.scale, generator=generator)
        self.free.copy_(drawn.repeat_interleave(self.per_class, 0))
        for map_ in [*self.maps, self.last]:
            map_.weight.normal_(0.0, self.gain / width**0.5, generator=generator)

    def layers(self, x: Tensor, lengths: Tensor | None = None) -> Iterator[Layer]:
        """Yield H1, Z2 = W_1 H_1, H2 after the ReLU, Z3, ...; `last` is H_L."""
        h = select_rows(self.free, x)
        if self.scale != 1:
            h = h * self.scale
        yield Layer("H1", self.positions[0], h)
        depth = len(self.maps) + 1
        for index, map_ in enumerate(self.maps, start=2):
            z = map_(h)
            yield Layer(f"Z{index}", None, z)
            h = torch.relu(z)
            yield Layer("last" if index == depth else f"H{index}", self.positions[index - 1], h)


def select_rows(features: Tensor, x: Tensor) -> Tensor:
    """Return rows x (B,), or x (S, B) of each run, of features (N, d) or (S, N, d).

    An x of length N must be 0, ..., N - 1: all rows.
    """
    if x.dim() == 2:
        return torch.take_along_dim(features, x.unsqueeze(-1), -2)
    return features if len(x) == features.shape[-2] else features.index_select(-2, x)


def unchanged(inputs: Tensor, spec: DufmModel) -> Tensor:
    """Return inputs as they are: numbers of samples."""
    return inputs


NETWORKS = {DufmModel: Family(unchanged, Dufm)}
