"""Classes of a vocabulary, some of which never occur: against dense formulas, and what is refused."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import split_values
from typer.testing import CliRunner

from ncpipe.commands.cli import app
from ncpipe.metrics import pairs
from ncpipe.metrics.catalogue import ENTRIES, TOKENS
from ncpipe.metrics.study_metrics import entry
from ncpipe.metrics.vocabulary import TokenPass, measure_token_arrays, wilson_interval
from ncpipe.system.errors import InputError

VOCABULARY, OCCUR, WIDTH = 260, 200, 24
LEAST = 3


Array = np.ndarray


def cosine(a: Array, b: Array) -> float:
    return float(a @ b / np.sqrt(a @ a) / np.sqrt(b @ b))


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


def dense(features: Array, labels: Array, weight: Array, bias: Array, least: int) -> dict[str, float]:
    """Everything at once, all pairs by their differences, in float64."""
    classes = [k for k in range(VOCABULARY) if np.sum(labels == k) >= least]
    groups = [features[labels == k] for k in classes]
    means = np.stack([group.mean(0) for group in groups])
    spreads = np.array([np.mean(np.sum((group - m) ** 2, 1)) for group, m in zip(groups, means, strict=True)])
    counts = np.array([len(group) for group in groups])
    centred = means - means.mean(0)
    units = centred / np.linalg.norm(centred, axis=1, keepdims=True)
    first, second = np.triu_indices(len(classes), 1)
    distances = np.sum((means[first] - means[second]) ** 2, 1)
    values = (spreads[first] + spreads[second]) / (2 * distances)
    logs = -np.log(np.linalg.norm(units[first] - units[second], axis=1))
    cosines = np.sum(units[first] * units[second], 1)
    duality = np.array([cosine(weight[k], m) for k, m in zip(classes, centred, strict=True)])
    kept = np.isin(labels, classes)
    rows, wanted = features[kept], np.searchsorted(classes, labels[kept])
    nearest = np.argmin([np.sum((rows - m) ** 2, 1) for m in means], 0)
    largest = np.argmax(rows @ weight[classes].T + bias[classes], 1)
    lengths = np.linalg.norm(centred, axis=1)
    return {
        "classes": len(classes),
        "tokens": kept.sum(),
        "left_out_rare": (~kept).sum(),
        "nc1_trace_ratio": np.sum(counts * spreads) / counts.sum() / np.mean(lengths**2),
        "cdnv": np.mean(values),
        "cdnv_log": np.mean(np.log(values)),
        "nc2_equinorm_means": np.std(lengths) / np.mean(lengths),
        "gnc2_energy_means": np.mean(logs),
        "gnc2_spread_means": np.std(logs),
        "gnc2_cosine_means": np.max(cosines),
        "gnc2_interference_means": np.mean(np.abs(cosines + 1 / (len(classes) - 1))),
        "unc3_cosine": np.mean(duality),
        "unc3_spread": np.std(duality),
        "nc3_cosine": 1 - np.mean([cosine(h, weight[classes[y]]) for h, y in zip(rows, wanted, strict=True)]),
        "nc4_mismatch": np.mean(nearest != largest),
        "ncc_error": np.mean(nearest != wanted),
    }


@pytest.mark.parametrize("held", [64**2, 2**22])
def test_the_dense_twin_agrees(held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """To 1e-12, also tile by tile. Red: unseen or rare tokens as classes, a bias of others."""
    monkeypatch.setattr(pairs, "TILE_ENTRIES", held)
    features, labels = text()
    weight, bias = unembedding()
    found = split_values(
        measure_token_arrays(features, labels, weight, bias, min_per_class=LEAST, decisions=None)
    )
    wanted = dense(features, labels, weight, bias, LEAST)
    assert wanted["classes"] < OCCUR
    assert {name: found[name] for name in wanted} == pytest.approx(wanted, rel=1e-12, abs=1e-12)


def test_a_held_out_split_is_about_the_train_means() -> None:
    """Its classes are those of both splits. Red: its own means decide; its own tokens are classes."""
    features, labels = text()
    weight, bias = unembedding()
    test, wanted = text(seed=5, samples=3000)
    rows = measure_token_arrays(features, labels, weight, bias, test, wanted, LEAST, decisions=None)
    kept = np.flatnonzero(np.bincount(labels, minlength=VOCABULARY) >= LEAST)
    means = np.stack([features[labels == k].mean(0) for k in kept])
    own = np.isin(wanted, kept)
    nearest = kept[np.argmin([np.sum((test[own] - m) ** 2, 1) for m in means], 0)]
    found = split_values(rows, "test")
    assert found["ncc_error"] == np.mean(nearest != wanted[own])
    both = kept[np.bincount(wanted, minlength=VOCABULARY)[kept] >= LEAST]
    assert found["classes"] == len(both) < len(kept)
    assert found["tokens"] == np.isin(wanted, both).sum()
    assert found["decisions"] == own.sum()


def test_decisions_are_a_fair_draw_that_batches_do_not_change() -> None:
    """Of 2000 positions 500: the same whatever the batches, from everywhere."""
    features, labels = (torch.from_numpy(array) for array in text(samples=2000))
    drawn = []
    for size in (2000, 700, 1):
        seen = TokenPass(VOCABULARY, WIDTH, decisions=500, seed=4)
        for rows, wanted in zip(features.split(size), labels.split(size), strict=True):
            seen.update(rows, wanted)
        drawn.append(seen.kept)
    for rows, wanted in drawn[1:]:
        assert torch.equal(rows, drawn[0][0])
        assert torch.equal(wanted, drawn[0][1])
    places = [int(torch.nonzero((features == row).all(1))[0]) for row in drawn[0][0]]
    assert len(set(places)) == 500
    assert abs(np.mean(places) / 2000 - 0.5) < 4 * (1 / 12 / 500) ** 0.5


def test_the_interval_holds_the_share_as_often_as_it_says() -> None:
    """Summed over the binomial distribution: 95 % on average over shares, as Wilson's interval has it."""
    of = 60
    shares = np.linspace(0.02, 0.98, 97)
    counts = np.arange(of + 1)
    choose = np.array([math.comb(of, k) for k in counts])
    ends = np.array([wilson_interval(int(k), of) for k in counts])
    covered = [
        np.sum((choose * p**counts * (1 - p) ** (of - counts))[(ends[:, 0] <= p) & (p <= ends[:, 1])])
        for p in shares
    ]
    assert np.mean(covered) == pytest.approx(0.95, abs=0.006)
    assert wilson_interval(0, 10)[0] == 0
    assert wilson_interval(10, 10)[1] == 1


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
    found = split_values(measure_token_arrays(features, labels, features[:4]))
    assert found["nc2_means"] < 2
    assert {"cdnv_log", "gnc2_spread_means", "unc3_spread"} <= set(found)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"min_per_class": 0}, "min_per_class: a whole number"),
        ({"min_per_class": 10**6}, "0 tokens occur as the next one at least 1000000 times"),
        ({"labels": np.full(40, 3)}, "1 tokens occur"),
        ({"features": np.full((40, 8), np.nan)}, "hold NaN or inf"),
        ({"weight": np.ones((4, 7))}, "weight must have a row per class"),
        ({"weight": np.full((4, 8), np.inf)}, "the unembedding's weight hold NaN or inf"),
        ({"labels": np.arange(40) % 5}, "label 4 of sample 4 is not in 0..3"),
        ({"labels": np.arange(39) % 4}, "must be (N, d) and (N,)"),
    ],
)
def test_bad_input_is_one_line(changes: dict[str, object], message: str) -> None:
    given: dict[str, object] = {
        "features": np.random.default_rng(0).standard_normal((40, 8)),
        "labels": np.arange(40) % 4,
        "weight": np.ones((4, 8)),
    }
    with pytest.raises(InputError) as caught:
        measure_token_arrays(**(given | changes))  # type: ignore[arg-type]
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_rare_test_tokens_are_counted() -> None:
    """Red: "the most frequent one 0 times" of three tokens with nine positions each, and more of a fourth."""
    draw = np.random.default_rng(0)
    labels, held_out = np.repeat([0, 1, 2], 10), np.repeat([0, 1, 2, 3], [9, 8, 9, 12])
    rows = [draw.standard_normal((len(split), 8)) for split in (labels, held_out)]
    with pytest.raises(InputError) as caught:
        measure_token_arrays(rows[0], labels, None, None, rows[1], held_out, min_per_class=10)
    assert str(caught.value).startswith(
        "0 tokens of the train split's 3 classes occur as the next one at least 10 times in the test split "
        "(the most frequent one 9 times); "
    )


def test_too_little_memory_is_said_before_anything_is_read() -> None:
    with pytest.raises(InputError, match=r"take up to 5.6e.* GB, and .* GB are free on cpu"):
        TokenPass(10**9, 10**5)


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
    found = json.loads(result.stdout)
    values = {row["metric"]: row["value"] for row in found["measurements"] if row["split"] == "train"}
    wanted = dense(features, labels, weight, bias, 3)
    assert values["cdnv"] == pytest.approx(wanted["cdnv"], rel=1e-12)
    assert (values["left_out_ignored"], values["decisions"] <= 100) == (7, True)
    assert found["classes"] == wanted["classes"]
