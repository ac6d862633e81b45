"""Define `Network`, the base class of all architectures: layers, roles of parameters, initialisation.

Other modules ask a network for these and never infer them from names of parameters.

N  samples    d  feature width    K  classes    L  depth
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ncpipe.models.inputs import InputShape
from ncpipe.models.layers import Affine

# embedding  first maps of the data, which the paper does not penalise
# inner      everything between them and the last layer
# head       matrices of a ReLU head, where the network ends with one
# last       the classifier W_L, b_L
# free       features that are parameters, in a features model
# frozen     never learned, never penalised
Role = Literal["embedding", "inner", "head", "last", "free", "frozen"]
INNER: tuple[Role, ...] = ("inner", "head")
ModuleOrParameter = nn.Module | nn.Parameter


class Layer(NamedTuple):
    """A representation on the way to the features: values (N, d), or (S, N, d) of S stacked networks.

    position: fraction of the depth, 1 at the features; a Fraction keeps `Network.length` times it exact. None
    for values inside a step, such as the input of a block's ReLU: only their class means are measured.
    reader: the matrix (m, d) that alone reads inner values, where one does; it tells NRC3.
    """

    name: str
    position: Fraction | float | None
    values: Tensor
    reader: Tensor | None = None


class ForwardOutput(NamedTuple):
    """Output of a forward pass that an objective reads, with a leading run axis for stacked networks.

    logits (N, K); features (N, d), the input of the last layer; head_input (N, d'), the features that may be
    penalised: the input of the head, or `features` without a head.
    """

    logits: Tensor
    features: Tensor
    head_input: Tensor


class Network(nn.Module, ABC):
    """A classifier W_L h + b_L, `last`, on features h (N, d) that the other layers compute.

    fixed_last: whether the last layer is set and not learned, which makes its parameters frozen. on_sphere:
    whether features are scaled to length sqrt(d) before the last layer sees them (`ncpipe.models.build`).
    cosines: whether logits are the cosines of features and rows of W_L; they need `on_sphere`, and no bias.
    batched: whether its layers also take parameters with a leading run axis (`ncpipe.models.layers`); other
    networks are stacked by vmap (`ncpipe.training.stack`). bounded: whether |h| <= sqrt(d) for all weights
    and data, as after LN. head_input_layer: name of the layer whose values enter the head, '' without one.
    """

    batched: ClassVar[bool] = False
    bounded: ClassVar[bool] = False
    head_input_layer: str = ""
    last: Affine | nn.Linear
    fixed_last: bool = False
    on_sphere: bool = False
    cosines: bool = False

    @property
    @abstractmethod
    def length(self) -> Fraction:
        """Number of blocks from position 0 to the features: the unit of laws per layer."""

    @abstractmethod
    def parameter_groups(self) -> Mapping[Role, Iterable[ModuleOrParameter]]:
        """Return the modules and parameters of each role."""

    @abstractmethod
    def layers(self, x: Tensor, lengths: Tensor | None = None) -> Iterator[Layer]:
        """Yield every representation of samples x in the order of the forward pass, the features last.

        lengths (N,): of token sequences, their number of real tokens.
        """

    def representations(self, x: Tensor, lengths: Tensor | None = None) -> Iterator[Layer]:
        """Yield `layers`, the features scaled to the sphere if `on_sphere`; measurements use these."""
        for layer in self.layers(x, lengths):
            if self.on_sphere and layer.position == 1:
                h = layer.values
                layer = layer._replace(values=h.shape[-1] ** 0.5 * F.normalize(h, dim=-1))
            yield layer

    def token_layers(self, x: Tensor, lengths: Tensor | None = None) -> Iterator[Layer]:
        """Yield the layers with all tokens of samples x, (N, C, d); none where a sample has no tokens."""
        return iter(())

    @abstractmethod
    def initialise(self, generator: torch.Generator) -> None:
        """Draw every parameter from the generator alone."""

    def features(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return h (N, d), the input of the last layer."""
        for layer in self.representations(x, lengths):  # noqa: B007
            pass
        return layer.values

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return logits (N, K)."""
        return self.logits(self.features(x, lengths))

    def logits(self, features: Tensor) -> Tensor:
        """Return logits (N, K) of features (N, d)."""
        return features @ self.classifier_weight().mT if self.cosines else self.last(features)

    def classifier_weight(self) -> Tensor:
        """Return the rows (K, d) whose inner products with the features are the logits, apart from a bias.

        Rows have length 1/sqrt(d) where logits are cosines, since features have length sqrt(d).
        """
        weight = self.last.weight
        return F.normalize(weight, dim=-1) / weight.shape[-1] ** 0.5 if self.cosines else weight

    def forward_with_features(self, x: Tensor, lengths: Tensor | None = None) -> ForwardOutput:
        """Return everything that an objective may read of samples x."""
        for layer in self.representations(x, lengths):
            if layer.name == self.head_input_layer:
                head_input = layer.values
        if not self.head_input_layer:
            head_input = layer.values
        return ForwardOutput(self.logits(layer.values), layer.values, head_input)

    def roles(self) -> dict[str, Role]:
        """Return the role of every parameter, by name in the order of `named_parameters`.

        A parameter that needs no gradient (`requires_grad_(False)`) is frozen. Raises ValueError if a
        parameter has no role or two, or is not the network's.
        """
        roles: dict[int, Role] = {}
        for group, members in self.parameter_groups().items():
            role: Role = "frozen" if group == "last" and self.fixed_last else group
            for member in members:
                for parameter in [member] if isinstance(member, nn.Parameter) else member.parameters():
                    if (other := roles.setdefault(id(parameter), role)) != role:
                        raise ValueError(f"parameter_groups(): a parameter is in {other} and in {role}")
        named = dict(self.named_parameters())
        nameless = [name for name, parameter in named.items() if id(parameter) not in roles]
        if nameless:
            raise ValueError(f"parameter_groups() leaves out {', '.join(nameless)}")
        if len(roles) > len(named):
            raise ValueError("parameter_groups() has a parameter that the network does not register")
        return {
            name: roles[id(parameter)] if parameter.requires_grad else "frozen"
            for name, parameter in named.items()
        }


def batch_norms(network: nn.Module) -> dict[str, nn.Module]:
    """Return the modules with running statistics, ours or PyTorch's, by name."""
    return {
        name: module
        for name, module in network.named_modules()
        if getattr(module, "running_mean", None) is not None
    }


def mixes_samples(network: nn.Module) -> bool:
    """Return whether a batch norm makes a sample's output depend on the others of its batch."""
    norm = nn.modules.batchnorm._BatchNorm  # also without running statistics
    return bool(batch_norms(network)) or any(isinstance(module, norm) for module in network.modules())


def embedding_parameters(module: nn.Module) -> set[int]:
    """Return the ids of the parameters of the nn.Embedding inside a module."""
    tables = (part for part in module.modules() if isinstance(part, nn.Embedding))
    return {id(parameter) for table in tables for parameter in table.parameters()}


@torch.no_grad()
def init_weights(
    network: nn.Module,
    gain: float,
    uniform: bool,
    generator: torch.Generator,
    besides: Collection[str] = (),
) -> None:
    """Draw every matrix with mean 0 and variance gain^2/fan_in, in the order of the modules.

    Kernels of convolutions (m, c, h, w) are matrices (m, c h w). Biases become 0 and gains of normalisations
    1. Token and position tables (n, d) have no fan-in: their rows are drawn like columns of a matrix with
    fan-in d. besides: names of parameters that are left unchanged. Raises ValueError that names all others.
    """
    unknown = []
    for name, parameter in network.named_parameters():
        path, _, leaf = name.rpartition(".")
        module = network.get_submodule(path)
        kernel = "Conv" in type(module).__name__ and parameter.dim() > 2
        if name in besides:
            continue
        if "Norm" in type(module).__name__ and leaf in ("weight", "bias"):
            parameter.fill_(float(leaf == "weight"))
        elif parameter.dim() == 1 and "bias" in leaf:
            parameter.zero_()
        elif parameter.dim() == 2 or kernel:
            deviation = gain / parameter[0].numel() ** 0.5
            if uniform:
                limit = 3**0.5 * deviation
                parameter.uniform_(-limit, limit, generator=generator)
            else:
                parameter.normal_(0.0, deviation, generator=generator)
        else:
            unknown.append(f"{name} {tuple(parameter.shape)}")
    if unknown:
        raise ValueError(
            f"init_weights knows matrices, kernels of convolutions, biases and normalisations, and not "
            f"{', '.join(unknown)}; set these in `initialise` and write init_weights(..., besides=[names])"
        )


@torch.no_grad()
def init_convolutional(
    network: nn.Module, gain_of: Callable[[nn.Linear], float], generator: torch.Generator
) -> None:
    """Draw convolutions with variance 2/fan_in and linear layers with gain^2/fan_in; reset batch norms."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_parameters()
        elif isinstance(module, nn.Conv2d):
            module.weight.normal_(0.0, (2 / module.weight[0].numel()) ** 0.5, generator=generator)
        elif isinstance(module, nn.Linear):
            module.weight.normal_(0.0, gain_of(module) / module.in_features**0.5, generator=generator)


@dataclass(frozen=True)
class Family:
    """Functions that make the networks of one kind of spec.

    reshape_inputs(inputs, spec): return a data set's inputs as the network reads them; not for token ids.
    build(spec, shape, classes, depth): return the network, not initialised; usually its class.
    """

    reshape_inputs: Callable[[Tensor, Any], Tensor]
    build: Callable[[Any, InputShape, int, int], Network]
