"""What trains, in one table: every architecture, loss, optimizer and kind of data, each in a small case."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import test_next_tokens
import torch
from conftest import TEXT, architecture, experiment_tree, image_data, token_data, vector_data
from studies import BRANCH, GRU, HEAVY, MODULE, NETWORK, NO_DROP, OF_MODULE, TRAINING, changed

from ncpipe.config.experiment import Experiment
from ncpipe.config.records import read
from ncpipe.config.run import Run
from ncpipe.config.sources.generated import FreeData, TeacherData
from ncpipe.config.study import load_study
from ncpipe.config.unions import specs_of_study
from ncpipe.datasets.markov import prepare_markov
from ncpipe.datasets.prepare import prepare
from ncpipe.datasets.prepared import Prepared
from ncpipe.training.checkpoints import Checkpoints, Stopped
from ncpipe.training.loop import train_batch
from ncpipe.training.session import Trained

CPU = torch.device("cpu")
LOW_RANK = Path(__file__).resolve().parents[1] / "stages/low_rank"
DUFM_STUDY = (LOW_RANK / "study.py").read_text(encoding="utf-8")
VECTORS, IMAGES = vector_data(), image_data(side=8, per_class=6)
IMAGES.train.inputs.copy_((64 * IMAGES.train.inputs).round() / 64)  # means of 4 pixels are exact in float32
DIGITS = {"source": "digits", "per_class": 6, "test_per_class": 3, "seed": 0, "normalisation": "standardise"}
HISTORY = {"at": [0, 0.5, 1], "metrics": ["nc1_trace_ratio"]}
FREE = {"source": "free", "classes": 4, "per_class": 3}
AUGMENTATION = {"shift": 2, "flip": True}

# Models
MLP = {
    "architecture": "mlp", "norm": "batch", "activation": "relu", "width": 7, "bias": True, "last_bias": True,
    "initialisation": "normal", "gain": 1.4, "batch_norm_eps": 1e-5,
}  # fmt: skip
PLAIN = {key: value for key, value in MLP.items() if key != "batch_norm_eps"} | {"norm": "none"}
SMOOTH = PLAIN | {"activation": "tanh", "gain": 1.0}
RESNET = {
    "architecture": "resnet_cifar", "width": 3, "head_layers": 2, "head_width": 5, "gain": 1.0,
    "batch_norm_eps": 1e-5,
}  # fmt: skip
HEADLESS = {key: value for key, value in RESNET.items() if key != "head_width"} | {"head_layers": 0}
CONV = {
    "architecture": "conv_net", "pooled": 2, "channels": [3, 4], "width": 6, "feature_gain": 0.5, "gain": 1.0,
    "batch_norm_eps": 1e-5,
}  # fmt: skip
DUFM = {
    "architecture": "dufm", "width": 7, "columns": "own", "initialisation": "normal", "gain": 1.0,
    "feature_deviation": 0.8,
}  # fmt: skip
SQUARE = {"architecture": "square", "width": 5}  # of NETWORK
DEPTHS = {"mlp": 4, "resnet_cifar": 8, "conv_net": 4, "dufm": 3}

# Optimizers
SGD = {"name": "sgd", "learning_rate": 0.05, "momentum": 0.9}
ADAM = {"name": "adam", "learning_rate": 0.01, "beta1": 0.8, "beta2": 0.99, "eps": 1e-6}
ADAMW = ADAM | {"name": "adamw", "weight_decay": 0.1}
MUON = {
    "name": "muon", "learning_rate": 0.01, "momentum": 0.9, "adam_learning_rate": 0.01, "beta1": 0.9,
    "beta2": 0.99, "eps": 1e-8,
}  # fmt: skip
TORCH = {"name": "torch", "class": "RMSprop", "learning_rate": 0.01}
SEARCH = {"name": "lbfgs", "learning_rate": 1.0, "memory": 3}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": SGD,
    "adamw": ADAMW,
    "lion": {"name": "lion", "learning_rate": 0.01, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1},
    "sign_sgd": {"name": "sign_sgd", "learning_rate": 0.01, "momentum": 0.9},
    "muon": MUON,
    "torch": TORCH,
}

# Objectives
ETF = {"last_bias": False, "classifier": {"kind": "etf", "length": 1.5}}
SUPCON = {"name": "supcon", "temperature": 0.4}
FEATURES = {"rule": "constant", "value": 0.01, "last_layer": None, "features": 0.02}
HEAD = {"rule": "constant", "value": 0.02, "last_layer": 0.05, "scope": "head", "features": 0.003}
UNEQUAL = {"rule": "constant", "value": 0.003, "last_layer": None, "layers": [0.001, 0.002, 0.004]}
# What an experiment with the model SMOOTH changes.
KINDS: dict[str, dict[str, Any]] = {
    "supcon": {"loss": SUPCON},
    "supcon_with_itself": {"loss": SUPCON | {"include_self": True}},
    "smoothed_ce": {"loss": {"name": "ce", "smoothing": 0.2}},
    "smoothed_mse": {"loss": {"name": "mse", "smoothing": 0.2}},
    "dot_regression": {"loss": "dot_regression", "new_model": SMOOTH | ETF},
    "etf": {"new_model": SMOOTH | ETF},
    "features": {"penalty": FEATURES},
}
LOSSES: list[Any] = [
    "mse",
    {"name": "focal", "gamma": 0.5, "alpha": [0.2, 0.3, 0.5]},
    {"name": "ldam", "max_margin": 0.5, "scale": 1.0, "cosines": False},
    {"name": "ldam", "max_margin": 0.5, "scale": 30.0, "cosines": True},
    {"name": "logit_adjusted", "tau": 1.0},
]


def tree_of(new_model: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """The small experiment with changes, and with a model's own keys in place of its model's."""
    if new_model is not None and new_model["architecture"] in ("resnet_cifar", "conv_net"):
        changes = {"data": DIGITS} | changes
    return experiment_tree(**changes) | ({} if new_model is None else {"model": new_model})


def free_tree(new_model: dict[str, Any] = DUFM, **changes: Any) -> dict[str, Any]:
    """An experiment of free features by gradient descent; data=... updates the data's keys."""
    keys = {
        "loss": "mse",
        "penalty": UNEQUAL,
        "optimizer": {"name": "sgd", "learning_rate": 0.5, "momentum": 0.0},
        "schedule": {"name": "constant"},
        "batch_size": "full",
    }
    return tree_of(new_model, **keys | changes | {"data": FREE | changes.get("data", {})})


