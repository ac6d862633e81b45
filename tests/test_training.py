"""The trainer against a plain torch.optim loop, and runs in a batch against the same runs alone."""

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import TEXT, architecture, experiment, token_data, vector_data
from torch import Tensor
from training_cases import (
    ADAM,
    ADAMW,
    CASES,
    CONV,
    FEATURES,
    FREE_DATA,
    HEAD,
    IMAGES,
    KINDS,
    MLP,
    OF_THE_HOST,
    PLAIN,
    RESNET,
    SEARCH,
    SGD,
    SMOOTH,
    SUPCON,
    TARGETS,
    TEACHER,
    TORCH,
    UNEQUAL,
    VECTORS,
    assert_same,
    free_run,
    go_on,
    kind_of,
    run_of,
    stop_after,
)

from ncpipe.config.experiment import Experiment
from ncpipe.config.optimizer_specs import OneAtATime, Schedule
from ncpipe.config.run import Run
from ncpipe.datasets.prepared import Prepared, Split
from ncpipe.features.forward import load_network
from ncpipe.features.gradient import gradient_norm
from ncpipe.models.build import build_model, build_network, input_shape, prepare_split
from ncpipe.models.network import Network, batch_norms
from ncpipe.system.randomness import seeded_generator
from ncpipe.training.checkpoints import epochs_done
from ncpipe.training.line_search import LineSearch
from ncpipe.training.loop import train_batch
from ncpipe.training.objective import Outputs
from ncpipe.training.schedules import factor
from ncpipe.training.session import Session, Trained
from ncpipe.training.stack import Stack

pytestmark = pytest.mark.usefixtures("study_folder")

CPU = torch.device("cpu")


def runs_of(spec: Experiment, depth: int = 3, seeds: Sequence[int] = (0,)) -> list[Run]:
    return [Run("x", depth, seed, spec) for seed in seeds]


def train(
    spec: Experiment, data: Prepared, seeds: Sequence[int] = (0,), precision: str = "float64"
) -> list[Trained]:
    return train_batch(runs_of(spec, seeds=seeds), data, CPU, precision)


# ---- Written out ----------------------------------------------------------------------------------------


def contrast(features: Tensor, labels: Sequence[int], temperature: float, include_self: bool) -> Tensor:
    """Mean over the samples that have a partner, sample by sample."""
    units = [f / f.square().sum().sqrt() for f in features]
    losses = []
    for i, f in enumerate(units):
        others = [j for j in range(len(units)) if j != i or include_self]
        near = {j: f @ units[j] / temperature for j in others}
        partners = [j for j in others if labels[j] == labels[i]]
        if partners:
            whole = torch.stack([s.exp() for s in near.values()]).sum().log()
            losses.append(whole - torch.stack([near[j] for j in partners]).mean())
    return torch.stack(losses).mean() if losses else features.sum() * 0


def fit_of(spec: Any, logits: Tensor, features: Tensor, labels: Tensor) -> Tensor:
    if spec.loss_name == "supcon":
        return contrast(features, labels.tolist(), spec.loss.temperature, spec.loss.include_self)
    if labels.is_floating_point():  # vectors
        return ((logits - labels) ** 2).sum(1).mean() / 2
    rows, classes = torch.arange(len(labels)), logits.shape[1]
    delta = getattr(spec.loss, "smoothing", 0.0)
    shares = torch.full_like(logits, delta / classes)
    shares[rows, labels] += 1 - delta
    if spec.loss_name == "dot_regression":
        c = spec.model.classifier.length * features.shape[1] ** 0.5
        return ((logits[rows, labels] - c) ** 2 / (2 * c)).mean()
    if spec.loss_name == "mse":
        return ((logits - shares) ** 2).sum(1).mean() / 2
    return (logits.exp().sum(1).log() - (shares * logits).sum(1)).mean()


def is_fixed(spec: Any) -> bool:
    """Whether the last layer learns nothing."""
    return spec.loss_name == "supcon" or bool(getattr(spec.model, "classifier", None))


