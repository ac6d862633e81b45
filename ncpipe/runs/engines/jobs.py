"""What has been given to a scheduler and not been taken back yet: a file for each job.

It outlives the driver: the next one finds here what waits, runs or has ended meanwhile.
"""

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ncpipe.runs.engines.options import Slurm
from ncpipe.runs.engines.work import Work, from_json
from ncpipe.system.artifacts import JOBS, json_text, publish_file, remove


@dataclass(frozen=True)
class Job:
    """One job: its id as the scheduler has it, and the work that it does, one piece after the other.

    options: how it was submitted, for what has to be submitted again.
    """

    id: str
    works: tuple[Work, ...]
    options: Slurm

    @property
    def keys(self) -> set[str]:
        """Of the runs' stamps."""
        return {key for work in self.works for key in work.keys}

    @property
    def file(self) -> Path:
        return JOBS / f"{self.id}.json"

    def write(self) -> None:
        with publish_file(self.file) as partial:
            partial.write_text(json_text(dataclasses.asdict(self)), encoding="utf-8")

    def forget(self) -> None:
        """It has been taken back."""
        remove(self.file)


def read_jobs() -> list[Job]:
    """All that have not been taken back. A file that is damaged counts as none: its runs train again."""
    return [job for file in sorted(JOBS.glob("*.json")) for job in _read(file)]


def _read(file: Path) -> Iterator[Job]:
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        values = json.loads(file.read_text(encoding="utf-8"))
        options = values["options"]
        lines = {name: tuple(options[name]) for name in ("sbatch", "setup")}
        yield Job(values["id"], tuple(map(from_json, values["works"])), Slurm(**options | lines))


def keys_in_jobs(jobs: Sequence[Job] | None = None) -> dict[str, Job]:
    """The job of every run that is in one."""
    return {key: job for job in (read_jobs() if jobs is None else jobs) for key in job.keys}
