"""Tell where results come from: commit, versions, machine and times of training."""

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from ncpipe import __version__
from ncpipe.config.params import Params
from ncpipe.runs.fingerprint import RUN_RECORD, key_of_record
from ncpipe.runs.training_log import DIGITS, training_times
from ncpipe.system.artifacts import RUNS, read_json

PACKAGES = ("torch", "numpy", "scipy", "pandas", "scikit-learn", "matplotlib", "dvc")


def provenance(params: Params) -> dict[str, Any]:
    """Return the source, versions, machine and training times of the sweep's results.

    Raises InputError if a run of the sweep has no folder.
    """
    runs = params.grid()
    records = [read_json(RUNS / run.path / RUN_RECORD) for run in runs]
    computed_with = [record["computed_with"] for record in records]
    names = computed_with[0]
    run_of = {key_of_record(record)[:DIGITS]: run for record, run in zip(records, runs, strict=True)}
    return {
        "source": source(),
        "trained_with": {name: sorted({str(facts[name]) for facts in computed_with}) for name in names},
        "published_with": {"ncpipe": __version__, "python": platform.python_version()},
        "machine": machine(),
        "training": training_times(run_of, params.compute.threads),
    }


def machine() -> dict[str, Any]:
    """Return processor, cores, memory and system of this machine."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9),
        "system": platform.system(),
    }


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that affect numbers and figures."""
    return {"python": platform.python_version()} | {name: version(name) for name in PACKAGES}


def source() -> dict[str, Any]:
    """Return the current commit and the files that differ from it; empty outside a git repository."""
    try:
        commit = _git("rev-parse", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return {}
    return {"commit": commit, "changed": sorted(line[3:] for line in changed.splitlines())}


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.rstrip()


def _processor() -> str:
    """Return the processor's name, as far as the system reports it."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
