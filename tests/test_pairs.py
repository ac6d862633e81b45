"""Tiles of pairs: every pair once, and ties across tiles; the conformance suite has what is made of them."""

import math

import numpy as np
import pytest
import torch
from conftest import normal

from ncpipe.metrics import pairs
from ncpipe.metrics.nearest import LargestLogits, NearestMeans
from ncpipe.metrics.pairs import tiles
from ncpipe.metrics.statistics import class_statistics

SIDE = 4  # vectors of a tile's side, so that small sets have many tiles


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e8])
@pytest.mark.parametrize("classes", [3, 4, 5, 9, 30])
def test_tiles_have_every_pair_once(classes: int, offset: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where two are equal and all are far from 0. Red: a last tile left out, a pair in two tiles."""
    vectors = normal(classes, 7) + offset
    vectors[-1] = vectors[0]
    vectors[1] = vectors[0] + 1e-6
    wanted = torch.linalg.vector_norm(vectors.unsqueeze(1) - vectors, dim=2)
    monkeypatch.setattr(pairs, "TILE_ENTRIES", SIDE**2)
    found = torch.full((classes, classes), math.nan, dtype=torch.float64)
    seen = []
    for tile in tiles(vectors):
        assert tile.distances.numel() <= SIDE**2
        assert not bool(found[tile.rows, tile.columns].isfinite().any())
        found[tile.rows, tile.columns] = tile.distances
        seen.append(tile.pairs(tile.distances))
    above = torch.triu(torch.ones(classes, classes, dtype=torch.bool))
    torch.testing.assert_close(found[above], wanted[above], rtol=1e-12, atol=0)
    assert sum(map(len, seen)) == classes * (classes - 1) // 2


@pytest.mark.parametrize("width", [1, 4, 64, 500])
def test_distances_are_exact_to_what_is_promised(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against long double, of pairs on both sides of NEAR, where products round most.

    Red: the promise of d 2^-52, by up to six times at d = 4.
    """
    monkeypatch.setattr(pairs, "TILE_ENTRIES", SIDE**2)
    far = normal(1, width).expand(40, width)
    vectors = torch.cat([far * (1 + 0.12 * normal(40, width)), -far * (1 + 0.12 * normal(40, width, seed=1))])
    exact = vectors.numpy().astype(np.longdouble)
    promised = 32 * (width + 3) * 2.0**-52
    for tile in tiles(vectors):
        wanted = np.sqrt(((exact[tile.rows, None] - exact[None, tile.columns]) ** 2).sum(-1))
        error = np.abs(tile.distances.numpy() - wanted)
        assert (error <= promised * wanted).all()


def test_ties_are_found_tile_by_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Classes 0, 6 and 11 have one mean and one row: all three go to 0. Red: pairs within a tile alone."""
    means = normal(12, 3)
    means[6] = means[11] = means[0]
    labels = torch.arange(12).repeat(2)
    found = class_statistics(
        means[labels] + 1e-3 * torch.tensor([[1.0], [-1.0]]).repeat_interleave(12, 0), labels, 12
    )
    monkeypatch.setattr(pairs, "TILE_ENTRIES", SIDE**2)
    wanted = [0, 1, 2, 3, 4, 5, 0, 7, 8, 9, 10, 0]
    assert NearestMeans(found, found)._lowest_coinciding.tolist() == wanted
    logits = LargestLogits(means, torch.zeros(12, dtype=torch.float64), torch.tensor(1.0))
    assert logits._lowest_equal.tolist() == wanted
