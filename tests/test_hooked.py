"""Any module as a network of a study: by hooks, with dropout, frozen and raw parameters, GRU, branches."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import experiment_tree, refused_by, vector_data, write_changed_study
from torch import nn
from torch.nn import functional

from ncpipe.config.params import load_params
from ncpipe.config.reading import at_start
from ncpipe.config.run import Run
from ncpipe.datasets.prepare import prepare
from ncpipe.features.extraction import extract
from ncpipe.models.build import build_network
from ncpipe.runs.study_check import check_study
from ncpipe.runs.study_effect import study_effect
from ncpipe.training.checkpoints import Checkpoints, Stopped
from ncpipe.training.loop import train_batch
from ncpipe.training.session import Session
from ncpipe.training.stack import Stack

CPU = torch.device("cpu")
DIGITS = {"source": "digits", "per_class": 4, "test_per_class": 4, "seed": 0, "normalisation": "unit"}
STUDY = """
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
OWN: dict[str, Any] = experiment_tree(
    data=DIGITS,
    optimizer={"name": "sgd", "learning_rate": 0.05, "momentum": 0.9},
    epochs=6,
    log_every=1,
    batch_size=15,
) | {"model": {"architecture": "net"}}


pytestmark = pytest.mark.usefixtures("study_folder")


def written(*changes: tuple[str, str], **own: Any) -> Run:
    return write_changed_study(STUDY, changes, OWN | own)


def digits(run: Run) -> Any:
    return prepare(run.spec.data, Path("raw"), None, progress=False)


