"""What is recorded about every prepared data set, whatever its source."""

import hashlib
from collections.abc import Iterator, Mapping

import torch

from ncpipe.datasets.prepared import Split


def describe(
    source: str, classes: int, seed: int | None, train: Split, test: Split | None, raw: Mapping[str, str]
) -> dict[str, object]:
    """Return the facts common to all sources.

    raw: checksum of each official file, as `algorithm:digest`. counts: samples of each class;
    where the targets are vectors `samples` of each split stand in their place.
    S25 Assumption 4.4 wants every input once and with one label: `duplicates` says how far it holds.
    shared: what the test split has in common with the training split; of no test split there are no facts.
    """
    return {
        "source": source,
        "seed": seed,
        "raw": dict(raw),
        **counted(classes, train, test),
    }


def counted(classes: int, train: Split, test: Split | None) -> dict[str, object]:
    """Return the part of `describe` that is about the samples."""
    splits = {"train": train} if test is None else {"train": train, "test": test}
    shared = {} if test is None else {"shared": count_shared(train, test)}
    counts = {
        name: len(split) if split.row else torch.bincount(split.labels, minlength=classes).tolist()
        for name, split in splits.items()
    }
    return {"samples" if train.row else "counts": counts, "duplicates": count_duplicates(train), **shared}


def count_duplicates(split: Split) -> dict[str, int]:
    """Count how often inputs repeat within a split; two inputs are equal if all their bytes are.

    repeated: samples whose input came before (N minus the distinct inputs). conflicting: distinct inputs
    that occur with more than one label.
    """
    labels_of = _labels_of_inputs(split)
    return {
        "repeated": len(split) - len(labels_of),
        "conflicting": sum(len(labels) > 1 for labels in labels_of.values()),
    }


def count_shared(train: Split, test: Split) -> dict[str, int]:
    """Count test samples with an input of the training split; of text, the context it was cut to counts.

    samples: all of them. conflicting: those whose label that input has nowhere in the training split.
    """
    labels_of = _labels_of_inputs(train)
    pairs = [(label, labels_of[key]) for key, label in _keys(test) if key in labels_of]
    return {"samples": len(pairs), "conflicting": sum(label not in labels for label, labels in pairs)}


def _labels_of_inputs(split: Split) -> dict[bytes, set[object]]:
    labels_of: dict[bytes, set[object]] = {}
    for key, label in _keys(split):
        labels_of.setdefault(key, set()).add(label)
    return labels_of


def _keys(split: Split) -> Iterator[tuple[bytes, object]]:
    """Return a digest of its input and the label of each sample."""
    lengths = [0] * len(split) if split.lengths is None else split.lengths.tolist()
    rows = split.inputs.contiguous().numpy()
    labels = [tuple(label) if split.row else label for label in split.labels.tolist()]
    for row, length, label in zip(rows, lengths, labels, strict=True):
        # The length tells a sequence that ends in the padding's id from a shorter one.
        yield hashlib.sha256(row.tobytes() + length.to_bytes(8, "little")).digest(), label
