"""Vision transformers that predict from the mean of all tokens, with Laplacian heads or without."""

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Literal

import torch
from torch import nn

from ncpipe.study import Count, Family, Layer, Network, OwnModel, init_weights, patches


@dataclass(frozen=True)
class PooledModel(OwnModel):
    """laplacian: whether one of the two heads gives I - P in place of its attention P [2602.09297]."""

    last_bias: ClassVar = True
    architecture: Literal["pooled"]
    width: Count
    patch: Count
    laplacian: bool


class Block(nn.Module):
    """Pre-LN attention of two heads over all tokens, and an MLP, both added to the tokens (N, C, d)."""

    def __init__(self, width, laplacian):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.laplacian = laplacian

    def forward(self, z):
        q, k, v = (x.unflatten(-1, (2, -1)).transpose(-3, -2) for x in self.qkv(self.norm1(z)).chunk(3, -1))
        attended = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1) @ v
        if self.laplacian:
            attended = torch.stack([attended[..., 0, :, :], (v - attended)[..., 1, :, :]], -3)
        z = z + self.out(attended.transpose(-3, -2).flatten(-2))
        return z + self.down(torch.relu(self.up(self.norm2(z))))


class Pooled(Network):
    def __init__(self, spec, shape, classes, depth):
        super().__init__()
        self.patches = nn.Linear(shape.size, spec.width)
        self.places = nn.Parameter(torch.empty(shape.tokens, spec.width))
        self.blocks = nn.ModuleList(Block(spec.width, spec.laplacian) for _ in range(depth))
        self.norm = nn.LayerNorm(spec.width)
        self.last = nn.Linear(spec.width, classes)
        self.depth = depth

    @property
    def length(self):
        return Fraction(self.depth)

    def parameter_groups(self):
        return {
            "embedding": [self.patches, self.places],
            "inner": [self.blocks, self.norm],
            "last": [self.last],
        }

    def initialise(self, generator):
        init_weights(self, 1.0, False, generator)

    def token_layers(self, x, lengths=None):
        z = self.patches(x) + self.places
        yield Layer("embedding", Fraction(0), z)
        for index, block in enumerate(self.blocks, 1):
            z = block(z)
            if index < self.depth:
                yield Layer(f"B{index}", Fraction(index, self.depth), z)
        yield Layer("last", Fraction(1), self.norm(z))

    def layers(self, x, lengths=None):
        for layer in self.token_layers(x, lengths):
            yield layer._replace(values=layer.values.mean(-2))


NETWORKS = {PooledModel: Family(lambda inputs, spec: patches(inputs, spec.patch), Pooled)}
