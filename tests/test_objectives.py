"""Losses, label smoothing, supervised contrast, fixed classifiers and penalised features.

Their training against a plain loop is in test_training.py; here are definitions, last layers and keys.
"""

import dataclasses
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import experiment_tree, measure_runs, vector_data, write_params
from scipy.optimize import minimize_scalar
from torch import Tensor
from training_cases import (
    ADAMW,
    AUGMENTATION,
    CONV,
    DIGITS,
    DUFM,
    DUFM_STUDY,
    ETF,
    FEATURES,
    FREE,
    HEAD,
    HEADLESS,
    KINDS,
    MLP,
    PLAIN,
    RESNET,
    SEARCH,
    SMOOTH,
    SUPCON,
    UNEQUAL,
    free_run,
    free_tree,
    kind_of,
    run_of,
    tree_of,
)

from ncpipe.config.experiment import Experiment
from ncpipe.config.params import load_params
from ncpipe.config.records import read
from ncpipe.config.run import Compute, Run
from ncpipe.datasets.prepared import Prepared
from ncpipe.features.extraction import extract
from ncpipe.metrics.losses import unregularised_loss
from ncpipe.models.build import build_network, simplex_rows
from ncpipe.models.loss_functions import LOSSES
from ncpipe.runs.fingerprint import RunFingerprint
from ncpipe.system.errors import InputError
from ncpipe.theory.gap import Gap, Objective, TrainedState, gap_to_optimum
from ncpipe.training import objective
from ncpipe.training.cost import BACKWARD, bytes_per_run
from ncpipe.training.loop import train_batch
from ncpipe.training.objective import Outputs, fit_times_samples
from ncpipe.training.session import Trained

CPU = torch.device("cpu")
NOTHING = {"rule": "constant", "value": 0.0, "last_layer": None}


# ---- Losses ---------------------------------------------------------------------------------------------


def naive(name: str, logits: Tensor, shares: Tensor) -> np.ndarray:
    """Of each sample, class by class in Python's floats; logits and shares (M, K)."""
    losses = []
    for f, y in zip(logits.tolist(), shares.tolist(), strict=True):
        if name == "ce":
            top = max(f)
            norm = top + math.log(sum(math.exp(a - top) for a in f))
            losses.append(sum(share * (norm - a) for a, share in zip(f, y, strict=True)))
        else:
            losses.append(sum((a - share) ** 2 for a, share in zip(f, y, strict=True)) / 2)
    return np.array(losses)


@pytest.mark.parametrize("name", LOSSES)
def test_they_are_their_definitions(name: str) -> None:
    """Of labels and of shares, of one network's samples and of several networks'."""
    draw = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(3, 7, 5, generator=draw, dtype=torch.float64)
    labels = torch.randint(0, 5, (3, 7), generator=draw)
    hard = torch.nn.functional.one_hot(labels, 5).double()
    soft = torch.rand(3, 7, 5, generator=draw, dtype=torch.float64)
    soft /= soft.sum(-1, keepdim=True)
    loss = LOSSES[name]
    for targets, shares in ((labels, hard), (hard, hard), (soft, soft)):
        expected = naive(name, logits.flatten(0, 1), shares.flatten(0, 1))
        actual = loss(logits, targets)
        assert actual.shape == (3, 7)
        assert actual.flatten().numpy() == pytest.approx(expected, rel=1e-13)
        assert loss(logits[0], targets[0]).numpy() == pytest.approx(expected[:7], rel=1e-13)
    losses = naive(name, logits.flatten(0, 1), hard.flatten(0, 1)).reshape(3, 7)
    assert fit_times_samples(Outputs(logits, labels), name).numpy() == pytest.approx(losses.sum(1), rel=1e-13)
    weight = torch.eye(5, dtype=torch.float64)
    mean_loss = unregularised_loss(logits[1], labels[1], weight, None, name)
    assert mean_loss == pytest.approx(losses[1].mean(), rel=1e-13)


def train(run: Run, data: Prepared, precision: str = "float64") -> Trained:
    (trained,) = train_batch([run], data, CPU, precision)
    return trained


