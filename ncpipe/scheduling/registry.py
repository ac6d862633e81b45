"""What DVC knows of the sweep's runs, and telling it of runs that were trained without it."""

import contextlib
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import psutil
from filelock import FileLock

from ncpipe.artifacts import AHEAD, publish_file
from ncpipe.dvc_repair import LOCK, dvc_folder, is_torn
from ncpipe.errors import InputError
from ncpipe.specs import Run
from ncpipe.yamlfile import read_yaml

PROGRAM = "ncpipe.scheduling.dvc_program"
FORMER = AHEAD / "dvc.lock"  # as it was, while runs are registered; empty if there was none
EARLIER = AHEAD / "registered-earlier.json"  # runs in dvc.lock before a sweep registered the first of its own


def stage_name(run: Run) -> str:
    """DVC's name of the stage that trains a run."""
    value = "" if run.value is None else f"-{run.value}"
    return f"train@{run.experiment}-{run.depth}{value}-{run.seed}"


def stale_stages(target: str = "train") -> set[str]:
    """Names of the stages that have changed, of `train` or of a whole dvc.yaml."""
    return set(json.loads(dvc("status", "--json", target, capture=True)))


def restore_cached(stages: Collection[str]) -> set[str]:
    """Bring back runs that DVC has in its run cache; the stages that it had. They stay stale.

    `dvc repro` does the same before it runs a command: nothing trains twice.
    """
    if not stages:
        return set()
    from dvc.repo import Repo

    with Repo() as repo, repo.lock:
        return _in_run_cache(repo, stages, dry=False)


def cached_stages(stages: Collection[str]) -> set[str]:
    """Those of the stages `train` that `dvc repro` would restore instead of running them. Changes nothing.

    For a command that DVC itself runs: DVC's lock is neither asked for nor needed. What DVC cannot tell,
    because there is no repository here or for any other reason, counts as not cached.
    """
    if dvc_folder() is None:
        return set()
    try:
        from dvc.logger import set_loggers_level
        from dvc.repo import Repo

        with set_loggers_level(logging.ERROR), Repo() as repo:  # quiet: it would claim to restore them
            return _in_run_cache(repo, stages, dry=True)
    except Exception:  # an answer saves time and decides nothing, so none is as good as no
        return set()


def dvc_wants_all() -> bool:
    """Whether the `dvc repro` or `dvc exp run` that runs this command will ask for every stale run.

    So it does if its targets are pipelines or whole stages, as they are by default. What cannot be told,
    because no DVC runs this or for any other reason, counts as no.
    """
    try:
        from dvc.cli import parse_args

        for process in psutil.Process().parents():
            command = process.cmdline()
            names = [Path(word).stem == "dvc" or word == PROGRAM for word in command]
            if any(names):
                asked = parse_args(command[names.index(True) + 1 :])
                whole = {"dvc.yaml", *read_yaml(Path("dvc.yaml"))["stages"]}
                return not (asked.single_item or asked.recursive) and whole.issuperset(asked.targets)
    except Exception:  # an answer saves time and decides nothing
        pass
    return False


def _in_run_cache(repo: Any, stages: Collection[str], dry: bool) -> set[str]:
    """Those of the stages `train` that the run cache has; brought back too, unless `dry`."""
    from dvc.exceptions import DvcException
    from dvc_data.hashfile.hash_info import HashInfo

    from ncpipe.scheduling.dvc_params import params_parsed_once

    found = set()
    with params_parsed_once():
        for stage in repo.stage.collect("train"):
            name = stage.addressing.rpartition(":")[2]
            if name not in stages:
                continue
            with contextlib.suppress(DvcException):  # not in the cache
                if dry and (stage.changed_stage() or not stage.deps_cached()):
                    stage.save_deps()  # restore() does, unless dry: dvc.lock is of another run then
                    for output in stage.outs:
                        output.hash_info = HashInfo()
                repo.stage_cache.restore(stage, dry=dry)
                found.add(name)
    return found


def register(stages: Collection[str] | None = None) -> None:
    """Make DVC take the runs in their places as the results of their stages, in one write of dvc.lock.

    stages: those of which it is to do so; all runs', if there are none named. Until `end_parts`, what one
    part after the other adds to dvc.lock stands there as if `dvc repro` had added it: in dvc.yaml's order.
    """
    if stages is None and not EARLIER.exists():
        dvc("commit", "--quiet", "--force", "train")
    elif stages is None or stages:
        if not EARLIER.exists():
            with publish_file(EARLIER) as partial:
                partial.write_text(json.dumps(_registered_runs()), encoding="utf-8")
        earlier = json.loads(EARLIER.read_text(encoding="utf-8"))
        told = {"stages": None if stages is None else sorted(stages), "earlier": earlier}
        dvc("commit-runs", text=json.dumps(told))


def end_parts() -> None:
    """No more parts of this sweep are to come."""
    EARLIER.unlink(missing_ok=True)


def _registered_runs() -> list[str]:
    """The stages `train` in dvc.lock, without a parse, which takes a minute for some thousand."""
    text = LOCK.read_text(encoding="utf-8") if LOCK.exists() else ""
    return re.findall(r"^  (train@\S+):$", text, re.MULTILINE)


@contextlib.contextmanager
def lock_kept() -> Iterator[None]:
    """dvc.lock as it was comes back, by a rename, if the block does not come to its end.

    After a kill it comes back by the next `bring_lock_back`, so until then it is on the disk.
    """
    with _registration():
        with publish_file(FORMER) as partial:
            partial.write_bytes(LOCK.read_bytes() if LOCK.exists() else b"")
        try:
            yield
        except BaseException:
            with contextlib.suppress(OSError):  # a full disk, as a rule: the next call brings it back
                _bring_back()
            raise
        FORMER.unlink()


def bring_lock_back() -> bool:
    """Whether a registration was killed, after which dvc.lock is now what it was before."""
    with _registration():
        found = FORMER.exists()
        if found:
            _bring_back()
        return found


def _registration() -> FileLock:
    return FileLock(AHEAD / "registration.lock")


def _bring_back() -> None:
    if former := FORMER.read_bytes():
        with publish_file(LOCK) as partial:  # data/ may lie on another file system: no rename from there
            partial.write_bytes(former)
    else:  # there was none
        LOCK.unlink(missing_ok=True)
    FORMER.unlink()


def dvc(*arguments: str, capture: bool = False, text: str | None = None) -> str:
    """Run DVC here, on the input `text`; what it printed, if `capture`. InputError if it fails.

    Its stages call the `ncpipe` of this environment, whichever the shell would find, if any.
    """
    command = [sys.executable, "-P", "-m", PROGRAM, *arguments]
    output = subprocess.PIPE if capture else None
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    result = subprocess.run(
        command, input=text, stdout=output, text=True, check=False, env={**os.environ, "PATH": path}
    )
    if result.returncode:
        if LOCK.exists() and is_torn(LOCK.read_bytes()):
            raise InputError(f"{LOCK}: torn; run ncpipe repair")
        raise InputError(f"dvc {' '.join(arguments)} failed; see above")
    return result.stdout or ""
