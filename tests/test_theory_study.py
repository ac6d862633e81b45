"""The theory study: its rows and tables of constructed networks, its stages, and App. C of S25 in numbers."""

import dataclasses
import math
import shutil
from pathlib import Path

import pandas as pd
import pytest
import torch
from conftest import experiment_tree, vector_data, write_params
from constructions import SHARP, inner_square, layers_of, small_run
from paper_figure_cases import made_networks
from torch import Tensor

from ncpipe.commands.fetch import fetch
from ncpipe.config.params import load_params
from ncpipe.config.run import Run
from ncpipe.datasets.prepared import Prepared
from ncpipe.features.extraction import extract
from ncpipe.metrics.collapse import nc1_trace_ratio, within_trace
from ncpipe.metrics.losses import unregularised_loss
from ncpipe.metrics.statistics import class_statistics
from ncpipe.papers.s25.constructions.blocks import idle
from ncpipe.papers.s25.constructions.networks import block_weights, construct, network_state, optimum_of
from ncpipe.papers.s25.counterexample import (
    NoiseSubspace,
    aligned_embedding,
    collapse_price,
    collapsing_state,
    kept_share,
    motionless,
    near_collapsed_data,
)
from ncpipe.papers.s25.proof_networks import constructed_slopes, trained_means, with_nc2
from ncpipe.papers.s25.shifts import shifts
from ncpipe.papers.s25.stages import constructed, counterexample
from ncpipe.papers.s25.study_rows import Kind, constructed_row, counterexample_rows
from ncpipe.system.errors import InputError
from ncpipe.theory.gufm import Optimum

# ---- Rows -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "biases"), [("L-RN1", False), ("L-RN2", True)])
@pytest.mark.parametrize("kind", ["sharp", "shifts"])
def test_a_row_says_what_the_pipelines_own_features_say(kind: Kind, name: str, biases: bool) -> None:
    data, run = vector_data(3, 2, 8), small_run(name, 24)
    penalty = dataclasses.replace(run.spec.penalty, biases=biases)
    run = dataclasses.replace(run, spec=dataclasses.replace(run.spec, penalty=penalty))
    row = constructed_row(run, data, kind, SHARP)
    state = construct(run, data, SHARP).state if kind == "sharp" else shifts(run, data, SHARP)
    features = extract(run, state, data, torch.device("cpu"))
    assert row["inner_penalty"] == features.inner_penalty
    assert row["last_penalty"] == features.last_penalty
    seen = features.layers["last"]["train"].statistics
    # the pipeline's weights are float32 on their way
    assert row["nc1_trace_ratio"] == pytest.approx(nc1_trace_ratio(seen), rel=1e-6, abs=1e-11)
    assert row["loss_gap"] == pytest.approx(row["loss"] - row["loss_optimum"], abs=1e-15)
    assert row["train_error"] == 0
    if kind == "sharp":
        assert row["inner_penalty"] == pytest.approx(row["stage_one_penalty"] + row["stage_two_penalty"])
        assert math.isnan(row["stage_one_bound"]) == math.isnan(row["stage_two_bound"]) == biases
        assert biases or row["stage_one_penalty"] <= row["stage_one_bound"]
        assert biases or row["stage_two_penalty"] <= row["stage_two_bound"]
    else:
        assert (row["inner_penalty"] > 0) == biases
        assert math.isnan(row["stage_one_bound"])


@pytest.fixture(scope="module")
def example_table() -> pd.DataFrame:
    run = small_run("L-RN2", 10, loss="mse")
    return pd.DataFrame(counterexample_rows(run, 3, 2, [0.002], [10, 40], 0))


