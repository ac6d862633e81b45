"""Ranks and singular values of the weights and of the class means, not centred [S24 sec. 6].

K  classes    d  feature width
"""

from collections.abc import Iterator

from ncpipe.metrics.entry import EVERY, S24, WEIGHTS, Metric, family
from ncpipe.metrics.powers_of_two import times_two_to, unit_of
from ncpipe.metrics.spectrum import effective_rank, numerical_rank, singular_values, stable_rank
from ncpipe.metrics.statistics import ClassStatistics
from ncpipe.system.lazy_torch import Tensor

Spectrum = tuple[float, float, float, list[float]]
KINDS = (
    ("rank", "numerical rank", "singular values s above s_1/1000", "0..min(K, d)", S24),
    ("stable_rank", "stable rank", "Σ s_j²/s_1²", "[1, rank]", ""),
    ("effective_rank", "entropy rank", "exp(−Σ p_j log p_j), p_j = s_j/Σ s,", "[1, rank]", "RV07"),
)


def _entries(matrix: str, name: str, which: str, where: str) -> Iterator[Metric]:
    at = "K-1 or K, at most d"
    for kind, meaning, formula, interval, source in KINDS:
        yield Metric(
            f"{kind}_{matrix}", "rank", at, f"{meaning} of the {name}", f"{formula} of {which}", interval,
            source, scale="linear", where=f"{where}; lower is low-rank bias",
        )  # fmt: skip
    yield Metric(
        f"singular_{matrix}", "singular values", "equal", f"singular value of the {name}",
        f"`singular_{matrix}_001`, …: the singular values of {which}, largest first", "[0, ∞)", S24,
        where=f"{where}; no direction",
    )  # fmt: skip


@family(*_entries("weights", "weights", "W", WEIGHTS))
def weight_spectrum(weight: Tensor) -> Spectrum:
    """Return ranks and singular values of a matrix."""
    unit = unit_of(weight)
    return _spectrum(singular_values(times_two_to(weight.double(), -unit)), unit)


@family(*_entries("means", "class means", "the class means, **not** centred", EVERY))
def means_spectrum(statistics: ClassStatistics) -> Spectrum:
    """Return ranks and singular values of the class means."""
    return _spectrum(statistics.singular, statistics.exponent)


def _spectrum(singular: Tensor, exponent: int) -> Spectrum:
    """Return the same of singular values in units of 2^exponent.

    Ranks are computed before the values return to the unit 1, where subnormal ones would lose their digits.
    """
    ranks = numerical_rank(singular), stable_rank(singular), effective_rank(singular)
    return *ranks, times_two_to(singular, exponent).tolist()
