"""Compute curves of K23's models without networks: closed forms as lines, numerical results as points.

Each function yields rows (panel, series, how, x, y): how is `closed` for a formula, `found` for an integrated
flow or a numerical minimum. `papers.k23.figures` draws them. float64; K classes of n samples.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Literal, NamedTuple, get_args

import numpy as np

from ncpipe.papers.k23 import batch_norm, feature_models, flow_models, imbalance, supcon, two_linear
from ncpipe.papers.k23.flows import central_path, features_model, locally_elastic
from ncpipe.papers.k23.flows.features_model import Flow, integrate, random_start

K, N, WIDTH = 3, 4, 6  # of the flows' examples
How = Literal["closed", "found"]


class Point(NamedTuple):
    """One row of the curves' table."""

    panel: str
    series: str
    how: How
    x: float
    y: float


def along(
    panel: str, series: str, how: How, places: Iterable[float], value: Callable[[float], float]
) -> Iterator[Point]:
    """Yield a point at each place x, with y = value(x)."""
    for x in places:
        yield Point(panel, series, how, float(x), value(float(x)))


def strong_collapse() -> Iterator[Point]:
    """Yield the three distances [eq. 17] of the squared error's flow at rest, by size of the start (M2)."""
    flow = Flow("se", K, N, 0.0, 0.0, bias=True)
    for size in np.geomspace(0.003, 1.0, 8):
        end = flow_models.rest_point(flow, WIDTH, float(size), 0)
        for name, error in zip(("A", "F", "b"), features_model.snc_errors(flow, end), strict=True):
            yield Point("strong_collapse", name, "found", float(size), error)


def subspace() -> Iterator[Point]:
    """Yield s(t) on S by its formula and from all matrices (M1); MSE takes N times as long (M3)."""
    flows: tuple[tuple[Literal["se", "mse"], int], ...] = (("se", 1), ("mse", K * N))
    for loss, slow in flows:
        for time in np.linspace(0.0, 4.0, 41)[1:]:
            value = flow_models.scale(loss, K, N, 0.01, float(time) * slow)
            yield Point("subspace", loss, "closed", float(time), value)
        for time in np.linspace(0.0, 4.0, 9)[1:]:
            value = flow_models.scale_numerical(loss, K, N, 0.01, float(time) * slow)
            yield Point("subspace", loss, "found", float(time), value)


def cross_entropy() -> Iterator[Point]:
    """Yield margin over its bound and NC1 under cross-entropy's flow, without (M4) and with decay (M5)."""
    times = [float(time) for time in np.geomspace(1.0, 1e8, 25)]
    for decay in (0.0, 0.01):
        flow = Flow("ce", K, N, decay, decay, bias=False)
        series = f"{decay:g}"
        for time, state in zip(times, integrate(flow, random_start(flow, WIDTH, 1.0, 0), times), strict=True):
            within, between = features_model.traces(flow, state)
            yield Point("margin", series, "found", time, features_model.margin_share(flow, state))
            if within > 1e-20 * between:
                yield Point("nc1", series, "found", time, within / between)


def along_central_path() -> Iterator[Point]:
    """Yield NC1 ~ 1/omega^2 under both flows that keep Sigma_W = I (M6)."""
    for kind in get_args(central_path.Kind):
        for time in np.geomspace(1.0, 1e6, 25):
            omega = central_path.signal_at(1.0, float(time), 10, 5, kind)
            yield Point("central_path", kind, "closed", float(time), omega**-2)


def locally_elastic_means() -> Iterator[Point]:
    """Yield the distance from an ETF of locally elastic class means for beta < 0 and beta > 0 (M7)."""
    times = [5.0 * step for step in range(13)]
    for other in (-0.6, -0.3, 0.3):
        errors = [flow_models.etf_error(4, 1.0, other, time) for time in times]
        for time, error in zip(times, errors, strict=True):
            yield Point("etf", f"{other:g}", "found", time, error)
        if other < 0:
            rate = locally_elastic.etf_slope(4, 1.0, other)
            for time in times[6:]:
                value = errors[-1] * math.exp(rate * (time - times[-1]))
                yield Point("etf", f"{other:g}", "closed", time, value)


