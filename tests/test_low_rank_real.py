"""Networks with a head on data, through every stage of their study, its tables and its figures.

These are of `ncpipe.papers.s24.figures.heads` and `ncpipe.papers.s24.head_columns`.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from conftest import experiment_tree, write_params
from paper_figure_cases import headed_runs

from ncpipe.papers.s24.dufm import Dufm, dnc_loss, srg_loss
from ncpipe.papers.s24.tables.heads import best_by_value, by_value, head_runs
from ncpipe.system.errors import InputError

DIGITS = {"source": "digits", "per_class": 4, "test_per_class": 2, "seed": 0, "normalisation": "standardise"}
CONV = {
    "architecture": "conv_net", "pooled": 2, "channels": [4, 8], "width": 16, "feature_gain": 0.3,
    "gain": 1.0, "batch_norm_eps": 1e-5,
}  # fmt: skip
LIKE = {"rule": "over_depth", "last_layer": None, "scope": "head", "features_over_value": 1.25}
STANDARD = {"rule": "constant", "last_layer": None, "scope": "all"}
VALUES = [0.0006, 0.6]
ADAM = experiment_tree()["optimizer"]


def write_study(**changes: Any) -> None:
    """Two regularisations at a small lambda and at one under which everything is zero."""
    keys = {
        "data": DIGITS, "loss": "mse", "optimizer": ADAM | {"learning_rate": 0.02}, "batch_size": 20,
        "epochs": 120, "log_every": 10, "history": {"metrics": ["nc1_trace_ratio"], "at": [0, 0.5, 1]},
    }  # fmt: skip
    tree = experiment_tree(**keys) | {"model": CONV}
    like, standard = LIKE | {"value": 0.01}, STANDARD | {"value": 0.01}
    write_params([3], [0], like=tree | {"penalty": like} | changes, standard=tree | {"penalty": standard})
    file = Path("params.yaml")
    axis = f"sweep:\n  axis: penalty.value\n  values: {VALUES}\n"
    file.write_text(file.read_text(encoding="utf-8").replace("sweep:\n", axis, 1), encoding="utf-8")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The whole study at its smallest, in a folder of its own."""
    from ncpipe.commands.aggregate import aggregate
    from ncpipe.commands.extract import extract_experiment
    from ncpipe.commands.fetch import fetch
    from ncpipe.commands.grid import write_grid
    from ncpipe.commands.measure import measure
    from ncpipe.commands.stage import write_stage
    from ncpipe.commands.train import train
    from ncpipe.papers.s24.stages import HEAD_STAGES

    folder = tmp_path_factory.mktemp("heads")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        saved = "ncpipe.figures.save.save_figure"
        patch.setattr(saved, lambda figure, folder, name: (folder / f"{name}.png").touch())
        patch.setattr("matplotlib.figure.Figure.get_layout_engine", lambda figure: None)  # the slowest part
        study = Path(__file__).resolve().parents[1] / "stages/low_rank_real/study.py"
        shutil.copy(study, "study.py")
        write_study()
        write_grid()
        for name in ("like", "standard"):
            for value in VALUES:
                fetch(name, value=value)
                train(name, 3, 0, value=value, workers=1)
            extract_experiment(name)
            measure(name)
        aggregate()
        write_stage("low_rank", HEAD_STAGES["low_rank"], {})
        yield folder / "data"


def test_runs_stand_beside_the_levels_of_the_heads_features_model(data: Path) -> None:
    runs = pd.read_csv(data / "low_rank" / "runs.csv")
    like, standard = (runs[runs["experiment"] == name] for name in ("like", "standard"))
    assert like["at"].tolist() == pytest.approx([0.0002, 0.2])  # value over L
    assert standard["at"].tolist() == pytest.approx([0.0006, 0.6])
    for at, own in like.groupby("at"):
        model = Dufm(classes=10, per_class=4, features=1.25 * at, weights=(at, at, at))
        assert own["loss_dnc"].to_numpy() == pytest.approx(dnc_loss(model), rel=1e-12)
        assert own["loss_srg"].to_numpy() == pytest.approx(srg_loss(model), rel=1e-12)
    assert standard[["loss_dnc", "loss_over_dnc", "low_rank_over_dnc"]].isna().all(axis=None)
    history = pd.read_csv(data / "results" / "history.csv")
    keys = ["experiment", "x", "seed"]
    ends = history.sort_values("epoch").groupby(keys).tail(1)
    both = runs.merge(ends, on=keys, suffixes=("", "_then"))
    assert len(both) == 4
    assert both["loss"].to_numpy() == pytest.approx(both["loss_then"].to_numpy(), rel=1e-4)


