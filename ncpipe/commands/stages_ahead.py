"""What `extract` and `measure` do besides their own experiment: where DVC will ask for more, more of it.

A stage takes two seconds to load PyTorch, often more than its own work. So the first one does that of the
others too, and leaves it in `ncpipe.scheduling.waiting`, where they claim it. All are done by as many
processes as are worth it. What fails is left to its own stage, which says why.
"""

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from filelock import FileLock, Timeout

from ncpipe.artifacts import AHEAD, FEATURES, RUNS
from ncpipe.bounds import usable_cores
from ncpipe.code_memory import settled_state
from ncpipe.commands.code import is_described
from ncpipe.commands.extract import double_compute, extract_experiment
from ncpipe.commands.grid import read_grid
from ncpipe.commands.stage_times import count_ahead
from ncpipe.console import say
from ncpipe.errors import InputError
from ncpipe.params import Params, load_params
from ncpipe.scheduling.dvc_entries import Entries
from ncpipe.scheduling.hands import Hands
from ncpipe.scheduling.registry import dvc_wants_all
from ncpipe.scheduling.waiting import (
    Stage,
    checked,
    digests_of,
    drop,
    drop_others,
    leave,
    root_of,
    sources_of,
    waits,
    words_for,
)
from ncpipe.specs import Device
from ncpipe.stamps import Stamp, is_current, stamps_of
from ncpipe.training.device import prepare_device

LOCK = AHEAD / ".stages.lock"
Each = Callable[..., Iterable[Any]]


@dataclass(frozen=True)
class Item:
    """A stage of an experiment that DVC is going to run; stamps: of the experiment's runs."""

    stage: Stage
    experiment: str
    stamps: list[Stamp]


@contextlib.contextmanager
def hands_of(
    stage: Stage, experiment: str, device: Device | None, workers: int | None, ahead: bool
) -> Iterator[Each]:
    """Who shares a stage's own runs, in the block; after it, what is done ahead.

    workers: processes, None for one per core. On a GPU this process alone extracts, and nothing is done
    ahead. ahead: whether it is wished for; it is done only if a DVC runs this that will ask for all.
    """
    if waits(stage, experiment):
        _say_why_not(stage, experiment)
        drop(stage, experiment)
    params = load_params()
    on_cpu = stage == "measure" or prepare_device(double_compute(params.compute, device)).type == "cpu"
    most = (workers or max(1, usable_cores() // params.compute.threads)) if on_cpu else 1
    runs = len(params.runs_of(experiment))
    items: list[Item] = []
    entries = functools.cache(lambda: Entries(["extract", "measure"]))
    if ahead and on_cpu and device is None and "DVC_STAGE" in os.environ:
        with contextlib.suppress(InputError, OSError):  # its own stage says why
            items = _behind(stage, experiment, params, entries)
    with Hands(most, runs + sum(len(item.stamps) for item in items)) as hands:
        yield hands.each
        if items:
            with contextlib.suppress(Timeout), FileLock(LOCK).acquire(timeout=0):
                _make(items, stage, experiment, entries(), hands)


def _say_why_not(stage: Stage, experiment: str) -> None:
    try:
        checked(stage, experiment)
    except (InputError, OSError) as error:
        say(f"{stage} {experiment}: {error}; what was made ahead is dropped")


def _behind(stage: Stage, experiment: str, params: Params, entries: Callable[[], Entries]) -> list[Item]:
    """What DVC is going to run after this, as far as that can be told and done now, in the order of doing."""
    if not is_described() or settled_state() is None or not dvc_wants_all():
        return []
    stamps = {name: own for name in params.sweep.experiments if (own := _trained(params, name))}
    others = [name for name in stamps if name != experiment]
    anew: list[str] = []  # whose features are, or will be, other ones than DVC has measured
    if stage == "extract":
        extracts = [name for name in others if not entries().have(_command("extract", name), {})]
        items = [Item("extract", name, stamps[name]) for name in extracts]
        if params.compute.threads > 1:  # whose threads would still flush subnormal numbers, unlike measure's
            return items
        anew = [name for name in stamps if name in {experiment, *extracts}]
    else:
        items = []
    others = [name for name in others if name not in anew and (FEATURES / name).is_dir()]
    rest = [name for name in others if not entries().have(_command("measure", name), {})]
    return items + [Item("measure", name, stamps[name]) for name in [*anew, *rest]]


def _trained(params: Params, experiment: str) -> list[Stamp]:
    """The stamps of an experiment's runs, if all are in their places; else none."""
    try:
        runs = read_grid(params, experiment)
        stamps = stamps_of(runs, params.compute)
    except InputError:
        return []
    return stamps if all(is_current(RUNS / stamp.run.path, stamp) for stamp in stamps) else []


def _command(stage: Stage, experiment: str) -> str:
    return " ".join(["ncpipe", stage, *words_for(experiment)])


def _make(items: list[Item], stage: Stage, experiment: str, entries: Entries, hands: Hands) -> None:
    """Leave the results of all items that DVC has not got."""
    drop_others((item.stage, item.experiment) for item in items)
    counts = [f"{sum(item.stage == kind for item in items)} of {kind}" for kind in ("extract", "measure")]
    say(f"{stage} {experiment}: goes on with what DVC asks for next, {' and '.join(counts)}")
    for place, item in enumerate(items):
        begin = time.monotonic()
        hands.left = sum(len(left.stamps) for left in items[place:])
        try:
            _make_one(item, entries, hands.each, begin)
        except Exception as error:
            drop(item.stage, item.experiment)
            say(f"{item.stage} ahead {item.experiment}: left to its own stage ({error})")
        count_ahead(time.monotonic() - begin)


def _make_one(item: Item, entries: Entries, each: Each, begin: float) -> None:
    name = item.experiment
    waiting = root_of("extract")
    features = waiting if (waiting / name).is_dir() else FEATURES
    instead = {} if features == FEATURES else {FEATURES / name: waiting / name}
    if item.stage == "measure" and not (features / name).is_dir():  # they could not be extracted
        return
    if waits(item.stage, name):
        with contextlib.suppress(InputError, OSError):
            checked(item.stage, name, instead)
            return
        drop(item.stage, name)
    if item.stage == "measure" and entries.have(_command("measure", name), instead):
        return
    sources = digests_of(sources_of(item.stage, name), instead)
    if item.stage == "extract":
        extract_experiment(name, None, each, root_of("extract"))
    else:
        from ncpipe.commands.measure import measure  # only now: brings pandas

        measure(name, each, features, root_of("measure"))
    runs = {RUNS / stamp.run.path: stamp.key() for stamp in item.stamps if item.stage == "extract"}
    if not leave(item.stage, name, sources, runs, time.monotonic() - begin):
        raise InputError("code has just been edited")
