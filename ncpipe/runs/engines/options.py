"""engine.yaml beside params.yaml: where a sweep trains. No result depends on it, so no stage does."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
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
Some = Annotated[int, Bound(1, 100_000)]
OURS = {  # options of sbatch that are said otherwise, and how
    "partition": "partition", "account": "account", "time": "minutes", "mem": "memory_gb",
    "cpus-per-task": "cpus", "gpus-per-node": "gpus", "array": "array and at_once",
    "signal": "signal_seconds", "error": "", "job-name": "", "nodes": "", "ntasks": "",
    "ntasks-per-node": "", "open-mode": "", "output": "", "wait": "",
}  # fmt: skip
# sbatch takes a long option by any beginning that no other has. Of the beginnings of ours these are options
# of their own.
OTHERS = ("gpus",)


def _check_line(key: str, text: str | None) -> None:
    """Raise ValueError for a value that is empty or would begin another line of the job's script."""
    if text is not None and not (text and text.isprintable()):
        raise ValueError(f"{key}: {shown(text)} is empty or has what does not print; write it on one line")


def _ours(name: str) -> str | None:
    """Return the reserved option of sbatch that a name stands for, written out or abbreviated."""
    if name in OURS:
        return name
    found = [ours for ours in OURS if ours.startswith(name)] if name not in OTHERS else []
    return found[0] if found else None


@dataclass(frozen=True)
class Slurm:
    """Jobs of Slurm: the tasks of one array for many batches.

    partition: where they queue; Slurm's default if it is left out.
    account: that pays for them.
    minutes: time limit of a job. One that reaches it saves its checkpoints and queues again.
    memory_gb: of a job.
    cpus: of a job.
    gpus: of a job, none or one.
    array: most tasks of an array; a task takes one or more batches, one after the other.
    at_once: most tasks of a sweep that run at a time. An array that could make more waits for the others.
    signal_seconds: before the time limit, when a job is told to save: longer than its longest epoch.
    sbatch: further options as `sbatch` has them, "--constraint=a100".
    setup: lines of shell before the worker, "module load cuda".
    cluster: `local` runs the jobs as processes of this machine, all at once, to try things out. Of the other
    options it takes minutes, cpus, array and signal_seconds.
    """

    partition: str | None = None
    account: str | None = None
    minutes: Some = 240
    memory_gb: Annotated[float, Bound(0, 100_000, open_low=True)] | None = None
    cpus: Some = 1
    gpus: Annotated[int, Bound(0, 1, why="a job trains on one GPU; more tasks of the array take more")] = 0
    array: Annotated[int, Bound(1, 1000, why="Slurm's own limit is 1001 by default")] = 100
    at_once: Some = 256
    signal_seconds: Some = 90
    sbatch: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    cluster: Literal["slurm", "local"] = "slurm"

    def __post_init__(self) -> None:
        _check_line("partition", self.partition)
        _check_line("account", self.account)
        for line in self.sbatch:
            if not (FLAG.fullmatch(line) and line.isprintable()):
                raise ValueError(f"sbatch: {shown(line)} is no option; write it as --name=value or --name")
            name = line[2:].partition("=")[0]
            if ours := _ours(name):
                how = f"is said by {OURS[ours]}" if OURS[ours] else "is ncpipe's to say"
                short = "" if name == ours else f", which sbatch takes for --{ours},"
                raise ValueError(f"sbatch: --{name}{short} {how}; leave it out")
        if self.signal_seconds >= 60 * self.minutes:
            raise ValueError(
                f"signal_seconds: {self.signal_seconds} of {self.minutes} minutes leave no time to train; "
                "make it smaller, or minutes larger"
            )


@dataclass(frozen=True)
class Ray:
    """Tasks of a Ray cluster.

    address: of its head node, host:port; without it a cluster on this machine, which ends with the sweep.
    host: what that one listens on; machines that reach another address than 127.0.0.1 may join it. It has no
    place beside an address.
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

    engine: that `ncpipe sweep` takes unless --engine names another.
    slurm: how its jobs are made.
    ray: where its cluster is.
    """

    engine: EngineName = "local"
    slurm: Slurm = Slurm()
    ray: Ray = Ray()


LOCAL = Options()


@dataclass(frozen=True)
class Settings:
    """What a sweep says to its engine, whatever it is.

    compute: how runs are computed. workers: batches at a time, of each worker; None leaves it to it.
    runs: of the whole sweep, those that are trained already among them. name: of who asks, in messages.
    planned: whether batches are timed first, to say how long all takes and to begin with the longest.
    """

    compute: Compute
    workers: int | None
    checkpoint_seconds: float
    keep_going: bool
    runs: int
    name: str = "sweep"
    planned: bool = True


def load_options(
    engine: EngineName | None = None, given: Sequence[str] = (), path: Path = ENGINE_FILE
) -> Options:
    """What engine.yaml and the command line say together; InputError has a line for each mistake.

    given: KEY=VALUE of the engine that is taken, in place of what the file says.
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