def equal(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("changes", [(), GRU, BRANCH], ids=["dropout", "GRU", "branch"])
def test_a_run_is_its_seeds_alone_stacked_and_resumed(
    changes: tuple[tuple[str, str], ...], tmp_path: Path
) -> None:
    """To the bit. Red: vmap's refusal; noise of the neighbours, or of what ran before a stop."""
    run = written(*changes)
    data = digits(run)
    runs = [replace(run, seed=seed) for seed in (1, 0)]
    alone = train_batch([run], data, CPU, "float32")[0]
    torch.rand(3)
    stacked = train_batch(runs, data, CPU, "float32")
    assert equal(alone.state, stacked[1].state)
    assert not equal(alone.state, stacked[0].state)
    assert alone.history[-1].loss < alone.history[0].loss
    checkpoints, epochs = Checkpoints([tmp_path / "kept" / "state"], 3600), iter(range(100))
    with pytest.raises(Stopped):
        train_batch([run], data, CPU, "float32", checkpoints=checkpoints, stop=lambda: next(epochs) == 3)
    assert equal(alone.state, train_batch([run], data, CPU, "float32", checkpoints=checkpoints)[0].state)
    check_study(load_params())


@pytest.mark.parametrize(("changes", "draws"), [((), True), (NO_DROP, False)])
def test_a_network_is_known_to_draw_or_not(changes: tuple[tuple[str, str], ...], draws: bool) -> None:
    """Red: one that draws nothing is seeded in each pass, and never recorded on a GPU."""
    run = written(*changes)
    session = Session([run], digits(run), CPU, torch.float32)
    session.loss_and_gradient(session.train)
    assert session.stack._draws is draws


def test_a_step_is_that_of_the_module_as_written() -> None:
    """Against autograd of the module itself, with its classifier in place, and SGD by hand."""
    run = written(*NO_DROP, batch_size="full", epochs=1)
    data = digits(run)
    namespace: dict[str, Any] = {"__name__": "study"}
    exec(Path("study.py").read_text(), namespace)
    module = namespace["Net"](10)
    network = build_network(run, data)
    state = {n.removeprefix("module."): v.detach().clone() for n, v in network.named_parameters()}
    module.load_state_dict({n.replace("last.", "head."): v for n, v in state.items()})
    loss = functional.cross_entropy(module(data.train.inputs.float()), data.train.labels)
    loss.backward()
    trained = train_batch([run], data, CPU, "float32")[0]
    assert trained.history[0].fit == pytest.approx(loss.item(), rel=1e-6)
    for name, parameter in module.named_parameters():
        own = name.replace("head.", "last.") if name.startswith("head.") else f"module.{name}"
        value, gradient = run.spec.penalty.inner_strength(2), parameter.grad
        assert gradient is not None
        decay = value * parameter if parameter.dim() > 1 else 0
        expected = parameter - 0.05 * (gradient + decay)
        torch.testing.assert_close(trained.state[own], expected.detach(), rtol=1e-4, atol=1e-6)


def test_layers_are_those_of_hooks() -> None:
    """Red: other layers, an order or positions of their own, dropout while measuring."""
    run = written()
    data = digits(run)
    network = build_network(run, data).eval()
    x = data.train.inputs.float()
    layers = list(network.layers(x))
    assert [layer.name for layer in layers] == ["stem", "blocks.0", "blocks.1", "last"]
    assert [float(layer.position) for layer in layers] == [0.25, 0.5, 0.75, 1.0]  # type: ignore[arg-type]
    stem = network.module.stem(x.flatten(1))  # type: ignore[union-attr,operator]
    torch.testing.assert_close(layers[0].values, stem)
    features = extract(run, train_batch([run], data, CPU, "float32")[0].state, data, CPU)
    assert list(features.layers) == ["stem", "blocks.0", "blocks.1", "last"]


def test_roles_follow_from_kinds_patterns_and_requires_grad() -> None:
    run = written(
        ("self.shift = nn.Parameter(torch.zeros(8))", "self.shift = nn.Parameter(torch.zeros(8))\n"
         "        self.table = nn.Embedding(2, 8)\n        self.stem.weight.requires_grad_(False)"),
        ("+ self.shift", "+ self.shift + self.table.weight[0]"),
        ('["stem", "blocks.*"]', '["blocks.*"], {"embedding": ["stem", "shift"], "head": ["blocks.1"]}'),
    )  # fmt: skip
    assert build_network(run, digits(run)).roles() == {
        "last.weight": "last",
        "last.bias": "last",
        "module.shift": "embedding",
        "module.stem.weight": "frozen",
        "module.stem.bias": "embedding",
        "module.blocks.0.weight": "inner",
        "module.blocks.0.bias": "inner",
        "module.blocks.1.weight": "head",
        "module.blocks.1.bias": "head",
        "module.table.weight": "embedding",
    }


def test_an_entry_of_lists_and_dicts_only_makes_something() -> None:
    """So that an edit elsewhere trains nothing else. Red: a list within a table has an effect."""
    written(GRU[2], ('"blocks.*": None}', '"blocks.*": None}, {"embedding": ["stem"]}'))
    assert study_effect(at_start()) is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (('"head", [', '"haed", ['), "last: the model has no layer 'haed'; did you mean 'head'?"),
        (('"head", [', '"drop", ['), "last: 'drop' is of type Dropout; name an nn.Linear inside"),
        (('"stem", "blocks', '"stam", "blocks'), "layers: the model has no layer 'stam'"),
        (('"blocks.*"', '"block.*"'), "layers: no layer of the model matches 'block.*'"),
        (('"blocks.*"]', '"blocks.*"], {"embedding": ["emb"]}'), "no parameter matches 'emb'; there are "),
        (("return Net(classes)", "return 3"), "build gives int; return a module"),
        (("self.head(self.drop(x))", "self.head(x).softmax(1)"), "does not return the logits of its last"),
        (("last_bias: ClassVar[bool] = True", "pass"), "`last` has a bias; write the ClassVar last_bias ="),
        (("self.drop(x)", "nn.functional.dropout(x)"), "another result when it is called again in eval mode"),
        (("self.stem(x.flatten(1))", "self.stem(x.squeeze(1).flatten(1)[:, None])[:, 0]"),
         "build gives a network that does not fit: layer 'stem' gives (40, 1, 8); name it with a function"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_line(change: tuple[str, str], words: str) -> None:
    written(change)
    message = refused_by(lambda: check_study(load_params()))
    assert words in message


def test_what_vmap_cannot_run_is_run_one_by_one_and_said(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As elsewhere than on the CPU, with the same numbers. Red: a refusal; silence; a word where vmap can."""
    for changes, together in ((NO_DROP, True), ((), False), (GRU, False), (BRANCH, False)):
        run = written(*changes)
        data = digits(run)
        sessions = [Session([run, replace(run, seed=1)], data, CPU, torch.float32) for _ in "ab"]
        monkeypatch.setattr(sessions[1].stack, "_together", None)
        (one, gradient), (two, other) = (each.loss_and_gradient(each.train) for each in sessions)
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(gradient, other, rtol=1e-4, atol=1e-6)
        said = capfd.readouterr().err
        assert said.count("train one at a time; vmap cannot run it") == (0 if together else 1)


def test_a_failed_trial_of_vmap_leaves_batch_norms_buffers_as_they_were() -> None:
    """Red: statistics of the batch counted twice."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.drop, self.head = nn.BatchNorm1d(2), nn.Dropout(0.5), nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.head(self.drop(self.norm(x)))
            return out

    from ncpipe.training.hooked import Hooked, HookedNetwork

    networks = [HookedNetwork(Hooked(lambda *_: Net(), "head"), Net(), False) for _ in "ab"]
    stack = Stack(networks, CPU, torch.float32, [0, 1])
    stack._together = None
    data = vector_data()
    stack.forward_with_features(replace(data.train, inputs=data.train.inputs[:, :2].float()))
    assert stack.buffers["module.norm.num_batches_tracked"].tolist() == [1, 1]
