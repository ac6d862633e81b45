"""What a stopped DVC has left torn, and damage in its cache: mended, with nothing run twice.

DVC itself is the reference: what it refuses is mended, what it takes is left alone. Each test's docstring
ends with the fault that would turn it red.
"""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from dvc.exceptions import DvcException
from dvc.repo import Repo
from pipeline import Clone, Copy

from ncpipe.commands.repair import repair
from ncpipe.runs.dvc import LOCK
from ncpipe.runs.dvc_repair import remove_damaged, repair_run_cache
from ncpipe.system.errors import InputError

STAGES = """
stages:
  a:
    matrix:
      item: [1, 2]
    cmd: mkdir -p data/a && date +%N > data/a/out${item.item}
    deps: [source]
    outs: ["data/a/out${item.item}"]
"""


def dvc(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "dvc", *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise DvcException(done.stderr)
    return done.stdout


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project of two stages that have run; dvc.lock is committed after the first. Not to be changed."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("DVC_SITE_CACHE_DIR", str(folder.parent / "site"))
        patch.setenv("CI", "1")
        Path("source").write_text("source")
        Path("dvc.yaml").write_text(STAGES)
        subprocess.run(["git", "init", "--quiet"], check=True)
        dvc("init", "--quiet")
        dvc("repro", "--quiet", "a@1")
        subprocess.run(["git", "add", "--all"], check=True)
        author = ["-c", "user.name=A test", "-c", "user.email=test@example.org"]
        subprocess.run(["git", *author, "commit", "--quiet", "--message", "A state"], check=True)
        dvc("repro", "--quiet")
    return folder


@pytest.fixture
def project(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it to work in."""
    shutil.copytree(made, tmp_path / "project", symlinks=True)
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setenv("DVC_SITE_CACHE_DIR", str(tmp_path / "site"))
    monkeypatch.setenv("CI", "1")
    return tmp_path / "project"


def object_of(file: Path) -> Path:
    name = hashlib.md5(file.read_bytes(), usedforsecurity=False).hexdigest()
    return Path(".dvc/cache/files/md5", name[:2], name[2:])


def flip(path: Path, bit: int = 0) -> None:
    """One bit of a file as DVC leaves it in its cache, without the right to write."""
    mode = path.stat().st_mode
    path.chmod(0o644)
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    path.chmod(mode)


# The locks and the run cache


@pytest.mark.parametrize("state", ["torn", "conflict staged", "merge", "both added", "none committed"])
def test_the_advice_for_a_lock_that_dvc_refuses_helps(state: str, project: Path) -> None:
    """Typed as it is printed. Red: "found no damage", at which DVC stops all the same; a path that git
    does not check out, since it is unmerged."""

    def git(*words: str, fails: bool = False) -> None:
        who = ["-c", "user.name=A test", "-c", "user.email=test@example.org", "-c", "core.editor=true"]
        done = subprocess.run(["git", *who, *words], capture_output=True, text=True)
        assert bool(done.returncode) == fails, done.stderr

    text = LOCK.read_text()
    if state in ("both added", "none committed"):
        git("rm", "--quiet", "--cached", "dvc.lock")
        git("commit", "--quiet", "--message", "none")
    if state in ("torn", "none committed"):
        LOCK.write_text(f"{text}  deps: [")
    elif state == "conflict staged":
        LOCK.write_text(f"<<<<<<< HEAD\n{text}=======\n>>>>>>> theirs\n")
        git("add", "dvc.lock")
    else:
        for name in ("theirs", "ours"):
            git("checkout", "--quiet", "-b", name, *(["theirs~1"] if name == "ours" else []))
            LOCK.write_text(f"{text}# {name}\n")
            git("add", "--all")
            git("commit", "--quiet", "--message", name)
        git("merge", "theirs", fails=True)  # whose index a rebase and a cherry-pick have too
    with pytest.raises(InputError, match=r"^dvc\.lock: damaged; run ") as refused:
        repair()
    first, second = str(refused.value).partition("; run ")[2].partition(" if no whole")[0].split(", or ")
    done = subprocess.run(first.split(), capture_output=True)
    assert bool(done.returncode) == (state == "none committed")
    if done.returncode:
        subprocess.run(second.split(), check=True)
    repair()
    with Repo() as repo:
        repo.status()


def test_a_lock_of_a_large_sweep_is_whole(project: Path) -> None:
    """Red: the limit of values in params.yaml, for a file that DVC writes."""
    LOCK.write_text("stages:\n" + "".join(f"  s{number}: 1\n" for number in range(100_001)))
    repair()


def test_below_the_project_no_copies_would_be_found(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red: the damaged file gone from the cache alone, and its copy taken for the result."""
    damaged = object_of(Path("data/a/out1"))
    flip(damaged)
    monkeypatch.chdir("data")
    with pytest.raises(InputError, match=r"^repair: run it in the folder of dvc\.yaml"):
        repair()
    assert (project / damaged).exists()


def test_nothing_is_touched_while_dvc_is_at_work(project: Path) -> None:
    """Red: a file removed that another DVC is writing."""
    damaged = object_of(Path("data/a/out1"))
    flip(damaged)
    with Repo() as repo, repo.lock, pytest.raises(InputError, match="another DVC is running; wait until"):
        repair()
    assert damaged.exists()


@pytest.mark.parametrize("content", [None, b""])
def test_an_empty_entry_of_the_run_cache_is_removed(content: bytes | None, project: Path) -> None:
    """Red: a folder at which DVC stops with a TypeError for good; entries that are whole, removed too."""
    [folder, other] = sorted(Path(".dvc/cache/runs").glob("??/*"))
    [entry] = folder.iterdir()
    entry.unlink()
    if content is not None:
        entry.write_bytes(content)
    lines = repair_run_cache(Path(".dvc"))
    assert [line.partition(": ")[2] for line in lines] == ["empty; removed"] * len(lines)
    assert not folder.exists()
    assert len(list(other.iterdir())) == 1
    assert repair_run_cache(Path(".dvc")) == []


# Damage in the cache


def test_damage_in_the_cache_is_removed_with_its_copies(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """DVC restores the damaged file without a word, and runs the stage again only when its copies are gone.

    Red: the object alone removed, whose copy DVC takes for the result."""
    result, other = Path("data/a/out1"), Path("data/a/out2")
    stored, kept = object_of(result), other.read_text()
    flip(stored)
    result.unlink()
    dvc("repro", "--quiet")
    assert result.read_bytes() == stored.read_bytes()
    assert hashlib.md5(result.read_bytes(), usedforsecurity=False).hexdigest()[2:] != stored.name
    repair()
    assert capsys.readouterr().err.splitlines() == [
        "repair: data/a/out1: copy of a damaged file in DVC's cache; removed",
        f"repair: {stored}: damaged; removed",
        "repair: done; run dvc repro (or ncpipe sweep)",
    ]
    assert "Running stage 'a@1'" in dvc("repro")
    assert object_of(result).read_bytes() == result.read_bytes()
    assert other.read_text() == kept


def test_a_damaged_result_goes_with_its_copy_in_the_cache(project: Path) -> None:
    """And names it. Red: another file of the same size, which is whole, removed; only the result removed."""
    result, other = Path("data/a/out1"), Path("data/a/out2")
    stored = object_of(result)
    assert remove_damaged(result) == ""  # its copy is whole
    assert stored.exists()
    shutil.copy(stored, result)
    flip(stored)
    assert remove_damaged(result) == f", with its damaged copy in DVC's cache ({stored})"
    assert not stored.exists()
    assert object_of(other).exists()


def test_only_results_are_removed_by_name(project: Path) -> None:
    """Red: a slip of the pen that deletes all results, or what no stage makes."""
    Path("data/.store").mkdir()
    Path("../elsewhere").touch()
    for name in ("data", "data/a", "data/a/..", "source", "data/.store", "data/none", "../elsewhere"):
        with pytest.raises(InputError, match="not a file or folder of a stage's results"):
            repair([Path(name)])
    kept = Path("data/a/out2").replace("../elsewhere")
    Path("data/a/out2").symlink_to(kept.resolve())  # as DVC does if cache.type is symlink
    for place in ("data/a/out1", "data/a/out2"):
        repair([Path(place)])
        assert not Path(place).is_symlink()
        assert not Path(place).exists()
    assert kept.exists()


# In a sweep, with real DVC

MODEL, TABLE = "data/runs/alpha/L2/s0/model.safetensors", "data/results/slopes.csv"


@pytest.mark.pipeline
def test_damage_of_a_sweep_is_mended(swept: Clone, own_copy: Copy) -> None:
    """A model by `ncpipe sweep` alone, a table by `ncpipe repair`; then all is to the bit what it was.

    Red: a damaged file in DVC's cache that is restored again and again, and a sweep that is "up to date"."""
    clone = own_copy(swept)
    whole = clone.digests("data/runs", "data/results")
    for place, bit in ((MODEL, -100), (TABLE, 100)):
        flip(clone.folder / object_of(clone.folder / place), bit)
        (clone.folder / place).unlink()
    clone.repro()
    now = clone.digests("data/runs", "data/results")
    assert {place for place in whole if now[place] != whole[place]} == {MODEL, TABLE}  # not a word
    output = clone.run("ncpipe", "sweep")
    lines = [line for line in output.err.splitlines() if "was removed" in line]
    assert all("model.safetensors: damaged" in line for line in lines)  # of its place, and of the store
    assert sum("its damaged copy in DVC's cache (.dvc/cache/files/md5/" in line for line in lines) == 1
    assert output.trained == []  # the store has it whole
    assert clone.digests(MODEL)[MODEL] == whole[MODEL]
    said = clone.run("ncpipe", "repair").err
    assert f"{TABLE}: copy of a damaged file in DVC's cache; removed" in said
    clone.repro()
    assert clone.digests("data/runs", "data/results") == whole
