"""Compile loops over arrays to machine code, where numba is installed, and say whether Triton can."""

import functools
import warnings
from collections.abc import Callable, Collection, Sequence
from importlib.util import find_spec
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

    The machine code is kept beside the loop's file or in the user's cache, so only the first import compiles.
    fastmath: LLVM's flags that allow operations in another order. Loops run without Python's global lock.
    """
    from numba import njit  # half a second

    options: dict[str, Any] = {"fastmath": set(fastmath), "nogil": True}

    def decorate(loop: Loop) -> Loop:
        try:
            compiled_loop: Loop = njit(list(signatures), cache=True, **options)(loop)
        except RuntimeError:  # neither the file's folder nor the user's cache can be written to
            compiled_loop = njit(list(signatures), **options)(loop)
        return compiled_loop

    return decorate
