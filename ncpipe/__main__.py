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
        command = [sys.executable, "-m", "ncpipe", *sys.argv[1:]]
        try:
            sys.exit(subprocess.run(command, env=environment, check=False).returncode)
        except KeyboardInterrupt:  # the child has had it too, and has said so
            sys.exit(130)
    from ncpipe.cli import run_cli

    run_cli()


def checkout_above(folder: Path) -> Path | None:
    """The nearest folder at or above `folder` that holds a checkout of ncpipe."""
    for parent in (folder, *folder.parents):
        if (parent / "ncpipe" / "__main__.py").is_file() and (parent / "pyproject.toml").is_file():
            return parent.resolve()
    return None


if __name__ == "__main__":
    main()
