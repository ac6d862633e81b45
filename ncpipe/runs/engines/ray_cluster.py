"""Train tasks on a Ray cluster: the engine `ray`.

A task has one GPU, or the cores of one batch. It trains runs of one shape, in batches as large as its
device's memory allows (`ncpipe.runs.engines.remote`). The driver retries failed tasks, not Ray
(`engine.run_tasks`).

Ray is imported only here, and only if a sweep uses it.
"""

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
from dataclasses import dataclass
from typing import Any

from ncpipe.config.specs import Compute
from ncpipe.runs.engines.engine import Engine
from ncpipe.runs.engines.job_log import JOB_LOGS, describe_log
from ncpipe.runs.engines.options import Ray, Settings
from ncpipe.runs.engines.remote import Origin, data_sets_of, origin, pack, store_archive, train_remotely
from ncpipe.runs.engines.task import DryRun, State, Task, TaskResult
from ncpipe.system.artifacts import PREPARED
from ncpipe.system.console import plural, say
from ncpipe.system.errors import InputError, cut

LOOPBACK = ("127.0.0.1", "localhost", "::1")
TASKS_PER_SLOT = 2  # so that few slots are idle while the last tasks end
POLL = 0.5  # seconds between two checks whether a task's parent process still runs
CANCEL_SECONDS = 20.0  # that cancelled tasks have to save checkpoints
QUIET_SECONDS = 60.0  # without a result after which the cluster's machines are checked


@dataclass(frozen=True)
class Cluster:
    """Holds the resources of a cluster: GPUs and cores in total, and the cores of its largest machine."""

    gpus: float
    cores: float
    most_cores: float
    machines: int = 1


class RayEngine(Engine):
    """Trains tasks on a new cluster of this machine, or on the cluster at an address."""

    def __init__(self, options: Ray, settings: Settings) -> None:
        self.options, self.settings = options, settings
        self.ray = connect(self.options)
        self.stack = contextlib.ExitStack()
        self.stack.callback(self.ray.shutdown)
        self.origin = self.stack.enter_context(origin())
        self.uses_gpu = uses_gpu(self.settings.compute, cluster_of(self.ray))
        self.tasks: dict[Any, Task] = {}  # by the reference to their result
        self.data: dict[str, Any] = {}  # references to prepared data, by name and by digest

    def submit(self, tasks: Sequence[Task]) -> None:
        cluster = cluster_of(self.ray)
        check_cluster(self.settings.compute, cluster, self.options)
        new = sum(task.epochs_before < 0 for task in tasks)
        for task in tasks:
            parts = count_parts(new, self.settings.compute, cluster) if task.epochs_before < 0 else 1
            for part in task.split(parts):
                self._start(dataclasses.replace(part.submitted(), shares=self._tasks_per_machine(cluster)))

    def watch(self, wait: bool = True) -> Iterator[list[TaskResult]]:
        checked = time.monotonic()
        while self.tasks:
            timeout = 1.0 if wait else 0.0
            ready, _ = self.ray.wait(list(self.tasks), num_returns=len(self.tasks), timeout=timeout)
            if results := [self._result(reference, self.tasks.pop(reference)) for reference in ready]:
                yield results
            if ready:
                checked = time.monotonic()
            elif not wait:
                return
            elif time.monotonic() - checked > QUIET_SECONDS:
                checked = time.monotonic()
                self._report_lost_machines()
        self.stack.close()

    def cancel(self) -> None:
        references = list(self.tasks)
        self.tasks.clear()
        if references and self.ray.is_initialized():
            say("ray: asking tasks to save their checkpoints")
            for force in (False, True):
                for reference in references:
                    self.ray.cancel(reference, force=force)
                timeout = 1.0 if force else CANCEL_SECONDS
                self.ray.wait(references, num_returns=len(references), timeout=timeout)
        self.stack.close()

    def _tasks_per_machine(self, cluster: Cluster) -> int:
        """Return how many tasks may share a machine's memory; a GPU has one task."""
        return 1 if self.uses_gpu else int(cluster.most_cores // self.settings.compute.threads)

    def _start(self, task: Task) -> None:
        data = {name: self._archive(name) for name in data_sets_of(task)}
        resources = {"num_cpus": self.settings.compute.threads, "num_gpus": int(self.uses_gpu)}
        remote = self.ray.remote(_train).options(max_retries=0, name=task.name, **resources)
        self.tasks[remote.remote(task, self.origin, data)] = task

    def _archive(self, name: str) -> Any:
        """Return a reference to the archive of a prepared data set; equal archives are stored once."""
        if name not in self.data:
            archive = pack(PREPARED / name)
            digest = hashlib.sha256(archive).hexdigest()
            if digest not in self.data:
                self.data[digest] = self.ray.put(archive)
            self.data[name] = self.data[digest]
        return self.data[name]

    def _result(self, reference: Any, task: Task) -> TaskResult:
        """Return the result of a task, after putting its finished runs into the store."""
        try:
            result, archives, machine = self.ray.get(reference)
        except self.ray.exceptions.RayError as error:
            return TaskResult(task, state_of(error), f"{task.name}: {reason_of(error)}")
        for key, archive in archives.items():
            store_archive(key, archive)
        self._log(task, result, machine)
        if result.state == "done":
            left = sum(len(other.runs) for other in self.tasks.values())
            done, runs = self.settings.runs - left, self.settings.runs
            say(f"ray: {done} of {runs} runs done; {task.name} trained on {machine}")
        return TaskResult(task, result.state, result.reason)

    def _log(self, task: Task, result: TaskResult, machine: str) -> None:
        """Keep the worker's output."""
        file = JOB_LOGS / f"ray-{task.keys[0][:16]}-{time.time():.0f}.log"
        with contextlib.suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"on {machine}\n{result.log}", encoding="utf-8")
        describe_log(file, f"ray {machine} ({result.state})", task.keys)

    def _report_lost_machines(self) -> None:
        cluster = cluster_of(self.ray)
        if not (cluster.gpus if self.uses_gpu else cluster.cores):
            say("ray: no machine of the cluster is alive; waiting for one (Ctrl-C ends the sweep)")


