"""Text as sequences of tokens, each position of which has the next token as its label."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from ncpipe.config.sources.next_tokens import MarkovData, NextTokenData
from ncpipe.datasets.prepared import Prepared, TokenSplit
from ncpipe.system.errors import InputError
from ncpipe.system.randomness import seeded_generator


def prepare_text(spec: NextTokenData, raw: Path, mirror: Path | None, progress: bool) -> Prepared:
    """Draw windows (N, context) of the text's byte pairs without overlap; rare tokens become one.

    InputError names the key or the file at fault.
    """
    from ncpipe.datasets.byte_pairs import train_byte_pairs  # slow to import

    texts, checksums = _texts(spec, raw, mirror, progress)
    encoder = train_byte_pairs(texts, spec.vocabulary, progress)
    tokens = torch.tensor([token for part in encoder.encode_batch(texts) for token in part.ids])
    length, sequences = spec.context + 1, spec.sequences + spec.test_sequences
    windows = tokens[: len(tokens) // length * length].view(-1, length)
    if len(windows) < sequences:
        raise InputError(
            f"data.sequences, data.test_sequences: {sequences} sequences of {length} tokens are asked for, "
            f"and the text of {len(tokens)} tokens has {len(windows)}; lower them or context"
        )
    order = torch.randperm(len(windows), generator=seeded_generator(spec.seed, "data sequences"))[:sequences]
    numbers, rare = common_tokens(windows[order], spec.sequences, spec.vocabulary, spec.min_per_class)
    drawn = numbers[windows[order]]
    classes = int(numbers.max()) + 1
    train, test = (
        TokenSplit(part[:, :-1].contiguous(), part[:, 1:].contiguous())
        for part in drawn.split([spec.sequences, spec.test_sequences])
    )
    return next_token_data(spec, classes, train, test, checksums, rare=rare)


def common_tokens(windows: Tensor, train: int, vocabulary: int, least: int) -> tuple[Tensor, int]:
    """Return new numbers (V,) of tokens, 0 for all that are not common, and how many of these occur.

    windows: (N, C + 1), of which the first `train` are training sequences. Common is what is the next token
    at least `least` times in each split; the rarest of them join the others until these are common too.
    """
    counts = torch.stack(
        [
            torch.bincount(part[:, 1:].flatten(), minlength=vocabulary)
            for part in (windows[:train], windows[train:])
        ]
    )
    common = (counts >= least).all(0)
    used = torch.bincount(windows.flatten(), minlength=vocabulary) > 0
    fewest = torch.where(common, counts.amin(0), torch.iinfo(torch.int64).max)
    rarest = iter(torch.argsort(fewest, stable=True))
    while bool((used & ~common).any()) and bool((counts[:, ~common].sum(1) < least).any()):
        common[next(rarest)] = False
        if int(common.sum()) < 2:
            raise InputError(f"data.min_per_class: fewer than two tokens occur {least} times; lower it")
    shared = int(bool((used & ~common).any()))
    numbers = torch.zeros(vocabulary, dtype=torch.int64)
    numbers[common] = torch.arange(shared, shared + int(common.sum()))
    return numbers, int((used & ~common).sum())


def next_token_data(
    spec: NextTokenData | MarkovData,
    classes: int,
    train: TokenSplit,
    test: TokenSplit,
    raw: Mapping[str, str],
    **more: float,
) -> Prepared:
    """Return a data set with its facts and `more` of them; counts: positions of each class.

    Raises InputError that names a token which never is the next one, and the keys to change.
    """
    counts = {}
    for name, split in (("train", train), ("test", test)):
        of_split = torch.bincount(split.targets, minlength=classes)
        if len(missing := torch.nonzero(of_split == 0)):
            raise InputError(
                f"data: token {int(missing[0])} of {classes} never follows another in the {name} split; make "
                "sequences or test_sequences larger, or the vocabulary smaller"
            )
        counts[name] = of_split.tolist()
    facts = {"source": spec.source, "seed": spec.seed, "raw": dict(raw), "counts": counts, **more}
    return Prepared("next_tokens", classes, classes, train, test, facts)


def _texts(
    spec: NextTokenData, raw: Path, mirror: Path | None, progress: bool
) -> tuple[list[str], dict[str, str]]:
    """Return the documents, and a checksum of what they come from."""
    if spec.file is None:
        from ncpipe.datasets.imdb import read_training_reviews

        return read_training_reviews(raw, mirror, progress)
    path = Path(spec.file)
    try:
        content = path.read_bytes()
        text = content.decode("utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); correct data.file") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: no text in UTF-8 (byte {error.start}); convert it") from None
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise InputError(f"{path}: holds no text; correct data.file")
    return lines, {path.name: f"sha256:{hashlib.sha256(content).hexdigest()}"}
