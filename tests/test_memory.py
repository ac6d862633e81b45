"""What a run takes in memory is known before it is built, and too little of it is a line, on the CPU too.

Each test's docstring ends with the fault that would turn it red.
"""

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from conftest import (
    architecture,
    experiment,
    experiment_tree,
    prepare_sweep,
    vector_data,
    write_params,
)

from ncpipe.commands.fetch import fetch
from ncpipe.commands.train import train
from ncpipe.config.run import Run
from ncpipe.datasets.prepared import Prepared
from ncpipe.models.build import build_network
from ncpipe.system.device_memory import free_bytes
from ncpipe.system.errors import InputError
from ncpipe.training.cost import check_memory

CPU = torch.device("cpu")


def run_of(depth: int = 3, **changes: Any) -> Run:
    return Run("one", depth, 0, experiment(**changes))


def test_what_may_not_fit_is_not_tried_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight copies of the weights do not. Red: a network that is larger than the memory is built."""
    numbers = sum(parameter.numel() for parameter in build_network(run_of(), vector_data()).parameters())
    monkeypatch.setattr("ncpipe.training.cost.free_bytes", lambda device: 8 * 4 * numbers)
    monkeypatch.setattr("ncpipe.training.cost.bytes_per_run", lambda *_: pytest.fail("tried"))
    with pytest.raises(InputError, match="takes about"):
        check_memory(run_of(), vector_data(), CPU, torch.float32)


@pytest.mark.parametrize(
    ("run", "data"),
    [
        (run_of(model={"width": 10**6}), vector_data()),
        (run_of(10_000, model={"width": 10**6}), vector_data()),
        (run_of(model={**architecture("L-T21", "post"), "patch": 2, "width": 10**6}), vector_data()),
        (run_of(epochs=10**8, batch_size=1), vector_data()),
        (run_of(epochs=10**8, optimizer={"name": "lbfgs", "learning_rate": 1.0, "memory": 1000},
                model={"width": 100_000}), vector_data()),
    ],
    ids=["wide", "wide and deep", "a wide transformer", "many steps", "many curvature pairs"],
)  # fmt: skip
def test_what_cannot_fit_is_refused_before_it_is_built(run: Run, data: Prepared) -> None:
    """In a second. Red: the network is allocated first; the optimizer's own memory is not counted."""
    start, before = time.process_time(), psutil.Process().memory_info().rss
    with pytest.raises(
        InputError, match=r"one L=\d+ seed=0: takes about .* GB of memory, and .* make model.width"
    ):
        check_memory(run, data, CPU, torch.float32)
    assert time.process_time() - start < 10  # of CPU: 2, however busy the machine is
    assert psutil.Process().memory_info().rss - before < 2**30


@pytest.mark.parametrize(
    ("groups", "file", "told"),
    [
        ("0::/job/step", "job/memory.max", {}),
        ("0::/elsewhere", "memory.max", {}),
        ("5:cpu:/\n4:memory:/job\n0::/", "memory/job/memory.limit_in_bytes", {}),
        ("", "none", {"SLURM_MEM_PER_NODE": "3000"}),
        ("", "none", {"SLURM_MEM_PER_CPU": "1500", "SLURM_CPUS_ON_NODE": "2"}),
    ],
)
def test_the_limit_of_a_container_or_a_job_counts(
    groups: str, file: str, told: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red: the memory of the machine around it; a limit that does not count what the process has already."""
    monkeypatch.setattr("ncpipe.system.machine.CGROUPS", tmp_path)
    monkeypatch.setattr("ncpipe.system.machine.OWN_CGROUPS", tmp_path / "own")
    machine = SimpleNamespace(available=2**60)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: machine)
    monkeypatch.setattr(psutil.Process, "memory_info", lambda process: SimpleNamespace(rss=10**6))
    (tmp_path / "own").write_text(groups)
    assert free_bytes(CPU) == 2**60
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(f"{3000 * 2**20}\n")
    (tmp_path / "memory.max" if file != "memory.max" else tmp_path / "other").write_text("max\n")
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    assert free_bytes(CPU) == 3000 * 2**20 - 10**6


@pytest.mark.usefixtures("study_folder")
def test_a_run_that_cannot_fit_is_refused_by_train() -> None:
    """Red: `ncpipe train` does not ask."""
    prepare_sweep([2], [0], one=experiment_tree(epochs=2, log_every=1, model={"width": 10**6}))
    with pytest.raises(InputError, match="takes about"):
        train("one", 2, 0)


# Numbers beyond float32


OVERFLOWING: dict[str, dict[str, Any]] = {
    "rate": {"optimizer": experiment_tree()["optimizer"] | {"learning_rate": 3e38}},
    "factor of a search": {
        "optimizer": {"name": "lbfgs", "learning_rate": 3e38, "memory": 3},
        "schedule": {"name": "step", "milestones": [0.5], "factor": 3e38},
    },
    "gain": {"model": {"gain": 3e38}},
}


@pytest.mark.parametrize("name", OVERFLOWING)
@pytest.mark.usefixtures("study_folder")
def test_numbers_that_overflow_in_training_end_a_run_as_diverged(name: str) -> None:
    """Its folder is whole. Red: `Out of range float values are not JSON compliant`, a traceback."""
    prepare_sweep([2], [0], one=experiment_tree(**OVERFLOWING[name]))
    train("one", 2, 0)
    folder = Path("data/runs/one/L2/s0")
    record = json.loads((folder / "run.json").read_text())
    if name != "factor of a search":  # which halves its trial steps until one is finite
        assert record["outcome"]["finished"] is False
    text = (folder / "history.csv").read_text()
    assert "inf" not in text
    assert "nan" not in text


@pytest.mark.usefixtures("study_folder")
def test_data_that_do_not_fit_are_refused_before_they_are_drawn() -> None:
    """Red: 24 TB are asked for."""
    tree = experiment_tree()
    tree["data"] |= {"per_class": 10**9, "dimension": 10**6}
    write_params([2], [0], one=tree)
    with pytest.raises(InputError, match="data: 3000000015 samples of 1000000 coordinates take about"):
        fetch("one", None)
