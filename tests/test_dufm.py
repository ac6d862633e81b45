"""dufm and its free features: against NumPy loops and closed losses, and through every stage.

The last are those of `ncpipe.papers.s24`, with `ncpipe.papers.s24.head_columns`.
"""

import math
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import measure_runs, refused_by, write_params
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from paper_figure_cases import MEANS, along_axis, dufm_runs
from training_cases import DUFM, DUFM_STUDY, UNEQUAL, free_data, free_run, free_tree

from ncpipe.config.experiment import Experiment
from ncpipe.config.params import load_params
from ncpipe.config.records import read
from ncpipe.config.run import Run
from ncpipe.config.sources.generated import FreeData
from ncpipe.datasets.prepare import prepare
from ncpipe.datasets.prepared import read_prepared, write_prepared
from ncpipe.features.trained_run import TrainedRun
from ncpipe.figures.save import content_digest
from ncpipe.models.build import build_network
from ncpipe.models.penalties import strengths
from ncpipe.papers.s24.dufm_runs import levels_of, model_of
from ncpipe.papers.s24.dufm_shapes import largest_points
from ncpipe.papers.s24.dufm_solutions import dnc_solution, srg_solution
from ncpipe.papers.s24.figures.class_means import matrix_of, ordered
from ncpipe.papers.s24.figures.study import study_figures
from ncpipe.papers.s24.head_ranks import rank_columns
from ncpipe.papers.s24.series import measured
from ncpipe.papers.s24.tables.low_rank import (
    best_runs,
    counts_by_value,
    share_interval,
    with_ranks,
)
from ncpipe.runs.trained_runs import train_runs
from ncpipe.training.loop import train_batch
from ncpipe.training.session import Session

CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("low_rank")
CREEP = {"name": "sgd", "learning_rate": 1e-6, "momentum": 0.0}
BUILT = DUFM | {"width": 24, "columns": "equal"}
PLAIN_PENALTY = {"rule": "constant", "value": 0.004, "last_layer": None}


def solution_state(run: Run, kind: str) -> dict[str, torch.Tensor]:
    """Weights of dufm that are DNC or SRG, or SRG with half of the signs."""
    spec, data, model = run.spec.model, run.spec.data, model_of(run)
    minus = largest_points(model.classes) // 2 if kind == "srg_k" else 2
    best = dnc_solution(model, spec.width) if kind == "dnc" else srg_solution(model, minus, spec.width)
    rows, scale = (1, data.per_class**0.5) if data.reduced else (data.per_class, 1.0)
    state = {"free": scale * best.features.repeat_interleave(rows, 0)}
    state |= {f"maps.{index}.weight": weight for index, weight in enumerate(best.weights[:-1])}
    return state | {"last.weight": best.weights[-1]}


def drawn(run: Run) -> dict[str, torch.Tensor]:
    """The weights that a run starts from, in float64."""
    network = build_network(run, free_data(run))
    return {name: parameter.detach().double() for name, parameter in network.named_parameters()}


@pytest.mark.parametrize("reduced", [False, True])
def test_free_data_are_labels_alone(reduced: bool, tmp_path: Path) -> None:
    write_prepared(tmp_path / "free", prepare(FreeData("free", 5, 3, reduced), Path(), None, progress=False))
    data = read_prepared(tmp_path / "free")
    count = 1 if reduced else 3
    assert data.train.labels.tolist() == [label for label in range(5) for _ in range(count)]
    assert data.train.inputs.tolist() == list(range(5 * count))
    assert data.facts["copies"] == (3 if reduced else 1)


def test_one_sample_goes_the_way_of_n_equal_ones() -> None:
    shared = {
        "new_model": DUFM | {"columns": "equal"}, "epochs": 60, "log_every": 20,
        "optimizer": {"name": "sgd", "learning_rate": 0.3, "momentum": 0.9},
    }  # fmt: skip
    runs = [free_run(data={"reduced": reduced}, **shared) for reduced in (False, True)]
    start = drawn(runs[0])
    starts = [start, start | {"free": 3**0.5 * start["free"][::3]}]  # as drawn they differ by 1e-8
    torch.testing.assert_close(drawn(runs[1])["free"], starts[1]["free"])  # the same draw
    (whole,), (one,) = (
        train_batch([run], free_data(run), CPU, "float64", starts=[initial])
        for run, initial in zip(runs, starts, strict=True)
    )
    for first, second in zip(whole.history, one.history, strict=True):
        assert second.loss == pytest.approx(first.loss, rel=1e-12)
    assert whole.history[-1].loss < 0.8 * whole.history[0].loss
    np.testing.assert_allclose(one.state["last.weight"], whole.state["last.weight"], rtol=0, atol=1e-12)
    rows = whole.state["free"].unflatten(0, (4, 3))
    np.testing.assert_allclose(one.state["free"] / 3**0.5, rows[:, 1], rtol=0, atol=1e-12)


