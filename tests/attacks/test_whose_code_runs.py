"""Which code runs below a folder that looks like a checkout: the user's own work tree's, or the installed.

Each test's docstring ends with the fault that would turn it red.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ncpipe.__main__ import PACKAGE, checkout_above

RAN = "someone else's code ran"
OURS = '[project]\nname = "ncpipe"\n'
LOOP = 5  # seconds in which a start that starts itself for ever is known


def lay(folder: Path, pyproject: str = OURS, init: bool = True, git: bool = True) -> Path:
    """A folder with a package of our name, a way below it to stand in."""
    (folder / "ncpipe").mkdir(parents=True)
    (folder / "ncpipe" / "__main__.py").write_text(f"print({RAN!r})\n")
    if init:
        (folder / "ncpipe" / "__init__.py").write_text("")
    (folder / "pyproject.toml").write_text(pyproject)
    if git:
        subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
    below = folder / "some" / "where"
    below.mkdir(parents=True)
    return below


def version(here: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """`ncpipe --version` in that folder, as the installed program starts."""
    program = Path(sys.executable).with_name("ncpipe")
    if not program.exists():
        pytest.skip("ncpipe is not installed beside this Python")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        [program, "--version"],
        cwd=here,
        env=environment | more,
        capture_output=True,
        text=True,
        timeout=12 * LOOP,
        check=False,
    )


@pytest.mark.parametrize(
    ("how", "problem"),
    [
        ({"git": False}, "in no git work tree"),
        ({"init": False}, "no __init__.py"),
        ({"pyproject": '[project]\nname = "other"\n'}, "of another project"),
        ({"pyproject": "[project"}, "of another project"),
        ({"pyproject": "a = " + "[" * 100_000}, "of another project"),
    ],
    ids=["no git", "no __init__", "another project", "no TOML", "deep TOML"],
)
def test_what_is_no_work_tree_of_ncpipe_does_not_run(
    how: dict[str, str], problem: str, tmp_path: Path
) -> None:
    """And one line says so. Red: any folder with the three files is believed."""
    folder = lay(tmp_path / "hostile", **how)
    checkout, refused = checkout_above(folder)
    assert checkout is None
    assert len(refused) == 1
    assert str(tmp_path / "hostile" / "ncpipe") in refused[0]
    assert problem in refused[0]


@pytest.mark.skipif(os.name == "nt", reason="files there have no owner to compare")
@pytest.mark.parametrize("foreign", [".", ".git", "pyproject.toml", "ncpipe", "ncpipe/__main__.py"])
def test_what_belongs_to_another_user_does_not_run(
    foreign: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even one of its files. Red: the owner of that path is not looked at."""
    folder = tmp_path / "theirs"
    below = lay(folder)
    assert checkout_above(below) == (folder.resolve(), [])
    real, foreign_status = Path.stat, (folder / foreign).stat()

    def stat(path: Path, **options: bool) -> os.stat_result:
        status = real(path, **options)
        if os.path.samestat(status, foreign_status):
            status = os.stat_result((*status[:4], os.geteuid() + 1, *status[5:10]))
        return status

    monkeypatch.setattr(Path, "stat", stat)
    checkout, refused = checkout_above(below)
    assert checkout is None
    assert "belongs to another user" in refused[0]


def test_a_hostile_folder_inside_a_checkout_hides_it_not(tmp_path: Path) -> None:
    """The checkout around it runs. Red: the search ends at the first folder that looks like one."""
    lay(tmp_path / "mine")
    folder = lay(tmp_path / "mine" / "some" / "hostile", git=False)
    checkout, refused = checkout_above(folder)
    assert checkout == (tmp_path / "mine").resolve()
    assert len(refused) == 1


def test_the_installed_program_runs_its_own_code_below_a_hostile_folder(tmp_path: Path) -> None:
    """Red: it starts what lies there."""
    said = version(lay(tmp_path / "hostile", git=False))
    assert said.returncode == 0
    assert RAN not in said.stdout
    assert said.stderr.count("\n") == 1
    assert str(PACKAGE) in said.stderr


def test_the_work_tree_one_stands_in_runs_and_is_named(tmp_path: Path) -> None:
    """Red: the installed code runs, or nothing says which."""
    here = lay(tmp_path / "mine")
    said = version(here)
    assert said.stdout == f"{RAN}\n"
    assert said.stderr == f"ncpipe: runs the code of {tmp_path.resolve() / 'mine' / 'ncpipe'}\n"


def test_a_second_start_is_the_last(tmp_path: Path) -> None:
    """Where the work tree's package cannot be imported. Red: it starts itself until it is killed."""
    here = lay(tmp_path / "mine")
    said = version(here, NCPIPE_CHECKOUT=str((tmp_path / "mine").resolve()))
    assert said.returncode == 1
    assert "cannot be imported" in said.stderr
    assert said.stderr.count("\n") == 1


def test_a_deleted_working_directory_is_one_line(tmp_path: Path) -> None:
    """Red: a traceback from the first look around."""
    gone = tmp_path / "gone"
    gone.mkdir()
    program = Path(sys.executable).with_name("ncpipe")
    if os.name == "nt" or not program.exists():
        pytest.skip("needs a POSIX shell and the installed program")
    said = subprocess.run(
        ["sh", "-c", f'cd "{gone}" && rmdir "{gone}" && "{program}" grid'],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert said.returncode == 1
    assert said.stderr == "ncpipe: the working directory has been deleted; change to one that exists\n"


def test_a_link_to_the_running_package_starts_nothing(tmp_path: Path) -> None:
    """As in a study. Red: paths are compared before links are followed."""
    here = lay(tmp_path / "mine")
    shutil.rmtree(tmp_path / "mine" / "ncpipe")
    (tmp_path / "mine" / "ncpipe").symlink_to(PACKAGE)
    said = version(here)
    assert said.returncode == 0
    assert said.stderr == ""
