"""Official files on disk: downloaded or copied from a mirror, checked by MD5, and read out of archives.

Every function raises InputError in one line that names the file or address and says what to do. Errors of
this machine's own disk (full, not writable) pass through as they are.
"""

import gzip
import hashlib
import http.client
import lzma
import ssl
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ncpipe.system.artifacts import md5_of, publish_file
from ncpipe.system.errors import InputError

CHUNK = 1 << 20
TIMEOUT = 60.0
OFFLINE = "without internet, put the official file in a folder and name it with --mirror DIR or NCPIPE_MIRROR"
DAMAGED_ARCHIVE = (tarfile.TarError, EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile)
LOST_CONNECTION = (
    urllib.error.URLError,
    http.client.HTTPException,
    TimeoutError,
    ConnectionError,
    ssl.SSLError,
)


def progress_bar(progress: bool, **options: Any) -> "tqdm[Any]":
    """Return a bar on standard error; none without `progress` or where standard error is no terminal."""
    return tqdm(disable=None if progress else True, leave=False, **options)


def require_md5(path: Path, md5: str) -> None:
    """Raise InputError unless the bytes of `path` are the official ones."""
    if not path.is_file():  # a folder, or a pipe that nothing ever writes to
        raise InputError(f"{path}: not a file; put the official one there")
    if (actual := md5_of(path)) != md5:
        raise InputError(
            f"{path}: damaged or cut short (MD5 {actual}, the official file has {md5}); "
            "delete it and fetch it again"
        )


def find_official(
    target: Path, md5: str, urls: Sequence[str], mirror: Path | None, names: Sequence[str], progress: bool
) -> Path:
    """Return an official file: `target`, downloaded unless it is there, or what a mirror has in its place.

    names: of files and folders in the mirror, or patterns of these; the first that exists is taken. Raises
    InputError if the bytes of `target` are not the official ones.
    """
    if target.is_file():
        require_md5(target, md5)
    elif mirror is None:
        download(urls, target, md5, progress)
    elif paths := [path for name in names for path in sorted(mirror.glob(name))]:
        return paths[0]
    else:
        raise InputError(
            f"{mirror}: the mirror holds none of {', '.join(names)}; put one there or go without the mirror"
        )
    return target


def fetch_verified(
    target: Path, md5: str, urls: Sequence[str], mirror: Path | None, names: Sequence[str], progress: bool
) -> None:
    """Put an official file in its place unless it is there; see `find_official`."""
    if (source := find_official(target, md5, urls, mirror, names, progress)) != target:
        copy_verified(source, target, md5)


def copy_verified(source: Path, target: Path, md5: str) -> None:
    """Copy an official file; InputError names `source` if its bytes are not the official ones."""
    require_md5(source, md5)
    with publish_file(target) as partial:
        partial.write_bytes(source.read_bytes())


def download(urls: Sequence[str], target: Path, md5: str, progress: bool) -> None:
    """Download the first of `urls` that answers as `target`; whole and with that MD5, or not at all."""
    failures = []
    for url in urls:
        try:
            with publish_file(target) as partial:
                _receive(url, partial, progress)
                if md5_of(partial) != md5:
                    raise InputError(f"{url}: what arrived is not the official file (MD5 differs); try again")
        except LOST_CONNECTION as error:
            failures.append(f"{url} ({getattr(error, 'reason', None) or error or type(error).__name__})")
        else:
            return
    raise InputError(f"cannot download {', '.join(failures)}; try again, or {OFFLINE}")


def _receive(url: str, target: Path, progress: bool) -> None:
    request = urllib.request.Request(url, headers={"User-Agent": "ncpipe"})
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer, target.open("wb") as file:
        size = answer.headers.get("Content-Length")
        total = int(size) if size else None
        bar = progress_bar(progress, total=total, desc=target.name, unit="B", unit_scale=True)
        with bar:
            while chunk := answer.read(CHUNK):
                file.write(chunk)
                bar.update(len(chunk))


def read_members(archive: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of the wanted files of a tar archive, in its order; nothing is written to disk."""
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                name = member.name.removeprefix("./")
                if member.isfile() and wanted(name):
                    file = tar.extractfile(member)
                    assert file is not None
                    yield name, file.read()
    except DAMAGED_ARCHIVE as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(
            f"{archive}: damaged or cut short ({reason}); delete it and fetch it again"
        ) from None


def unpack_verified(
    archive: Path, prefix: str, files: Mapping[str, str], folder: Path, progress: bool
) -> None:
    """Write `files` (name -> MD5), found in the archive as `prefix/name`, to `folder`.

    Members are read one by one and written under our own names, so that an archive cannot write elsewhere.
    """
    missing = dict(files)
    names = {f"{prefix}/{name}": name for name in files}
    with progress_bar(progress, total=len(files), desc=f"unpacking {archive.name}") as bar:
        for member, content in read_members(archive, names.__contains__):
            name = names[member]
            if hashlib.md5(content, usedforsecurity=False).hexdigest() != files[name]:
                raise InputError(
                    f"{archive}: its member {member} is not the official file (MD5 differs); "
                    "delete the archive and fetch it again"
                )
            with publish_file(folder / name) as partial:
                partial.write_bytes(content)
            missing.pop(name, None)
            bar.update()
    if missing:
        raise InputError(f"{archive}: has no {prefix}/{min(missing)}; delete the archive and fetch it again")
