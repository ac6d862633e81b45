"""The trainer against a plain torch.optim loop, and runs in a batch against the same runs alone."""

import math
from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from conftest import (
    ARCHITECTURES,
    TEXT,
    architecture,
    experiment,
    experiment_tree,
    token_data,
    vector_data,
)

from ncpipe.config.experiment import Experiment
from ncpipe.config.optimizer_specs import Schedule
from ncpipe.config.records import read
from ncpipe.config.run import Run
from ncpipe.datasets.prepared import Prepared, Split
from ncpipe.models.build import build_model, input_shape, prepare_split
from ncpipe.system.randomness import seeded_generator
from ncpipe.training.loop import train_batch
from ncpipe.training.objective import Outputs, penalty, penalty_strengths
from ncpipe.training.schedules import factor
from ncpipe.training.session import Session, Trained
from ncpipe.training.stack import Stack

CPU = torch.device("cpu")
SGD = {"name": "sgd", "learning_rate": 0.05, "momentum": 0.9}
ADAM = {"name": "adam", "learning_rate": 0.01, "beta1": 0.8, "beta2": 0.99, "eps": 1e-6}
ADAMW = ADAM | {"name": "adamw", "weight_decay": 0.1}
BATCH_NORM_MLP = {
    "architecture": "mlp", "norm": "batch", "activation": "relu", "width": 7, "bias": True, "last_bias": True,
    "initialisation": "normal", "gain": 1.4, "batch_norm_eps": 1e-5,
}  # fmt: skip


def runs_of(spec: Experiment, depth: int = 3, seeds: Sequence[int] = (0,)) -> list[Run]:
    return [Run("x", depth, seed, spec) for seed in seeds]


def train(
    spec: Experiment, data: Prepared, seeds: Sequence[int] = (0,), precision: str = "float64"
) -> list[Trained]:
    return train_batch(runs_of(spec, seeds=seeds), data, CPU, precision)


def naive_penalty(network: torch.nn.Module, inner: float, last: float, biases: bool = False) -> torch.Tensor:
    """lambda_L/2 |W_L|^2 + lambda/2 (matrices but the embedding's, biases of blocks), written out."""
    total = torch.zeros((), dtype=torch.float64)
    for name, parameter in network.named_parameters():
        if biases and "blocks" in name and parameter.dim() == 1:
            total = total + inner / 2 * (parameter**2).sum()
        if name == "last.weight":
            total = total + last / 2 * (parameter**2).sum()
        elif parameter.dim() == 2 and "lin0" not in name and "embedding" not in name:
            total = total + inner / 2 * (parameter**2).sum()
    return total


