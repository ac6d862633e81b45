"""Train runs on a Ray cluster: the engine `ray`.

A task trains one batch in a folder of its machine, which need not see the driver's disk: it gets code and
data, and returns finished runs as archives. It has one GPU, or the cores of one batch. Ray repeats a task
whose machine is lost. The folder, below that for temporary files, is named by a digest of the code, so that a
later task on the same machine finds the data there, and the checkpoints of a stopped task.

Ray is imported only here, and only if a sweep uses it.
"""

import contextlib
import functools
import hashlib
import io
import json
import math
import os
import secrets
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ncpipe.config.params import PARAMS_FILE
from ncpipe.config.run import Compute, Device
from ncpipe.datasets.prepared import read_prepared
from ncpipe.runs.batches import Batch, groups, split_batch, train_batches
from ncpipe.runs.code_digests import study_contents
from ncpipe.runs.engines.options import Ray, Settings
from ncpipe.runs.fill import runs_of_keys
from ncpipe.runs.fingerprint import RunFingerprint
from ncpipe.runs.plan import BATCHES_PER_SLOT
from ncpipe.runs.run_claims import claimed
from ncpipe.runs.store import has, stored, write_beside
from ncpipe.runs.store_layout import ALONE, verify_stored
from ncpipe.system.artifacts import PREPARED, move_folder, reach_disk, remove
from ncpipe.system.console import NoProgress, recorded_lines, say
from ncpipe.system.errors import InputError, cut
from ncpipe.training.device import prepare_device

LOOPBACK = ("127.0.0.1", "localhost", "::1")
POLL = 0.5  # seconds between two checks whether a task's parent process still runs
CANCEL_SECONDS = 20.0  # that cancelled tasks have to save checkpoints
RETRIES = 3  # of a task whose machine or process is lost

Found = tuple[dict[str, bytes], str, str]  # archives of finished runs, why others are not, and what was said


@dataclass(frozen=True)
class Cluster:
    """Holds the resources of a cluster: GPUs and cores in total, and the cores of its largest machine."""

    gpus: float
    cores: float
    most_cores: float


@dataclass(frozen=True)
class Task:
    """Describes what a task trains: runs by their fingerprints, in a copy of the driver's folder.

    root: the driver's folder. files: its params.yaml and study.py with its modules, by path.
    torch: the version of PyTorch, because only equal versions give equal bytes.
    shares: how many tasks share a machine's memory.
    """

    root: str
    files: Mapping[str, bytes]
    torch: str
    keys: tuple[str, ...]
    device: Device
    checkpoint_seconds: float
    shares: int


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
                tasks = {_start(ray, batch, settings, cluster, sent): batch for batch in batches}
                failed |= _collect(ray, tasks, settings)
            if not own:
                time.sleep(POLL)
    finally:
        ray.shutdown()
    return failed


