"""The official files, read from the folder that NCPIPE_MIRROR names."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ncpipe.config.sources.images import ImageData
from ncpipe.config.sources.reviews import TextData
from ncpipe.datasets.imdb import _locate, read_reviews
from ncpipe.datasets.prepare import prepare

pytestmark = [
    pytest.mark.real_data,
    pytest.mark.skipif("NCPIPE_MIRROR" not in os.environ, reason="NCPIPE_MIRROR names no mirror folder"),
]


@pytest.fixture
def mirror() -> Path:
    return Path(os.environ["NCPIPE_MIRROR"])


def test_mnist(tmp_path, mirror):
    data = prepare(ImageData("mnist", 5421, None, 0, "unit"), tmp_path, mirror, progress=False)
    assert data.facts["official"] == {"train": 60000, "test": 10000}
    # The published sizes of the test classes; 5421 is the smallest training class, that of the fives.
    assert data.facts["counts"]["test"] == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert len(data.train) == 54210
    assert data.train.inputs.aminmax() == (0, 1)
    assert data.facts["duplicates"]["conflicting"] == 0


def test_cifar10(tmp_path, mirror):
    data = prepare(ImageData("cifar10", 5000, None, 0, "standardise"), tmp_path, mirror, progress=False)
    assert data.train.inputs.shape == (50000, 3, 32, 32)
    assert data.facts["counts"] == {"train": [5000] * 10, "test": [1000] * 10}
    normalisation = data.facts["normalisation"]
    # The constants everyone uses for the whole training set.
    torch.testing.assert_close(normalisation["mean"], [0.4914, 0.4822, 0.4465], rtol=0, atol=1e-4)
    torch.testing.assert_close(normalisation["std"], [0.2470, 0.2435, 0.2616], rtol=0, atol=1e-4)
    assert data.train.inputs.double().mean((0, 2, 3)).abs().max() < 1e-6


def test_imdb(tmp_path, mirror):
    spec = TextData("imdb", 50, 30, 0, "corpus", 4000, 64, "start")
    data = prepare(spec, tmp_path, mirror, progress=False)
    assert data.facts["official"] == {"train": 25000, "test": 25000}
    assert data.facts["counts"] == {"train": [50, 50], "test": [30, 30]}
    other = prepare(replace(spec, seed=1, per_class=40, keep="end"), tmp_path, mirror, progress=False)
    # The tokenizer is trained on all 25,000 reviews, whatever is drawn.
    assert other.facts["tokenizer"] == data.facts["tokenizer"]
    assert not torch.equal(other.train.inputs, data.train.inputs[:80])


def test_imdb_reviews_are_the_published_ones(tmp_path, mirror):
    reviews = read_reviews(_locate(tmp_path, mirror, progress=False), progress=False)
    for split, distinct in (("train", 24904), ("test", 24801)):
        assert len({text for name, text in reviews.items() if name.startswith(split)}) == distinct
    assert len(set(reviews.values())) == 49582
