"""dvc.lock through kills: what DVC knows of finished runs is never half written, and never lost for long.

Each test's docstring ends with the fault that would turn it red.
"""

import contextlib
import errno
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from signal import SIGKILL

import pytest
from dvc.repo import Repo

from ncpipe import __version__
from ncpipe.artifacts import AHEAD
from ncpipe.errors import InputError
from ncpipe.scheduling import registry
from ncpipe.scheduling.registry import LOCK, bring_lock_back, dvc, lock_kept

TWO_STAGES = """
stages:
  a:
    matrix:
      item: [1, 2]
    cmd: echo ${item.item} > out${item.item}
    deps: [source]
    outs: ["out${item.item}"]
"""


def run_and_die(code: str) -> None:
    """A Python program that kills itself."""
    done = subprocess.run([sys.executable, "-c", f"import os\n{code}"], check=False)
    assert done.returncode == -SIGKILL


def interrupted() -> None:
    with lock_kept():
        LOCK.write_text("half")
        raise KeyboardInterrupt


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    AHEAD.mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize("before", [None, "schema: '2.0'\n"])
def test_a_killed_registration_is_taken_back_by_the_next(before: str | None, folder: Path) -> None:
    """Red: the former dvc.lock in memory only; one that comes back twice, or over a newer one."""
    if before is not None:
        LOCK.write_text(before)
    run_and_die(
        "from ncpipe.scheduling.registry import LOCK, lock_kept\n"
        "with lock_kept():\n"
        "    LOCK.write_text('half')\n"
        "    os.kill(os.getpid(), 9)"
    )
    assert LOCK.read_text() == "half"
    assert bring_lock_back()
    assert (LOCK.read_text() if LOCK.exists() else None) == before
    LOCK.write_text("newer")
    assert not bring_lock_back()
    with lock_kept():
        LOCK.write_text("newest")
    assert not bring_lock_back()
    assert LOCK.read_text() == "newest"
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert LOCK.read_text() == "newest"


def test_data_may_lie_on_another_file_system(folder: Path) -> None:
    """Red: a rename from there to here, "Invalid cross-device link"."""
    other = Path("/dev/shm")
    if not other.is_dir() or other.stat().st_dev == folder.stat().st_dev:
        pytest.skip("no other file system here")
    with tempfile.TemporaryDirectory(dir=other) as place:
        shutil.rmtree("data")
        Path("data").symlink_to(place)
        AHEAD.mkdir()
        LOCK.write_text("former")
        run_and_die(
            "from ncpipe.scheduling.registry import LOCK, lock_kept\n"
            "with lock_kept():\n"
            "    LOCK.write_text('half')\n"
            "    os.kill(os.getpid(), 9)"
        )
        assert bring_lock_back()
        assert LOCK.read_text() == "former"
        assert not bring_lock_back()


def test_a_full_disk_is_what_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the next call brings dvc.lock back. Red: the error of bringing it back, in place of the first."""
    LOCK.write_text("former")

    def fill() -> None:
        with lock_kept():
            LOCK.write_text("half")
            patch.setattr(registry, "publish_file", full)
            raise OSError(errno.ENOSPC, "No space left on device", "dvc.lock")

    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "the former")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left") as caught:
        fill()
    assert caught.value.filename == "dvc.lock"
    assert bring_lock_back()
    assert LOCK.read_text() == "former"


def test_a_kill_while_the_lock_is_written_leaves_the_former(folder: Path) -> None:
    """Red: a file that is emptied before it is written, as DVC does it."""
    LOCK.write_text("former")
    run_and_die(
        "from ncpipe.scheduling.dvc_program import dump_whole\n"
        "def dumper(data, file):\n"
        "    file.write('half')\n"
        "    file.flush()\n"
        "    os.kill(os.getpid(), 9)\n"
        f"dump_whole({str(LOCK)!r}, {{}}, dumper)"
    )
    assert LOCK.read_text() == "former"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A DVC project of two stages that have run, each in a write of dvc.lock. Not to be changed."""
    folder = tmp_path_factory.mktemp("project")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("DVC_SITE_CACHE_DIR", str(folder.parent / "site"))
        patch.setenv("CI", "1")
        dvc("init", "--quiet", "--no-scm")
        Path("dvc.yaml").write_text(TWO_STAGES)
        Path("source").write_text("source")
        dvc("repro", "--quiet", "a@1")
        with LOCK.open() as opened:
            before = opened.read()
            dvc("repro", "--quiet")
            opened.seek(0)
            assert opened.read() == before  # who has it open still reads the former one
        assert LOCK.read_text() != before
    return folder


