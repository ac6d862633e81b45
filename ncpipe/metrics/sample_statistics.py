"""Accumulate, in float64, what needs single samples and final class means, in a second pass over a split.

B  samples of a batch    b  samples of a chunk of it    K  classes    d  feature width
"""

from __future__ import annotations

from dataclasses import dataclass

from ncpipe.metrics.geometry import unit_rows
from ncpipe.metrics.nearest import LargestLogits, NearestMeans
from ncpipe.metrics.powers_of_two import largest_entry, row_scales, size_exponent, times_two_to, unit_exponent
from ncpipe.metrics.statistics import ClassStatistics, check_batch, chunks
from ncpipe.system.errors import InputError
from ncpipe.system.lazy_torch import Tensor, torch

FAR = 2.0**20
# Lengths whose squares, and those of 1e-16 of them, float64 holds.
SHORTEST, LONGEST = 2.0**-400, 2.0**500


@dataclass(frozen=True)
class SampleStatistics:
    """Hold counts, sums and margins of one split's samples about class means and the classifier's rows.

    samples () : N. within (): sum of |h - mu_y|^2 about the split's own means, in the unit of its
    ClassStatistics. spread (r,): that sum along each of `between_directions`, in units of s_j^2. wrong ():
    samples whose nearest train mean is not their class's.
    nearest (): sum of |h - mu|^2 to the nearest train mean, in the unit of `common_exponent`; None on the
    train split.
    mismatched (): samples that classifier and nearest train mean put in different classes; misalignment ():
    sum of 1 - cos(h, W_y); margins (N,): logit margins. All None without a classifier.
    labels, squares, cosines (N,): where single samples were asked for, their labels, |h - mu_y|^2 in the unit
    of `within`, and 1 - cos(h, W_y) with a classifier; None elsewhere. Counts and labels int64, all else
    float64.
    """

    samples: Tensor
    within: Tensor
    spread: Tensor
    wrong: Tensor
    nearest: Tensor | None = None
    mismatched: Tensor | None = None
    misalignment: Tensor | None = None
    margins: Tensor | None = None
    labels: Tensor | None = None
    squares: Tensor | None = None
    cosines: Tensor | None = None

    def tensors(self) -> dict[str, Tensor]:
        """Return the fields by name, for a file; `SampleStatistics(**tensors)` reads them back."""
        return {name: value for name, value in vars(self).items() if value is not None}


