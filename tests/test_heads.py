"""S24's heads: conv_net, levels and ranks, against plain loops, and on data through every stage of a study.

test_training.py has their training.
"""

import math
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import experiment_tree, image_data, write_params
from paper_figure_cases import headed_runs
from test_batch_norm_networks import numpy_conv, numpy_norm
from training_cases import CONV, HEAD, IMAGES, RESNET, run_of

from ncpipe.config.run import Run
from ncpipe.models.build import build_model, input_shape
from ncpipe.models.network import Network
from ncpipe.papers.s24.dufm import Dufm, dnc_loss, srg_loss
from ncpipe.papers.s24.dufm_runs import head_levels
from ncpipe.papers.s24.dufm_solutions import dnc_solution, objective, srg_solution
from ncpipe.papers.s24.structure import rank_gap, ranks
from ncpipe.papers.s24.tables.heads import best_by_value, by_value, head_runs
from ncpipe.system.errors import InputError

WIDE = CONV | {"width": 10}
NOTHING = {"rule": "constant", "value": 0.02, "last_layer": None}


def headed(model: dict[str, Any], **changes: Any) -> Run:
    """A run whose head is penalised, under the squared error."""
    return run_of(model, **{"penalty": HEAD, "loss": "mse"} | changes)


def network_of(run: Run) -> Network:
    shape = input_shape(IMAGES, run.spec.model)
    return build_model(run.spec.model, shape, IMAGES.classes, run.depth, run.seed)


def arranged(model: dict[str, Any]) -> torch.Tensor:
    """The training images in float64, their squares of 2 x 2 pixels averaged by hand."""
    images = IMAGES.train.inputs
    if model is CONV:
        images = images.unflatten(3, (4, 2)).unflatten(2, (4, 2)).mean((3, 5))
    return images.double()


def test_conv_net_is_its_definition() -> None:
    run = headed(CONV)
    network = network_of(run).double().train()
    state = {name: tensor.detach().numpy() for name, tensor in network.state_dict().items()}
    x = arranged(CONV).numpy()
    for index, stride in enumerate((1, 2)):
        x = numpy_conv(x, state[f"convs.{index}.weight"], stride)
        x = np.maximum(numpy_norm(x, state, f"norms.{index}", True, (0, 2, 3)), 0)
    h = x.reshape(len(x), -1) @ state["map.weight"].T
    values = {"H1": h}
    for layer in (2, 3, 4):
        values[f"Z{layer}"] = h @ state[f"head.{layer - 2}.weight"].T
        h = np.maximum(values[f"Z{layer}"], 0)
        values["last" if layer == 4 else f"H{layer}"] = h
    with torch.no_grad():
        layers = {layer.name: layer for layer in network.layers(arranged(CONV))}
        outputs = network(arranged(CONV))
    assert list(layers) == ["C1", "C2", "H1", "Z2", "H2", "Z3", "H3", "Z4", "last"]
    for name, expected in values.items():
        np.testing.assert_allclose(layers[name].values, expected, atol=1e-12)
    np.testing.assert_allclose(outputs, h @ state["last.weight"].T, atol=1e-12)
    assert [layer.position * network.length for layer in layers.values() if layer.position] == [*range(1, 7)]


def test_conv_net_is_drawn_as_its_keys_say() -> None:
    run = headed(CONV | {"channels": [40, 30], "width": 300, "gain": 0.5})
    network = network_of(run)
    fans = {
        "convs.0": 2 / 18,
        "convs.1": 2 / 360,
        "map": 0.25 / 120,
        "head.1": 0.25 / 300,
        "last": 0.25 / 300,
    }
    for name, variance in fans.items():
        weight = network.get_parameter(f"{name}.weight")
        assert weight.var().item() == pytest.approx(variance, rel=5 * math.sqrt(2 / weight.numel()))
    again = network_of(run)
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize("model", [CONV, RESNET], ids=["conv_net", "resnet"])
def test_a_head_is_named_where_it_is(model: dict[str, Any]) -> None:
    """By values: W_1 H_1, its ReLU, W_2 of that, ...; and by roles."""
    run = headed(model)
    network, head = network_of(run).double(), run.spec.model.head(run.depth)
    with torch.no_grad():
        values = {layer.name: layer.values for layer in network.layers(arranged(model))}
        logits, _, head_input = network.forward_with_features(arranged(model))
        matrices = [*network.head, network.last]
        assert head.depth == len(matrices) == len(head.before) + 1
        assert network.head_input_layer == head.input_layer
        assert torch.equal(head_input, values[head.input_layer])
        h = head_input
        for matrix, before, after in zip(matrices, head.before, head.after, strict=False):
            torch.testing.assert_close(values[before], matrix(h))
            h = torch.relu(values[before])
            assert torch.equal(values[after], h)
        torch.testing.assert_close(logits, network.last(h))
    inside = {name for name, role in network.roles().items() if role == "head"}
    assert inside == {f"head.{index}.weight" for index in range(head.depth - 1)}