def connect(options: Ray) -> Any:
    """Return the module ray, connected to a cluster with token authentication and without usage statistics.

    Without an address it starts a new cluster on this machine, with a new token.
    """
    host = options.address.rpartition(":")[0].strip("[]") if options.address else options.host
    for name, value in environment(host).items():  # Ray reads these when it is imported
        os.environ.setdefault(name, value)
    if options.address is None and host in LOOPBACK and "RAY_AUTH_TOKEN_PATH" not in os.environ:
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    try:
        import ray
    except ImportError as error:
        raise InputError(f"engine ray: {error}; install it with ncpipe's extra `ray`") from None
    arguments: dict[str, Any] = {"include_dashboard": False} if options.address is None else {}
    if options.address is None or host in LOOPBACK:  # otherwise Ray finds this machine's address
        arguments["_node_ip_address"] = host
    try:
        ray.init(
            address=options.address or "local",
            log_to_driver=False,
            logging_level="error",
            **arguments,
        )
    except Exception as error:  # of a dozen types: RuntimeError, ConnectionError, ValueError, ...
        reason = cut(" ".join(str(error).split()))
        problem = f"no cluster answers at {options.address}" if options.address else f"no cluster on {host}"
        raise InputError(f"engine ray: {problem} ({reason}); see docs/clusters.md") from None
    return ray


