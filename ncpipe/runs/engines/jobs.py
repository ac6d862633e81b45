"""Record jobs of Slurm that were submitted and are not collected yet: a folder per job array in data/.jobs.

The folder is written before its array is submitted and outlives the driver, so the next driver finds all jobs
that wait, run or have ended. A job reads and writes these files and the store of runs, nothing else:

    array.json         the array's number in Slurm, and its options
    INDEX.tasks.json   what job INDEX of the array trains; removed when its results are collected
    INDEX.result.json  the results, written by the worker
    INDEX.requeue      the worker has saved checkpoints and asks to be queued again
    INDEX.refused      Slurm's answer, if it does not queue the job again
    INDEX.log          the job's output
    code               the folder in which the jobs run: the package, study.py and the files listed with it
                       as the array was submitted, and links to the data and the store

The store has a file for each array, which names the folder that submitted it: other folders that share the
store leave these runs to the jobs.
"""

import contextlib
import dataclasses
import json
import secrets
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ncpipe.config.records import read
from ncpipe.runs.code_digests import code_contents
from ncpipe.runs.dvc import cache_folder, dvc_folder
from ncpipe.runs.engines.job_log import JOB_LOGS
from ncpipe.runs.engines.options import Slurm
from ncpipe.runs.engines.task import Task, from_json, to_json
from ncpipe.runs.store_layout import begin_store, store_folder
from ncpipe.system.artifacts import JOBS, json_text, publish_file, reach_disk, remove

ARRAY_FILE = "array.json"
TASKS, RESULT, LOG, REFUSED = ".tasks.json", ".result.json", ".log", ".refused"
WORKDIR = "code"
SUBMITTED = "jobs"  # in the store


@dataclass(frozen=True)
class Job:
    """Holds one job of a job array.

    array: name of its folder; the array's name in Slurm is `ncpipe-` followed by this.
    index: of the job in its array.
    number: of the array in Slurm; empty if the driver ended before it received the number.
    tasks: what the job trains.
    options: those that it was submitted with, rules applied.
    folder: of the sweep, if it is another one than the current folder.
    """

    array: str
    index: int
    number: str
    tasks: tuple[Task, ...]
    options: Slurm
    folder: Path = Path()

    @property
    def id(self) -> str:
        """Return the job's name in Slurm, or one with its folder's name if it has no number."""
        return f"{self.number or self.array}_{self.index}"

    @property
    def keys(self) -> set[str]:
        """Return the fingerprints of its runs."""
        return {key for task in self.tasks for key in task.keys}

    @property
    def collected_log(self) -> Path:
        """Return the path of its log after it is collected."""
        return JOB_LOGS / f"{self.id}{LOG}"

    def file(self, ending: str) -> Path:
        """Return the path of its file with this ending in the array's folder."""
        return self.folder / JOBS / self.array / f"{self.index}{ending}"

    def remove(self) -> None:
        """Remove the job's record and keep its log; the last job of an array removes the folder."""
        with contextlib.suppress(OSError):
            JOB_LOGS.mkdir(parents=True, exist_ok=True)
            shutil.move(self.file(LOG), self.collected_log)
        self.file(TASKS).unlink(missing_ok=True)
        if not any((JOBS / self.array).glob(f"*{TASKS}")):
            remove_array(self.array)


def write_array(tasks: Sequence[Sequence[Task]], options: Slurm) -> list[Job]:
    """Write the folder of an array that is about to be submitted. tasks: those of each job."""
    name = secrets.token_hex(6)
    jobs = [Job(name, index, "", tuple(own), options) for index, own in enumerate(tasks)]
    (JOBS / name).mkdir(parents=True)
    for job in jobs:
        job.file(TASKS).write_text(to_json(job.tasks), encoding="utf-8")
    reach_disk(job.file(TASKS) for job in jobs)
    _write(jobs[0])
    return jobs


def prepare_workdir(array: str) -> None:
    """Write the folder in which an array's jobs run, and tell other folders with this store of the array."""
    workdir = JOBS / array / WORKDIR
    for path, content in code_contents().items():
        (workdir / path).parent.mkdir(parents=True, exist_ok=True)
        (workdir / path).write_bytes(content)
    (workdir / JOBS.parent).symlink_to(Path.cwd() / JOBS.parent)
    if (dvc := dvc_folder()) is not None:  # else the store is below data
        (workdir / ".dvc").mkdir()
        (workdir / ".dvc/config").write_text(f"[cache]\n    dir = {cache_folder(dvc).absolute()}\n", "utf-8")
    with publish_file(begin_store() / SUBMITTED / array) as partial:
        partial.write_text(str(Path.cwd()), encoding="utf-8")


def remove_array(array: str) -> None:
    """Remove all that is recorded about an array."""
    (store_folder() / SUBMITTED / array).unlink(missing_ok=True)
    remove(JOBS / array)


def write_number(jobs: Sequence[Job], number: str) -> list[Job]:
    """Record the number that Slurm gave to an array."""
    numbered = [dataclasses.replace(job, number=number) for job in jobs]
    _write(numbered[0])
    return numbered


def _write(job: Job) -> None:
    values = {"number": job.number, "options": dataclasses.asdict(job.options)}
    with publish_file(JOBS / job.array / ARRAY_FILE) as partial:
        partial.write_text(json_text(values), encoding="utf-8")


def read_jobs() -> list[Job]:
    """Return all jobs that are not collected. Damaged files are skipped, and their runs train again."""
    return [job for file in sorted(JOBS.glob(f"*/{ARRAY_FILE}")) for job in _read(file)]


def jobs_elsewhere() -> list[Job]:
    """Return the jobs that other folders with this store have submitted and not collected."""
    jobs = []
    for file in sorted((store_folder() / SUBMITTED).glob("[!.]*")):
        with contextlib.suppress(OSError, ValueError):  # removed by now, or damaged
            if (folder := Path(file.read_text(encoding="utf-8"))) != Path.cwd():
                found = _read(folder / JOBS / file.name / ARRAY_FILE)
                jobs += [dataclasses.replace(job, folder=folder) for job in found]
    return jobs


def _read(file: Path) -> Iterator[Job]:
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        values: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        options = read(Slurm, values["options"])
        number = str(values["number"])
        indices = sorted(int(path.name.removesuffix(TASKS)) for path in file.parent.glob(f"*{TASKS}"))
        for index in indices:
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
                tasks = from_json((file.parent / f"{index}{TASKS}").read_text(encoding="utf-8"))
                yield Job(file.parent.name, index, number, tuple(tasks), options)


def keys_in_jobs(jobs: Sequence[Job] | None = None) -> dict[str, Job]:
    """Return the jobs by the fingerprints of their runs. jobs: all recorded ones by default."""
    return {key: job for job in (read_jobs() if jobs is None else jobs) for key in job.keys}
