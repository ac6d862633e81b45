"""Any module as a network of a study: by hooks, with dropout, frozen and raw parameters, GRU, branches."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import vector_data
from studies import BRANCH, GRU, MODULE, NO_DROP, OF_MODULE, write_study
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
from ncpipe.training.loop import train_batch
from ncpipe.training.session import Session
from ncpipe.training.stack import Stack

CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("study_folder")


def written(*changes: tuple[str, str], **keys: Any) -> Run:
    return write_study(MODULE, OF_MODULE | keys, *changes)


def digits(run: Run) -> Any:
    return prepare(run.spec.data, Path("raw"), None, progress=False)


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
        place = name.replace("head.", "last.") if name.startswith("head.") else f"module.{name}"
        value, gradient = run.spec.penalty.inner_strength(2), parameter.grad
        assert gradient is not None
        decay = value * parameter if parameter.dim() > 1 else 0
        expected = parameter - 0.05 * (gradient + decay)
        torch.testing.assert_close(trained.state[place], expected.detach(), rtol=1e-4, atol=1e-6)


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


def test_what_vmap_cannot_run_is_run_one_by_one_and_said(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As elsewhere than on the CPU, with the same numbers. Red: a refusal; silence; a word where vmap can."""
    for changes, together in ((NO_DROP, True), ((), False), (GRU, False), (BRANCH, False)):
        run = written(*changes)
        check_study(load_params())
        capfd.readouterr()
        data = digits(run)
        sessions = [Session([run, replace(run, seed=1)], data, CPU, torch.float32) for _ in "ab"]
        monkeypatch.setattr(sessions[1].stack, "_together", None)
        (one, gradient), (two, other) = (session.loss_and_gradient(session.train) for session in sessions)
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(gradient, other, rtol=1e-4, atol=1e-6)
        output = capfd.readouterr().err
        assert output.count("train one at a time; vmap cannot run it") == (0 if together else 1)


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
