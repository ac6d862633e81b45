"""Command conformance: score an implementation of collapse metrics on files with exact answers."""

import contextlib
import inspect
import json
import pkgutil
import shlex
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from ncpipe.metrics.conformance.suite import (
    ARRAYS,
    FEATURES,
    METRICS,
    Case,
    Score,
    Verdict,
    cases,
    judge,
    scores,
)
from ncpipe.system.console import say
from ncpipe.system.errors import InputError

SECONDS = 600  # that a command may take for one file
Values = Mapping[str, float]


def conformance(function: str | None, command: str | None, metric: str | None) -> bool:
    """Print a table of scores; return whether every value conforms.

    function: `MODULE:NAME`, called with those arrays that it has parameters for. command: called with a
    file's path in place of `{}`. Both give values by metric, or one number, which is `metric`.
    """
    if (function is None) == (command is None):
        raise InputError("give MODULE:FUNCTION or --npz-command")
    if metric is not None and metric.rpartition("/")[2] not in METRICS:
        raise InputError(f"--metric {metric}: unknown; known are {', '.join(sorted(METRICS))}")
    measure = by_function(function) if function is not None else by_command(str(command))
    verdicts: list[Verdict] = []
    failed: list[str] = []
    for case in cases():
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")  # theirs
                found = named(measure(case), metric)
        except InputError:
            raise
        except Exception as error:  # theirs: whatever it raises is a result
            reason = f"{case.name}: {type(error).__name__}: {' '.join(str(error).split())[:100]}"
            failed += [] if case.has_one_class else [reason]
            if metric is not None:
                found_of = metric.rpartition("/")
                splits = [found_of[0]] if found_of[0] else ["train", "weights"]
                verdicts += [
                    Verdict(case, split, found_of[2], None, reason)
                    for split in splits
                    if (split, found_of[2]) in case.answers
                ]
            continue
        try:
            verdicts += judge(case, found)
        except KeyError as error:
            raise InputError(
                f"{error.args[0]}: no metric of the suite; known are {', '.join(sorted(METRICS))}"
            ) from None
    print_scores(scores(verdicts))
    if failed:
        say(f"ncpipe: it failed on {len(failed)} of {len(cases())} files; {failed[0]}")
    right = sum(verdict.conforms for verdict in verdicts)
    say(f"ncpipe: {right} of {len(verdicts)} values conform")
    return right == len(verdicts) and not failed and bool(verdicts)


def by_function(name: str) -> Callable[[Case], Any]:
    """Import `MODULE:FUNCTION`, from this folder too. It is called with float64 arrays, by name."""
    sys.path.insert(0, str(Path.cwd()))
    try:
        function = pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"{name}: {error}; give MODULE:FUNCTION, importable from here") from None
    parameters = inspect.signature(function).parameters
    takes_all = any(own.kind is inspect.Parameter.VAR_KEYWORD for own in parameters.values())
    known = [array for array in ARRAYS if takes_all or array in parameters]
    if "features" not in known or "labels" not in known:
        raise InputError(
            f"{name}: takes ({', '.join(parameters)}); it needs parameters named features and labels"
        )

    def measure(case: Case) -> Any:
        arrays = {
            key: array.astype(np.int64 if "labels" in key else np.float64)
            for key, array in case.arrays.items()
            if key in known
        }
        try:
            return function(**arrays)
        except InputError as error:  # of the metrics it calls, and no mistake of the command's user
            raise RuntimeError(str(error)) from None

    return measure


def by_command(line: str) -> Callable[[Case], Any]:
    """Run a command for each file; it prints a JSON object of values by metric, or one number."""
    if "{}" not in line:
        raise InputError("--npz-command: write {} where the file's path belongs")

    def measure(case: Case) -> Any:
        with file_of(case) as path:
            words = [word.replace("{}", str(path)) for word in shlex.split(line)]
            try:
                done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=False)
            except FileNotFoundError:
                raise InputError(f"--npz-command: no program {words[0]}") from None
        if done.returncode:
            raise RuntimeError(
                done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "exit code not 0"
            )
        return json.loads(done.stdout)

    return measure


@contextlib.contextmanager
def file_of(case: Case) -> Iterator[Path]:
    """Yield the path of a case's file, which is written for the block if the suite generates the case."""
    stored = FEATURES / f"{case.name}.npz"
    if stored.is_file():
        yield stored
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / stored.name
        np.savez(path, **case.arrays)  # type: ignore[arg-type]
        yield path


def named(found: Any, metric: str | None) -> dict[str, float]:
    """Return values by metric; a single number is that of `metric`."""
    if isinstance(found, Mapping):
        chosen = {str(key): value for key, value in found.items() if metric is None or key == metric}
        if metric is not None and not chosen:
            raise InputError(f"--metric {metric}: the implementation gives {', '.join(map(str, found))}")
        return {key: float(value) for key, value in chosen.items()}
    if metric is None:
        raise InputError("the implementation gives one number: say by --metric which metric it is")
    return {metric: float(found)}


def print_scores(found: list[Score]) -> None:
    table = Table(
        "metric", "conform", "to 1e-3", "worst", "smallest file that breaks it", "kinds that break it"
    )
    for score in found:
        wrong, worst = score.smallest, score.worst
        table.add_row(
            score.metric,
            f"{score.conforming} of {score.asked}",
            f"{score.roughly} of {score.asked}",
            "" if worst is None else f"{worst.error:.1e}",
            "" if wrong is None else shown(wrong),
            "; ".join(score.kinds),
        )
    Console(width=None if sys.stdout.isatty() else 200).print(table)


def shown(verdict: Verdict) -> str:
    """Return a wrong value beside the exact one, or its error where six digits do not show it."""
    where = verdict.case.name + (", test" if verdict.split == "test" else "")
    if verdict.found is None:
        return f"{where}: failed"
    if verdict.roughly:
        return f"{where}: error {verdict.error:.1e}"
    return f"{where}: {verdict.found:.6g}, exactly {float(verdict.exact):.6g}"