def strengths_of(run: Run, network: Network) -> dict[str, float]:
    """lambda of every parameter that is penalised."""
    rule, strengths = run.spec.penalty, {}
    if rule.layers is not None:
        matrices = [name for name, _ in network.named_parameters() if name != "free"]
        return {"free": rule.value, **dict(zip(matrices, rule.layers, strict=True))}
    inner = rule.value / (run.depth if rule.rule == "over_depth" else 1)
    for name, parameter in network.named_parameters():
        matrix = parameter.dim() > 1
        if name.startswith("last."):
            taken = (matrix or rule.scope == "all") and not is_fixed(run.spec)
            strength = inner if rule.last_layer is None else rule.last_layer
        else:
            strength = inner
            if rule.scope == "head":
                taken = name.startswith("head.")
            elif "lin0" in name or "embedding" in name:
                taken = rule.scope == "all" or (matrix and rule.scope == "weights")
            else:
                taken = matrix or rule.scope == "all" or (rule.biases and "blocks" in name)
        if taken:
            strengths[name] = strength
    return strengths


def objective_of(run: Run, network: Network, samples: Split, whole: int) -> Tensor:
    """The regularised loss of a batch out of `whole` training samples, through one network in autograd."""
    logits, features, head_input = network.forward_with_features(samples.inputs, samples.lengths)
    if run.spec.loss_name in ("supcon", "dot_regression"):
        lengths = features.norm(dim=1)
        torch.testing.assert_close(lengths, torch.full_like(lengths, features.shape[1] ** 0.5))
    total = fit_of(run.spec, logits, features, samples.labels)
    for name, strength in strengths_of(run, network).items():
        total = total + strength / 2 * network.get_parameter(name).square().sum()
    if run.spec.penalty.features is not None:
        mean = head_input.square().sum(1).mean()
        total = total + run.spec.penalty.features / 2 * whole * mean
    return total


