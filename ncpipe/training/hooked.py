"""Make a network of any module: its layers are read by hooks, its roles follow from names.

N  samples    d  feature width    K  classes
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from ncpipe.config.study import mistake_of
from ncpipe.models.hook_points import Select, find_module, hook_points, matches, reading
from ncpipe.models.inputs import InputShape, unchanged
from ncpipe.models.network import Layer, ModuleOrParameter, Network, Role, embedding_parameters
from ncpipe.system.errors import InputError

UNFIT = "gives a network that does not fit"
Build = Callable[[Any, InputShape, int, int], nn.Module]


@dataclass(frozen=True)
class Hooked:
    """Holds how to make the networks of a spec from any modules: an entry of NETWORKS, as a Family is.

    module: module(spec, shape, classes, depth) returns the network, which maps inputs (N, ...) to logits
    (N, K); token sequences come with their lengths (N,), module(inputs, lengths). It may draw its weights
    from the global generators, which are seeded.
    last: name of the nn.Linear that gives the logits. layers: names of the layers to measure besides its
    input, as in `ncpipe.metrics.hooks.measure_model`. roles: by role the names of its parameters, or of
    modules, in which * is any part; all others are `inner`, but for those of `last`, of nn.Embedding
    (`embedding`) and after requires_grad_(False) (`frozen`). reshape_inputs: as in a Family.
    """

    module: Build
    last: str
    layers: Sequence[str] | Mapping[str, Select | None] = ()
    roles: Mapping[Role, Sequence[str]] = field(default_factory=dict)
    reshape_inputs: Callable[[Tensor, Any], Tensor] = unchanged

    def build(self, spec: Any, shape: InputShape, classes: int, depth: int) -> "HookedNetwork":
        """Return the network of a spec."""
        module = self.module(spec, shape, classes, depth)
        if not isinstance(module, nn.Module):
            raise mistake_of(self.module, f"gives {type(module).__name__}; return a module")
        try:
            return HookedNetwork(self, module, spec.bounds_features)
        except InputError as error:
            raise mistake_of(self.module, f"{UNFIT}: {error}") from None


class HookedNetwork(Network):
    """A module whose last linear map is taken out, so that it gives the features h (N, d)."""

    def __init__(self, made_by: Hooked, module: nn.Module, bounded: bool) -> None:
        super().__init__()
        last = find_module(module, made_by.last, "last")
        if not isinstance(last, nn.Linear) or last is module or is_parametrized(last):
            kind = type(last).__name__
            raise InputError(f"last: {made_by.last!r} is of type {kind}; name an nn.Linear inside")
        self.last = last
        path, _, leaf = made_by.last.rpartition(".")
        setattr(module.get_submodule(path), leaf, features := nn.Identity())
        self.module = module
        self._features = [features]  # in a list, so that it gets no second name
        self.points = hook_points(module, made_by.layers)
        self.bounded = bounded  # type: ignore[misc]
        self._build = made_by.module
        self._roles = self._role_of_each(made_by.roles)

    @property
    def length(self) -> Fraction:
        return Fraction(len(self.points) + 1)

    def parameter_groups(self) -> Mapping[Role, Iterable[ModuleOrParameter]]:
        groups: dict[Role, list[ModuleOrParameter]] = {}
        for name, parameter in self.named_parameters():
            groups.setdefault(self._roles[name], []).append(parameter)
        return groups

    def initialise(self, generator: torch.Generator) -> None:
        """Leave the weights as the module's own code drew them, from global generators of the run's seed."""

    def layers(self, x: Tensor, lengths: Tensor | None = None) -> Iterator[Layer]:
        """Yield the named layers in their order, the features last; in training mode the features alone."""
        features: list[Tensor] = []
        points = [] if self.training else self.points
        hook = self._features[0].register_forward_pre_hook(lambda module, inputs: features.append(inputs[0]))
        try:
            with reading(points, x) as vectors:
                h = self.module(x) if lengths is None else self.module(x, lengths)
        except InputError as error:
            raise mistake_of(self._build, f"{UNFIT}: {error}") from None
        finally:
            hook.remove()
        if len(features) != 1 or h is not features[0]:
            raise mistake_of(
                self._build, "gives a network that does not return the logits of its last layer as they are"
            )
        for place, point in enumerate(points, 1):
            yield Layer(point.name, place / self.length, vectors[point.name])
        yield Layer("last", Fraction(1), h)

    def _role_of_each(self, patterns: Mapping[Role, Sequence[str]]) -> dict[str, Role]:
        embeddings = embedding_parameters(self.module)
        roles: dict[str, Role] = {}
        for name, parameter in self.named_parameters():
            roles[name] = "embedding" if id(parameter) in embeddings else "inner"
            if name.startswith("last."):
                roles[name] = "last"
        for role, pattern in ((role, name) for role, names in patterns.items() for name in names):
            names = [name for name in roles if _is_within(name.removeprefix("module."), pattern)]
            if not names:
                parts = dict.fromkeys(name.split(".")[1] for name in roles if name.startswith("module."))
                raise InputError(f"roles: no parameter matches {pattern!r}; there are {', '.join(parts)}")
            roles |= dict.fromkeys(names, role)
        return roles


def _is_within(name: str, pattern: str) -> bool:
    """Return whether a parameter's name, or that of a module that it is in, matches."""
    parts = name.split(".")
    return any(matches(".".join(parts[:end]), pattern) for end in range(1, len(parts) + 1))
