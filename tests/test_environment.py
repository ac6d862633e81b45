"""Variables of the shell that are meant for other programs, or for another place."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ncpipe.system.environment import clean_environment

LOCAL = subprocess.run(["git", "rev-parse", "--local-env-vars"], capture_output=True, text=True, check=True)
ELSEWHERE = (*LOCAL.stdout.split(), "GIT_CEILING_DIRECTORIES", "GIT_DEFAULT_HASH", "GIT_QUARANTINE_PATH")
WHO = ("GIT_AUTHOR_NAME", "GIT_COMMITTER_EMAIL", "GIT_CONFIG_GLOBAL", "GIT_SSH_COMMAND")
HIDDEN = ("SQUEUE_PARTITION", "SQUEUE_FORMAT", "SQUEUE_STATES", "SCANCEL_INTERACTIVE", "SBATCH_WAIT")
SUBMITTED = ("SBATCH_ACCOUNT", "SLURM_CONF", "SLURM_MEM_PER_NODE", "SLURM_ARRAY_JOB_ID")
BACKEND = """
import sys
from ncpipe.__main__ import main
sys.argv = ["ncpipe", "--version"]
try:
    main()
finally:
    import matplotlib
    assert matplotlib.get_backend() == "agg"
"""


def test_variables_for_another_place_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no others. Red: a variable that newer versions of git list and this one keeps; jobs that
    squeue hides, so that they are submitted again; an account that is lost."""
    for name in (*ELSEWHERE, *WHO, *HIDDEN, *SUBMITTED):
        monkeypatch.setenv(name, "given")
    monkeypatch.setenv("SLURM_CLUSTERS", "wice")
    monkeypatch.delenv("SBATCH_CLUSTERS", raising=False)
    clean_environment()
    assert {*ELSEWHERE, *HIDDEN, "SLURM_CLUSTERS"}.isdisjoint(os.environ)
    assert {*WHO, *SUBMITTED} <= {*os.environ}
    assert os.environ.pop("SBATCH_CLUSTERS") == "wice"


def test_figures_are_drawn_without_the_backend_of_a_notebook(tmp_path: Path) -> None:
    """Which is not installed here. Red: an error after all training."""
    environment = os.environ | {"MPLBACKEND": "module://matplotlib_inline.backend_inline"}
    subprocess.run([sys.executable, "-c", BACKEND], cwd=tmp_path, env=environment, check=True)
