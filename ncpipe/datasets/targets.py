"""Check targets that are no class a sample: vectors (N, t), and tags (N, K), which classes a sample has."""

import math

import torch
from torch import Tensor

from ncpipe.system.errors import InputError


def check_vectors(targets: Tensor, name: str) -> None:
    """Raise InputError unless targets are floats (N, t), neither of them 0."""
    if not targets.is_floating_point():
        raise InputError(f"{name} are of type {targets.dtype}; expected floats, for integers name classes")
    if targets.ndim != 2 or 0 in targets.shape:
        hint = "; .reshape(-1, 1) makes a column" if targets.ndim == 1 else ""
        raise InputError(f"{name} are {tuple(targets.shape)}; expected (N, t), neither of them 0{hint}")


def check_not_constant(targets: Tensor, name: str) -> None:
    """Raise InputError for a column of vectors (N, t) that is the same in all samples."""
    if len(constant := torch.nonzero((targets == targets[:1]).all(0))):
        raise InputError(
            f"{name} are constant in column {int(constant[0])} (from 0); leave it out, a bias fits it"
        )


def check_tags(tags: Tensor, name: str) -> None:
    """Raise InputError unless tags are (N, K) of 0 and 1, K > 1, and each sample has at least one."""
    if tags.ndim != 2 or not len(tags) or tags.shape[1] < 2:
        hint = "; labels, a number for each sample, are (N,)" if math.prod(tags.shape[1:]) == 1 else ""
        raise InputError(f"{name} has shape {tuple(tags.shape)}; expected (N, K) of 0 and 1, K > 1{hint}")
    if len(wrong := torch.nonzero(((tags != 0) & (tags != 1)).any(1))):
        row = int(wrong[0])
        other = [value for value in tags[row].tolist() if value not in (0, 1)]
        raise InputError(f"{name} has {other[0]:g} in row {row} (from 0); tags are 0 or 1")
    if len(none := torch.nonzero(~tags.bool().any(1))):
        raise InputError(f"{name} has no tag in row {int(none[0])} (from 0); leave the sample out")


def wrong_tags(logits: Tensor, tags: Tensor) -> Tensor:
    """Return which samples (...) have a tag whose logit is not above all others'; logits, tags (..., K)."""
    tagged = tags.bool()
    least = logits.masked_fill(~tagged, torch.inf).amin(-1)
    return ~(least > logits.masked_fill(tagged, -torch.inf).amax(-1))  # true for NaN
