#!/usr/bin/env python3
"""A stand-in for Slurm: sbatch, squeue, scancel and scontrol, by the name it is called by.

Jobs are processes of this machine. In its folder, $SLURM_STAND_IN, files change what it does: refuse is what
sbatch prints as it refuses, no_requeue what scontrol prints, scancel what scancel prints. warn sends the
signal that comes before the time limit. While there is a hold, no job begins. It writes a line to `started`
for each start of a job.

Jobs are on a cluster: the last that --clusters names, or the default one. squeue and scancel know the jobs of
the clusters that they are asked about alone; `all` are all.

As in Slurm, each task of an array has a number of its own, and that of the last one is the array's, whose
requeueing requeues all tasks, also those that have ended.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

COMMANDS = ("sbatch", "squeue", "scancel", "scontrol")
STATE = Path(os.environ.get("SLURM_STAND_IN", "."))
LOOK = 0.05  # seconds


def install(folder: Path) -> dict[str, str]:
    """Put the commands into a folder; return the environment in which they are found."""
    (folder / "bin").mkdir(parents=True)
    (folder / "jobs").mkdir()
    for name in COMMANDS:
        (folder / "bin" / name).symlink_to(Path(__file__).resolve())
    return {"SLURM_STAND_IN": str(folder), "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}


def told(name: str) -> str | None:
    try:
        return (STATE / name).read_text()
    except FileNotFoundError:
        return None


def write(job: str, state: str) -> None:
    partial = STATE / "jobs" / f".{job}.{os.getpid()}"
    partial.write_text(state)
    os.replace(partial, STATE / "jobs" / job)


def options(words: list[str]) -> dict[str, str]:
    return {name: value for name, _, value in (w[2:].partition("=") for w in words if w.startswith("--"))}


def clusters(words: list[str], *variables: str) -> list[str]:
    given = options(words)
    asked = [given.get("clusters"), given.get("cluster"), *map(os.environ.get, variables)]
    return next(filter(None, asked), "").split(",")


def sbatch(words: list[str]) -> int:
    script, given = sys.stdin.read(), options(words)
    if (said := told("refuse")) is not None:
        print(f"sbatch: error: {said}", file=sys.stderr)
        return 1
    if "test-only" in given:
        print("sbatch: Job 1 to start at once", file=sys.stderr)
        return 0
    number = len(list(STATE.glob("array-*"))) + 1
    (STATE / f"array-{number}").write_text("\n".join([given["job-name"], *words]))
    (STATE / f"script-{number}").write_text(script)
    cluster = clusters(words, "SBATCH_CLUSTERS", "SLURM_CLUSTERS")[-1]
    (STATE / f"cluster-{number}").write_text(cluster)
    first, last = map(int, given["array"].partition("%")[0].split("-"))
    for index in range(first, last + 1):
        write(f"{number}_{index}", "PENDING")
    control = [sys.executable, str(Path(__file__).resolve()), "control", str(number)]
    subprocess.Popen(
        control, start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    print(f"{number};{cluster}" if cluster else number)
    return 0


def control(number: str) -> int:
    """Run the tasks of an array, so many at a time."""
    _, *words = told(f"array-{number}").split("\n")  # type: ignore[union-attr]
    given = options(words)
    indices, _, most = given["array"].partition("%")
    first, last = map(int, indices.split("-"))
    todo, running = [f"{number}_{index}" for index in range(first, last + 1)], {}
    while todo or running:
        while todo and len(running) < int(most) and told("hold") is None:
            job = todo.pop(0)
            if told(f"jobs/{job}") == "CANCELLED":
                continue
            index = job.partition("_")[2]
            environment = {
                **os.environ, "SLURM_ARRAY_JOB_ID": number, "SLURM_ARRAY_TASK_ID": index,
                "SLURM_JOB_ID": number if int(index) == last else f"{number}00{index}",
            }  # fmt: skip
            with open(STATE / "started", "a") as started:
                started.write(f"{job}\n")
            with open(given["output"].replace("%a", index), "a") as log:
                process = subprocess.Popen(
                    ["bash", str(STATE / f"script-{number}")], stdin=subprocess.DEVNULL, stdout=log,
                    stderr=log, env=environment, start_new_session=True,
                )  # fmt: skip
            write(job, f"RUNNING {process.pid}")
            running[job] = process
        time.sleep(LOOK)
        if told("warn") is not None:
            (STATE / "warn").unlink()
            for process in running.values():
                process.send_signal(signal.SIGUSR2)
        for job, process in list(running.items()):
            if (code := process.poll()) is None:
                continue
            del running[job]
            if told(f"requeue-{job}") is not None:  # asked for before it ended: PENDING follows at once
                continue
            if told(f"jobs/{job}").startswith("RUNNING"):  # type: ignore[union-attr]
                write(job, "FAILED" if code else "COMPLETED")
        for index in range(first, last + 1):
            if (job := f"{number}_{index}") not in running and told(f"requeue-{job}") is not None:
                (STATE / f"requeue-{job}").unlink()
                write(job, "PENDING")
                todo.append(job)
    return 0


def jobs(allowed: list[str]) -> list[tuple[str, str]]:
    states = [(file.name, file.read_text()) for file in sorted((STATE / "jobs").glob("[0-9]*"))]
    return [(job, state) for job, state in states if allowed == ["all"] or cluster_of(job) in allowed]


def cluster_of(job: str) -> str:
    return told(f"cluster-{job.partition('_')[0]}") or ""


def names() -> dict[str, str]:
    return {file.name[6:]: file.read_text().split("\n")[0] for file in STATE.glob("array-*")}


def squeue(words: list[str]) -> int:
    for job, state in jobs(clusters(words, "SLURM_CLUSTERS")):
        print(f"{job}|{names()[job.partition('_')[0]]}|{state.split()[0]}|None")
    return 0


def scancel(words: list[str]) -> int:
    if (said := told("scancel")) is not None:
        print(f"scancel: error: {said}", file=sys.stderr)
        return 1
    named = options(words).get("jobname")
    for job, state in jobs(clusters(words, "SLURM_CLUSTERS")):
        array = job.partition("_")[0]
        if job in words or array in words or named == names()[array]:
            if state.startswith("RUNNING"):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(int(state.split()[1]), signal.SIGTERM)
            if state.split()[0] in ("PENDING", "RUNNING"):
                write(job, "CANCELLED")
    return 0


def scontrol(words: list[str]) -> int:
    if (said := told("no_requeue")) is not None:
        print(said, file=sys.stderr)
        return 1
    for job, _ in jobs(["all"]):
        number, _, index = job.partition("_")
        if words[1] in (job, number, f"{number}00{index}"):
            (STATE / f"requeue-{job}").touch()
    return 0


if __name__ == "__main__":
    called = Path(sys.argv[0]).name
    if called in COMMANDS:
        sys.exit(globals()[called](sys.argv[1:]))
    if re.fullmatch("control", sys.argv[1]):
        sys.exit(control(sys.argv[2]))
