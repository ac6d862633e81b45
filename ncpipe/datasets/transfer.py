"""Split a balanced draw into the classes that a network is trained on and those of the transfer task.

N  samples    K  classes of the data
"""

from collections.abc import Sequence
from dataclasses import asdict, replace

import torch
from torch import Tensor

from ncpipe.config.transfer_specs import Transfer
from ncpipe.datasets.facts import counted
from ncpipe.datasets.prepared import Prepared, Split
from ncpipe.system.errors import InputError


def split_for_transfer(data: Prepared, transfer: Transfer, other: Prepared | None) -> Prepared:
    """Return the data with the source classes alone, renumbered in their order, and target samples.

    Target samples are those of the target classes in both splits of the data, which the network then never
    sees, or in the training split of `other`, resized. Inputs keep the values that the whole draw gave them.
    Raises InputError that names the key where a class is missing or has no sample left to try.
    """
    _check_classes("source", transfer.trained, data)
    train = _of_classes(data.train, transfer.trained)
    test = None if data.test is None else _of_classes(data.test, transfer.trained)
    if other is None:
        pool = _all_samples(data)
    else:
        pool = resized("data.transfer.data", other.train, data.train.inputs)
    _check_classes("target", transfer.target, data if other is None else other)
    target = _of_classes(pool, transfer.target)
    counts = torch.bincount(target.labels, minlength=len(transfer.target))
    fewest = int(counts.argmin())
    if int(counts[fewest]) <= max(transfer.shots):
        raise InputError(
            f"data.transfer.shots: {max(transfer.shots)} leave no sample to try of class "
            f"{transfer.target[fewest]}, which has {int(counts[fewest])}; take fewer, or raise "
            f"data.{'per_class' if other is None else 'transfer.data.per_class'}"
        )
    classes = len(transfer.trained)
    facts = {**data.facts, **counted(classes, train, test)}
    record = {**asdict(transfer), "counts": counts.tolist()}
    if other is not None:
        record["facts"] = {key: other.facts[key] for key in ("source", "seed", "raw", "normalisation")}
    facts["transfer"] = record
    return replace(data, classes=classes, train=train, test=test, facts=facts, target=target)


def _check_classes(key: str, wanted: Sequence[int], data: Prepared) -> None:
    for label in wanted:
        if label >= data.classes:
            raise InputError(
                f"data.transfer.{key}: class {label} is missing; there are 0 to {data.classes - 1}"
            )


def _of_classes(split: Split, classes: Sequence[int]) -> Split:
    """Return the samples of some classes, in their order, labelled by the class's place among them."""
    place = torch.full((max(int(split.labels.max()), *classes) + 1,), -1, dtype=torch.int64)
    place[torch.tensor(classes)] = torch.arange(len(classes))
    labels = place[split.labels]
    samples = split[labels >= 0]
    return Split(samples.inputs, labels[labels >= 0], samples.lengths)


def _all_samples(data: Prepared) -> Split:
    splits = [split for _, split in data.splits()]
    lengths = [split.lengths for split in splits if split.lengths is not None]
    return Split(
        torch.cat([split.inputs for split in splits]),
        torch.cat([split.labels for split in splits]),
        torch.cat(lengths) if lengths else None,
    )


def resized(key: str, split: Split, like: Tensor) -> Split:
    """Resize images (N, channels, height, width) to the size of `like`, bilinear, smoothed first.

    Raises InputError that begins with the key if the channels differ.
    """
    if split.inputs.shape[1] != like.shape[1]:
        raise InputError(
            f"{key}: has images of {split.inputs.shape[1]} channels, the network reads "
            f"{like.shape[1]}; take a set with as many"
        )
    size = like.shape[2:]
    if split.inputs.shape[2:] == size:
        return split
    resized = torch.nn.functional.interpolate(
        split.inputs.double(), size=list(size), mode="bilinear", antialias=True, align_corners=False
    )
    return Split(resized.float(), split.labels)
