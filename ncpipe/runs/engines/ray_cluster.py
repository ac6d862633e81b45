"""Train runs on a Ray cluster: the engine `ray`.

A task trains one batch in a folder of its machine and returns the finished runs as archives; it has one GPU,
or the cores of one batch. Ray repeats a task whose machine is lost.

Ray is imported only here, and only if a sweep uses it.
"""

import contextlib
import functools
import hashlib
import math
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ncpipe.config.params import PARAMS_FILE
from ncpipe.config.run import Compute, Device
from ncpipe.runs.batches import groups
from ncpipe.runs.code_digests import study_contents
from ncpipe.runs.engines.archives import Origin, pack, store_archive, train_remotely
from ncpipe.runs.engines.job_log import JOB_LOGS, describe_log
from ncpipe.runs.engines.options import Ray, Settings
from ncpipe.runs.fingerprint import RunFingerprint
from ncpipe.runs.plan import BATCHES_PER_SLOT
from ncpipe.runs.run_claims import claimed
from ncpipe.runs.store import has
from ncpipe.system.artifacts import PREPARED
from ncpipe.system.console import plural, say
from ncpipe.system.errors import InputError, cut

LOOPBACK = ("127.0.0.1", "localhost", "::1")
POLL = 0.5  # seconds between two checks whether a task's parent process still runs
CANCEL_SECONDS = 20.0  # that cancelled tasks have to save checkpoints
QUIET_SECONDS = 60.0  # without a result after which the cluster's machines are checked
RETRIES = 3  # of a task whose machine or process is lost


@dataclass(frozen=True)
class Cluster:
    """Holds the resources of a cluster: GPUs and cores in total, and the cores of its largest machine."""

    gpus: float
    cores: float
    most_cores: float
    machines: int = 1


def train_by_ray(
    fingerprints: Sequence[RunFingerprint], options: Ray, settings: Settings
) -> dict[str, InputError]:
    """Train runs on a new cluster of this machine, or on the one at an address; return the errors by run.

    Runs that another process trains are waited for. Unless the settings say to keep going, the first error is
    raised. On errors and Ctrl-C the tasks are cancelled, with their checkpoints saved where they ran.
    """
    ray = connect(options)
    failed: dict[str, InputError] = {}
    sent: dict[str, Any] = {}  # references to data, by name and by digest
    try:
        check_cluster(settings.compute, cluster := cluster_of(ray), options)
        while left := [each for each in fingerprints if each.key() not in failed and not has(each.key())]:
            with claimed(left) as claim:
                own = [each for each in left if each.key() in claim.claim.keys]
                batches = batches_of(own, settings.compute, cluster)
                put = functools.partial(_put, ray, sent)
                tasks = {_start(ray, batch, settings, cluster, put): batch for batch in batches}
                failed |= _collect(ray, tasks, settings)
            if not own:
                time.sleep(POLL)
    finally:
        ray.shutdown()
    return failed