def batches_of(fingerprints: Sequence[RunFingerprint], compute: Compute, cluster: Cluster) -> list[Batch]:
    """Return the batch of each task, the one with most work first, so many that no slot is idle."""
    slots = cluster.gpus if uses_gpu(compute, cluster) else cluster.cores // compute.threads
    shapes = groups(fingerprints)
    parts = math.ceil(BATCHES_PER_SLOT * slots / max(1, len(shapes)))
    batches = []
    for group in shapes:
        size = -(-len(group) // parts)
        batches += [group[start : start + size] for start in range(0, len(group), size)]
    return sorted(batches, key=lambda batch: -len(batch) * batch[0].run.depth * batch[0].run.spec.epochs)


def _start(ray: Any, batch: Batch, settings: Settings, cluster: Cluster, sent: dict[str, Any]) -> Any:
    """Start the task of a batch and return the reference to its result; equal data are sent once."""
    names = {each.run.data.as_posix() for each in batch}
    for name in names - sent.keys():
        archive = pack(PREPARED / name)
        digest = hashlib.sha256(archive).hexdigest()
        sent[name] = sent[digest] = sent[digest] if digest in sent else ray.put(archive)
    on_gpu, threads = uses_gpu(settings.compute, cluster), settings.compute.threads
    task = Task(
        str(Path.cwd()),
        study_contents() | {PARAMS_FILE.name: PARAMS_FILE.read_bytes()},
        torch.__version__,
        tuple(each.key() for each in batch),
        settings.compute.device,
        settings.checkpoint_seconds,
        1 if on_gpu else int(cluster.most_cores // threads),
    )
    remote = ray.remote(_train_in_task).options(
        max_retries=RETRIES, name=batch[0].run.name, num_cpus=threads, num_gpus=int(on_gpu)
    )
    return remote.remote(task, {name: sent[name] for name in names})


def _collect(ray: Any, tasks: dict[Any, Batch], settings: Settings) -> dict[str, InputError]:
    """Store the runs of tasks as they end; return the errors by run."""
    failed: dict[str, InputError] = {}
    try:
        while tasks:
            ready, _ = ray.wait(list(tasks), num_returns=1, timeout=1.0)
            for reference in ready:
                batch = tasks.pop(reference)
                name = batch[0].run.name
                if reason := _take(ray, reference):
                    error = InputError(reason if reason.startswith(name) else f"{name}: {reason}")
                    failed |= {each.key(): error for each in batch if not has(each.key())}
                    if not settings.keep_going:
                        raise error
                    say(f"ncpipe: {error}")
                left = sum(len(other) for other in tasks.values())
                say(f"ray: {settings.runs - left} of {settings.runs} runs done; {name}")
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


def _take(ray: Any, reference: Any) -> str:
    """Store a task's finished runs and print what it said; return why others are not finished."""
    try:
        found: Found = ray.get(reference)
    except ray.exceptions.RayError as error:
        lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()] or [""]
        line = lines[-1] if type(error).__name__.startswith("RayTaskError") else lines[0]
        return cut(f"{type(error).__name__}: {line}")
    archives, reason, said = found
    for key, archive in archives.items():
        store_archive(key, archive)
    for line in said.splitlines():
        say(line)
    return reason


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
    cores = [resources.get("CPU", 0.0) for resources in alive]
    return Cluster(sum(resources.get("GPU", 0.0) for resources in alive), sum(cores), max(cores, default=0.0))


def uses_gpu(compute: Compute, cluster: Cluster) -> bool:
    """Return whether runs train on GPUs; `auto` does if the cluster has any."""
    return compute.device == "cuda" or (compute.device == "auto" and cluster.gpus > 0)


def check_cluster(compute: Compute, cluster: Cluster, options: Ray) -> None:
    """Raise InputError if no machine of the cluster can train; Ray would wait for one."""
    where = f"the Ray cluster at {options.address}" if options.address else "this machine"
    if compute.device == "cuda" and not cluster.gpus:
        raise InputError(f"compute.device: {where} has no GPU; use auto or cpu")
    if cluster.most_cores < compute.threads:
        raise InputError(
            f"compute.threads: {compute.threads}, but {where} has at most {cluster.most_cores:g} cores "
            "for Ray on a machine; start one with more (ray start --num-cpus)"
        )


def pack(folder: Path) -> bytes:
    """Return a tar file of a folder's files without owners and times, equal for equal files."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            entry = tarfile.TarInfo(path.relative_to(folder).as_posix())
            entry.size = path.stat().st_size
            with path.open("rb") as file:
                tar.addfile(entry, file)
    return out.getvalue()


def unpack(archive: bytes, folder: Path) -> None:
    """Write an archive's files into a new folder, and wait until they are on the disk.

    Raises InputError if the archive is damaged or has a path that leads out of the folder.
    """
    folder.mkdir(parents=True)
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:
            tar.extractall(folder, filter="data")
    except tarfile.TarError as error:
        raise InputError(f"{folder}: its archive is damaged ({error})") from None
    reach_disk([*folder.rglob("*"), folder])


def store_archive(key: str, archive: bytes) -> None:
    """Put a run that was trained elsewhere into the store, if that does not have it already.

    Raises InputError if any bit differs from what was written there.
    """

    def write(folder: Path) -> None:
        unpack(archive, folder)
        verify_stored(folder, key)

    if not has(key):
        write_beside(stored(key), write)


# The rest runs in a task, which has its own process.


def _train_in_task(task: Task, data: Mapping[str, Any]) -> Found:
    """Train the runs of a task. Ray cancels it by an interrupt, as Ctrl-C does."""
    import ray

    threading.Thread(target=_exit_with_parent, args=(os.getppid(),), daemon=True).start()
    loaders = {name: functools.partial(ray.get, reference) for name, reference in data.items()}
    return train_remotely(task, loaders)


def train_remotely(task: Task, data: Mapping[str, Callable[[], bytes]]) -> Found:
    """Train the runs of a task on this machine. data: loads the archive of each prepared data set."""
    said: list[str] = []
    archives: dict[str, bytes] = {}
    reason = ""
    with recorded_lines(said.append):
        try:
            with contextlib.chdir(_workdir(task)):
                try:
                    _prepare_workdir(task, data)
                    _train(task)
                except InputError as error:
                    reason = str(error)
                archives = {key: pack(stored(key)) for key in filter(has, task.keys)}
                for key in archives:
                    remove(stored(key))
        except InputError as error:
            reason = str(error)
    return archives, reason, "".join(said)


def _train(task: Task) -> None:
    fingerprints = [each for each in runs_of_keys(task.keys, task.device) if not has(each.key())]
    batches: list[Batch] = []
    for group in groups(fingerprints):
        place = prepare_device(group[0].compute)
        batches += split_batch(group, place, task.shares, 1)
    if batches:
        train_batches(batches, 1, task.checkpoint_seconds, NoProgress(), lambda fingerprint: 1.0)


def _workdir(task: Task) -> Path:
    """Return this user's folder for tasks with the same driver's folder and code."""
    if torch.__version__ != task.torch:
        raise InputError(
            f"torch: version {torch.__version__} on a worker and {task.torch} in the sweep; "
            "install the same version on both"
        )
    files = {path: content.hex() for path, content in task.files.items()}
    name = hashlib.sha256(json.dumps([task.root, task.torch, files]).encode())
    base = Path(tempfile.gettempdir()) / f"ncpipe-{os.getuid()}"
    base.mkdir(mode=0o700, exist_ok=True)
    if base.is_symlink() or base.stat().st_uid != os.getuid():
        raise InputError(f"{base}: belongs to another user; remove it, or set TMPDIR on this machine")
    workdir = base / name.hexdigest()[:32]
    (workdir / ALONE).mkdir(parents=True, exist_ok=True)
    return workdir


def _prepare_workdir(task: Task, data: Mapping[str, Callable[[], bytes]]) -> None:
    """Write the code and the data sets into the current folder, but for data that are there."""
    for path, content in task.files.items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        partial = Path(f"{path}.{secrets.token_hex(8)}.partial")
        partial.write_bytes(content)
        os.replace(partial, path)
    for name, load in sorted(data.items()):
        folder, archive = PREPARED / name, load()
        if not (folder.is_dir() and pack(folder) == archive):
            partial = folder.with_name(f".{folder.name}.{secrets.token_hex(8)}")
            try:
                unpack(archive, partial)
                with contextlib.suppress(OSError):  # another worker was first; other errors show below
                    move_folder(partial, folder)
            finally:
                remove(partial)
            read_prepared(folder)


def _exit_with_parent(parent: int) -> None:
    """End this process when Ray's process on this machine ends, since the driver then retries the task."""
    while os.getppid() == parent:
        time.sleep(POLL)
    os._exit(1)
