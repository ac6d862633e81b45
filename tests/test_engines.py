"""Engines: what a worker is told, what the driver makes of its end, and where sweeps are said to train."""

import dataclasses
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from conftest import architecture, contents, experiment_tree, write_params

from ncpipe.commands.fetch import fetch
from ncpipe.commands.logs import logs
from ncpipe.commands.train import train
from ncpipe.config.params import load_params
from ncpipe.config.specs import Compute
from ncpipe.runs.engines.choice import tasks_of
from ncpipe.runs.engines.engine import Engine, run_tasks, tasks_to_retry
from ncpipe.runs.engines.job_log import recorded_job
from ncpipe.runs.engines.jobs import write_array
from ncpipe.runs.engines.options import Options, Settings, Slurm, gpus_of, load_options
from ncpipe.runs.engines.task import State, Task, TaskResult, from_json, to_json
from ncpipe.runs.engines.worker import fingerprints_of_task, train_task
from ncpipe.runs.fill import fill
from ncpipe.runs.store import sweep_fingerprints
from ncpipe.runs.store_layout import ALONE
from ncpipe.system.console import say
from ncpipe.system.errors import InputError

WORKER = """
import sys
from ncpipe.runs.engines.task import from_json
from ncpipe.runs.engines.worker import train_task
for task in from_json(sys.stdin.read()):
    ended = train_task(task)
    assert ended.state == "done", ended
assert not {"dvc", "typer", "pandas"} & set(sys.modules), sys.modules
"""

KILLED = """
import os, signal, sys
from ncpipe.runs.engines.job_log import recorded_job
from ncpipe.system.console import say
with recorded_job("local", [sys.argv[1]]):
    say("so far")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two shapes of two experiments, their data prepared."""
    monkeypatch.chdir(tmp_path)
    other = experiment_tree(model=architecture("L-RN2", "pre"))
    write_params([2], [0, 1, 2], one=experiment_tree(), two=other)
    for name in ("one", "two"):
        fetch(name)
    return tmp_path


def settings() -> Settings:
    return Settings(load_params().compute, 1, 60.0, False, 6)


def tasks() -> list[Task]:
    compute = load_params().compute
    return tasks_of(sweep_fingerprints(load_params(), compute), settings())


def test_tasks_go_through_json_and_come_back_as_the_same_runs(project: Path) -> None:
    fingerprints = sweep_fingerprints(load_params(), load_params().compute)
    told = from_json(to_json(tasks()))
    assert [each for task in told for each in fingerprints_of_task(task)] == fingerprints
    assert len(told) == 2
    assert told[0].name == "one L=2 seed=0 and 2 more"


def test_a_task_names_the_keys_of_a_spec_as_params_yaml_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red: the field `class_` of `name: torch`, which no worker reads, so that none of its runs trained."""
    monkeypatch.chdir(tmp_path)
    optimizer = {
        "name": "torch",
        "class": "NAdam",
        "learning_rate": 0.01,
        "arguments": {"betas": [0.9, 0.99]},
    }
    write_params([2], [0, 1], one=experiment_tree(optimizer=optimizer))
    fetch("one")
    [task] = from_json(to_json(tasks()))
    assert task.runs[0]["spec"]["optimizer"] == optimizer
    assert fingerprints_of_task(task) == sweep_fingerprints(load_params(), load_params().compute)
    assert train_task(task).state == "done"


def test_logs_are_those_of_what_trained_the_run(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red: a log of other runs; one of older code; none of a job or a sweep that trains, or was killed."""
    one, two = tasks()
    with pytest.raises(InputError, match="one L=2 seed=1: no log of this run"):
        logs("one", 2, 1)
    assert fill(fingerprints_of_task(one), settings()) == set()
    [job] = write_array([[two]], Slurm())
    job.file(".log").write_text("so far")
    capsys.readouterr()
    logs("one", 2, 1)
    said = capsys.readouterr().out
    assert said.count("==> ") == said.count("==> local local-") == 1
    assert "  one L=2 seed=1: loss" in said
    logs("two", 2, 1)
    assert capsys.readouterr().out == f"==> slurm {job.id} (submitted): {job.file('.log')}\nso far\n"
    fingerprint = sweep_fingerprints(load_params(), load_params().compute)[-1]
    assert fingerprint.run.name == "two L=2 seed=2"
    job.remove()
    done = subprocess.run([sys.executable, "-c", KILLED, fingerprint.key()], stderr=subprocess.DEVNULL)
    assert done.returncode == -signal.SIGKILL
    logs("two", 2, 2)
    said = capsys.readouterr().out
    assert said.startswith("==> local (training, or killed): data/logs/jobs/local-")
    assert said.endswith(".log\nso far\n\n")
    with recorded_job("local", [fingerprint.key()]):
        say("now")
        logs("two", 2, 2)
    logs("two", 2, 2)
    lines = capsys.readouterr().out.splitlines()
    heads = [line.partition(":")[0].split("-")[0] for line in lines if line.startswith("==> ")]
    killed = "==> local (training, or killed)"
    assert heads == [killed, killed, killed, "==> local local"]
    assert lines.count("now") == 2
    with monkeypatch.context() as patch:
        patch.setattr("ncpipe.runs.fingerprint.code_digest", lambda spec: "other")
        with pytest.raises(InputError, match="no log of this run"):
            logs("one", 2, 1)


