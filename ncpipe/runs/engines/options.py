"""Read engine.yaml, which decides where a sweep trains. No result depends on it, so no stage does."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from ncpipe.config.bounds import Bound
from ncpipe.config.records import read
from ncpipe.config.run import Compute
from ncpipe.config.yaml_file import parse_yaml, read_yaml
from ncpipe.system.errors import InputError, cut, shown

ENGINE_FILE = Path("engine.yaml")
EngineName = Literal["local", "slurm", "ray"]
SBATCH_OPTION = re.compile(r"--[a-z][a-z0-9-]*(=[^\n]*)?")
TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")  # [days-]number[:number[:number]]
MEMORY = re.compile(r"(\d+)([KMGT]?)B?", re.IGNORECASE)
MEGABYTES = {"K": 1 / 1024, "": 1.0, "M": 1.0, "G": 1024.0, "T": 1024.0**2}  # Slurm's unit is the megabyte
# Text for sbatch, which YAML reads as a number if it has no unit: `time: 150`, `-o mem=500`.
Amount = Annotated[str, BeforeValidator(lambda value: str(value) if type(value) is int else value)]
Whole = Annotated[int, Bound(1, 100_000)]
Gpus = Annotated[int, Bound(0, 1)]  # a job trains on one GPU; several jobs of an array use several
RESERVED = {  # options of sbatch, with the key that sets each; ncpipe sets those without a key
    "partition": "partition", "account": "account", "qos": "qos", "constraint": "constraint",
    "time": "time", "mem": "mem", "cpus-per-task": "cpus", "gpus-per-node": "gpus", "gres": "gres",
    "array": "array and at_once", "signal": "signal_seconds", "container": "container",
    "chdir": "", "error": "", "input": "", "job-name": "", "nodes": "", "ntasks": "", "ntasks-per-node": "",
    "open-mode": "", "output": "", "parsable": "", "test-only": "", "wait": "", "wrap": "",
}  # fmt: skip
# sbatch accepts any unambiguous beginning of a long option. These beginnings are options of their own.
NOT_ABBREVIATIONS = ("gpus",)
# Earlier names of keys of `slurm`, with the present ones.
RENAMED = {"minutes": "time", "memory_gb": "mem"}
# Keys of `slurm` that are gone, with what to do instead.
ONE_SIZE = "memory grows no more; give mem what the largest run needs, or deep runs more of it by rules"
GONE = {
    "memory_growth": ONE_SIZE,
    "mem_most": ONE_SIZE,
    "memory_most_gb": ONE_SIZE,
    "container": "is gone; name a script that starts Python in the container as python, and prepare in setup",
}


def _check_line(key: str, text: str | None) -> None:
    """Raise ValueError for a value that is empty, begins with `-` or has more than one line."""
    if text is not None and not (text and text.isprintable() and not text.startswith("-")):
        raise ValueError(
            f"{key}: {shown(text)} is empty, begins with - or is not printable; write it on one line"
        )


def _reserved_option(name: str) -> str | None:
    """Return the reserved option of sbatch that a name stands for, in full or abbreviated."""
    if name in RESERVED or name in NOT_ABBREVIATIONS:
        return name if name in RESERVED else None
    return next((reserved for reserved in RESERVED if reserved.startswith(name)), None)


def minutes_of(text: str) -> float:
    """Return the minutes of a time as sbatch reads it.

    That is minutes[:seconds], hours:minutes:seconds or days-hours[:minutes[:seconds]]; `infinite` and
    `unlimited` give infinity. Raises ValueError for anything else.
    """
    if text.lower() in ("infinite", "unlimited"):
        return math.inf
    match = TIME.fullmatch(text)
    if match is None:
        raise ValueError(f"time: {shown(text)} is not a time for Slurm; write it as 2:30:00 or 1-12:00:00")
    days, *parts = match.groups()
    numbers = [int(part) for part in parts if part is not None]
    if days is None and len(numbers) < 3:  # minutes[:seconds]
        numbers = [0, *numbers]
    hours, minutes, seconds = [*numbers, 0, 0][:3]
    return 1440 * int(days or 0) + 60 * hours + minutes + seconds / 60


def megabytes_of(key: str, text: str) -> float:
    """Return the megabytes of an amount of memory as sbatch reads it, 500M or 8G. ValueError for others."""
    match = MEMORY.fullmatch(text)
    if match is None or not int(match[1]):
        raise ValueError(f"{key}: {shown(text)} is not an amount of memory for Slurm; write it as 8G or 500M")
    return int(match[1]) * MEGABYTES[match[2].upper()]


def gpus_of(gres: str | None) -> int:
    """Return the GPUs that a `gres` requests: its entries are name[:type][:count], separated by commas."""
    count = 0
    for entry in (gres or "").split(","):
        name, *rest = entry.partition("(")[0].strip().removeprefix("gres/").split(":")
        if name == "gpu":
            count += int(rest[-1]) if rest and rest[-1].isdecimal() else 1
    return count


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
    cpus: Whole | None = None
    gpus: Gpus | None = None


@dataclass(frozen=True)
class Rule(Resources):
    """Changes the resources for some of the runs. Keys that are left out keep their general values.

    experiments: their names; all if left out. min_depth, max_depth: depths of the runs, both included.
    """

    experiments: tuple[str, ...] = ()
    min_depth: Whole | None = None
    max_depth: Whole | None = None

    def applies_to(self, experiment: str, depth: int) -> bool:
        """Return whether the rule is for this run."""
        return (
            (not self.experiments or experiment in self.experiments)
            and (self.min_depth is None or depth >= self.min_depth)
            and (self.max_depth is None or depth <= self.max_depth)
        )

    def resources(self) -> dict[str, Any]:
        """Return the keys of `Resources` that the rule sets."""
        values = {field.name: getattr(self, field.name) for field in fields(Resources)}
        return {name: value for name, value in values.items() if value is not None}


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
    cpus: Whole = 1
    gpus: Gpus = 0
    array: Annotated[int, Bound(1, 1000)] = 100  # Slurm's own limit is 1001 by default
    at_once: Whole = 256
    signal_seconds: Whole = 90
    sbatch: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    python: str | None = None
    rules: tuple[Rule, ...] = ()

    def __post_init__(self) -> None:
        for key in ("partition", "account", "qos", "constraint", "gres", "python"):
            _check_line(key, getattr(self, key))
        if self.gres is not None and self.gpus:
            raise ValueError("gres: sets the same as gpus; leave one of the two out")
        if (gpus := gpus_of(self.gres)) > 1:
            raise ValueError(f"gres: {self.gres} requests {gpus} GPUs, but a job trains on one; make it 1")
        for line in self.sbatch:
            if not (SBATCH_OPTION.fullmatch(line) and line.isprintable()):
                raise ValueError(
                    f"sbatch: {shown(line)} is not an option; write it as --name=value or --name"
                )
            name = line[2:].partition("=")[0]
            if reserved := _reserved_option(name):
                setter = RESERVED[reserved] or "ncpipe"
                short = "" if name == reserved else f", which sbatch takes for --{reserved},"
                raise ValueError(f"sbatch: --{name}{short} is set by {setter}; leave it out")
        if self.signal_seconds >= 60 * self.limit:
            raise ValueError(
                f"signal_seconds: {self.signal_seconds} s of {self.limit:g} minutes leave no time to train; "
                "make it smaller, or the time longer"
            )
        if self.mem is not None:
            megabytes_of("mem", self.mem)
        for index, rule in enumerate(self.rules):
            try:
                self._with_rule(rule)
            except ValueError as error:
                raise ValueError(f"rules[{index}].{error}") from None

    @property
    def limit(self) -> float:
        """Return the time limit of a job in minutes."""
        return minutes_of(self.time)

    @property
    def megabytes(self) -> int | None:
        """Return the memory of a job; None lets Slurm decide."""
        return None if self.mem is None else math.ceil(megabytes_of("mem", self.mem))

    @property
    def uses_gpu(self) -> bool:
        """Return whether gpus or gres requests a GPU."""
        return bool(self.gpus) or gpus_of(self.gres) > 0

    def for_run(self, experiment: str, depth: int) -> "Slurm":
        """Return the options for a run, with the rules applied."""
        options = self
        for rule in self.rules:
            if rule.applies_to(experiment, depth):
                options = options._with_rule(rule)
        return replace(options, rules=())

    def _with_rule(self, rule: Rule) -> "Slurm":
        changes = rule.resources()
        if "gpus" in changes:
            changes.setdefault("gres", None)
        elif "gres" in changes:
            changes["gpus"] = 0
        return replace(self, rules=(), **changes)


@dataclass(frozen=True)
class Ray:
    """Describes a Ray cluster.

    address: its head node, host:port. Default: a new cluster on this machine, which ends with the sweep.
    host: the address that the new cluster listens on. Machines that reach an address other than 127.0.0.1 can
    join.
    """

    address: str | None = None
    host: str = "127.0.0.1"

    def __post_init__(self) -> None:
        _check_line("host", self.host)
        if self.address is None:
            return
        match = re.fullmatch(r"[^\s/]+:([0-9]{1,5})", self.address)
        if match is None or not 0 < int(match[1]) < 2**16:
            raise ValueError(f"address: {shown(self.address)} is not host:port; write it as 10.0.0.1:6379")
        if self.host != "127.0.0.1":
            raise ValueError("host: is for a new cluster, without address; leave one of the two out")


@dataclass(frozen=True)
class Options:
    """Holds an engine.yaml.

    engine: what `ncpipe sweep` uses unless --engine names another.
    slurm: the jobs of the engine slurm.
    ray: the cluster of the engine ray.
    """

    engine: EngineName = "local"
    slurm: Slurm = Slurm()
    ray: Ray = Ray()


LOCAL = Options()


@dataclass(frozen=True)
class Settings:
    """Holds the settings of a sweep for any engine.

    compute: device, threads and precision of the runs.
    workers: batches that train at the same time in each worker; None lets the worker decide.
    checkpoint_seconds: time between two checkpoints.
    keep_going: whether to train the other batches after an error.
    runs: number of all runs of the sweep, including trained ones.
    name: the command, for messages.
    slots: workers of all machines that share the runs, if there are others than this one.
    """

    compute: Compute
    workers: int | None
    checkpoint_seconds: float
    keep_going: bool
    runs: int
    name: str = "sweep"
    slots: int | None = None

    def __post_init__(self) -> None:
        if math.isnan(self.checkpoint_seconds):
            raise InputError("NCPIPE_CHECKPOINT_SECONDS or --checkpoint-seconds: nan; give 0 or more")


def load_options(
    engine: EngineName | None = None, overrides: Sequence[str] = (), path: Path = ENGINE_FILE
) -> Options:
    """Return the options of engine.yaml and the command line; InputError has one line per mistake.

    overrides: KEY=VALUE of the chosen engine, which override the file.
    """
    tree: Any = {}
    if path.is_file():
        try:
            if (found := read_yaml(path)) is not None:  # None: the file has nothing but comments
                tree = found
            _read(tree)
        except InputError as error:
            raise InputError("\n".join(cut(f"{path}: {line}") for line in str(error).splitlines())) from None
    if engine is not None:
        tree["engine"] = engine
    name = tree.get("engine", Options.engine)
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals:
            raise InputError(f"--option {shown(override)}: write it as KEY=VALUE")
        if name not in ("slurm", "ray"):
            raise InputError(
                f"--option {shown(override)}: the engine {name} has no options; choose another with --engine"
            )
        try:
            tree.setdefault(name, {})[key] = parse_yaml(text)
        except InputError as error:
            raise InputError(f"--option {key}: {error}") from None
    return _read(tree)


def _read(tree: Any) -> Options:
    """Return the options of a tree; a line about an earlier key says what to write instead."""
    try:
        options: Options = read(Options, tree)
    except InputError as error:
        raise InputError("\n".join(map(_with_advice, str(error).splitlines()))) from None
    return options


def _with_advice(line: str) -> str:
    where, unknown, _ = line.partition(": unknown key; ")
    name = where.rpartition(".")[2]
    if unknown and name in GONE:
        return f"{where}: {GONE[name]}"
    return f"{where}: is {RENAMED[name]} now, written as for sbatch" if unknown and name in RENAMED else line
