"""Numbers of papers beyond S25, S24 and K23, each against an independent computation."""

import hashlib
import importlib
import math
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from pipeline import ROOT
from scipy.linalg import block_diag
from scipy.special import i0

from ncpipe.config.sources.generated import ModularData
from ncpipe.datasets.generated import prepare_modular
from ncpipe.papers.k23.orthoplex import orthoplex_value
from ncpipe.system.errors import InputError

sys.path.insert(0, str(ROOT / "stages/field"))
class_encodings, codes, heads, imbalance, modular, nc0, paths, regression, shallow = map(
    importlib.import_module,
    ("class_encodings", "codes", "heads", "imbalance", "modular", "nc0", "paths", "regression", "shallow"),
)
sys.path[0] = str(ROOT / "stages/beyond_simplex")
simplices = importlib.import_module("simplices")
sys.path.pop(0)


@pytest.mark.parametrize("bias", [0.01, 0.3, 2.0, 100.0])
def test_the_cosine_of_class_encodings_is_that_of_its_closed_form_and_of_a_descent(bias: float) -> None:
    """Red: a bias that takes another share of the common part."""
    ratio, share = 4 * math.sqrt(5) * 0.02, bias / (1 + bias)
    contrast, common = 1 - ratio, max(1 - ratio / share, 0.0)
    cosine = class_encodings.encoding_cosine(4, 5, 0.02, bias)
    assert cosine == pytest.approx((common - contrast) / (3 * contrast + common), abs=1e-12)
    assert cosine == pytest.approx(class_encodings.encoding_cosine_numerical(4, 5, 0.02, bias), abs=1e-5)


def test_a_decay_that_leaves_no_features_is_one_line() -> None:
    with pytest.raises(InputError, match="give a smaller one"):
        class_encodings.encoding_cosine(4, 5, 0.5, 0.1)


@pytest.mark.parametrize(
    ("name", "build"),
    [
        ("sgd", lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, weight_decay=0.1)),
        ("adam", lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1)),
        ("adamw", lambda p: torch.optim.AdamW(p, lr=0.01, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1)),
    ],
)
def test_descents_are_those_of_torch(name: str, build: object) -> None:
    """Red: decay on the wrong side of Adam's scaling, which is what NC0 is about."""
    path = list(nc0.descend(name, nc0.drawn(4, 3, 6, seed=1), [0.01] * 30, 0.1, 0.9))
    draw = np.random.default_rng(1)
    weight = torch.tensor(draw.standard_normal((4, 6)) / np.sqrt(6), requires_grad=True)
    features = torch.tensor(draw.standard_normal((12, 6)) / np.sqrt(6), requires_grad=True)
    labels = torch.arange(4).repeat_interleave(3)
    optimizer = build([weight, features])
    for _ in range(30):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(features @ weight.T, labels).backward()
        optimizer.step()
    assert path[-1].nc0 == pytest.approx(float(weight.detach().sum(0).square().sum() / 4), rel=1e-9)


def test_nc0_falls_exponentially_and_grows_to_its_limit() -> None:
    assert nc0.nc0_sgd_left(4, 2, 6, 0.3, 0.01, 200, 0) == pytest.approx(
        nc0.nc0_sgd_left_closed(4, 2, 6, 0.3, 0.01, 200, 0), rel=1e-10
    )
    assert nc0.nc0_over_limit(6, 0.1, 0.2, 1000) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("matrices", [2, 3, 5])
def test_the_deep_value_is_the_loss_of_built_matrices(matrices: int) -> None:
    """Red: a factor of L, or of 2, in the cost of depth."""
    value, scale = codes.deep_value(codes.logits_of("orthoplex", 6), matrices, 1e-3)
    left, sizes, right = np.linalg.svd(scale * codes.logits_of("orthoplex", 6))
    root = np.diag(np.where(sizes > 1e-12 * sizes[0], sizes, 0) ** (1 / matrices))
    factors = [root @ right, *[root] * (matrices - 2), left @ root]  # all of one norm
    product = np.linalg.multi_dot(factors[::-1])
    fit = torch.nn.functional.cross_entropy(torch.from_numpy(product), torch.arange(6))
    assert value == pytest.approx(float(fit) + 5e-4 * sum((f**2).sum() for f in factors), rel=1e-6)


def test_seli_of_equal_classes_is_a_simplex() -> None:
    labels = imbalance.simplex_encoded_labels(np.array([2, 2, 2]))
    assert labels.T @ labels == pytest.approx(2 * (np.eye(3) - 1 / 3))
    assert imbalance.seli_distance(4, 1, 0.01) < 1e-4
    assert codes.code_largest_cosine(4, 3, 5.0, 1) == pytest.approx(-1 / 3, abs=1e-7)  # at unit length too


@pytest.mark.parametrize(("classes", "width"), [(5, 2), (4, 3), (6, 4)])
def test_the_margin_of_a_code_is_that_of_programs(classes: int, width: int) -> None:
    margin = simplices.code_margin_numerical(classes, width)
    assert margin == pytest.approx(simplices.code_margin(classes, width), abs=1e-6)


def test_orthogonal_simplices_are_the_least_of_a_descent_where_decay_is_not_small() -> None:
    """Red: classes of one size, and another number of simplices. K = 2d is an orthoplex."""
    assert simplices.simplices_value(6, 4, 0.01) == pytest.approx(
        simplices.simplices_value_numerical(6, 4, 0.01)
    )
    assert simplices.simplices_value(6, 3, 0.01) == pytest.approx(orthoplex_value(6, 1, 0.01), rel=1e-12)
    with pytest.raises(InputError, match="classes: 9, width: 4; orthogonal simplices are d"):
        simplices.simplices_value(9, 4, 0.01)


