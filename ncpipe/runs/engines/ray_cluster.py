"""The engine that trains on a Ray cluster.

A task has a GPU, or the cores of one batch, and trains runs of one shape in batches as large as its device
has room for. Ray does not try a task again: the driver does (`protocol.run_tasks`).

Ray is imported here and nowhere else, and only where a sweep asks for it.
"""

import concurrent.futures
import contextlib
import dataclasses
import functools
import hashlib
import math
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil

from ncpipe.config.specs import Compute
from ncpipe.runs.engines.archive import pack, receive
from ncpipe.runs.engines.job_log import JOB_LOGS, JobCost, digests_of, write_costs
from ncpipe.runs.engines.options import Ray, Settings
from ncpipe.runs.engines.remote import Origin, data_of, origin, train_there
from ncpipe.runs.engines.task import DryRun, State, Task, TaskResult
from ncpipe.system.artifacts import PREPARED
from ncpipe.system.console import say
from ncpipe.system.errors import InputError, cut

LOOPBACK = ("127.0.0.1", "localhost", "::1")
TURNS = 2  # tasks for each place, so that a long one at the end leaves few places idle
LOOK = 0.5  # seconds between two looks at what a task's process has to know
PATIENCE = 20.0  # seconds that tasks have to save their checkpoints when they are cancelled
QUIET = 60.0  # seconds without an end after which it is said what the cluster still has


@dataclass(frozen=True)
class Cluster:
    """What tasks can ask for: GPUs and cores in all, and cores of the largest of the machines that train."""

    gpus: float
    cores: float
    most_cores: float
    machines: int = 1


@dataclass
class RayEngine:
    """Tasks of a cluster, its own one or that at an address."""

    options: Ray
    settings: Settings
    tries_again: bool = field(default=True, init=False)
    outlives: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.ray = connect(self.options)
        self.stack = contextlib.ExitStack()
        self.stack.callback(self.ray.shutdown)
        self.origin = self.stack.enter_context(origin())
        self.uses_gpu = uses_gpu(self.settings.compute, cluster_of(self.ray))
        self.tasks: dict[Any, Task] = {}  # by the reference of what they return
        self.archives: dict[tuple[str, ...], dict[str, bytes]] = {}  # of tasks that ended, until collected
        self.data: dict[str, Any] = {}  # references of prepared data, by name and by digest

    def submit(self, tasks: Sequence[Task]) -> None:
        cluster = cluster_of(self.ray)
        check_cluster(self.settings.compute, cluster, self.options)
        new = sum(task.epochs_before < 0 for task in tasks)
        for task in tasks:
            pieces = pieces_of(new, self.settings.compute, cluster) if task.epochs_before < 0 else 1
            for part in task.in_parts(pieces):
                self._start(dataclasses.replace(part.submitted(), shares=self._places(cluster)))

    def watch(self, wait: bool = True) -> Iterator[list[TaskResult]]:
        heard = time.monotonic()
        while self.tasks:
            patience = 1.0 if wait else 0.0
            ready, _ = self.ray.wait(list(self.tasks), num_returns=len(self.tasks), timeout=patience)
            if results := [self._result(reference, self.tasks.pop(reference)) for reference in ready]:
                yield results
            if ready:
                heard = time.monotonic()
            elif not wait:
                return
            elif time.monotonic() - heard > QUIET:
                heard = time.monotonic()
                self._say_how_it_stands()
        self.stack.close()

    def collect(self, result: TaskResult) -> None:
        for key, archive in self.archives.pop(result.task.keys, {}).items():
            receive(key, archive)

    def more_memory(self, task: Task) -> Task | None:
        """Return None: a task's memory is its machine's."""
        return None

    def cancel(self) -> None:
        references = list(self.tasks)
        self.tasks.clear()
        if references and self.ray.is_initialized():
            say("ray: asking tasks to save their checkpoints")
            for force in (False, True):
                for reference in references:
                    self.ray.cancel(reference, force=force)
                self.ray.wait(references, num_returns=len(references), timeout=PATIENCE if not force else 1.0)
        self.stack.close()

    def _places(self, cluster: Cluster) -> int:
        """Return how many tasks may share a machine's memory; a GPU is one task's."""
        return 1 if self.uses_gpu else int(cluster.most_cores // self.settings.compute.threads)

    def _start(self, task: Task) -> None:
        data = {name: self._archive(name) for name in data_of(task)}
        asked = {"num_cpus": self.settings.compute.threads, "num_gpus": int(self.uses_gpu)}
        remote = self.ray.remote(_train).options(max_retries=0, name=task.name, **asked)
        self.tasks[remote.remote(task, self.origin, data)] = task

    def _archive(self, name: str) -> Any:
        """Return the reference of a prepared data set as an archive; equal ones are stored once."""
        if name not in self.data:
            archive = pack(PREPARED / name)
            digest = hashlib.sha256(archive).hexdigest()
            if digest not in self.data:
                self.data[digest] = self.ray.put(archive)
            self.data[name] = self.data[digest]
        return self.data[name]

    def _result(self, reference: Any, task: Task) -> TaskResult:
        try:
            result, archives, machine = self.ray.get(reference)
        except self.ray.exceptions.RayError as error:
            return TaskResult(task, state_of(error), f"{task.name}: {reason_of(error)}")
        self.archives[task.keys] = archives
        self._log(task, result, machine)
        if result.state == "done":
            left = sum(len(other.runs) for other in self.tasks.values())
            done, runs = self.settings.runs - left, self.settings.runs
            say(f"ray: {done} of {runs} runs, {task.name} by {machine.name}")
        return TaskResult(task, result.state, result.reason)

    def _log(self, task: Task, result: TaskResult, machine: "Machine") -> None:
        """Keep what the worker printed and what the task took."""
        file = JOB_LOGS / f"ray-{task.keys[0][:16]}-{machine.began:.0f}.log"
        with contextlib.suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"on {machine.name}\n{result.log}", encoding="utf-8")
        cost = JobCost(
            "ray", machine.name, result.state, self.settings.compute.threads, int(self.uses_gpu),
            machine.seconds, None, machine.megabytes, None, 0, len(task.runs), str(file),
            digests_of(task.keys),
        )  # fmt: skip
        write_costs([cost])

    def _say_how_it_stands(self) -> None:
        cluster = cluster_of(self.ray)
        if not (cluster.gpus if self.uses_gpu else cluster.cores):
            say("ray: no machine is left that could train; waiting for one (Ctrl-C ends the sweep)")


