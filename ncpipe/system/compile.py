"""Compile loops over arrays to machine code, where numba is installed, and say whether Triton can."""

import contextlib
import functools
import hashlib
import tempfile
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ncpipe.system.errors import cut

Loop = Callable[..., Any]


@functools.cache
def can_compile() -> bool:
    """Return whether numba is installed and works; warn once of one that cannot be imported.

    The first call imports it, half a second.
    """
    if find_spec("numba") is None:
        return False
    try:
        import numba  # noqa: F401
    except Exception as error:  # of a NumPy that it does not know, or of its compiler's library
        what = cut(f"{type(error).__name__}: {' '.join(str(error).split())}")
        warnings.warn(
            f"numba cannot be imported ({what}); PyTorch's operations are used, which take longer",
            stacklevel=2,
        )
        return False
    return True


@functools.cache
def problem_of_triton() -> str:
    """Return why Triton cannot be imported, '' if it can."""
    if find_spec("triton") is None:
        return "Triton is not installed"
    try:
        import triton  # noqa: F401
    except Exception as error:  # of a library that it needs
        return cut(f"Triton cannot be imported ({type(error).__name__}: {' '.join(str(error).split())})")
    return ""


def compiled(signatures: Sequence[str], fastmath: Collection[str] = ()) -> Callable[[Loop], Loop]:
    """Return a decorator that compiles a loop for these types of arguments; needs numba.

    The machine code is kept below `__pycache__` here or in the user's cache, so only the first import
    compiles. Numba's own key is a file and the loop's bytecode, so each loop with its constants, what it
    names and its options has a folder of its own; old ones may be deleted at any time.
    fastmath: LLVM's flags that allow operations in another order. Loops run without Python's global lock.
    """
    import numba  # half a second

    config: Any = numba.config
    options: dict[str, Any] = {"fastmath": set(fastmath), "nogil": True}

    def decorate(loop: Loop) -> Loop:
        key = _key(loop, signatures, options)
        before, folder = config.CACHE_DIR, _cache_folder(key, config.CACHE_DIR)
        config.CACHE_DIR = str(folder)
        try:
            compiled_loop: Any = numba.njit(list(signatures), cache=folder is not None, **options)(loop)
        finally:
            config.CACHE_DIR = before
        compiled_loop.ncpipe_key = key
        result: Loop = compiled_loop
        return result

    return decorate


def _key(loop: Any, signatures: Sequence[str], options: Mapping[str, Any]) -> str:
    """Return the digest of all that decides a loop's machine code, as it is in this process."""
    code, named = loop.__code__, [loop.__globals__.get(name) for name in loop.__code__.co_names]
    parts = (
        [code.co_code, code.co_consts, code.co_names, code.co_varnames],
        [getattr(value, "ncpipe_key", None) or repr(value) for value in named],  # other loops, and constants
        [*signatures],
        {name: sorted(value) if isinstance(value, set) else value for name, value in options.items()},
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _cache_folder(key: str, setting: str) -> Path | None:
    """Return a folder that can be written to: below numba's setting, if there is one, here or at home."""
    from numba.misc.appdirs import AppDirs

    home = AppDirs(appname="numba", appauthor=False).user_cache_dir
    for place in filter(None, (setting, Path(__file__).parent / "__pycache__", home)):
        folder = Path(place, f"loop-{key[:32]}")
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
            return folder
    return None
