"""Entry of `ncpipe` and `python -m ncpipe`."""

import os
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def main() -> None:
    """Run the command line with the code of the checkout one stands in, if that has its own.

    DVC runs queued experiments in copies of the repository and keeps the copy's code with their results,
    so it must be the copy that runs, not the checkout that happens to be installed.
    """
    checkout = checkout_above(Path.cwd())
    if checkout is not None and checkout / "ncpipe" != PACKAGE:
        paths = [str(checkout), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
        command = [sys.executable, "-P", "-m", "ncpipe", *sys.argv[1:]]  # -P: not from a copy in this folder
        if os.name == "nt":  # there a program that replaces itself has ended, to whoever waits for it
            sys.exit(subprocess.run(command, env=environment, check=False).returncode)
        os.execve(sys.executable, command, environment)
    try:
        from ncpipe.cli import run_cli

        run_cli()
    except KeyboardInterrupt:
        print("ncpipe: interrupted; finished runs are kept, run dvc repro to go on", file=sys.stderr)
        sys.exit(130)


def checkout_above(folder: Path) -> Path | None:
    """The nearest folder at or above `folder` that holds a checkout of ncpipe."""
    for parent in (folder, *folder.parents):
        if (parent / "ncpipe" / "__main__.py").is_file() and (parent / "pyproject.toml").is_file():
            return parent.resolve()
    return None


if __name__ == "__main__":
    main()
