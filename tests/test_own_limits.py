"""What a study of one's own may draw at random, freeze and leave out, and what its metrics may see."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import experiment_tree, vector_data, write_params
from studies import EVERYTHING, FUNCTION, TRAINING, WHOLE, write_study

from ncpipe.commands.code import write_code
from ncpipe.config.params import load_params
from ncpipe.config.run import Run
from ncpipe.datasets.prepare import prepare
from ncpipe.datasets.prepared import Prepared
from ncpipe.features.extraction import extract
from ncpipe.features.own_metrics import own_measurements
from ncpipe.features.run_metrics import describe
from ncpipe.features.trained_run import TrainedRun
from ncpipe.models.build import build_network
from ncpipe.runs.study_check import check_study
from ncpipe.system.errors import InputError
from ncpipe.system.randomness import global_generators
from ncpipe.training.loop import train_batch

CPU = torch.device("cpu")
STUDY = "import random\n" + WHOLE + TRAINING
METRICS = f"METRICS = {{SPREAD: {FUNCTION}}}\n"
LAYERS = "self.first, self.last = nn.Linear(size, width), nn.Linear(width, classes, bias=False)"
DRAWS = {
    "torch": "torch.randn({})",
    "numpy": "torch.as_tensor(np.random.standard_normal({}), dtype=torch.float32)",
    "random": "torch.full(({},), random.gauss(0, 1))",
}

pytestmark = pytest.mark.usefixtures("study_folder")


def written(*changes: tuple[str, str], **keys: Any) -> Run:
    """Write the study with pieces replaced; return its run of seed 0."""
    return write_study(STUDY, EVERYTHING | keys, *changes)


def trained(run: Run, data: Prepared | None = None) -> dict[str, torch.Tensor]:
    """Return a run's weights, after draws that another process would not have made."""
    torch.rand(3), np.random.rand(3), random.random()  # noqa: NPY002
    data = data or prepare(run.spec.data, Path("raw"), None, progress=False)
    return train_batch([run], data, CPU, "float32")[0].state


# ---- Draws at random ------------------------------------------------------------------------------------


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_data_that_are_drawn_globally_are_of_the_datas_seed(draw: str) -> None:
    """Red: other data at each fetch."""
    drawn = draw.format("40") + ".reshape(20, 2).numpy()"
    run = written(("draw.standard_normal(points.shape)", drawn))
    inputs = []
    for seed in (3, 3, 4):
        torch.rand(3), np.random.rand(3), random.random()  # noqa: NPY002
        spec = replace(run.spec.data, seed=seed)
        inputs.append(prepare(spec, Path("raw"), None, progress=False).train.inputs)
    assert torch.equal(inputs[0], inputs[1])
    assert not torch.equal(inputs[0], inputs[2])
    check_study(load_params())


def test_global_generators_are_as_before_after_a_block() -> None:
    """Red: code of a user's own that draws the same numbers after each call."""
    torch.manual_seed(1)
    one = torch.rand(1)
    torch.manual_seed(1)
    with global_generators(0, "x"):
        drawn = torch.rand(1), np.random.rand(), random.random()  # noqa: NPY002
    assert torch.equal(torch.rand(1), one)
    with global_generators(0, "x"):
        assert (torch.rand(1), np.random.rand(), random.random()) == drawn  # noqa: NPY002
    with global_generators(0, "y"):
        assert torch.rand(1) != drawn[0]


# ---- Frozen parameters ----------------------------------------------------------------------------------


def test_a_parameter_without_a_gradient_is_frozen() -> None:
    """Neither learned nor penalised, and no bound is told. Red: the head moves by 1.27."""
    frozen = (LAYERS, f"{LAYERS}\n        self.last.weight.requires_grad_(False)")
    run = written(frozen, loss="ce", penalty={"rule": "constant", "value": 0.1, "last_layer": None})
    data = prepare(run.spec.data, Path("raw"), None, progress=False)
    start = {name: value.detach() for name, value in build_network(run, data).named_parameters()}
    state = trained(run, data)
    assert torch.equal(state["last.weight"], start["last.weight"])
    assert not torch.equal(state["first.weight"], start["first.weight"])
    features = extract(run, state, data, CPU)
    assert features.last_penalty == 0
    row = describe(run, features, {"finished": True, "diverged_at_epoch": None})
    assert row["bound_detail"] == "a fixed classifier"
    check_study(load_params())


