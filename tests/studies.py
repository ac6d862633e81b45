"""Studies that the tests share: the text of a study.py for each kind of definition, and what uses it."""

from pathlib import Path
from typing import Any

from conftest import experiment_tree, write_params

from ncpipe.config.params import load_params
from ncpipe.config.run import Run

# A network, data and a metric
NETWORK = """
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Literal

import torch
from torch import nn

from ncpipe.config.architectures.architecture import Architecture
from ncpipe.config.bounds import Count, NonNegative
from ncpipe.models.build import Family
from ncpipe.models.inputs import flatten
from ncpipe.models.network import Layer, Network, init_weights


@dataclass(frozen=True)
class SquareModel(Architecture):
    architecture: Literal["square"]
    width: Count
    norm: ClassVar[str] = "none"
    initialisation: ClassVar[str] = "normal"
    last_bias: ClassVar[bool] = False

    def incompatibility(self, kind, source):
        return "" if kind == "vector" else f"model.architecture: square takes vectors, {source} has none"

    def depth_incompatibility(self, depth):
        return "" if depth == 2 else "L = 2"


class Square(Network):
    def __init__(self, size, classes, width):
        super().__init__()
        self.first, self.last = nn.Linear(size, width), nn.Linear(width, classes, bias=False)

    @property
    def length(self):
        return Fraction(1)

    def parameter_groups(self):
        return {"inner": [self.first], "last": [self.last]}

    def initialise(self, generator):
        init_weights(self, 1.0, False, generator)

    def layers(self, x, lengths=None):
        yield Layer("last", Fraction(1), self.first(x).square())


def build(spec, shape, classes, depth):
    return Square(shape.size, classes, spec.width)


NETWORKS = {SquareModel: Family(flatten, build)}
"""
DATA = """
import numpy as np

from ncpipe.config.specs import OwnData


@dataclass(frozen=True)
class RingsData(OwnData):
    kind: ClassVar[str] = "vector"
    source: Literal["rings"]
    per_class: Count
    noise: NonNegative
    seed: int


def rings(spec):
    draw = np.random.default_rng(spec.seed)
    labels = np.tile([0, 1], spec.per_class)
    angle = draw.uniform(0, 2 * np.pi, len(labels))
    points = np.stack([np.cos(angle), np.sin(angle)], 1) * (1 + labels[:, None])
    return {"inputs": points + spec.noise * draw.standard_normal(points.shape), "labels": labels}


DATA = {RingsData: rings}
"""
METRIC = """
from ncpipe.metrics.catalogue import Metric

SPREAD = Metric("spread", "NC1", "0", "spread", "", "", "", "every, both")
METRICS = {SPREAD: lambda classes: classes.squares.sum() / classes.samples}
"""
WHOLE = NETWORK + DATA + METRIC
FUNCTION = "lambda classes: classes.squares.sum() / classes.samples"  # of the metric
RINGS = {"source": "rings", "per_class": 10, "noise": 0.05, "seed": 0}

# Losses and an optimizer
TRAINING = """
from dataclasses import dataclass
from typing import Literal

import torch

from ncpipe.study import Fraction, NonNegative, OwnLoss, OwnOptimizer, Positive


@dataclass(frozen=True)
class PolyLoss(OwnLoss):
    name: Literal["poly"]
    epsilon: NonNegative


def poly(logits, labels, spec):
    own = logits.log_softmax(-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    return -own + spec.epsilon * (1 - own.exp())


@dataclass(frozen=True)
class PairLoss(OwnLoss):
    name: Literal["pairs"]
    compares_samples = True


def pairs(features, labels, weight):
    same = labels.unsqueeze(0) == labels.unsqueeze(1)
    return (torch.cdist(features, features) * same).mean() + (features @ weight.T).square().mean()


@dataclass(frozen=True)
class HeavyBall(OwnOptimizer):
    name: Literal["heavy_ball"]
    learning_rate: Positive
    momentum: Fraction
    state = ("velocity",)


def heavy_ball(weights, gradients, state, rate, spec):
    for name, gradient in gradients.items():
        state["velocity"][name] = spec.momentum * state["velocity"][name] + gradient
    return {name: value - rate * state["velocity"][name] for name, value in weights.items()}


LOSSES = {PolyLoss: poly, PairLoss: pairs}
OPTIMIZERS = {HeavyBall: heavy_ball}
"""
HEAVY = {"name": "heavy_ball", "learning_rate": 0.05, "momentum": 0.9}
POLY = "    return -own + spec.epsilon * (1 - own.exp())\n"  # of the loss
EVERYTHING: dict[str, Any] = experiment_tree(  # an experiment that takes all of them
    data=RINGS | {"noise": 0.5, "seed": 3},
    loss={"name": "poly", "epsilon": 1.0},
    optimizer=HEAVY,
    epochs=4,
    log_every=1,
) | {"model": {"architecture": "square", "width": 6}}

