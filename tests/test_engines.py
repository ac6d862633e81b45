"""Engines: where sweeps are said to train, and the logs of what trained."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import architecture, experiment_tree, write_params

from ncpipe.commands.fetch import fetch
from ncpipe.commands.logs import logs
from ncpipe.config.params import load_params
from ncpipe.config.run import Compute
from ncpipe.runs.engines.job_log import log_runs, recorded_job
from ncpipe.runs.engines.options import Options, Settings, Slurm, gpus_of, load_options
from ncpipe.runs.fill import fill
from ncpipe.runs.fingerprint import RunFingerprint
from ncpipe.runs.store import sweep_fingerprints
from ncpipe.system.console import say
from ncpipe.system.errors import InputError

KILLED = """
import os, signal, sys
from ncpipe.runs.engines.job_log import log_runs, recorded_job
from ncpipe.system.console import say
with recorded_job("train"):
    log_runs([sys.argv[1]])
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


def fingerprints() -> list[RunFingerprint]:
    return sweep_fingerprints(load_params(), load_params().compute)


def test_logs_are_those_of_what_trained_the_run(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red: a log of other runs; one of older code; none of a process that trains, or was killed."""
    with pytest.raises(InputError, match="one L=2 seed=1: no log of this run"):
        logs("one", 2, 1)
    assert fill(fingerprints()[:3], settings()) == {}
    capsys.readouterr()
    logs("one", 2, 1)
    said = capsys.readouterr().out
    assert said.count("==> ") == said.count("==> sweep (COMPLETED): data/logs/jobs/sweep-") == 1
    assert "  one L=2 seed=1: loss" in said
    fingerprint = fingerprints()[-1]
    assert fingerprint.run.name == "two L=2 seed=2"
    done = subprocess.run([sys.executable, "-c", KILLED, fingerprint.key()], stderr=subprocess.DEVNULL)
    assert done.returncode == -signal.SIGKILL
    logs("two", 2, 2)
    said = capsys.readouterr().out
    assert said.startswith("==> train (training, or killed): data/logs/jobs/train-")
    assert said.endswith(".log\nso far\n\n")
    with recorded_job("fill"):
        log_runs([fingerprint.key()])
        say("now")
        logs("two", 2, 2)
    logs("two", 2, 2)
    lines = capsys.readouterr().out.splitlines()
    heads = [line.partition(":")[0] for line in lines if line.startswith("==> ")]
    killed = "==> train (training, or killed)"
    assert heads == [killed, "==> fill (training, or killed)", killed, "==> fill (COMPLETED)"]
    assert lines.count("now") == 2
    with monkeypatch.context() as patch:
        patch.setattr("ncpipe.runs.fingerprint.code_digest", lambda spec: "other")
        with pytest.raises(InputError, match="no log of this run"):
            logs("one", 2, 1)


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
        ("slurm: {array: 5000}", [], r"slurm.array: 5000 is out of range; it must be <= 1000"),
        ("slurm: {sbatch: [a100]}", [], r"sbatch: 'a100' is not an option; write it as --name=value"),
        ("slurm: {gpus: 2}", [], r"slurm.gpus: 2 is out of range; it must be <= 1"),
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