# ---- Metrics --------------------------------------------------------------------------------------------


def measured(run: Run, data: Prepared) -> dict[tuple[str, str, str], float]:
    (result,) = train_batch([run], data, CPU, "float32")
    features = extract(run, result.state, data, CPU)
    rows = own_measurements(run, features, TrainedRun(run, result.state, prepared=data))
    return {(row.layer, row.split, row.metric): row.value for row in rows}


TWO = """
def destructive(classes, weight):
    classes.means.zero_()
    classes.squares.numpy()[:] = 0
    weight.zero_()
    return 0.0


def after(classes, weight):
    return classes.means.norm() + classes.squares.sum() + weight.norm()


FIRST = Metric("destructive", "NC1", "0", "m", "", "", "", "last, both")
SECOND = Metric("after", "NC1", "0", "m", "", "", "", "last, both")
METRICS = {FIRST: destructive, SECOND: after}
"""


def test_a_metric_cannot_change_what_the_next_one_sees() -> None:
    """By PyTorch or NumPy. Red: the next metric's means are 0."""
    metrics = (METRICS, TWO)
    run = written(metrics)
    data = vector_data()
    values = measured(run, data)
    run = written(metrics, ("{FIRST: destructive, SECOND: after}", "{SECOND: after}"))
    assert values["last", "train", "after"] == measured(run, data)["last", "train", "after"] > 0


PAIR = """
def nearest(samples, train_samples):
    train = torch.cat([h for h, _ in train_samples])
    return torch.cat([torch.cdist(h, train).amin(1) for h, _ in samples]).mean()


NEAREST = Metric("nearest", "test", "0", "m", "", "", "", "every, both")
METRICS |= {NEAREST: nearest}
"""


def test_a_metric_is_computed_on_the_target_split() -> None:
    """Of classes that the network was not trained on, against NumPy. Red: the split is left out."""
    asked = {"source": [0, 1, 2], "target": [3, 4], "shots": [2], "episodes": 2, "seed": 0, "head": ["ncc"]}
    digits = {"source": "digits", "per_class": 8, "test_per_class": 4, "seed": 0, "normalisation": "unit"}
    run = written(
        (METRICS, METRICS + PAIR),
        ('if kind == "vector" else', "if True else"),
        data=digits | {"transfer": asked},
    )
    data = prepare(run.spec.data, Path("raw"), None, progress=False)
    values = measured(run, data)
    (result,) = train_batch([run], data, CPU, "float32")
    weight, bias = (result.state[f"first.{name}"].double().numpy() for name in ("weight", "bias"))
    assert data.target is not None
    h, train = (
        (split.inputs.flatten(1).double().numpy() @ weight.T + bias) ** 2
        for split in (data.target, data.train)
    )
    labels = data.target.labels.numpy()
    spread = sum(((h[labels == k] - h[labels == k].mean(0)) ** 2).sum() for k in (0, 1)) / len(h)
    assert values["last", "target", "spread"] == pytest.approx(spread, rel=1e-9)
    nearest = np.mean([np.linalg.norm(train - row, axis=1).min() for row in h])
    assert values["last", "target", "nearest"] == pytest.approx(nearest, rel=1e-6)


def test_data_with_gradients_are_taken_as_numbers() -> None:
    """Red: RuntimeError of .numpy()."""
    points = "points + spec.noise * draw.standard_normal(points.shape)"
    run = written((points, f"torch.as_tensor({points}).requires_grad_()"))
    data = prepare(run.spec.data, Path("raw"), None, progress=False)
    assert not data.train.inputs.requires_grad


def test_a_key_that_dvc_needs_is_asked_for_before_anything_trains() -> None:
    """Red: everything trains, then DVC fails at the report."""
    write_params([2], [0], own=experiment_tree())
    text = Path("params.yaml").read_text()
    assert "about" not in text
    Path("dvc.yaml").write_text("stages:\n  report:\n    cmd: a\n    params: [about, sweep.depths]\n")
    with pytest.raises(InputError, match=r"^params\.yaml: about: missing; .* write `about: null`$"):
        write_code()
    Path("params.yaml").write_text(text + "\nabout: null\n")
    write_code()
