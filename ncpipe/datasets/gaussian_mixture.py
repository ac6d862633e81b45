"""Isotropic Gaussian clouds around random directions."""

import torch
from torch import Tensor

from ncpipe.config.sources.generated import GaussianMixtureData
from ncpipe.datasets.facts import describe
from ncpipe.datasets.prepared import Prepared, Split, check_memory
from ncpipe.system.randomness import seeded_generator


def prepare_gaussian_mixture(spec: GaussianMixtureData, *_: object) -> Prepared:
    """Draw x = separation * u_k + noise * z (N, dimension), ordered by class; the splits share the u_k."""
    samples = spec.classes * (1 + spec.per_class + spec.test_per_class) + (spec.mean_rank or 0)
    check_memory(samples, spec.dimension, spec.dimension, "classes, per_class or dimension")
    centres = _centres(spec)
    train = _draw(spec, centres, spec.per_class, "train")
    test = _draw(spec, centres, spec.test_per_class, "test")
    facts = describe(spec.source, spec.classes, spec.seed, train, test, {}) | {"centres": centres.tolist()}
    return Prepared("vector", spec.classes, None, train, test, facts)


def _centres(spec: GaussianMixtureData) -> Tensor:
    """Draw separation * u_k (K, dimension), u_k uniform on the unit sphere, or on a random subspace's."""
    rank = spec.dimension if spec.mean_rank is None else spec.mean_rank
    generator = seeded_generator(spec.seed, "data centres")
    directions = torch.randn(spec.classes, rank, generator=generator, dtype=torch.float64)
    centres = spec.separation * directions / directions.norm(dim=1, keepdim=True)
    if spec.mean_rank is None:
        return centres
    generator = seeded_generator(spec.seed, "data subspace")
    across = torch.randn(spec.dimension, rank, generator=generator, dtype=torch.float64)
    return centres @ torch.linalg.qr(across).Q.T


def _draw(spec: GaussianMixtureData, centres: Tensor, per_class: int, split: str) -> Split:
    """Draw the samples of a split. centres: (K, dimension) float64."""
    labels = torch.arange(spec.classes).repeat_interleave(per_class)
    generator = seeded_generator(spec.seed, f"data {split}")
    noise = torch.randn(len(labels), spec.dimension, generator=generator, dtype=torch.float64)
    return Split((centres[labels] + spec.noise * noise).float(), labels)
