"""Metrics of a study.py, and the pass that finds a study's mistakes before anything trains."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import experiment_tree, refused_by, vector_data, write_params

from ncpipe.commands.code import write_code
from ncpipe.commands.new import render
from ncpipe.config.params import load_params
from ncpipe.features.extraction import extract
from ncpipe.features.own_metrics import own_measurements
from ncpipe.features.trained_run import TrainedRun
from ncpipe.figures.sweep import sweep_figures
from ncpipe.runs.study_check import check_study
from ncpipe.system.errors import InputError
from ncpipe.training.loop import train_batch

STUDY, PARAMS = (render(f"own_{file}", {}) for file in ("study.py", "params.yaml"))
CPU = torch.device("cpu")


pytestmark = pytest.mark.usefixtures("study_folder")


def written(text: str = STUDY, params: str = PARAMS) -> None:
    Path("study.py").write_text(text, encoding="utf-8")
    Path("params.yaml").write_text(params, encoding="utf-8")


def test_the_starters_three_metrics_are_their_formulas() -> None:
    """Against loops over samples, pairs and matrices in NumPy. Red: a variance along another pair's line, the
    train split's samples on the test split, a bias or an embedding among the matrices; a buffer, which has no
    role, among the weights."""
    written(STUDY.replace("self.last =", 'self.register_buffer("scale", torch.ones(1))\n        self.last ='))
    data, run = vector_data(), load_params().run("sine", 3, 0)
    (trained,) = train_batch([run], data, CPU, "float32")
    features = extract(run, trained.state, data, CPU)
    measured = {
        (row.layer, row.split, row.metric): row.value
        for row in own_measurements(run, features, TrainedRun(run, trained.state, prepared=data))
    }
    state = {name: value.double().numpy() for name, value in trained.state.items()}
    assert set(measured) == {
        *(("last", "weights", name) for name in ("nc0", "norm_product")),
        *((layer, split, "spread_between_means") for layer in ("H1", "last") for split in ("train", "test")),
    }
    weight = state["last.weight"]
    assert measured["last", "weights", "nc0"] == pytest.approx(np.linalg.norm(sum(weight)), rel=1e-12)
    product = 1.0
    for name in ("maps.0.weight", "maps.1.weight", "last.weight"):
        product *= np.sqrt((state[name] ** 2).sum())
    assert measured["last", "weights", "norm_product"] == pytest.approx(product, rel=1e-12)
    for split, samples in (("train", data.train), ("test", data.test)):
        h = samples.inputs.double().numpy()
        for layer in (0, 1):
            h = np.sin(h @ state[f"maps.{layer}.weight"].T + state[f"maps.{layer}.bias"])
            mean = [h[samples.labels == k].mean(0) for k in range(3)]
            values = []
            for i in range(3):
                for j in range(3):
                    if i != j:
                        length = np.linalg.norm(mean[i] - mean[j])
                        u = (mean[i] - mean[j]) / length
                        members = h[samples.labels == i]
                        values.append(np.mean([((x - mean[i]) @ u) ** 2 for x in members]) / length**2)
            name = ("H1", "last")[layer]
            assert measured[name, split, "spread_between_means"] == pytest.approx(np.mean(values), rel=1e-9)


def test_logits_and_labels_are_those_of_the_split() -> None:
    error = "def nc0(logits, labels):\n    return (logits.argmax(1) != labels).double().mean()"
    written(STUDY.replace("def nc0(weight):\n    return weight.sum(0).norm()", error))
    run = load_params().run("sine", 2, 0)
    data = vector_data()
    (trained,) = train_batch([run], data, CPU, "float32")
    features = extract(run, trained.state, data, CPU)
    rows = own_measurements(run, features, TrainedRun(run, trained.state, prepared=data))
    errors = {row.split: row.value for row in rows if row.metric == "nc0" and row.layer == "last"}
    end = trained.history[-1]
    assert errors == pytest.approx({"train": end.train_error, "test": end.test_error})


def test_history_takes_what_is_kept_on_the_way() -> None:
    written(params=PARAMS.replace("nc1_trace_ratio, nc0", "spread_between_means"))
    with pytest.raises(InputError, match=r"history\.metrics: spread_between_means takes samples, which"):
        check_study(load_params())


def test_an_own_metric_has_panels_that_show_its_values() -> None:
    """Red: a metric on a log axis whose scale is linear; another experiment's values."""
    written()
    load_params()
    places = [("sine", depth, seed) for depth in (2, 4) for seed in (0, 1)]
    runs = pd.DataFrame(places, columns=["experiment", "depth", "seed"]).assign(
        converged=True, selected=True, loss_name="poly", last_bias=False, architecture="sine",
        source="spirals", norm="none",
        penalty_rule="constant", penalty_value=0.1, penalty_last_layer=None, penalty_biases=False,
        penalty_scope="matrices", initialisation="normal", test_error=np.nan, loss_gap=np.nan,
    )  # fmt: skip
    points = runs[["experiment", "depth", "seed", "converged", "selected"]].assign(
        layer="last", split="weights", metric="nc0", value=[1.0, 100.0, 10.0, 10.0]
    )
    points["log10"] = np.log10(points["value"])
    tables = {"runs": runs, "points": points}
    figures = sweep_figures(["sine"], tables.__getitem__)
    (axes,) = figures["own_metrics"]().axes
    assert "log" in axes.get_title()
    *_, mean = axes.get_lines()
    assert list(mean.get_xdata()) == [2, 4]
    assert list(mean.get_ydata()) == [1.0, 1.0]
    assert "loss_gap" not in figures  # of runs without a bound it would be empty
    assert "loss_gap" in sweep_figures(["sine"], (tables | {"runs": runs.assign(loss_gap=0.1)}).__getitem__)


