"""Which functions of the package really run: what digests of code have to know (test_code.py)."""

import inspect
import sys
import threading
from collections.abc import Collection
from pathlib import Path
from types import CodeType, FrameType

from ncpipe.config.reading import PACKAGE
from ncpipe.runs.closures import ROOT

Definition = tuple[str, str]  # module, name at its top


class Traced:
    """The functions of the package that are called while it is entered, by module and name at its top.

    within: only those that these call, directly or not, and these.
    """

    def __init__(self, within: Collection[Definition] = ()) -> None:
        self.seen: set[CodeType] = set()
        self.within = {(str(file_of(module)), name) for module, name in within}

    def __enter__(self) -> "Traced":
        threading.settrace(self._note)
        sys.settrace(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        threading.settrace(None)

    def _note(self, frame: FrameType, *_: object) -> None:
        if self.within and frame.f_code not in self.seen:
            caller: FrameType | None = frame
            while caller and (caller.f_code.co_filename, caller.f_code.co_name) not in self.within:
                caller = caller.f_back
            if caller is None:
                return
        self.seen.add(frame.f_code)

    def counted(self, without: Collection[str]) -> set[Definition]:
        """Less those of the modules that do not count, and templates, whose bytes are counted."""
        files = [seen for seen in self.seen if seen.co_filename.endswith(".py")]
        functions = [seen for seen in files if seen.co_flags & inspect.CO_OPTIMIZED]  # no bodies of classes
        ours = [seen for seen in functions if Path(seen.co_filename).is_relative_to(ROOT / PACKAGE)]
        paths = [Path(seen.co_filename).relative_to(ROOT).with_suffix("").parts for seen in ours]
        modules = [".".join(parts).removesuffix(".__init__") for parts in paths]
        names = [seen.co_qualname.partition(".")[0] for seen in ours]
        pairs = set(zip(modules, names, strict=True))
        return {pair for pair in pairs if pair[0] not in without and pair[1][0] != "<"}  # < of no definition


def file_of(module: str) -> Path:
    return ROOT.joinpath(*module.split(".")).with_suffix(".py")
