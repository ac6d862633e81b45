"""The theory study: rows, tables and figures of constructed networks, and the study as DVC runs it."""

import dataclasses
import math
import shutil
from pathlib import Path

import pandas as pd
import pytest
import torch
from conftest import experiment_tree, vector_data, write_params
from constructions import SHARP, small_run
from paper_figure_cases import made_networks

from ncpipe.commands.fetch import fetch
from ncpipe.config.params import load_params
from ncpipe.features.extraction import extract
from ncpipe.metrics.collapse import nc1_trace_ratio
from ncpipe.papers.s25.constructions.networks import construct
from ncpipe.papers.s25.proof_networks import constructed_slopes, trained_means, with_nc2
from ncpipe.papers.s25.shifts import shifts
from ncpipe.papers.s25.stages import constructed, counterexample
from ncpipe.papers.s25.study_rows import Kind, constructed_row, counterexample_rows
from ncpipe.system.errors import InputError

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


def test_the_counterexample_is_about_two_layer_blocks() -> None:
    with pytest.raises(InputError, match="L-RN2"):
        list(counterexample_rows(small_run("L-RN1", 10), 3, 2, [0.1], [10], 0))
    with pytest.raises(InputError, match="too shallow to collapse 3 classes"):
        list(counterexample_rows(small_run("L-RN2", 6), 3, 2, [0.1], [6], 0))


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


def test_depths_that_are_too_small_are_said_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
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
