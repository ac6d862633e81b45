"""What a second pass tells of a layer's samples one by one, when the class means are known, in float64.

B  samples of a batch    b  samples of a chunk of it    K  classes    d  feature width
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ncpipe.errors import InputError
from ncpipe.metrics.collapse import between_directions
from ncpipe.metrics.decisions import logit_margins, misalignments
from ncpipe.metrics.statistics import ClassStatistics, check_batch, chunks


@dataclass(frozen=True)
class SampleStatistics:
    """How one split's samples lie about class means and the classifier's rows: counts, sums, and margins.

    samples () : N. within (): sum of |h - mu_y|^2 about the split's own means. spread (r,): that sum along
    each of `between_directions`, in units of s_j^2. wrong (): samples whose nearest train mean is not their
    class's.
    nearest (): sum of |h - mu|^2 to the nearest train mean; None on the train split.
    mismatched (): samples that classifier and nearest train mean put in different classes; misalignment ():
    sum of 1 - cos(h, W_y); margins (N,): logit margins. All None without a classifier.
    Counts int64, all else float64.
    """

    samples: Tensor
    within: Tensor
    spread: Tensor
    wrong: Tensor
    nearest: Tensor | None = None
    mismatched: Tensor | None = None
    misalignment: Tensor | None = None
    margins: Tensor | None = None

    def tensors(self) -> dict[str, Tensor]:
        """Fields by name, for a file; `SampleStatistics(**tensors)` reads them back."""
        return {name: value for name, value in vars(self).items() if value is not None}


class SampleMeter:
    """SampleStatistics of batches (B, d) in a second pass: no sums over a first pass decide what is nearest.

    own: the same samples' ClassStatistics. weight (K, d), bias (K,): the classifier on this layer, where
    there is one. train: the train split's, where `own` are another's. The margins of all samples are kept
    (8 bytes each), because quantiles have no exact running form.
    """

    def __init__(
        self,
        own: ClassStatistics,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        train: ClassStatistics | None = None,
    ) -> None:
        check_classifier(own.classes, own.means.shape[1], weight, bias)
        device = own.means.device
        self._means, self._train_means = own.means, None if train is None else train.means.to(device)
        means = own.means if self._train_means is None else self._train_means
        # About the mean of the means, where a common offset costs no digits.
        self._centre = means.mean(0)
        centred = means - self._centre
        self._weight = None if weight is None else weight.to(device, torch.float64)
        # |h - mu_k|^2/2 less what all k share, and below it the logits, as one product with h - centre.
        rows, offsets = [-centred], [centred.square().sum(1) / 2]
        if self._weight is not None:
            rows.append(self._weight)
            offsets.append(self._weight @ self._centre + (0 if bias is None else bias.to(self._weight)))
        self._rows, self._offsets = torch.cat(rows), torch.cat(offsets).unsqueeze(1)
        singular, directions = between_directions(own)
        self._whitener = directions / singular.unsqueeze(1)
        self._counts = torch.zeros(3, dtype=torch.int64, device=device)  # samples, wrong, mismatched
        self._sums = torch.zeros(3, dtype=torch.float64, device=device)  # within, nearest, misalignment
        self._spread = torch.zeros(len(singular), dtype=torch.float64, device=device)
        self._margins: list[Tensor] = []

    def update(self, features: Tensor, labels: Tensor) -> None:
        """Add features (B, d) of any float type with labels (B,) in 0..K-1; raises InputError on others."""
        classes, width = self._means.shape
        check_batch(features, labels, classes, width)
        for chunk in chunks(features, labels, classes, self._means.device):
            self._add(*chunk)

    def result(self) -> SampleStatistics:
        """Counts, sums and margins of all samples so far."""
        samples, wrong, mismatched = self._counts.clone().unbind()
        within, nearest, misalignment = self._sums.clone().unbind()
        found = SampleStatistics(samples, within, self._spread.clone(), wrong)
        if self._train_means is not None:
            found = replace(found, nearest=nearest)
        if self._weight is not None:
            margins = torch.cat(self._margins)
            found = replace(found, mismatched=mismatched, misalignment=misalignment, margins=margins)
        return found

    def _add(self, rows: Tensor, labels: Tensor, space: Tensor) -> None:
        """Add rows (b, d) of float64; both (b, d) tensors are written over."""
        if self._weight is not None:
            self._sums[2] += misalignments(rows, labels, self._weight, space).sum()
        torch.sub(rows, self._centre, out=space)
        # Classes by samples: the product and the search in it are up to twice as fast this way round.
        scores = torch.addmm(self._offsets, self._rows, space.T)
        decided = scores[: len(self._means)].min(0).indices
        self._counts[0] += len(labels)
        self._counts[1] += (decided != labels).sum()
        if self._weight is not None:
            logits = scores[len(self._means) :]
            self._counts[2] += (logits.max(0).indices != decided).sum()
            self._margins.append(logit_margins(logits.T, labels))
        if self._train_means is not None:
            torch.index_select(self._train_means, 0, decided, out=space)
            self._sums[1] += _squared_norm(torch.sub(rows, space, out=space))
        rows.sub_(torch.index_select(self._means, 0, labels, out=space))
        self._sums[0] += _squared_norm(rows)
        self._spread += torch.linalg.vector_norm(self._whitener @ rows.T, dim=1).square_()


def _squared_norm(rows: Tensor) -> Tensor:
    """sum of |row|^2 () of contiguous rows (b, d)."""
    return torch.dot(rows.view(-1), rows.view(-1))


def check_classifier(classes: int, width: int, weight: Tensor | None, bias: Tensor | None) -> None:
    """Raise InputError unless weight is (classes, width) and bias (classes,), where they are given."""
    if weight is not None and weight.shape != (classes, width):
        raise InputError(
            f"weight must have a row per class and a column per feature, ({classes}, {width}), "
            f"not {tuple(weight.shape)}"
        )
    if bias is not None and weight is None:
        raise InputError("a bias needs a weight; give both or neither")
    if bias is not None and bias.shape != (classes,):
        raise InputError(f"bias must have an entry per class, ({classes},), not {tuple(bias.shape)}")
