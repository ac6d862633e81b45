"""Text with a label at every position: its sources, how networks read and train on it, what is refused."""

import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import refused_by

from ncpipe.config.architectures.transformer import TransformerModel
from ncpipe.config.experiment import Experiment
from ncpipe.config.optimizer_specs import Adam, ConstantSchedule
from ncpipe.config.penalty_specs import Penalty
from ncpipe.config.run import Run
from ncpipe.config.sources.next_tokens import MarkovData, NextTokenData
from ncpipe.datasets.markov import entropy_rate, first_entropy, prepare_markov, stationary_pairs, transitions
from ncpipe.datasets.next_tokens import common_tokens, prepare_text
from ncpipe.datasets.prepared import TokenSplit, read_prepared, write_prepared
from ncpipe.features.extraction import extract
from ncpipe.models.build import build_network
from ncpipe.system.errors import InputError
from ncpipe.training.session import Session

CPU = torch.device("cpu")
LANGUAGE = MarkovData("markov", 5, 2, 1.0, 1.5, 40, 20, 6, 0)
PRE = TransformerModel("L-T11", "pre", 8, True, 1e-5, "normal", 1.0)


def experiment(**changes: object) -> Experiment:
    spec = Experiment(
        LANGUAGE, PRE, "ce", Penalty("constant", 0.01, None), Adam("adam", 0.01, 0.9, 0.95, 1e-8),
        ConstantSchedule("constant"), 2, 16, 1,
    )  # fmt: skip
    return replace(spec, **changes)


def run(seed: int = 0, **changes: object) -> Run:
    return Run("e", 2, seed, experiment(**changes))


def test_the_entropies_are_those_of_plain_loops() -> None:
    """Of K = 3: sums over every triple of words, from a stationary vector of the chain of pairs."""
    follow = transitions(replace(LANGUAGE, words=3)).numpy()
    chain = np.zeros((9, 9))
    for a, b, c in itertools.product(range(3), repeat=3):
        chain[3 * a + b, 3 * b + c] = follow[a, b, c]
    values, vectors = np.linalg.eig(chain.T)
    pairs = np.real(vectors[:, np.argmax(np.real(values))])
    pairs = (pairs / pairs.sum()).reshape(3, 3)
    stationary = stationary_pairs(torch.from_numpy(follow))
    assert stationary.numpy() == pytest.approx(pairs, abs=1e-14)
    rate = -sum(
        pairs[a, b] * follow[a, b, c] * math.log(follow[a, b, c])
        for a, b, c in itertools.product(range(3), repeat=3)
    )
    first = -sum(pairs[a, b] * math.log(pairs[a, b] / pairs[a].sum()) for a in range(3) for b in range(3))
    assert entropy_rate(torch.from_numpy(follow), stationary) == pytest.approx(rate, rel=1e-13)
    assert first_entropy(stationary) == pytest.approx(first, rel=1e-13)
    assert rate < first


def test_words_without_a_context_follow_zipf() -> None:
    """sharpness 0: shares 1, 1/2, ... over their sum, and every entropy theirs."""
    facts = prepare_markov(replace(LANGUAGE, sharpness=0.0, sequences=500)).facts
    shares = np.array([1, 1 / 2, 1 / 3, 1 / 4, 1 / 5])
    shares /= shares.sum()
    expected = -np.sum(shares * np.log(shares))
    assert facts["entropy_rate"] == pytest.approx(expected, rel=1e-12)
    assert facts["least_loss"] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("order", [1, 2])
def test_the_source_itself_has_the_least_loss(order: int) -> None:
    """Its own probabilities on its own text, within five standard errors. Red: positions shifted by one."""
    spec = replace(LANGUAGE, order=order, sequences=4000)
    data, follow = prepare_markov(spec), transitions(spec)
    pairs = stationary_pairs(follow)
    x, y = data.train.inputs, data.train.labels
    first = (pairs / pairs.sum(1, keepdim=True))[x[:, 0], y[:, 0]]
    later = follow[x[:, :-1], x[:, 1:], y[:, 1:]]
    losses = -torch.cat([first.unsqueeze(1), later], 1).log()
    error = losses.mean(1).std() / len(x) ** 0.5
    assert abs(losses.mean() - data.facts["least_loss"]) < 5 * error
    assert torch.equal(x[:, 1:], y[:, :-1])
    if order == 1:
        assert data.facts["least_loss"] == pytest.approx(data.facts["entropy_rate"], rel=1e-12)


def test_a_position_predicts_from_what_is_before_it() -> None:
    """As the same network, reading each beginning alone, from its last token. Red: a look ahead."""
    data = prepare_markov(LANGUAGE)
    network = build_network(run(), data).double()
    logits = network(data.train.inputs[:4]).view(4, 6, 5)
    alone = build_network(run(), replace(data, kind="tokens")).double()
    for place in range(6):
        lengths = torch.full((4,), place + 1)
        torch.testing.assert_close(
            alone(data.train.inputs[:4], lengths), logits[:, place], rtol=1e-12, atol=1e-12
        )


