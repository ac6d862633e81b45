"""Metrics through training: weights that a run keeps on its way, and what is measured of them."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from conftest import experiment, experiment_tree, measure_runs, vector_data, write_params
from safetensors.torch import load_file
from training_cases import MLP, SGD

from ncpipe.commands.aggregate import aggregate
from ncpipe.commands.grid import write_grid
from ncpipe.commands.plot import plot
from ncpipe.config.params import load_params
from ncpipe.config.run import Compute, Run
from ncpipe.datasets.prepared import read_prepared
from ncpipe.metrics.table import measure
from ncpipe.models.build import build_model, input_shape, reshape_inputs
from ncpipe.runs.fingerprint import fingerprint_of
from ncpipe.runs.run_folder import write_run
from ncpipe.system.errors import InputError
from ncpipe.training.loop import train_batch

CPU = torch.device("cpu")
AT = {"at": [0, 0.3, 1], "metrics": ["nc1_trace_ratio", "nc2_etf", "ncc_error"]}
KEPT = (0, 6, 20)  # of 20 epochs
CASES: dict[str, dict[str, Any]] = {
    "full batches": {},
    "mini-batches": {"batch_size": 7, "optimizer": SGD},
    "L-BFGS": {"optimizer": {"name": "lbfgs", "learning_rate": 1.0, "memory": 3}},
}


def specs(**changes: Any) -> list[Run]:
    count = 1 if "lbfgs" in str(changes) else 2  # its runs train alone
    return [Run("x", 3, seed, experiment(**changes)) for seed in range(count)]


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_keeping_weights_changes_none_and_they_are_those_of_a_shorter_run(changes: dict[str, Any]) -> None:
    """Red: weights that training goes on changing; a row more that draws from a run's stream."""
    changes = changes | {"schedule": {"name": "constant"}}
    data = vector_data()
    without = train_batch(specs(**changes), data, CPU, "float32")
    kept = train_batch(specs(history=AT, **changes), data, CPU, "float32")
    for one, other in zip(without, kept, strict=True):
        assert one.snapshots == {}
        assert tuple(other.snapshots) == KEPT
        assert all(torch.equal(one.state[name], other.state[name]) for name in one.state)
        assert all(torch.equal(other.snapshots[20][name], one.state[name]) for name in one.state)
        assert one.history == tuple(point for point in other.history if point.epoch != 6)
    for shorter in train_batch(specs(epochs=6, **changes), data, CPU, "float32"):
        middle = kept[shorter.run.seed].snapshots[6]
        assert all(torch.equal(middle[name], tensor) for name, tensor in shorter.state.items())


def test_a_run_without_it_has_the_files_that_it_had(tmp_path: Path) -> None:
    (run, _) = train_batch(specs(), vector_data(), CPU, "float32")
    write_run(tmp_path / "s0", run, fingerprint_of(run.run, "", Compute("cpu", 1, "float32")), "cpu")
    assert not list(tmp_path.rglob("*kept*"))
    assert "history" not in json.loads((tmp_path / "s0/run.json").read_text())["inputs"]["spec"]


def test_a_run_that_diverges_keeps_what_it_had(tmp_path: Path) -> None:
    """Red: the last finite weights kept again and again."""
    changes = {"optimizer": SGD | {"learning_rate": 1e30}, "schedule": {"name": "constant"}}
    (run, _) = train_batch(specs(history=AT, **changes), vector_data(), CPU, "float32")
    assert run.diverged_at is not None
    assert run.diverged_at < 6
    assert tuple(run.snapshots) == (0,)