def test_the_counterexamples_table_holds_its_inequalities(example_table: pd.DataFrame) -> None:
    table = example_table
    assert (table["size"] == 0.002).all()
    first = table.set_index(["place", "regime", "depth"])
    constant = first.xs("constant", level="regime")
    assert (constant["motionless_gap"] < constant["price"]).all()
    assert (constant["motionless_gap"] < constant["collapsing_gap"]).all()
    kept = first["kept_share"]
    assert kept["within", "constant", 40] == pytest.approx(kept["within", "constant", 10])
    assert kept["beside", "uniform", 40] == pytest.approx(kept["beside", "uniform", 10], rel=1e-3)
    assert kept["within", "uniform", 40] == 0
    assert kept["beside", "theorem_4_6", 40] < kept["beside", "theorem_4_6", 10]
    deep = table[table["depth"] == 40]
    assert deep["shifts_gap"].abs().max() < 1e-14


# ---- Tables ---------------------------------------------------------------------------------------------


def test_slopes_are_those_of_the_powers_that_made_the_table() -> None:
    slopes = constructed_slopes(made_networks()).set_index(["experiment", "kind", "column"])["slope"]
    assert slopes["one", "sharp", "loss_gap"] == pytest.approx(-1)
    assert slopes["two", "printed", "inner_penalty"] == pytest.approx(0, abs=1e-12)
    assert math.isnan(slopes["one", "shifts", "loss_gap"])


def test_each_loss_has_its_own_nc2() -> None:
    nc2 = {"one": "nc2_etf", "two": "nc2_identity"}
    networks = with_nc2(made_networks(), nc2)
    assert networks.groupby("experiment")["nc2"].unique().str[0].to_dict() == {"one": 1e-16, "two": 0.5}
    series = [("nc1_trace_ratio", "train"), ("nc1_trace_ratio", "test"), ("nc2_etf", "weights")]
    rows = [(name, 2, "last", split, metric, -1.0, 0.1) for name in nc2 for metric, split in series]
    rows.append(("one", 2, "X1", "train", "nc1_trace_ratio", 9.0, 0.1))
    columns = ["experiment", "depth", "layer", "split", "metric", "log10_mean", "log10_std"]
    trained = trained_means(pd.DataFrame(rows, columns=columns), nc2)
    metrics = trained.groupby("experiment")["metric"].agg(list).to_dict()
    assert metrics == {"one": ["nc1_trace_ratio", "nc2"], "two": ["nc1_trace_ratio", "nc2_etf"]}
    assert set(trained["log10_mean"]) == {-1.0}


# ---- Commands -------------------------------------------------------------------------------------------

THEORY = """
theory:
  constructed:
    {kinds: [printed, sharp, shifts], depths: [12, 24], draws: 4, detours: 4, attention_exponent: 0.25,
     seed: 0}
  counterexample: {experiment: rn2, classes: 3, per_class: 2, sizes: [0.01], depths: [10], seed: 0}
"""


def write_study(theory: str) -> None:
    """Write the study's parameters, cut down to one depth and seed of two architectures."""
    data = experiment_tree()["data"] | {"per_class": 2, "dimension": 8}
    model = {"width": 8, "layer_norm_eps": 0.0}
    two = {"architecture": "L-RN2", "mlp_width": 8} | model
    trees = {
        "rn1": experiment_tree(data=data, model=model),
        "rn2": experiment_tree(data=data, model=two, loss="mse"),
    }
    shutil.copy(Path(__file__).resolve().parents[1] / "stages/theory/study.py", "study.py")
    write_params([2], [0], **trees)
    with Path("params.yaml").open("a", encoding="utf-8") as file:
        file.write(theory)


@pytest.mark.usefixtures("study_folder")
def test_depths_that_are_too_small_are_said_and_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    write_study(THEORY)
    fetch("rn1", None)
    load_params()
    tables = constructed("rn1")
    networks, met = (pd.DataFrame(tables[name]) for name in ("networks", "assumptions"))
    assert [*zip(networks["kind"], networks["depth"], strict=True)] == [
        ("printed", 24),
        ("sharp", 24),
        ("shifts", 12),
        ("shifts", 24),
    ]
    assert "too shallow for 6 distinct samples" in capsys.readouterr().err
    assert met["problem"].isna().all()
    assert {row["place"] for row in counterexample()} == {"within", "beside"}
    write_study(THEORY.replace("[12, 24]", "[4]"))
    with pytest.raises(InputError, match=r"theory\.constructed\.depths"):
        constructed("rn1")
    write_study("")
    with pytest.raises(InputError, match="theory: missing"):
        load_params()


