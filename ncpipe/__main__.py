"""Entry of `ncpipe` and `python -m ncpipe`."""

import os
import sys
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parent
INTERRUPTED = 130  # the exit code of a program that ended by Ctrl-C
# What the extra `pipeline` installs, by the names that are imported.
PIPELINE = frozenset(
    (
        *("annotated_types", "dvc", "filelock", "jinja2", "matplotlib", "networkx", "numba", "pandas"),
        *("platformdirs", "pydantic", "scipy", "seaborn", "sklearn", "torchvision", "tqdm", "transformers"),
        *("typer", "vl_convert", "yaml"),
    )
)
CHOSEN = "NCPIPE_CHECKOUT"  # in the environment of a second start: the checkout whose code it is to run


def main() -> None:
    """Run the command line with the code of the checkout one stands in, if that has its own.

    DVC runs queued experiments in copies of the repository and keeps the copy's code with their results,
    so it must be the copy that runs, not the checkout that happens to be installed.
    """
    from ncpipe.system.environment import clean_environment
    from ncpipe.system.signals import ctrl_c_was_lost, note_ctrl_c

    clean_environment()
    note_ctrl_c()
    code: Any = None
    try:
        _run()
    except SystemExit as stop:
        code = stop.code
    except KeyboardInterrupt:
        code = INTERRUPTED
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in PIPELINE:
            raise
        code = f"ncpipe: commands need {missing}, which is not installed: pip install 'ncpipe[pipeline]'"
    if "DVC_STAGE" in os.environ and ctrl_c_was_lost():
        code = INTERRUPTED
    if code == INTERRUPTED:
        again = "ncpipe sweep" if sys.argv[1:2] == ["sweep"] else "dvc repro"
        print(f"ncpipe: interrupted; finished runs are kept, run {again} to go on", file=sys.stderr)
    if code is not None:
        sys.exit(code)


def _run() -> None:
    tried = os.environ.pop(CHOSEN, None)
    try:
        checkout, refused = checkout_above(Path.cwd())
    except FileNotFoundError:
        sys.exit("ncpipe: the working directory has been deleted; change to one that exists")
    for line in refused:
        print(f"ncpipe: {line}; {PACKAGE} runs", file=sys.stderr)
    if checkout is not None and (checkout / "ncpipe").resolve() != PACKAGE:
        if tried == str(checkout):  # it was to run and another one did: never try that for ever
            sys.exit(
                f"ncpipe: {checkout / 'ncpipe'}: cannot be imported, {PACKAGE} was; see git status there"
            )
        _start_again(checkout)
    if "DVC_STAGE" in os.environ and sys.argv[1:2] == ["train"]:
        from ncpipe.runs.fast_path import take_stored

        if take_stored(sys.argv[2:]):
            print(f"train {' '.join(sys.argv[3:])}: taken from the store", file=sys.stderr)
            return
    from ncpipe.runs import code_digests  # noqa: F401  # reads the package's files, before others are imported

    from ncpipe.commands.cli import run_cli  # isort: skip

    run_cli()


def checkout_above(folder: Path) -> tuple[Path | None, list[str]]:
    """The nearest checkout of ncpipe at or above `folder` whose code may run, and why nearer ones may not.

    Whoever can write to a folder above, as to /tmp, must not decide what runs: as git has it, a checkout
    counts if it is a git work tree and the user's own.
    """
    refused: list[str] = []
    for parent in (folder, *folder.parents):
        package = parent / "ncpipe"
        if os.path.isfile(package / "__main__.py") and os.path.isfile(parent / "pyproject.toml"):
            problem = None if package.resolve() == PACKAGE else _distrust(parent, package)
            if problem is None:
                return parent.resolve(), refused
            refused.append(f"{package} does not run: {problem}")
    return None, refused


def _distrust(checkout: Path, package: Path) -> str | None:
    """Why code must not run that lies where one happens to stand; None if it may."""
    pyproject = checkout / "pyproject.toml"
    try:
        if not (checkout / ".git").exists():
            return "it is in no git work tree"
        if not (package / "__init__.py").is_file():
            return "it has no __init__.py"
        for path in (checkout, checkout / ".git", pyproject, package, *package.rglob("*")):
            if path.lstat().st_uid != os.geteuid():  # an editor's link may lead nowhere
                return f"{path} belongs to another user"
        import tomllib  # after the owner is known, and not at all where nothing is to be decided

        name = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]["name"]
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    except (ValueError, KeyError, TypeError, RecursionError):
        name = None
    return None if name == "ncpipe" else "its pyproject.toml is of another project"


def _start_again(checkout: Path) -> None:
    """Run this command once more, by the code of `checkout`; does not return."""
    print(f"ncpipe: runs the code of {checkout / 'ncpipe'}", file=sys.stderr, flush=True)
    paths = [str(checkout), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), CHOSEN: str(checkout)}
    command = [sys.executable, "-P", "-m", "ncpipe", *sys.argv[1:]]  # -P: not from a copy in this folder
    os.execve(sys.executable, command, environment)


if __name__ == "__main__":
    main()