def test_cold_losses_prefer_pairs_and_hot_ones_even_simplices() -> None:
    """K = 6 in four dimensions: a tetrahedron and a pair against two triangles, by their cosines."""
    pair, triangle, tetrahedron = ((np.eye(n) - 1 / n) * n / (n - 1) for n in (2, 3, 4))
    for scale in (1.0, 2.0):
        cold, even = (
            np.log(np.exp(scale * (cosines - 1)).sum(1)).mean()
            for cosines in (block_diag(tetrahedron, pair), block_diag(triangle, triangle))
        )
        assert simplices.cold_over_even(6, 4, scale) == pytest.approx(cold / even, rel=1e-12)
    assert simplices.cold_over_even(6, 4, 1.0) > 1 > simplices.cold_over_even(6, 4, 2.0)


def test_the_simplex_gains_a_constant_and_the_circle_gains_the_classes() -> None:
    """For K to infinity the gain in cross-entropy is log I_0(s), of a Bessel function."""
    assert modular.entropy_advantage(4000, 1.0) == pytest.approx(math.log(i0(1.0)), rel=2e-3)
    assert modular.norm_advantage(30) == pytest.approx(modular.norm_advantage_numerical(30))


def test_features_that_pay_for_their_transport_are_more_concentrated_than_their_data() -> None:
    assert 0 < paths.anchored_within(2, 3, 3, 1.0, 0.01, 0.1, 0) < 1


def test_pairs_of_modular_addition_are_all_there_once() -> None:
    """Red: a pair in both splits, a wrong sum, or other bytes than those of the published runs."""
    spec = ModularData("modular", 7, 4, 0)
    data = prepare_modular(spec)
    assert data.train.inputs.shape == (28, spec.side) == (28, 14)
    pairs = torch.cat([data.train.inputs, data.test.inputs])
    labels = torch.cat([data.train.labels, data.test.labels])
    assert len(pairs.unique(dim=0)) == 49
    assert torch.equal((pairs[:, :7].argmax(1) + pairs[:, 7:].argmax(1)) % 7, labels)
    assert data.train.labels.bincount().tolist() == [4] * 7
    content = hashlib.sha256(data.train.inputs.numpy().tobytes()).hexdigest()
    assert content.startswith("6ac9fda7508131b8")


@pytest.mark.parametrize(("weight", "features", "rank"), [(0.05, 0.2, 3), (0.5, 0.5, 2)])
def test_regression_is_that_of_its_closed_form(weight: float, features: float, rank: int) -> None:
    """Red: a variance in place of a deviation, decay by the sample, or a bias that is penalised."""
    args = (12, 3, 5, weight, features, 4.0, 0)
    assert regression.regression_value(*args) == pytest.approx(
        regression.regression_value_numerical(*args), rel=1e-8
    )
    assert regression.regression_gram_error(*args) < 1e-5
    assert regression.regression_rank(*args) == regression.regression_rank_numerical(*args) == rank
    assert regression.regression_outside(*args) < 1e-8


@pytest.mark.parametrize(
    ("samples", "length", "width", "rank"),
    [(4, 6, 6, 3), (1, 3, 6, 0), (12, 3, 1, 1), (12, 3, 2, 2)],
    ids=["targets of less rank", "one sample", "width 1", "width 2"],
)
def test_regression_with_few_samples_or_a_small_width(
    samples: int, length: int, width: int, rank: int
) -> None:
    """Red: NaN from a variance of 0 that rounding made negative; a form for more directions than d."""
    args = (samples, length, width, 0.1, 0.1, 2.0, 1)
    assert regression.regression_value(*args) == pytest.approx(
        regression.regression_value_numerical(*args), rel=1e-8, abs=1e-12
    )
    assert regression.regression_rank(*args) == regression.regression_rank_numerical(*args) == rank
    if rank:
        assert regression.regression_gram_error(*args) < 1e-5


def test_the_central_flow_and_frozen_heads_collapse_within_classes() -> None:
    """Red: a flow uphill; a last matrix that is trained, which would balance."""
    for part in ("nc1", "within", "between"):
        assert paths.central_flow_step(part, 3, 4, 5, 1.0, 0.1, 0.2, 5.0, 0) < 0
    assert heads.linear_head_frozen("nc1_trace_ratio", 2, 3, 8, 0.01, 0) < 0.05
    assert heads.linear_head_frozen("balance", 2, 3, 8, 0.01, 0) > 0.1


def test_shallow_networks_need_orthogonally_separable_inputs() -> None:
    with pytest.raises(InputError, match="orthogonally separable"):
        shallow.shallow_cosine("means", 3, 4, 10, 2.0, 0.01, 10, 0)
    assert shallow.shallow_cosine("means", 3, 2, 20, 0.1, 0.001, 600, 0) < 0.1


def test_no_claim_rests_on_an_abstract_or_on_what_others_report() -> None:
    """Red: a claim of a paper that nobody could read; a paper that docs/results/field.md does not list."""
    root = Path(__file__).resolve().parent.parent
    read = (root / "docs/results/field.md").read_text(encoding="utf-8").split("## Slips in the papers")[0]
    for path in (root / "claims.yaml", *sorted(root.glob("stages/*/claims.yaml"))):
        for claim in yaml.safe_load(path.read_text(encoding="utf-8")):
            assert not re.search("abstract|report|issue", claim["ref"]), claim["id"]
            if path.parent in {root / "stages" / name for name in ("field", "beyond_simplex", "tokens")}:
                assert f"| {claim['ref'].split()[0]} |" in read, claim["id"]