def separability() -> Iterator[Point]:
    """Yield log(|f_i - f_j|/sqrt(t)) for impacts c/t^r (M8)."""
    for power, strength in ((0.5, 0.5), (1.0, 2.6), (1.0, 2.4), (1.5, 9.0)):
        closed = partial(locally_elastic.log_separation, 5, strength, power)
        series = f"{power:g} {strength:g}"
        yield from along("separability", series, "closed", np.geomspace(1.0, 1e8, 33), closed)


def minorities() -> Iterator[Point]:
    """Yield the contrast of minority rows by imbalance, with R* (M9), and under a fixed ETF (M10)."""
    for decay in (0.02, 0.03, 0.05):
        for ratio in np.geomspace(1.0, 12.0, 10):
            value = feature_models.minority_contrast(2, 3, 4, float(ratio), decay)
            yield Point("minorities", f"{decay:g}", "found", float(ratio), value)
        edge = imbalance.largest_ratio(2, 3, 4, decay)
        yield Point("minorities", f"{decay:g}", "closed", edge, 0.0)
    for ratio in np.geomspace(1.0, 100.0, 7):
        error = feature_models.fixed_etf_collapse(4, float(ratio), 0.01, 1.5)
        yield Point("fixed_etf", "", "found", float(ratio), error)


def balance() -> Iterator[Point]:
    """Yield |A^T A - F F^T| under decay, relative to its start: exp(-2 lambda t) (M5)."""
    for decay in (0.01, 0.05):
        closed = partial(flow_models.balance_left, "ce", decay, K, N, WIDTH)
        numerical = partial(flow_models.balance_left_numerical, "ce", decay, K, N, WIDTH)
        yield from along("balance", f"{decay:g}", "closed", np.linspace(1.0, 100.0, 34), closed)
        yield from along("balance", f"{decay:g}", "found", (10.0, 40.0, 70.0, 100.0), numerical)


def two_layers() -> Iterator[Point]:
    """Yield z against c of two linear layers (M12)."""
    numerical = feature_models.two_linear_logit_numerical
    yield from along("two_linear", "z", "closed", np.linspace(0.005, 0.6, 120), two_linear.best_logit)
    yield from along("two_linear", "z", "found", np.linspace(0.03, 0.6, 12), numerical)


def contrast() -> Iterator[Point]:
    """Yield the least supervised contrastive loss against the temperature (M11)."""
    for include_self in (True, False):
        series = "with i itself" if include_self else "without"
        closed = partial(supcon.supcon_optimum, 3, 3, include_self=include_self)
        numerical = partial(feature_models.supcon_value_numerical, 3, 3, include_self=include_self)
        yield from along("supcon", series, "closed", np.geomspace(0.05, 2.0, 40), closed)
        yield from along("supcon", series, "found", np.geomspace(0.2, 2.0, 5), numerical)


def batch_normalised() -> Iterator[Point]:
    """Yield the least loss behind batch normalisation and ReLU against decay (M13)."""
    closed = partial(batch_norm.optimal_value, 3, 4)
    numerical = partial(feature_models.batch_norm_value_numerical, 3, 4)
    yield from along("batch_norm", "", "closed", np.linspace(0.02, 3.0, 60), closed)
    yield from along("batch_norm", "", "found", (0.2, 0.8, 1.4, 2.4), numerical)


def narrow() -> Iterator[Point]:
    """Yield sorted cosines between features of half the width: -1 and 0, an orthoplex (M14)."""
    for classes in (4, 6, 8):
        cosines = feature_models.narrow_cosines(classes, 2, 0.01)
        for rank, cosine in enumerate(np.sort(cosines)):
            yield Point("narrow", f"{classes}", "found", rank / (len(cosines) - 1), float(cosine))


def smoothed() -> Iterator[Point]:
    """Yield the least cross-entropy with smoothed labels against the smoothing (ours)."""
    closed = partial(feature_models.smoothing_value, "ce", 4, 3, 0.02)
    numerical = partial(feature_models.smoothing_value_numerical, "ce", 4, 3, 0.02)
    yield from along("smoothing", "", "closed", np.linspace(0.0, 0.95, 39), closed)
    yield from along("smoothing", "", "found", (0.0, 0.2, 0.4, 0.6), numerical)


CURVES: tuple[Callable[[], Iterator[Point]], ...] = (
    subspace,
    strong_collapse,
    cross_entropy,
    balance,
    along_central_path,
    locally_elastic_means,
    separability,
    minorities,
    contrast,
    two_layers,
    batch_normalised,
    narrow,
    smoothed,
)
