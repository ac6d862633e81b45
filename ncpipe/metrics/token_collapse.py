"""Collapse of all tokens of a sample, beside that of the token which it predicts from [Zhang & Papyan 2026].

The variance of all tokens about their class means is that about the means of their samples, plus that of
these means; every sample weighs the same.

N  samples    C  tokens    d  width    m_i  mean of a sample's tokens
"""

import sys
from collections.abc import Iterator

from ncpipe.metrics.collapse import between_trace, ratio, within_trace
from ncpipe.metrics.entry import Metric, families_of, family
from ncpipe.metrics.statistics import ClassStatistics, class_statistics
from ncpipe.system.errors import InputError
from ncpipe.system.lazy_torch import Tensor, torch

ZP26 = "ZP26, formula ours"
WHERE = "every, both; of sequences that one token predicts"


@family(
    Metric(
        "nc1_tokens_of_sample", "NC1", "0", "variance of a sample's tokens over that between classes",
        "mean_i mean_c ‖h_ic − m_i‖² / tr Σ_B, Σ_B of the means m_i of a sample's tokens", "[0, ∞]", ZP26,
        WHERE, order=2, rounding="features", label="NC1 of tokens",
    ),
    Metric(
        "nc1_tokens_of_class", "NC1", "0", "variance of a class's tokens over that between classes",
        "(mean_i mean_c ‖h_ic − m_i‖² + tr Σ_W) / tr Σ_B, both of m_i", "[0, ∞]", ZP26, WHERE, order=2,
        rounding="features", label="NC1 of a class's tokens",
    ),
)  # fmt: skip
def token_collapse(statistics: ClassStatistics, spreads: Tensor) -> tuple[float, float]:
    """Return both of the classes of m_i, and of the mean squared distance (N,) of a sample's tokens from m_i.

    inf where the means of two classes or more all coincide.
    """
    statistics = statistics.in_unit(0)
    spread, between = spreads.mean(), between_trace(statistics)
    return ratio(spread, between), ratio(spread + within_trace(statistics), between)


class TokenMeans:
    """Accumulate the means of samples' tokens, and the mean squared distance of the tokens from them."""

    def __init__(self, classes: int) -> None:
        self._classes = classes
        self._parts: list[tuple[Tensor, Tensor, Tensor]] = []

    def update(self, tokens: Tensor, labels: Tensor, lengths: Tensor | None = None) -> None:
        """Add tokens (B, C, d) with labels (B,); lengths (B,): the first tokens of a sample that are real.

        Raises InputError for values without tokens, and for lengths that are not theirs.
        """
        if tokens.ndim != 3 or 0 in tokens.shape:
            raise InputError(
                f"tokens are {tuple(tokens.shape)}; they must be (samples, tokens, width), none of them 0: "
                "all tokens of a layer, not the one that predicts"
            )
        if lengths is not None and (
            bool((lengths != lengths.round()).any())
            or lengths.shape != labels.shape
            or bool(((lengths < 1) | (lengths > tokens.shape[1])).any())
        ):
            raise InputError(f"lengths: a whole number from 1 to {tokens.shape[1]} for each sample")
        rows = tokens.double()
        real = rows.new_ones(rows.shape[:2])
        if lengths is not None:
            places = torch.arange(rows.shape[1], device=lengths.device)
            real = (places < lengths.unsqueeze(1)).to(rows)
        shares = (real / real.sum(1, keepdim=True)).unsqueeze(2)
        means = (rows * shares).sum(1)
        spreads = ((rows - means.unsqueeze(1)).square() * shares).sum((1, 2))
        self._parts.append((means, spreads, labels))

    def values(self) -> Iterator[tuple[str, float]]:
        """Yield the metrics of all samples so far, as (metric, value)."""
        means, spreads, labels = map(torch.cat, zip(*self._parts, strict=True))
        return FAMILY.values(
            {"statistics": class_statistics(means, labels, self._classes), "spreads": spreads}
        )


(FAMILY,) = families_of((sys.modules[__name__],), ("NC1",))
