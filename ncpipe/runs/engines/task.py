"""Tasks: what an engine gives a worker, and what comes back, as plain values. Needs no torch."""

import dataclasses
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ncpipe.config.specs import Run
from ncpipe.runs.fingerprint import RunFingerprint
from ncpipe.runs.store import checkpoint_path, epochs_in, has

# done; failed: may succeed if each run is tried alone; refused: cannot succeed, by its runs' own fault;
# memory: needs more memory than it had; lost: the process, its machine or its time limit ended it;
# preempted: the scheduler gave its machine to somebody else.
State = Literal["done", "failed", "refused", "memory", "lost", "preempted"]


@dataclass(frozen=True)
class Task:
    """Runs of one shape for one worker.

    runs: the fields of each `Run`. keys: their fingerprints, by which a worker checks that its code and data
    are those of the driver. data: checksum of the prepared data. compute: the fields of `Compute`.
    checkpoint_seconds: between two checkpoints. workers: batches at a time; None leaves it to the worker.
    tries: earlier attempts that made no progress. memory_tries: earlier attempts that ran out of memory with
    this one run. epochs_before: epochs that were saved when the task was submitted, -1 if it never was.
    shares: tasks among which a machine's free memory is divided.
    """

    runs: tuple[dict[str, Any], ...]
    keys: tuple[str, ...]
    data: str
    compute: dict[str, Any]
    checkpoint_seconds: float
    workers: int | None
    tries: int = 0
    memory_tries: int = 0
    epochs_before: int = -1
    shares: int = 1

    @property
    def name(self) -> str:
        """Its first run, and how many there are besides."""
        first = self.runs[0]
        varied = "" if first["axis"] is None else f" {first['axis']}={first['value']}"
        others = f" and {len(self.runs) - 1} more" if len(self.runs) > 1 else ""
        return f"{first['experiment']} L={first['depth']}{varied} seed={first['seed']}{others}"

    def of(self, indices: Sequence[int], tries: int | None = None) -> "Task":
        """Return the same task with some of its runs."""
        return replace(
            self,
            runs=tuple(self.runs[index] for index in indices),
            keys=tuple(self.keys[index] for index in indices),
            tries=self.tries if tries is None else tries,
        )

    def missing(self) -> list[int]:
        """Return the indices of those of its runs that the store here does not have."""
        return [index for index, key in enumerate(self.keys) if not has(key)]

    def in_parts(self, parts: int) -> list["Task"]:
        """Split the task into so many even parts, or one for each run."""
        count = len(self.runs)
        parts = min(parts, count)
        edges = [count * part // parts for part in range(parts + 1)]
        return [self.of(range(start, end)) for start, end in itertools.pairwise(edges)]

    def epochs_done(self) -> int:
        """Count the epochs of its runs that the store here has, in finished runs and in checkpoints."""
        device = self.compute["device"]
        return sum(
            run["spec"]["epochs"] if has(key) else epochs_in(checkpoint_path(key, device))
            for run, key in zip(self.runs, self.keys, strict=True)
        )

    def submitted(self) -> "Task":
        """Return the task as it is submitted, with the progress so far."""
        return replace(self, epochs_before=self.epochs_done())


@dataclass(frozen=True)
class TaskResult:
    """How a task ended.

    reason: why it is not done; what its log ended with may follow on further lines. log: what the worker
    printed, where that is in no file that the driver can read.
    """

    task: Task
    state: State
    reason: str = ""
    log: str = ""


@dataclass(frozen=True)
class DryRun:
    """What an engine would do with tasks.

    pieces: the tasks of each job. name: what several jobs are called. lines: where and how they would train.
    """

    pieces: Sequence[Sequence[Task]]
    name: str
    lines: Sequence[str]


def task_of(fingerprints: Sequence[RunFingerprint], checkpoint_seconds: float, workers: int | None) -> Task:
    """Return the task of training runs of one shape."""
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
        "spec": dataclasses.asdict(run.spec)
    }


def to_json(tasks: Sequence[Task]) -> str:
    """Write tasks as JSON. Runs share most of their specs, so each distinct spec is written once."""
    specs: dict[str, int] = {}
    plain = []
    for task in tasks:
        runs = [run | {"spec": _index(specs, run["spec"])} for run in task.runs]
        plain.append({**vars(task), "runs": runs})
    return json.dumps({"specs": [json.loads(text) for text in specs], "tasks": plain}, allow_nan=False)


def _index(specs: dict[str, int], spec: dict[str, Any]) -> int:
    return specs.setdefault(json.dumps(spec, sort_keys=True), len(specs))


def from_json(text: str) -> list[Task]:
    """Read tasks that `to_json` wrote. ValueError, KeyError or TypeError if the text is damaged."""
    values = json.loads(text)
    specs = values["specs"]
    return [
        Task(
            **task
            | {
                "runs": tuple(run | {"spec": specs[run["spec"]]} for run in task["runs"]),
                "keys": tuple(task["keys"]),
            }
        )
        for task in values["tasks"]
    ]