class SampleAccumulator:
    """Accumulate SampleStatistics of batches (B, d) in a second pass.

    statistics: of the same samples. weight (K, d), bias (K,): the classifier on this layer, where there is
    one. train: the train split's, where `statistics` are another's. The margins of all samples are kept (8
    bytes each), because quantiles have no exact running form. spread: whether `nc1_pinv` is asked for, which
    takes the singular vectors of the means. by_sample: whether to keep single samples' parts of NC1 and NC3
    (24 bytes each).
    """

    def __init__(
        self,
        statistics: ClassStatistics,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        train: ClassStatistics | None = None,
        spread: bool = True,
        by_sample: bool = False,
    ) -> None:
        check_classifier(statistics.classes, statistics.means.shape[1], weight, bias)
        if train is not None and train.means.shape[1] != statistics.means.shape[1]:
            widths = f"{train.means.shape[1]} and {statistics.means.shape[1]}"
            raise InputError(f"train and test features differ in width: {widths}")
        if train is not None and train.classes != statistics.classes:
            counts = f"{train.classes} and {statistics.classes}"
            raise InputError(f"train and test differ in the number of classes: {counts}; give the same ones")
        device = statistics.means.device
        self._statistics, self._test, self._by_sample = statistics, train is not None, by_sample
        exponent = statistics.exponent if train is None else common_exponent(statistics, train)
        self._change = statistics.exponent - exponent  # from the own means' unit to that of the train means
        about = statistics if train is None else train.to(device)
        self._about = NearestMeans(about.in_unit(exponent), statistics.in_unit(exponent))
        self._directions: Tensor | None = None  # of the classifier's rows
        # |h - mu_k|^2/2 less what all k share, and below it the logits, as one product with h - centre.
        rows, offsets = [-self._about.centred], [self._about.centred.square().sum(1) / 2]
        if weight is not None:
            weight = weight.to(device, torch.float64)
            self._directions = unit_rows(weight)
            added = weight.new_zeros(statistics.classes) if bias is None else bias.to(weight)
            self._logit_exponent, scaled, added = _logits_in_range(weight, added, exponent)
            away = torch.linalg.vector_norm(self._about.centre)
            self._largest = LargestLogits(scaled, added, self._about.reach + away)
            # Of samples far smaller than where they are taken from, nothing would be left.
            self._direct = bool(away > FAR * self._about.longest)
            rows.append(scaled)
            offsets.append(scaled @ self._about.centre + added)
        self._rows, self._offsets = torch.cat(rows), torch.cat(offsets).unsqueeze(1)
        self._whitener = statistics.means.new_empty(0, statistics.means.shape[1])
        if spread:
            singular, directions = statistics.between_directions
            self._whitener = directions / singular.unsqueeze(1)
        self.start()

    def start(self) -> None:
        """Forget all samples but keep the means."""
        device = self._statistics.means.device
        self._counts = torch.zeros(3, dtype=torch.int64, device=device)  # samples, wrong, mismatched
        self._sums = torch.zeros(3, dtype=torch.float64, device=device)  # within, nearest, misalignment
        self._spread = torch.zeros(len(self._whitener), dtype=torch.float64, device=device)
        self._margins = [torch.zeros(0, dtype=torch.float64, device=device)]
        self._samples: dict[str, list[Tensor]] = {}  # of single samples, by field

    def update(self, features: Tensor, labels: Tensor) -> None:
        """Add features (B, d) of any float type with labels (B,) in 0..K-1; raises InputError on others."""
        means, exponent = self._statistics.means, self._statistics.exponent
        check_batch(features, labels, *means.shape)
        for chunk in chunks(features, labels, len(means), means.device, exponent):
            self._add(*chunk)

    def result(self) -> SampleStatistics:
        """Return counts, sums and margins of all samples so far."""
        samples, wrong, mismatched = self._counts.clone().unbind()
        within, nearest, misalignment = self._sums.clone().unbind()
        fields = {"nearest": nearest} if self._test else {}
        if self._directions is not None:
            margins = times_two_to(torch.cat(self._margins), self._logit_exponent)
            fields |= {"mismatched": mismatched, "misalignment": misalignment, "margins": margins}
        fields |= {name: torch.cat(parts) for name, parts in self._samples.items()}
        return SampleStatistics(samples, within, self._spread.clone(), wrong, **fields)

    def _add(self, rows: Tensor, labels: Tensor, buffer: Tensor) -> None:
        """Add rows (b, d) of float64; both (b, d) tensors are overwritten."""
        if self._directions is not None:
            cosines = misalignments(rows, labels, self._directions, buffer)
            self._sums[2] += cosines.sum()
            self._keep_samples("cosines", cosines)
        shared = times_two_to(rows, self._change)  # in the unit of the train means
        torch.sub(shared, self._about.centre, out=buffer)
        # Classes by samples: the product and the search in it are up to twice as fast this way round.
        scores = torch.addmm(self._offsets, self._rows, buffer.T)
        decided = self._about.decide(scores[: self._statistics.classes], shared)
        self._counts[0] += len(labels)
        self._counts[1] += (decided != labels).sum()
        if self._directions is not None:
            logits = self._largest.logits(shared) if self._direct else scores[self._statistics.classes :]
            self._counts[2] += (self._largest.decide(logits, shared) != decided).sum()
            self._margins.append(logit_margins(logits, labels))
        if self._test:
            torch.index_select(self._about.means, 0, decided, out=buffer)
            self._sums[1] += _squared_norm(torch.sub(shared, buffer, out=buffer))
        rows.sub_(torch.index_select(self._statistics.means, 0, labels, out=buffer))
        self._sums[0] += _squared_norm(rows)
        if self._by_sample:
            self._keep_samples("labels", labels.clone())
            self._keep_samples("squares", torch.linalg.vector_norm(rows, dim=1).square_())
        self._spread += torch.linalg.vector_norm(self._whitener @ rows.T, dim=1).square_()

    def _keep_samples(self, name: str, values: Tensor) -> None:
        if self._by_sample:
            self._samples.setdefault(name, []).append(values)