# ---- Mistakes, before anything trains -------------------------------------------------------------------


def refusal(text: str = STUDY, params: str = PARAMS) -> str:
    written(text, params)
    message = refused_by(write_code)
    assert not Path("data").exists()
    return message


def line_of(words: str, text: str = STUDY) -> int:
    return 1 + text[: text.index(words)].count("\n")


def test_the_page_passes() -> None:
    """With a claim about its metric."""
    entry = "- {id: one, ref: x, statement: y, quantity: maximum, metric: nc0, expect: {at_most: 1}}\n"
    Path("claims.yaml").write_text(entry, encoding="utf-8")
    written()
    write_code()


LAYER = '"last" if i == self.length else f"H{i}", i / self.length'
MISTAKES = {
    "role": ('return {"inner": [self.maps], ', "return {", "class Sine(",
     r"Sine, L = 2: parameter_groups\(\) leaves out maps\.0\.weight"),
    "width": ("self.last = Linear(spec.width", "self.last = Linear(9", "class Sine(",
     r"`last` has a weight \(3, 9\); expected \(3, 32\), the classes and the width"),
    "position": (LAYER, '"last", i / 9', "class Sine(", r"is 'last' at position 0\.1\d*; expected 'last' at"),
    "NaN": ("x := map_(x).sin()", "x := map_(x).sin().log()", "class Sine(",
     "the layer last gives NaN before the first step"),
    "shapes": ("x := map_(x)", "x := map_(x[:, :1])", 'yield Layer("last" if',
     r"Sine\.layers: RuntimeError: .*shapes cannot be multiplied"),
    "loss": ("(1 - log_p.exp())", "(log_p.exp() - 1).log()", "class PolyLoss",
     "the loss poly is not finite before"),
    "step": ("value - rate * mean[name].sign()", "value / 0", "class SignumOptimizer",
     "first step of signum gives"),
    "matrix": ("return weight.sum(0).norm()", "return weight.sum(0)", "def nc0",
     r"the metric nc0 gives a tensor of shape \(32,\)"),
    "statistics": ("def nc0(weight):\n    return weight.sum(0).norm()",
     "def nc0(weight, classes):\n    return weight.norm() / classes", "    return weight.norm() / classes",
     r"nc0: TypeError: .*ClassStatistics.; .* are statistics: K is len\(classes.counts\)"),
    "argument": ("def nc0(weight)", "def nc0(wieght)", "def nc0",
     "takes 'wieght', which nothing gives; it may name classes"),
    "other role": ('{"inner": [self.maps], "last": [self.last]}',
     '{"inner": [self.maps], "classifier": [self.last]}', "class Sine(",
     r"Sine, L = 2: parameter_groups\(\) has the role 'classifier'; the roles are embedding, inner, head,"),
    "last among the inner": ('{"inner": [self.maps], "last": [self.last]}',
     '{"inner": [self.maps, self.last]}', "class Sine(",
     r"Sine, L = 2: the role of self\.last is inner; write it as last"),
    "state": ('state = ("mean",)', 'state = ("mean")', "class SignumOptimizer",
     r"the state of SignumOptimizer is a text; write a tuple: \('mean',\)"),
    "gradient": ("return -log_p + spec.epsilon * (1 - log_p.exp())", "return -log_p.detach()",
     "class PolyLoss", "the loss poly of this network has no gradient: .*does not require grad"),
    "gain": ("        self.maps = ",
     "        self.scale = torch.nn.Parameter(torch.ones(3))\n        self.maps = ",
     "init_weights(self, 1.0",
     r"Sine\.initialise: ValueError: init_weights knows matrices, .*not scale \(3,\)"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_that_names_its_class_and_line(name: str) -> None:
    """Red: a check that is left out, and then an error a hundred lines long while it trains."""
    before, after, at, message = MISTAKES[name]
    assert before in STUDY
    text = STUDY.replace(before, after, 1)
    said = refusal(text)
    where = rf"study\.py: line {line_of(at, text)}: "
    assert re.match(rf"{where}.*{message}", said), said


def test_a_claim_about_no_metric_is_found_at_once() -> None:
    entry = "- {id: one, ref: x, statement: y, quantity: maximum, metric: nc9, expect: {at_most: 1}}\n"
    Path("claims.yaml").write_text(entry, encoding="utf-8")
    written()
    with pytest.raises(InputError, match=r"claims\.yaml: one-sine\.metric: unknown 'nc9'"):
        write_code()


ARRAYS: dict[str, Any] = {
    "source": "arrays", "file": "mine", "kind": "vector", "per_class": None, "test_per_class": None,
    "seed": 0, "normalisation": "none",
}  # fmt: skip
TEXT: dict[str, Any] = {
    "source": "text", "file": "mine", "vocabulary": 300, "min_per_class": 1, "sequences": 4,
    "test_sequences": 4, "context": 2, "seed": 0,
}  # fmt: skip
REVIEWS: dict[str, Any] = {
    "source": "imdb", "per_class": 2, "test_per_class": 2, "seed": 0, "tokenizer": "mine", "vocabulary": None,
    "context": 2, "keep": "start",
}  # fmt: skip


@pytest.mark.parametrize("data", [ARRAYS, TEXT, REVIEWS], ids=lambda data: data["source"])
def test_a_data_file_has_to_be_listed_and_there(data: dict[str, Any]) -> None:
    """Red: a text or a tokenizer's folder whose edits DVC does not see, so that old tokens are trained on."""
    transformer = {"architecture": "L-T11", "norm": "pre"}
    write_params(
        [2], [0], own=experiment_tree(data=data, **({} if data is ARRAYS else {"model": transformer}))
    )
    if "file" in data:
        with pytest.raises(InputError, match=r"experiments\.own\.data\.file: mine not found"):
            write_code()
    Path("mine").mkdir()
    Path("dvc.yaml").write_text("stages:\n  code:\n    deps: [ncpipe]\n  fetch:\n    deps: []\n")
    with pytest.raises(InputError, match=r"add the line `- mine` to the deps of the stage fetch"):
        write_code()
