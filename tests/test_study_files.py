"""What a study.py reads and imports is part of its runs' identity, or the command ends in one line."""

import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import clear_code_digests, contents, experiment_tree, refused_by, stored_runs, write_params
from safetensors.numpy import save_file
from studies import FUNCTION, POLY, RINGS, TRAINING, WHOLE, changed

from ncpipe.commands import fetch as fetching
from ncpipe.commands.code import write_code
from ncpipe.commands.fetch import fetch
from ncpipe.commands.train import train
from ncpipe.config.params import load_params
from ncpipe.config.study import load_study
from ncpipe.config.study_reads import forget_modules
from ncpipe.datasets.stored import data_checksum
from ncpipe.runs import batches
from ncpipe.runs.fingerprint import code_digest
from ncpipe.runs.store_layout import store_folder
from ncpipe.system.errors import InputError

READ = """
import json
from pathlib import Path


def read(name):
    with open(name) as file:
        return float(file.read())
"""
STUDY = READ + changed(  # whose loss, data and metric multiply with what a test writes
    WHOLE + TRAINING,
    (POLY, "    return -own * factor()\n"),
    ('{"inputs": points', '{"inputs": stretch() * points'),
    (FUNCTION, "lambda classes: classes.squares.sum() * unit()"),
)
PARTS = {"factor": "1.0", "stretch": "1.0", "unit": "1.0"}
OWN: dict[str, Any] = experiment_tree(
    loss={"name": "poly", "epsilon": 0.0}, data=RINGS, epochs=2, log_every=1
)
PIPELINE = "stages:\n" + "".join(
    f"  {stage}:\n    cmd: ncpipe {stage}\n    deps: [{{{stage}}}]\n"
    for stage in ("code", "fetch", "measure")
)


@pytest.fixture(autouse=True)
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "study").mkdir()
    monkeypatch.chdir(tmp_path / "study")
    monkeypatch.setattr(sys, "path", [*sys.path])
    begin()
    yield
    clear_code_digests()
    load_study(tmp_path / "nowhere")
    for name in [name for name in sys.modules if name.startswith(("helper", "mylib"))]:
        del sys.modules[name]


def begin() -> None:
    write_params([2], [0], own=OWN)
    clear_code_digests()


def write_study(before: str = "", **parts: str) -> None:
    functions = "".join(f"\n\ndef {name}():\n    return {text}\n" for name, text in (PARTS | parts).items())
    Path("study.py").write_text(before + STUDY + functions)


def write_pipeline(code: str = "", fetch: str = "", measure: str = "") -> None:
    others = ["ncpipe", "study.py", *filter(None, [code])]
    Path("dvc.yaml").write_text(PIPELINE.format(code=", ".join(others), fetch=fetch, measure=measure))


def refusal() -> str:
    return refused_by(write_code)


def digest() -> str:
    clear_code_digests()
    params = load_params()
    return code_digest(params.experiments["own"], params.study)


READERS = {
    "open": "read('c.json')",
    "a built path": "json.loads(Path('c' + '.json').read_bytes())",
    "a library": "float(np.loadtxt('c' + '.json'))",
}


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_a_loss_that_reads_a_file_is_refused_until_dvc_sees_it(reader: str) -> None:
    """Red: the run of another c.json is taken for this one's."""
    Path("c.json").write_text("1.5")
    write_study(factor=reader)
    write_pipeline()
    assert "- c.json` to the deps of the stage code" in refusal()
    write_pipeline(code="c.json")
    before = digest()
    write_code()
    Path("c.json").write_text("2.5")
    assert digest() != before


