"""Define the keys of movie reviews, to be classified; `ncpipe.datasets.imdb` draws them."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from ncpipe.config.architectures.architecture import Kind
from ncpipe.config.bounds import Bound, Count, Index
from ncpipe.config.sources.sizes import check_sizes
from ncpipe.config.sources.source import DataSpec, Imbalance, LabelNoise


@dataclass(frozen=True)
class TextData(DataSpec):
    """Balanced draw from the Large Movie Review Dataset, as token ids padded on the right.

    Byte pairs are those of lower case, with runs of white space as one space.
    source: imdb.
    per_class: training reviews of each class.
    test_per_class: test reviews of each class; null takes the whole test split.
    seed: seed of the random draw of samples.
    tokenizer: `corpus` trains a byte-pair encoding on the official training reviews; any other value is the
    name of a tokenizer on the Hugging Face hub, or its folder, which the stage fetch of dvc.yaml has to list.
    vocabulary: entries of the encoding that `corpus` trains; null with a tokenizer of the hub.
    context: tokens of a review; shorter ones are padded.
    keep: part of a longer review that is used, its `start` or its `end`.
    label_noise: wrong training labels; none without it.
    imbalance: classes with fewer training samples; none without it.
    """

    kind: ClassVar[Kind] = "tokens"

    source: Literal["imdb"]
    per_class: Count
    test_per_class: Count | None
    seed: Index
    tokenizer: str
    vocabulary: Annotated[int, Bound(300, 10**6)] | None  # no corpus here has as many words
    context: Annotated[int, Bound(2, 10**5)]  # no review is as long
    keep: Literal["start", "end"]
    label_noise: LabelNoise | None = None
    imbalance: Imbalance | None = None

    def __post_init__(self) -> None:
        check_sizes(self.source, self.per_class, self.test_per_class)
        if (self.tokenizer == "corpus") != (self.vocabulary is not None):
            raise ValueError("vocabulary is a number with `tokenizer: corpus` and null with a hub tokenizer")
