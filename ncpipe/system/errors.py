"""The one exception that is shown to the user as lines instead of a traceback, and how they stay short."""

import sys
import warnings
from collections.abc import Iterable

LINE = 300  # characters of a line of a message
WORD = 60  # of what the user wrote, repeated in it
# Packages that stand between a user's line and a warning: ours, what calls our hooks, and trainers.
BETWEEN = frozenset(("ncpipe", "torch", "torchmetrics", "lightning", "pytorch_lightning", "transformers"))


class InputError(ValueError):
    """A mistake in what ncpipe was given; the message names the key or file and says what to do.

    Several mistakes are as many lines.
    """


class NotEnoughMemory(InputError):
    """One run takes more memory than there is, so fewer runs at a time do not help."""


def shown(value: object) -> str:
    """Return what the user wrote, as Python writes it, in one line that is cut where it is long."""
    text = repr(value[: WORD + 1] if isinstance(value, str) else value)
    return cut(" ".join(line.strip() for line in text.splitlines()), WORD)


def word(name: object) -> str:
    """Return a user's name for a message, as Python writes it if it has what no terminal shows."""
    text = str(name)
    return cut(text if text and text.isprintable() else repr(text), WORD)


def suggest(name: object, known: Iterable[object]) -> str:
    """Return what to write in place of an unknown name."""
    from difflib import get_close_matches  # only where something is misspelt

    words = [word(choice) for choice in known]
    if not words:
        return "nothing is allowed here"
    near = get_close_matches(str(name)[:WORD], words, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}allowed: {', '.join(words)}"


def cut(text: str, length: int = LINE) -> str:
    """Return at most `length` characters of a text."""
    return text if len(text) <= length else f"{text[: length - 3]}..."


class MeasurementWarning(UserWarning):
    """Features that can be measured, but whose metrics say less than they seem to."""


def warn(message: str) -> None:
    """Warn (MeasurementWarning) at the line of the user's own code that measures."""
    frame, level = sys._getframe(), 1
    while frame.f_back and str(frame.f_globals.get("__name__")).partition(".")[0] in BETWEEN:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, MeasurementWarning, stacklevel=level)