def test_an_unlisted_file_is_refused_by_training_too_whatever_the_check_saw() -> None:
    """With the line that reads it. Red: only the stage `code` looks."""
    Path("c.json").write_text("1.5")
    write_study(factor="read('c' + '.json')")
    fetch("own")
    with pytest.raises(InputError, match=r"^study\.py: line \d+: reads c\.json, .* `- c\.json` to the deps"):
        train("own", 2, 0, workers=1)
    write_study("from pathlib import Path\nFACTOR = Path('c' + '.json').read_text()\n")
    with pytest.raises(InputError, match=r"^study\.py: line 2: reads c\.json"):
        load_params()


def test_what_a_data_function_or_a_metric_reads_is_listed_for_its_stage() -> None:
    """Red: edits of mine.csv that nothing fetches again; training that repeats for a metric's file."""
    Path("mine.csv").write_text("2.0")
    Path("unit.txt").write_text("3.0")
    write_study(stretch="float(np.loadtxt('mine' + '.csv'))", unit="read('unit' + '.txt')")
    fetch("own")  # without DVC it runs every time
    write_pipeline()
    assert "`- mine.csv` to the deps of the stage fetch" in refusal()
    with pytest.raises(InputError, match=r"reads mine\.csv, .* the stage fetch in dvc\.yaml"):
        fetch("own")
    write_pipeline(fetch="mine.csv")
    assert "`- unit.txt` to the deps of the stage measure" in refusal()
    write_pipeline(fetch="mine.csv", measure="unit.txt")
    before = digest()
    write_code()
    Path("unit.txt").write_text("4.0")
    assert digest() == before


def test_a_file_that_a_reader_in_another_language_opens_is_found_by_its_name() -> None:
    """No event of Python shows it. Red: it is taken for no dependency."""
    save_file({"c": np.ones(1)}, "weights.safetensors")
    write_study(
        factor="float(__import__('safetensors.numpy').numpy.load_file('weights.safetensors')['c'][0])"
    )
    write_pipeline()
    assert "`- weights.safetensors` to the deps of the stage code" in refusal()
    write_pipeline(code="weights.safetensors")
    write_code()


def test_a_library_of_ones_own_elsewhere_counts(tmp_path: Path) -> None:
    """Red: an edit of it that keeps the old result."""
    (tmp_path / "mylib_of_me").mkdir()
    for name, text in (("__init__", "from mylib_of_me.number import NUMBER\n"), ("number", "NUMBER = 2.0\n")):
        (tmp_path / f"mylib_of_me/{name}.py").write_text(text)
    sys.path.append(str(tmp_path))
    write_study("import mylib_of_me\n", factor="mylib_of_me.NUMBER")
    write_pipeline()
    assert refusal() == (
        "study.py: line 1: reads ../mylib_of_me, whose changes nothing would notice; add the line "
        "`- ../mylib_of_me` to the deps of the stage code in dvc.yaml"
    )
    write_pipeline(code="../mylib_of_me")
    before = digest()
    write_code()
    (tmp_path / "mylib_of_me/number.py").write_text("NUMBER = 3.0\n")
    assert digest() != before


def test_installed_packages_official_data_and_own_outputs_are_not_refused() -> None:
    """Red: a hook that takes what a library reads for itself as the study's."""
    made = "{'inputs': data.train.inputs.flatten(1), 'labels': data.train.labels}"
    digits = (
        "def rings(spec):\n"
        "    import sklearn.datasets, scipy.signal, zoneinfo, warnings\n"
        "    from ncpipe.config.sources.images import ImageData\n"
        "    from ncpipe.datasets.prepare import prepare\n"
        "    zoneinfo.ZoneInfo('UTC')\n"
        "    Path('log.txt').write_text('2.0')\n"
        "    read('log.txt')\n"
        "    sklearn.datasets.load_iris()\n"
        "    spec = ImageData('digits', 4, 4, 0, 'standardise')\n"
        "    data = prepare(spec, Path('data/raw'), None, False)\n"
        f"    return {made}\n\n\nDATA ="
    )
    write_study()
    text = Path("study.py").read_text()
    start, end = text.index("def rings(spec)"), text.index("DATA = {")
    Path("study.py").write_text((text[:start] + text[end:]).replace("DATA =", digits, 1))
    write_pipeline()
    write_code()
    fetch("own")