def test_a_quiet_dvc_says_why_it_fails(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Red: --quiet as DVC has it, which hides that another DVC is at work."""
    Repo.init(no_scm=True)
    Path("dvc.yaml").write_text("stages: {one: {cmd: echo said by the stage}}\n")
    dvc("repro", "--quiet")
    quiet = capfd.readouterr()
    assert "said by the stage" in quiet.out
    assert "Running" not in quiet.out + quiet.err
    with Repo() as repo, repo.lock, pytest.raises(InputError, match="dvc repro --quiet --force failed"):
        dvc("repro", "--quiet", "--force")
    assert "lock" in capfd.readouterr().err


def test_stages_call_the_ncpipe_of_this_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red: `.venv/bin/ncpipe sweep` in a shell without the environment, or with another one, on its path."""
    other = folder / "other"
    other.mkdir()
    (other / "ncpipe").write_text("#!/bin/sh\nexit 1\n")
    (other / "ncpipe").chmod(0o755)
    monkeypatch.setenv("PATH", f"{other}:/usr/bin:/bin")
    Repo.init(no_scm=True)
    Path("dvc.yaml").write_text("stages: {one: {cmd: ncpipe --version > version, outs: [version]}}\n")
    dvc("repro", "--quiet")
    assert Path("version").read_text() == f"{__version__}\n"


def test_parameters_are_parsed_once_and_given_anew(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red: a parse for every read; the same object twice, which dvc.lock would have as an alias."""
    from dvc.dependency import param
    from dvc.fs import LocalFileSystem

    from ncpipe.scheduling.dvc_params import params_parsed_once

    parsed: list[str] = []
    load = param.load_path
    monkeypatch.setattr(param, "load_path", lambda path, fs: parsed.append(path) or load(path, fs))
    file, system = Path("params.yaml"), LocalFileSystem()
    file.write_text("a: {b: [1, 2], c: 3}\n")

    def read() -> object:
        return param.read_param_file(system, str(file), ["a.b", "a.c", "d"], flatten=True)

    expected = read()
    with params_parsed_once():
        first, second = read(), read()
        assert first == second == expected == {"a.b": [1, 2], "a.c": 3}
        first["a.b"].append(4)
        assert read() == expected
        assert param.read_param_file(system, str(file)) == {"a": {"b": [1, 2], "c": 3}}
        assert len(parsed) == 2
        file.write_text("a: {b: [5], c: 6}\n")
        assert read() == {"a.b": [5], "a.c": 6}
        assert len(parsed) == 3
        file.write_text("a: [")
        with pytest.raises(Exception, match="unable to read"):
            read()
        file.unlink()
        with pytest.raises(FileNotFoundError):
            read()
    file.write_text("a: {b: [1, 2], c: 3}\n")
    assert read() == expected
    assert len(parsed) == 5


def test_what_git_tracks_is_read_once_and_given_anew(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As git itself says it. Red: an index for every question; what was tracked when it was first asked."""
    from dulwich.repo import Repo as Dulwich
    from scmrepo.git import Git

    from ncpipe.scheduling.dvc_git import git_index_read_once

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout

    git("init")
    names = ["b/c", "b/d", "b.c", "e/é", "a", "b", "e", "none"]
    for name in names[:4]:
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).touch()
    read: list[str] = []
    opened = Dulwich.open_index
    monkeypatch.setattr(Dulwich, "open_index", lambda self: read.append("") or opened(self))
    repo = Git(str(folder))
    with git_index_read_once():
        for change in (["add", "b/c"], ["add", "b.c", "e"], ["rm", "--cached", "b/c"]):
            git(*change)
            read.clear()
            for name in names:
                assert repo.is_tracked(str(folder / name)) == bool(git("ls-files", "--", name)), name
            assert len(read) == 1


@contextlib.contextmanager
def in_copy(project: Path, folder: Path, items: str) -> Iterator[None]:
    """Stand in a copy of the project, whose first stage is `train` with these items."""
    shutil.copytree(project, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("DVC_SITE_CACHE_DIR", str(project.parent / "site"))
        Path("dvc.yaml").write_text(TWO_STAGES.replace("[1, 2]", items).replace("  a:", "  train:"))
        yield


def test_some_runs_are_registered_while_others_are_missing(project: Path, tmp_path: Path) -> None:
    """In one write of dvc.lock, and DVC then finds them up to date; what lies in other places is not taken.

    Red: a commit of all, which fails for want of outputs or certifies a stale one.
    """
    with in_copy(project, tmp_path / "project", "[3, 4, 5]"):
        for item in (3, 4):
            Path(f"out{item}").write_text(f"{item}\n")
        AHEAD.mkdir(parents=True, exist_ok=True)
        registry.register(["train@3"])
        registry.register([])
        assert [line for line in LOCK.read_text().splitlines() if "train@" in line] == ["  train@3:"]
        assert registry.stale_stages() == {"train@4", "train@5"}
        with pytest.raises(InputError, match="dvc commit-runs failed; see above"):
            registry.register(["train@3", "train@5"])


def test_some_stages_run_in_the_order_of_all(folder: Path) -> None:
    """Red: DVC's own, the order of a set, which is another one in each process."""
    import networkx

    from ncpipe.scheduling.dvc_program import plan_in_order

    graph = networkx.DiGraph([(f"fetch@{index}", "code") for index in range(100, 0, -1)])
    some = [f"fetch@{index}" for index in range(30, 0, -1)]
    assert plan_in_order(graph, some) == ["code", *some]


def test_parts_stand_in_the_lock_as_if_registered_at_once(project: Path, tmp_path: Path) -> None:
    """To the byte as `dvc commit` of all, behind what was there; also where the order of names is another.

    Red: entries in the order in which runs were finished; those of an earlier sweep put among the new ones.
    """
    with in_copy(project, tmp_path / "project", "[5]"):
        Path("out5").write_text("5\n")
        registry.register()
        assert not registry.EARLIER.exists()
        before = LOCK.read_bytes()
        Path("dvc.yaml").write_text(TWO_STAGES.replace("[1, 2]", "[7, 5, 3, 6]").replace("  a:", "  train:"))
        for item in (3, 6, 7):
            Path(f"out{item}").write_text(f"{item}\n")
        registry.register()
        at_once = LOCK.read_bytes()
        LOCK.write_bytes(before)
        AHEAD.mkdir(parents=True, exist_ok=True)
        for stages in (["train@6"], ["train@3"], None):
            registry.register(stages)
        names = [line for line in LOCK.read_text().splitlines() if "train@" in line]
        assert names == [f"  train@{item}:" for item in (5, 7, 3, 6)]
        assert LOCK.read_bytes() == at_once
        registry.end_parts()
        assert registry.stale_stages() == set()


def test_an_empty_entry_of_the_run_cache_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red: DVC's own way of reading one, which ends in a TypeError for good."""
    from dvc.stage.cache import StageCache

    from ncpipe.scheduling import dvc_program

    key = "ab" * 32
    monkeypatch.setattr(dvc_program.run_cache, "_get_stage_hash", lambda stage: key)
    cache = StageCache.__new__(StageCache)
    cache.cache_dir = str(tmp_path)
    folder = tmp_path / "ab" / key
    folder.mkdir(parents=True)
    assert dvc_program.load_what_is_there(cache, None) is None
    assert not folder.exists()
    assert dvc_program.load_what_is_there(cache, None) is None  # nor what was never there
