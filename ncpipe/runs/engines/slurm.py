"""Slurm, through submitit: one job array for many batches, which go on without the driver.

The folder of the sweep is one that the nodes see too, with the environment that has ncpipe. A job trains its
batches, one after the other, and puts finished runs into the store. Before its time limit, and when it is
preempted, it saves checkpoints and queues again.
"""

import os
import pickle
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ncpipe.runs.engines.jobs import Job, read_jobs
from ncpipe.runs.engines.options import Slurm
from ncpipe.runs.engines.queue import (
    FILES,
    cancel,
    job_states,
    last_line,
    paths_of,
    summary,
    tail,
    with_result,
)
from ncpipe.runs.engines.work import Ended, Outlook, State, Work
from ncpipe.runs.engines.worker import train_work
from ncpipe.system.artifacts import remove
from ncpipe.system.console import say
from ncpipe.system.errors import InputError
from ncpipe.training.loop import Stopped

POLL = 5.0  # seconds between two looks at the queue
SETTLED = 10.0  # seconds after which what a job has written is to be seen here, on a shared disk
LOOK = 0.05  # seconds between two looks at the training
TIME_LIMITS = 10_000  # that a job may reach: it goes on from its checkpoints
NO_MEMORY = ("oom", "out of memory", "out-of-memory")  # in the log of a job that the system killed for it


class Task:
    """What a job runs: works, one after the other, in a folder. It is pickled by name, and so is its end."""

    def __init__(self, folder: str, works: Sequence[Work]) -> None:
        self.folder, self.works = folder, list(works)

    def __call__(self) -> list[Ended]:
        """How each ended. Signals are heard while a thread trains."""
        os.chdir(self.folder)
        self._stop, self._over = threading.Event(), False
        ended: list[Ended] = []

        def train() -> None:
            try:
                for work in self.works:
                    ended.append(train_work(work, self._stop))
            except Stopped:
                pass
            finally:
                self._over = True

        signal.signal(signal.SIGTERM, self._end)
        threading.Thread(target=train).start()
        self._wait()
        return ended

    def checkpoint(self) -> Any:
        """submitit asks for it before the time limit: what the job is to run when it starts again."""
        from submitit.core.utils import DelayedSubmission

        self._save()
        return DelayedSubmission(Task(self.folder, self.works))

    def _end(self, number: int, frame: Any) -> None:
        """Preempted or cancelled: no result is written, so that Slurm may start the job again."""
        self._save()
        sys.exit(128 + number)

    def _save(self) -> None:
        self._stop.set()
        self._wait()

    def _wait(self) -> None:
        while not self._over:
            time.sleep(LOOK)


class SlurmEngine:
    """Jobs of this folder, those of earlier drivers too."""

    tries_again = True
    outlives = True

    def __init__(self, options: Slurm) -> None:
        _submitit()
        self.options = options
        self.jobs = {job.id: job for job in read_jobs()}
        self._own: list[Any] = []  # submitit's of those that were submitted here

    def submit(self, works: Sequence[Work]) -> None:
        check_jobs(works[0].compute, self.options)
        tasks = deal([_with_cores(work, self.options) for work in works], self.options.array)
        start = time.monotonic()
        FILES.mkdir(parents=True, exist_ok=True)
        before = arrays_before(list(self.jobs.values()), len(tasks), self.options)
        try:
            executor = _executor(self.options, before)
            own = executor.submit_array([Task(os.getcwd(), task) for task in tasks])
        except (RuntimeError, OSError) as error:  # submitit's own are below RuntimeError
            last = str(error).strip().splitlines()[-1:]
            raise InputError(f"slurm: sbatch refuses ({' '.join(last)}); see engine.yaml") from None
        self._own += own
        ids = [str(job.job_id) for job in own]
        for job_id, task in zip(ids, tasks, strict=True):
            job = Job(job_id, tuple(task), self.options)
            job.write()
            self.jobs[job_id] = job
        runs = sum(len(work.runs) for work in works)
        name = ids[0].partition("_")[0]
        say(
            f"sweep: {runs} runs in {len(tasks)} {'task' if len(tasks) == 1 else 'tasks'} of job {name} "
            f"({time.monotonic() - start:.1f} s)"
        )

    def watch(self, wait: bool = True) -> Iterator[Ended]:
        """See `Engine`. A line is said whenever other numbers of them wait and run."""
        told = ""
        while self.jobs:
            jobs = list(self.jobs.values())
            states, told_of = job_states(jobs), with_result(jobs)  # in this order
            over = [job for job in jobs if job.id in told_of or states[job.id].is_over]
            going = [job for job in jobs if job not in over]
            if (line := summary(going, states)) != told and going:
                say(f"sweep: {line}")
                told = line
            if not all(job.id in told_of for job in over) and self.options.cluster == "slurm":
                time.sleep(SETTLED)
            for job in over:
                ends = list(_ends(job, states[job.id].name))
                job.forget()
                del self.jobs[job.id]
                if all(end.state == "done" for end in ends):
                    _tidy(job)
                yield from ends
            if not wait:
                return
            if self.jobs and not over:
                time.sleep(POLL if self.options.cluster == "slurm" else LOOK)
        while self.options.cluster == "local" and not all(own.done() for own in self._own):
            time.sleep(LOOK)  # their results are there, and in a moment they end

    def collect(self, ended: Ended) -> None:
        """The store is on the shared disk."""

    def cancel(self) -> None:
        cancel(list(self.jobs.values()))
        self.jobs.clear()


