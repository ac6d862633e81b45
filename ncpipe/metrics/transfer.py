"""Few-shot errors on classes that the network was not trained on, in float64 [K23 sec. 4.3].

N  samples    t  target classes    n  shots of each    d  feature width
"""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ncpipe.metrics.collapse import cdnv
from ncpipe.metrics.statistics import class_statistics
from ncpipe.system.randomness import seeded_generator


def transfer_metrics(
    features: Tensor,
    labels: Tensor,
    shots: Sequence[int],
    episodes: int,
    heads: Sequence[str],
    ridge: float | None,
    seed: int,
) -> Iterator[tuple[str, float]]:
    """Yield mean few-shot errors of each head, and their bound; features (N, d), labels (N,) in 0..t-1.

    An episode draws n samples of every class, without replacement; a head learns from them, and its error is
    over all others, each class weighing the same. All heads see the same episodes. NaN of NaN features.
    """
    classes = int(labels.max()) + 1
    rows = features.double()
    finite = bool(rows.isfinite().all())
    for count in shots:
        errors: dict[str, list[float]] = {head: [] for head in heads}
        generator = seeded_generator(seed, f"transfer episodes {count}")
        for _ in range(episodes if finite else 0):
            chosen = draw_shots(labels, classes, count, generator)
            others = torch.ones(len(labels), dtype=torch.bool)
            others[chosen.flatten()] = False
            for head in heads:
                known = rows[chosen]
                decided = (
                    nearest_shots(known, rows[others])
                    if head == "ncc"
                    else ridge_shots(known, rows[others], ridge or 0.0)
                )
                errors[head].append(balanced_error(decided, labels[others], classes))
        for head, found in errors.items():
            yield f"transfer_{head}_error_{count:03d}", math.fsum(found) / len(found) if found else math.nan
        bound = transfer_bound(rows, labels, classes, count) if finite else math.nan
        yield f"transfer_bound_{count:03d}", bound


def draw_shots(labels: Tensor, classes: int, count: int, generator: torch.Generator) -> Tensor:
    """Return indices (t, n) of n samples of every class."""
    chosen = []
    for label in range(classes):
        members = torch.nonzero(labels == label).flatten()
        chosen.append(members[torch.randperm(len(members), generator=generator)[:count]])
    return torch.stack(chosen)


def nearest_shots(shots: Tensor, rows: Tensor) -> Tensor:
    """Return classes (m,) of rows (m, d) by the nearest mean of shots (t, n, d); ties go to the lowest."""
    return torch.cdist(rows, shots.mean(1), compute_mode="donot_use_mm_for_euclid_dist").argmin(1)


def ridge_shots(shots: Tensor, rows: Tensor, strength: float) -> Tensor:
    """Return classes (m,) of rows (m, d) by ridge regression of one-hot labels on shots (t, n, d).

    A minimises 1/(tn) sum |A (h - c) - (e_y - 1/t)|^2 + strength s |A|^2 over the shots, with c their mean
    and s their mean squared distance from it, so that the features' scale changes nothing. Shots that are all
    one point tell nothing: the lowest class.
    """
    classes, count, width = shots.shape
    known = shots.reshape(-1, width)
    centre = known.mean(0)
    centred = known - centre
    size = centred.square().sum() / len(known)
    if size == 0:
        return torch.zeros(len(rows), dtype=torch.int64)
    targets = torch.eye(classes, dtype=torch.float64).repeat_interleave(count, 0) - 1 / classes
    scale = size.sqrt()
    # The dual: a (tn, tn) system however wide the features are.
    scaled = centred / scale
    gram = scaled @ scaled.T / len(known)
    gram.diagonal().add_(strength)
    dual = torch.linalg.solve(gram, targets) / len(known)
    scores: Tensor = ((rows - centre) / scale) @ (scaled.T @ dual)
    return scores.argmax(1)


def balanced_error(decided: Tensor, labels: Tensor, classes: int) -> float:
    """Return the share of wrong decisions, averaged over classes."""
    wrong = torch.bincount(labels, weights=(decided != labels).double(), minlength=classes)
    return (wrong / torch.bincount(labels, minlength=classes)).mean().item()


def transfer_bound(rows: Tensor, labels: Tensor, classes: int, shots: int) -> float:
    """Return 8 (t-1)(1 + 1/n) CDNV, an upper bound of the expected nearest-shot-mean error; often > 1.

    For any distribution, the samples' own here. With m the means of the shots, a sample h of class i is
    nearer to m_j than to m_i only if h - m_i, or h - m_j less its mean, is at least |mu_i - mu_j|/2 long: two
    inequalities of Chebyshev, averaged over ordered pairs of classes.
    """
    return 8 * (classes - 1) * (1 + 1 / shots) * cdnv(class_statistics(rows, labels, classes))