def spec_of(new_model: dict[str, Any] | None = None, **changes: Any) -> Experiment:
    spec: Experiment = read(Experiment, tree_of(new_model, **changes), "experiments.x")
    return spec


def run_of(new_model: dict[str, Any] | None = None, seed: int = 0, depth: int = 0, **changes: Any) -> Run:
    """A run of the depth that its family has here."""
    spec = spec_of(new_model, **changes)
    return Run("x", depth or DEPTHS.get(spec.model.architecture, 3), seed, spec)


def kind_of(kind: str, **changes: Any) -> Run:
    """A run of one of KINDS, three layers deep."""
    return run_of(**{"new_model": SMOOTH, "depth": 3} | KINDS.get(kind, {}) | changes)


def free_run(new_model: dict[str, Any] = DUFM, seed: int = 0, depth: int = 3, **changes: Any) -> Run:
    """A run of dufm; what trains it needs the study that has dufm (the fixture `low_rank`)."""
    if without := not specs_of_study():
        load_study(LOW_RANK)
    spec = read(Experiment, free_tree(new_model, **changes), "experiments.x")
    if without:
        load_study(LOW_RANK / "nowhere")
    return Run("x", depth, seed, spec)


def free_data(run: Run) -> Prepared:
    assert isinstance(run.spec.data, FreeData)
    return prepare(run.spec.data, Path(), None, progress=False)


