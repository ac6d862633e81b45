"""Define the keys of transfer: classes that a network never sees, recognised by its features.

As in `ncpipe.config.experiment`, lines of a docstring that begin with a field's name say what the key means.
"""

from dataclasses import dataclass
from typing import Literal

from ncpipe.config.bounds import Count, Draws, Index, Positive
from ncpipe.config.sources.sizes import check_sizes

Head = Literal["ncc", "ridge"]


@dataclass(frozen=True)
class OtherImages:
    """Images of another set, brought to the size of those that the network is trained on.

    source: the image set.
    per_class: images of each of its classes, drawn from its training split.
    seed: seed of the random draw of images.
    """

    source: Literal["digits", "mnist", "fashion_mnist", "kmnist", "cifar10", "cifar100", "svhn"]
    per_class: Count
    seed: Index

    def __post_init__(self) -> None:
        check_sizes(self.source, self.per_class)


@dataclass(frozen=True)
class Episodes:
    """Classes of other data that a head learns from a few samples' features.

    shots: samples of each class that a head learns from, a number for each kind of episode; all others are
    what it is tried on.
    episodes: number of random draws of these samples.
    seed: seed of these draws.
    head: `ncc` decides for the nearest mean of the shots, `ridge` by a linear map with a squared penalty.
    ridge: that penalty, in units of the shots' mean squared distance from their centre; with `ridge` alone.
    """

    shots: tuple[Count, ...]
    episodes: Draws
    seed: Index
    head: tuple[Head, ...]
    ridge: Positive | None = None

    def __post_init__(self) -> None:
        self._check_list("shots", 1)
        self._check_list("head", 1)
        if ("ridge" in self.head) != (self.ridge is not None):
            raise ValueError("ridge: is the penalty of `head: [ridge]`; give both or neither")

    def _check_list(self, key: str, least: int) -> None:
        values = getattr(self, key)
        if len(set(values)) < len(values):
            raise ValueError(f"{key}: {next(v for v in values if values.count(v) > 1)} is listed twice")
        if len(values) < least:
            raise ValueError(f"{key}: too few; list at least {least}")


@dataclass(frozen=True, kw_only=True)
class Transfer(Episodes):
    """Source classes to train on, and target classes that a head learns from a few samples' features.

    source: classes that the network is trained and tested on, as the data number them.
    target: classes of an episode, none of them a source class unless they are of other data.
    n_source: number of source classes, the first ones, to train on; all by default.
    data: other images that the target classes are of; without it those of the data themselves.
    """

    source: tuple[Index, ...]
    target: tuple[Index, ...]
    n_source: Count | None = None
    data: OtherImages | None = None

    def __post_init__(self) -> None:
        self._check_list("source", 2)
        self._check_list("target", 2)
        super().__post_init__()
        if self.n_source is not None and not 2 <= self.n_source <= len(self.source):
            raise ValueError(f"n_source: {self.n_source} is not in 2..{len(self.source)}, as source has them")
        if self.data is None and (both := sorted(set(self.source) & set(self.target))):
            raise ValueError(f"target: {both[0]} is a source class too; take it out of one of them")

    @property
    def trained(self) -> tuple[int, ...]:
        """The classes that the network knows, in the order of its outputs."""
        return self.source[: self.n_source]
