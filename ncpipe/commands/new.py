"""`ncpipe new`: a study made from the template, below stages/ of a checkout or a project of its own."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from ncpipe.claims.ledger import CLAIMS_FILE
from ncpipe.code import PACKAGE, ROOT
from ncpipe.console import say
from ncpipe.errors import InputError
from ncpipe.params import NAME, PARAMS_FILE
from ncpipe.schema import CLAIMS_SCHEMA, SCHEMA_FILE, SCHEMAS, schema_text

# In a checkout the study that is the template; in an installed package a copy of its files.
TEMPLATES = (ROOT / "stages/smoke", ROOT / PACKAGE / "template")
COPIED = ("dvc.yaml", ".dvcignore", ".dvc/plots/log_x.json", ".dvc/plots/log_y.json")
HEAD = """\
# yaml-language-server: $schema={schema}
# {name}: the stages of dvc.yaml beside this file, on these parameters. Change them, then `{command}`.
#
# What is to be found out, and what the theory says, stands under `about`. Cost: half a minute as it stands.
"""
SHARED_CACHE = "[cache]\n    dir = ../../../.dvc/cache\n"
DVC_CONFIG = "[core]\n    analytics = false\n"
DVC_IGNORED = "/config.local\n/tmp\n/cache\n"
GIT_IGNORED = "/data/\n__pycache__/\ndvc_plots/\n"
WATCHED = f"    deps:\n      - {PACKAGE}\n"  # by the stage code, in a checkout
ALWAYS = "    always_changed: true # it reads the package that is installed, which DVC does not watch\n"


def new(place: str) -> None:
    """A study called like the last part of `place`.

    A name makes stages/NAME in the checkout that one stands in: a DVC project that shares the checkout's code
    and cache. A path makes a git repository and DVC project there, which runs the installed package.
    InputError, and nothing is written, if the name is none or something is there already.
    """
    checkout = ROOT if _is_checkout(ROOT) and Path.cwd().resolve().is_relative_to(ROOT) else None
    alone = Path(place).name != place
    if alone:
        target = Path(os.path.abspath(place))
        above = next(filter(_is_checkout, target.resolve().parents), None)
        if above:
            raise InputError(
                f"{place}: lies in {above}, a checkout of ncpipe; choose a folder outside, or make a study "
                f"of the checkout (ncpipe new {target.name})"
            )
    elif checkout is None:
        raise InputError(
            f"{place}: no checkout of ncpipe is here to have it; as a path (ncpipe new ./{place}) it becomes "
            "a project of its own"
        )
    else:
        target = checkout / "stages" / place
    if not NAME.fullmatch(target.name if alone else place):
        raise InputError(f"{place}: a study's name is of letters, digits and _, and begins with a letter")
    if os.path.lexists(target):
        raise InputError(f"{target}: is there already; choose another name")
    with _appearing(target) as folder:
        (_write_alone if alone else _write_study)(folder, target.name)
    command = "dvc repro" if alone else f"dvc --cd stages/{target.name} repro"
    say(f"new: {target}; edit its params.yaml, then {command}{' there' if alone else ''}")


def _is_checkout(folder: Path) -> bool:
    return (folder / PACKAGE / "__main__.py").is_file() and (folder / "pyproject.toml").is_file()


def _write_study(folder: Path, name: str) -> None:
    _write_common(folder, name, "../../", f"dvc --cd stages/{name} repro", SHARED_CACHE)
    (folder / PACKAGE).symlink_to(f"../../{PACKAGE}", target_is_directory=True)


def _write_alone(folder: Path, name: str) -> None:
    _write_common(folder, name, "", "dvc repro")
    for schema in SCHEMAS:
        (folder / schema).write_text(schema_text(schema), encoding="utf-8")
    (folder / ".gitignore").write_text(GIT_IGNORED, encoding="utf-8")
    pipeline = (folder / "dvc.yaml").read_text(encoding="utf-8")
    assert pipeline.count(WATCHED) == 1
    (folder / "dvc.yaml").write_text(pipeline.replace(WATCHED, ALWAYS), encoding="utf-8")
    try:
        subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise InputError("git: not found; DVC needs it, so install it first") from None
    except subprocess.CalledProcessError as error:
        raise InputError(f"git init failed: {' '.join(error.stderr.split())}") from None


def _write_common(folder: Path, name: str, schemas: str, command: str, cache: str = "") -> None:
    template = next(each for each in TEMPLATES if each.is_dir())
    (folder / ".dvc/plots").mkdir(parents=True)
    for file in COPIED:
        shutil.copyfile(template / file, folder / file)
    text = (template / PARAMS_FILE).read_text(encoding="utf-8")
    head = HEAD.format(schema=f"{schemas}{SCHEMA_FILE}", name=name, command=command)
    (folder / PARAMS_FILE).write_text(head + text[text.index("\nsweep:") + 1 :], encoding="utf-8")
    claims = (template / CLAIMS_FILE).read_text(encoding="utf-8").partition("\n")[2]
    first = f"# yaml-language-server: $schema={schemas}{CLAIMS_SCHEMA}\n"
    (folder / CLAIMS_FILE).write_text(first + claims, encoding="utf-8")
    (folder / ".dvc/config").write_text(DVC_CONFIG + cache, encoding="utf-8")
    (folder / ".dvc/.gitignore").write_text(DVC_IGNORED, encoding="utf-8")


@contextlib.contextmanager
def _appearing(target: Path) -> Iterator[Path]:
    """An empty folder that becomes `target` when the block ends without an error."""
    folder = target.with_name(f".{target.name}.partial")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
        os.replace(folder, target)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
