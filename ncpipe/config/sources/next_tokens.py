"""Define the keys of sequences whose next token is the label: of a generated language, and of a text."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from ncpipe.config.architectures.architecture import Kind
from ncpipe.config.bounds import Bound, Count, Index, NonNegative
from ncpipe.config.sources.source import DataSpec


@dataclass(frozen=True)
class MarkovData(DataSpec):
    """Sequences of a generated language, each position of which has the next word as its label.

    A word follows `order` others with probability proportional to rank^-zipf e^(sharpness z), z a smooth
    random function of the context (`ncpipe.datasets.markov`): the least loss that any network can reach is
    known.
    source: markov.
    words: size of the vocabulary, and K.
    order: words that the next one depends on.
    zipf: exponent of Zipf's law; 0 makes all words about as frequent.
    sharpness: strength of the dependence on the context; 0 makes words independent.
    sequences: training sequences.
    test_sequences: test sequences.
    context: words of a sequence that predict.
    seed: seed of the language and of its sequences.
    """

    kind: ClassVar[Kind] = "next_tokens"

    source: Literal["markov"]
    words: Annotated[int, Bound(2, 200)]  # the probabilities of order 2 are words^3 numbers
    order: Annotated[int, Bound(1, 2)]  # the probabilities are words^(order + 1) numbers
    zipf: NonNegative
    sharpness: NonNegative
    sequences: Count
    test_sequences: Count
    context: Annotated[int, Bound(2, 10**5)]  # no text here is as long
    seed: Index

    def __post_init__(self) -> None:
        if self.context < self.order:
            raise ValueError(f"context: {self.context} words are fewer than the {self.order} of `order`")

    @property
    def classes(self) -> int:
        """K."""
        return self.words


@dataclass(frozen=True)
class NextTokenData(DataSpec):
    """Sequences of a text, each position of which has the next token as its label.

    Tokens are those of a byte-pair encoding trained on the text in lower case, with runs of white space as
    one space; all that are rare share one, `[UNK]`. Lines follow each other without a separator, so a
    sequence may hold the end of one and the start of the next.
    source: text.
    file: a text file in UTF-8, its path from params.yaml, which the stage fetch of dvc.yaml has to list too;
    null takes the training reviews of the Large Movie Review Dataset, downloaded or from a mirror.
    vocabulary: entries of the encoding.
    min_per_class: a token is rare if it is the next one fewer times in one of the splits.
    sequences: training sequences.
    test_sequences: test sequences, none of which overlaps a training sequence.
    context: tokens of a sequence that predict.
    seed: seed of the random draw of samples.
    """

    kind: ClassVar[Kind] = "next_tokens"

    source: Literal["text"]
    file: str | None
    vocabulary: Annotated[int, Bound(300, 10**5)]  # each is a class
    min_per_class: Count
    sequences: Count
    test_sequences: Count
    context: Annotated[int, Bound(2, 10**5)]  # no text here is as long
    seed: Index