@settings(max_examples=25)
@given(
    start=st.sampled_from([("dnc", 4), ("dnc", 10), ("srg", 6), ("srg", 7), ("srg", 10), ("srg_k", 15)]),
    columns=st.sampled_from(["own", "equal", "reduced"]),
    per_class=st.integers(1, 5),
    depth=st.integers(2, 5),
    logs=st.lists(st.floats(-8, -4), min_size=6, max_size=6),
)
def test_a_built_start_has_the_closed_loss(
    start: tuple[str, int], columns: str, per_class: int, depth: int, logs: list[float]
) -> None:
    name, classes = start
    values = [float(np.exp(log)) for log in logs]
    run = free_run(
        BUILT | {"columns": "equal" if columns == "reduced" else columns},
        depth=depth,
        data={"classes": classes, "per_class": per_class, "reduced": columns == "reduced"},
        penalty={"rule": "constant", "value": values[0], "last_layer": None, "layers": values[1 : depth + 1]},
    )
    session = Session([run], free_data(run), CPU, torch.float64)
    session.load_weights([solution_state(run, name)])
    session.record()
    loss = session.rows[-1][1][0].item()
    levels = levels_of(run)
    model = run.spec.model
    narrow = replace(run, spec=replace(run.spec, model=replace(model, width=classes - 1)))
    assert math.isnan(levels_of(narrow).dnc)
    if name != "srg_k":
        assert loss == pytest.approx(levels.dnc if name == "dnc" else levels.srg, rel=1e-12)
    elif levels.srg < 0.49:
        assert loss < levels.srg


def test_roles_and_lambdas_by_layer() -> None:
    run = free_run()
    network = build_network(run, free_data(run))
    roles = network.roles()
    assert list(roles.values()) == ["free", "inner", "inner", "last"]
    assert list(strengths(roles, dict.fromkeys(roles, 2), run.spec.penalty, 3).values()) == [
        0.003, 0.001, 0.002, 0.004,
    ]  # fmt: skip
    one = read(Experiment, free_tree(penalty={"rule": "over_depth", "value": 0.3, "last_layer": 0.7})).penalty
    assert list(strengths(roles, dict.fromkeys(roles, 2), one, 3).values()) == pytest.approx(
        [0.1, 0.1, 0.1, 0.7]
    )
    unequal = read(Experiment, free_tree(penalty=UNEQUAL | {"features": 0.9})).penalty
    assert strengths(roles, dict.fromkeys(roles, 2), unequal, 3)["free"] == 0.9
    x = torch.arange(12)
    layers = list(network.layers(x))
    assert [layer.name for layer in layers] == ["H1", "Z2", "H2", "Z3", "last"]
    assert [layer.position for layer in layers] == [0, None, 0.5, None, 1]
    assert torch.equal(layers[4].values, layers[3].values.clamp(min=0))
    assert torch.allclose(network.features(x[3:5]), network.features(x)[3:5])


# ---- Through every stage --------------------------------------------------------------------------------


STUDY = f"""{DUFM_STUDY}

def srg(run, data):
    from test_dufm import solution_state

    return solution_state(run, "srg")


STARTS = {{"srg": srg}}
"""
SERIES_KEYS = """
series:
  again: {depth: 4, seeds: [0, 1]}
  wide: {depth: 4, axis: model.width, values: [9, 8], seeds: [1, 0, 2]}
"""


