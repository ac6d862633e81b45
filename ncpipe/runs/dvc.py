"""Run DVC as a program, and find its folders. Nothing here imports DVC."""

import configparser
import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

from ncpipe.system.artifacts import CODE, md5_of
from ncpipe.system.errors import InputError

LOCK = Path("dvc.lock")


def dvc(*arguments: str, quiet: bool = False) -> None:
    """Run DVC in the current folder; print its output, if `quiet` only where it fails, with InputError.

    Stages run the `ncpipe` of this Python environment, even if PATH has another one.
    """
    command = [sys.executable, "-P", "-m", "dvc", *arguments]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    result = subprocess.run(
        command,
        stdout=subprocess.PIPE if quiet else None,
        text=True,
        check=False,
        env={**os.environ, "PATH": path},
    )
    if result.returncode:
        sys.stderr.write(result.stdout or "")
        raise InputError(
            f"dvc {' '.join(arguments)} failed, see above (after a kill or a merge: "
            f"git checkout HEAD {LOCK}; after a kill also rm -f .dvc/tmp/rwlock)"
        )


def dvc_folder() -> Path | None:
    """Return `.dvc` of the project that contains the current folder, if there is one."""
    here = Path.cwd()
    return next((place / ".dvc" for place in (here, *here.parents) if (place / ".dvc").is_dir()), None)


def cached_files() -> Path | None:
    """Return the folder with the files of DVC's cache, named by their MD5; None outside a project."""
    dvc = dvc_folder()
    return None if dvc is None else cache_folder(dvc) / "files" / "md5"


def locked_files(below: Path) -> dict[Path, dict[str, str]]:
    """Return by its path each output below a folder in dvc.lock, as the MD5 of its files by their names.

    Of stages whose code and parameters, the dependencies in data/code, are as they were. An output has no
    files where DVC's cache lacks their list.
    """
    import yaml  # slow, and only needed where runs are missing

    try:
        stages = yaml.load(LOCK.read_bytes(), yaml.CSafeLoader)["stages"].values()
        return {
            Path(out["path"]): _files(out["md5"])
            for stage in stages
            for out in stage.get("outs", ())
            if below in Path(out["path"]).parents and all(map(_as_it_was, stage.get("deps", ())))
        }
    except (OSError, yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError):
        return {}  # no lock, or not one of DVC's: `dvc` itself says what is wrong


def _as_it_was(dependency: dict[str, str]) -> bool:
    path = Path(dependency["path"])
    return CODE not in path.parents or (path.is_file() and md5_of(path) == dependency["md5"])


def _files(md5: str) -> dict[str, str]:
    """Return the MD5 of the files of a folder in DVC's cache, by their names; {} if its list is not there."""
    if (cache := cached_files()) is None or not (listed := cache / md5[:2] / md5[2:]).is_file():
        return {}
    try:
        return {file["relpath"]: file["md5"] for file in json.loads(listed.read_bytes())}
    except (ValueError, TypeError, KeyError):  # damaged, which `ncpipe repair` removes
        return {}


def cache_folder(dvc: Path) -> Path:
    """Return the cache of the project with this `.dvc`, as `dvc cache dir` prints it.

    DVC reads the configs of the system, the user and the project, and config.local. The last one that has
    cache.dir decides. A relative path starts at that config's folder.
    """
    cache = dvc / "cache"
    for file in (*_global_settings(), dvc / "config", dvc / "config.local"):
        settings = configparser.ConfigParser(interpolation=None, strict=False)
        with contextlib.suppress(configparser.Error, OSError, UnicodeDecodeError):
            settings.read(file, encoding="utf-8")
            if folder := settings.get("cache", "dir", fallback="").strip("\"'"):
                cache = file.parent / os.path.expanduser(folder)
    return cache


def _global_settings() -> list[Path]:
    """Return the paths of DVC's configs of the system and of the user."""
    folders = [os.environ.get(f"DVC_{level}_CONFIG_DIR", "") for level in ("SYSTEM", "GLOBAL")]
    if not all(folders):
        import platformdirs  # DVC finds them with it

        app = "dvc", "iterative"
        defaults = platformdirs.site_config_dir(*app), platformdirs.user_config_dir(*app)
        folders = [folder or default for folder, default in zip(folders, defaults, strict=True)]
    return [Path(folder) / "config" for folder in folders]
