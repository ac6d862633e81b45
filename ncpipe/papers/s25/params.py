"""Define the key `theory` of S25's theory study in params.yaml."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from ncpipe.study import Bound, Index, Positive

Depth = Annotated[int, Bound(1, 10_000)]
Draws = Annotated[int, Bound(1, 10**6)]


@dataclass(frozen=True)
class Constructed:
    """Networks built from the proofs of collapse, for every experiment of the sweep.

    kinds: `printed` has the strengths of the printed proof and `sharp` the least that suffice; `shifts` has
    biases alone.
    depths: L; those that are too small for a kind are left out.
    draws: first layers that are tried for a ResNet.
    detours: arcs that are tried where a geodesic passes too near to a sample.
    attention_exponent: p of gamma(L) = L^-p in a transformer's first block.
    seed: seed of the first layer.
    """

    kinds: tuple[Literal["printed", "sharp", "shifts"], ...]
    depths: tuple[Depth, ...]
    draws: Draws
    detours: Draws
    attention_exponent: Positive
    seed: Index


@dataclass(frozen=True)
class Counterexample:
    """Nearly collapsed data, whose collapse by two-layer blocks costs more than it gains.

    experiment: an L-RN2 that provides model, loss and lambda; its data are not used.
    classes: K.
    per_class: n.
    sizes: epsilon; depths are varied at the first size.
    depths: L; sizes are varied at the first depth.
    seed: seed of the perturbation.
    """

    experiment: str
    classes: Annotated[int, Bound(2, 64)]
    per_class: Annotated[int, Bound(2, 10_000)]  # the proof's blocks serve each sample
    sizes: tuple[Positive, ...]
    depths: tuple[Annotated[int, Bound(2, 10_000)], ...]
    seed: Index


@dataclass(frozen=True)
class Theory:
    """Networks to compare with trained ones.

    constructed: networks built from the proofs of collapse.
    counterexample: nearly collapsed data, whose collapse costs more than it gains.
    """

    constructed: Constructed
    counterexample: Counterexample


@dataclass(frozen=True)
class TheoryParams:
    """Adds the key `theory` to params.yaml.

    theory: networks to compare with trained ones.
    """

    theory: Theory

    def __post_init__(self) -> None:
        params: Any = self  # with the keys of the package
        if (name := self.theory.counterexample.experiment) not in params.experiments:
            known = ", ".join(params.experiments)
            raise ValueError(f"theory.counterexample.experiment: unknown {name!r}; allowed: {known}")


PARAMS = TheoryParams
