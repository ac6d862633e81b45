"""Every write fails once, or the process is killed at it; then the same command is called again.

It ends with the bytes of one that nothing happened to, and what was finished by then is not trained again.
The short form goes through some of the points of `ncpipe train`, the long one (-m attack) through those of
`ncpipe train`, `ncpipe sweep` and `dvc repro`; NCPIPE_ATTACK_STRIDE=n takes every n-th.
"""

import itertools
import os
import re
import shutil
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from conftest import contents, experiment_tree, write_params
from pipeline import ROOT, Clone, Output, trained_in
from small_sweep import OUTPUTS, TORN, finished, mend, prepared, put_back, spread

from ncpipe.commands.fetch import fetch
from ncpipe.commands.train import train
from ncpipe.runs.store_layout import ALONE
from ncpipe.system.artifacts import RUNS
from ncpipe.system.errors import InputError

sys.path.insert(0, str(Path(__file__).parent / "faulty_disk"))
from faults import KINDS, arm

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks, and reads /proc")
STRIDE = int(os.environ.get("NCPIPE_ATTACK_STRIDE", "1"))
SHORT = 29  # of the points of `ncpipe train`, every so many in the ordinary suite


def train_in_a_fork(folder: Path, log: Path, at: int = 0, kind: str = "kill") -> tuple[int, str]:
    """Both runs of the sweep by `ncpipe train`: how the process ended (signal or code), and what it said."""
    stderr = folder.parent / "said"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads, which all wait
        process = os.fork()
    if not process:
        code = 2
        try:
            with stderr.open("w") as file:
                os.dup2(file.fileno(), 2)
            sys.stderr = os.fdopen(2, "w", closefd=False)
            os.chdir(folder)
            arm(str(folder), str(log), at, kind)
            for seed in (0, 1):
                train("one", 2, seed, workers=1, checkpoint_seconds=0.0)
            code = 0
        except (OSError, InputError):
            code = 1
        finally:
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(process, 0)
    return os.waitstatus_to_exitcode(status), stderr.read_text()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, int]:
    """A folder before training, one after it, and at how many points training changes it."""
    before, after = (tmp_path_factory.mktemp("whole") / name for name in ("before", "after"))
    before.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(before)
        write_params([2], [0, 1], one=experiment_tree(epochs=2, log_every=1))
        fetch("one")
    shutil.copytree(before, after)
    log = after.parent / "log"
    code, output = train_in_a_fork(after, log)
    assert code == 0, output
    return before, after, len(log.read_text().splitlines())


def attack_train(whole: tuple[Path, Path, int], cases: Iterable[tuple[int, str]], work: Path) -> Counter[str]:
    """What was finished when `ncpipe train` was hit, by the kind of the fault."""
    before, after, _ = whole
    counts: Counter[str] = Counter()
    for at, kind in cases:
        shutil.rmtree(work)
        folder = work / "folder"
        shutil.copytree(before, folder)
        code, output = train_in_a_fork(folder, work / "log", at, kind)
        assert code in ((-9,) if kind in ("kill", "tear") else (0, 1)), (at, kind, output)
        done = finished(folder, output)
        again, output = train_in_a_fork(folder, work / "log2")
        assert again == 0, (at, kind, output)
        assert not done & set(trained_in(output)), (at, kind, "trained twice")
        assert contents(folder / RUNS) == contents(after / RUNS), (at, kind)
        assert not list((folder / ALONE).glob("*.checkpoint*")), (at, kind)
        counts[f"{kind}: {len(done)} of 2 finished"] += 1
    return counts


def test_some_faults_of_train(whole: tuple[Path, Path, int], tmp_path: Path) -> None:
    """Red: a run written in its own place; a store that gives a run away before DVC has it; a checkpoint that
    is not removed."""
    points = range(1, whole[2] + 1, SHORT)
    attack_train(whole, zip(points, itertools.cycle(KINDS)), tmp_path)