# Any module, by hooks
MODULE = """
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import nn

from ncpipe.config.specs import OwnModel
from ncpipe.models.hook_points import channels_last
from ncpipe.training.hooked import Hooked


@dataclass(frozen=True)
class OwnNet(OwnModel):
    architecture: Literal["net"]
    last_bias: ClassVar[bool] = True


class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.stem = nn.Linear(64, 8)
        self.shift = nn.Parameter(torch.zeros(8))
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(8, classes)

    def forward(self, x):
        x = self.stem(x.flatten(1)) + self.shift
        for block in self.blocks:
            x = x + block(x).relu()
        return self.head(self.drop(x))


def build(spec, shape, classes, depth):
    return Net(classes)


NETWORKS = {OwnNet: Hooked(build, "head", ["stem", "blocks.*"])}
"""
GRU = (
    ("nn.Linear(64, 8)", "nn.GRU(8, 8, batch_first=True)"),
    ("self.stem(x.flatten(1))", "self.stem(x.squeeze(1))[0][:, -1]"),
    ('["stem", "blocks.*"]', '{"stem": channels_last, "blocks.*": None}'),
)
BRANCH = (
    ("        return self.head", "        x = 2 * x if x.sum().item() > 0 else x\n        return self.head"),
)
NO_DROP = (("nn.Dropout(0.5)", "nn.Identity()"),)
DIGITS = {"source": "digits", "per_class": 4, "test_per_class": 4, "seed": 0, "normalisation": "unit"}
OF_MODULE: dict[str, Any] = experiment_tree(
    data=DIGITS,
    optimizer={"name": "sgd", "learning_rate": 0.05, "momentum": 0.9},
    epochs=6,
    log_every=1,
    batch_size=15,
) | {"model": {"architecture": "net"}}

# A training loop
LOOP = """
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ncpipe.study import Count, OwnTraining, Positive
from ncpipe.metrics.catalogue import Metric
from ncpipe.training.own_loop import Training


@dataclass(frozen=True)
class Plain(OwnTraining):
    name: Literal["plain"]
    learning_rate: Positive
    epochs: Count


class Net(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.stem = nn.Conv2d(1, 6, 3, padding=1)
        self.body = nn.Sequential(*(nn.Sequential(nn.Conv2d(6, 6, 1), nn.ReLU()) for _ in range(depth)))
        self.drop = nn.Dropout(0.1)
        self.fc = nn.Linear(6, 3)

    def forward(self, x):
        return self.fc(self.drop(self.body(self.stem(x)).mean((2, 3))))


def samples(seed):
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(3).repeat_interleave(20)
    centres = 2 * torch.randn(3, 1, 4, 4, generator=torch.Generator().manual_seed(9))
    return TensorDataset(centres[labels] + torch.randn(60, 1, 4, 4, generator=draw), labels)


def build(spec, depth):
    return Net(depth)


def loaders(spec, seed):
    train, test = samples(0), samples(1)
    return DataLoader(train, 15, shuffle=True), DataLoader(train, 25), DataLoader(test, 25)


def train(model, spec, seed, device, log):
    batches, *_ = loaders(spec, seed)
    optimizer = torch.optim.SGD(model.parameters(), spec.learning_rate, momentum=0.9)
    if state := log.resume():
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    for epoch in range(log.epoch + 1, spec.epochs + 1):
        total = wrong = count = 0
        for x, y in batches:
            logits = model(x.to(device))
            loss = nn.functional.cross_entropy(logits, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total, count = total + len(y) * loss.item(), count + len(y)
            wrong += (logits.argmax(1) != y).sum().item()
        log(epoch, loss=total / count, train_error=wrong / count)
        log.checkpoint({"model": model.state_dict(), "optimizer": optimizer.state_dict()})


def spread(samples):
    return sum(h.square().sum() for h, _ in samples)


TRAININGS = {Plain: Training(build, loaders, train)}
METRICS = {Metric("spread", "-", "-", "sum of squares", "-", "[0, inf)", "", "every, both"): spread}
"""
OF_LOOP = """\
sweep: {experiments: [plain], depths: [2], seeds: [0]}
compute: {device: cpu, threads: 1, precision: float32}
convergence: {train_error: 1.0, window: 0.5, tolerance: 100.0, gradient: null}
slopes: {seed: 0, level: 0.95}
effective_depth: {tolerance: 0.1}
about: {plain: {question: "Does it collapse?"}}
experiments:
  plain:
    training: {name: plain, learning_rate: 0.05, epochs: 4}
    measure: {classifier: fc, layers: [stem, body]}
    history: {metrics: [nc1_trace_ratio], at: [0, 0.5, 1]}
"""

# Stages, columns of runs and keys
STAGES = """
from dataclasses import dataclass

from matplotlib.figure import Figure

from ncpipe.study import Count, InputError, Positive, Stage, load_params, trained_runs


@dataclass(frozen=True)
class Limits:
    \"\"\"limit: largest norm.\"\"\"

    limit: Positive
    word: str = "norm"

    def __post_init__(self):
        if self.limit > 10:
            raise ValueError("limit: too large for us")


def norms(experiment, power: Count = 2):
    \"\"\"Return the norm of each run's last layer.\"\"\"
    for trained in trained_runs(experiment):
        norm = trained.weights["last.weight"].abs().pow(power).sum() ** (1 / power)
        again = float(trained.network.last.weight.detach().norm())
        samples = len(trained.data.train)
        yield {**trained.run.columns, "norm": norm, "again": again, "samples": samples}


def limits(factor: Positive):
    figure = Figure()
    figure.subplots().plot([1, 2])
    return {"limits": [{"limit": factor * load_params().limit}], "line": figure}


def square(trained):
    return trained.features.weight.square().sum()


def two(trained):
    return {"kind": trained.run.spec.loss_name, "twice": 2 * square(trained)}


WORDS = {"known": ["norm"]}  # which no experiment picks
STAGES = {"norms": Stage(norms), "limits": Stage(limits, report=False)}
RUN_COLUMNS = {"square": square, ("kind", "twice"): two}
PARAMS = Limits
"""


def changed(text: str, *changes: tuple[str, str]) -> str:
    """Replace pieces of a study, each of which it has once."""
    for before, after in changes:
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    return text


def write_study(text: str, spec: dict[str, Any], *changes: tuple[str, str]) -> Run:
    """Write study.py with pieces replaced, and params.yaml; return the run of seed 0 of `own`."""
    Path("study.py").write_text(changed(text, *changes), encoding="utf-8")
    write_params([2], [0, 1], own=spec)
    return load_params().run("own", 2, 0)
