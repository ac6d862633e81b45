"""Select the samples and classes to measure: positions of sequences, masks, a subset of the classes.

n  samples of a batch    T  positions    d  width    K  classes of the classifier
"""

import operator
from collections.abc import Sequence
from numbers import Integral
from typing import Any, Literal

import torch
from torch import Tensor

from ncpipe.system.errors import InputError

IGNORE_INDEX = -100  # PyTorch's own default of `ignore_index`
Classes = Literal["all", "present"] | Sequence[int]


def measured_entries(labels: Tensor, ignore_index: int, mask: Tensor | None = None) -> Tensor:
    """Return which entries of labels (n,) or (n, T) are measured, as bool of the same shape.

    An entry is left out where the label is `ignore_index`, or the mask, of the shape of the labels, is 0.
    """
    if not isinstance(ignore_index, Integral):  # NumPy's too
        raise InputError(f"ignore_index: a whole number, not {ignore_index!r}")
    kept = widened(labels) != ignore_index
    if mask is None:
        return kept
    if not isinstance(mask, Tensor):
        raise InputError(f"mask: a tensor of the labels' shape, not {type(mask).__name__}")
    if mask.shape != labels.shape:
        raise InputError(f"mask is {tuple(mask.shape)}; it must have the labels' shape {tuple(labels.shape)}")
    return kept & mask.to(labels.device, torch.bool)


def widened(labels: Tensor) -> Tensor:
    """Return integer labels as int64, because shorter types wrap: -100 is 156 in uint8."""
    return labels if labels.is_floating_point() else labels.long()


def select_classes(classes: Classes, total: int) -> Tensor:
    """Return the numbers (K',) of the classes to measure, ascending; K' of K = `total`.

    classes: `all`, or a list of numbers; `present_classes` has those that occur. Raises InputError for
    numbers outside 0..K-1, numbers that are listed twice, and fewer than two classes.
    """
    if isinstance(classes, str) and classes == "all":
        return torch.arange(total, device="cpu")
    given: Any = classes
    try:
        numbers = [operator.index(number) for number in given]
        if any(isinstance(number, bool) for number in given):
            raise TypeError  # a mask
    except TypeError:  # of letters too
        raise InputError(
            f"classes: {classes!r} is unknown; take 'all', 'present' or a list of numbers"
        ) from None
    if len(set(numbers)) < len(numbers):
        raise InputError("classes: a number is listed twice; list each once")
    chosen = torch.tensor(sorted(numbers), dtype=torch.int64, device="cpu")
    check_range(chosen, total)
    return _at_least_two(chosen)


def present_classes(counts: Tensor) -> Tensor:
    """Return the numbers (K',) of the classes with samples, of counts (K,); InputError for fewer than two."""
    return _at_least_two(torch.nonzero(counts.cpu()).flatten())


def _at_least_two(chosen: Tensor) -> Tensor:
    if len(chosen) < 2:
        raise InputError(f"classes: {len(chosen)} of them to measure; the metrics compare at least two")
    return chosen


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
