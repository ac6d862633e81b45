"""params.yaml as DVC reads it, parsed once.

DVC parses the file again for every stage that depends on a key of it, up to three times; in Python, which for
twenty experiments takes a tenth of a second. With a thousand runs that is all that it does.
"""

import contextlib
import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dvc.dependency import param

READER, LOADER = "read_param_file", "load_path"  # of DVC 3: what a stage's parameters go through


@contextlib.contextmanager
def params_parsed_once() -> Iterator[None]:
    """As long as a parameter file has the same bytes it is parsed no more; what DVC is given is a copy."""
    read, load = getattr(param, READER, None), getattr(param, LOADER, None)
    if read is None or load is None:  # another version of DVC: then as it does
        yield
        return
    parsed: dict[str, tuple[bytes, Any]] = {}

    def load_once(path: str, fs: Any, **options: Any) -> Any:
        if options or getattr(fs, "protocol", "local") != "local":
            return load(path, fs, **options)
        content = Path(path).read_bytes()
        if parsed.get(path, (None,))[0] != content:
            parsed[path] = content, load(path, fs)
        return parsed[path][1]

    def read_copy(*arguments: Any, **options: Any) -> Any:
        """Of the values that were asked for alone: equal objects in dvc.lock would be written as one."""
        return copy.deepcopy(read(*arguments, **options))

    setattr(param, READER, read_copy)
    setattr(param, LOADER, load_once)
    try:
        yield
    finally:
        setattr(param, READER, read)
        setattr(param, LOADER, load)
