"""ncpipe on the files of this folder, whose metrics are known exactly: see docs/metrics.md, Conformance."""

import json
from pathlib import Path

import pytest
import torch
from exact_metrics import all_metrics
from make_expected import EXPECTED, FOLDER, expected_of, layer_of, text

from ncpipe.datasets.array_files import read_arrays
from ncpipe.metrics import pairs
from ncpipe.metrics.conformance import suite
from ncpipe.metrics.conformance.suite import conforms
from ncpipe.metrics.file import NAMES as READ
from ncpipe.metrics.regression import measure_regression
from ncpipe.metrics.table import Measurement, measure
from ncpipe.metrics.token_collapse import TokenMeans
from ncpipe.system.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "conformance.md").read_text(encoding="utf-8")
ANSWERS: dict[str, dict[str, dict[str, list[str]]]] = json.loads(EXPECTED.read_text())
NAMES = sorted(ANSWERS)
HOURS = "many_k2000_d3"  # pairs one by one, which `make_expected.py many_k2000_d3` takes the time for
ORDER = ("features", "labels", "weight", "bias", "test_features", "test_labels")


def answers(name: str) -> dict[tuple[str, str], list[str]]:
    """Value and ulp by split and metric."""
    return {(split, metric): pair for split, table in ANSWERS[name].items() for metric, pair in table.items()}


def failures(name: str, rows: list[Measurement]) -> list[str]:
    values, expected = {(row.split, row.metric): row.value for row in rows}, answers(name)
    assert values.keys() == expected.keys()
    return [
        f"{split} {metric}: {values[split, metric]!r}, exactly {value} (ulp {ulp})"
        for (split, metric), (value, ulp) in expected.items()
        if not conforms(metric, values[split, metric], value, ulp)
    ]


@pytest.mark.parametrize("name", [name for name in NAMES if suite.kind_of(name) == "classes"])
def test_ncpipe_conforms(name: str) -> None:
    """At once and in batches; of arrays, and as the command reads them."""
    arrays = suite.arrays_of(name)
    if name == suite.ONE_CLASS:
        with pytest.raises(InputError, match="1 class; collapse needs at least 2"):
            measure(*map(arrays.get, ORDER))
        return
    small = 3 if len(arrays["labels"]) < 1000 else 997
    assert failures(name, measure(*map(arrays.get, ORDER))) == []
    assert failures(name, measure(*map(arrays.get, ORDER), batch_size=small)) == []
    if name not in suite.GENERATED:
        arrays, _ = read_arrays(FOLDER / f"{name}.npz", READ)
    assert failures(name, measure(*map(arrays.get, ORDER), batch_size=2 * small + 1)) == []


@pytest.mark.parametrize("kind", ["vectors", "tokens"])
def test_ncpipe_conforms_on_other_targets(kind: str) -> None:
    """Red: features centred where the paper does not, or the reverse; a sample's tokens about their class."""
    wrong, cases = [], suite.cases(kind)
    for case in cases:
        if kind == "vectors":
            order = ("features", "targets", "weight", "bias")
            rows = [
                (row.split, row.metric, row.value) for row in measure_regression(*map(case.arrays.get, order))
            ]
        else:
            tokens, labels = map(torch.from_numpy, case.arrays.values())
            means = TokenMeans(int(labels.max()) + 1)
            means.update(tokens, labels)
            rows = [("train", metric, value) for metric, value in means.values()]
        values = {(split, metric): value for split, metric, value in rows}
        wrong += [(case.name, *key) for key in case.answers if not case.conforms(*key, values[key])]
    assert len(cases) == {"vectors": 4, "tokens": 2}[kind]
    assert wrong == []
    with pytest.raises(ValueError, match="kind: 'words' is unknown; take classes, vectors, tokens"):
        suite.cases("words")


@pytest.mark.parametrize(
    ("name", "side"),
    [
        ("many_k40_d6_one_sample", 4),
        ("close_means_1e-09", 2),
    ],
)
def test_pairs_in_blocks_conform(name: str, side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red: a block left out; a product that loses digits."""
    monkeypatch.setattr(pairs, "TILE_ENTRIES", side**2)
    arrays = suite.arrays_of(name)
    assert failures(name, measure(*map(arrays.get, ORDER))) == []


def test_every_file_has_answers() -> None:
    """Red: a file that nothing is compared with."""
    assert sorted([*(path.stem for path in FOLDER.iterdir()), *suite.GENERATED]) == NAMES


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in NAMES if name != HOURS])
def test_the_answers_are_what_the_definitions_give(name: str) -> None:
    if name == suite.ONE_CLASS:
        assert {split: dict(table) for split, table in expected_of(name).items()} == ANSWERS[name]
        return
    stored = {key: value for key, (value, _) in answers(name).items()}
    assert {key: text(value) for key, value in all_metrics(layer_of(name)).items()} == stored


def test_the_page_says_how_many() -> None:
    counts = len(NAMES), sum(len(answers(name)) for name in NAMES)
    assert f"holds {counts[0]} small feature files" in PAGE
    given = sum(len(answers(name)) for name in NAMES if name != suite.ONE_CLASS)
    assert f"in all {given} values" in PAGE
    readme = (FOLDER.parent / "README.md").read_text(encoding="utf-8")
    assert readme.splitlines()[2].startswith(f"{counts[0]} small feature files")


def test_a_number_for_one_class_is_wrong() -> None:
    (case,) = [case for case in suite.cases() if case.has_one_class]
    results = [case.conforms("train", "cdnv", value) for value in (0.0, float("nan"), float("inf"))]
    assert results == [False, True, True]