def test_what_gives_its_classes_up_is_lost_and_has_no_rank(data: Path) -> None:
    """At the larger lambda all is zero, the loss is 1/2, and no mean has a part of it."""
    runs = pd.read_csv(data / "low_rank" / "runs.csv")
    strong = runs["x"] == 0.6
    assert runs[strong]["loss"].to_numpy() == pytest.approx(0.5, abs=0.05)
    assert runs["kept"].tolist() == (~strong).tolist()
    measured = pd.read_csv(data / "results" / "runs.csv")
    assert measured["mean_rank"].isna().tolist() == (measured["x"] == 0.6).tolist()
    low = measured["low_rank_over_dnc"].dropna()
    assert (low == measured["loss_over_dnc"][low.index]).all()
    counts = pd.read_csv(data / "low_rank" / "by_value.csv")
    assert counts["lost"].tolist() == [0, 1, 0, 1]
    assert counts["mean_rank"].isna().tolist() == [False, True, False, True]


def test_the_study_draws_its_figures(data: Path) -> None:
    names = {path.stem for path in (data / "low_rank").glob("*.png")}
    each = {f"{kind}_{name}" for kind in ("training", "singular_values") for name in ("like", "standard")}
    assert names == each | {"rank_value", "loss_value", "collapse", "gram"}
    singular = pd.read_csv(data / "low_rank" / "singular_values.csv")
    assert list(singular["layer"].unique()) == ["M1", "~M2", "~M3", "M3"]
    spreads = pd.read_csv(data / "low_rank" / "spreads.csv")
    assert list(spreads["layer"].unique()) == ["M1", "M2", "M3"]
    table = pd.read_csv(data / "metrics" / "like" / "measurements.csv")
    own = table[
        (table["metric"] == "nc1_trace_ratio") & (table["split"] == "train") & (table["layer"] == "H2")
    ]
    assert spreads[(spreads["experiment"] == "like") & (spreads["layer"] == "M2")]["value"].tolist() == (
        own["value"].tolist()
    )


def test_counts_and_means_are_of_runs_that_keep_their_classes() -> None:
    runs = head_runs(headed_runs(), 10)
    assert runs["kept"].tolist() == [True, True, True, False, True, False]
    assert runs["low_rank"].tolist() == [True, True, False, False, True, False]
    assert runs["below_dnc"].tolist() == [True, False, True, False, True, False]
    first, second = by_value(runs).to_dict("records")
    assert (first["lost"], first["low_rank"], first["low_rank_below_dnc"]) == (0, 2, 1)
    assert (first["mean_rank"], first["rank_low"], first["rank_high"]) == (7, 5, 10)
    assert (second["lost"], second["low_rank"], second["mean_rank"]) == (2, 1, 4)
    assert second["loss_low"] == second["loss_high"] == pytest.approx(0.28 / 0.335)
    assert first["srg_over_dnc"] == pytest.approx(0.8)
    assert best_by_value(runs)["seed"].tolist() == [0, 1]


def test_another_axis_is_held_against_its_own_values() -> None:
    runs = headed_runs().assign(axis="optimizer.learning_rate", x=0.5)
    assert head_runs(runs, 10)["at"].tolist() == [0.5] * 6
    assert head_runs(runs.assign(axis="penalty.value"), 10)["at"].tolist() == runs["last_strength"].tolist()


def test_networks_without_a_head_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ncpipe.papers.s24.low_rank_real import low_rank_real

    monkeypatch.chdir(tmp_path)
    write_study(loss="ce")
    with pytest.raises(InputError, match="like is no network with a head under the squared error") as error:
        low_rank_real()
    assert "\n" not in str(error.value)
