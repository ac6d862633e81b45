"""The engine that trains on a Ray cluster: a task for each batch, as large as its device has room for.

What a run takes is asked where it would train. A task then asks Ray for that share of a GPU, or for that much
memory, and trains one batch. Ray does not try a task again: the driver does, and says why (`protocol.drive`).

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
from typing import Any, Literal

from ncpipe.config.specs import Compute
from ncpipe.runs.batches import MEMORY_SHARE
from ncpipe.runs.engines.options import Ray, Settings
from ncpipe.runs.engines.parcels import pack, receive
from ncpipe.runs.engines.remote import Home, at_home, data_of, need_there, train_there
from ncpipe.runs.engines.work import Ended, Outlook, State, Work
from ncpipe.runs.engines.worker import Need
from ncpipe.system.artifacts import PREPARED
from ncpipe.system.console import say
from ncpipe.system.errors import InputError, cut

LOOPBACK = ("127.0.0.1", "localhost", "::1")
CONTEXT = 1e9  # bytes that a process takes on a GPU before it trains anything
STEP = 0.05  # of a GPU, in which its share is counted
TURNS = 2  # batches for each place, so that a long one at the end leaves few places idle
LOOK = 0.5  # seconds between two looks at what a task's process has to know
PATIENCE = 20.0  # seconds that tasks have to save their checkpoints when they are cancelled
QUIET = 60.0  # seconds without an end after which it is said what the cluster still has

Kind = Literal["need", "train"]


@dataclass(frozen=True)
class Cluster:
    """What tasks can ask for: GPUs and cores in all, cores and bytes of memory of the largest machine.

    machines: that train.
    """

    gpus: float
    cores: float
    most_cores: float
    most_memory: float
    machines: int = 1


@dataclass(frozen=True)
class Task:
    """What a task does, and for how many pieces its kind of work is to be split."""

    kind: Kind
    work: Work
    pieces: int = 1


@dataclass
class RayEngine:
    """Work as tasks of a cluster, its own one or that at an address."""

    options: Ray
    settings: Settings
    tries_again: bool = field(default=True, init=False)
    outlives: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.ray = connect(self.options)
        self.stack = contextlib.ExitStack()
        self.stack.callback(self.ray.shutdown)
        self.home = self.stack.enter_context(at_home())
        self.uses_gpu = uses_gpu(self.settings.compute, cluster_of(self.ray))
        self.tasks: dict[Any, Task] = {}  # by the reference of what they give back
        self.parcels: dict[tuple[str, ...], dict[str, bytes]] = {}  # of what has ended, until it is collected
        self.needs: dict[str, Need] = {}  # by the keys of runs
        self.data: dict[str, Any] = {}  # references of prepared data, by name and by digest

    def submit(self, works: Sequence[Work]) -> None:
        cluster = cluster_of(self.ray)
        check_cluster(self.settings.compute, cluster, self.options)
        new = sum(work.tries == 0 for work in works)
        for work in works:
            pieces = pieces_of(new, self.settings.compute, cluster) if work.tries == 0 else 1
            if work.keys[0] in self.needs:
                self._train(work, pieces)
            else:
                self._start(Task("need", work, pieces), _need, self._shares(1e-3 if self.uses_gpu else 0, 0))

    def watch(self, wait: bool = True) -> Iterator[Ended]:
        heard = time.monotonic()
        while self.tasks:
            patience = 1.0 if wait else 0.0
            ready, _ = self.ray.wait(list(self.tasks), num_returns=len(self.tasks), timeout=patience)
            for reference in ready:
                task = self.tasks.pop(reference)
                found = self._result(reference, task)
                if isinstance(found, Need):
                    self.needs |= dict.fromkeys(task.work.keys, found)
                    self._train(task.work, task.pieces)
                else:
                    yield found
            if ready:
                heard = time.monotonic()
            elif not wait:
                return
            elif time.monotonic() - heard > QUIET:
                heard = time.monotonic()
                self._say_how_it_stands()
        self.stack.close()

    def collect(self, ended: Ended) -> None:
        for key, parcel in self.parcels.pop(ended.work.keys, {}).items():
            receive(key, parcel)

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

    def _train(self, work: Work, pieces: int) -> None:
        need = self.needs[work.keys[0]]
        for part in parts_of(work, need, pieces):
            share = gpu_share(len(part.runs), need) if self.uses_gpu else 0.0
            self._start(Task("train", part), _train, self._shares(share, len(part.runs) * need.run))

    def _shares(self, gpu: float, memory: float) -> dict[str, float]:
        """What a task asks for; no more memory than some machine has, or it would wait for ever."""
        asked = {"num_cpus": self.settings.compute.threads, "num_gpus": gpu}
        if not self.uses_gpu:
            asked["memory"] = int(min(memory, cluster_of(self.ray).most_memory))
        return asked

    def _start(self, task: Task, function: Any, shares: Mapping[str, float]) -> None:
        data = {name: self._parcel(name) for name in data_of(task.work)}
        remote = self.ray.remote(function).options(max_retries=0, name=task.work.name, **shares)
        self.tasks[remote.remote(task.work, self.home, data)] = task

    def _parcel(self, name: str) -> Any:
        """The reference of a prepared data set as bytes; equal ones are there once."""
        if name not in self.data:
            parcel = pack(PREPARED / name)
            digest = hashlib.sha256(parcel).hexdigest()
            if digest not in self.data:
                self.data[digest] = self.ray.put(parcel)
            self.data[name] = self.data[digest]
        return self.data[name]

    def _result(self, reference: Any, task: Task) -> Need | Ended:
        try:
            found = self.ray.get(reference)
        except self.ray.exceptions.RayError as error:
            return Ended(task.work, state_of(error), f"{task.work.name}: {reason_of(error)}")
        if isinstance(found, Need):
            return found
        ended, parcels, machine = found
        if parcels:
            self.parcels[task.work.keys] = parcels
        if ended.state == "done" and task.kind == "train":
            left = sum(len(task.work.runs) for task in self.tasks.values())
            done, runs = self.settings.runs - left, self.settings.runs
            say(f"ray: {done} of {runs} runs, {task.work.name} by {machine}")
        return Ended(task.work, ended.state, ended.reason)

    def _say_how_it_stands(self) -> None:
        cluster = cluster_of(self.ray)
        if not (cluster.gpus if self.uses_gpu else cluster.cores):
            say("ray: no machine is left that could train; waiting for one (Ctrl-C ends the sweep)")


def connect(options: Ray) -> Any:
    """The module ray, connected to a cluster; with tokens, and without a word to its makers.

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
    """What Ray is told by its environment, unless it says otherwise already."""
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
    """What the machines have that are alive now."""
    own = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return Cluster(
        sum(resources.get("GPU", 0.0) for resources in own),
        sum(resources.get("CPU", 0.0) for resources in own),
        max((resources.get("CPU", 0.0) for resources in own), default=0.0),
        max((resources["memory"] for resources in own if resources.get("CPU")), default=0.0),
        sum(bool(resources.get("CPU")) for resources in own),
    )


