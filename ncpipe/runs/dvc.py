"""Run DVC as a program, and find its folders. Nothing here imports DVC."""

import configparser
import contextlib
import os
import subprocess
import sys
from pathlib import Path

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
        try:
            import platformdirs  # DVC finds them with it
        except ImportError:
            return []
        app = "dvc", "iterative"
        defaults = platformdirs.site_config_dir(*app), platformdirs.user_config_dir(*app)
        folders = [folder or default for folder, default in zip(folders, defaults, strict=True)]
    return [Path(folder) / "config" for folder in folders]