@dataclass(frozen=True)
class Case:
    """Runs that differ by their seed, their data, and the study.py that they need, if any."""

    run: Callable[[int], Run]
    data: Prepared
    study: str = ""

    def runs(self, *seeds: int) -> list[Run]:
        if self.study:
            Path("study.py").write_text(self.study)
            load_study(Path())
        return [self.run(seed) for seed in seeds]


def case(
    new_model: dict[str, Any] | None = None, data: Prepared = VECTORS, study: str = "", **changes: Any
) -> Case:
    keys = {"epochs": 5, "log_every": 2, "batch_size": 7} | changes
    return Case(lambda seed: run_of(new_model, seed, **keys), data, study)


def network(name: str, norm: str, data: Prepared, study: str = "", **changes: Any) -> Case:
    """Of S25's architectures: pre-LN on full batches, post-LN on mini-batches."""
    keys = architecture(name, norm) | ({"patch": 2} if data.kind == "image" else {})
    text = {"data": TEXT} if data.kind == "tokens" else {}
    full = {"batch_size": "full"} if norm == "pre" else {}
    spec = {"epochs": 5, "log_every": 2, "batch_size": 7, "model": keys} | text | full | changes
    return Case(lambda seed: run_of(None, seed, 2, **spec), data, study)


DRAWS = {  # of as many numbers as `value` has
    "torch": "torch.randn(value.numel())",
    "numpy": "torch.as_tensor(np.random.standard_normal(value.numel()), dtype=torch.float32)",
    "random": "torch.full((value.numel(),), random.gauss(0, 1))",
}

BY_PYTORCH = (
    "init_weights(self, 1.0, False, generator)",
    "[layer.reset_parameters() for layer in (self.first, self.last)]",
)


def of_module(*changes: tuple[str, str]) -> Case:
    """Any module, taken by hooks, on images of digits."""
    keys = {key: value for key, value in OF_MODULE.items() if key != "model"}
    return Case(lambda seed: run_of(OF_MODULE["model"], seed, 2, **keys), PIXELS, changed(MODULE, *changes))


