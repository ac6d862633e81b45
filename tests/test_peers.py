"""Our metrics beside other packages' on the same features: equal where the definitions are, else by how much.

kowalski (MIT) is in the dependency group `peers`. neural_collapse (MIT) is not on the package index:
pip install git+https://github.com/rhubarbwu/neural-collapse. docs/metrics.md says why the rest differs.
"""

import importlib
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from ncpipe.metrics.table import measure

pytestmark = [
    pytest.mark.peers,
    # Theirs, while they are imported.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::SyntaxWarning"),
]

K, D = 5, 12
DIFFERENT = 0.01  # relative: too far apart for rounding
COUNTS = {"balanced": [20] * K, "unbalanced": [10, 20, 30, 25, 15]}


def peer(name: str) -> ModuleType:
    return importlib.import_module(pytest.importorskip(name, exc_type=ImportError).__name__)


@pytest.fixture(params=list(COUNTS))
def counts(request: pytest.FixtureRequest) -> list[int]:
    return COUNTS[request.param]


def layer(counts: list[int], noise: float = 0.4) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Features (N, D), labels (N,), weight (K, D), bias (K,) in float64; means far from 0."""
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(K).repeat_interleave(torch.tensor(counts))
    lengths = torch.linspace(0.5, 2, K, dtype=torch.float64).unsqueeze(1)
    means = lengths * torch.randn(K, D, generator=draw, dtype=torch.float64) + 3
    features = means[labels] + noise * torch.randn(len(labels), D, generator=draw, dtype=torch.float64)
    weight = means - means.mean(0) + 0.1 * torch.randn(K, D, generator=draw, dtype=torch.float64)
    return features, labels, weight, 3 * torch.randn(K, generator=draw, dtype=torch.float64)


def ours(*arrays: Tensor) -> dict[str, float]:
    return {row.metric: row.value for row in measure(*arrays)}


class Rhubarb:
    """neural_collapse's accumulators in float64, run over one layer."""

    def __init__(self, features: Tensor, labels: Tensor, weight: Tensor) -> None:
        accumulate, self.measure = peer("neural_collapse.accumulate"), peer("neural_collapse.measure")
        double: dict[str, Any] = {"dtype": torch.float64}
        means = accumulate.MeanAccumulator(K, D, **double)
        means.accumulate(features, labels)
        self.means, self.centre = means.compute()
        within = accumulate.CovarAccumulator(K, D, M=self.means, **double)
        within.accumulate(features, labels, self.means)
        variances = accumulate.VarNormAccumulator(K, D, M=self.means, **double)
        variances.accumulate(features, labels, self.means)
        self.decisions = accumulate.DecAccumulator(K, D, M=self.means, W=weight, **double)
        self.decisions.accumulate(features, labels, weight, self.means)
        self.within, self.variances = within.compute(), variances.compute()[0]


def test_rhubarb_agrees_on_both_nc1_and_cdnv(counts: list[int]) -> None:
    features, labels, weight, _ = layer(counts)
    mine, theirs = ours(features, labels), Rhubarb(features, labels, weight)
    ratio = theirs.measure.covariance_ratio
    for metric, kind in (("nc1_pinv", "pinv"), ("nc1_pinv", "svd"), ("nc1_trace_ratio", "quotient")):
        assert ratio(theirs.within, theirs.means, theirs.centre, kind) == pytest.approx(mine[metric], 1e-9)
    grid = theirs.measure.variability_cdnv(theirs.variances, theirs.means)
    assert grid == pytest.approx(mine["cdnv"], 1e-6)  # its grid is float32


def test_rhubarb_leaves_centring_to_the_caller(counts: list[int]) -> None:
    features, labels, weight, _ = layer(counts)
    theirs = Rhubarb(features, labels, weight)
    uncentred = theirs.measure.covariance_ratio(theirs.within, theirs.means)
    assert uncentred != pytest.approx(ours(features, labels)["nc1_pinv"], DIFFERENT)


