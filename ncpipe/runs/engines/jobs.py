"""Jobs that were submitted and not collected yet: a folder for each job array, below data/.jobs.

The folder is written before anything is submitted and outlives the driver, so the next driver finds here what
waits, runs or has ended. It is also all that a job reads and writes beside the store of runs:

    array.json       the array's number once Slurm has given one, its options, when it was submitted
    INDEX.tasks.json what one task of the array trains; it is removed when its results have been collected
    INDEX.result.json how that ended, from the worker
    INDEX.again      the worker has saved and asks to be queued again
    INDEX.refused    what Slurm answered to that, if it refused
    INDEX.log        what the job printed
"""

import contextlib
import dataclasses
import json
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ncpipe.config.records import read
from ncpipe.runs.engines.job_log import JOB_LOGS
from ncpipe.runs.engines.options import Slurm
from ncpipe.runs.engines.task import Task, from_json, to_json
from ncpipe.system.artifacts import JOBS, json_text, publish_file, reach_disk, remove

ARRAY_FILE = "array.json"
TASKS, RESULT, LOG, REFUSED = ".tasks.json", ".result.json", ".log", ".refused"


@dataclass(frozen=True)
class Job:
    """One task of a job array, which is a job of its own for Slurm.

    array: name of its folder; the job's name is `ncpipe-` and this. number: of the array in Slurm, empty if
    the driver ended before it was told. options: how it was submitted, rules applied and memory not grown.
    submitted: seconds since 1970.
    """

    array: str
    index: int
    number: str
    tasks: tuple[Task, ...]
    options: Slurm
    submitted: float

    @property
    def id(self) -> str:
        """The job as Slurm writes it, or its folder as long as it has no number."""
        return f"{self.number or self.array}_{self.index}"

    @property
    def keys(self) -> set[str]:
        """Fingerprints of its runs."""
        return {key for task in self.tasks for key in task.keys}

    @property
    def collected_log(self) -> Path:
        """Where its log is once it has been collected."""
        return JOB_LOGS / f"{self.id}{LOG}"

    def file(self, ending: str) -> Path:
        """Return one of its files in the array's folder."""
        return JOBS / self.array / f"{self.index}{ending}"

    def forget(self) -> None:
        """Remove a job whose end is known, but for its log; the last one of an array removes the folder."""
        with contextlib.suppress(OSError):
            JOB_LOGS.mkdir(parents=True, exist_ok=True)
            shutil.move(self.file(LOG), self.collected_log)
        self.file(TASKS).unlink(missing_ok=True)
        if not any((JOBS / self.array).glob(f"*{TASKS}")):
            remove(JOBS / self.array)


def write_array(tasks: Sequence[Sequence[Task]], options: Slurm) -> list[Job]:
    """Write the folder of an array that is about to be submitted."""
    name, submitted = secrets.token_hex(6), time.time()
    jobs = [Job(name, index, "", tuple(some), options, submitted) for index, some in enumerate(tasks)]
    (JOBS / name).mkdir(parents=True)
    for job in jobs:
        job.file(TASKS).write_text(to_json(job.tasks), encoding="utf-8")
    reach_disk(job.file(TASKS) for job in jobs)
    _write(jobs[0])
    return jobs


def write_number(jobs: Sequence[Job], number: str) -> list[Job]:
    """Note the number that Slurm has given to an array."""
    numbered = [dataclasses.replace(job, number=number) for job in jobs]
    _write(numbered[0])
    return numbered


def _write(job: Job) -> None:
    values = {"number": job.number, "submitted": job.submitted, "options": dataclasses.asdict(job.options)}
    with publish_file(JOBS / job.array / ARRAY_FILE) as partial:
        partial.write_text(json_text(values), encoding="utf-8")


def read_jobs() -> list[Job]:
    """Read all that have not been collected. A damaged file counts as none: its runs are trained again."""
    return [job for file in sorted(JOBS.glob(f"*/{ARRAY_FILE}")) for job in _read(file)]


def _read(file: Path) -> Iterator[Job]:
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        values: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        options = read(Slurm, values["options"])
        number, submitted = str(values["number"]), float(values["submitted"])
        indices = sorted(int(path.name.removesuffix(TASKS)) for path in file.parent.glob(f"*{TASKS}"))
        for index in indices:
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
                tasks = from_json((file.parent / f"{index}{TASKS}").read_text(encoding="utf-8"))
                yield Job(file.parent.name, index, number, tuple(tasks), options, submitted)


def keys_in_jobs(jobs: Sequence[Job] | None = None) -> dict[str, Job]:
    """Return the job of every run that is in one, by the run's fingerprint."""
    return {key: job for job in (read_jobs() if jobs is None else jobs) for key in job.keys}