def uses_gpu(compute: Compute, cluster: Cluster) -> bool:
    """Whether runs train on GPUs: `auto` is one wherever there is one."""
    return compute.device == "cuda" or (compute.device == "auto" and cluster.gpus > 0)


def check_cluster(compute: Compute, cluster: Cluster, options: Ray) -> None:
    """InputError for what no machine of the cluster could ever do: Ray would wait for one that can."""
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


def pieces_of(works: int, compute: Compute, cluster: Cluster) -> int:
    """In how many batches to train each of so many shapes, at least, so that no place is left idle."""
    places = cluster.gpus if uses_gpu(compute, cluster) else cluster.cores // compute.threads
    return math.ceil(TURNS * places / works)


def outlook(works: Sequence[Work], options: Ray, compute: Compute) -> Outlook:
    """What `submit` would do with this work, for which the cluster is asked what it has."""
    ray = connect(options)
    try:
        cluster = cluster_of(ray)
    finally:
        ray.shutdown()
    check_cluster(compute, cluster, options)
    batches = [part for work in works for part in work.in_parts(pieces_of(len(works), compute, cluster))]
    where = f"the Ray cluster at {options.address}" if options.address else f"a Ray cluster on {options.host}"
    has = [(cluster.machines, "machine"), (int(cluster.cores), "core"), (int(cluster.gpus), "GPU")]
    counted = ", ".join(f"{count} {name if count == 1 else f'{name}s'}" for count, name in has if count)
    cores = f"{compute.threads} {'core' if compute.threads == 1 else 'cores'}"
    asked = f"a share of a GPU and {cores}" if uses_gpu(compute, cluster) else f"{cores} and its memory"
    runs = sum(len(work.runs) for work in works)
    return Outlook(
        [[batch] for batch in batches],
        "batches",
        [
            f"{runs} runs for {where} ({counted}): {len(batches)} batches or more, each asks for {asked}",
            "how many runs fit into a batch, and how long it takes, a device of the cluster decides",
        ],
    )