def environment(host: str) -> dict[str, str]:
    """Return environment variables for Ray. Variables that are already set take precedence."""
    variables = {
        "RAY_AUTH_MODE": "token",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # otherwise Ray warns about a future change
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # otherwise each machine builds the environment of `uv run`
    }
    if host in LOOPBACK:  # otherwise Ray listens on this machine's address in the network
        variables["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    return variables


def cluster_of(ray: Any) -> Cluster:
    """Return the resources of the machines that are alive."""
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return Cluster(
        sum(resources.get("GPU", 0.0) for resources in alive),
        sum(resources.get("CPU", 0.0) for resources in alive),
        max((resources.get("CPU", 0.0) for resources in alive), default=0.0),
        sum(bool(resources.get("CPU")) for resources in alive),
    )


def uses_gpu(compute: Compute, cluster: Cluster) -> bool:
    """Return whether runs train on GPUs; `auto` does if the cluster has any."""
    return compute.device == "cuda" or (compute.device == "auto" and cluster.gpus > 0)


def check_cluster(compute: Compute, cluster: Cluster, options: Ray) -> None:
    """Raise InputError if no machine of the cluster can train; Ray would wait for one."""
    where = f"the Ray cluster at {options.address}" if options.address else "this machine"
    if compute.device == "mps":
        raise InputError("compute.device: mps is for one machine; use cpu, cuda or auto with the engine ray")
    if compute.device == "cuda" and not cluster.gpus:
        raise InputError(f"compute.device: {where} has no GPU; use auto or cpu")
    if cluster.most_cores < compute.threads:
        raise InputError(
            f"compute.threads: {compute.threads}, but {where} has at most {cluster.most_cores:g} cores "
            "for Ray on a machine; start one with more (ray start --num-cpus)"
        )


def count_parts(tasks: int, compute: Compute, cluster: Cluster) -> int:
    """Return into how many parts to split each of so many tasks, so that no slot is idle."""
    slots = cluster.gpus if uses_gpu(compute, cluster) else cluster.cores // compute.threads
    return math.ceil(TASKS_PER_SLOT * slots / tasks)


def dry_run(tasks: Sequence[Task], options: Ray, compute: Compute) -> DryRun:
    """Return what `submit` would do with these tasks; connects to the cluster to see its resources."""
    ray = connect(options)
    try:
        cluster = cluster_of(ray)
    finally:
        ray.shutdown()
    check_cluster(compute, cluster, options)
    parts = [part for task in tasks for part in task.split(count_parts(len(tasks), compute, cluster))]
    where = f"the Ray cluster at {options.address}" if options.address else f"a Ray cluster on {options.host}"
    counts = [(cluster.machines, "machine"), (int(cluster.cores), "core"), (int(cluster.gpus), "GPU")]
    resources = ", ".join(plural(count, name) for count, name in counts if count)
    cores = plural(compute.threads, "core")
    requested = f"1 GPU and {cores}" if uses_gpu(compute, cluster) else cores
    runs = plural(sum(len(task.runs) for task in tasks), "run")
    return DryRun(
        [[part] for part in parts],
        [
            f"{where} ({resources}): {runs} in {plural(len(parts), 'task')}, each with {requested}",
            "batch size, memory and time depend on the machine's device",
        ],
    )


def state_of(error: Exception) -> State:
    """Return the state of a task after an error of Ray, by the error's name."""
    names = {kind.__name__ for kind in type(error).__mro__}
    if "OutOfMemoryError" in names:
        return "memory"
    return "failed" if names & {"RayTaskError", "RuntimeEnvSetupError", "TaskUnschedulableError"} else "lost"


def reason_of(error: Exception) -> str:
    """Return the error in one line."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()] or [""]
    line = lines[-1] if type(error).__name__.startswith("RayTaskError") else lines[0]
    return cut(f"{type(error).__name__}: {line}")


# The rest runs in a task, which has its own process.


def _train(task: Task, source: Origin, data: Mapping[str, Any]) -> Any:
    """Train a task, one batch at a time; return its result, archives and machine.

    Ray cancels a task by an interrupt, as Ctrl-C does. Ray starts as many tasks as the machine has slots, so
    a task trains one batch at a time.
    """
    threading.Thread(target=_exit_with_parent, args=(os.getppid(),), daemon=True).start()
    result, archives = train_remotely(dataclasses.replace(task, workers=1), source, _loaders(data))
    return result, archives, socket.gethostname()


def _loaders(data: Mapping[str, Any]) -> dict[str, Any]:
    import ray

    return {name: functools.partial(ray.get, reference) for name, reference in data.items()}


def _exit_with_parent(parent: int) -> None:
    """End this process when Ray's process on this machine ends, since the driver then retries the task."""
    while os.getppid() == parent:
        time.sleep(POLL)
    os._exit(1)
