"""From a spec to a network with drawn weights, and its inputs' shape."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ncpipe.datasets.prepared import Prepared, Split
from ncpipe.errors import InputError
from ncpipe.models.layers import PatchEmbedding, TokenEmbedding
from ncpipe.models.network import Network
from ncpipe.models.resnet import ResNet
from ncpipe.models.transformer import Transformer
from ncpipe.randomness import seeded_generator
from ncpipe.specs import Model


@dataclass(frozen=True)
class InputShape:
    """What a network reads: D coordinates (tokens None), C tokens of p coordinates, or C of V token ids."""

    size: int
    tokens: int | None = None
    vocabulary: int | None = None


def arrange_inputs(inputs: Tensor, kind: str, model: Model) -> Tensor:
    """A data set's inputs as the architecture reads them.

    Flat (N, D) for ResNets; patches (N, C, p), row by row, for transformers on images (N, c, h, w) or
    vectors (N, D); token ids (N, C) stay as they are.
    """
    if kind == "tokens":
        return inputs
    if not model.is_transformer:
        return inputs.flatten(1)
    patch = model.patch
    assert patch is not None
    for length in inputs.shape[2:] if kind == "image" else inputs.shape[1:]:
        if length % patch:
            raise InputError(f"model.patch: {patch} does not divide the input's side {length}")
    if kind == "vector":
        return inputs.unflatten(1, (-1, patch))
    patches = inputs.unfold(2, patch, patch).unfold(3, patch, patch)  # (N, c, h/p, w/p, p, p)
    return patches.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2).contiguous()


def arrange(split: Split, kind: str, model: Model, device: torch.device, dtype: torch.dtype) -> Split:
    """A split as a network takes it: inputs arranged and in `dtype` (token ids stay), all on `device`."""
    inputs = arrange_inputs(split.inputs, kind, model).to(device)
    return Split(
        inputs if kind == "tokens" else inputs.to(dtype),
        split.labels.to(device),
        None if split.lengths is None else split.lengths.to(device),
    )


def input_shape(data: Prepared, model: Model) -> InputShape:
    """Shape of one sample after `arrange_inputs`."""
    if data.kind == "tokens":
        return InputShape(1, data.train.inputs.shape[1], data.vocabulary)
    sample = arrange_inputs(data.train.inputs[:1], data.kind, model)
    return InputShape(sample.shape[-1], sample.shape[1] if sample.dim() == 3 else None)


def build_model(model: Model, shape: InputShape, classes: int, depth: int, seed: int) -> Network:
    """The network of `model` with L = `depth`, its weights drawn on the CPU from the stream of `seed`."""
    pre_norm = model.norm == "pre"
    uniform = model.initialisation == "uniform"  # a construction takes the place of drawn weights later
    network: Network
    if model.is_transformer:
        assert shape.tokens is not None
        embedding = (
            PatchEmbedding(shape.size, shape.tokens, model.width)
            if shape.vocabulary is None
            else TokenEmbedding(shape.vocabulary, shape.tokens, model.width)
        )
        network = Transformer(
            embedding,
            classes,
            depth,
            model.width,
            model.architecture[3] == "2",
            model.mlp_width,
            pre_norm,
            model.last_bias,
            model.layer_norm_eps,
            model.gain,
            uniform,
        )
    else:
        network = ResNet(
            shape.size,
            classes,
            depth,
            model.width,
            model.mlp_width,
            pre_norm,
            model.last_bias,
            model.layer_norm_eps,
            model.gain,
            uniform,
        )
    network.initialise(seeded_generator(seed, "weights"))
    return network
