"""Record job arrays of Slurm that were submitted: a folder for each in data/.jobs, which its jobs only read.

    array.json  what the jobs may train, and how
    INDEX.log   the output of job INDEX
    code        the folder in which the jobs run: the package, params.yaml, study.py and the files listed with
                it as the array was submitted, and links to the data, what is listed for `fetch` and the store

The folder is written before its array is submitted and outlives the driver.
"""

import contextlib
import dataclasses
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from ncpipe.config.params import PARAMS_FILE
from ncpipe.config.run import Device
from ncpipe.config.study_files import FETCH, listed_paths
from ncpipe.runs.code_digests import code_contents
from ncpipe.runs.dvc import cache_folder, dvc_folder
from ncpipe.system.artifacts import JOBS, LOGS, json_text, publish_file, remove

FILE = "array.json"
WORKDIR = "code"
JOB_LOGS = LOGS / "jobs"  # logs of jobs whose array has ended


@dataclass(frozen=True)
class Array:
    """Holds a job array.

    name: of its folder; in Slurm it is `ncpipe-` followed by this.
    jobs: how many it has. keys: fingerprints of the runs that they pull.
    device, workers, checkpoint_seconds: how a job trains.
    epochs: of these runs, done before it was submitted. losses: earlier arrays of them without progress.
    number: of the array in Slurm; empty if the driver ended before it received the number.
    cluster: that has the array, or those among which sbatch chooses; empty for Slurm's default.
    """

    name: str
    jobs: int
    keys: tuple[str, ...]
    device: Device
    workers: int | None
    checkpoint_seconds: float
    epochs: int = 0
    losses: int = 0
    number: str = ""
    cluster: str = ""

    @property
    def folder(self) -> Path:
        """Return its folder below data/.jobs."""
        return JOBS / self.name

    @property
    def id(self) -> str:
        """Return its number, or its name in Slurm."""
        return self.number or f"ncpipe-{self.name}"

    def write(self) -> None:
        """Write its record."""
        with publish_file(self.folder / FILE) as partial:
            partial.write_text(json_text(dataclasses.asdict(self)), encoding="utf-8")

    def prepare(self) -> None:
        """Write its record, and the folder in which its jobs run."""
        self.write()
        workdir = self.folder / WORKDIR
        workdir.mkdir()
        (workdir / JOBS.parent).symlink_to(Path.cwd() / JOBS.parent)
        for path, content in (code_contents() | {PARAMS_FILE.name: PARAMS_FILE.read_bytes()}).items():
            if not (workdir / path).exists():  # a file below data is
                (workdir / path).parent.mkdir(parents=True, exist_ok=True)
                (workdir / path).write_bytes(content)
        for listed in listed_paths(FETCH):  # which loops read as they train
            if ".." not in listed.parts and not (workdir / listed).exists():
                (workdir / listed).parent.mkdir(parents=True, exist_ok=True)
                (workdir / listed).symlink_to(listed.absolute())
        if (dvc := dvc_folder()) is not None:  # else the store is below data
            (workdir / ".dvc").mkdir()
            cache = cache_folder(dvc).absolute()
            (workdir / ".dvc/config").write_text(f"[cache]\n    dir = {cache}\n", "utf-8")

    def remove(self) -> None:
        """Remove its folder, and keep the jobs' logs."""
        JOB_LOGS.mkdir(parents=True, exist_ok=True)
        for log in self.folder.glob("*.log"):
            with contextlib.suppress(OSError):
                shutil.move(log, JOB_LOGS / f"{self.id}_{log.name}")
        remove(self.folder)


def read_array(folder: Path) -> Array:
    """Read the record in a folder; ValueError, KeyError or TypeError if it is damaged."""
    values = json.loads((folder / FILE).read_text(encoding="utf-8"))
    return Array(**values | {"keys": tuple(values["keys"])})


def read_arrays() -> list[Array]:
    """Return all arrays that were submitted here and are not removed; damaged records are skipped."""
    arrays = []
    for file in sorted(JOBS.glob(f"*/{FILE}")):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            arrays.append(read_array(file.parent))
    return arrays