def deal(works: Sequence[Work], most: int) -> list[list[Work]]:
    """Works as the tasks of an array, at most so many: even shares of what is expected to take equally long.

    Works are split where there are fewer than tasks, by their expected cost, unless they are tried again;
    where there are more, the most costly are dealt out first, each to the task with the least so far.
    """
    costs = [_cost(work) for work in works]
    whole = sum(costs)
    parts = [
        part
        for work, cost in zip(works, costs, strict=True)
        for part in work.in_parts(1 if work.tries else max(1, int(most * cost / whole)))
    ]
    if len(parts) <= most:
        return [[part] for part in parts]
    tasks: list[tuple[float, list[Work]]] = [(0.0, []) for _ in range(most)]
    for work in sorted(parts, key=_cost, reverse=True):
        at = min(range(most), key=lambda index: tasks[index][0])
        tasks[at] = (tasks[at][0] + _cost(work), [*tasks[at][1], work])
    return [task for _, task in tasks]


def outlook(works: Sequence[Work], options: Slurm) -> Outlook:
    """What `submit` would do with this work."""
    check_jobs(works[0].compute, options)
    tasks = deal(works, options.array)
    runs = sum(len(work.runs) for work in works)
    where = "processes of this machine" if options.cluster == "local" else "Slurm"
    at_once = "" if options.cluster == "local" else f", {min(options.at_once, len(tasks))} of them at a time"
    asked = [f"{options.cpus} {'core' if options.cpus == 1 else 'cores'}"]
    if options.cluster == "slurm":
        asked += [] if options.memory_gb is None else [f"{options.memory_gb:g} GB"]
        asked += ["1 GPU"] if options.gpus else []
        asked += [
            f"{name} {value}"
            for name, value in (("partition", options.partition), ("account", options.account))
            if value is not None
        ]
    said = [
        f"{runs} runs to submit to {where}: {len(tasks)} {'task' if len(tasks) == 1 else 'tasks'} of a job "
        f"array{at_once}",
        f"a task: {', '.join([*asked, *options.sbatch])}; {options.minutes} minutes, then it queues again",
        "how many of a task's runs train side by side, in what memory and time, its node's device decides",
    ]
    try:
        _executor(options)
    except InputError as error:
        said.append(f"not from here: {error}")
    return Outlook(tasks, "tasks", said)


def check_jobs(compute: Mapping[str, Any], options: Slurm) -> None:
    """InputError where what jobs get and how runs are to be computed do not go together.

    compute: the fields of `Compute`. A GPU may also be asked for by a further option of sbatch.
    """
    device, threads = compute["device"], compute["threads"]
    asks = any(re.match("--(gpus|gres)", line) for line in options.sbatch)
    if device == "mps":
        raise InputError(
            "compute.device: mps is for one machine; use cpu, cuda or auto with the engine slurm"
        )
    if device == "cuda" and not (options.gpus or asks) and options.cluster == "slurm":
        raise InputError("slurm.gpus: 0, and compute.device is cuda; make it 1, or the device cpu")
    if device == "cpu" and options.gpus:
        raise InputError("slurm.gpus: 1, and compute.device is cpu, which leaves it idle; make it 0")
    if device != "cuda" and not options.gpus and options.cpus < threads:
        raise InputError(f"slurm.cpus: {options.cpus}, and compute.threads is {threads}; make it as many")


