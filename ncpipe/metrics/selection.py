"""Select the samples and classes to measure: positions of sequences, masks, a subset of the classes.

n  samples of a batch    T  positions    d  width    K  classes of the classifier
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import torch
from torch import Tensor

from ncpipe.system.errors import InputError

IGNORE_INDEX = -100  # PyTorch's own default of `ignore_index`
Classes = Literal["all", "present"] | Sequence[int]


def measured_entries(labels: Tensor, ignore_index: int, mask: Tensor | None = None) -> Tensor:
    """Return which entries of labels (n,) or (n, T) are measured, as bool of the same shape.

    An entry is left out where the label is `ignore_index`, or the mask, of the shape of the labels, is 0.
    """
    kept = widened(labels) != ignore_index
    if mask is None:
        return kept
    if mask.shape != labels.shape:
        raise InputError(f"mask is {tuple(mask.shape)}; it must have the labels' shape {tuple(labels.shape)}")
    return kept & mask.to(labels.device, torch.bool)


def widened(labels: Tensor) -> Tensor:
    """Return integer labels as int64, because shorter types wrap: -100 is 156 in uint8."""
    return labels if labels.is_floating_point() else labels.long()


def select_classes(classes: Classes, total: int, batches: Callable[[], Iterable[Tensor]]) -> Tensor:
    """Return the numbers (K',) of the classes to measure, ascending; K' of K = `total`.

    classes: `all`; `present`, those that occur; or a list of numbers. batches(): the measured labels (m,), a
    batch at a time, which only `present` reads. Raises InputError for numbers outside 0..K-1, numbers that
    are listed twice, and fewer than two classes.
    """
    if isinstance(classes, str) and classes == "all":
        return torch.arange(total, device="cpu")
    if isinstance(classes, str) and classes != "present":
        raise InputError(f"classes: {classes!r} is unknown; take 'all', 'present' or a list of numbers")
    if isinstance(classes, str):
        counts = torch.zeros(total, dtype=torch.int64, device="cpu")
        for labels in batches():
            labels = labels.cpu().long()
            check_range(labels, total)
            counts += torch.bincount(labels, minlength=total)
        found = torch.nonzero(counts).flatten()
    else:
        listed = [int(each) for each in classes]
        if len(set(listed)) < len(listed):
            raise InputError("classes: a number is listed twice; list each once")
        found = torch.tensor(sorted(listed), dtype=torch.int64, device="cpu")
        check_range(found, total)
    if len(found) < 2:
        raise InputError(f"classes: {len(found)} of them to measure; the metrics compare at least two")
    return found


def renumber(labels: Tensor, chosen: Tensor, total: int) -> Tensor:
    """Return the index of each label (m,) in `chosen` (K',); -1 for a class that is not in it."""
    labels = labels.long()
    check_range(labels, total)
    places = torch.full((total,), -1, dtype=torch.int64, device=labels.device)
    places[chosen.to(labels.device)] = torch.arange(len(chosen), device=labels.device)
    return places[labels]


def check_range(labels: Tensor, total: int) -> None:
    """Raise InputError unless all labels are in 0..total-1."""
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < total:
        wrong = labels[(labels < 0) | (labels >= total)][0]
        raise InputError(f"label {int(wrong)} is not in 0..{total - 1}, the classifier's classes")