def test_rhubarb_takes_means_of_their_own_lengths(counts: list[int]) -> None:
    """K23 eq. 7 and 8 normalise every centred mean first; with normalised means it gives our values."""
    features, labels, weight, _ = layer(counts)
    mine, theirs = ours(features, labels, weight), Rhubarb(features, labels, weight)
    centred = theirs.means - theirs.centre
    unit = centred / centred.norm(dim=1, keepdim=True)
    etf, duality = theirs.measure.simplex_etf_error, theirs.measure.self_duality_error
    assert etf(unit) == pytest.approx(mine["nc2_means"], 1e-9)
    assert duality(weight, unit) == pytest.approx(mine["nc3_duality"], 1e-9)
    assert etf(centred) != pytest.approx(mine["nc2_means"], DIFFERENT)
    assert duality(weight, centred) != pytest.approx(mine["nc3_duality"], DIFFERENT)


def test_rhubarb_decides_without_the_bias(counts: list[int]) -> None:
    features, labels, weight, bias = layer(counts)
    theirs = Rhubarb(features, labels, weight)
    mismatch = 1 - theirs.measure.clf_ncc_agreement(theirs.decisions)
    assert mismatch == pytest.approx(ours(features, labels, weight)["nc4_mismatch"], abs=1e-6)
    assert mismatch != pytest.approx(ours(features, labels, weight, bias)["nc4_mismatch"], DIFFERENT)


def test_rhubarb_takes_an_empty_class_for_one_at_the_origin() -> None:
    accumulate = peer("neural_collapse.accumulate")
    features, labels, _, _ = layer(COUNTS["balanced"])
    means = accumulate.MeanAccumulator(K + 1, D, dtype=torch.float64)
    means.accumulate(features, labels)
    assert means.compute()[0][K].norm() == 0


def by_class(features: Tensor, labels: Tensor) -> list[Tensor]:
    return peer("kowalski").to_per_class_list(features, labels)


def test_kowalski_agrees_on_cdnv(counts: list[int]) -> None:
    features, labels, _, _ = layer(counts)
    theirs = peer("kowalski.neural_collapse").class_distance_normalized_variance(by_class(features, labels))
    assert theirs.item() == pytest.approx(ours(features, labels)["cdnv"], 1e-9)


def test_kowalskis_nc2_is_ours_on_another_scale(counts: list[int]) -> None:
    """Both see only the angle t of W W^T and E_K: ours is sin t, its 2 sin(t/2)."""
    *_, weight, _ = layer(counts)
    theirs = peer("kowalski.neural_collapse").classifier_etf_convergence(weight.clone()).item()
    features, labels, _, _ = layer(counts)
    angle = torch.asin(torch.tensor(ours(features, labels, weight)["nc2_etf"], dtype=torch.float64))
    assert theirs == pytest.approx(2 * torch.sin(angle / 2).item(), 1e-6)  # its E_K is float32


def test_kowalskis_nc3_weighs_means_by_length_and_classes_by_count(counts: list[int]) -> None:
    features, labels, weight, _ = layer(counts)
    theirs = peer("kowalski.neural_collapse").self_duality(by_class(features, labels), weight).item()
    means = torch.stack([part.mean(0) for part in by_class(features, labels)])
    gram = weight @ (means - features.mean(0)).T
    target = (torch.eye(K) - 1 / K).double() / (K - 1) ** 0.5
    assert theirs == pytest.approx((gram / gram.norm() - target).norm().item(), 1e-6)
    assert theirs != pytest.approx(ours(features, labels, weight)["nc3_duality"], DIFFERENT)


def test_kowalskis_nc1_divides_by_the_total_scatter_and_never_reaches_0(counts: list[int]) -> None:
    """Each of the d - K + 1 directions without class means adds 1/N, however small the noise."""
    features, labels, _, _ = layer(counts, noise=1e-4)
    theirs = peer("kowalski.neural_collapse").within_class_variability(by_class(features, labels)).item()
    assert ours(features, labels)["nc1_pinv"] < 1e-7
    assert theirs == pytest.approx((D - K + 1) / len(features), 1e-3)
