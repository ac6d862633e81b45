"""Clean the environment of a command and of the programs that it calls: git, DVC and Slurm's."""

import os

# Variables of git that say who commits and where git's settings and programs are. All others, which hooks and
# `git rebase --exec` set, can lead git to another repository than that of the working directory.
GIT = (
    "GIT_AUTHOR_", "GIT_COMMITTER_", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_NOSYSTEM", "GIT_CONFIG_SYSTEM",
    "GIT_EXEC_PATH", "GIT_SSH",
)  # fmt: skip
# Variables that hide jobs from squeue and scancel, or with which sbatch waits for a job's end.
SLURM = ("SBATCH_ERROR", "SBATCH_WAIT", "SCANCEL_", "SQUEUE_")


def clean_environment() -> None:
    """Remove from this process's environment what a shell may have for other programs, or another place.

    Figures are drawn by matplotlib's `agg`, also where a notebook or a user's matplotlibrc names another
    backend. SLURM_CLUSTERS becomes SBATCH_CLUSTERS: jobs are submitted there, and each command about them
    names their cluster itself.
    """
    for name in list(os.environ):
        if name.startswith(SLURM) or (name.startswith("GIT_") and not name.startswith(GIT)):
            del os.environ[name]
    os.environ["MPLBACKEND"] = "agg"
    if clusters := os.environ.pop("SLURM_CLUSTERS", None):
        os.environ.setdefault("SBATCH_CLUSTERS", clusters)