def naive_training(
    spec: Experiment, data: Prepared, depth: int, inner: float, last: float, biases: bool = False
) -> dict[str, torch.Tensor]:
    """What a user would write: one network, torch.optim, the penalty in the loss."""
    network = build_model(spec.model, input_shape(data, spec.model), data.classes, depth, 0).double()
    samples = prepare_split(data.train, data.kind, spec.model, CPU, torch.float64)
    options = dict(vars(spec.optimizer))
    name, rate = options.pop("name"), options.pop("learning_rate")
    decayed = [
        p
        for n, p in network.named_parameters()
        if (p.dim() == 2 and "lin0" not in n and "emb" not in n)
        or (biases and p.dim() == 1 and "blocks" in n)
    ]
    others = [p for p in network.parameters() if all(p is not q for q in decayed)]
    if name == "sgd":
        optimizer: torch.optim.Optimizer = torch.optim.SGD(network.parameters(), rate, options["momentum"])
    else:
        betas, decay = (options["beta1"], options["beta2"]), options.get("weight_decay", 0.0)
        groups = [{"params": decayed, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]
        kind = torch.optim.AdamW if name == "adamw" else torch.optim.Adam
        optimizer = kind(groups, rate, betas, options["eps"])
    order = seeded_generator(0, "order")
    batch = len(samples) if spec.batch_size == "full" else spec.batch_size
    per_epoch = math.ceil(len(samples) / batch)
    for epoch in range(spec.epochs):
        indices = (
            torch.arange(len(samples))
            if batch == len(samples)
            else torch.randperm(len(samples), generator=order)
        )
        for i in range(per_epoch):
            part = samples[indices[i * batch : (i + 1) * batch]]
            for group in optimizer.param_groups:
                progress = (epoch * per_epoch + i) / (spec.epochs * per_epoch)
                group["lr"] = rate * (1 + math.cos(math.pi * progress)) / 2
            logits = network(part.inputs, part.lengths)
            if spec.loss == "ce":
                fit = F.cross_entropy(logits, part.labels)
            else:
                fit = ((logits - torch.eye(data.classes)[part.labels]) ** 2).sum() / (2 * len(part))
            optimizer.zero_grad()
            (fit + naive_penalty(network, inner, last, biases)).backward()
            optimizer.step()
    return {name: value.detach() for name, value in network.named_parameters()}


@pytest.mark.parametrize("optimizer", [SGD, ADAM, ADAMW], ids=lambda o: o["name"])
@pytest.mark.parametrize("loss", ["ce", "mse"])
@pytest.mark.parametrize("batch_size", ["full", 7])
def test_training_is_the_plain_loop(optimizer: dict, loss: str, batch_size: object) -> None:
    """Same weights as torch.optim to rounding: optimizer, penalty, schedule, loss and order of batches."""
    spec = experiment(
        optimizer=optimizer,
        loss=loss,
        batch_size=batch_size,
        penalty={"rule": "over_depth", "value": 0.3, "last_layer": 0.05},
    )
    data = vector_data()
    (trained,) = train(spec, data)
    for name, expected in naive_training(spec, data, depth=3, inner=0.1, last=0.05).items():
        torch.testing.assert_close(trained.state[name], expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    ("name", "norm"), [("L-RN1", "post"), ("L-RN2", "pre"), ("L-T11", "pre"), ("L-T22", "post")]
)
@pytest.mark.parametrize("batch_size", ["full", 20])
def test_a_step_may_pass_the_samples_in_parts(
    name: str, norm: str, batch_size: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same weights to rounding, and the same bytes alone and in a batch, with mini-batches and without.

    Red: a part that counts as a whole batch, or whose gradient replaces the one before.
    """
    patch = {"patch": 2} if "T" in name else {}
    spec = experiment(
        model=architecture(name, norm, **patch),
        batch_size=batch_size,
        penalty={"rule": "constant", "value": 0.3, "last_layer": 0.05},
        epochs=4,
        log_every=2,
    )
    data = vector_data(per_class=14)
    whole = train(spec, data)[0]
    tokens = input_shape(data, spec.model).rows
    monkeypatch.setattr("ncpipe.training.session.CHUNK_NUMBERS", {"cpu": 16 * tokens * spec.model.width})
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
    (alone,) = train(spec, data, seeds=[2], precision="float32")
    batched = train(spec, data, seeds=[0, 1, 2], precision="float32")[2]
    assert batched.history == alone.history
    assert all(torch.equal(batched.state[key], alone.state[key]) for key in alone.state)


@pytest.mark.parametrize(
    "changes",
    [
        {"model": BATCH_NORM_MLP},
        {
            "loss": {"name": "supcon", "temperature": 0.5},
            "model": architecture("L-RN1", "post", last_bias=True),
        },
    ],
    ids=["batch norm", "supcon"],
)
def test_samples_that_depend_on_each_other_pass_together(
    changes: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = experiment_tree() | changes
    if tree["model"] != BATCH_NORM_MLP:
        tree["model"] = experiment_tree(model=tree["model"])["model"]
    data, spec = vector_data(), read(Experiment, tree)
    monkeypatch.setattr("ncpipe.training.session.CHUNK_NUMBERS", {"cpu": 5 * spec.model.width})
    session = Session(runs_of(spec), data, CPU, torch.float64)
    for samples in (session.train, session.train[torch.arange(20).unsqueeze(0)]):
        assert [len(part) for part in samples.parts(session.at_a_time)] == [len(samples)]


@pytest.mark.parametrize(
    ("most", "sizes"), [(3, [3] * 15 + [2]), (16, [16, 16, 15]), (40, [32, 15]), (47, [47]), (99, [47])]
)
def test_parts_hold_every_sample_once_in_order(most: int, sizes: list[int]) -> None:
    """Of shared samples and of two selections side by side, with lengths and without."""
    numbers = torch.arange(47)
    own = torch.stack([numbers, 100 + numbers])
    for split in (Split(numbers, numbers), Split(own.unsqueeze(-1), own, own)):
        parts = list(split.parts(most))
        assert [len(part) for part in parts] == sizes
        assert torch.equal(torch.cat([part.labels for part in parts], -1), split.labels)
        axis = split.labels.dim() - 1
        assert torch.equal(torch.cat([part.inputs for part in parts], axis), split.inputs)
        if split.lengths is not None:
            assert torch.equal(torch.cat([part.lengths for part in parts], axis), split.lengths)


@pytest.mark.parametrize("optimizer", [ADAM, ADAMW], ids=lambda o: o["name"])
@pytest.mark.parametrize("name", ["L-RN1", "L-RN2"])
def test_training_with_penalised_biases_is_the_plain_loop(optimizer: dict, name: str) -> None:
    """The blocks' biases under lambda, and under AdamW's decay; those of lin_0 and W_L under neither."""
    spec = experiment(
        model=architecture(name, "post", last_bias=True),
        optimizer=optimizer,
        penalty={"rule": "over_depth", "value": 0.3, "last_layer": 0.05, "biases": True},
    )
    data = vector_data()
    (trained,) = train(spec, data)
    expected = naive_training(spec, data, depth=3, inner=0.1, last=0.05, biases=True)
    for key, value in expected.items():
        torch.testing.assert_close(trained.state[key], value, rtol=1e-9, atol=1e-11)
    squares = sum((value**2).sum() for key, value in expected.items() if "blocks" in key and "bias" in key)
    assert squares > 1e-4


@pytest.mark.parametrize(("name", "norm"), ARCHITECTURES)
@pytest.mark.parametrize("data", [vector_data(), token_data()], ids=["vectors", "tokens"])
def test_a_run_does_not_depend_on_its_batch(name: str, norm: str, data: Prepared) -> None:
    """Alone, in 3 and in 5: the same bytes of weights and the same history, in float32."""
    if data.kind == "tokens" and "R" in name:
        pytest.skip("ResNets take no tokens")
    tokens = data.kind == "tokens"
    patch = {"patch": 2} if "T" in name and not tokens else {}
    text = {"data": TEXT} if tokens else {}
    spec = experiment(model=architecture(name, norm, **patch), epochs=4, log_every=2, **text)
    (alone,) = train(spec, data, seeds=[2], precision="float32")
    for seeds in ([0, 1, 2], [4, 3, 9, 2, 1]):
        batched = train(spec, data, seeds=seeds, precision="float32")[seeds.index(2)]
        assert batched.history == alone.history
        assert all(torch.equal(batched.state[key], alone.state[key]) for key in alone.state)


def test_runs_in_a_batch_keep_their_own_numbers() -> None:
    """Different learning rates, penalties and mini-batch orders side by side equal the runs alone."""
    specs = [
        experiment(
            batch_size=5,
            optimizer=ADAMW | {"learning_rate": rate, "beta2": beta2},
            penalty={"rule": "constant", "value": value, "last_layer": last, "biases": biases},
        )
        for rate, beta2, value, last, biases in (
            (0.01, 0.9, 0.1, None, False),
            (0.03, 0.99, 0.0, 0.2, True),
            (0.002, 0.999, 0.5, 0.0, True),
        )
    ]
    runs = [Run("x", 3, seed, spec) for seed, spec in enumerate(specs)]
    together = train_batch(runs, vector_data(), CPU, "float32")
    for run, batched in zip(runs, together, strict=True):
        (alone,) = train_batch([run], vector_data(), CPU, "float32")
        assert batched.history == alone.history
        assert all(torch.equal(batched.state[key], alone.state[key]) for key in alone.state)


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize(("name", "norm"), ARCHITECTURES)
def test_penalty_touches_exactly_its_parameters(name: str, norm: str, biases: bool) -> None:
    """Value as written out, gradient lambda W on what is penalised and exactly 0 elsewhere."""
    data = vector_data()
    patch = {"patch": 2} if "T" in name else {}
    spec = experiment(
        model=architecture(name, norm, last_bias=True, **patch),
        penalty={"rule": "over_depth", "value": 0.6, "last_layer": 0.07, "biases": biases},
    )
    network = build_model(spec.model, input_shape(data, spec.model), 3, 3, 0).double()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1)
    stack = Stack([network], CPU, torch.float64)
    strengths = penalty_strengths(stack, runs_of(spec))
    expected = naive_penalty(network, 0.2, 0.07, biases)
    torch.testing.assert_close(penalty(stack.values, strengths), expected.reshape(1).detach())
    gradient = strengths * stack.values
    for key, parameter in network.named_parameters():
        wanted = torch.autograd.grad(expected, parameter, retain_graph=True, allow_unused=True)[0]
        found = stack.view(gradient, key)[0]
        if wanted is None:
            assert not found.any(), key
        else:
            torch.testing.assert_close(found, wanted)


def test_history_is_the_objective_at_the_logged_epochs() -> None:
    spec = experiment(epochs=12, log_every=5)
    data = vector_data()
    (trained,) = train(spec, data)
    assert [point.epoch for point in trained.history] == [0, 5, 10, 12]
    network = build_model(spec.model, input_shape(data, spec.model), 3, 3, 0).double()
    network.load_state_dict(trained.state)
    end = trained.history[-1]
    with torch.no_grad():
        fit = F.cross_entropy(network(data.train.inputs.double()), data.train.labels).item()
        wrong = (network(data.test.inputs.double()).argmax(1) != data.test.labels).double().mean().item()
        assert end.fit == pytest.approx(fit, rel=1e-12)
        assert end.penalty == pytest.approx(naive_penalty(network, 0.005, 0.005).item(), rel=1e-12)
        assert end.loss == pytest.approx(end.fit + end.penalty, rel=1e-12)
        assert end.test_error == pytest.approx(wrong)
    assert end.learning_rate == pytest.approx(0, abs=1e-12)
    assert trained.history[1].learning_rate == pytest.approx(0.01 * (1 + math.cos(math.pi * 5 / 12)) / 2)


def test_a_diverging_run_stops_at_its_last_finite_state_and_harms_no_neighbour() -> None:
    tame = experiment(optimizer=SGD, epochs=40)
    wild = experiment(
        optimizer=SGD | {"learning_rate": 1e30},
        penalty={"rule": "constant", "value": 0.5, "last_layer": None},
        epochs=40,
    )
    runs = [Run("x", 3, 0, tame), Run("x", 3, 1, wild), Run("x", 3, 2, tame)]
    data = vector_data()
    left, middle, right = train_batch(runs, data, CPU, "float32")
    assert middle.diverged_at is not None
    assert 0 < middle.diverged_at < 5
    assert all(tensor.isfinite().all() for tensor in middle.state.values())
    assert [point.epoch for point in middle.history] == [0]
    assert math.isfinite(middle.history[0].loss)
    for run, neighbour in ((runs[0], left), (runs[2], right)):
        (alone,) = train_batch([run], data, CPU, "float32")
        assert neighbour.diverged_at is None
        assert neighbour.history == alone.history


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
    (before,) = train(growing(trained.diverged_at - 2), vector_data(), precision="float32")
    assert before.diverged_at is None
    assert all(torch.equal(trained.state[name], tensor) for name, tensor in before.state.items())
    (after,) = train(growing(trained.diverged_at - 1), vector_data(), precision="float32")
    assert after.diverged_at == trained.diverged_at - 1
    assert all(torch.equal(after.state[name], tensor) for name, tensor in before.state.items())


def test_divergence_in_the_last_step_is_seen() -> None:
    """The last update is followed by no further step, only by the last row of the history."""
    spec = experiment(
        optimizer=SGD | {"learning_rate": 1e38},
        schedule={"name": "constant"},
        penalty={"rule": "constant", "value": 1.0, "last_layer": None},
        epochs=1,
    )
    (trained,) = train(spec, vector_data(), precision="float32")
    assert trained.diverged_at == 1
    assert all(tensor.isfinite().all() for tensor in trained.state.values())


def test_lbfgs_is_the_plain_loop() -> None:
    """Same weights as torch.optim.LBFGS on one network; a batch trains its runs one by one."""
    spec = experiment(
        optimizer={"name": "lbfgs", "learning_rate": 0.5, "memory": 5},
        schedule={"name": "constant"},
        epochs=10,
    )
    data = vector_data()
    other, trained = train(spec, data, seeds=[1, 0])
    network = build_model(spec.model, input_shape(data, spec.model), 3, 3, 0).double()
    search = torch.optim.LBFGS(
        network.parameters(), 0.5, max_iter=1, max_eval=26, history_size=5, line_search_fn="strong_wolfe"
    )

    def closure() -> torch.Tensor:
        search.zero_grad()
        fit = F.cross_entropy(network(data.train.inputs.double()), data.train.labels)
        loss = fit + naive_penalty(network, 0.005, 0.005)
        loss.backward()
        return loss

    for _ in range(10):
        search.step(closure)
    for name, parameter in network.named_parameters():
        torch.testing.assert_close(trained.state[name], parameter.detach(), rtol=1e-7, atol=1e-9)
    losses = [point.loss for point in other.history]
    assert losses == sorted(losses, reverse=True)
    assert torch.equal(other.state["lin0.weight"], train(spec, data, seeds=[1])[0].state["lin0.weight"])


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


def test_a_search_that_has_begun_anew_in_vain_waits_for_another_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing moves where all weights are 0. It is tried once, and once more at the next learning rate."""
    session = searching(1.0, epochs=6)
    session.load_weights([{name: 0 * tensor for name, tensor in session.stack.state_of(0).items()}])
    rates = iter([[1.0], [1.0], [1.0], [0.5], [0.5], [1.0]])
    monkeypatch.setattr(session, "rates_at", lambda step: next(rates))
    calls: list[Split] = []
    count = session.loss_and_gradient
    monkeypatch.setattr(session, "loss_and_gradient", lambda part: calls.append(part) or count(part))
    tried = [len(calls) for _ in session.epochs()]
    assert [after - before for before, after in pairwise(tried)] == [2, 1, 1, 2, 1, 2]


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
    found = [factor(spec, step, 6) for step in (0, 3, 6, 2)]
    assert found == pytest.approx(factors)


def test_training_begins_with_the_weights_that_it_is_given() -> None:
    """Two runs of a batch start where others ended, each at its own; L-BFGS goes one by one."""
    data = vector_data()
    for optimizer in (ADAM, {"name": "lbfgs", "learning_rate": 1.0, "memory": 3}):
        spec = experiment(optimizer=optimizer, epochs=3, log_every=1)
        ended = train(spec, data, seeds=(3, 4))
        starts = [run.state for run in ended]
        again = train_batch(runs_of(spec, seeds=(0, 1)), data, CPU, "float64", starts=starts)
        for before, after in zip(ended, again, strict=True):
            assert after.history[0].loss == pytest.approx(before.history[-1].loss, rel=1e-12)
