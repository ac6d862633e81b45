"""Where sweeps are said to train: engine.yaml and the command line."""

from pathlib import Path

import pytest

from ncpipe.config.run import Compute
from ncpipe.runs.engines.options import Options, Rule, Settings, Slurm, load_options
from ncpipe.system.errors import InputError


def test_engine_yaml_and_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "engine.yaml"
    assert load_options(path=file) == Options()
    file.write_text("engine: slurm\nslurm: {partition: gpu, time: '0:30:00'}\n")
    assert load_options(path=file) == Options("slurm", Slurm(partition="gpu", time="0:30:00"))
    file.write_text("# engine: slurm\n")
    assert load_options(path=file) == Options()
    file.write_text("slurm: {time: 150, mem: 500, rules: [{time: 60}]}\n")
    assert load_options(path=file).engine == "local"
    numbers = load_options("slurm", file).slurm
    assert (numbers.time, numbers.mem, numbers.for_run("alpha", 2).time) == ("150", "500", "60")


def test_a_rule_gives_gpus_in_one_of_two_ways() -> None:
    """Red: a job that asks for two GPUs, one by each key."""
    options = Slurm(gpus=1, rules=(Rule(min_depth=3, gres="gpu:a100:1"), Rule(min_depth=5, gpus=1)))
    requests = [options.for_run("one", depth) for depth in (2, 3, 5)]
    assert [(request.gpus, request.gres) for request in requests] == [(1, None), (0, "gpu:a100:1"), (1, None)]


def test_no_number_is_no_time_between_checkpoints() -> None:
    with pytest.raises(InputError, match="--checkpoint-seconds: nan; give 0 or more"):
        Settings(Compute("cpu", 1, "float32"), None, float("nan"), False, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("engine: slurmm", r"engine.yaml: engine: 'slurmm' is unknown; did you mean 'slurm'"),
        ("slurm: {times: 3}", r"engine.yaml: slurm.times: unknown key; did you mean 'time'"),
        ("slurm: {rules: [{depth: 3}]}", r"slurm.rules\[0\].depth: unknown key"),
        ("slurm: {array: 5000}", r"slurm.array: 5000 is out of range; it must be <= 1000"),
        ("slurm: {sbatch: [a100]}", r"sbatch: 'a100' is not an option; write it as --name=value"),
        ("slurm: {sbatch: [--job=a]}", r"sbatch: --job is set by ncpipe; leave it out"),
        ("slurm: {gres: 'gpu:1', gpus: 1}", r"gres: sets the same as gpus; leave one"),
        ("engine: ray", r"engine.yaml: engine: 'ray' is unknown; allowed: local, slurm$"),
        ("ray: {}", r"engine.yaml: ray: unknown key; allowed: engine, slurm$"),
        ("slurm: {gpus: many}", r"engine.yaml: slurm.gpus: expected a whole number, got text"),
        ("engine: [", r"engine.yaml: not valid YAML: line"),
    ],
)
def test_what_is_wrong_with_an_engine_is_named(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "engine.yaml"
    file.write_text(text)
    with pytest.raises(InputError, match=message):
        load_options(path=file)


def test_options_of_sbatch_that_only_look_reserved_pass() -> None:
    """Red: an option refused because another one begins alike."""
    given = ("--gpus=a100:1", "--mem-per-cpu=2G", "--wait-all-nodes=1", "--exclusive", "--no-requeue")
    assert Slurm(sbatch=given).sbatch == given
