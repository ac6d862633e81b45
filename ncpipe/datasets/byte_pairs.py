"""A byte-level byte-pair encoding trained on a corpus."""

import sys
from collections.abc import Sequence
from typing import Any, cast

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from ncpipe.system.errors import InputError

PAD, UNKNOWN = "[PAD]", "[UNK]"


def train_byte_pairs(corpus: Sequence[str], vocabulary: int, progress: bool) -> tokenizers.Tokenizer:
    """Train an encoder of lower-cased text, white space collapsed: ids [PAD], [UNK], 256 bytes, merges.

    Equal corpora in equal order give equal encoders. InputError if the corpus has too few pairs to merge.
    """
    encoder = tokenizers.Tokenizer(models.BPE(unk_token=UNKNOWN))
    space = normalizers.Replace(tokenizers.Regex(r"\s+"), " ")
    encoder.normalizer = cast(
        Any, normalizers.Sequence([normalizers.Lowercase(), space, normalizers.Strip()])
    )
    encoder.pre_tokenizer = cast(Any, pre_tokenizers.ByteLevel(add_prefix_space=True))
    encoder.decoder = cast(Any, decoders.ByteLevel())
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[PAD, UNKNOWN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=progress and sys.stderr.isatty(),
    )
    encoder.train_from_iterator(corpus, trainer, length=len(corpus))
    size = encoder.get_vocab_size()
    if size < vocabulary:
        raise InputError(
            f"data.vocabulary: the training text gives only {size} entries; lower it, or give more text"
        )
    return encoder
