"""DVC, run as the program that it is."""

import json
import os
import subprocess
import sys
from pathlib import Path

from ncpipe.runs.dvc_repair import LOCK, is_torn
from ncpipe.system.errors import InputError


def dvc(*arguments: str, capture: bool = False) -> str:
    """Run DVC here; what it printed, if `capture`, which is shown if it fails. InputError if it does.

    Its stages call the `ncpipe` of this environment, whichever the shell would find, if any.
    """
    command = [sys.executable, "-P", "-m", "dvc", *arguments]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    result = subprocess.run(
        command,
        stdout=subprocess.PIPE if capture else None,
        text=True,
        check=False,
        env={**os.environ, "PATH": path},
    )
    if result.returncode:
        sys.stderr.write(result.stdout or "")
        if LOCK.exists() and is_torn(LOCK.read_bytes()):
            raise InputError(f"{LOCK}: torn; run ncpipe repair")
        raise InputError(f"dvc {' '.join(arguments)} failed; see above")
    return result.stdout or ""


def stale_stages() -> set[str]:
    """Names of the stages that have changed, as DVC has them."""
    return set(json.loads(dvc("status", "--json", capture=True)))