def write_digest(figure: Figure, folder: Path, name: str) -> None:
    """Write what a figure shows in place of it."""
    (folder / f"{name}.txt").write_text(content_digest(figure), encoding="utf-8")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A drawn and a built experiment through all stages, in a folder of their own."""
    from ncpipe.commands.aggregate import aggregate
    from ncpipe.commands.stage import write_stage
    from ncpipe.papers.s24.stages import STAGES

    folder = tmp_path_factory.mktemp("chain")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("ncpipe.figures.save.save_figure", write_digest)
        patch.setattr("matplotlib.figure.Figure.get_layout_engine", lambda figure: None)  # the slowest part
        short = {"epochs": 10, "log_every": 1, "penalty": PLAIN_PENALTY}
        six = {"classes": 6, "per_class": 4}
        trees = {
            "drawn": free_tree(data=six, **short),
            # hardly moved: SRG is no minimum at K = 6, and ten steps of .5 end .2 % below it
            "built": free_tree(BUILT | {"width": 12}, data=six | {"reduced": True}, optimizer=CREEP, **short)
            | {"start": "srg"},
        }
        kept = {"metrics": ["rank_means"], "at": [0.0, 0.5, 1.0]}
        Path("study.py").write_text(STUDY, encoding="utf-8")
        write_params([4], [0, 1], **trees, again=trees["drawn"] | {"history": kept}, wide=trees["drawn"])
        text = Path("params.yaml").read_text(encoding="utf-8")
        text = re.sub(r"(?m)^  - (again|wide)\n", "", text)  # of no sweep
        Path("params.yaml").write_text(f"{text}\n{SERIES_KEYS}", encoding="utf-8")
        measure_runs(*trees, depths=[4], seeds=[0, 1])
        aggregate()
        for name in ("again", "wide"):
            write_stage("series", STAGES["series"], {"experiment": name, "workers": 1})
        write_stage("low_rank", STAGES["low_rank"], {})
        yield folder / "data"


def test_every_stage_takes_free_features(results: Path) -> None:
    runs = pd.read_csv(results / "results" / "runs.csv")
    assert len(runs) == 4
    assert runs["test_error"].isna().all()
    assert runs[["loss", "gradient_norm"]].notna().all(axis=None)
    history = pd.read_csv(results / "results" / "history.csv")
    ends = history.sort_values("epoch").groupby(["experiment", "depth", "seed"]).tail(1)
    both = runs.merge(ends, on=["experiment", "depth", "seed"], suffixes=("", "_then"))
    assert both["loss"].to_numpy() == pytest.approx(both["loss_then"].to_numpy(), rel=1e-4)
    for name in ("drawn", "built"):
        table = pd.read_csv(results / "metrics" / name / "measurements.csv")
        deep = table[(table["depth"] == 4) & (table["split"] == "train")]
        ranked = deep[deep["metric"] == "rank_means"]
        assert set(ranked["layer"]) == {"H1", "H2", "H3", "Z2", "Z3", "Z4", "last"}
        assert {"H1", "H2", "H3", "last"} == set(deep[deep["metric"] == "dnc1_trace_pinv"]["layer"])
        assert "singular_means_001" in set(deep[deep["layer"] == "H2"]["metric"])


def test_runs_say_where_they_stand_beside_dnc_and_srg(results: Path) -> None:
    runs = pd.read_csv(results / "results" / "runs.csv")
    built = runs[runs["experiment"] == "built"]
    levels = levels_of(free_run(depth=4, data={"classes": 6, "per_class": 4}, penalty=PLAIN_PENALTY))
    deep = built[built["depth"] == 4]
    assert deep["loss_over_srg"].to_numpy() == pytest.approx(1, abs=1e-6)  # weights are float32
    assert (deep["loss_dnc"] == levels.dnc).all()
    assert deep["loss_over_dnc"].to_numpy() == pytest.approx(levels.srg / levels.dnc, rel=1e-3)
    assert set(deep["structure"]) == {"SRG"}
    assert set(deep["structure_last"]) == {"SRG"}
    assert set(deep["ranks"]) == {"4-4-6"}
    assert set(deep["ranks_before"]) == {"4-4-3"}  # with half of the signs -1, A annihilates 1
    assert not runs["dnc_found"].any()
    assert (built["classes_given_up"] == 0).all()
    assert (runs[runs["experiment"] == "drawn"]["loss_over_dnc"] > 1).all()


@pytest.mark.parametrize(
    ("start", "classes", "depth", "named"),
    [
        ("dnc", 6, 4, {"structure": "DNC", "structure_last": "DNC", "ranks": "6-6-6", "dnc_found": True}),
        ("dnc", 4, 2, {"structure": "DNC", "loss_over_srg": pytest.approx(math.nan, nan_ok=True)}),
        ("srg_k", 15, 4, {"structure": "SRG-3", "ranks_before": "6-6-5"}),
        ("dnc without a class", 6, 4, {"classes_given_up": 1}),
    ],
)
def test_every_structure_is_named_from_its_features(
    start: str, classes: int, depth: int, named: dict[str, Any]
) -> None:
    run = free_run(
        BUILT, depth=depth, epochs=1, log_every=1, penalty=PLAIN_PENALTY, data={"classes": classes}
    )
    state = solution_state(run, start.split()[0])
    if "without" in start:
        state["last.weight"][2] = 0
    row = rank_columns(TrainedRun(run, state, prepared=free_data(run)))
    assert {name: row[name] for name in named} == named
    other = replace(run, spec=replace(run.spec, loss="ce"))
    assert set(rank_columns(TrainedRun(other, state, prepared=free_data(run))).values()) == {None}


# ---- The study's tables and figures ---------------------------------------------------------------------


def test_the_study_shows_the_best_runs_beside_the_solutions(results: Path) -> None:
    folder = results / "low_rank"
    split = pd.read_csv(folder / "split.csv").set_index(["experiment", "solution"])
    parts = split[["fit", "last_penalty", "rest"]].sum(axis=1)
    levels = levels_of(free_run(depth=4, data={"classes": 6, "per_class": 4}, penalty=PLAIN_PENALTY))
    assert parts["built", "DNC"] == pytest.approx(levels.dnc, rel=1e-12)
    assert parts["built", "SRG"] == pytest.approx(levels.srg, rel=1e-12)
    assert parts["built", "trained"] == pytest.approx(levels.srg, rel=1e-6)
    means = pd.read_csv(folder / "class_means.csv")
    matrix = matrix_of(means[means["experiment"] == "built"], "M3")
    gram = matrix.T @ matrix / (matrix**2).sum(0).mean()
    inner = np.sort(gram[np.triu_indices(6, 1)])
    assert inner == pytest.approx([0] * 3 + [0.5] * 12, abs=1e-6)  # T(4): edges that meet, or not
    singular = pd.read_csv(folder / "singular_values.csv")
    sigma = singular[(singular["experiment"] == "built") & (singular["layer"] == "~M3")]["value"].to_numpy()
    assert sigma[4:] == pytest.approx(0, abs=1e-6 * sigma[0])  # rank 4
    assert sigma[1:4] ** 2 / sigma[0] ** 2 == pytest.approx(1 / 3, rel=1e-4)  # eigenvalues 2a, (r-2)/(r-1) a
    ratios = pd.read_csv(folder / "ratios.csv").set_index(["depth", "points"])
    assert ratios.loc[(4, 5), "limit"] == pytest.approx(ratios.loc[(4, 5), "ratio"], abs=0.03)
    assert {path.stem for path in folder.glob("*.txt")} == {
        "class_means", "rank_penalty", "loss_split", "level_ratios",
        "solutions", "run_drawn", "run_built", "run_again", "through_training_again", "against_axis_wide",
    }  # fmt: skip


def test_the_tables_alone_draw_the_figures(results: Path) -> None:
    """Red: a figure of something that no table holds, which nobody could draw again."""
    folder = results / "low_rank"
    figures = study_figures({path.stem: pd.read_csv(path) for path in folder.glob("*.csv")})
    assert figures.keys() == {path.stem for path in folder.glob("*.txt")}
    for name, figure in figures.items():
        assert (folder / f"{name}.txt").read_text(encoding="utf-8") == content_digest(figure()), name


def test_a_series_ends_as_the_same_runs_of_the_sweep(results: Path) -> None:
    runs = pd.read_csv(results / "results" / "runs.csv")
    sweep = runs[runs["experiment"] == "drawn"].sort_values("seed")
    series = pd.read_csv(results / "series" / "again" / "runs.csv").sort_values("seed")
    for column in ("loss", "fit", "last_penalty", "inner_penalty", "gradient_norm", "ranks", "loss_over_dnc"):
        assert series[column].tolist() == sweep[column].tolist(), column
    history = pd.read_csv(results / "series" / "again" / "history.csv")
    assert history["epoch"].tolist() == [*range(11)] * 2
    table = pd.read_csv(results / "metrics" / "drawn" / "measurements.csv")
    table = table[(table["seed"] == 0) & (table["split"] == "train")]
    spread = pd.read_csv(results / "series" / "again" / "spread.csv")
    assert sorted(spread["epoch"].unique()) == [0, 5, 10]
    end = spread[(spread["seed"] == 0) & (spread["epoch"] == 10)].set_index("layer")
    first = spread[(spread["seed"] == 0) & (spread["epoch"] == 0)].set_index("layer")
    assert (first["nc1_trace_ratio"] != end["nc1_trace_ratio"]).all()
    for layer, name in (("H1", "H1"), ("H3", "H3"), ("H4", "last")):
        for metric in ("dnc1_trace_pinv", "nc1_trace_ratio"):
            (value,) = table[(table["layer"] == name) & (table["metric"] == metric)]["value"]
            assert end.loc[layer, metric] == value


def test_a_series_with_an_axis_has_its_runs_by_value(results: Path) -> None:
    runs = pd.read_csv(results / "series" / "wide" / "runs.csv")
    assert [*zip(runs["x"], runs["seed"], strict=True)] == [(w, s) for w in (8, 9) for s in (0, 1, 2)]
    assert runs["loss"].nunique() == 6
    means = pd.read_csv(results / "series" / "wide" / "class_means.csv")
    units = means.groupby("x")["unit"].max().to_dict()
    assert units == {8: 7, 9: 8}
    counts = counts_by_value(with_ranks(runs))
    assert counts["x"].tolist() == [8, 9]
    assert counts["runs"].tolist() == [3, 3]


@pytest.mark.parametrize(
    ("series", "message"),
    [
        ("{y: {depth: 3, seeds: [0]}}", "series.y: no experiment of this name; allowed: x"),
        ("{x: {depth: 3, seeds: []}}", "series.x: seeds: empty, so there is nothing to run"),
        ("{x: {depth: 3, seeds: [1, 1]}}", "series.x: seeds: one is listed twice"),
        ("{x: {depth: 3, seeds: [0], values: [1]}}", "series.x: values without an axis"),
        ("{x: {depth: 3, seeds: [0], axis: model.width}}", "series.x: values: empty"),
        ("{x: {depth: 1, seeds: [0]}}", "series.x.depth: 1 does not suit x: dufm needs L >= 2"),
        ("{x: {depth: 3, seeds: [0], axis: model.width, values: [0]}}",
         "series.x.values: experiments.x.model.width: 0 is out of range"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("study_folder")
def test_mistakes_in_a_series_are_one_line_that_names_the_key(series: str, message: str) -> None:
    Path("study.py").write_text(DUFM_STUDY, encoding="utf-8")
    write_params([3], [0], x=free_tree())
    with Path("params.yaml").open("a", encoding="utf-8") as file:
        file.write(f"\nseries: {series}\n")
    assert message in refused_by(load_params)


@pytest.mark.parametrize(("count", "total"), [(0, 5), (3, 5), (5, 5), (7, 20)])
def test_the_interval_of_a_share_is_the_exact_one(count: int, total: int) -> None:
    from scipy.stats import binomtest

    exact = binomtest(count, total).proportion_ci(0.95)
    assert share_interval(count, total) == pytest.approx((exact.low, exact.high), abs=1e-12)


def test_runs_are_counted_at_each_value_of_an_axis() -> None:
    columns = ["x", "runs", "kept", "below_dnc", "dnc_found", "share", "mean_rank"]
    assert counts_by_value(along_axis())[columns].to_numpy().tolist() == [
        [10, 5, 3, 2, 1, 0.2, 7],
        [20, 1, 1, 1, 0, 0, 5],
    ]


def test_units_that_respond_to_no_class_are_left_out_and_the_others_in_order() -> None:
    assert ordered(MEANS).tolist() == [[2, 0, 0], [0, 1, 1.1], [0, 1, 1], [0, 0, -3]]


def test_runs_that_give_classes_up_are_reported_and_in_no_mean() -> None:
    runs = dufm_runs()
    assert runs["mean_rank"].tolist() == [5, 6, 1, 10, 9]
    assert runs["kept"].tolist() == [True, True, False, True, False]
    assert best_runs(runs)["seed"].tolist() == [0]


# ---- Series in several processes ------------------------------------------------------------------------


EPOCHS = 12


@pytest.fixture
def runs(study_folder: Path) -> list[Run]:
    """Five runs of two widths."""
    Path("study.py").write_text(DUFM_STUDY, encoding="utf-8")
    write_params([3], [0], x=free_tree(epochs=EPOCHS, log_every=1))
    with Path("params.yaml").open("a", encoding="utf-8") as file:
        file.write("\nseries: {x: {depth: 3, axis: model.width, values: [8, 9], seeds: [2, 0, 1]}}\n")
    return load_params().series_runs("x")[:5]


def test_two_workers_give_what_one_gives(runs: list[Run], monkeypatch: pytest.MonkeyPatch) -> None:
    """By threads in place of processes. Red: rows that are lost, or in another order."""
    one = train_runs(runs, measured, 1)
    assert [(rows["runs"][0]["x"], rows["runs"][0]["seed"]) for rows in one] == [
        (run.value, run.seed) for run in runs
    ]
    monkeypatch.setattr("ncpipe.runs.pool.executor", ThreadPoolExecutor)
    assert repr(train_runs(runs, measured, 2)) == repr(one)
    assert not list(Path("data/.store").glob("*"))


def test_a_process_that_is_ended_is_one_line(runs: list[Run], monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object) -> None:
        raise BrokenProcessPool

    monkeypatch.setattr("concurrent.futures.process.ProcessPoolExecutor.submit", killed)
    assert refused_by(train_runs, runs, measured, 2).startswith("a process was killed")
