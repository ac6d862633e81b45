"""From a spec to a network with drawn weights, and its inputs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from ncpipe.config.architectures.architecture import Architecture
from ncpipe.config.architectures.conv_net import ConvNetModel
from ncpipe.config.architectures.dufm import DufmModel
from ncpipe.config.architectures.mlp import MLPModel
from ncpipe.config.architectures.resnet import ResNetModel
from ncpipe.config.architectures.resnet_cifar import CifarResNetModel
from ncpipe.config.architectures.transformer import TransformerModel
from ncpipe.config.specs import Run
from ncpipe.config.study import loaded
from ncpipe.datasets.prepared import Prepared, Split
from ncpipe.models import conv_net, dufm, mlp, resnet, resnet_cifar, transformer
from ncpipe.models.heads import as_loss_has_it, check_room, set_simplex
from ncpipe.models.inputs import InputShape
from ncpipe.models.network import Network
from ncpipe.system.randomness import seeded_generator


@dataclass(frozen=True)
class Family:
    """How the networks of one kind of spec are made.

    arrange(inputs, spec): a data set's inputs, but for token ids, as the network reads them.
    build(spec, shape, classes, depth): the network, not initialised.
    """

    arrange: Callable[[Tensor, Any], Tensor]
    build: Callable[[Any, InputShape, int, int], Network]


FAMILIES: Mapping[type[Architecture], Family] = MappingProxyType(
    {
        ResNetModel: Family(resnet.arrange, resnet.build),
        TransformerModel: Family(transformer.arrange, transformer.build),
        MLPModel: Family(mlp.arrange, mlp.build),
        CifarResNetModel: Family(resnet_cifar.arrange, resnet_cifar.build),
        ConvNetModel: Family(conv_net.arrange, conv_net.build),
        DufmModel: Family(dufm.arrange, dufm.build),
    }
)


def _family(model: Architecture) -> Family:
    own: Family | None = loaded().networks.get(type(model))
    return own or FAMILIES[type(model)]


def arrange_inputs(inputs: Tensor, kind: str, model: Architecture) -> Tensor:
    """A data set's inputs (N, ...) as the architecture reads them; token ids (N, C) stay as they are."""
    return inputs if kind in ("tokens", "next_tokens") else _family(model).arrange(inputs, model)


def arrange(split: Split, kind: str, model: Architecture, device: torch.device, dtype: torch.dtype) -> Split:
    """A split as a network takes it: inputs arranged and in `dtype` (whole numbers stay), all on `device`."""
    inputs = arrange_inputs(split.inputs, kind, model).to(device)
    return replace(
        split,
        inputs=inputs if kind in ("tokens", "next_tokens", "free") else inputs.to(dtype),
        labels=split.labels.to(device),
        lengths=None if split.lengths is None else split.lengths.to(device),
    )


def input_shape(data: Prepared, model: Architecture) -> InputShape:
    """Shape of one sample after `arrange_inputs`."""
    if data.kind in ("tokens", "next_tokens"):
        every = data.kind == "next_tokens"
        return InputShape(1, data.train.inputs.shape[1], data.vocabulary, every_position=every)
    if data.kind == "free":
        return InputShape(len(data.train), copies=int(str(data.facts["copies"])))
    sample = arrange_inputs(data.train.inputs[:1], data.kind, model)
    if sample.dim() == 4:
        return InputShape(sample.shape[1], positions=sample.shape[2:].numel())
    return InputShape(sample.shape[-1], sample.shape[1] if sample.dim() == 3 else None)


def lay_out(model: Architecture, shape: InputShape, classes: int, depth: int) -> Network:
    """The network of `model` with L = `depth`, its weights not drawn yet."""
    network = _family(model).build(model, shape, classes, depth)
    if model.has_fixed_classifier:
        check_room(classes, network.last.weight.shape[1])
        network.fixed_last = True
    return network


def build_model(model: Architecture, shape: InputShape, classes: int, depth: int, seed: int) -> Network:
    """The network of `model` with L = `depth`, its weights drawn on the CPU from the stream of `seed`."""
    network = lay_out(model, shape, classes, depth)
    network.initialise(seeded_generator(seed, "weights"))
    if model.classifier is not None and model.classifier.length is not None:
        set_simplex(network, model.classifier.length, seeded_generator(seed, "classifier"))
    return network


def build_network(run: Run, data: Prepared) -> Network:
    """A run's network, its weights drawn: `build_model` as the run's loss has it."""
    spec = run.spec
    network = build_model(spec.model, input_shape(data, spec.model), data.classes, run.depth, run.seed)
    return as_loss_has_it(network, spec.loss)


def lay_out_network(run: Run, data: Prepared) -> Network:
    """The same, its weights not drawn yet."""
    model = run.spec.model
    return as_loss_has_it(lay_out(model, input_shape(data, model), data.classes, run.depth), run.spec.loss)