def test_levels_of_a_head_are_those_of_its_features_model() -> None:
    """L_DNC and L_SRG against the objective of built matrices, for unequal lambdas."""
    penalty = HEAD | {"value": 0.006, "last_layer": 0.004, "features": None, "features_over_value": 0.1}
    labels = torch.arange(10).repeat_interleave(7)
    levels = head_levels(headed(WIDE, penalty=penalty), labels)
    model = Dufm(classes=10, per_class=7, features=0.0006, weights=(0.006, 0.006, 0.006, 0.004))
    for level, solution in ((levels.dnc, dnc_solution(model)), (levels.srg, srg_solution(model))):
        assert level == pytest.approx(objective(model, solution.features, solution.weights), rel=1e-12)
    shallow = Dufm(10, 7, 0.0006, (0.006, 0.006, 0.004))  # two ReLU layers: L = 3
    solution = dnc_solution(shallow)
    expected = objective(shallow, solution.features, solution.weights)
    deep = headed(RESNET | {"head_width": 10}, penalty=penalty)
    assert head_levels(deep, labels).dnc == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    "changes",
    [
        {"penalty": HEAD | {"value": 0.0}},
        {"penalty": HEAD | {"features": 0.0}},
        {"penalty": NOTHING | {"scope": "all"}},
        {"loss": "ce"},
        {"model": WIDE | {"width": 9}},
        {
            "model": WIDE | {"classifier": {"kind": "etf", "length": 1.0}},
            "penalty": HEAD | {"last_layer": None},
        },
        {"model": RESNET | {"head_width": 9}},
        {"model": RESNET | {"head_width": 10, "width": 2}},  # 8 features
    ],
)
def test_other_objectives_have_no_levels(changes: dict[str, Any]) -> None:
    """Red: levels of a head narrower than S24's theorem asks for, or of a fixed last layer."""
    labels = torch.arange(10).repeat_interleave(7)
    assert head_levels(headed(WIDE), labels).dnc > 0
    assert math.isnan(head_levels(headed(**{"model": WIDE} | changes), labels).dnc)
    assert math.isnan(head_levels(headed(WIDE), labels[:-1]).dnc)  # of unequal classes


def test_ranks_and_their_gap_by_a_cut() -> None:
    values = [torch.diag(torch.tensor(sigma)) for sigma in ([2.0, 1.0, 0.09, 0.01], [1.0, 0.2, 0.1, 0.06])]
    assert ranks(values, 0.05) == [2, 4]
    assert ranks(values) == [4, 4]
    assert rank_gap(values, 0.05) == pytest.approx(1 / 0.09)
    assert rank_gap(values[1:], 0.05) == math.inf


@pytest.mark.parametrize("model", [CONV | {"pooled": 1}, RESNET], ids=["conv_net", "resnet"])
def test_images_that_are_not_square_are_one_line(model: dict[str, Any]) -> None:
    """Red: a residual network of images with the channels last, which learned 8 channels of 8 x 3."""
    data = image_data(side=8, channels=8)
    spec = headed(model).spec.model
    assert input_shape(data, spec).size == 8
    data = replace(data, train=replace(data.train, inputs=data.train.inputs[..., :3]))
    message = rf"{model['architecture']} takes square images .*, not 8 x 3 with 8 channels"
    with pytest.raises(InputError, match=message):
        input_shape(data, spec)


# Through every stage of their study, its tables and its figures


DIGITS = {"source": "digits", "per_class": 4, "test_per_class": 2, "seed": 0, "normalisation": "standardise"}
SMALL_CONV = CONV | {"channels": [4, 8], "width": 16, "feature_gain": 0.3}
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
    tree = experiment_tree(**keys) | {"model": SMALL_CONV}
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
    for at, rows in like.groupby("at"):
        model = Dufm(classes=10, per_class=4, features=1.25 * at, weights=(at, at, at))
        assert rows["loss_dnc"].to_numpy() == pytest.approx(dnc_loss(model), rel=1e-12)
        assert rows["loss_srg"].to_numpy() == pytest.approx(srg_loss(model), rel=1e-12)
    assert standard[["loss_dnc", "loss_over_dnc", "low_rank_over_dnc"]].isna().all(axis=None)
    history = pd.read_csv(data / "results" / "history.csv")
    keys = ["experiment", "x", "seed"]
    ends = history.sort_values("epoch").groupby(keys).tail(1)
    merged = runs.merge(ends, on=keys, suffixes=("", "_then"))
    assert len(merged) == 4
    assert merged["loss"].to_numpy() == pytest.approx(merged["loss_then"].to_numpy(), rel=1e-4)


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
    figures = {f"{kind}_{name}" for kind in ("training", "singular_values") for name in ("like", "standard")}
    assert names == figures | {"rank_value", "loss_value", "collapse", "gram"}
    singular = pd.read_csv(data / "low_rank" / "singular_values.csv")
    assert list(singular["layer"].unique()) == ["M1", "~M2", "~M3", "M3"]
    spreads = pd.read_csv(data / "low_rank" / "spreads.csv")
    assert list(spreads["layer"].unique()) == ["M1", "M2", "M3"]
    table = pd.read_csv(data / "metrics" / "like" / "measurements.csv")
    rows = table[
        (table["metric"] == "nc1_trace_ratio") & (table["split"] == "train") & (table["layer"] == "H2")
    ]
    assert spreads[(spreads["experiment"] == "like") & (spreads["layer"] == "M2")]["value"].tolist() == (
        rows["value"].tolist()
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
    assert head_runs(runs.assign(axis="penalty.value"), 10)["at"].tolist() == runs["penalty_value"].tolist()


@pytest.mark.usefixtures("study_folder")
def test_networks_without_a_head_are_refused() -> None:
    from ncpipe.papers.s24.low_rank_real import low_rank_real

    write_study(loss="ce")
    with pytest.raises(InputError, match="like is no network with a head under the squared error") as error:
        low_rank_real()
    assert "\n" not in str(error.value)
