"""What bad input may do: nothing, or one InputError of short lines; never anything else, never for long."""

import time
from collections.abc import Callable

from ncpipe.system.errors import LINE, InputError

SECONDS = 20.0  # 2 on a quiet machine: what takes longer is under way to a job of hours


def refusal(call: Callable[[], object], *named: str) -> str | None:
    """The message that `call` ended with, or None if it went well.

    Its lines are short, and each of `named` stands in one of them. Any other exception, a warning too (pytest
    makes errors of them), passes through and fails the test.
    """
    start = time.monotonic()
    message = None
    try:
        call()
    except InputError as error:
        message = str(error)
    assert time.monotonic() - start < SECONDS
    if message is not None:
        lines = message.split("\n")
        assert message.strip()
        assert max(map(len, lines)) <= LINE, message
        assert all(line.isprintable() for line in lines), message
        for word in named:
            assert any(word in line for line in lines), (word, message)
    return message
