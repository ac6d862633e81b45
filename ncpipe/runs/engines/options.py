"""Read engine.yaml, which decides where a sweep trains. No result depends on it, so no stage does."""

import math
import os
import re
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from ncpipe.config.bounds import Bound
from ncpipe.config.records import check
from ncpipe.config.run import Compute
from ncpipe.config.yaml_file import read_yaml
from ncpipe.system.errors import InputError, cut, shown

ENGINE_FILE = Path("engine.yaml")
EngineName = Literal["local", "slurm"]
SBATCH_OPTION = re.compile(r"--([a-z][a-z0-9-]*)(=.*)?")
# Options of sbatch that ncpipe sets: with another value it would not find its jobs, or not hear their end.
SET_OPTIONS = ("array", "chdir", "job-name", "output", "parsable", "signal", "test-only", "wait", "wrap")
# Text for sbatch, which YAML reads as a number if it has no unit: `time: 150`, `-o mem=500`.
Amount = Annotated[str, BeforeValidator(lambda value: str(value) if type(value) is int else value)]
SmallCount = Annotated[int, Bound(1, 100_000)]  # of cores, of jobs, of seconds
Gpus = Annotated[int, Bound(0, 1)]  # a job trains on one GPU; several jobs of an array use several


@dataclass(frozen=True)
class Resources:
    """Holds what a job requests from Slurm. A rule may change these keys for some of the runs.

    partition, account, qos, constraint, gres: as for sbatch; Slurm's defaults if left out.
    time: time limit of a job, 2:30:00 or, in minutes, 150. A job that reaches it saves its checkpoints and
    queues again.
    mem: memory of a job, 8G or, in megabytes, 500.
    cpus: cores of a job. gpus: GPUs of a job, 0 or 1.
    """

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    gres: str | None = None
    time: Amount | None = None
    mem: Amount | None = None
    cpus: SmallCount | None = None
    gpus: Gpus | None = None

    def __post_init__(self) -> None:
        if self.gres is not None and self.gpus:
            raise ValueError("gres: sets the same as gpus; leave one of the two out")


@dataclass(frozen=True)
class Rule(Resources):
    """Changes the resources for some of the runs. Keys that are left out keep their general values.

    experiments: their names; all if left out. min_depth, max_depth: depths of the runs, both included.
    """

    experiments: tuple[str, ...] = ()
    min_depth: SmallCount | None = None
    max_depth: SmallCount | None = None

    def applies_to(self, experiment: str, depth: int) -> bool:
        """Return whether the rule is for this run."""
        return (
            (not self.experiments or experiment in self.experiments)
            and (self.min_depth is None or depth >= self.min_depth)
            and (self.max_depth is None or depth <= self.max_depth)
        )

    def resources(self) -> dict[str, Any]:
        """Return the keys of `Resources` that the rule sets; gpus and gres replace each other."""
        values = {field.name: getattr(self, field.name) for field in fields(Resources)}
        changes = {name: value for name, value in values.items() if value is not None}
        if "gpus" in changes:
            return {"gres": None} | changes
        return {"gpus": 0} | changes if "gres" in changes else changes


@dataclass(frozen=True)
class Slurm(Resources):
    """Describes the jobs of a job array, each of which claims batches until none is left.

    array: the most jobs of an array. at_once: the most of them that run at the same time.
    signal_seconds: how long before its time limit a job starts to save; longer than its longest epoch.
    sbatch: further options of sbatch, "--exclusive".
    setup: lines of shell that run before the worker, "module load cuda".
    python: the Python that has ncpipe on the nodes, or a script that starts it in a container. Default: the
    one that runs now.
    rules: other resources for some of the runs; later rules override earlier ones.
    """

    time: Amount = "4:00:00"
    cpus: SmallCount = 1
    gpus: Gpus = 0
    array: Annotated[int, Bound(1, 1000)] = 100  # Slurm's own limit is 1001 by default
    at_once: SmallCount = 256
    signal_seconds: SmallCount = 90
    sbatch: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    python: str | None = None
    rules: tuple[Rule, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for line in self.sbatch:
            option = SBATCH_OPTION.fullmatch(line)
            if option is None:
                raise ValueError(
                    f"sbatch: {shown(line)} is not an option; write it as --name=value or --name"
                )
            # sbatch takes an unambiguous beginning for the whole name.
            if any(name.startswith(option[1]) for name in SET_OPTIONS):
                raise ValueError(f"sbatch: --{option[1]} is set by ncpipe; leave it out")

    @property
    def uses_gpu(self) -> bool:
        """Return whether a job requests a GPU, be it by a further option of sbatch."""
        return bool(self.gpus) or any("gpu" in text for text in (self.gres or "", *self.sbatch))

    @property
    def cluster(self) -> str:
        """Return the cluster, or the list of clusters, that jobs are submitted to; empty for the default."""
        names = (line.partition("=")[2] for line in self.sbatch if re.match("--clusters?=", line))
        return next(names, os.environ.get("SBATCH_CLUSTERS", ""))

    def for_run(self, experiment: str, depth: int) -> "Slurm":
        """Return the options for a run, with the rules applied."""
        changes: dict[str, Any] = {}
        for rule in self.rules:
            if rule.applies_to(experiment, depth):
                changes |= rule.resources()
        return replace(self, rules=(), **changes)


@dataclass(frozen=True)
class Options:
    """Holds an engine.yaml.

    engine: what `ncpipe sweep` uses unless --engine names another.
    slurm: the jobs of the engine slurm.
    """

    engine: EngineName = "local"
    slurm: Slurm = Slurm()


@dataclass(frozen=True)
class Settings:
    """Holds the settings of a sweep for any engine.

    compute: device, threads and precision of the runs.
    workers: batches that train at the same time in each worker; None lets the worker decide.
    checkpoint_seconds: time between two checkpoints.
    keep_going: whether to train the other batches after an error.
    runs: number of all runs of the sweep, including trained ones.
    name: the command, for messages.
    jobs: processes that share the runs, if they are started together.
    """

    compute: Compute
    workers: int | None
    checkpoint_seconds: float
    keep_going: bool
    runs: int
    name: str = "sweep"
    jobs: int | None = None

    def __post_init__(self) -> None:
        if math.isnan(self.checkpoint_seconds):
            raise InputError("NCPIPE_CHECKPOINT_SECONDS or --checkpoint-seconds: nan; give 0 or more")


def load_options(engine: EngineName | None = None, path: Path = ENGINE_FILE) -> Options:
    """Return the options of engine.yaml, with the engine of the command line if that names one.

    Raises InputError with one line per mistake.
    """
    options = Options()
    if path.is_file() and (tree := read_yaml(path)) is not None:  # None: nothing but comments
        options, mistakes = check(Options, tree)
        if mistakes:
            raise InputError("\n".join(cut(f"{path}: {line}") for line in mistakes))
    return options if engine is None else replace(options, engine=engine)