def logit_margins(logits: Tensor, labels: Tensor) -> Tensor:
    """Return f_y - max_{k != y} f_k (B,) of logits (K, B), which are overwritten.

    Above 0 where a sample is classified correctly.
    """
    places = labels.unsqueeze(0)
    right = logits.gather(0, places).squeeze(0)
    return right - logits.scatter_(0, places, -torch.inf).amax(0)


def misalignments(features: Tensor, labels: Tensor, directions: Tensor, buffer: Tensor) -> Tensor:
    """Return 1 - cos(h, w_y) (B,) of features (B, d) and directions w (K, d); NaN for a zero vector.

    directions: the `unit_rows` of W. Taken as |h - |h| w_y|^2/(2 |h|^2), which keeps its digits near 0.
    buffer (B, d): memory to overwrite.
    """
    lengths = torch.linalg.vector_norm(features, dim=1)
    shortest, longest = torch.aminmax(lengths)
    if not (shortest > SHORTEST and longest < LONGEST):
        features = features / row_scales(features)
        lengths = torch.linalg.vector_norm(features, dim=1)
    rows = torch.index_select(directions, 0, labels, out=buffer)
    torch.addcmul(features, lengths.unsqueeze(1), rows, value=-1, out=rows)
    return torch.linalg.vector_norm(rows, dim=1).div_(lengths).square_() / 2


def common_exponent(statistics: ClassStatistics, train: ClassStatistics) -> int:
    """Return the exponent of the unit in which a split is compared with the train split: the larger one."""
    return max(statistics.exponent, train.exponent)


def _logits_in_range(weight: Tensor, bias: Tensor, exponent: int) -> tuple[int, Tensor, Tensor]:
    """Return e, and weight (K, d) and bias (K,) from features in 2^exponent to logits in units of 2^e.

    e is 0 unless features, weight or bias are extreme.
    """
    sizes = size_exponent(largest_entry(weight)), size_exponent(largest_entry(bias))
    if not any(unit_exponent(size) for size in (*sizes, exponent)):
        return 0, weight, bias
    unit = max(sizes[0] + exponent, sizes[1]) if bias.any() else sizes[0] + exponent
    return unit, times_two_to(weight, exponent - unit), times_two_to(bias, -unit)


def _squared_norm(rows: Tensor) -> Tensor:
    """Return the sum of |row|^2 () of contiguous rows (b, d)."""
    return torch.dot(rows.view(-1), rows.view(-1))


def check_classifier(classes: int, width: int, weight: Tensor | None, bias: Tensor | None) -> None:
    """Raise InputError unless weight is (classes, width) and bias (classes,), where they are given."""
    if weight is not None and weight.shape != (classes, width):
        shape, hint = tuple(weight.shape), ""
        if len(shape) == 2 and shape[0] == width:  # `classes` may have been counted by its rows
            classes, hint = shape[1], "; transpose it"
        raise InputError(
            f"weight must have a row per output and a column per feature, ({classes}, {width}), "
            f"not {shape}{hint}"
        )
    if bias is not None and weight is None:
        raise InputError("a bias needs a weight; give both or neither")
    if bias is not None and bias.shape != (classes,):
        raise InputError(f"bias must have an entry per output, ({classes},), not {tuple(bias.shape)}")