def batches_of(
    fingerprints: Sequence[RunFingerprint], compute: Compute, cluster: Cluster
) -> list[list[RunFingerprint]]:
    """Return the batch of each task, the one with most work first, so many that no slot is idle."""
    slots = cluster.gpus if uses_gpu(compute, cluster) else cluster.cores // compute.threads
    shapes = groups(fingerprints)
    parts = math.ceil(BATCHES_PER_SLOT * slots / max(1, len(shapes)))
    batches = []
    for group in shapes:
        size = -(-len(group) // parts)
        batches += [group[start : start + size] for start in range(0, len(group), size)]
    return sorted(batches, key=lambda batch: -len(batch) * batch[0].run.depth * batch[0].run.spec.epochs)


def _put(ray: Any, sent: dict[str, Any], name: str) -> Any:
    """Return a reference to the archive of a prepared data set; equal archives are sent once."""
    if name not in sent:
        archive = pack(PREPARED / name)
        digest = hashlib.sha256(archive).hexdigest()
        if digest not in sent:
            sent[digest] = ray.put(archive)
        sent[name] = sent[digest]
    return sent[name]


def _start(
    ray: Any,
    batch: Sequence[RunFingerprint],
    settings: Settings,
    cluster: Cluster,
    put: Callable[[str], Any],
) -> Any:
    """Start the task of a batch and return the reference to its result."""
    on_gpu = uses_gpu(settings.compute, cluster)
    shares = 1 if on_gpu else int(cluster.most_cores // settings.compute.threads)
    resources = {"num_cpus": settings.compute.threads, "num_gpus": int(on_gpu)}
    files = study_contents() | {PARAMS_FILE.name: PARAMS_FILE.read_bytes()}
    data = {name: put(name) for name in {each.run.data.as_posix() for each in batch}}
    remote = ray.remote(_train).options(max_retries=RETRIES, name=batch[0].run.name, **resources)
    return remote.remote(
        Origin.here(files), tuple(each.key() for each in batch), settings.compute.device,
        settings.checkpoint_seconds, shares, data,
    )  # fmt: skip


def _collect(ray: Any, tasks: dict[Any, list[RunFingerprint]], settings: Settings) -> dict[str, InputError]:
    """Store the runs of tasks as they end; return the errors by run."""
    failed: dict[str, InputError] = {}
    heard = time.monotonic()
    try:
        while tasks:
            ready, _ = ray.wait(list(tasks), num_returns=1, timeout=1.0)
            for reference in ready:
                batch, heard = tasks.pop(reference), time.monotonic()
                if reason := _take(ray, reference, batch):
                    name = batch[0].run.name
                    error = InputError(reason if reason.startswith(name) else f"{name}: {reason}")
                    failed |= {each.key(): error for each in batch if not has(each.key())}
                    if not settings.keep_going:
                        raise error
                    say(f"ncpipe: {error}")
                left = sum(len(other) for other in tasks.values())
                say(f"ray: {settings.runs - left} of {settings.runs} runs done; {batch[0].run.name}")
            if time.monotonic() - heard > QUIET_SECONDS:
                heard = time.monotonic()
                if not cluster_of(ray).machines:
                    say("ray: no machine of the cluster is alive; waiting for one (Ctrl-C ends the sweep)")
    except BaseException:
        if tasks and ray.is_initialized():
            say("ray: asking tasks to save their checkpoints")
            for force in (False, True):
                for reference in tasks:
                    ray.cancel(reference, force=force)
                timeout = 1.0 if force else CANCEL_SECONDS
                ray.wait(list(tasks), num_returns=len(tasks), timeout=timeout)
        raise
    return failed


def _take(ray: Any, reference: Any, batch: Sequence[RunFingerprint]) -> str:
    """Put a task's finished runs into the store and keep its log; return why others are not finished."""
    try:
        archives, reason, log, machine = ray.get(reference)
    except ray.exceptions.RayError as error:
        return reason_of(error)
    for key, archive in archives.items():
        store_archive(key, archive)
    file = JOB_LOGS / f"ray-{batch[0].key()[:16]}-{time.time():.0f}.log"
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"on {machine}\n{log}", encoding="utf-8")
    describe_log(file, f"ray {machine}", [each.key() for each in batch])
    return str(reason)


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


def dry_run(fingerprints: Sequence[RunFingerprint], options: Ray, settings: Settings) -> list[str]:
    """Return what `train_by_ray` would do; connects to the cluster to see its resources."""
    ray, compute = connect(options), settings.compute
    try:
        cluster = cluster_of(ray)
    finally:
        ray.shutdown()
    check_cluster(compute, cluster, options)
    where = f"the Ray cluster at {options.address}" if options.address else f"a Ray cluster on {options.host}"
    counts = [(cluster.machines, "machine"), (int(cluster.cores), "core"), (int(cluster.gpus), "GPU")]
    resources = ", ".join(plural(count, name) for count, name in counts if count)
    cores = plural(compute.threads, "core")
    requested = f"1 GPU and {cores}" if uses_gpu(compute, cluster) else cores
    tasks = plural(len(batches_of(fingerprints, compute, cluster)), "task")
    return [
        f"{where} ({resources}): {plural(len(fingerprints), 'run')} in {tasks}, each with {requested}",
        "memory and time depend on the machine's device",
    ]


def reason_of(error: Exception) -> str:
    """Return the error in one line."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()] or [""]
    line = lines[-1] if type(error).__name__.startswith("RayTaskError") else lines[0]
    return cut(f"{type(error).__name__}: {line}")


# The rest runs in a task, which has its own process.


def _train(
    origin: Origin,
    keys: Sequence[str],
    device: Device,
    checkpoint_seconds: float,
    shares: int,
    data: Mapping[str, Any],
) -> tuple[dict[str, bytes], str, str, str]:
    """Train runs; return archives of those that finished, why others did not, the log and the machine.

    Ray cancels a task by an interrupt, as Ctrl-C does.
    """
    import ray

    threading.Thread(target=_exit_with_parent, args=(os.getppid(),), daemon=True).start()
    loaders = {name: functools.partial(ray.get, reference) for name, reference in data.items()}
    archives, reason, log = train_remotely(origin, keys, device, checkpoint_seconds, shares, loaders)
    return archives, reason, log, socket.gethostname()


def _exit_with_parent(parent: int) -> None:
    """End this process when Ray's process on this machine ends, since the driver then retries the task."""
    while os.getppid() == parent:
        time.sleep(POLL)
    os._exit(1)