def test_training_and_measurement_take_every_position() -> None:
    """Loss, error and gradient against plain cross-entropy over all positions, in parts too."""
    data = prepare_markov(LANGUAGE)
    session = Session([run(0), run(1)], data, CPU, torch.float64)
    network = build_network(run(1), data).double()
    parameters = dict(network.named_parameters())
    logits = network(data.train.inputs)
    fit = F.cross_entropy(logits, data.train.labels.flatten())
    fit.backward()
    with torch.no_grad():
        loss, error, _ = session.evaluate(session.train)
    assert float(loss[1]) == pytest.approx(fit.item(), rel=1e-12)
    assert float(error[1]) == float((logits.argmax(1) != data.train.labels.flatten()).double().mean())
    for size in (1000, 7):
        session.at_a_time = size
        _, gradient = session.loss_and_gradient(session.train)
        for name, parameter in parameters.items():
            run_gradient = session.stack.view(gradient - session.strengths * session.stack.values, name)[1]
            torch.testing.assert_close(run_gradient, parameter.grad, rtol=1e-9, atol=1e-12)
    state = {name: value.detach() for name, value in network.state_dict().items()}
    features = extract(run(1), state, data, CPU)
    assert features.train.inputs.shape == (240, 8)
    assert torch.equal(features.train.labels, data.train.labels.flatten())
    assert features.test is not None
    assert features.layers["last"]["test"].statistics.samples == 120
    logits = features.train.inputs @ features.weight.T + features.bias
    assert F.cross_entropy(logits, features.train.labels).item() == pytest.approx(fit.item(), rel=1e-12)


def test_stored_data_are_read_back(tmp_path: Path) -> None:
    data = prepare_markov(LANGUAGE)
    write_prepared(tmp_path / "d", data)
    stored = read_prepared(tmp_path / "d")
    assert isinstance(stored.train, TokenSplit)
    assert (len(stored.train), stored.train.predictions) == (40, 240)
    assert stored.facts["least_loss"] == data.facts["least_loss"]
    parts = list(stored.train.parts(16))
    assert [len(part) for part in parts] == [16, 16, 8]
    assert torch.equal(torch.cat([part.targets for part in parts]), stored.train.targets)


def text_file(folder: Path, lines: int = 400) -> Path:
    draw = np.random.default_rng(0)
    letters = list("abcdefghijklmnop")
    words = ["".join(draw.choice(letters, 4)) for _ in range(40)]
    text = "\n".join(" ".join(draw.choice(words, 12)) for _ in range(lines))
    (folder / "text.txt").write_text(text + "\nzqx", encoding="utf-8")
    return folder / "text.txt"


def words_of(path: Path, **changes: object) -> NextTokenData:
    spec = NextTokenData("text", str(path), 300, 5, 60, 30, 16, 0)
    return replace(spec, **changes)


def test_a_text_of_ones_own(tmp_path: Path) -> None:
    """Every class often enough in both splits; no window of one split is in the other."""
    spec = words_of(text_file(tmp_path))
    data = prepare_text(spec, tmp_path, None, False)
    assert data.test is not None
    for split in (data.train, data.test):
        assert int(torch.bincount(split.targets, minlength=data.classes).min()) >= spec.min_per_class
        assert torch.equal(split.inputs[:, 1:], split.labels[:, :-1])
    assert data.classes == data.vocabulary < spec.vocabulary
    again = prepare_text(spec, tmp_path, None, False)
    assert torch.equal(again.train.inputs, data.train.inputs)


def test_rare_tokens_share_a_number() -> None:
    """Tokens 3 and 4 are rare, and 2 joins them until they are common. Red: counts of what never occurs."""
    train = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 3]])
    test = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 4]])
    both = torch.cat([train, test])
    for windows, least, expected in (
        ((both, 1, 6), 2, ([1, 2, 0, 0, 0, 0], 3)),  # token 5 never occurs, so it is not rare
        ((both, 1, 6), 1, ([1, 2, 3, 0, 0, 0], 2)),
        ((both[:, :-1].repeat(2, 1), 2, 3), 2, ([0, 1, 2], 0)),
    ):
        numbers, rare = common_tokens(*windows, least)
        assert (numbers.tolist(), rare) == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"file": "none.txt"}, "none.txt: cannot be read"),
        ({"sequences": 10**6}, "data.sequences, data.test_sequences: 1000030 sequences of 17 tokens"),
        ({"min_per_class": 10**6}, "data.min_per_class: fewer than two tokens occur 1000000 times"),
    ],
)
def test_wrong_texts_are_one_line(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    refused = refused_by(prepare_text, words_of(text_file(tmp_path), **changes), tmp_path, None, False)
    assert message in refused


def test_a_word_that_never_comes_is_named() -> None:
    with pytest.raises(InputError, match=r"never follows another in the .* split; make sequences"):
        prepare_markov(replace(LANGUAGE, words=100, sequences=3, test_sequences=3))


def test_a_loss_that_does_not_suit_next_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="loss: supcon"):
        experiment(loss="supcon")
