"""engine.yaml beside params.yaml: where a sweep trains. No result depends on it, so no stage does."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from ncpipe.config.bounds import Bound
from ncpipe.config.records import read
from ncpipe.config.specs import Compute
from ncpipe.config.yaml_file import parse_yaml, read_yaml
from ncpipe.system.errors import InputError, cut, shown

ENGINE_FILE = Path("engine.yaml")
EngineName = Literal["local", "slurm", "ray"]
FLAG = re.compile(r"--[a-z][a-z0-9-]*(=[^\n]*)?")
TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")  # [days-]number[:number[:number]]
MEMORY = re.compile(r"(\d+)([KMGT]?)B?", re.IGNORECASE)
MEGABYTES = {"K": 1 / 1024, "": 1.0, "M": 1.0, "G": 1024.0, "T": 1024.0**2}  # Slurm's unit is the megabyte
Some = Annotated[int, Bound(1, 100_000)]
Gigabytes = Annotated[float, Bound(0, 100_000, open_low=True)]
Gpus = Annotated[int, Bound(0, 1, why="a job trains on one GPU; more tasks of the array take more")]
OURS = {  # options of sbatch that another key sets, and which; ncpipe sets those without a key
    "partition": "partition", "account": "account", "qos": "qos", "constraint": "constraint",
    "time": "time", "mem": "mem", "cpus-per-task": "cpus", "gpus-per-node": "gpus", "gres": "gres",
    "array": "array and at_once", "signal": "signal_seconds", "container": "container",
    "chdir": "", "error": "", "input": "", "job-name": "", "nodes": "", "ntasks": "", "ntasks-per-node": "",
    "open-mode": "", "output": "", "parsable": "", "test-only": "", "wait": "", "wrap": "",
}  # fmt: skip
# sbatch takes any unambiguous beginning of a long option. These beginnings of ours are options of their own.
OTHERS = ("gpus",)


def _check_line(key: str, text: str | None) -> None:
    """Raise ValueError for a value that is empty, that begins as an option or that has more than one line."""
    if text is not None and not (text and text.isprintable() and not text.startswith("-")):
        raise ValueError(
            f"{key}: {shown(text)} is empty, begins with - or has what does not print; write it on one line"
        )


def _ours(name: str) -> str | None:
    """Return the reserved option of sbatch that a name stands for, written out or abbreviated."""
    if name in OURS:
        return name
    found = [ours for ours in OURS if ours.startswith(name)] if name not in OTHERS else []
    return found[0] if found else None


def minutes_of(text: str) -> float:
    """Read a time as sbatch does: minutes, minutes:seconds, hours:minutes:seconds or days-hours[:...].

    `infinite`, as sinfo writes it, is infinity. ValueError for anything else.
    """
    if text.lower() in ("infinite", "unlimited"):
        return math.inf
    found = TIME.fullmatch(text)
    if found is None:
        raise ValueError(f"time: {shown(text)} is no time of Slurm's; write it as 2:30:00 or 1-12:00:00")
    days, *parts = found.groups()
    numbers = [int(part) for part in parts if part is not None]
    if days is None and len(numbers) < 3:  # minutes[:seconds]
        numbers = [0, *numbers]
    hours, minutes, seconds = [*numbers, 0, 0][:3]
    return 1440 * int(days or 0) + 60 * hours + minutes + seconds / 60


def megabytes_of(text: str) -> float:
    """Read an amount of memory as sbatch does: 500M, 8G. ValueError for anything else."""
    found = MEMORY.fullmatch(text)
    if found is None or not int(found[1]):
        raise ValueError(f"mem: {shown(text)} is no amount of memory of Slurm's; write it as 8G or 500M")
    return int(found[1]) * MEGABYTES[found[2].upper()]


@dataclass(frozen=True)
class Container:
    """A container that the worker runs in.

    runtime: the program that the site has. image: a file or name, as the program takes it. options: further
    options of `apptainer exec` or `enroot start`, as mounts of disks.
    """

    runtime: Literal["apptainer", "enroot"]
    image: str
    options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_line("image", self.image)


@dataclass(frozen=True)
class Resources:
    """What a job asks Slurm for, and what a rule may change for some of the runs.

    partition, account, qos, constraint, gres: as sbatch has them; Slurm's defaults if they are left out.
    time: limit of a job, as sbatch has it, "2:30:00"; minutes: the same as a number (240 if both are left
    out). A job that reaches it saves its checkpoints and queues again.
    mem: of a job, as sbatch has it, "8G"; memory_gb: the same as a number.
    memory_most_gb: most memory to ask for after a job with a single run had too little; if it is left out,
    memory grows once.
    cpus: cores of a job. gpus: of a job, none or one.
    """

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    gres: str | None = None
    time: str | None = None
    minutes: Some | None = None
    mem: str | None = None
    memory_gb: Gigabytes | None = None
    memory_most_gb: Gigabytes | None = None
    cpus: Some | None = None
    gpus: Gpus | None = None


@dataclass(frozen=True)
class Rule(Resources):
    """Other resources for some of the runs. Keys that are left out stay as they are for all runs.

    experiments: names; all of them if it is left out. min_depth, max_depth: of the runs, both included.
    """

    experiments: tuple[str, ...] = ()
    min_depth: Some | None = None
    max_depth: Some | None = None

    def applies_to(self, experiment: str, depth: int) -> bool:
        """Return whether a run is among those that the rule is for."""
        return (
            (not self.experiments or experiment in self.experiments)
            and (self.min_depth is None or depth >= self.min_depth)
            and (self.max_depth is None or depth <= self.max_depth)
        )

    def resources(self) -> dict[str, Any]:
        """Return the keys of `Resources` that the rule sets."""
        found = {field.name: getattr(self, field.name) for field in fields(Resources)}
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True)
class Slurm(Resources):
    """Jobs of Slurm: the tasks of an array, each of which trains one or more batches one after the other.

    memory_growth: by which factor more memory is asked for after a job with a single run had too little.
    array: most tasks of an array. at_once: most tasks of a sweep that run at a time.
    signal_seconds: how long before the time limit a job is told to save: longer than its longest epoch.
    sbatch: further options, "--exclusive". setup: lines of shell before the worker, "module load cuda".
    python: the interpreter that has ncpipe, on the nodes or in the container; by default the driver's own, in
    a container `python3`.
    rules: other resources for some of the runs; a later rule wins.
    """

    cpus: Some = 1
    gpus: Gpus = 0
    memory_growth: Annotated[float, Bound(1, 100)] = 2.0
    array: Annotated[int, Bound(1, 1000, why="Slurm's own limit is 1001 by default")] = 100
    at_once: Some = 256
    signal_seconds: Some = 90
    sbatch: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    python: str | None = None
    container: Container | None = None
    rules: tuple[Rule, ...] = ()

    def __post_init__(self) -> None:
        for key in ("partition", "account", "qos", "constraint", "gres", "python"):
            _check_line(key, getattr(self, key))
        for one, other in (("time", "minutes"), ("mem", "memory_gb"), ("gres", "gpus")):
            if getattr(self, one) is not None and getattr(self, other):
                raise ValueError(f"{one}: says the same as {other}; leave one of the two out")
        found = re.search(r"gpu\b.*?:(\d+)\b(?!:)", self.gres or "")
        if found and int(found[1]) > 1:
            raise ValueError(f"gres: {self.gres} is {found[1]} GPUs, and a job trains on one; make it 1")
        for line in self.sbatch:
            if not (FLAG.fullmatch(line) and line.isprintable()):
                raise ValueError(f"sbatch: {shown(line)} is no option; write it as --name=value or --name")
            name = line[2:].partition("=")[0]
            if ours := _ours(name):
                how = f"is set by {OURS[ours]}" if OURS[ours] else "is set by ncpipe"
                short = "" if name == ours else f", which sbatch takes for --{ours},"
                raise ValueError(f"sbatch: --{name}{short} {how}; leave it out")
        if self.signal_seconds >= 60 * self.limit:
            raise ValueError(
                f"signal_seconds: {self.signal_seconds} of {self.limit:g} minutes leave no time to train; "
                "make it smaller, or the time larger"
            )
        _ = self.megabytes
        for index, rule in enumerate(self.rules):
            try:
                self._with(rule)
            except ValueError as error:
                raise ValueError(f"rules[{index}].{error}") from None

    @property
    def limit(self) -> float:
        """Minutes that a job may run."""
        return float(self.minutes or 240) if self.time is None else minutes_of(self.time)

    @property
    def megabytes(self) -> int | None:
        """Memory of a job; None leaves it to Slurm."""
        if self.memory_gb is not None:
            return math.ceil(1024 * self.memory_gb)
        return None if self.mem is None else math.ceil(megabytes_of(self.mem))

    def of(self, experiment: str, depth: int) -> "Slurm":
        """Return the options for a run, rules applied."""
        own = self
        for rule in self.rules:
            if rule.applies_to(experiment, depth):
                own = own._with(rule)
        return replace(own, rules=())

    def grown(self, times: int) -> "Slurm | None":
        """Return the options with more memory, so many times; None if that is more than may be asked for."""
        own = self
        for _ in range(times):
            if own.megabytes is None:
                return None
            wanted = self.memory_growth * own.megabytes
            most = wanted if own.memory_most_gb is None else 1024 * own.memory_most_gb
            grown = math.ceil(min(wanted, most))
            if grown <= own.megabytes:
                return None
            own = replace(own, mem=f"{grown}M", memory_gb=None, memory_most_gb=most / 1024)
        return own

    def _with(self, rule: Rule) -> "Slurm":
        own = rule.resources()
        for one, other in (("time", "minutes"), ("mem", "memory_gb")):  # a rule may use either spelling
            if one in own:
                own.setdefault(other, None)
            elif other in own:
                own[one] = None
        if "gpus" in own:
            own.setdefault("gres", None)
        elif "gres" in own:
            own["gpus"] = 0
        return replace(self, rules=(), **own)


@dataclass(frozen=True)
class Ray:
    """Tasks of a Ray cluster.

    address: its head node, host:port; without it a cluster on this machine, which ends with the sweep.
    host: the address that such a cluster listens on; machines that reach an address other than 127.0.0.1 may
    join it.
    """

    address: str | None = None
    host: str = "127.0.0.1"

    def __post_init__(self) -> None:
        _check_line("host", self.host)
        if self.address is None:
            return
        found = re.fullmatch(r"[^\s/]+:([0-9]{1,5})", self.address)
        if found is None or not 0 < int(found[1]) < 2**16:
            raise ValueError(f"address: {shown(self.address)} is no host:port, as 10.0.0.1:6379")
        if self.host != "127.0.0.1":
            raise ValueError("host: is of a cluster without an address; leave one of the two out")


@dataclass(frozen=True)
class Options:
    """An engine.yaml.

    engine: the one that `ncpipe sweep` uses unless --engine names another.
    slurm: what its jobs ask for.
    ray: where its cluster is.
    """

    engine: EngineName = "local"
    slurm: Slurm = Slurm()
    ray: Ray = Ray()


LOCAL = Options()


@dataclass(frozen=True)
class Settings:
    """Settings of a sweep for its engine, whichever it is.

    compute: how runs are computed. workers: batches at a time of each worker; None leaves it to the worker.
    runs: number of all runs of the sweep, trained ones included. name: the command, for messages.
    planned: whether batches are timed first, to estimate the whole time and to begin with the longest.
    keep_options: whether what was lost is submitted again with its job's own options, not with today's.
    """

    compute: Compute
    workers: int | None
    checkpoint_seconds: float
    keep_going: bool
    runs: int
    name: str = "sweep"
    planned: bool = True
    keep_options: bool = False


def load_options(
    engine: EngineName | None = None, given: Sequence[str] = (), path: Path = ENGINE_FILE
) -> Options:
    """Read engine.yaml and the command line's options; InputError has a line for each mistake.

    given: KEY=VALUE of the chosen engine, in place of what the file has.
    """
    tree: Any = {}
    if path.is_file():
        try:
            tree = read_yaml(path)
            read(Options, tree)
        except InputError as error:
            raise InputError("\n".join(cut(f"{path}: {line}") for line in str(error).splitlines())) from None
    if engine is not None:
        tree["engine"] = engine
    name = tree.get("engine", Options.engine)
    for each in given:
        key, equals, text = each.partition("=")
        if not equals:
            raise InputError(f"--option {shown(each)}: write it as KEY=VALUE")
        if name not in ("slurm", "ray"):
            raise InputError(
                f"--option {shown(each)}: the engine {name} has no options; name another by --engine"
            )
        own = tree.setdefault(name, {})
        try:
            own[key] = parse_yaml(text)
        except InputError as error:
            raise InputError(f"--option {key}: {error}") from None
    return read(Options, tree)