def test_the_contrast_in_parts_is_that_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = kind_of("supcon").spec
    features = torch.randn(2, 10, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    outputs = Outputs(features, torch.arange(10).remainder(3).expand(2, 10), features)
    whole = fit_times_samples(outputs, spec.loss)
    monkeypatch.setattr(objective, "PAIRS", 40)
    with torch.no_grad():
        torch.testing.assert_close(fit_times_samples(outputs, spec.loss), whole, rtol=1e-13, atol=0)


def test_a_batch_without_partners_teaches_nothing() -> None:
    """Red: NaN where a sum over no partner, or over no other sample at all, is taken."""
    for samples in (1, 3):
        features = torch.randn(1, samples, 4, dtype=torch.float64).requires_grad_()
        fit = fit_times_samples(
            Outputs(features, torch.arange(samples)[None], features), kind_of("supcon").spec.loss
        )
        (gradient,) = torch.autograd.grad(fit.sum(), features)
        assert fit.item() == 0
        assert not gradient.any()


def test_memory_of_a_contrast_grows_with_pairs() -> None:
    """4000 samples: a similarity of 4 bytes and 2 of masks for each pair, beside what cross-entropy takes."""
    data = vector_data(classes=2, per_class=2000)
    need = [bytes_per_run(kind_of(kind), data, CPU, torch.float32) for kind in ("supcon", "")]
    assert need[0] - need[1] == pytest.approx(BACKWARD * 6 * 4000**2, rel=0.05)


def test_the_gap_under_smoothing_is_that_to_the_optimum() -> None:
    """0 where a simplex of the best length is, by its two terms, and above 0 for any other length."""
    classes, width, strength, delta = 4, 6, 0.02, 0.15
    rows = simplex_rows(classes, width, 1.0, torch.Generator().manual_seed(0))
    labels = torch.arange(classes).repeat_interleave(3)
    features = width**0.5 * rows[labels]
    loss = read(Experiment, experiment_tree(loss={"name": "ce", "smoothing": delta})).loss

    def gap(length: float) -> Gap:
        logits = features @ (length * rows).T
        outputs = Outputs(logits[None], labels[None])
        fit = (fit_times_samples(outputs, loss) / len(labels)).item()
        reached = Objective(fit, strength / 2 * classes * length**2, 0.0)
        weight = length * rows
        state = TrainedState("ce", reached, features, labels, weight, False, strength, True, smoothing=delta)
        return gap_to_optimum("x", state)

    best = minimize_scalar(lambda length: gap(length).gap_gufm, bounds=(0.1, 5), method="bounded").x
    assert abs(gap(best).gap_gufm) < 1e-10
    assert abs(gap(best).gap_fit) < 1e-4
    assert min(gap(best - 0.1).loss_gap, gap(best + 0.1).loss_gap) > 1e-4


# ---- Last layers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("classes", "width"), [(2, 1), (3, 2), (4, 9), (10, 64)])
def test_rows_of_a_fixed_classifier_are_a_simplex(classes: int, width: int) -> None:
    rows = simplex_rows(classes, width, 2.5, torch.Generator().manual_seed(0))
    expected = 2.5**2 * (classes * torch.eye(classes) - 1).double() / (classes - 1)
    torch.testing.assert_close(rows @ rows.T, expected, rtol=0, atol=1e-12)
    other = simplex_rows(classes, width, 2.5, torch.Generator().manual_seed(1))
    assert width == 1 or not torch.allclose(rows, other)


def test_orientations_of_the_simplex_are_uniform() -> None:
    """The mean of a row's outer product with itself is |a|^2 I/d. Red: QR's signs left as they are."""
    draw = torch.Generator().manual_seed(0)
    drawn = torch.stack([simplex_rows(3, 4, 1.0, draw) for _ in range(3000)])
    torch.testing.assert_close(drawn.mean(0), torch.zeros(3, 4).double(), rtol=0, atol=0.05)
    second = torch.einsum("sd,se->de", drawn[:, 0], drawn[:, 0]) / 3000
    torch.testing.assert_close(second, torch.eye(4).double() / 4, rtol=0, atol=0.03)


def test_nothing_moves_a_fixed_classifier() -> None:
    """Not training, no penalty on everything, not AdamW's decay; the rest starts as beside a learned one."""
    data = vector_data()
    penalty = {"rule": "constant", "value": 0.5, "last_layer": None, "scope": "all"}
    changes = {"optimizer": ADAMW | {"weight_decay": 0.5}, "penalty": penalty}
    fixed, learned = (run_of(SMOOTH | classifier, **changes) for classifier in (ETF, {"last_bias": False}))
    drawn = [dict(build_network(run, data).named_parameters()) for run in (fixed, learned)]
    for name in drawn[0]:
        assert torch.equal(drawn[0][name], drawn[1][name]) == (name != "last.weight"), name
    trained = train(fixed, data, "float32")
    assert torch.equal(trained.state["last.weight"], drawn[0]["last.weight"])
    assert not torch.equal(trained.state["maps.0.weight"], drawn[0]["maps.0.weight"])
    features = extract(fixed, trained.state, data, CPU)
    assert features.metadata.roles["last.weight"] == "frozen"
    assert features.last_penalty == 0


def test_the_last_layer_of_a_contrast_is_the_nearest_mean_rule() -> None:
    """Of the training features on their sphere: errors as of the written-out rule, NC4 exactly 0."""
    data = vector_data(per_class=30, size=2)
    run = kind_of("supcon", epochs=3)
    trained = train(run, data)
    features = extract(run, trained.state, data, CPU)
    train_features = features.train.inputs.numpy()
    assert np.linalg.norm(train_features, axis=1) == pytest.approx(7**0.5, rel=1e-12)
    labels = data.train.labels.numpy()
    means = np.stack([train_features[labels == k].mean(0) for k in range(3)])
    errors = []
    for split in (features.train, features.test):
        assert split is not None
        distances = ((split.inputs.numpy()[:, None] - means) ** 2).sum(2)
        errors.append(float((distances.argmin(1) != split.labels.numpy()).mean()))
    end = trained.history[-1]
    assert [end.train_error, end.test_error] == errors
    assert 0 < errors[0] < 1
    torch.testing.assert_close(features.weight, torch.from_numpy(means))
    assert features.bias is not None
    assert features.bias.numpy() == pytest.approx(-(means**2).sum(1) / 2, rel=1e-12)
    assert features.layers["last"]["test"].samples.mismatched == 0


# ---- Keys -----------------------------------------------------------------------------------------------


def batch_key(run: Run) -> str:
    return RunFingerprint(run, "a", Compute("cpu", 1, "float32")).batch_key()


def test_what_trains_side_by_side() -> None:
    """One loss, classifier, augmentation and number of free samples a batch; lambdas of any size.

    Red: a penalty on features beside none; samples that are drawn alike with augmentation and without.
    """
    keys = {kind: batch_key(kind_of(kind)) for kind in ("", *KINDS)}
    apart = [
        *keys.values(),
        batch_key(run_of(RESNET)),
        batch_key(run_of(RESNET, augmentation=AUGMENTATION)),
        *(batch_key(run_of(CONV, loss="mse", penalty=rule)) for rule in (HEAD, NOTHING)),
        *(batch_key(free_run(EQUAL, data={"reduced": True, "per_class": count})) for count in (3, 4)),
    ]
    assert len(set(apart)) == len(apart)
    assert batch_key(kind_of("features", penalty=FEATURES | {"features": 0.5})) == keys["features"]
    other = run_of(CONV, loss="mse", penalty=HEAD | {"value": 0.1})
    assert batch_key(other) == batch_key(run_of(CONV, loss="mse", penalty=HEAD))


PAPER = {"architecture": "L-RN1", "norm": "post", "width": 8, "last_bias": False, "layer_norm_eps": 1e-5,
         "initialisation": "normal", "gain": 1.0}  # fmt: skip
EQUAL = DUFM | {"columns": "equal"}
REDUCED = FREE | {"reduced": True}
GAUSSIANS = experiment_tree()["data"]
COSINES = {"name": "ldam", "max_margin": 0.5, "scale": 30.0, "cosines": True}


@pytest.mark.parametrize(
    ("model", "changes", "message"),
    [
        (SMOOTH, {"loss": "supcon"}, "loss: supcon needs a temperature; write `loss: {name: supcon, temper"),
        (SMOOTH | {"last_bias": False}, {"loss": SUPCON}, "model.last_bias: the nearest-mean rule"),
        (SMOOTH, {"loss": SUPCON, "batch_size": 1}, "batch_size: supcon compares the samples of a batch"),
        (SMOOTH, {"loss": SUPCON, "penalty": NOTHING | {"last_layer": 0.1}}, "last_layer does not apply: su"),
        (SMOOTH | ETF, {"loss": SUPCON}, "model.classifier does not apply: supcon trains no logits"),
        (SMOOTH, {"loss": SUPCON, "data": GAUSSIANS | {"per_class": 1}}, "data.per_class: supcon comp"),
        (SMOOTH, {"loss": "dot_regression"}, "loss: dot_regression needs fixed rows; write `classifier:"),
        (SMOOTH, {"loss": COSINES}, "model.last_bias: the cosines of ldam have no bias; write false"),
        (SMOOTH | ETF, {"loss": "dot_regression", "penalty": FEATURES}, "penalty.features does not apply to"),
        (SMOOTH | ETF | {"last_bias": True}, {}, "last_bias: a fixed classifier has none; write false"),
        (SMOOTH | ETF | {"classifier": {"kind": "etf"}}, {}, "model.classifier: length is a number with"),
        (SMOOTH | ETF, {"penalty": NOTHING | {"last_layer": 1}}, "penalty.last_layer does not apply: model"),
        (SMOOTH | ETF | {"width": 1}, {}, "3 classes need a width of 2 for a simplex, not 1"),
        (PAPER, {"penalty": FEATURES}, "features does not apply to L-RN1; remove it"),
        (DUFM, {"data": FREE, "loss": {"name": "mse", "smoothing": 0.1}}, "loss: dufm takes plain"),
        (MLP | {"norm": "none"}, {}, "model: batch_norm_eps is a number with `norm: batch` and no key"),
        (RESNET | {"head_layers": 0}, {}, "model: head_width is a number with head_layers and no key"),
        (PLAIN, {"augmentation": AUGMENTATION}, "augmentation: mlp does not read images as such"),
        (RESNET, {"augmentation": AUGMENTATION, "optimizer": SEARCH}, "augmentation: lbfgs needs the same s"),
        (PLAIN, {"penalty": NOTHING | {"biases": True, "scope": "all"}}, "penalty: biases does not apply: `"),
        (RESNET, {"data": GAUSSIANS}, "resnet_cifar takes images, gaussian_mixture has none"),
        (CONV, {"penalty": HEAD | {"features": None}}, "features (or features_over_value) is needed with `s"),
        (CONV, {"penalty": HEAD | {"features_over_value": 0.1}}, "both say lambda_H; remove one"),
        (CONV, {"penalty": HEAD | {"biases": True}}, "biases does not apply: `scope: head` leaves them free"),
        (CONV, {"penalty": HEAD | {"scope": "all"}}, "penalty.features does not apply to conv_net without"),
        (CONV, {"penalty": HEAD | {"layers": [0.1] * 4, "last_layer": None}}, "penalty.layers does not appl"),
        (CONV | {"pooled": 3}, {}, "model.pooled: 3 does not divide the input's side 8"),
        (CONV | {"channels": []}, {}, "channels: empty"),
        (HEADLESS, {"penalty": HEAD}, "penalty.scope: this resnet_cifar has no head"),
        (DUFM, {"data": REDUCED}, "data.reduced: one sample stands for n that start equal"),
        (EQUAL, {"data": REDUCED, "batch_size": 2}, "data.reduced: mini-batches move the samples of a class"),
        (EQUAL, {"data": REDUCED, "optimizer": ADAMW}, "data.reduced: exact for gradient descent, not for a"),
        (DUFM, {"penalty": UNEQUAL | {"last_layer": 0.1}}, "penalty: last_layer does not apply: `layers` sa"),
        (DUFM, {"data": GAUSSIANS}, "dufm learns its features and reads no gaussian_mixture; take `source:"),
        (PAPER, {"data": FREE}, "model.architecture: L-RN1 reads inputs, free data have none"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("low_rank")
def test_mistakes_name_their_key(model: dict[str, Any], changes: dict[str, Any], message: str) -> None:
    tree = free_tree(model, **changes) if model["architecture"] == "dufm" else tree_of(model, **changes)
    if changes.get("data", {}).get("source"):
        tree["data"] = changes["data"]
    with pytest.raises(InputError) as caught:
        read(Experiment, tree, "experiments.x")
    first = str(caught.value).splitlines()[0]
    assert first.startswith("experiments.x")
    assert message in first


@pytest.mark.parametrize(
    ("model", "depth", "message"),
    [
        (RESNET, 9, "9 does not suit x: resnet_cifar needs L = 6n + 2"),
        (DUFM, 1, "1 does not suit x: dufm needs L >= 2"),
        (DUFM, 4, "4 does not suit x: penalty.layers has 3 lambdas, and L = 4 layers need one each"),
    ],
)
def test_depths_suit_the_model_and_its_lambdas(
    model: dict[str, Any], depth: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("study.py").write_text(DUFM_STUDY)
    write_params([depth], [0], x=(free_tree if model is DUFM else tree_of)(model))
    with pytest.raises(InputError, match="sweep.depths: " + re.escape(message)):
        load_params()


def test_what_only_the_data_show_names_its_key_too() -> None:
    """A class of one sample, and more classes than a simplex has room for, in a file of one's own."""
    data = vector_data(per_class=2)
    single = dataclasses.replace(data, train=data.train[:5])
    with pytest.raises(
        InputError, match=r"^experiments\.x\.loss: supcon compares .* class 2 has 1; take more"
    ):
        train(kind_of("supcon"), single)
    train(kind_of("supcon_with_itself", epochs=1, log_every=1), single)
    with pytest.raises(InputError, match=r"^model\.classifier: 9 classes need a width of 8"):
        train(kind_of("etf"), vector_data(classes=9))


# ---- Through every stage --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A sweep of one network of each kind through the stages to its tables, in a folder of its own."""
    from ncpipe.commands.aggregate import aggregate

    folder = tmp_path_factory.mktemp("chain")
    short = {"epochs": 60, "log_every": 5}
    trees = {
        "features": experiment_tree(**short, penalty=FEATURES) | {"model": SMOOTH},
        "supcon": experiment_tree(**short, loss=SUPCON, model={"last_bias": True}),
        "bounded": experiment_tree(**short, model=ETF),
        "dot_regression": experiment_tree(**short, loss="dot_regression", model=ETF),
        "smooth": experiment_tree(**short, loss={"name": "ce", "smoothing": 0.2}),
        "conv": experiment_tree(data=DIGITS, augmentation=AUGMENTATION, **short) | {"model": RESNET},
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_params([8], [0], **trees)
        measure_runs(*trees, depths=[8])
        aggregate()
        yield folder / "data"


def test_they_go_from_params_to_tables(results: Path) -> None:
    """fetch to aggregate: objectives of history and features agree, and which runs have a bound."""
    runs = pd.read_csv(results / "results" / "runs.csv").set_index("experiment")
    ends = pd.read_csv(results / "results" / "history.csv").query("epoch == 60").set_index("experiment")
    ends = ends.loc[runs.index]
    for column in ("loss", "fit", "train_error", "test_error"):
        assert runs[column].to_numpy() == pytest.approx(ends[column].to_numpy(), rel=1e-4), column
    penalties = runs["inner_penalty"] + runs["last_penalty"]
    assert penalties.to_numpy() == pytest.approx(ends["penalty"].to_numpy(), rel=1e-4)
    normed = runs["norm"] == "batch"
    assert set(runs.index[normed]) == {"conv"}
    assert (runs["gradient_norm"].isna() == normed).all()
    bounds = runs["bound"].to_dict()
    assert [bounds.pop(kind) for kind in ("features", "conv")] == ["features not bounded"] * 2
    assert bounds.pop("smooth") == "holds"
    assert set(bounds.values()) == {"no closed-form optimum"}
    assert runs.index[runs["loss_gap"].notna()].tolist() == ["smooth"]
    assert runs.loc["smooth", "loss_gap"] > 0
    assert runs.loc["supcon", "converged"]
    assert runs.loc["bounded", "bound_detail"] == "a fixed classifier"


def test_ranks_are_those_of_the_networks_matrices(results: Path) -> None:
    """Of inner matrices and of no kernel; the model's own keys are in run.json."""
    for name, matrices, model in (
        ("features", {f"maps.{i}" for i in range(7)}, SMOOTH),
        ("conv", {"head.0", "head.1"}, RESNET),
    ):
        table = pd.read_csv(results / "metrics" / name / "measurements.csv")
        assert set(table[table["metric"] == "rank_weights"]["layer"]) == matrices | {"last"}
        record = json.loads((results / "runs" / name / "L8" / "s0" / "run.json").read_text())
        assert record["inputs"]["spec"]["model"] == model