def test_the_lines_of_a_traceback_are_no_files_of_the_study(tmp_path: Path) -> None:
    """As when PyTorch, imported by study.py, notes where it is, in a program of the user's own.

    Red: a refusal that asks for that program in dvc.yaml.
    """
    write_study()
    text = Path("study.py").read_text()
    Path("study.py").write_text(f"import traceback\n\ntraceback.format_stack()\n{text}")
    write_pipeline()
    program = tmp_path / "elsewhere" / "program.py"
    program.parent.mkdir()
    program.write_text("from ncpipe.config.params import load_params\n\nload_params()\n")
    subprocess.run([sys.executable, program], check=True)


# ---- Files that are edited while they are used -----------------------------------------------------------


def back_in_time(path: Path) -> Any:
    """Edit a file in place and put it back with its times, as `cp -p` and rsync do."""
    times = path.stat()
    path.write_text("2.5")
    yield
    path.write_text("1.5")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def renamed(path: Path) -> Any:
    """Put another file in its place, as editors do, and then the file itself."""
    path.rename(path.with_suffix(".bak"))
    path.write_text("2.5")
    yield
    path.with_suffix(".bak").replace(path)


def written(path: Path) -> Any:
    """Edit it in place and write its text again, as git does."""
    path.write_text("2.5")
    yield
    path.write_text("1.5")


def written_as_code(path: Path) -> Any:
    """Edit a module of a library as `written` does."""
    path = path / "c.py"
    path.write_text("NUMBER = 2.5\n")
    yield
    path.write_text("NUMBER = 1.5\n")


def relinked(path: Path) -> Any:
    """Let the link to its folder lead elsewhere for a while."""
    link = path.parent
    here = link.readlink()
    other = here.with_name("other")
    other.mkdir()
    (other / path.name).write_text("2.5")
    for target in (other, here):
        link.unlink()
        link.symlink_to(target)
        if target == other:
            yield


def added(path: Path) -> Any:
    """Add a file beside it for a while, which a study that looks for all files finds."""
    path.with_name("a.txt").write_text("2.5")
    yield
    path.with_name("a.txt").unlink()


ONE, FIRST = "read('in/' + 'c.txt')", "read(sorted(Path('in').glob('*.t' + 'xt'))[0])"
PUT_BACK = {  # how a file is edited and put back, what is listed, and how the loss reads it
    "written": (written, "in/c.txt", ONE),
    "written with its times": (back_in_time, "in/c.txt", ONE),
    "renamed": (renamed, "in/c.txt", ONE),
    "in a listed folder": (written, "in", FIRST),
    "added to a listed folder": (added, "in", FIRST),
    "behind a link": (written, "link/c.txt", "read('li' + 'nk/c.txt')"),
    "behind another link": (relinked, "link/c.txt", "read('li' + 'nk/c.txt')"),
    "a listed library": (written_as_code, "../mylib_of_me", "__import__('mylib_of_me.c').c.NUMBER"),
}


def trained_once() -> tuple[Path, Any]:
    """Train a run and remove it; return where it was stored, and its files."""
    fetch("own")
    train("own", 2, 0, workers=1)
    (run,) = stored_runs()
    truth = contents(run)
    for folder in (Path("data/runs"), run):
        shutil.rmtree(folder)
    again()
    return run, truth


