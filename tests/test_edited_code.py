"""Code that is edited while a command trains: the files lie in a copy of the package, which only is digested.

Each test's docstring ends with the fault that would turn it red.
"""

import itertools
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import (
    before_calls,
    clear_code_digests,
    contents,
    experiment_tree,
    fingerprints,
    prepare_sweep,
    stored_runs,
)

from ncpipe.commands.fill import fill_store
from ncpipe.config.reading import ROOT, Reading
from ncpipe.datasets.prepared import read_prepared
from ncpipe.runs import batches, code_digests, results
from ncpipe.runs.fingerprint import RunFingerprint, check_code, verify_run
from ncpipe.runs.run_folder import write_run
from ncpipe.runs.store import stored, write_beside
from ncpipe.runs.store_layout import store_folder
from ncpipe.system.artifacts import PREPARED
from ncpipe.system.errors import InputError

RESNET = experiment_tree()
MLP = experiment_tree() | {
    "model": {
        "architecture": "mlp", "norm": "none", "activation": "relu", "width": 8, "bias": True,
        "last_bias": False, "initialisation": "normal", "gain": 1.0,
    }
}  # fmt: skip
LINE = "ncpipe: the code was edited since the command began, so no further run begins; start it again"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two experiments of other networks, their data prepared, and the package whose files are digested."""
    shutil.copytree(ROOT / "ncpipe", tmp_path / "code" / "ncpipe", ignore=shutil.ignore_patterns("*.pyc"))
    monkeypatch.setattr(code_digests, "ROOT", tmp_path / "code")
    (tmp_path / "study").mkdir()
    monkeypatch.chdir(tmp_path / "study")
    clear_code_digests()
    prepare_sweep([2], [0], resnet=RESNET, mlp=MLP)
    return tmp_path / "code" / "ncpipe"


@pytest.fixture(autouse=True)
def forget() -> Any:
    yield
    clear_code_digests()


def edit(package: Path, name: str, old: str, new: str) -> None:
    text = (package / name).read_text()
    assert old in text
    beside = package / f"{threading.get_ident()}.txt"
    beside.write_text(text.replace(old, new))
    beside.replace(package / name)


def keys() -> dict[str, str]:
    """The names of the sweep's runs by their fingerprints with the code as it lies there."""
    clear_code_digests()
    return {fingerprint.key(): fingerprint.run.name for fingerprint in fingerprints()}


# Functions that a batch calls, in their order; some are called by each batch, some twice.
MOMENTS = ("epochs_done", "read_prepared", "prepare_device", "checkpoint_of", "claimed")
MOMENTS += ("starts_of", "train_batch", "name_of", "write_beside", "log_time")


@pytest.mark.parametrize("call", [1, 2])
def test_code_is_edited_at_any_moment(
    call: int, project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As one of these functions is called for the first time, or half of them for the second.

    Red: a run of the code before that has the name of the edited code; a line for each batch; training for
    nothing."""
    before, path = keys(), project / "training/schedules.py"
    original = path.read_text()
    kept = {}
    for moment in MOMENTS if call == 1 else [*MOMENTS[2::2], MOMENTS[-1]]:
        path.write_text(original)
        clear_code_digests()
        calls = itertools.count(1)

        def change(calls: Iterator[int] = calls) -> None:
            if next(calls) == call:
                path.write_text(original.replace("1 + math.cos(", "0.9 + math.cos("))

        with monkeypatch.context() as patch:
            module = batches if hasattr(batches, moment) else results
            before_calls(patch, [(module, moment)], change)
            fill_store(None, 1, 60.0)
        assert path.read_text() != original, moment
        names = {run.name for run in stored_runs()}
        assert names <= before.keys() - keys().keys(), moment
        assert capsys.readouterr().err.count(LINE) == (len(names) < 2), moment
        kept[moment] = len(names)
        for run in stored_runs():
            verify_run(run)
            shutil.rmtree(run)
    assert (kept["claimed"], kept["train_batch"], kept["log_time"]) == (call - 1, call, call)


# Trains a sweep, and edits a file while the modules that train are imported.
PUT_BACK = """
import sys
from pathlib import Path
from ncpipe.runs import code_digests
from ncpipe.commands import fill

path, old, new = Path(sys.argv[1]), *sys.argv[2:]
text = path.read_text()

def edit(keys):
    assert old in text
    path.write_text(text.replace(old, new))
    from ncpipe.runs import fill
    path.write_text(text)

fill.check_no_jobs = edit
fill.fill_store(None, 1, 60.0)
"""


def test_a_module_is_edited_when_it_is_imported_and_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process that has digested it before. Red: the edited code's result under the name of the code."""
    shutil.copytree(ROOT / "ncpipe", tmp_path / "code/ncpipe", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "study").mkdir()
    monkeypatch.chdir(tmp_path / "study")
    clear_code_digests()
    prepare_sweep([2], [0], resnet=RESNET)
    fill_store(None, 1, 60.0)
    truth = contents(store_folder())
    shutil.rmtree(store_folder())
    file = tmp_path / "code/ncpipe/training/schedules.py"
    words = [sys.executable, "-P", "-c", PUT_BACK, file, "1 + math.cos(", "0.9 + math.cos("]
    subprocess.run(words, env=os.environ | {"PYTHONPATH": str(tmp_path / "code")}, check=True, timeout=300)
    assert contents(store_folder()) == truth


@pytest.mark.parametrize("text", ["", "def factor(:\n"])
def test_a_file_is_half_saved_when_a_run_is_stored(text: str, project: Path) -> None:
    """Red: a traceback."""
    (one, _) = fingerprints()
    (project / "training/schedules.py").write_text(text)
    with pytest.raises(InputError, match="the code was edited"):
        check_code(one, Reading())


def test_comments_may_be_edited_and_an_edit_may_be_reverted(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red: hours of training lost to a comment."""
    before = keys()

    def change() -> None:
        edit(project, "training/schedules.py", "# the run then", "# then the run")
        edit(project, "models/mlp.py", "x = ", "x = 2 * ")
        edit(project, "models/mlp.py", "x = 2 * ", "x = ")
        monkeypatch.setattr(batches, "train_batch", original)

    original = batches.train_batch
    before_calls(monkeypatch, [(batches, "train_batch")], change)
    fill_store(None, 1, 60.0)
    assert {path.name for path in stored_runs()} == before.keys() == keys().keys()


def test_eight_threads_store_at_once(project: Path) -> None:
    """Each its own run, and all of them one run, while comments are edited. Red: one staging folder or one
    cache of digests for all threads."""
    data = read_prepared(PREPARED / "resnet")
    (trained,) = batches.train_batch([fingerprints()[0].run], data, torch.device("cpu"), "float32")
    one = fingerprints()[0]
    distinct = [RunFingerprint(one.run, str(number), one.compute, one.code) for number in range(60)]
    editing = threading.Lock()

    def store(fingerprint: RunFingerprint) -> None:
        if fingerprint.data.endswith("7"):
            with editing:
                edit(project, "training/schedules.py", "# the run then", "#  the run then")
                edit(project, "training/schedules.py", "#  the run then", "# the run then")
        check_code(fingerprint, Reading())
        write_beside(
            stored(fingerprint.key()), lambda partial: write_run(partial, trained, fingerprint, "cpu")
        )

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(store, [*distinct, *[one] * 16]))
    assert len(stored_runs()) == 61
    for path in stored_runs():
        verify_run(path)
    assert not [path for path in store_folder().glob(".*") if path.is_dir()]
