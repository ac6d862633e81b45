"""Regression: normal inputs, and targets of a given covariance that a random teacher makes of them.

N  samples    D  coordinates    t  numbers of a target
"""

import torch
from torch import Tensor

from ncpipe.config.sources.generated import TeacherData
from ncpipe.datasets.facts import describe
from ncpipe.datasets.prepared import Prepared, VectorSplit, check_memory
from ncpipe.system.errors import InputError
from ncpipe.system.randomness import seeded_generator


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