RN, TRANSFORMER = ("L-RN1", "post", VECTORS), ("L-T11", "pre", image_data())
NETWORKS = [
    RN,
    ("L-RN2", "pre", VECTORS),
    TRANSFORMER,
    ("L-T12", "post", image_data()),
    ("L-T21", "pre", image_data()),
    ("L-T11", "post", token_data()),
    ("L-T22", "pre", token_data()),
    ("L-T11", "post", token_data(context=70)),  # beyond 64 tokens, which take the fused attention
]
FREE_DATA = prepare(FreeData("free", 4, 3), Path(), None, progress=False)
TEACHER = {
    "source": "teacher", "dimension": 6, "covariance": [[1.0, 0.5], [0.5, 0.8]], "hidden": 10, "samples": 24,
    "test_samples": 8, "seed": 0,
}  # fmt: skip
TARGETS = prepare(read(TeacherData, TEACHER), Path(), None, progress=False)
PIXELS = prepare(spec_of(data=OF_MODULE["data"]).data, Path(), None, progress=False)
CASES: dict[str, Case] = {
    **{
        f"{n} {norm} {data.kind} {data.train.inputs.shape[1]}": network(n, norm, data)
        for n, norm, data in NETWORKS
    },
    **{f"optimizer {name}": network(*RN, optimizer=keys) for name, keys in OPTIMIZERS.items()},
    "optimizer muon of a transformer": network(*TRANSFORMER, optimizer=MUON),
    "optimizer lbfgs": network(*RN, optimizer=SEARCH, batch_size="full"),
    **{f"loss {index}": network(*RN, loss=keys) for index, keys in enumerate(LOSSES)},
    **{f"objective {kind}": case(**{"new_model": SMOOTH, "depth": 3} | keys) for kind, keys in KINDS.items()},
    "vectors": Case(lambda seed: run_of(SMOOTH, seed, data=TEACHER, loss="mse", penalty=FEATURES, epochs=5,
     log_every=2, batch_size=7), TARGETS),
    "mlp": case(MLP),
    "mlp, full": case(MLP, batch_size="full"),
    "resnet_cifar": case(RESNET, IMAGES, batch_size=5),
    "augmentation": case(CONV, IMAGES, augmentation=AUGMENTATION),
    "augmentation, full": case(CONV, IMAGES, augmentation=AUGMENTATION, batch_size="full"),
    "conv_net": case(CONV, IMAGES, loss="mse", penalty=HEAD),
    "dufm": Case(lambda seed: free_run(seed=seed, epochs=5, log_every=2), FREE_DATA, DUFM_STUDY),
    "dufm, batches": Case(
        lambda seed: free_run(seed=seed, epochs=5, log_every=2, batch_size=5), FREE_DATA, DUFM_STUDY
    ),
    "next_tokens": Case(lambda seed: test_next_tokens.run(seed, epochs=5),
     prepare_markov(test_next_tokens.LANGUAGE)),
    "a study's loss": case(study=TRAINING, loss={"name": "poly", "epsilon": 1.0}),
    "a study's loss of pairs": case(study=TRAINING, loss={"name": "pairs"}),
    "a study's optimizer": case(study=TRAINING, optimizer=HEAVY),
    "a study's network": case(SQUARE, study=NETWORK),
    **{
        f"metrics through training {index}": network(*RN, history=HISTORY, **changes)
        for index, changes in enumerate(({}, {"optimizer": SEARCH, "batch_size": "full"}))
    },
    "a study's module": of_module(*NO_DROP),
}  # fmt: skip
# What draws at random, or decides on the host, in each step, so that no graph of it is recorded.
OF_THE_HOST: dict[str, Case] = {
    "a study's module with dropout": of_module(),
    "a study's module with a GRU": of_module(*GRU),
    "a study's module with a branch": of_module(*BRANCH),
    "a study's network drawn by PyTorch": case(SQUARE, study=changed(NETWORK, BY_PYTORCH)),
    **{
        f"a study's optimizer with noise of {library}": case(
            study="import random\nimport numpy as np\n"
            + changed(TRAINING, ("value - rate", f"value - rate * {draw}.view_as(value) - rate")),
            optimizer=HEAVY,
        )
        for library, draw in DRAWS.items()
    },
}


def assert_same(trained: list[Trained], expected: list[Trained]) -> None:
    """To the byte: history, errors that are not measured, weights, and those kept on the way."""
    for one, other in zip(trained, expected, strict=True):
        assert repr(one.history) == repr(other.history)
        assert one.diverged_at == other.diverged_at
        assert one.snapshots.keys() == other.snapshots.keys()
        states = [[run.state, *run.snapshots.values()] for run in (one, other)]
        for weights, others in zip(*states, strict=True):
            assert weights.keys() == others.keys()
            assert all(torch.equal(weights[name], tensor) for name, tensor in others.items())


def files_of(runs: Sequence[Run], folder: Path) -> Checkpoints:
    return Checkpoints([folder / f"{run.seed}" for run in runs], 3600)


def stop_after(epochs: int, runs: Sequence[Run], data: Prepared, folder: Path) -> None:
    """Train so many epochs more, and leave each run's checkpoint in the folder."""
    files, asked = files_of(runs, folder), itertools.count()
    with pytest.raises(Stopped):
        train_batch(runs, data, CPU, "float32", checkpoints=files, stop=lambda: next(asked) == epochs)


def go_on(runs: Sequence[Run], data: Prepared, folder: Path) -> list[Trained]:
    return train_batch(runs, data, CPU, "float32", checkpoints=files_of(runs, folder))
