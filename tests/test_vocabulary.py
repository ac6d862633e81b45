"""Classes of a vocabulary, some of which never occur: against the same as classes of arrays."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import split_values
from scipy.stats import binomtest
from typer.testing import CliRunner

from ncpipe.commands.cli import app
from ncpipe.metrics.catalogue import ENTRIES, TOKENS
from ncpipe.metrics.study_metrics import entry
from ncpipe.metrics.table import measure
from ncpipe.metrics.vocabulary import TokenPass, measure_token_arrays, wilson_interval
from ncpipe.system.errors import InputError

VOCABULARY, OCCUR, WIDTH = 260, 200, 24
LEAST = 3


Array = np.ndarray


def text(seed: int = 0, samples: int = 8000) -> tuple[Array, Array]:
    """Features and next tokens: 200 of 260 tokens occur, by Zipf's law, some of them fewer than 3 times."""
    draw = np.random.default_rng(seed)
    tokens = np.random.default_rng(1).permutation(VOCABULARY)[:OCCUR]
    shares = 1 / np.arange(1, OCCUR + 1) ** 1.3
    labels = draw.choice(tokens, samples, p=shares / shares.sum())
    means = np.random.default_rng(2).standard_normal((VOCABULARY, WIDTH))
    return means[labels] + 0.5 * draw.standard_normal((samples, WIDTH)), labels


def unembedding() -> tuple[Array, Array]:
    draw = np.random.default_rng(3)
    means = np.random.default_rng(2).standard_normal((VOCABULARY, WIDTH))
    return means + 0.3 * draw.standard_normal(means.shape), draw.standard_normal(VOCABULARY)


def by_classes(features: Array, labels: Array, weight: Array, bias: Array, least: int) -> dict[str, float]:
    """What `measure` gives where the frequent tokens are numbered as classes, and nothing else is left."""
    classes = np.flatnonzero(np.bincount(labels, minlength=VOCABULARY) >= least)
    kept = np.isin(labels, classes)
    samples = features[kept], np.searchsorted(classes, labels[kept])
    values = split_values(measure(*samples, weight[classes], bias[classes]))
    counts = {"classes": len(classes), "tokens": kept.sum(), "left_out_rare": (~kept).sum()}
    return counts | {name: value for name, value in values.items() if not name.startswith("nc1_pinv")}


def test_frequent_tokens_are_measured_as_classes() -> None:
    """Red: unseen or rare tokens as classes, a bias of others."""
    features, labels = text()
    arrays = features, labels, *unembedding()
    values = split_values(measure_token_arrays(*arrays, min_per_class=LEAST, decisions=None))
    expected = by_classes(*arrays, LEAST)
    assert expected["classes"] < OCCUR
    assert {"cdnv_log", "gnc2_spread_means", "unc3_cosine", "nc4_mismatch"} <= set(expected)
    assert {name: values[name] for name in expected} == pytest.approx(expected, rel=1e-9, nan_ok=True)


def test_a_rare_test_token_that_is_not_finite_is_named() -> None:
    features, labels = text()
    first, second, third = np.argsort(np.bincount(labels))[-3:]
    test, test_labels = features[:21].copy(), np.repeat([first, second, third], [10, 10, 1])
    test[20] = np.nan
    with pytest.raises(InputError, match="features that decisions are taken of hold NaN or inf"):
        measure_token_arrays(features, labels, None, None, test, test_labels, 5, decisions=None)


def test_a_held_out_split_is_about_the_train_means() -> None:
    """Its classes are those of both splits. Red: its own means decide; its own tokens are classes."""
    features, labels = text()
    weight, bias = unembedding()
    test, test_labels = text(seed=5, samples=3000)
    rows = measure_token_arrays(features, labels, weight, bias, test, test_labels, LEAST, decisions=None)
    kept = np.flatnonzero(np.bincount(labels, minlength=VOCABULARY) >= LEAST)
    means = np.stack([features[labels == k].mean(0) for k in kept])
    known = np.isin(test_labels, kept)
    nearest = kept[np.argmin([np.sum((test[known] - m) ** 2, 1) for m in means], 0)]
    values = split_values(rows, "test")
    assert values["ncc_error"] == np.mean(nearest != test_labels[known])
    both = kept[np.bincount(test_labels, minlength=VOCABULARY)[kept] >= LEAST]
    assert values["classes"] == len(both) < len(kept)
    assert values["tokens"] == np.isin(test_labels, both).sum()
    assert values["decisions"] == known.sum()


def test_decisions_are_a_fair_draw_that_batches_do_not_change() -> None:
    """Of 2000 positions 500: the same whatever the batches, from everywhere."""
    features, labels = (torch.from_numpy(array) for array in text(samples=2000))
    drawn = []
    for size in (2000, 700, 1):
        token_pass = TokenPass(VOCABULARY, WIDTH, decisions=500, seed=4)
        for rows, expected in zip(features.split(size), labels.split(size), strict=True):
            token_pass.update(rows, expected)
        drawn.append(token_pass.kept)
    for rows, expected in drawn[1:]:
        assert torch.equal(rows, drawn[0][0])
        assert torch.equal(expected, drawn[0][1])
    places = [int(torch.nonzero((features == row).all(1))[0]) for row in drawn[0][0]]
    assert len(set(places)) == 500
    assert abs(np.mean(places) / 2000 - 0.5) < 4 * (1 / 12 / 500) ** 0.5


@pytest.mark.parametrize(("right", "of"), [(0, 10), (7, 60), (30, 60), (10, 10)])
def test_the_interval_of_a_share_is_scipys(right: int, of: int) -> None:
    exact = binomtest(right, of).proportion_ci(0.95, method="wilson")
    assert wilson_interval(right, of) == pytest.approx((exact.low, exact.high), abs=1e-9)


def test_the_catalogue_has_every_row() -> None:
    features, labels = text(samples=500)
    rows = measure_token_arrays(features, labels, *unembedding())
    names = {entry(row.metric).name for row in rows}
    assert {metric.name for metric in TOKENS} <= names
    assert names <= {metric.name for metric in (*ENTRIES, *TOKENS)}


def test_few_classes_have_what_many_have() -> None:
    """K <= d + 1: GNC2, UNC3 and the logarithm of CDNV beside the distances to a simplex."""
    labels = np.arange(40) % 4
    features = np.random.default_rng(0).standard_normal((40, 8))
    values = split_values(measure_token_arrays(features, labels, features[:4]))
    assert values["nc2_means"] < 2
    assert {"cdnv_log", "gnc2_spread_means", "unc3_spread"} <= set(values)


def test_the_command(tmp_path: Path) -> None:
    """Of a file whose labels skip classes, which without the option is refused."""
    features, labels = text()
    weight, bias = unembedding()
    labels[:7] = -100
    np.savez(tmp_path / "h.npz", features=features, labels=labels, weight=weight, bias=bias)
    arguments = ["metrics", str(tmp_path / "h.npz"), "--json"]
    assert CliRunner().invoke(app, arguments).exit_code != 0
    result = CliRunner().invoke(
        app,
        [*arguments, "--classes", "present", "--min-per-class", "3", "--decisions", "100"],
        catch_exceptions=False,
    )
    output = json.loads(result.stdout)
    values = {row["metric"]: row["value"] for row in output["measurements"] if row["split"] == "train"}
    expected = by_classes(features[7:], labels[7:], weight, bias, 3)
    assert values["cdnv"] == pytest.approx(expected["cdnv"], rel=1e-12)
    assert (values["left_out_ignored"], values["decisions"] <= 100) == (7, True)
    assert output["classes"] == expected["classes"]
