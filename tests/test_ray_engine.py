"""The engine for Ray: its worker in this process, with a stand-in for Ray, and a cluster of two machines."""

import dataclasses
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import types
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from conftest import contents, experiment_tree, fingerprints, prepare_sweep

from ncpipe.config.params import load_params
from ncpipe.config.run import Compute
from ncpipe.runs.engines import ray_cluster
from ncpipe.runs.engines.options import Ray, Settings
from ncpipe.runs.engines.ray_cluster import (
    Cluster,
    Found,
    Task,
    check_cluster,
    pack,
    store_archive,
    train_by_ray,
    train_remotely,
    unpack,
)
from ncpipe.runs.fill import fill
from ncpipe.runs.run_claims import claimed
from ncpipe.runs.store import has
from ncpipe.runs.store_layout import ALONE
from ncpipe.system.artifacts import PREPARED
from ncpipe.system.errors import InputError

# Ray's workers have niceness 15, and on a machine with other task minutes pass before one has loaded PyTorch.
NOT_NICE = {"RAY_worker_niceness": "0"}


def make_project(folder: Path, seeds: int, epochs: int = 20) -> None:
    """A sweep of two experiments with the same data, which are prepared; in the working directory."""
    folder.mkdir(exist_ok=True)
    os.chdir(folder)
    one, two = experiment_tree(epochs=epochs), experiment_tree(epochs=epochs, loss="mse")
    prepare_sweep([2], list(range(seeds)), one=one, two=two)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "workdirs"))
    (tmp_path / "workdirs").mkdir()
    make_project(tmp_path / "project", 2)
    return tmp_path / "project"


def settings(runs: int = 4) -> Settings:
    return Settings(load_params().compute, None, 60.0, True, runs)


def trained_here() -> dict[str, str]:
    """The store as it is when everything trains in this folder."""
    assert fill(fingerprints(), settings()) == {}
    found = in_store()
    shutil.rmtree(ALONE)
    return found


def in_store() -> dict[str, str]:
    return {name: digest for name, digest in contents(ALONE).items() if len(name.partition("/")[0]) == 64}


def remotely(data: dict[str, Any] | None = None, **changes: Any) -> Found:
    """All runs, as another machine trains them."""
    if data is None:
        data = {name: partial(pack, (PREPARED / name).absolute()) for name in ("one", "two")}
    keys = tuple(fingerprint.key() for fingerprint in fingerprints())
    files = {"params.yaml": Path("params.yaml").read_bytes()}
    task = Task(str(Path.cwd()), files, torch.__version__, keys, "cpu", 60.0, 1)
    return train_remotely(dataclasses.replace(task, **changes), data)


def test_an_archive_is_the_same_for_the_same_files(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "b").mkdir(parents=True)
        files = [("b/c", b"12"), ("a", b"")]
        for path, content in files if name == "one" else files[::-1]:
            (tmp_path / name / path).write_bytes(content)
        os.utime(tmp_path / name / "a", (len(name) * 1e3, 1e3 if name == "one" else 2e3))
    (tmp_path / "two" / "a").chmod(0o600)
    assert pack(tmp_path / "one") == pack(tmp_path / "two")
    unpack(pack(tmp_path / "one"), tmp_path / "three")
    assert contents(tmp_path / "three") == contents(tmp_path / "one")


@pytest.mark.parametrize("name", ["../out", "a/../../out", "link"])
def test_an_archive_writes_nothing_outside_its_folder(name: str, tmp_path: Path) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        entry = tarfile.TarInfo(name)
        if name == "link":
            entry.type, entry.linkname = tarfile.SYMTYPE, "/out"
        tar.addfile(entry, io.BytesIO())
    for archive in (out.getvalue(), b"no tar"):
        with pytest.raises(InputError, match="folder: its archive is damaged"):
            unpack(archive, tmp_path / "folder")
        (tmp_path / "folder").rmdir()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_machine_without_the_folder_gives_the_same_bytes_and_a_run_is_taken_once(project: Path) -> None:
    expected = trained_here()
    keys = {fingerprint.key() for fingerprint in fingerprints()}
    archives, reason, log = remotely()
    again = remotely()[0]  # by a second machine
    assert (set(archives), reason) == (keys, "")
    assert "train one L=2 seed=0 together with one seed 1:" in log
    assert again == archives
    assert not list(Path(tempfile.gettempdir()).rglob("run.json"))  # which trained it again
    for key, archive in [*archives.items(), *again.items()]:
        store_archive(key, archive)
    assert in_store() == expected
    key = min(keys)
    shutil.rmtree(ALONE / key)
    with pytest.raises(InputError, match="damaged"):
        store_archive(key, archives[key].replace(b'"seed": ', b'"sred": '))
    assert not has(key)
    assert Path.cwd() == project


