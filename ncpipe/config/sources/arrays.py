"""Define the keys of a file of one's own; `ncpipe.datasets.arrays` reads it."""

from dataclasses import dataclass
from typing import Literal

from ncpipe.config.bounds import Count, Index
from ncpipe.config.sources.source import DataSpec, Imbalance, LabelNoise, Targets
from ncpipe.config.transfer_specs import Transfer


@dataclass(frozen=True)
class ArraysData(DataSpec):
    """Samples of a file of one's own, with classes numbered 0, 1, 2, ...; it may have no test samples.

    source: arrays.
    file: an .npz or .safetensors file with the arrays inputs, labels (N,) and, if there are test samples,
    test_inputs, test_labels; its path from params.yaml. The stage fetch of dvc.yaml has to list it too.
    Samples of other data, for scores that tell them from test samples, are the array ood_inputs.
    kind: what inputs are: `vector` (N, D), `image` (N, channels, height, width), or `tokens` (N, C), ids from
    0, padded on the right where arrays `lengths`, `test_lengths`, `ood_lengths` (N,) say how many are real.
    per_class: training samples of each class; null takes all of them, which need not be balanced then.
    test_per_class: test samples of each class; null takes all there are.
    seed: seed of the random draw of samples.
    normalisation: `standardise` subtracts the mean over the drawn training set and divides by the standard
    deviation, of each channel or coordinate, or by 1 where it is 0; `none` takes numbers as they are.
    label_noise: wrong training labels; none without it.
    imbalance: classes with fewer training samples; none without it.
    transfer: classes to train on and others to try features on; all are trained on without it.
    targets: `vectors` for regression: the file then has the arrays targets (N, t) and test_targets, of
    floats, in place of labels; `tags` where a sample has several classes: then the arrays tags (N, K) and
    test_tags, of 0 and 1; `classes` by default.
    """

    source: Literal["arrays"]
    file: str
    kind: Literal["vector", "image", "tokens"]
    per_class: Count | None
    test_per_class: Count | None
    seed: Index
    normalisation: Literal["standardise", "none"]
    label_noise: LabelNoise | None = None
    imbalance: Imbalance | None = None
    transfer: Transfer | None = None
    targets: Targets = "classes"

    def __post_init__(self) -> None:
        if self.targets != "classes":
            for key in ("per_class", "test_per_class", "label_noise", "imbalance", "transfer"):
                if getattr(self, key) is not None:
                    raise ValueError(f"{key}: needs classes, and the targets are {self.targets}; write null")
        if self.kind == "tokens" and self.normalisation != "none":
            raise ValueError("normalisation: token ids have none; write `none`")
        if self.per_class is None and self.imbalance is not None:
            raise ValueError("imbalance: makes classes small that have per_class samples; give per_class")
