"""Define tasks and their results, which engines exchange with workers, as plain values; no torch needed."""

import dataclasses
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ncpipe.config.specs import Run, as_json
from ncpipe.runs.fingerprint import RunFingerprint
from ncpipe.runs.store import checkpoint_path, epochs_in, has

# done
# failed: may succeed if each run is tried alone
# refused: cannot succeed, because its runs have a mistake
# memory: ran out of memory
# lost: ended by its process, its machine or its time limit
# preempted: the scheduler gave its machine to another user
State = Literal["done", "failed", "refused", "memory", "lost", "preempted"]


@dataclass(frozen=True)
class Task:
    """Holds runs of one shape for one worker.

    runs: the fields of each `Run`.
    keys: the runs' fingerprints, by which a worker checks that it has the driver's code and data.
    data: checksum of the prepared data.
    compute: the fields of `Compute`.
    checkpoint_seconds: time between two checkpoints.
    workers: batches that train at the same time; None lets the worker decide.
    tries: earlier attempts without progress.
    epochs_before: epochs done when the task was submitted; -1 before that.
    shares: number of tasks that share the machine's free memory.
    """

    runs: tuple[dict[str, Any], ...]
    keys: tuple[str, ...]
    data: str
    compute: dict[str, Any]
    checkpoint_seconds: float
    workers: int | None
    tries: int = 0
    epochs_before: int = -1
    shares: int = 1

    @property
    def name(self) -> str:
        """Return the name of its first run and the number of others."""
        first = self.runs[0]
        varied = "" if first["axis"] is None else f" {first['axis']}={first['value']}"
        others = f" and {len(self.runs) - 1} more" if len(self.runs) > 1 else ""
        return f"{first['experiment']} L={first['depth']}{varied} seed={first['seed']}{others}"

    def subset(self, indices: Sequence[int]) -> "Task":
        """Return the task with only these of its runs."""
        return replace(
            self,
            runs=tuple(self.runs[index] for index in indices),
            keys=tuple(self.keys[index] for index in indices),
        )

    def missing(self) -> list[int]:
        """Return the indices of the runs that the store on this machine lacks."""
        return [index for index, key in enumerate(self.keys) if not has(key)]

    def split(self, parts: int) -> list["Task"]:
        """Split the task into even parts, at most one per run."""
        count = len(self.runs)
        parts = min(parts, count)
        edges = [count * part // parts for part in range(parts + 1)]
        return [self.subset(range(start, end)) for start, end in itertools.pairwise(edges)]

    def epochs_done(self) -> int:
        """Count the epochs in the finished runs and the checkpoints of the store on this machine."""
        device = self.compute["device"]
        return sum(
            run["spec"].get("training", run["spec"])["epochs"]
            if has(key)
            else epochs_in(checkpoint_path(key, device))
            for run, key in zip(self.runs, self.keys, strict=True)
        )

    def submitted(self) -> "Task":
        """Return the task with the number of epochs done so far, to be submitted."""
        return replace(self, epochs_before=self.epochs_done())


@dataclass(frozen=True)
class TaskResult:
    """Holds how a task ended.

    reason: why it is not done; the end of its log may follow on further lines. Empty if it is printed.
    log: what the worker printed, if the driver cannot read it from a file.
    """

    task: Task
    state: State
    reason: str = ""
    log: str = ""


@dataclass(frozen=True)
class DryRun:
    """Holds what an engine would do.

    jobs: the tasks of each job that it would start.
    lines: where and how the jobs would train, for the terminal.
    """

    jobs: Sequence[Sequence[Task]]
    lines: Sequence[str]


def task_of(fingerprints: Sequence[RunFingerprint], checkpoint_seconds: float, workers: int | None) -> Task:
    """Return the task that trains runs of one shape."""
    return Task(
        tuple(_plain(fingerprint.run) for fingerprint in fingerprints),
        tuple(fingerprint.key() for fingerprint in fingerprints),
        fingerprints[0].data,
        dataclasses.asdict(fingerprints[0].compute),
        checkpoint_seconds,
        workers,
    )


def _plain(run: Run) -> dict[str, Any]:
    return {field.name: getattr(run, field.name) for field in dataclasses.fields(run)} | {
        "spec": as_json(run.spec)
    }


def to_json(tasks: Sequence[Task]) -> str:
    """Return tasks as JSON."""
    return json.dumps([vars(task) for task in tasks])  # checkpoint_seconds may be inf


def from_json(text: str) -> list[Task]:
    """Read tasks that `to_json` wrote. ValueError, KeyError or TypeError if the text is damaged."""
    return [
        Task(**values | {"runs": tuple(values["runs"]), "keys": tuple(values["keys"])})
        for values in json.loads(text)
    ]
