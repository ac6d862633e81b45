"""A generated language: a Markov source whose best attainable loss is known.

K  words    r  hidden features    p(c | a, b)  probability of word c after a and b    pi(a, b)  share of pairs
"""

import torch
from torch import Tensor

from ncpipe.config.sources.next_tokens import MarkovData
from ncpipe.datasets.next_tokens import next_token_data
from ncpipe.datasets.prepared import Prepared, TokenSplit
from ncpipe.system.errors import InputError
from ncpipe.system.randomness import seeded_generator

HIDDEN = 16
STEPS = 10_000  # of the power iteration, which takes some dozens
CONVERGED = 1e-15


def prepare_markov(spec: MarkovData, *_: object) -> Prepared:
    """Draw sequences (N, context) and the word after each position from the stationary source.

    Facts: entropy_rate, the mean entropy of the next word given all before it, and least_loss, the same over
    the positions of a sequence, whose first one sees one word alone; both in nats. InputError if some word
    never follows another in one of the splits.
    """
    follow = transitions(spec)
    pairs = stationary_pairs(follow)
    train = _draw(spec, follow, pairs, spec.sequences, "train")
    test = _draw(spec, follow, pairs, spec.test_sequences, "test")
    rate = entropy_rate(follow, pairs)
    least = (first_entropy(pairs) + (spec.context - 1) * rate) / spec.context
    return next_token_data(spec, spec.words, train, test, {}, entropy_rate=rate, least_loss=least)


def transitions(spec: MarkovData) -> Tensor:
    """Return p (K, K, K) float64, the last axis the next word; of order 1 it does not depend on the first.

    z = tanh(x_a + y_b) . v_c over its standard deviation, with normal x, y, v (K, r): contexts that are alike
    have like continuations, as in text; of K^2 contexts without any structure most would have to be seen.
    """
    generator = seeded_generator(spec.seed, "data source")
    tables = torch.randn(spec.order + 1, spec.words, HIDDEN, generator=generator, dtype=torch.float64)
    before = tables[1] if spec.order == 1 else tables[1].unsqueeze(1) + tables[2]
    drawn = before.tanh() @ tables[0].T
    drawn = drawn / drawn.std()
    ranks = torch.arange(1, spec.words + 1, dtype=torch.float64)
    follow = torch.softmax(spec.sharpness * drawn - spec.zipf * ranks.log(), -1)
    return follow.expand(spec.words, spec.words, spec.words)


def stationary_pairs(follow: Tensor) -> Tensor:
    """Return pi (K, K): pi(b, c) = sum_a pi(a, b) p(c | a, b)."""
    words = len(follow)
    pairs = follow.new_full((words, words), words**-2)
    for _ in range(STEPS):
        after = torch.einsum("ab,abc->bc", pairs, follow)
        after /= after.sum()
        if float((after - pairs).abs().sum()) < CONVERGED * words:
            return after
        pairs = after
    raise InputError("data.sharpness: the source does not settle; make it smaller")


def entropy_rate(follow: Tensor, pairs: Tensor) -> float:
    """Return -sum pi(a, b) p(c | a, b) log p(c | a, b), in nats."""
    return float((pairs * torch.special.entr(follow).sum(2)).sum())


def first_entropy(pairs: Tensor) -> float:
    """Return the entropy of a word given the one before it alone, in nats."""
    return float(torch.special.entr(pairs).sum() - torch.special.entr(pairs.sum(1)).sum())


def _draw(spec: MarkovData, follow: Tensor, pairs: Tensor, sequences: int, split: str) -> TokenSplit:
    """Draw sequences of context + 1 words, the first two from pi."""
    generator = seeded_generator(spec.seed, f"data {split}")
    start = torch.multinomial(pairs.flatten(), sequences, replacement=True, generator=generator)
    words = [start // spec.words, start % spec.words]
    until = follow.cumsum(2)
    for _ in range(spec.context - 1):
        drawn = torch.rand(sequences, 1, generator=generator, dtype=torch.float64)
        reached = until[words[-2], words[-1]]
        words.append((reached < drawn * reached[:, -1:]).sum(1).clamp(max=spec.words - 1))
    tokens = torch.stack(words, 1)
    return TokenSplit(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