def connect(options: Ray) -> Any:
    """Return the module ray, connected to a cluster with tokens and without usage statistics.

    Without an address it is a new cluster of this machine's, with a token of its own.
    """
    host = options.address.rpartition(":")[0].strip("[]") if options.address else options.host
    for name, value in environment(host).items():  # which Ray reads when it is imported
        os.environ.setdefault(name, value)
    if options.address is None and host in LOOPBACK and "RAY_AUTH_TOKEN_PATH" not in os.environ:
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    try:
        import ray
    except ImportError as error:
        raise InputError(f"engine ray: {error}; install it with ncpipe's extra `ray`") from None
    own: dict[str, Any] = {"include_dashboard": False} if options.address is None else {}
    if options.address is None or host in LOOPBACK:  # elsewhere Ray finds this machine's address
        own["_node_ip_address"] = host
    try:
        ray.init(
            address=options.address or "local",
            log_to_driver=False,
            logging_level="error",
            **own,
        )
    except Exception as error:  # of a dozen types: RuntimeError, ConnectionError, ValueError, ...
        reason = cut(" ".join(str(error).split()))
        where = f"no cluster answers at {options.address}" if options.address else f"no cluster on {host}"
        raise InputError(f"engine ray: {where} ({reason}); see docs/clusters.md") from None
    return ray