def test_a_worker_elsewhere_gives_the_bytes_of_a_stage(project: Path, tmp_path: Path) -> None:
    """It has the prepared data and a store in another folder, and imports neither dvc nor typer."""
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree("data/prepared", elsewhere / "data" / "prepared")
    text = to_json(tasks())
    subprocess.run([sys.executable, "-c", WORKER], input=text, text=True, check=True, cwd=elsewhere)
    fingerprints = {
        fingerprint.key(): fingerprint
        for fingerprint in sweep_fingerprints(load_params(), load_params().compute)
    }
    found = {path.name for path in (elsewhere / ALONE).iterdir() if len(path.name) == 64}
    assert found == set(fingerprints)
    for key, fingerprint in fingerprints.items():
        train(fingerprint.run.experiment, fingerprint.run.depth, fingerprint.run.seed)
        assert contents(elsewhere / ALONE / key) == contents(Path("data/runs") / fingerprint.run.path)


def test_a_worker_with_other_code_or_data_refuses(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = tasks()[0]
    with monkeypatch.context() as patch:
        patch.setattr("ncpipe.runs.fingerprint.code_digest", lambda spec: "other")
        ended = train_task(task)
        assert (ended.state, "code differs between" in ended.reason) == ("failed", True)
    assert "differs from the data" in train_task(dataclasses.replace(task, data="0" * 64)).reason
    assert not list(ALONE.glob("*"))


@pytest.mark.parametrize(("shares", "batches"), [(1, 1), (2, 3)])
def test_tasks_of_one_machine_share_its_memory(
    shares: int,
    batches: int,
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Red: two tasks of Ray that each take the memory that is free."""
    monkeypatch.setattr("ncpipe.runs.batches.bytes_per_run", lambda *rest: 10)
    monkeypatch.setattr("ncpipe.runs.batches.free_bytes", lambda device: 3 * 10 / 0.7 + 1)
    assert train_task(dataclasses.replace(tasks()[0], shares=shares)).state == "done"
    assert capsys.readouterr().err.count(" on cpu (") == batches


def test_a_worker_tells_of_what_goes_wrong(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*rest: object, **options: object) -> None:
        raise RuntimeError("a fault of the machine")

    monkeypatch.setattr("ncpipe.runs.batches.train_batch", fail)
    ended = train_task(tasks()[0])
    assert (ended.state, ended.reason) == ("failed", "RuntimeError: a fault of the machine")


def test_a_run_alone_that_runs_out_of_memory_is_refused(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red: a job that is submitted again and again, and fails on the same machine."""

    def fail(*rest: object, **options: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("ncpipe.runs.batches.check_memory", fail)
    task = tasks()[0]
    assert [train_task(part).state for part in (task, task.subset([0]))] == ["memory", "refused"]


def ended(state: State, runs: int, tries: int = 0) -> TaskResult:
    plain = tuple(
        {"experiment": "one", "depth": 2, "seed": at, "axis": None, "spec": {"epochs": 5}}
        for at in range(runs)
    )
    task = Task(plain, tuple(map(str, range(runs))), "", {"device": "cpu"}, 0.0, 1, tries)
    return TaskResult(task, state)


@pytest.mark.parametrize(
    ("end", "sizes"),
    [
        (ended("done", 3), []),
        (ended("failed", 3), [1, 1, 1]),
        (ended("failed", 1), [1]),
        (ended("failed", 1, 1), []),
        (ended("refused", 1), []),
        (ended("memory", 5), [2, 3]),
        (ended("memory", 1), []),
        (ended("lost", 4), [4]),
        (ended("lost", 4, 3), []),
    ],
    ids=str,
)
def test_what_is_tried_again(
    end: TaskResult, sizes: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    again = tasks_to_retry(end)
    assert [len(task.runs) for task in again] == sizes
    assert [key for task in again for key in task.keys] == (list(end.task.keys) if sizes else [])
    assert all(task.tries == end.task.tries + 1 for task in again)


def test_what_is_in_the_store_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (ALONE / "1").mkdir(parents=True)
    assert [task.keys for task in tasks_to_retry(ended("failed", 3))] == [("0",), ("2",)]


class Faulty(Engine):
    """An engine whose tasks end as a list says, one after the other."""

    def __init__(self, ends: Sequence[State]) -> None:
        self.ends, self.queue, self.cancelled = list(ends), [], False
        self.seen: list[int] = []

    def submit(self, tasks: Sequence[Task]) -> None:
        self.queue += tasks

    def watch(self, wait: bool = True) -> Iterator[list[TaskResult]]:
        while self.queue:
            task = self.queue.pop(0)
            self.seen.append(len(task.runs))
            yield [TaskResult(task, self.ends.pop(0), "why")]

    def cancel(self) -> None:
        self.cancelled = True


def test_the_driver_tries_again_until_it_is_done_or_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    task = ended("done", 4).task
    engine = Faulty(["lost", "memory", "failed", "done", "done", "failed"])
    failed = run_tasks(engine, [task], keep_going=True)
    assert engine.seen == [4, 4, 2, 2, 1, 1]
    assert [end.task.keys for end in failed] == [("1",)]
    engine = Faulty(["refused", "done"])
    with pytest.raises(InputError, match="why"):
        run_tasks(engine, [task, task], keep_going=False)
    assert engine.cancelled
    for key in task.keys:
        (ALONE / key).mkdir(parents=True)
    assert run_tasks(Faulty(["lost"]), [task], keep_going=False) == []  # with its last breath it was finished


def test_engine_yaml_and_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "engine.yaml"
    assert load_options(path=file) == Options()
    file.write_text("engine: slurm\nslurm: {partition: gpu, time: '0:30:00'}\n")
    found = load_options(None, ["time=1:00:00", "sbatch=[--exclusive]"], file)
    assert found == Options("slurm", Slurm(partition="gpu", time="1:00:00", sbatch=("--exclusive",)))
    file.write_text("# engine: slurm\n")
    assert load_options(path=file) == Options()
    in_units_of_sbatch = load_options("slurm", ["time=150", "mem=500", "rules=[{time: 60}]"], file).slurm
    assert (in_units_of_sbatch.limit, in_units_of_sbatch.megabytes) == (150, 500)
    assert in_units_of_sbatch.for_run("alpha", 2).limit == 60
    assert load_options("local", path=file).engine == "local"


def test_no_number_is_no_time_between_checkpoints() -> None:
    with pytest.raises(InputError, match="--checkpoint-seconds: nan; give 0 or more"):
        Settings(Compute("cpu", 1, "float32"), None, float("nan"), False, 1)


@pytest.mark.parametrize(
    ("text", "given", "message"),
    [
        ("engine: slurmm", [], r"engine.yaml: engine: 'slurmm' is unknown; did you mean 'slurm'"),
        ("slurm: {times: 3}", [], r"engine.yaml: slurm.times: unknown key; did you mean 'time'"),
        ("slurm: {minutes: 30}", [], r"/engine.yaml: slurm.minutes: is time now, written as for sbatch$"),
        ("slurm: {memory_gb: 2, cpu: 1}", [], r"slurm.memory_gb: is mem now, .*\n.*did you mean 'cpus'"),
        ("slurm: {rules: [{memory_gb: 2}]}", [], r"slurm.rules\[0\].memory_gb: is mem now"),
        (
            "engine: slurm",
            ["memory_most_gb=9"],
            r"^slurm.memory_most_gb: memory grows no more; give mem what",
        ),
        (
            "slurm: {memory_growth: 2}",
            [],
            r"/engine.yaml: slurm.memory_growth: memory grows no more; give [^\n]*$",
        ),
        (
            "slurm: {rules: [{mem_most: 9G}]}",
            [],
            r"slurm.rules\[0\].mem_most: memory grows no more; give mem",
        ),
        ("slurm: {array: 5000}", [], r"slurm.array: 5000 is out of range; .* 1001"),
        ("slurm: {sbatch: [a100]}", [], r"sbatch: 'a100' is not an option; write it as --name=value"),
        ("slurm: {gpus: 2}", [], r"slurm.gpus: 2 is out of range; .*a job trains on one GPU"),
        ("slurm: {sbatch: [--time=3]}", [], r"sbatch: --time is set by time; leave it out"),
        ("slurm: {sbatch: [--output=a]}", [], r"sbatch: --output is set by ncpipe; leave it out"),
        (
            "slurm: {sbatch: [--part=a]}",
            [],
            r"sbatch: --part, which sbatch takes for --partition, is set by",
        ),
        ("slurm: {sbatch: [--t=1]}", [], r"sbatch: --t, which sbatch takes for --time, is set by time"),
        ("slurm: {sbatch: [--out=a]}", [], r"sbatch: --out, which .* --output, is set by ncpipe; leave it"),
        ('slurm: {sbatch: ["--qos=a\\nb"]}', [], r"sbatch: '--qos=a\\nb' is not an option"),
        ("slurm: {sbatch: [--gres=gpu:1]}", [], r"sbatch: --gres is set by gres; leave it out"),
        ("slurm: {sbatch: [-pgpu]}", [], r"sbatch: '-pgpu' is not an option"),
        ("slurm: {gres: 'gpu:1', gpus: 1}", [], r"slurm: gres: sets the same as gpus; leave one"),
        ("slurm: {time: soon}", [], r"slurm: time: 'soon' is not a time for Slurm; write it as 2:30:00"),
        ("slurm: {mem: much}", [], r"slurm: mem: 'much' is not an amount of memory for Slurm"),
        (
            "slurm: {gres: 'gpu:a100:2'}",
            [],
            r"slurm: gres: gpu:a100:2 requests 2 GPUs, but a job",
        ),
        ("slurm: {gres: 'gpu:a100:1,gpu:v100'}", [], r"gres: gpu:a100:1,gpu:v100 requests 2 GPUs"),
        ("slurm: {qos: '--time=1'}", [], r"slurm: qos: '--time=1' is empty, begins with -"),
        ("slurm: {rules: [{time: '0:01:00'}]}", [], r"slurm: rules\[0\].signal_seconds: 90 s of 1 minutes"),
        ("slurm: {rules: [{depth: 3}]}", [], r"slurm.rules\[0\].depth: unknown key"),
        (
            "slurm: {container: {image: a}}",
            [],
            r"slurm.container: is gone; name a script that [^\n]* as python",
        ),
        ('slurm: {sbatch: ["--qos=a\\rb"]}', [], r"sbatch: '--qos=a\\rb' is not an option"),
        ('slurm: {partition: "a\\n#SBATCH --x"}', [], r"slurm: partition: 'a\\n#SBATCH --x' .* on one line"),
        (
            'slurm: {account: "a\\u202eb"}',
            [],
            r"slurm: account: 'a\\u202eb' is empty, begins with - or is not",
        ),
        ("slurm: {account: ''}", [], r"slurm: account: '' is empty"),
        (
            'ray: {host: "10.0.0.1\\n"}',
            [],
            r"ray: host: '10.0.0.1\\n' is empty, begins with - or is not",
        ),
        ("slurm: {time: '1'}", [], r"signal_seconds: 90 s of 1 minutes leave no time to train"),
        ("slurm: {setup: module load cuda}", [], r"slurm.setup: expected a list"),
        ("ray: {address: a:1, host: 10.0.0.1}", [], r"ray: host: is for a new cluster, without address"),
        ("ray: {address: 'a:70000'}", [], r"ray: address: 'a:70000' is not host:port"),
        ("{}", ["a=1"], r"--option 'a=1': the engine local has no options; choose another with --engine"),
        ("engine: slurm", ["gpus"], r"--option 'gpus': write it as KEY=VALUE"),
        ("engine: slurm", ["gpus=many"], r"^slurm.gpus: expected a whole number, got text"),
        ("engine: [", [], r"engine.yaml: not valid YAML: line"),
    ],
)
def test_what_is_wrong_with_an_engine_is_named(
    text: str, given: list[str], message: str, tmp_path: Path
) -> None:
    """Red: a partition that adds a line to the job's script; a misleading suggestion."""
    file = tmp_path / "engine.yaml"
    file.write_text(text)
    with pytest.raises(InputError, match=message):
        load_options(None, given, file)


def test_options_of_sbatch_that_only_look_reserved_pass() -> None:
    """Red: `--gpus`, which begins `--gpus-per-node`, refused."""
    given = ("--gpus=a100:1", "--mem-per-cpu=2G", "--time-min=10", "--exclusive", "--no-requeue")
    assert Slurm(sbatch=given).sbatch == given


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        (None, 0),
        ("gpu", 1),
        ("gpu:2", 2),
        ("gpu:a100", 1),
        ("gpu:a100:1", 1),
        ("gpu:a100:1(S:0-1)", 1),
        ("gpu,lscratch:20", 1),
        ("lscratch:20,gpu:1", 1),
        ("lscratch:20", 0),
        ("gpumem:40", 0),
    ],
)
def test_the_gpus_of_a_gres(gres: str | None, gpus: int) -> None:
    """As sbatch reads it. Red: the count of another resource."""
    assert gpus_of(gres) == gpus
    if gpus < 2:
        assert Slurm(gres=gres).uses_gpu == (gpus > 0)
