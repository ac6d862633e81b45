"""Build a randomly initialised network from its spec, and reshape a data set's inputs for it.

The specs are in `ncpipe.config.architectures`, what a network must define in `ncpipe.models.network`.
A spec or a loss may fix the last layer and put features on a sphere.

K  classes    d  feature width
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import torch
from torch import Tensor

from ncpipe.config.architectures.architecture import Architecture
from ncpipe.config.architectures.conv_net import ConvNetModel
from ncpipe.config.architectures.mlp import MLPModel
from ncpipe.config.architectures.paper import ResNetModel
from ncpipe.config.architectures.resnet_cifar import CifarResNetModel
from ncpipe.config.architectures.transformer import TransformerModel
from ncpipe.config.loss_specs import Loss, has_cosines, ignores_lengths, name_of, too_narrow
from ncpipe.config.run import Run
from ncpipe.config.study import mistake
from ncpipe.datasets.prepared import Prepared, Split
from ncpipe.models import conv_net, resnet_cifar, transformer
from ncpipe.models.conv_net import ConvNet
from ncpipe.models.inputs import InputShape, flatten
from ncpipe.models.mlp import MLP
from ncpipe.models.network import Family, Network
from ncpipe.models.resnet import ResNet
from ncpipe.models.resnet_cifar import CifarResNet
from ncpipe.models.transformer import Transformer
from ncpipe.system.errors import InputError
from ncpipe.system.randomness import global_generators, seeded_generator

FAMILIES: Mapping[type[Architecture], Family] = MappingProxyType(
    {
        ResNetModel: Family(flatten, ResNet),
        TransformerModel: Family(transformer.reshape_inputs, Transformer),
        MLPModel: Family(flatten, MLP),
        CifarResNetModel: Family(resnet_cifar.reshape_inputs, CifarResNet),
        ConvNetModel: Family(conv_net.reshape_inputs, ConvNet),
    }
)


def _family(model: Architecture) -> Family:
    return model.study_entry or FAMILIES[type(model)]


def reshape_inputs(inputs: Tensor, kind: str, model: Architecture) -> Tensor:
    """Return a data set's inputs (N, ...) as the architecture reads them; token ids (N, C) are unchanged."""
    return inputs if kind in ("tokens", "next_tokens") else _family(model).reshape_inputs(inputs, model)


def prepare_split(
    split: Split, kind: str, model: Architecture, device: torch.device, dtype: torch.dtype
) -> Split:
    """Return a split as a network reads it: inputs reshaped and of type `dtype`, all on `device`.

    Integer inputs keep their type.
    """
    inputs = reshape_inputs(split.inputs, kind, model).to(device)
    return replace(
        split,
        inputs=inputs if kind in ("tokens", "next_tokens", "free") else inputs.to(dtype),
        labels=split.labels.to(device, dtype if split.row else None),
        lengths=None if split.lengths is None else split.lengths.to(device),
    )


def input_shape(data: Prepared, model: Architecture) -> InputShape:
    """Return the shape of one sample after `reshape_inputs`."""
    if data.kind in ("tokens", "next_tokens"):
        every = data.kind == "next_tokens"
        return InputShape(1, data.train.inputs.shape[1], data.vocabulary, every_position=every)
    if data.kind == "free":
        return InputShape(len(data.train), copies=int(str(data.facts["copies"])))
    sample = reshape_inputs(data.train.inputs[:1], data.kind, model)
    if sample.dim() == 4:
        return InputShape(sample.shape[1], positions=sample.shape[2:].numel())
    return InputShape(sample.shape[-1], sample.shape[1] if sample.dim() == 3 else None)


def build_uninitialised(model: Architecture, shape: InputShape, classes: int, depth: int) -> Network:
    """Return the network of `model` with L = `depth`, not initialised.

    Raises InputError, with its class and line, if what a study.py builds is no Network or has no classifier.
    """
    network = _family(model).build(model, shape, classes, depth)
    if model.study_entry:
        _check_own(network, model)
    if model.has_fixed_classifier:
        if problem := too_narrow(classes, network.last.weight.shape[1]):
            raise InputError(problem)
        network.fixed_last = True
    return network


def _check_own(network: object, model: Architecture) -> None:
    name = type(network).__name__
    if not isinstance(network, Network):
        raise mistake(model, f"its Family builds a {name}; expected a Network")
    weight = getattr(getattr(network, "last", None), "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() != 2:
        problem = f"{name} has no classifier; set self.last = torch.nn.Linear(width, classes) in __init__"
        raise mistake(network, problem, "NETWORKS")


def build_model(model: Architecture, shape: InputShape, classes: int, depth: int, seed: int) -> Network:
    """Return the network of `model` with L = `depth`, initialised on the CPU from the stream of `seed`."""
    with global_generators(seed, "network"):
        network = build_uninitialised(model, shape, classes, depth)
        network.initialise(seeded_generator(seed, "weights"))
    if model.classifier is not None and model.classifier.length is not None:
        weight, generator = network.last.weight.detach(), seeded_generator(seed, "classifier")
        weight.copy_(simplex_rows(classes, weight.shape[1], model.classifier.length, generator))
    return network


def build_network(run: Run, data: Prepared) -> Network:
    """Return a run's initialised network: `build_model`, configured for the run's loss."""
    spec = run.spec
    network = build_model(spec.model, input_shape(data, spec.model), data.classes, run.depth, run.seed)
    return configure_for_loss(network, spec.loss)


def build_uninitialised_network(run: Run, data: Prepared) -> Network:
    """Return a run's network, configured for its loss and not initialised."""
    model = run.spec.model
    network = build_uninitialised(model, input_shape(data, model), data.classes, run.depth)
    return configure_for_loss(network, run.spec.loss)


def configure_for_loss(network: Network, loss: Loss) -> Network:
    """Return the network with what the loss requires: features on a sphere, cosines, a fixed last layer."""
    network.on_sphere = ignores_lengths(loss)
    network.cosines = has_cosines(loss)
    network.fixed_last = network.fixed_last or name_of(loss) == "supcon"
    return network


def simplex_rows(classes: int, width: int, length: float, generator: torch.Generator) -> Tensor:
    """Return A = a sqrt(K/(K-1)) V U^T (K, d) float64: rows of length a = `length`, cosines -1/(K-1).

    V (K, K-1): Helmert's orthonormal columns, orthogonal to 1. U (d, K-1): orthonormal columns, uniformly
    oriented. A A^T = a^2 K/(K-1) (I - 11^T/K) [K23 3.1.6].
    """
    drawn = torch.randn(width, classes - 1, dtype=torch.float64, generator=generator)
    orientation, upper = torch.linalg.qr(drawn)
    orientation = orientation * upper.diagonal().sign()  # uniform only so
    steps = torch.arange(1, classes, dtype=torch.float64)
    helmert = torch.ones(classes, classes - 1, dtype=torch.float64).triu() - torch.diag(steps, -1)[:, :-1]
    rows: Tensor = helmert / (steps * (steps + 1)).sqrt() @ orientation.T
    return length * (classes / (classes - 1)) ** 0.5 * rows
