"""Read how much memory and how many cores this process may use."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")


def free_memory() -> int:
    """Return the bytes that are free on this machine, within the limits of this process.

    Limits are those of its control groups (a container, a service) and of its Slurm job.
    """
    try:
        import psutil  # only where numbers are about to be computed
    except ModuleNotFoundError:  # PyTorch and NumPy alone: pages that nothing uses, not even a cache
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    resident = psutil.Process().memory_info().rss
    limits = [*_cgroup_limits(), *_job_limit()]
    return max(0, min([psutil.virtual_memory().available, *(limit - resident for limit in limits)]))


def _cgroup_limits() -> Iterator[int]:
    """Yield the limits of all groups around this process, in version 1 and 2 of control groups."""
    with contextlib.suppress(OSError):  # not Linux
        for line in OWN_CGROUPS.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            root, name = (
                (CGROUPS / "memory", "memory.limit_in_bytes") if controllers else (CGROUPS, "memory.max")
            )
            group = root / path.lstrip("/")  # missing in some containers, which have the root alone
            for folder in (group, *group.parents):
                if folder.is_relative_to(root):
                    with contextlib.suppress(OSError, ValueError):  # no such file, or `max`: no limit
                        yield int((folder / name).read_text())


def _job_limit() -> Iterator[int]:
    """Yield the memory of this process's Slurm job, if it is in one; 0 means all of the node's."""
    megabytes, per_cpu = os.environ.get("SLURM_MEM_PER_NODE"), os.environ.get("SLURM_MEM_PER_CPU")
    with contextlib.suppress(ValueError):
        limit = int(megabytes or per_cpu or 0) * (
            1 if megabytes else int(os.environ.get("SLURM_CPUS_ON_NODE", 1))
        )
        if limit:
            yield limit * 2**20


def usable_cores() -> int:
    """Return the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