def environment(host: str) -> dict[str, str]:
    """Return environment variables for Ray; those that are set already win."""
    told = {
        "RAY_AUTH_MODE": "token",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else it warns of what will change
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # else `uv run` here has each machine make an environment anew
    }
    if host in LOOPBACK:  # else Ray takes this machine's address in the network in its place
        told["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    return told


def cluster_of(ray: Any) -> Cluster:
    """Return what the machines have that are alive now."""
    own = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return Cluster(
        sum(resources.get("GPU", 0.0) for resources in own),
        sum(resources.get("CPU", 0.0) for resources in own),
        max((resources.get("CPU", 0.0) for resources in own), default=0.0),
        sum(bool(resources.get("CPU")) for resources in own),
    )


def uses_gpu(compute: Compute, cluster: Cluster) -> bool:
    """Return whether runs train on GPUs: `auto` is one wherever there is one."""
    return compute.device == "cuda" or (compute.device == "auto" and cluster.gpus > 0)


def check_cluster(compute: Compute, cluster: Cluster, options: Ray) -> None:
    """Raise InputError for what no machine of the cluster could ever do: Ray would wait for one that can."""
    where = f"the Ray cluster at {options.address}" if options.address else "this machine"
    if compute.device == "mps":
        raise InputError("compute.device: mps is for one machine; use cpu, cuda or auto with the engine ray")
    if compute.device == "cuda" and not cluster.gpus:
        raise InputError(f"compute.device: {where} has no GPU; use auto or cpu")
    if cluster.most_cores < compute.threads:
        raise InputError(
            f"compute.threads: {compute.threads}, and {where} has at most {cluster.most_cores:g} cores "
            "for Ray on a machine; start one with more (ray start --num-cpus)"
        )


def pieces_of(tasks: int, compute: Compute, cluster: Cluster) -> int:
    """Return into how many tasks, at least, to split each of so many shapes, so that no place is idle."""
    places = cluster.gpus if uses_gpu(compute, cluster) else cluster.cores // compute.threads
    return math.ceil(TURNS * places / tasks)


def dry_run(tasks: Sequence[Task], options: Ray, compute: Compute) -> DryRun:
    """Return what `submit` would do with these tasks; the cluster is asked what it has."""
    ray = connect(options)
    try:
        cluster = cluster_of(ray)
    finally:
        ray.shutdown()
    check_cluster(compute, cluster, options)
    parts = [part for task in tasks for part in task.in_parts(pieces_of(len(tasks), compute, cluster))]
    where = f"the Ray cluster at {options.address}" if options.address else f"a Ray cluster on {options.host}"
    has = [(cluster.machines, "machine"), (int(cluster.cores), "core"), (int(cluster.gpus), "GPU")]
    counted = ", ".join(f"{count} {name if count == 1 else f'{name}s'}" for count, name in has if count)
    cores = f"{compute.threads} {'core' if compute.threads == 1 else 'cores'}"
    asked = f"a GPU and {cores}" if uses_gpu(compute, cluster) else cores
    runs = sum(len(task.runs) for task in tasks)
    return DryRun(
        [[part] for part in parts],
        "tasks",
        [
            f"{runs} runs for {where} ({counted}): {len(parts)} tasks, each asks for {asked}",
            "a task's device decides how many runs train side by side, and how long it takes",
        ],
    )


def state_of(error: Exception) -> State:
    """Return what Ray's error means for the task, by the error's name."""
    names = {kind.__name__ for kind in type(error).__mro__}
    if "OutOfMemoryError" in names:
        return "memory"
    return "failed" if names & {"RayTaskError", "RuntimeEnvSetupError", "TaskUnschedulableError"} else "lost"


def reason_of(error: Exception) -> str:
    """Return the error in a line."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()] or [""]
    said = lines[-1] if type(error).__name__.startswith("RayTaskError") else lines[0]
    return cut(f"{type(error).__name__}: {said}")


# What runs in a task. It has a process to itself.


@dataclass(frozen=True)
class Machine:
    """Where a task trained, when it began (seconds since 1970), how long it took and what memory it used."""

    name: str
    began: float
    seconds: float
    megabytes: float


def _train(task: Task, source: Origin, data: Mapping[str, Any]) -> Any:
    """Train in a thread: cancelled, a task's main thread has an interrupt, which it only sees while it waits.

    One batch at a time: Ray starts as many tasks as there is room for.
    """
    stop, began = threading.Event(), time.time()
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        alone = dataclasses.replace(task, workers=1)
        future = pool.submit(train_there, alone, source, _loads(data), stop)
        try:
            while not future.done():
                concurrent.futures.wait([future], LOOK)
        except BaseException:
            stop.set()
            raise
    result, archives = future.result()
    used = psutil.Process().memory_info().rss / 2**20
    return result, archives, Machine(socket.gethostname(), began, time.time() - began, used)


def _loads(data: Mapping[str, Any]) -> dict[str, Any]:
    import ray

    return {name: functools.partial(ray.get, reference) for name, reference in data.items()}


def _end_with_parent(parent: int) -> None:
    """End this process with Ray's on this machine: what it trains on, the driver gives to another one."""
    while os.getppid() == parent:
        time.sleep(LOOK)
    os._exit(1)
