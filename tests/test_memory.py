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
import training_cases
from conftest import (
    ARCHITECTURES,
    architecture,
    experiment,
    experiment_tree,
    image_data,
    prepare_sweep,
    vector_data,
    write_params,
)
from training_cases import HEADLESS

from ncpipe.commands.fetch import fetch
from ncpipe.commands.train import train
from ncpipe.config.run import Run
from ncpipe.datasets.prepared import Prepared
from ncpipe.models import residual_block
from ncpipe.system.device_memory import free_bytes
from ncpipe.system.errors import InputError
from ncpipe.training.cost import bytes_per_run, check_memory, estimate

CPU, META = torch.device("cpu"), torch.device("meta")


def run_of(depth: int = 3, **changes: Any) -> Run:
    return Run("one", depth, 0, experiment(**changes))


@pytest.mark.parametrize(("name", "norm"), ARCHITECTURES)
def test_the_estimate_needs_no_memory_and_is_that_of_the_network(
    name: str, norm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the byte, by PyTorch's operations; compiled parts of blocks keep less.

    Red: a network laid out otherwise on the meta device; storages told apart by address."""
    monkeypatch.setattr(residual_block, "FEWEST_NUMBERS", 0)
    patch = {"patch": 2} if name.startswith("L-T") else {}
    run = run_of(model=architecture(name, norm) | patch)
    there, compiled = (bytes_per_run(run, vector_data(), device, torch.float32) for device in (META, CPU))
    monkeypatch.setattr(residual_block, "can_compile", lambda: False)
    assert there == bytes_per_run(run, vector_data(), CPU, torch.float32)
    if name in {"L-RN2", "L-T22"}:  # no part of theirs is compiled
        assert compiled == there
    else:
        assert 0.7 * there < compiled < 0.95 * there


def test_what_may_not_fit_is_not_tried_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red: a network that is nearly as large as the memory is built twice."""
    need = bytes_per_run(run_of(), vector_data(), META, torch.float32)
    tried = []

    def note(run: Run, data: Prepared, device: torch.device, dtype: torch.dtype, *_: object) -> int:
        tried.append(device.type)
        return need

    monkeypatch.setattr("ncpipe.training.cost.bytes_per_run", note)
    for free in (1000 * need, 3 * need):
        monkeypatch.setattr("ncpipe.training.cost.free_bytes", lambda device, free=free: free)
        check_memory(run_of(), vector_data(), CPU, torch.float32)
    assert tried == ["cpu", "meta"]


@pytest.mark.parametrize("name", ["L-RN1", "L-T22", "resnet_cifar"])
def test_a_deep_networks_estimate_is_not_laid_out_whole(name: str) -> None:
    """It grows by the same number with each block. Red: a slope from depths that are no networks."""
    if name == "resnet_cifar":
        runs, data = [training_cases.run_of(HEADLESS, depth=depth) for depth in (38, 50)], image_data(8, 1)
    else:
        model = architecture(name, "post") | ({"patch": 2} if name == "L-T22" else {})
        runs, data = [run_of(depth, model=model) for depth in (37, 48)], vector_data()
    for run in runs:
        assert estimate(run, data, META, torch.float32) == pytest.approx(
            bytes_per_run(run, data, META, torch.float32), rel=1e-3
        )


def test_the_estimate_of_a_network_that_vmap_runs() -> None:
    """Which takes one run at a time on the CPU alone. Red: it cannot be laid out without memory."""
    run = training_cases.run_of(HEADLESS)
    there, here = (bytes_per_run(run, image_data(8, 1), device, torch.float32) for device in (META, CPU))
    assert there == pytest.approx(here, rel=0.2)


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


def test_a_run_that_cannot_fit_is_refused_by_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red: `ncpipe train` does not ask."""
    monkeypatch.chdir(tmp_path)
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
def test_numbers_that_overflow_in_training_end_a_run_as_diverged(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder is whole. Red: `Out of range float values are not JSON compliant`, a traceback."""
    monkeypatch.chdir(tmp_path)
    prepare_sweep([2], [0], one=experiment_tree(**OVERFLOWING[name]))
    train("one", 2, 0)
    folder = Path("data/runs/one/L2/s0")
    record = json.loads((folder / "run.json").read_text())
    if name != "factor of a search":  # which halves its trial steps until one is finite
        assert record["outcome"]["finished"] is False
    text = (folder / "history.csv").read_text()
    assert "inf" not in text
    assert "nan" not in text


def test_data_that_do_not_fit_are_refused_before_they_are_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red: 24 TB are asked for."""
    monkeypatch.chdir(tmp_path)
    tree = experiment_tree()
    tree["data"] |= {"per_class": 10**9, "dimension": 10**6}
    write_params([2], [0], one=tree)
    with pytest.raises(InputError, match="data: 3000000015 samples of 1000000 coordinates take about"):
        fetch("one", None)