def optimizer_of(run: Run, learned: Mapping[str, Tensor], strengths: Mapping[str, float]) -> Any:
    spec: Any = run.spec.optimizer
    if spec.name == "sgd":
        return torch.optim.SGD([*learned.values()], spec.learning_rate, spec.momentum)
    if spec.name == "torch":
        return getattr(torch.optim, spec.class_)([*learned.values()], spec.learning_rate, **spec.arguments)
    if spec.name == "lbfgs":
        search = {"max_iter": 1, "max_eval": 26, "history_size": spec.memory}
        return torch.optim.LBFGS(
            [*learned.values()], spec.learning_rate, line_search_fn="strong_wolfe", **search
        )
    decayed = [parameter for name, parameter in learned.items() if name in strengths]
    others = [parameter for name, parameter in learned.items() if name not in strengths]
    decay = getattr(spec, "weight_decay", 0.0)
    groups = [{"params": decayed, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]
    kind = torch.optim.AdamW if spec.name == "adamw" else torch.optim.Adam
    return kind(groups, spec.learning_rate, (spec.beta1, spec.beta2), spec.eps)


def plain_loop(run: Run, data: Prepared) -> tuple[dict[str, Tensor], float]:
    """What a user would write; returns what has learned, and the objective there."""
    network = build_network(run, data).double().train()
    learned = {
        name: parameter
        for name, parameter in network.named_parameters()
        if not (is_fixed(run.spec) and name.startswith("last."))
    }
    optimizer = optimizer_of(run, learned, strengths_of(run, network))
    samples = prepare_split(data.train, data.kind, run.spec.model, CPU, torch.float64)
    count, order = len(samples), seeded_generator(run.seed, "order")
    batch = count if run.spec.batch_size == "full" else run.spec.batch_size
    steps = run.spec.epochs * math.ceil(count / batch)
    step = itertools.count()
    for _ in range(run.spec.epochs):
        rows = torch.arange(count) if batch == count else torch.randperm(count, generator=order)
        for part in rows.split(batch):
            rate = run.spec.optimizer.learning_rate
            if run.spec.schedule.name == "cosine":
                rate *= (1 + math.cos(math.pi * next(step) / steps)) / 2
            for group in optimizer.param_groups:
                group["lr"] = rate

            def closure(part: Tensor = part) -> Tensor:
                optimizer.zero_grad()
                loss = objective_of(run, network, samples[part], count)
                loss.backward()
                return loss

            optimizer.step(closure)
    end = objective_of(run, network, samples, count).item()
    return {name: parameter.detach() for name, parameter in learned.items()}, end


SHORT = {"epochs": 4, "log_every": 2}
OVER_DEPTH = {"rule": "over_depth", "value": 0.3, "last_layer": 0.05}
SCOPE = {"rule": "constant", "value": 0.02, "last_layer": 0.05}
FEW = vector_data(per_class=4, size=3)
PATCHED = architecture("L-T22", "pre", patch=2)
# Names, and runs with the data that they train on.
PLAIN_LOOPS: dict[str, tuple[Run, Prepared]] = {
    **{
        f"{keys['name']} {loss} {batch}": (
            run_of(optimizer=keys, loss=loss, batch_size=batch, penalty=OVER_DEPTH, **SHORT), VECTORS
        )
        for keys, loss, batch in (
            (SGD, "ce", "full"), (SGD, "mse", 7), (ADAM, "ce", 7), (ADAM, "mse", "full"), (ADAMW, "ce", 7),
            (ADAMW, "mse", "full"),
        )
    },
    **{
        f"penalised biases {name}": (
            run_of(model=architecture(name, "post", last_bias=True), optimizer=keys,
                   penalty=OVER_DEPTH | {"biases": True}, **SHORT),
            VECTORS,
        )
        for name, keys in (("L-RN1", ADAM), ("L-RN2", ADAMW))
    },
    **{
        f"torch {keys['class']}": (run_of(optimizer=TORCH | keys, batch_size=7, **SHORT), VECTORS)
        for keys in (
            {"class": "NAdam", "arguments": {}},
            {"class": "AdamW", "arguments": {"betas": [0.8, 0.9]}},
        )
    },
    "lbfgs": (
        run_of(optimizer=SEARCH | {"learning_rate": 0.5}, schedule={"name": "constant"}, **SHORT), VECTORS
    ),
    **{
        f"free features {batch}": (
            free_run(batch_size=batch, penalty=UNEQUAL | {"value": value}, **SHORT), FREE_DATA
        )
        for batch, value in (("full", 0.003), (5, 0.0))
    },
    "patches": (run_of(model=PATCHED, batch_size=7, penalty=SCOPE, **SHORT), VECTORS),
    **{
        f"tokens {scope}": (
            run_of(model=architecture("L-T11", "post"), data=TEXT, penalty=SCOPE | {"scope": scope}, **SHORT),
            token_data(),
        )
        for scope in ("all", "weights")
    },
    **{kind: (kind_of(kind, optimizer=SGD, batch_size=7, **SHORT), FEW) for kind in KINDS},
    **{
        f"vectors {batch}": (
            run_of(SMOOTH, data=TEACHER, loss="mse", optimizer=SGD, batch_size=batch, penalty=FEATURES,
                   **SHORT),
            TARGETS,
        )
        for batch in ("full", 7)
    },
    **{
        f"{model['architecture']} {model.get('norm', '')} {scope} {batch}": (
            run_of(model, optimizer=SGD, batch_size=batch, penalty=SCOPE | {"scope": scope}, **SHORT), data
        )
        for model, data in ((MLP, VECTORS), (PLAIN, VECTORS), (RESNET, IMAGES))
        for scope, batch in (("matrices", 7), ("all", "full"), ("weights", "full"))
    },
    **{
        f"head of {model['architecture']} {batch}": (
            run_of(model, optimizer=SGD, loss="mse", batch_size=batch, penalty=HEAD, **SHORT), IMAGES
        )
        for model, batch in ((CONV, 7), (RESNET, "full"))
    },
}  # fmt: skip


@pytest.mark.parametrize("name", PLAIN_LOOPS)
@pytest.mark.usefixtures("low_rank")
def test_training_is_the_plain_loop(name: str) -> None:
    """To rounding: optimizer, penalty, schedule, loss, order of batches, and the history's last row."""
    run, data = PLAIN_LOOPS[name]
    (trained,) = train_batch([run], data, CPU, "float64")
    learned, end = plain_loop(run, data)
    # Lengths of rows are drawn in float32, and a line search multiplies what rounding differs by.
    loose = run.spec.loss_name == "dot_regression" or run.spec.optimizer.name == "lbfgs"
    error = 1e-6 if loose else 1e-9
    for key, expected in learned.items():
        torch.testing.assert_close(trained.state[key], expected, rtol=error, atol=error / 100)
    last = trained.history[-1]
    assert last.loss == pytest.approx(end, rel=error)
    assert last.fit + last.penalty == pytest.approx(last.loss, rel=1e-12)


@pytest.mark.parametrize("name", PLAIN_LOOPS)
@pytest.mark.usefixtures("low_rank")
def test_the_gradients_norm_is_the_plain_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In parts of five samples. Red: what compares samples taken part by part; a fixed layer's gradient."""
    run, data = PLAIN_LOOPS[name]
    network = load_network(run, build_network(run, data).state_dict(), data, CPU)
    if batch_norms(network):
        monkeypatch.setattr("ncpipe.features.gradient.mixes_samples", lambda network: False)
    samples = prepare_split(data.train, data.kind, run.spec.model, CPU, torch.float64)
    monkeypatch.setattr("ncpipe.features.gradient.ROWS", 5 * input_shape(data, run.spec.model).rows)
    learned = [p for n, p in network.named_parameters() if not (is_fixed(run.spec) and n.startswith("last."))]
    parts = torch.autograd.grad(objective_of(run, network, samples, len(samples)), learned)
    expected = math.sqrt(sum(part.square().sum().item() for part in parts))
    error = 1e-6 if run.spec.loss_name == "dot_regression" else 1e-10
    assert gradient_norm(network, run, data, CPU) == pytest.approx(expected, rel=error)
    assert all(parameter.grad is None for parameter in network.parameters())


# ---- Side by side, and stopped --------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES | OF_THE_HOST)
def test_a_run_does_not_depend_on_its_batch(name: str, tmp_path: Path) -> None:
    """The same bytes alone, in 5, and stopped twice, at last beside a run that trained elsewhere.

    Red: numbers drawn for a neighbour, by what ran before, or alike for each seed; a checkpoint that forgets
    weights kept on the way."""
    case = (CASES | OF_THE_HOST)[name]
    alone = train_batch(case.runs(2), case.data, CPU, "float32")
    spec = case.runs(2)[0].spec
    groups = [[2]]
    torch.rand(3), np.random.rand(3), random.random()  # noqa: NPY002
    if not isinstance(spec.optimizer, OneAtATime):
        together = train_batch(case.runs(4, 3, 9, 2, 1), case.data, CPU, "float32")
        assert_same(together[3:4], alone)
        other = together[0].state
        assert not all(torch.equal(other[key], tensor) for key, tensor in alone[0].state.items())
        groups = [[2, 0], [1], [2, 0, 1]]
    done = 0
    for seeds in groups:
        done += 1 + (len(seeds) > 1)
        stop_after(1 if seeds != groups[-1] else 2, case.runs(*seeds), case.data, tmp_path)
    assert 0 < epochs_done(tmp_path / "2") < spec.epochs
    assert_same(go_on(case.runs(*groups[-1]), case.data, tmp_path)[:1], alone)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_tensor_of_every_run_begins_on_a_boundary(dtype: torch.dtype) -> None:
    """Of 64 bytes: kernels may sum in another order elsewhere. Red: tensors one right after the other."""
    runs = [run_of(seed=seed) for seed in range(3)]
    stack = Stack([build_network(run, VECTORS) for run in runs], CPU, dtype)
    assert {of_run.data_ptr() % 64 for tensor in stack.parameters.values() for of_run in tensor} == {0}


UNEQUAL_RUNS: dict[str, tuple[list[Run], Prepared]] = {
    "rates and penalties": (
        [
            run_of(seed=seed, batch_size=5, optimizer=ADAMW | {"learning_rate": rate, "beta2": beta2},
                   penalty={"rule": "constant", "value": value, "last_layer": last, "biases": biases})
            for seed, (rate, beta2, value, last, biases) in enumerate(
                (
                    (0.01, 0.9, 0.1, None, False), (0.03, 0.99, 0.0, 0.2, True),
                    (0.002, 0.999, 0.5, 0.0, True), (1e30, 0.9, 0.5, None, False),  # diverges
                )
            )
        ],
        VECTORS,
    ),
    "penalties of features": (
        [run_of(SMOOTH, penalty=FEATURES | {"features": value}) for value in (0.5, 0.02)], VECTORS
    ),
    "penalties of heads": (
        [
            run_of(CONV, seed, loss="mse", batch_size=5, penalty=HEAD | {"value": at, "features": at / 10})
            for seed, at in enumerate((0.0, 0.004, 0.03))
        ],
        IMAGES,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", UNEQUAL_RUNS)
def test_runs_in_a_batch_keep_their_own_numbers(name: str) -> None:
    """Different learning rates, penalties and mini-batch orders side by side equal the runs alone.

    Red: a run that diverges and takes its neighbours with it.
    """
    runs, data = UNEQUAL_RUNS[name]
    together = train_batch(runs, data, CPU, "float32")
    for run, beside in zip(runs, together, strict=True):
        assert_same([beside], train_batch([run], data, CPU, "float32"))
    assert [run.diverged_at is not None for run in together].count(True) == (name == "rates and penalties")


# ---- Parts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "norm", "batch_size"),
    [("L-RN1", "post", "full"), ("L-T22", "pre", 20)],
)
def test_a_step_may_pass_the_samples_in_parts(
    name: str, norm: str, batch_size: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same weights to rounding, and the same bytes alone and in a batch, with mini-batches and without.

    Red: a part that counts as a whole batch, or whose gradient replaces the one before.
    """
    patch = {"patch": 2} if "T" in name else {}
    spec = experiment(model=architecture(name, norm, **patch), batch_size=batch_size, penalty=SCOPE, **SHORT)
    data = vector_data(per_class=14)
    whole = train(spec, data)[0]
    tokens = input_shape(data, spec.model).rows
    monkeypatch.setattr("ncpipe.training.state.CHUNK_NUMBERS", {"cpu": 16 * tokens * spec.model.width})
    shapes = []
    forward = Session.outputs

    def note(session: Session, samples: Split) -> Outputs:
        shapes.append(len(samples))
        return forward(session, samples)

    monkeypatch.setattr(Session, "outputs", note)
    parts = train(spec, data)[0]
    assert max(shapes) == 16
    for key, value in whole.state.items():
        torch.testing.assert_close(parts.state[key], value, rtol=1e-9, atol=1e-11)
    alone = train(spec, data, seeds=[2], precision="float32")
    assert_same(train(spec, data, seeds=[0, 1, 2], precision="float32")[2:], alone)


@pytest.mark.parametrize(
    "run", [run_of(MLP), run_of(loss=SUPCON, model={"last_bias": True})], ids=["batch norm", "supcon"]
)
def test_samples_that_depend_on_each_other_pass_together(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ncpipe.training.state.CHUNK_NUMBERS", {"cpu": 5 * run.spec.model.width})
    session = Session([run], VECTORS, CPU, torch.float64)
    for samples in (session.train, session.train[torch.arange(20).unsqueeze(0)]):
        assert [len(part) for part in samples.parts(session.at_a_time)] == [len(samples)]


@pytest.mark.parametrize(
    ("most", "sizes"), [(3, [3] * 15 + [2]), (16, [16, 16, 15]), (40, [32, 15]), (99, [47])]
)
def test_parts_hold_every_sample_once_in_order(most: int, sizes: list[int]) -> None:
    """Of shared samples and of two selections side by side, with lengths and without."""
    numbers = torch.arange(47)
    two = torch.stack([numbers, 100 + numbers])
    for split in (Split(numbers, numbers), Split(two.unsqueeze(-1), two, two)):
        parts = list(split.parts(most))
        assert [len(part) for part in parts] == sizes
        assert torch.equal(torch.cat([part.labels for part in parts], -1), split.labels)
        axis = split.labels.dim() - 1
        assert torch.equal(torch.cat([part.inputs for part in parts], axis), split.inputs)
        if split.lengths is not None:
            assert torch.equal(torch.cat([part.lengths for part in parts], axis), split.lengths)


# ---- History, divergence --------------------------------------------------------------------------------


def test_history_is_the_objective_at_the_logged_epochs() -> None:
    spec = experiment(epochs=12, log_every=5)
    (trained,) = train(spec, VECTORS)
    assert [point.epoch for point in trained.history] == [0, 5, 10, 12]
    network = build_model(spec.model, input_shape(VECTORS, spec.model), 3, 3, 0).double()
    network.load_state_dict(trained.state)
    end = trained.history[-1]
    for split, error in ((VECTORS.train, end.train_error), (VECTORS.test, end.test_error)):
        wrong = network(split.inputs.double()).argmax(1) != split.labels
        assert error == pytest.approx(wrong.double().mean().item())
    assert end.learning_rate == pytest.approx(0, abs=1e-12)
    assert trained.history[1].learning_rate == pytest.approx(0.01 * (1 + math.cos(math.pi * 5 / 12)) / 2)


def growing(epochs: int) -> Experiment:
    """The penalty pulls 24 times too far, so the weights grow until float32 ends."""
    return experiment(
        optimizer=SGD | {"learning_rate": 50.0, "momentum": 0.0},
        schedule={"name": "constant"},
        penalty={"rule": "constant", "value": 0.5, "last_layer": None},
        epochs=epochs,
        log_every=100,
    )


def test_a_diverged_run_has_its_last_finite_weights() -> None:
    """To the bit those of a run that ended right before: its loss is finite, and one step on it is not."""
    (trained,) = train(growing(60), vector_data(), precision="float32")
    assert trained.diverged_at is not None
    assert 4 < trained.diverged_at < 60
    assert [row.epoch for row in trained.history] == [0]
    (before,) = train(growing(trained.diverged_at - 2), vector_data(), precision="float32")
    assert before.diverged_at is None
    assert all(torch.equal(trained.state[name], tensor) for name, tensor in before.state.items())
    (after,) = train(growing(trained.diverged_at - 1), vector_data(), precision="float32")
    assert after.diverged_at == trained.diverged_at - 1
    assert all(torch.equal(after.state[name], tensor) for name, tensor in before.state.items())


def searching(rate: float, seed: int = 0, epochs: int = 40, dtype: torch.dtype = torch.float64) -> Session:
    spec = experiment(
        optimizer={"name": "lbfgs", "learning_rate": rate, "memory": 3},
        schedule={"name": "constant"},
        epochs=epochs,
    )
    return Session(runs_of(spec, seeds=(seed,)), vector_data(), CPU, dtype)


def test_lbfgs_does_not_freeze() -> None:
    """Every step fulfils Wolfe's two conditions, and the loss falls to where other optimizers bring it.

    Red: without trials a step of 2 d is taken or not; the second is not, nor any after it, at a loss of 0.16
    and a gradient of length 0.47. Restarts alone go on to a loss of 0.066.
    """
    session = searching(2.0, seed=1)
    steps = session.epochs()
    next(steps)
    for _ in range(15):
        before, (loss, gradient) = session.stack.values.clone(), session.loss_and_gradient(session.train)
        next(steps)
        moved = session.stack.values - before
        lower, after = session.loss_and_gradient(session.train)
        slope = (gradient * moved).sum()
        assert lower <= loss + 1e-4 * slope
        assert (after * moved).sum().abs() <= -0.9 * slope
    list(steps)
    loss, gradient = session.loss_and_gradient(session.train)
    assert loss < 0.025
    assert gradient.norm() < 0.01


def test_a_search_that_moves_nothing_begins_anew() -> None:
    """A direction that leads up ends the search; the next goes along the gradient, from a checkpoint too."""
    session = searching(1.0)
    steps = session.epochs()
    for _ in range(6):
        next(steps)
    pairs = session.method.search.state[session.method.weights]
    pairs |= {"old_dirs": [], "old_stps": [], "ro": [], "t": -pairs["t"], "H_diag": -1.0}
    before = session.stack.values.clone()
    next(steps)
    assert torch.equal(session.stack.values, before)
    other = searching(1.0)
    other.restore(session.states())
    _, gradient = session.loss_and_gradient(session.train)
    next(steps)
    moved = before - session.stack.values
    torch.testing.assert_close(moved / moved.norm(), gradient / gradient.norm())
    list(steps)
    list(other.epochs())
    assert torch.equal(other.stack.values, session.stack.values)


def test_buffers_of_an_optimizer_have_names_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red: an optimizer of a study whose state is called `values`, saved in place of the weights."""
    spec = experiment(epochs=4)
    sessions = [Session(runs_of(spec), vector_data(), CPU, torch.float64) for _ in "ab"]
    for session in sessions:
        named = session.method.buffers()
        renamed = dict(zip(("values", "finite"), named.values(), strict=True))
        monkeypatch.setattr(session.method, "buffers", lambda renamed=renamed: renamed)
    first, second = sessions
    list(first.epochs())
    second.restore(first.states())
    assert torch.equal(second.stack.values, first.stack.values)


def test_a_search_that_has_begun_anew_in_vain_waits_for_another_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing moves where all weights are 0. It is tried once, and once more at the next learning rate."""
    session = searching(1.0, epochs=6)
    session.load_weights([{name: 0 * tensor for name, tensor in session.stack.state_of(0).items()}])
    rates = iter([[1.0], [1.0], [1.0], [0.5], [0.5], [1.0]])
    monkeypatch.setattr(session, "rates_at", lambda step: next(rates))
    assert isinstance(session.method, LineSearch)
    calls: list[object] = []
    step = session.method.search.step
    monkeypatch.setattr(session.method.search, "step", lambda closure: calls.append(closure) or step(closure))
    tried = [len(calls) for _ in session.epochs()]
    assert [after - before for before, after in pairwise(tried)] == [1, 0, 0, 1, 0, 1]


def test_a_trial_step_into_infinity_is_taken_back() -> None:
    """The first trial is 1e22 gradients long: the penalty overflows there."""
    session = searching(1e22, dtype=torch.float32)
    list(session.epochs())
    end, _ = session.loss_and_gradient(session.train)
    assert session.results()[0].diverged_at is None
    assert end < 0.03


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        ({"name": "constant"}, [1.0, 1.0, 1.0, 1.0]),
        ({"name": "cosine", "final": 0.0}, [1.0, 0.5, 0.0, 0.75]),
        ({"name": "cosine", "final": 0.2}, [1.0, 0.6, 0.2, 0.8]),
        ({"name": "cosine", "final": 0.0, "after": 1 / 3}, [1.0, (2 + 2**0.5) / 4, 0.0, 1.0]),
        ({"name": "step", "milestones": [0.5, 0.9], "factor": 0.1}, [1.0, 0.1, 0.01, 1.0]),
    ],
)
def test_schedules(schedule: dict, factors: list[float]) -> None:
    spec: Schedule = experiment(schedule=schedule).schedule
    computed = [factor(spec, step, 6) for step in (0, 3, 6, 2)]
    assert computed == pytest.approx(factors)


def test_training_begins_with_the_weights_that_it_is_given() -> None:
    """Two runs of a batch start where others ended, each at its own; a run of L-BFGS trains alone."""
    data = vector_data()
    for optimizer, count in ((ADAM, 2), ({"name": "lbfgs", "learning_rate": 1.0, "memory": 3}, 1)):
        spec = experiment(optimizer=optimizer, epochs=3, log_every=1)
        ended = train(spec, data, seeds=(3, 4)[:count])
        starts = [run.state for run in ended]
        again = train_batch(runs_of(spec, seeds=(0, 1)[:count]), data, CPU, "float64", starts=starts)
        for before, after in zip(ended, again, strict=True):
            assert after.history[0].loss == pytest.approx(before.history[-1].loss, rel=1e-12)
