"""Define the base class of architecture specs: questions that every spec answers beside its keys.

Specs import no torch, so they are apart from their networks (`ncpipe.models`): every command reads them, and
most commands (tables, figures, runs that are in the store) would wait for torch longer than they work.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ncpipe.config.bounds import Positive

Kind = Literal["vector", "image", "tokens", "next_tokens", "free"]


@dataclass(frozen=True)
class Head:
    """The ReLU layers without biases at the end of a network, by the names of `Network.layers`.

    input_layer: the features H_1 that enter them. before, after: input and output of each ReLU, of the layers
    2, ..., L of S24; the last of `after` is the input of the last matrix W_L. width: the least of all of
    these; None where only the network knows it.
    """

    input_layer: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    width: int | None

    @property
    def depth(self) -> int:
        """L, the number of its matrices W_1, ..., W_L."""
        return len(self.after) + 1


def numbered_head(depth: int, width: int | None) -> Head:
    """Return Z2, H2, Z3, ..., with features H1 and the last layer's input `last`, L = `depth` matrices."""
    inner = tuple(f"H{layer}" for layer in range(2, depth))
    return Head("H1", tuple(f"Z{layer}" for layer in range(2, depth + 1)), (*inner, "last"), width)


@dataclass(frozen=True)
class Classifier:
    """The last layer.

    kind: `learned`, as without the key, or `etf`: rows of a simplex equiangular tight frame in a random
    orientation, which are neither trained nor penalised; it needs a width of K - 1 or more.
    length: norm of each row of an etf; not allowed for a learned classifier.
    """

    kind: Literal["learned", "etf"]
    length: Positive | None = None

    def __post_init__(self) -> None:
        if (self.kind == "etf") != (self.length is not None):
            raise ValueError("length is a number with `kind: etf` and no key with `kind: learned`")


class Architecture:
    """Base of the records below `model` in params.yaml; the first field of each is `architecture`.

    norm: kind of normalisation, or `none`. initialisation: origin of the weights. last_bias: whether the last
    layer has a bias. classifier: kind of the last layer, learned if None.
    has_free_features: whether features are parameters, not computed from inputs. bounds_features: whether
    they have norm sqrt(d) for all weights, as after LN. has_head: whether the network ends with a ReLU head
    like S24's. reads_images: whether images reach it as images (N, channels, height, width).
    study_entry: the entry that a study.py has for it in NETWORKS; `load_study` sets it, here and in the bases
    of other records.
    """

    study_entry: ClassVar[Any] = None

    architecture: str
    norm: str
    initialisation: str
    last_bias: bool
    classifier: Classifier | None = None
    has_free_features: bool = False
    bounds_features: bool = False
    has_head: bool = False
    reads_images: bool = False

    @property
    def has_fixed_classifier(self) -> bool:
        """Whether the last layer is set before training and not trained."""
        return self.classifier is not None and self.classifier.kind == "etf"

    @property
    def feature_width(self) -> int | None:
        """Width of the last layer's input; None where only the network knows it."""
        return None

    def free_features_incompatibility(self, experiment: Any) -> str:
        """Return why an experiment's data and training do not suit its free features, '' if they do."""
        raise NotImplementedError

    def head(self, depth: int) -> Head | None:
        """Return that head for L = `depth`, by default with layers H1, Z2, H2, Z3, ...; None without one."""
        return numbered_head(depth, self.feature_width) if self.has_head else None

    def incompatibility(self, kind: Kind, source: str) -> str:
        """Return why data of this kind cannot be read, '' if they can. source: their name."""
        takes = f"model.architecture: {self.architecture} takes"
        if self.reads_images:
            return "" if kind == "image" else f"{takes} images, {source} has none"
        text = kind in ("tokens", "next_tokens")
        return f"{takes} vectors or images, {source} is token sequences" if text else ""

    def side_incompatibility(self, side: int | None) -> str:
        """Return why inputs of this side (an image's, or a vector's length) cannot be read, or ''.

        side: None where the data have none, or where it is not known before they are read.
        """
        return ""

    def depth_incompatibility(self, depth: int) -> str:
        """Return which depths the architecture takes if this is none of them, else ''."""
        return "" if depth >= 2 else "L >= 2 (L counts the last layer)"
