"""Modular addition: pairs of numbers as two one-hot vectors, labelled by their sum."""

import numpy as np
import torch

from ncpipe.config.sources.generated import ModularData
from ncpipe.datasets.facts import describe
from ncpipe.datasets.prepared import Prepared, Split


def prepare_modular(spec: ModularData, *_: object) -> Prepared:
    """Return all K^2 pairs, ordered by class: `per_class` of each to train on, the others to test on."""
    draw = np.random.default_rng(spec.seed)
    first, second = np.divmod(np.arange(spec.modulus**2), spec.modulus)
    sums = (first + second) % spec.modulus
    order = np.stack([draw.permutation(np.flatnonzero(sums == k)) for k in range(spec.modulus)])
    one_hot = np.eye(spec.modulus, dtype=np.float32)

    def split(chosen: np.ndarray) -> Split:
        pairs = np.concatenate([one_hot[first[chosen]], one_hot[second[chosen]]], axis=1)
        return Split(torch.from_numpy(pairs), torch.from_numpy(sums[chosen]))

    train, test = split(order[:, : spec.per_class].ravel()), split(order[:, spec.per_class :].ravel())
    facts = describe(spec.source, spec.modulus, spec.seed, train, test, {})
    return Prepared("vector", spec.modulus, None, train, test, facts)
