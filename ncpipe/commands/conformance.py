"""Test an implementation of collapse metrics on files with exact answers (`ncpipe conformance`).

`ncpipe.metrics.conformance` has the files and the scores.
"""

import inspect
import json
import pkgutil
import shlex
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from ncpipe.metrics.conformance.suite import (
    ARRAYS,
    METRICS,
    Case,
    Verdict,
    cases,
    judge,
    score_rows,
)
from ncpipe.system.console import say
from ncpipe.system.errors import InputError
from ncpipe.system.text_table import aligned

TIMEOUT = 600  # seconds that a command may take for one file


def conformance(
    function: Annotated[
        str | None,
        typer.Argument(
            metavar="MODULE:FUNCTION",
            help="Function that takes NumPy arrays features (N, d) and labels (N,), and any of weight, bias, "
            "test_features, test_labels. It returns a dict of metrics, or one number.",
        ),
    ] = None,
    npz_command: Annotated[
        str | None,
        typer.Option(help="Program to test instead; {} stands for a file's path. It prints JSON."),
    ] = None,
    metric: Annotated[str | None, typer.Option(help="Test only this metric.")] = None,
) -> None:
    """Test an implementation of collapse metrics on files whose exact metrics are known.

    The exit code is 1 unless every value conforms.
    """
    if (function is None) == (npz_command is None):
        raise InputError("conformance: give MODULE:FUNCTION or --npz-command")
    if metric is not None and metric.rpartition("/")[2] not in METRICS:
        raise InputError(f"--metric {metric}: unknown; the metrics are {', '.join(sorted(METRICS))}")
    measure = load_function(function) if function is not None else run_command(str(npz_command))
    verdicts: list[Verdict] = []
    failed: list[str] = []
    for case in cases():
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")  # of the tested implementation
                values = by_metric(measure(case), metric)
        except InputError:
            raise
        except Exception as error:  # of the tested implementation: any error counts as a failed file
            reason = f"{case.name}: {type(error).__name__}: {' '.join(str(error).split())[:100]}"
            failed += [] if case.has_one_class else [reason]
            if metric is not None:
                split, _, name = metric.rpartition("/")
                verdicts += [
                    Verdict(case, each, name, None, reason)
                    for each in ([split] if split else ["train", "weights"])
                    if (each, name) in case.answers
                ]
            continue
        try:
            verdicts += judge(case, values)
        except KeyError as error:
            raise InputError(
                f"{error.args[0]}: not a metric of the suite, which has {', '.join(sorted(METRICS))}"
            ) from None
    print(*aligned(score_rows(verdicts)), sep="\n")
    if failed:
        say(f"conformance: errors in {len(failed)} of {len(cases())} files; the first one: {failed[0]}")
    right = sum(verdict.conforms for verdict in verdicts)
    say(f"conformance: {right} of {len(verdicts)} values conform")
    if right < len(verdicts) or failed or not verdicts:
        raise typer.Exit(1)


def load_function(name: str) -> Callable[[Case], Any]:
    """Import `MODULE:FUNCTION`, also from the current folder; it is called with float64 arrays by name."""
    sys.path.insert(0, str(Path.cwd()))
    try:
        function = pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"{name}: {error}; give MODULE:FUNCTION that can be imported here") from None
    parameters = inspect.signature(function).parameters
    takes_all = any(own.kind is inspect.Parameter.VAR_KEYWORD for own in parameters.values())
    taken = [array for array in ARRAYS if takes_all or array in parameters]
    if "features" not in taken or "labels" not in taken:
        raise InputError(
            f"{name}: has the parameters ({', '.join(parameters)}); it needs features and labels"
        )

    def measure(case: Case) -> Any:
        arrays = {
            key: array.astype(np.int64 if "labels" in key else np.float64)
            for key, array in case.arrays.items()
            if key in taken
        }
        try:
            return function(**arrays)
        except InputError as error:  # from ncpipe's metrics, if the function calls them
            raise RuntimeError(str(error)) from None

    return measure


def run_command(line: str) -> Callable[[Case], Any]:
    """Return a function that runs a command for a file; it prints a JSON object of metrics, or one number."""
    if "{}" not in line:
        raise InputError("--npz-command: write {} for the file's path")

    def measure(case: Case) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{case.name}.npz"
            np.savez(path, **case.arrays)  # type: ignore[arg-type]
            words = [word.replace("{}", str(path)) for word in shlex.split(line)]
            try:
                done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT, check=False)
            except FileNotFoundError:
                raise InputError(f"--npz-command: {words[0]}: no such program") from None
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise RuntimeError(lines[-1])
        return json.loads(done.stdout)

    return measure


def by_metric(returned: Any, metric: str | None) -> dict[str, float]:
    """Return the implementation's values by metric; a single number is that of `metric`."""
    if isinstance(returned, Mapping):
        values = {str(key): value for key, value in returned.items() if metric is None or key == metric}
        if metric is not None and not values:
            raise InputError(f"--metric {metric}: the implementation returns {', '.join(map(str, returned))}")
        return {key: float(value) for key, value in values.items()}
    if metric is None:
        raise InputError("conformance: the implementation returns one number; name its metric with --metric")
    return {metric: float(returned)}