@pytest.mark.attack
def test_every_fault_of_train(whole: tuple[Path, Path, int], tmp_path: Path) -> None:
    """Every kind at every point."""
    start = time.monotonic()
    cases = list(itertools.product(range(1, whole[2] + 1, STRIDE), KINDS))
    counts = attack_train(whole, cases, tmp_path)
    _print(f"ncpipe train: {whole[2]} points, {len(cases)} faults, 0 lost, 0 trained twice", counts, start)


Place = tuple[Clone, Clone]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A clone whose data are prepared, to be attacked where it stands, and what it is put back to."""
    clone = prepared(tmp_path_factory.mktemp("work"))
    return clone, clone.copy(tmp_path_factory.mktemp("fresh") / "clone")


def faulty(clone: Clone, command: tuple[str, ...], at: int, kind: str, log: Path) -> Output:
    fault = os.pathsep.join([str(clone.folder), str(log), str(at), kind])
    path = str(Path(__file__).parent / "faulty_disk")
    more = {"NCPIPE_FAULT": fault, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    return clone.run(*command, check=False, env=more)


@pytest.mark.attack
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="clones the repository, and this is no checkout")
@pytest.mark.parametrize("command", [("ncpipe", "sweep"), ("dvc", "repro")], ids=" ".join)
def test_every_fault_of_a_sweep(command: tuple[str, ...], place: Place, tmp_path: Path) -> None:
    """DVC's own writes too. Where DVC leaves a dvc.lock, an rwlock or an empty entry of its run cache (to it:
    None) that it cannot read, what docs/reliability.md says mends it.

    Red: a registration that a kill leaves half done.
    """
    start = time.monotonic()
    clone, fresh = place
    put_back(clone, fresh)
    output = faulty(clone, command, 0, "kill", tmp_path / "log")
    assert output.code == 0, output.err
    whole = clone.digests(*OUTPUTS, "dvc.lock")
    assert not clone.stale()
    points = len((tmp_path / "log").read_text().splitlines())
    tried = []
    for at, kind in zip(spread(points)[: -(-points // STRIDE)], itertools.cycle(KINDS)):
        put_back(clone, fresh)
        log = tmp_path / f"{at}.log"
        end, said = attack_sweep(clone, whole, command, at, kind, log)
        tried.append(f"{kind}: {end}")
        if end.startswith("WRONG"):
            print(kind, end, *log.read_text().splitlines()[at - 1 : at], said, sep="\n", flush=True)
    _print(f"{' '.join(command)}: {points} points, {len(tried)} faults", Counter(tried), start)
    assert not [line for line in tried if "WRONG" in line]


def attack_sweep(
    clone: Clone, whole: dict[str, str], command: tuple[str, ...], at: int, kind: str, log: Path
) -> tuple[str, str]:
    """How a sweep went on after one fault, and what was said."""
    first = faulty(clone, command, at, kind, log)
    done = finished(clone.folder, first.err)
    again = clone.run(*command, check=False)
    end = "went on"
    if again.code and (torn := re.search(TORN, again.err)):
        mend(clone)
        again = clone.run(*command, check=False)
        end = f"went on when mended, {torn.group()} torn"
    if again.code:
        end = "WRONG, did not go on"
    elif done & set(again.trained):
        end = "WRONG, trained again"
    else:
        digests = clone.digests(*OUTPUTS, "dvc.lock")
        changed = [path for path in digests | whole if digests.get(path) != whole.get(path)]
        if changed and changed != ["dvc.lock"]:
            end = "WRONG, other bytes"
        elif changed and clone.stale():  # the same dvc.lock of the same bytes is what it was: not stale
            end = "WRONG, stale"
    return end, "\n".join([first.out, first.err, again.out, again.err])


def _print(head: str, counts: Counter[str], start: float) -> None:
    print(f"\n{head}, {time.monotonic() - start:.0f} s")
    print("\n".join(f"  {count:5} {what}" for what, count in sorted(counts.items())), flush=True)