def arrays_before(jobs: Sequence[Job], tasks: int, options: Slurm) -> list[str]:
    """Ids of those arrays that have to end before so many more tasks begin: no more than at_once ever run."""
    if options.cluster == "local" or len(jobs) + tasks <= options.at_once:
        return []
    states = job_states(jobs)
    going = [job.id for job in jobs if not states[job.id].is_over and job.options.cluster == "slurm"]
    if len(going) + tasks <= options.at_once:
        return []
    return sorted({job_id.partition("_")[0] for job_id in going})


def _cost(work: Work) -> float:
    """In any unit: epochs times layers. Nothing is measured here, where the device may be another."""
    run = work.runs[0]
    return float(len(work.runs) * run["depth"] * run["spec"]["epochs"])


def _with_cores(work: Work, options: Slurm) -> Work:
    """On a node whose cores are not all the job's, it has to be told how many are."""
    if work.workers is not None or options.gpus:
        return work
    return replace(work, workers=max(1, options.cpus // work.compute["threads"]))


def _submitit() -> Any:
    try:
        import submitit
    except ImportError:
        raise InputError(
            "engine slurm: submitit is not installed; uv sync --extra slurm, or pip install 'ncpipe[slurm]'"
        ) from None
    return submitit


def _executor(options: Slurm, before: Sequence[str] = ()) -> Any:
    """submitit's, with the options in its words. before: jobs that end before its own begin."""
    submitit = _submitit()
    if options.cluster == "local":
        executor = submitit.LocalExecutor(FILES, max_num_timeout=TIME_LIMITS)
        executor.update_parameters(timeout_min=options.minutes, signal_delay_s=options.signal_seconds)
        return executor
    try:
        executor = submitit.SlurmExecutor(FILES, max_num_timeout=TIME_LIMITS)
    except RuntimeError:
        raise InputError("engine slurm: no srun here; run this where you run sbatch") from None
    lines = [line.removeprefix("--").partition("=") for line in options.sbatch]
    further = {name: value if equals else True for name, equals, value in lines}
    if before:
        ended = f"afterany:{':'.join(before)}"
        further["dependency"] = ",".join(str(each) for each in (further.get("dependency"), ended) if each)
    executor.update_parameters(
        job_name="ncpipe",
        partition=options.partition,
        account=options.account,
        time=options.minutes,
        mem=None if options.memory_gb is None else f"{round(1024 * options.memory_gb)}M",
        cpus_per_task=options.cpus,
        gpus_per_node=options.gpus or None,
        array_parallelism=options.at_once,
        signal_delay_s=options.signal_seconds,
        setup=list(options.setup),
        srun_args=["--ntasks=1", f"--cpus-per-task={options.cpus}"],  # which not every srun takes from sbatch
        additional_parameters=further,
    )
    return executor


def _tidy(job: Job) -> None:
    """Remove what submitit wrote of a job that did all it had to."""
    for file in FILES.glob(f"{job.id}_*"):
        remove(file)


def _ends(job: Job, state: str) -> Iterator[Ended]:
    """How each work of a job ended."""
    paths = paths_of(job)
    kind: str = "none"
    found: Any = None
    if with_result([job]):
        try:
            kind, found = pickle.loads(paths.result_pickle.read_bytes())
        except Exception as error:  # whatever is wrong with the file
            kind, found = "error", f"{paths.result_pickle}: damaged ({error})"
    told = {end.work.keys: end for end in found} if kind == "success" else {}
    log = tail(paths.stderr)
    no_memory = state == "OUT_OF_MEMORY" or any(words in log.lower() for words in NO_MEMORY)
    for work in job.works:
        end = told.get(work.keys)
        if end is None and not work.missing():
            yield Ended(work, "done")
        elif end is None and kind == "error":
            yield Ended(work, "failed", f"{last_line(str(found))}\n{log}")
        elif end is None:
            how: State = "memory" if no_memory else "lost"
            yield Ended(work, how, f"{work.name}: job {job.id} ended ({state}) without a word\n{log}")
        elif end.state == "done" and work.missing():
            folder = Path.cwd()
            yield Ended(
                work,
                "refused",
                f"{work.name}: trained, but not to be seen in {folder}: do all nodes share it?",
            )
        else:
            yield end