# App. C in numbers: what collapse costs bias-free two-layer blocks, what it gains, how biases escape


CLASSES, PER_CLASS = 3, 4
CONSTANT = {"rule": "constant", "value": 0.005, "last_layer": None}


def case(size: float, place: NoiseSubspace, loss: str, penalty: dict[str, object], depth: int = 10) -> "Case":
    run = small_run("L-RN2", depth, loss=loss, penalty=penalty)
    data = near_collapsed_data(CLASSES, PER_CLASS, size, place, seed=0)
    return Case(run, data, *motionless(run, data))


@dataclasses.dataclass(frozen=True)
class Case:
    run: Run
    data: Prepared
    features: Tensor
    fitted: Optimum

    @property
    def embedding(self) -> dict[str, Tensor]:
        return aligned_embedding(optimum_of(self.run, self.data), self.data.train.inputs.shape[1])

    def gap(self) -> float:
        """Of the network that leaves the data where they are."""
        return self.fitted.value - optimum_of(self.run, self.data).value

    def motionless(self) -> dict[str, Tensor]:
        """That network: no inner weights, W_L the best for the features."""
        still = block_weights(idle(1, 8), 0, 8)
        return network_state(self.run, self.embedding, [still] * (self.run.depth - 1), self.fitted)

    def price(self) -> float:
        strength = self.run.spec.penalty.inner_strength(self.run.depth)
        return collapse_price(self.features, self.data.train.labels, strength)

    def loss_of(self, state: dict[str, Tensor]) -> float:
        """Regularised loss through the module."""
        h = layers_of(self.run, self.data, state)["last"]
        weight, penalty = state["last.weight"], self.run.spec.penalty
        fit = unregularised_loss(h, self.data.train.labels, weight, None, self.run.spec.loss)
        last = penalty.last_strength(self.run.depth) / 2 * weight.square().sum().item()
        return fit + last + penalty.inner_strength(self.run.depth) / 2 * inner_square(state)


def spread(h: Tensor, labels: Tensor) -> float:
    return within_trace(class_statistics(h, labels, int(labels.max()) + 1)).item() ** 0.5


@pytest.mark.parametrize("place", ["within", "beside"])
def test_data_are_one_epsilon_from_collapse(place: NoiseSubspace) -> None:
    data = near_collapsed_data(3, 4, 0.1, place, seed=1)
    units = torch.eye(3, dtype=torch.float64).repeat_interleave(4, 0)
    noise = data.train.inputs.clone()
    noise[:, :3] -= units
    assert noise.shape == (12, 3 if place == "within" else 6)
    assert torch.allclose(noise.norm(dim=1), torch.full((12,), 0.1, dtype=torch.float64))
    assert noise.view(3, 4, -1).mean(1).abs().max() < 1e-15


@pytest.mark.parametrize("loss", ["ce", "mse"])
def test_under_a_constant_lambda_staying_near_beats_every_collapse(loss: str) -> None:
    """App. C, first claim, at an epsilon small against lambda and through the modules: losses compared."""
    setup = case(0.002, "within", loss, CONSTANT, depth=31)
    best = optimum_of(setup.run, setup.data).value
    still = setup.motionless()
    assert inner_square(still) == 0
    assert setup.loss_of(still) == pytest.approx(best + setup.gap(), rel=1e-9)
    assert setup.loss_of(still) < best + setup.price()
    collapsing = collapsing_state(setup.run, setup.data, setup.embedding, setup.features)
    ends, starts = (
        spread(layers_of(setup.run, setup.data, state)["last"], setup.data.train.labels)
        for state in (collapsing, still)
    )
    assert ends == pytest.approx(starts / 10, rel=1e-2)
    assert setup.loss_of(collapsing) > setup.loss_of(still)
    for depth in (10, 1000, 100_000):
        deeper = case(0.002, "within", loss, CONSTANT, depth)
        assert kept_share(deeper.gap(), deeper.price()) > 0.6
