"""`nc.functional`: metrics as functions, equal to the streamed form and to exact values."""

import doctest
import inspect
import json
import pickle
from typing import Any

import pytest

import ncpipe as nc
from ncpipe.metrics.catalogue import ENTRIES, TRANSFERS
from ncpipe.metrics.conformance import suite
from ncpipe.metrics.table import measure

ANSWERS = json.loads(suite.EXPECTED.read_text(encoding="utf-8"))
NAMES = nc.functional.__all__
OF_CLASSES = [name for name in sorted(ANSWERS) if suite.kind_of(name) == "classes"]
FILES = [name for name in OF_CLASSES if name not in ("many_k2000_d3", suite.ONE_CLASS)][::3]


def given(name: str, arrays: dict[str, Any], split: str) -> dict[str, Any] | None:
    """Return the arguments of a metric's function for a file's split, by its signature."""
    prefix = {"weights": "", "train": "", "test": "test_"}[split]
    known: dict[str, Any] = {
        "features": arrays.get(f"{prefix}features"),
        "labels": arrays.get(f"{prefix}labels"),
        "weight": arrays.get("weight"),
        "bias": arrays.get("bias"),
        "train": (arrays["features"], arrays["labels"]) if split == "test" else None,
    }
    parameters = inspect.signature(getattr(nc.functional, name)).parameters
    return {key: known[key] for key in parameters if known[key] is not None}


@pytest.mark.parametrize("file", FILES)
def test_functions_are_exact_and_equal_the_streamed_form(file: str) -> None:
    """On every third file of classes, both splits. Red: a metric of another split, or of other means."""
    arrays = suite.arrays_of(file)
    streamed = measure(*map(arrays.get, suite.ARRAYS))
    for split, metrics in ANSWERS[file].items():
        for name in metrics.keys() & set(NAMES):
            result = getattr(nc.functional, name)(**given(name, arrays, split))
            assert type(result) is float
            value, ulp = metrics[name]
            assert suite.conforms(name, result, value, ulp), f"{split} {name}: {result!r}, exactly {value}"
            same = streamed["last", split, name]
            rounding = suite.ULPS * float(ulp)  # of logits, where a margin is their difference
            assert result == pytest.approx(same, rel=1e-12, abs=rounding, nan_ok=True), f"{split} {name}"


def test_every_metric_of_the_catalogue_is_a_function() -> None:
    """But single singular values. Red: a new entry without a function."""
    names = [metric.name for metric in (*ENTRIES, *TRANSFERS)]
    assert [name for name in names if not name.startswith("singular_")] == NAMES
    assert dir(nc.functional) == sorted(NAMES)
    with pytest.raises(AttributeError, match="has no attribute 'nc9'"):
        _ = nc.functional.nc9


@pytest.mark.parametrize("name", NAMES)
def test_docstrings_say_what_is_computed_and_run(name: str) -> None:
    function = getattr(nc.functional, name)
    (metric,) = [metric for metric in (*ENTRIES, *TRANSFERS) if metric.name == name]
    text = function.__doc__
    assert function.__name__ == name
    assert text.startswith(f"Return the {metric.group} metric `{name}`: {metric.meaning}.")
    words = " ".join(text.split())
    for part in (metric.formula, metric.interval, f"at collapse: {metric.collapse}", metric.source):
        assert part in words
    assert not any(word in words for word in (" the same ", "likewise", "as above"))
    for argument in inspect.signature(function).parameters:
        assert f"{argument}: " in text
    results = doctest.DocTestRunner(verbose=False).run(
        doctest.DocTestParser().get_doctest(text, {}, name, None, None), out=lambda line: None
    )
    assert (results.failed, results.attempted > 2) == (0, True)
    assert pickle.loads(pickle.dumps(function)) is function
