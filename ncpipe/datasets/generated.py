"""Draw data from a formula: Gaussian clouds, modular addition, vectors of a teacher, and labels alone.

N  samples    K  classes    D  coordinates    t  numbers of a target
"""

import numpy as np
import torch
from torch import Tensor

from ncpipe.config.sources.generated import FreeData, GaussianMixtureData, ModularData, TeacherData
from ncpipe.datasets.facts import describe
from ncpipe.datasets.prepared import Prepared, Split, VectorSplit, check_memory
from ncpipe.system.errors import InputError
from ncpipe.system.randomness import seeded_generator


def prepare_gaussian_mixture(spec: GaussianMixtureData, *_: object) -> Prepared:
    """Draw x = separation * u_k + noise * z (N, dimension), ordered by class; the splits share the u_k."""
    samples = spec.classes * (1 + spec.per_class + spec.test_per_class) + (spec.mean_rank or 0)
    check_memory(samples, spec.dimension, spec.dimension, "classes, per_class or dimension")
    centres = _centres(spec)
    train = _draw_clouds(spec, centres, spec.per_class, "train")
    test = _draw_clouds(spec, centres, spec.test_per_class, "test")
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


def _draw_clouds(spec: GaussianMixtureData, centres: Tensor, per_class: int, split: str) -> Split:
    """Draw the samples of a split. centres: (K, dimension) float64."""
    labels = torch.arange(spec.classes).repeat_interleave(per_class)
    generator = seeded_generator(spec.seed, f"data {split}")
    noise = torch.randn(len(labels), spec.dimension, generator=generator, dtype=torch.float64)
    return Split((centres[labels] + spec.noise * noise).float(), labels)


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


def prepare_teacher(spec: TeacherData, *_: object) -> Prepared:
    """Draw x ~ N(0, I) (N, D) and y = Sigma^(1/2) C^(-1/2) (g(x) - m), m and C of the training outputs g(x).

    Both splits have the same teacher and the same affine map. Raises InputError if Sigma, or C, has a
    variance of 0.
    """
    wanted = torch.tensor(spec.covariance, dtype=torch.float64)
    if float(torch.linalg.eigvalsh(wanted)[0]) <= 0:
        raise InputError("data.covariance: is not positive definite; its eigenvalues must be above 0")
    samples, numbers = spec.samples + spec.test_samples, spec.dimension + (spec.hidden or 0)
    check_memory(samples, spec.dimension, numbers, "samples, dimension or hidden")
    inputs = {
        split: torch.randn(
            size, spec.dimension, generator=seeded_generator(spec.seed, f"data {split}"), dtype=torch.float64
        )
        for split, size in (("train", spec.samples), ("test", spec.test_samples))
    }
    outputs = dict(zip(inputs, _teach(spec, list(inputs.values())), strict=True))
    mean = outputs["train"].mean(0)
    covariance = torch.cov(outputs["train"].T, correction=0).reshape(wanted.shape)
    if float(torch.linalg.eigvalsh(covariance)[0]) <= 0:
        raise InputError("data.samples: too few for targets of that covariance; take more")
    map_ = power(covariance, -0.5) @ power(wanted, 0.5)
    train, test = (
        VectorSplit(inputs[split].float(), ((outputs[split] - mean) @ map_).float()) for split in inputs
    )
    facts = describe(spec.source, spec.classes, spec.seed, train, test, {})
    return Prepared("vector", spec.classes, None, train, test, facts)


def power(matrix: Tensor, exponent: float) -> Tensor:
    """Return a power of a symmetric positive definite matrix (t, t)."""
    values, axes = torch.linalg.eigh(matrix)
    result: Tensor = axes * values.pow(exponent) @ axes.T
    return result


def _teach(spec: TeacherData, inputs: list[Tensor]) -> list[Tensor]:
    """Return the teacher's outputs (N, t) for inputs (N, D) of each split."""
    generator = seeded_generator(spec.seed, "data teacher")

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    if spec.hidden is not None:
        inner, shift = drawn(spec.hidden, spec.dimension) / spec.dimension**0.5, drawn(spec.hidden)
        inputs = [torch.tanh(x @ inner.T + shift) for x in inputs]
    outer = drawn(spec.classes, inputs[0].shape[1])
    return [x @ outer.T for x in inputs]


def prepare_free(spec: FreeData, *_: object) -> Prepared:
    """Return labels (N,), ordered by class; N is K for reduced data, whose samples stand for n each."""
    rows, copies = (1, spec.per_class) if spec.reduced else (spec.per_class, 1)
    labels = torch.arange(spec.classes).repeat_interleave(rows)
    train = Split(torch.arange(len(labels)), labels)
    facts = {"source": spec.source, "counts": {"train": [rows] * spec.classes}, "copies": copies}
    return Prepared(spec.kind, spec.classes, None, train, None, facts)
