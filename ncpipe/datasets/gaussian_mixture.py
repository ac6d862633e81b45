"""Isotropic Gaussian clouds around random directions."""

import torch
from torch import Tensor

from ncpipe.datasets.facts import describe
from ncpipe.datasets.prepared import Prepared, Split
from ncpipe.randomness import seeded_generator
from ncpipe.specs import GaussianMixtureData


def prepare_gaussian_mixture(spec: GaussianMixtureData) -> Prepared:
    """x = separation * u_k + noise * z, shape (N, dimension), ordered by class; both splits share the u_k."""
    generator = seeded_generator(spec.seed, "data centres")
    directions = torch.randn(spec.classes, spec.dimension, generator=generator, dtype=torch.float64)
    centres = spec.separation * directions / directions.norm(dim=1, keepdim=True)
    train = _draw(spec, centres, spec.per_class, "train")
    test = _draw(spec, centres, spec.test_per_class, "test")
    facts = describe(spec.source, spec.classes, spec.seed, train, test, {}) | {"centres": centres.tolist()}
    return Prepared("vector", spec.classes, None, train, test, facts)


def _draw(spec: GaussianMixtureData, centres: Tensor, per_class: int, split: str) -> Split:
    """centres: (K, dimension) float64."""
    labels = torch.arange(spec.classes).repeat_interleave(per_class)
    generator = seeded_generator(spec.seed, f"data {split}")
    noise = torch.randn(len(labels), spec.dimension, generator=generator, dtype=torch.float64)
    return Split((centres[labels] + spec.noise * noise).float(), labels)
