"""Token ids of reviews: a byte-pair encoding trained here, or a tokenizer of the Hugging Face hub."""

import errno
import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from ncpipe.config.sources.reviews import TextData
from ncpipe.datasets.byte_pairs import PAD, UNKNOWN, train_byte_pairs
from ncpipe.system.errors import InputError

DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
# transformers gives each kind of tokenizer its own class; what is used here they all have.
Tokenizer = Any


def load_tokenizer(spec: TextData, corpus: Sequence[str], progress: bool) -> Tokenizer:
    """Return the tokenizer that `spec` names; `corpus` trains the one of `tokenizer: corpus`."""
    if spec.vocabulary is None:
        tokenizer = _from_hub(spec.tokenizer)
    else:
        encoder = train_byte_pairs(corpus, spec.vocabulary, progress)
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=encoder, pad_token=PAD, unk_token=UNKNOWN)
    tokenizer.truncation_side = "right" if spec.keep == "start" else "left"
    return tokenizer


def _from_hub(name: str) -> Tokenizer:
    try:
        return AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError, ImportError) as error:
        if isinstance(error, OSError) and error.errno in DISK_ERRORS:
            raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(
            f"data.tokenizer: cannot load {name} from the Hugging Face hub ({reason}); check the name and "
            "the connection, give a local folder that holds it, or use `corpus`"
        ) from None


def tokenizer_facts(spec: TextData, tokenizer: Tokenizer) -> dict[str, object]:
    """Name, special ids, and the SHA-256 of the tokenizer's JSON (None for one that has none)."""
    fast = getattr(tokenizer, "backend_tokenizer", None)
    return {
        "name": spec.tokenizer,
        "padding": padding_id(tokenizer),
        "unknown": unknown_id(tokenizer),
        "sha256": hashlib.sha256(fast.to_str().encode()).hexdigest() if fast is not None else None,
    }


def id_count(tokenizer: Tokenizer) -> int:
    """Return one more than the largest id, or the number of entries if that is more: ids may have gaps."""
    return max(len(tokenizer), 1 + max(tokenizer.get_vocab().values()))


def padding_id(tokenizer: Tokenizer) -> int:
    """Return the tokenizer's padding, or 0 if it has none: nothing beyond a sequence's length is read."""
    return 0 if tokenizer.pad_token_id is None else tokenizer.pad_token_id


def unknown_id(tokenizer: Tokenizer) -> int:
    """Return the tokenizer's id of unknown tokens, or that of its padding if it has none."""
    return padding_id(tokenizer) if tokenizer.unk_token_id is None else tokenizer.unk_token_id


def encode(tokenizer: Tokenizer, texts: Sequence[str], context: int) -> tuple[Tensor, Tensor]:
    """Return tokens (N, context) int64 padded on the right, and their lengths (N,) int64, at least 1.

    Longer texts lose tokens on the tokenizer's truncation side; a text without tokens becomes one [UNK].
    """
    rows = tokenizer(
        list(texts),
        add_special_tokens=False,
        truncation=True,
        max_length=context,
        return_attention_mask=False,
        return_token_type_ids=False,
    )["input_ids"]
    rows = [row or [unknown_id(tokenizer)] for row in rows]
    tokens = torch.full((len(rows), context), padding_id(tokenizer), dtype=torch.int64)
    for index, row in enumerate(rows):
        tokens[index, : len(row)] = torch.tensor(row)
    return tokens, torch.tensor([len(row) for row in rows])
