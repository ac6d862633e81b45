"""Engines: what a worker is told, what the driver makes of its end, and where sweeps are said to train."""

import dataclasses
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from conftest import architecture, experiment_tree, write_params
from ncpipe.runs.engines.work import Ended, State, Work, from_json

from ncpipe.commands.fetch import fetch
from ncpipe.commands.train import train
from ncpipe.config.params import load_params
from ncpipe.runs.engines.choice import works_of
from ncpipe.runs.engines.options import Options, Settings, Slurm, load_options
from ncpipe.runs.engines.protocol import drive, next_try
from ncpipe.runs.engines.worker import need_of, stamps_of_work, train_work
from ncpipe.runs.folders import ALONE
from ncpipe.runs.store import sweep_stamps
from ncpipe.system.artifacts import sha256_of
from ncpipe.system.errors import InputError

WORKER = """
import json, sys
from ncpipe.runs.engines.work import from_json
from ncpipe.runs.engines.worker import train_work
for values in json.load(sys.stdin):
    ended = train_work(from_json(values))
    assert ended.state == "done", ended
assert not {"dvc", "typer", "pandas"} & set(sys.modules), sys.modules
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


def works() -> list[Work]:
    compute = load_params().compute
    return works_of(sweep_stamps(load_params(), compute), settings())


def contents(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): sha256_of(path) for path in files}


def test_work_goes_through_json_and_comes_back_as_the_same_runs(project: Path) -> None:
    stamps = sweep_stamps(load_params(), load_params().compute)
    told = [json.loads(json.dumps(dataclasses.asdict(work))) for work in works()]
    assert [stamp for values in told for stamp in stamps_of_work(from_json(values))] == stamps
    assert len(told) == 2
    assert from_json(told[0]).name == "one L=2 seed=0 and 2 beside it"


def test_a_worker_elsewhere_gives_the_bytes_of_a_stage(project: Path, tmp_path: Path) -> None:
    """It has the prepared data and a store in another folder, and imports neither dvc nor typer."""
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree("data/prepared", elsewhere / "data" / "prepared")
    text = json.dumps([dataclasses.asdict(work) for work in works()])
    subprocess.run([sys.executable, "-c", WORKER], input=text, text=True, check=True, cwd=elsewhere)
    stamps = {stamp.key(): stamp for stamp in sweep_stamps(load_params(), load_params().compute)}
    found = {path.name for path in (elsewhere / ALONE).iterdir() if path.is_dir()}
    assert found == set(stamps)
    for key, stamp in stamps.items():
        train(stamp.run.experiment, stamp.run.depth, stamp.run.seed, alone=True)
        assert contents(elsewhere / ALONE / key) == contents(Path("data/runs") / stamp.run.path)


def test_a_worker_with_other_code_or_data_refuses(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = works()[0]
    with monkeypatch.context() as patch:
        patch.setattr("ncpipe.runs.fingerprint.code_digest", lambda spec: "other")
        ended = train_work(work)
        assert (ended.state, "code of ncpipe here" in ended.reason) == ("failed", True)
    assert "other data" in train_work(dataclasses.replace(work, data="0" * 64)).reason
    assert not list(ALONE.glob("*"))


def test_memory_is_asked_where_it_would_be_taken(project: Path) -> None:
    [need, _] = map(need_of, works())
    assert need.device == "cpu"
    assert 0 < need.run < need.free


def test_a_worker_tells_of_what_goes_wrong(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*rest: object, **options: object) -> None:
        raise RuntimeError("a fault of the machine")

    monkeypatch.setattr("ncpipe.runs.batches.train_batch", fail)
    ended = train_work(works()[0])
    assert (ended.state, ended.reason) == ("failed", "RuntimeError: a fault of the machine")


def ended(state: State, runs: int, tries: int = 0) -> Ended:
    plain = tuple({"experiment": "one", "depth": 2, "seed": at, "axis": None} for at in range(runs))
    work = Work(plain, tuple(map(str, range(runs))), "", {}, 0.0, 1, tries)
    return Ended(work, state)


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
    end: Ended, sizes: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    again = next_try(end)
    assert [len(work.runs) for work in again] == sizes
    assert [key for work in again for key in work.keys] == (list(end.work.keys) if sizes else [])
    assert all(work.tries == end.work.tries + 1 for work in again)


def test_what_is_in_the_store_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (ALONE / "1").mkdir(parents=True)
    assert [work.keys for work in next_try(ended("failed", 3))] == [("0",), ("2",)]


class Faulty:
    """An engine whose work ends as a list says, one after the other."""

    tries_again = True
    outlives = False

    def __init__(self, ends: Sequence[State]) -> None:
        self.ends, self.queue, self.cancelled = list(ends), [], False
        self.seen: list[int] = []

    def submit(self, works: Sequence[Work]) -> None:
        self.queue += works

    def watch(self, wait: bool = True) -> Iterator[Ended]:
        while self.queue:
            work = self.queue.pop(0)
            self.seen.append(len(work.runs))
            yield Ended(work, self.ends.pop(0), "why")

    def collect(self, ended: Ended) -> None:
        pass

    def cancel(self) -> None:
        self.cancelled = True


def test_the_driver_tries_again_until_it_is_done_or_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    work = ended("done", 4).work
    engine = Faulty(["lost", "memory", "failed", "done", "done", "failed"])
    failed = drive(engine, [work], keep_going=True)
    assert engine.seen == [4, 4, 2, 2, 1, 1]
    assert [end.work.keys for end in failed] == [("1",)]
    engine = Faulty(["refused", "done"])
    with pytest.raises(InputError, match="why"):
        drive(engine, [work, work], keep_going=False)
    assert engine.cancelled
    for key in work.keys:
        (ALONE / key).mkdir(parents=True)
    assert drive(Faulty(["lost"]), [work], keep_going=False) == []  # with its last breath it was finished


def test_engine_yaml_and_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "engine.yaml"
    assert load_options(path=file) == Options()
    file.write_text("engine: slurm\nslurm: {partition: gpu, minutes: 30}\n")
    found = load_options(None, ["minutes=60", "sbatch=[--constraint=a100]"], file)
    assert found == Options("slurm", Slurm(partition="gpu", minutes=60, sbatch=("--constraint=a100",)))
    assert load_options("local", path=file).engine == "local"


@pytest.mark.parametrize(
    ("text", "given", "message"),
    [
        ("engine: slurmm", [], r"engine.yaml: engine: 'slurmm' is unknown; did you mean 'slurm'"),
        ("slurm: {minute: 3}", [], r"engine.yaml: slurm.minute: unknown key; did you mean 'minutes'"),
        ("slurm: {array: 5000}", [], r"slurm.array: 5000 is out of range; .* 1001"),
        ("slurm: {sbatch: [a100]}", [], r"sbatch: 'a100' is no option; write it as --name=value"),
        ("slurm: {gpus: 2}", [], r"slurm.gpus: 2 is out of range; .*a job trains on one GPU"),
        ("slurm: {sbatch: [--time=3]}", [], r"sbatch: --time is said by minutes; leave it out"),
        ("slurm: {sbatch: [--output=a]}", [], r"sbatch: --output is ncpipe's to say; leave it out"),
        (
            "slurm: {sbatch: [--part=a]}",
            [],
            r"sbatch: --part, which sbatch takes for --partition, is said",
        ),
        ("slurm: {sbatch: [--t=1]}", [], r"sbatch: --t, which sbatch takes for --time, is said by minutes"),
        ("slurm: {sbatch: [--out=a]}", [], r"sbatch: --out, which .* --output, is ncpipe's to say; leave it"),
        ('slurm: {sbatch: ["--qos=a\\nb"]}', [], r"sbatch: '--qos=a\\nb' is no option"),
        ('slurm: {sbatch: ["--qos=a\\rb"]}', [], r"sbatch: '--qos=a\\rb' is no option"),
        ('slurm: {partition: "a\\n#SBATCH --x"}', [], r"slurm: partition: 'a\\n#SBATCH --x' .* on one line"),
        ('slurm: {account: "a\\u202eb"}', [], r"slurm: account: 'a\\u202eb' is empty or has what does not"),
        ("slurm: {account: ''}", [], r"slurm: account: '' is empty"),
        ('ray: {host: "10.0.0.1\\n"}', [], r"ray: host: '10.0.0.1\\n' is empty or has what does not print"),
        ("slurm: {minutes: 1}", [], r"signal_seconds: 90 of 1 minutes leave no time to train"),
        ("slurm: {setup: module load cuda}", [], r"slurm.setup: expected a list"),
        ("ray: {address: a:1, host: 10.0.0.1}", [], r"ray: host: is of a cluster without an address"),
        ("ray: {address: 'a:70000'}", [], r"ray: address: 'a:70000' is no host:port"),
        ("{}", ["a=1"], r"--option 'a=1': the engine local has no options; name another by --engine"),
        ("engine: slurm", ["gpus"], r"--option 'gpus': write it as KEY=VALUE"),
        ("engine: slurm", ["gpus=many"], r"^slurm.gpus: expected a whole number, got text"),
        ("engine: [", [], r"engine.yaml: not valid YAML: line"),
    ],
)
def test_what_is_wrong_with_an_engine_is_named(
    text: str, given: list[str], message: str, tmp_path: Path
) -> None:
    """Red: a partition that adds a line to the job's script; a reserved option of sbatch, abbreviated."""
    file = tmp_path / "engine.yaml"
    file.write_text(text)
    with pytest.raises(InputError, match=message):
        load_options(None, given, file)


def test_options_of_sbatch_that_only_look_reserved_pass() -> None:
    """Red: `--gpus`, which begins `--gpus-per-node`, refused as an abbreviation of it."""
    given = ("--gpus=a100:1", "--gres=gpu:1", "--mem-per-cpu=2G", "--time-min=10", "--exclusive", "--qos=low")
    assert Slurm(sbatch=given).sbatch == given
