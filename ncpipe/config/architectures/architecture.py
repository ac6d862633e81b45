"""What the spec of any architecture answers beside its own keys.

Specs import no torch, and so do not share a file with their networks: whoever reads a params.yaml needs them,
and most of those who do (claiming a trained run, tables, figures) would wait for torch longer than they work.
"""

from dataclasses import dataclass
from typing import Any, Literal

from ncpipe.config.architectures.classifier import Classifier

Kind = Literal["vector", "image", "tokens", "next_tokens", "free"]


@dataclass(frozen=True)
class Head:
    """The ReLU layers without biases that a network ends with, by names of what `Network.layers` yields.

    input_layer: the features H_1 that enter them. before, after: what enters and what leaves each ReLU, of
    the layers 2, ..., L of S24; the last of `after` is what the last matrix W_L sees.
    """

    input_layer: str
    before: tuple[str, ...]
    after: tuple[str, ...]

    @property
    def depth(self) -> int:
        """L, the number of its matrices W_1, ..., W_L."""
        return len(self.after) + 1


def numbered_head(depth: int) -> Head:
    """Z2, H2, Z3, ..., with the features H1 and the last layer's input `last`, L = `depth` matrices."""
    inner = tuple(f"H{layer}" for layer in range(2, depth))
    return Head("H1", tuple(f"Z{layer}" for layer in range(2, depth + 1)), (*inner, "last"))


class Architecture:
    """Base of the records below `model` in params.yaml; the first field of each is `architecture`.

    norm: the kind of normalisation, `none` without one. initialisation: where weights come from. last_bias:
    whether the last layer has a bias. classifier: what the last layer is, learned without one.
    """

    architecture: str
    norm: str
    initialisation: str
    last_bias: bool
    classifier: Classifier | None = None

    @property
    def starts_built(self) -> bool:
        """Whether training starts from a construction (`ncpipe.theory.constructions`)."""
        return False

    @property
    def has_free_features(self) -> bool:
        """Whether features are learned in place of what a network would compute from inputs."""
        return False

    @property
    def has_fixed_classifier(self) -> bool:
        """Whether the last layer is set before training and stays as it is."""
        return self.classifier is not None and self.classifier.kind == "etf"

    @property
    def bounds_features(self) -> bool:
        """Whether features have length sqrt(d) whatever the weights, as LN has it."""
        return False

    @property
    def feature_width(self) -> int | None:
        """Numbers that the last layer sees of a sample; None where only the network knows."""
        return None

    def free_features_incompatibility(self, experiment: Any) -> str:
        """Why an experiment's data and training do not suit its free features, '' if they do."""
        raise NotImplementedError

    @property
    def has_head(self) -> bool:
        """Whether the network ends with a head as S24's."""
        return False

    def head(self, depth: int) -> Head | None:
        """That head, of a network of L = `depth`; None without one."""
        return None

    @property
    def reads_images(self) -> bool:
        """Whether images reach the network as images (N, channels, height, width)."""
        return False

    def incompatibility(self, kind: Kind, source: str) -> str:
        """Why data of this kind cannot be read, '' if they can. source: their name."""
        raise NotImplementedError

    def side_incompatibility(self, side: int | None) -> str:
        """Why inputs of this side (of an image, or of a vector: its length) cannot be read, '' if they can.

        side: None where the data have none, or only their file says it.
        """
        return ""

    def depth_incompatibility(self, depth: int) -> str:
        """What depths the architecture takes, if this is none of them; else ''."""
        raise NotImplementedError