def test_what_a_machine_cannot_do_is_said_in_a_line(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = {"one": partial(pack, (PREPARED / "one").absolute())}
    assert f"torch: version {torch.__version__} on a worker and 1.0 in" in remotely(torch="1.0")[1]
    assert "damaged" in remotely({"one": lambda: b"no tar"})[1]
    assert "2 runs of the sweep: code, data or versions differ here" in remotely(one)[1]
    monkeypatch.setattr(os, "getuid", lambda: 10**6)
    Path(tempfile.gettempdir(), "ncpipe-1000000").mkdir()
    assert "belongs to another user" in remotely()[1]


@pytest.mark.parametrize(("shares", "batches"), [(1, 2), (2, 4)])
def test_tasks_of_one_machine_share_its_memory(
    shares: int, batches: int, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red: two tasks that each take the memory that is free."""
    monkeypatch.setattr("ncpipe.runs.batches.bytes_per_run", lambda *rest: 10)
    monkeypatch.setattr("ncpipe.runs.batches.free_bytes", lambda device: 2 * 10 / 0.7 + 1)
    assert remotely(shares=shares)[2].count(" on cpu (") == batches


def test_what_no_machine_could_do_is_an_error() -> None:
    small = Cluster(0.0, 4.0, 2.0)
    check_cluster(Compute("auto", 2, "float32"), small, Ray())
    with pytest.raises(InputError, match=r"compute.threads: 3, but this machine has at most 2 cores"):
        check_cluster(Compute("cpu", 3, "float32"), small, Ray())
    with pytest.raises(InputError, match=r"compute.device: the Ray cluster at a:1 has no GPU"):
        check_cluster(Compute("cuda", 1, "float32"), small, Ray("a:1"))


class RayError(Exception):
    pass


class OutOfMemoryError(RayError):
    pass


class StandIn(types.ModuleType):
    """Ray with one core in this process. ends: errors that the next tasks that train end with, if any."""

    exceptions = types.SimpleNamespace(RayError=RayError)

    def __init__(self, ends: list[Exception | None]) -> None:
        super().__init__("ray")
        self.ends, self.asked, self.objects, self.down = ends, [], {}, False
        self.trained: list[int] = []

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"CPU": 1.0}}, {"Alive": False, "Resources": {}}]

    def put(self, value: Any) -> int:
        self.objects[len(self.objects)] = value
        return len(self.objects) - 1

    def get(self, reference: int) -> Any:
        value = self.objects[reference]
        if isinstance(value, Exception):
            raise value
        return value

    def remote(self, function: Any) -> Any:
        def options(**asked: Any) -> Any:
            self.asked.append(asked)

            def run(task: Task, data: Any) -> int:
                self.trained.append(len(task.keys))
                end = self.ends.pop(0) if self.ends else None
                return self.put(end or function(task, data))

            return types.SimpleNamespace(remote=run)

        return types.SimpleNamespace(options=options)

    def wait(self, references: list[int], num_returns: int, timeout: float) -> tuple[list[int], list[int]]:
        return references[:1], references[1:]

    def is_initialized(self) -> bool:
        return not self.down

    def shutdown(self) -> None:
        self.down = True


def test_the_engine_trains_all_but_what_fails(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Red: a failure that takes the others with it; data that are sent once for each task; a run of another
    process that is trained again."""
    expected = trained_here()
    ray = StandIn([None, OutOfMemoryError("killed")])
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(ray_cluster, "connect", lambda options: ray)
    monkeypatch.setattr(ray_cluster, "BATCHES_PER_SLOT", 1)
    failed = train_by_ray(fingerprints(), Ray(), settings())
    assert ray.trained == [2, 2]
    assert {str(error) for error in failed.values()} == {"two L=2 seed=0: OutOfMemoryError: killed"}
    with claimed(fingerprints()[2:3]) as other:
        threading.Timer(1.0, other.release).start()
        assert train_by_ray(fingerprints(), Ray(), settings()) == {}
    assert ray.trained == [2, 2, 1, 1]
    assert in_store() == expected
    assert ray.down
    assert all(asked["num_cpus"] == 1 and asked["max_retries"] == 3 for asked in ray.asked)
    assert "ray: 4 of 4 runs" in capsys.readouterr().err


def refused(address: str, token: str) -> str:
    """What is said to who comes with a token."""
    code = "from ncpipe.runs.engines import options, ray_cluster\n"
    code += f"ray_cluster.connect(options.Ray({address!r}))"
    told = {**os.environ, "RAY_AUTH_TOKEN": token}
    return subprocess.run([sys.executable, "-c", code], env=told, capture_output=True, text=True).stderr


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Two machines of one core, and a head without any, which sees within two seconds that one is gone."""
    place = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # sockets' paths have to be short
    told = ray_cluster.environment("127.0.0.1") | {"RAY_AUTH_TOKEN": "0123456789abcdef" * 2} | NOT_NICE
    for name, value in {**told, "RAY_TMPDIR": str(place), "TMPDIR": str(tmp_path / "workdirs")}.items():
        monkeypatch.setenv(name, value)
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster as Machines

    own = {"node_ip_address": "127.0.0.1", "object_store_memory": 10**8, "include_dashboard": False}
    quick = {
        "health_check_initial_delay_ms": 0,
        "health_check_period_ms": 500,
        "health_check_failure_threshold": 4,
    }
    cluster = Machines(True, head_node_args={"num_cpus": 0, "_system_config": quick, **own})
    try:
        cluster.machines = [cluster.add_node(num_cpus=1, **own) for _ in range(2)]
        yield cluster
    finally:
        cluster.shutdown()
        shutil.rmtree(place, ignore_errors=True)


def kill_a_machine(cluster: Any, found: list[psutil.Process]) -> None:
    """One that trains, without a word to what runs on it, which stands still until then."""
    while not found:
        time.sleep(0.1)
        for file in Path(tempfile.gettempdir()).glob("*/*/data/.store/claims/*-*"):
            process = psutil.Process(json.loads(file.read_text())["process"])
            process.suspend()
            if file.exists():
                found.append(process)
                break
            process.resume()  # it has ended its training meanwhile
    [machine] = [m for m in cluster.machines if m.all_processes["raylet"][0].process.pid == found[0].ppid()]
    cluster.machines.remove(machine)
    cluster.remove_node(machine, allow_graceful=False)
    found[0].resume()


@pytest.mark.ray
@pytest.mark.filterwarnings("ignore")
def test_one_of_two_machines_dies_while_it_trains(
    project: Path, cluster: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it trained the other one trains, what runs there ends; and a machine does not see the folder."""
    make_project(project, seeds=2, epochs=3000)
    expected = trained_here()
    ours = [process for process in psutil.Process().children(recursive=True) if process.name() != "python"]
    sockets = [each for process in ours for each in process.net_connections()]
    listening = {each.laddr.ip for each in sockets if each.status == psutil.CONN_LISTEN}
    assert {ip.removeprefix("::ffff:") for ip in listening} == {"127.0.0.1"}
    assert "engine ray: no cluster answers" in refused(cluster.address, "f" * 32)
    capsys.readouterr()
    victim: list[psutil.Process] = []
    killer = threading.Thread(target=kill_a_machine, args=(cluster, victim), daemon=True)
    killer.start()
    assert train_by_ray(fingerprints(), Ray(cluster.address), settings()) == {}
    killer.join()
    assert in_store() == expected
    victim[0].wait(10)  # it is none of ours, so this waits until it is gone
    assert list((project.parent / "workdirs").glob("*/*/data/prepared/one"))