# Through the stages


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two networks with metrics through training, one of them batch-normalised, and one without."""
    folder = tmp_path_factory.mktemp("history")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        trees = {
            "plain": experiment_tree(history=AT),
            "batch": experiment_tree(history=AT, optimizer=SGD) | {"model": MLP},
            "none": experiment_tree(),
        }
        write_params([3], [0], **trees)
        measure_runs(*trees, depths=[3])
        aggregate()
        yield folder


@pytest.mark.parametrize("name", ["plain", "batch"])
def test_they_are_the_metrics_of_those_weights(swept: Path, name: str) -> None:
    """Against a network that loads what was kept: its features in float64, measured as anyone's."""
    run = load_params().run(name, 3, 0)
    data = read_prepared(Path("data/prepared") / name)
    history = pd.read_csv(swept / "data/results/history.csv").query(f"experiment == '{name}'")
    assert set(history.columns[history.notna().all()]) & set(AT["metrics"]) == set()  # not of every epoch
    for epoch in KEPT:
        state = load_file(swept / "data/runs" / run.path / "kept" / f"e{epoch}.safetensors")
        network = build_model(run.spec.model, input_shape(data, run.spec.model), data.classes, 3, seed=0)
        network.load_state_dict(state)
        network.double().eval()
        entered: list[torch.Tensor] = []
        network.last.register_forward_pre_hook(lambda module, inputs, to=entered: to.append(inputs[0]))
        with torch.no_grad():
            for split in (data.train, data.test):
                network(reshape_inputs(split.inputs, data.kind, run.spec.model).double())
        rows = measure(
            entered[0], data.train.labels, network.last.weight.detach(), None, entered[1], data.test.labels
        )
        expected = {(row.metric, row.split): row.value for row in rows}
        (row,) = history[history["epoch"] == epoch].to_dict("records")
        assert row["nc1_trace_ratio"] == pytest.approx(expected["nc1_trace_ratio", "train"], rel=1e-9)
        assert row["nc1_trace_ratio_test"] == pytest.approx(expected["nc1_trace_ratio", "test"], rel=1e-9)
        assert row["nc2_etf"] == pytest.approx(expected["nc2_etf", "weights"], rel=1e-9)
        assert row["ncc_error_test"] == expected["ncc_error", "test"]


def test_who_asked_for_none_has_none(swept: Path) -> None:
    """Red: empty columns for DVC's plots; features of weights that nobody kept."""
    assert not (swept / "data/features/none/L3/s0").exists()
    curves = {path.stem: set(pd.read_csv(path)) for path in (swept / "data/results/curves").iterdir()}
    assert set(curves) == {"plain-L3", "batch-L3", "none-L3"}
    assert "nc2_etf" in curves["plain-L3"]
    assert not any(column.startswith("nc") for column in curves["none-L3"])
    assert "test_error" in curves["none-L3"]


def test_layers_of_all_runs_that_fit_are_there_for_claims(
    swept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claims are judged under each selection. Red: those of runs that `use` selects alone."""
    shutil.copytree(swept, tmp_path / "swept")
    monkeypatch.chdir(tmp_path / "swept")
    params, names = Path("params.yaml").read_text(), ("effective_depth", "separation")
    tables = {}
    for use in ("fit", "converged"):
        Path("params.yaml").write_text(
            params.replace("  train_error: 0.0", f"  train_error: 1.0\n  use: {use}")
        )
        aggregate()
        assert set(pd.read_csv("data/results/runs.csv")["selected"]) == {use == "fit"}
        tables[use] = [Path(f"data/results/{name}.csv").read_text() for name in names]
    assert tables["fit"] == tables["converged"]
    assert all(table.count("\n") > 3 for table in tables["fit"])


def test_runs_that_diverge_before_their_first_row_have_tables_and_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red: a table without a header, which aggregate calls damaged; figures of no panels."""
    monkeypatch.chdir(tmp_path)
    tree = experiment_tree()
    tree["model"] |= {"initialisation": "normal", "gain": 1e20}
    write_params([3], [0], dead=tree)
    measure_runs("dead", depths=[3])
    aggregate()
    assert pd.read_csv("data/results/history.csv").empty
    assert list(pd.read_csv("data/results/runs.csv")["reason"]) == ["diverged"]
    plot()
    assert Path("data/figures/curves_dead.png").is_file()


def test_a_metric_of_whole_runs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in the catalogue, and no features of a last layer have it."""
    monkeypatch.chdir(tmp_path)
    write_params([3], [0], one=experiment_tree(history={"at": [1], "metrics": ["nc2_etf", "loss_gap"]}))
    with pytest.raises(InputError, match=r"one.history.metrics: unknown 'loss_gap'; allowed: nc0_row_sum"):
        write_grid()