def parts_of(work: Work, need: Need, pieces: int) -> list[Work]:
    """Batches that fit into a device of which as much is free as where it was asked, at least `pieces`."""
    free = MEMORY_SHARE * (need.free - (0 if need.device == "cpu" else CONTEXT))
    fit = max(1, int(free / need.run))
    return work.in_parts(max(pieces, math.ceil(len(work.runs) / fit)))


def gpu_share(runs: int, need: Need) -> float:
    """Of a GPU, for a batch of so many runs: that of its memory, in steps, and never nothing."""
    share = (runs * need.run / MEMORY_SHARE + CONTEXT) / need.free
    return min(1.0, math.ceil(share / STEP - 1e-9) * STEP)


def state_of(error: Exception) -> State:
    """What the end of a task means for its work, by the name of Ray's error."""
    names = {kind.__name__ for kind in type(error).__mro__}
    if "OutOfMemoryError" in names:
        return "memory"
    return "failed" if names & {"RayTaskError", "RuntimeEnvSetupError", "TaskUnschedulableError"} else "lost"


def reason_of(error: Exception) -> str:
    """The error's last word, and which machine, as far as Ray knows."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()] or [""]
    said = lines[-1] if type(error).__name__.startswith("RayTaskError") else lines[0]
    return cut(f"{type(error).__name__}: {said}")


# What runs in a task. It has a process to itself.


def _need(work: Work, home: Home, data: Mapping[str, Any]) -> Any:
    found = need_there(work, home, _loads(data))
    return found if isinstance(found, Need) else (found, {}, "")


def _train(work: Work, home: Home, data: Mapping[str, Any]) -> Any:
    """Train in a thread: cancelled, a task's main thread has an interrupt, which it only sees while it waits.

    One batch at a time: Ray starts as many tasks as there is room for.
    """
    stop = threading.Event()
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        alone = dataclasses.replace(work, workers=1)
        future = pool.submit(train_there, alone, home, _loads(data), stop)
        try:
            while not future.done():
                concurrent.futures.wait([future], LOOK)
        except BaseException:
            stop.set()
            raise
    ended, parcels = future.result()
    return ended, parcels, socket.gethostname()


def _loads(data: Mapping[str, Any]) -> dict[str, Any]:
    import ray

    return {name: functools.partial(ray.get, reference) for name, reference in data.items()}


def _end_with_parent(parent: int) -> None:
    """End this process with Ray's on this machine: what it trains on, the driver gives to another one."""
    while os.getppid() == parent:
        time.sleep(LOOK)
    os._exit(1)