@pytest.mark.parametrize(("kind", "seconds"), [*((kind, 60.0) for kind in PUT_BACK), ("written", 0.0)])
def test_a_file_is_edited_while_a_run_reads_it_and_put_back(
    kind: str, seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is not stored, nor a checkpoint of it (seconds 0); then it trains as if nothing had been.

    Red: the result of the edited file under the name of the file before; a checkpoint that is resumed."""
    edit, listed, reader = PUT_BACK[kind]
    Path("in").mkdir()
    Path("in/c.txt").write_text("1.5")
    Path("link").symlink_to(Path("in").absolute())
    (tmp_path / "mylib_of_me").mkdir()
    (tmp_path / "mylib_of_me/__init__.py").touch()
    (tmp_path / "mylib_of_me/c.py").write_text("NUMBER = 1.5\n")
    sys.path.append(str(tmp_path))
    write_study(factor=reader)
    write_pipeline(code=listed)
    run, truth = trained_once()
    original = batches.train_batch

    def train_batch(*arguments: Any) -> Any:
        editing = edit(Path(listed if listed != "in" else "in/c.txt"))
        next(editing)
        try:
            return original(*arguments)
        finally:
            next(editing, None)

    with monkeypatch.context() as patch:
        patch.setattr(batches, "train_batch", train_batch)
        with pytest.raises(InputError, match=r"(in|link|c\.txt|c\.py): was changed, or only touched, while"):
            train("own", 2, 0, workers=1, checkpoint_seconds=seconds)
    assert stored_runs() == []
    assert not list(store_folder().glob("*.checkpoint"))
    again()
    train("own", 2, 0, workers=1)
    assert contents(run) == truth


@pytest.mark.parametrize("module", ["helper_of", "helpers_of.one"])
def test_a_module_is_edited_while_a_loss_imports_it_and_put_back(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs as it was digested, and the run is stored. Red: the edited module's result under its name."""
    file = Path(*module.split(".")).with_suffix(".py")
    Path("helpers_of").mkdir()
    Path("helpers_of/__init__.py").touch()
    file.write_text("NUMBER = 1.5\n")
    write_study("import importlib\n", factor=f"importlib.import_module('{module}').NUMBER")
    run, truth = trained_once()
    original = batches.check_memory  # the first to call the loss

    def check_memory(*arguments: Any) -> int:
        file.write_text("NUMBER = 2.5\n")
        try:
            return original(*arguments)
        finally:
            file.write_text("NUMBER = 1.5\n")

    monkeypatch.setattr(batches, "check_memory", check_memory)
    train("own", 2, 0, workers=1)
    assert contents(run) == truth


def again() -> None:
    """Forget all that was read and imported, as in another process."""
    clear_code_digests()
    forget_modules()
    for name in [name for name in sys.modules if name.startswith("mylib")]:
        del sys.modules[name]


def test_data_are_not_stored_of_a_file_that_changes_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A download into a listed folder is no edit. Red: data of an edited file, whose edit was reverted, that
    DVC restores for the file before; a first fetch that fails."""
    Path("raw").mkdir()
    download = (
        "    path = Path('raw') / 'mine.txt'\n    path.is_file() or path.write_text('2.0')\n    return path\n"
    )
    write_study(f"from pathlib import Path\n\n\ndef download():\n{download}", stretch="read(download())")
    write_pipeline(fetch="raw")
    fetch("own")
    checksum = data_checksum(Path("data/prepared/own"))
    fetch("own")
    assert data_checksum(Path("data/prepared/own")) == checksum
    original = fetching._fetch

    def edited(*arguments: Any) -> Any:
        Path("raw/mine.txt").write_text("3.0")
        try:
            return original(*arguments)
        finally:
            Path("raw/mine.txt").write_text("2.0")

    monkeypatch.setattr(fetching, "_fetch", edited)
    with pytest.raises(InputError, match=r"raw.*: was changed, or only touched"):
        fetch("own")


def test_the_source_of_a_function_is_what_was_read() -> None:
    """Although the file was edited since; TorchScript and Triton compile it. Red: another function than the
    one that was digested."""
    text = "import inspect\ndef f(x):\n    return {} * x\ndef source():\n    return inspect.getsource(f)\n"
    Path("helper_of.py").write_text(text.format("2"))
    write_study("import helper_of\n")
    load_params()
    Path("helper_of.py").write_text(text.format("3"))
    assert "return 2 * x" in sys.modules["helper_of"].source()


def test_a_study_that_is_a_link_has_the_modules_beside_the_link(tmp_path: Path) -> None:
    """Red: an edit of a module beside the file itself, which no digest has."""
    (tmp_path / "shared").mkdir()
    write_study("import helper_of\n", factor="helper_of.NUMBER")
    Path("study.py").rename(tmp_path / "shared/study.py")
    Path("study.py").symlink_to(tmp_path / "shared/study.py")
    (tmp_path / "shared/helper_of.py").write_text("NUMBER = 2.0\n")
    with pytest.raises(InputError, match="No module named 'helper_of'"):
        load_params()
    Path("helper_of.py").symlink_to(tmp_path / "shared/helper_of.py")
    before = digest()
    (tmp_path / "shared/helper_of.py").write_text("NUMBER = 3.0\n")
    assert digest() != before
    Path("c.txt").write_text("1.5")
    (tmp_path / "shared/helper_of.py").write_text("with open('c' + '.txt') as f:\n    NUMBER = f.read()\n")
    with pytest.raises(InputError, match=r"helper_of\.py: line 1: reads c\.txt"):
        load_params()


# ---- Modules beside study.py ----------------------------------------------------------------------------


def test_a_module_beside_study_py_is_imported_and_counts_whatever_dvc_yaml_lists() -> None:
    """Imported when it is called. Red: ModuleNotFoundError; an edit of a helper that `deps` leaves out."""
    Path("helper_of.py").write_text("NUMBER = 2.0\n")
    write_study(factor="__import__('helper_of').NUMBER")
    write_pipeline(code="helper_of.py")
    write_code()
    one = digest()
    write_pipeline()
    assert digest() == one
    assert "add the line `- helper_of.py` to the deps of the stage code" in refusal()
    pipeline = Path("dvc.yaml").read_text()
    Path("dvc.yaml").write_text(
        pipeline.replace("ncpipe code\n", "ncpipe code\n    always_changed: true\n", 1)
    )
    write_code()  # as in a project of its own, whose stage `code` sees every edit
    Path("helper_of.py").write_text("NUMBER = 3.0\n")  # within the same second
    assert digest() != one
    function, _ = load_params().study.losses.values()
    assert function.__globals__["factor"]() == 3.0


def test_two_studies_have_each_its_own_module_of_one_name(tmp_path: Path, monkeypatch: Any) -> None:
    """Red: the module of the study that was loaded first."""
    for number in (2.0, 3.0, 2.0):
        folder = tmp_path / f"of_{number}"
        folder.mkdir(exist_ok=True)
        monkeypatch.chdir(folder)
        begin()
        Path("helper_of.py").write_text(f"NUMBER = {number}\n")
        write_study(factor="importlib.import_module('helper_of').NUMBER", before="import importlib\n")
        function, _ = load_params().study.losses.values()
        assert function.__globals__["factor"]() == number


def test_a_module_beside_study_py_hides_none_of_the_standard_library() -> None:
    """Red: a lazy import somewhere in PyTorch that finds the study's file."""
    Path("statistics.py").write_text("NUMBER = 1\n")
    write_study()
    load_params()
    sys.modules.pop("statistics", None)
    assert hasattr(importlib.import_module("statistics"), "median")


def test_a_mistake_in_a_module_is_one_line_with_its_place() -> None:
    """Red: a traceback, or the line of study.py that calls it."""
    Path("helper_of.py").write_text("def number():\n    return 1 / 0\n")
    write_study("import helper_of\n", stretch="helper_of.number()")
    with pytest.raises(InputError, match=r"^helper_of\.py: line 2: number: ZeroDivisionError"):
        fetch("own")
    Path("helper_of.py").write_text("def number(:\n")
    with pytest.raises(InputError, match=r"^helper_of\.py: line 1: invalid syntax"):
        load_params()
