"""Where batches train: what an engine does, and what the driver makes of it.

The driver decides what is to train; engines know nothing of DVC. What they are
given and give back is `Work` and `Ended` (`ncpipe.runs.engines.work`); the results are folders in the
store, which are checked to the bit before DVC hears of them.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

from ncpipe.runs.engines.work import Ended, Work
from ncpipe.system.console import say
from ncpipe.system.errors import InputError

LOST = 3  # times that work is tried again whose process or machine ended


class Engine(Protocol):
    """Trains work somewhere.

    tries_again: whether what failed is worth another try: elsewhere it may go better.
    outlives: whether its jobs go on when the driver ends.
    """

    tries_again: bool
    outlives: bool

    def submit(self, works: Sequence[Work]) -> None:
        """Take work; also while `watch` is under way. Batches are sized where they train."""

    def watch(self, wait: bool = True) -> Iterator[Ended]:
        """Each piece of work once it has ended, until none is left; without `wait` those that have by now.

        What an engine has submitted in an earlier process, and not told yet, is among them.
        """

    def collect(self, ended: Ended) -> None:
        """See that the finished runs of what has ended are in the store here."""

    def cancel(self) -> None:
        """End all that waits or trains; what trains leaves its checkpoints, where it can."""


def drive(engine: Engine, works: Sequence[Work], keep_going: bool, wait: bool = True) -> list[Ended]:
    """Have an engine train work into the store, and what may yet go well once more; what did not, at last.

    Unless it is to keep going, the first that fails for good is an InputError. On that and on Ctrl-C what
    trains is cancelled, unless the engine's jobs outlive the driver.
    """
    failed: list[Ended] = []
    try:
        if works:
            engine.submit(works)
        for ended in engine.watch(wait):
            engine.collect(ended)
            again = next_try(ended) if engine.tries_again else []
            if again:
                say(f"sweep: {ended.work.name} {_told(ended)}; tried again{_how(ended, again)}")
                engine.submit(again)
            elif ended.state != "done" and ended.work.missing():  # what was lost may have been finished
                failed.append(ended)
                if not keep_going:
                    raise InputError(ended.reason)
                say(f"ncpipe: {ended.reason}")
    except BaseException:
        if not engine.outlives:
            engine.cancel()
        raise
    return failed


def next_try(ended: Ended) -> list[Work]:
    """What to try once more: each run of a failed batch alone, halves of what took too much memory.

    A run that failed alone, twice, has failed; so has one that does not fit alone, and what was lost too
    often.
    """
    work = ended.work.of(ended.work.missing(), ended.work.tries + 1)
    if ended.state in ("done", "refused") or not work.runs:
        return []
    if ended.state == "lost":
        return [work] if work.tries <= LOST else []
    if len(work.runs) > 1:
        return work.in_parts(2 if ended.state == "memory" else len(work.runs))
    return [work] if ended.state == "failed" and work.tries == 1 else []


def _told(ended: Ended) -> str:
    said = {"failed": "failed", "memory": "ran out of memory", "lost": "was lost"}[ended.state]
    last = ended.reason.strip().rpartition("\n")[2]
    return f"{said} ({last})" if last else said


def _how(ended: Ended, again: Sequence[Work]) -> str:
    if ended.state == "lost" or len(ended.work.runs) == 1:
        return ""
    return " with half the batch" if ended.state == "memory" else ", each run alone"
