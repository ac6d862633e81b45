"""What a trained run's layers look like on its data, in float64: the input of every metric.

N  samples    K  classes    d  width
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ncpipe.config.run import Run
from ncpipe.datasets.prepared import Prepared, Split
from ncpipe.features.forward import layer_positions, layers_by_batch, load_network
from ncpipe.features.gradient import gradient_norm
from ncpipe.features.rank_bound import MatrixRank, matrix_ranks
from ncpipe.metrics.kept_pass import KEEP, KeptPass, LayerOnSplit, both_passes, first_pass, joined
from ncpipe.metrics.table import LAST_LAYER, TEST, TRAIN
from ncpipe.models.build import prepare_split
from ncpipe.models.network import Network, Role
from ncpipe.models.penalties import head_input_strength, penalties


@dataclass(frozen=True)
class NetworkMetadata:
    """What a network says of itself (`ncpipe.models.network`) that no array of its features shows.

    bounded: whether its features are. roles: of its parameters. positions: of its layers, in blocks; a layer
    without one is no step of the way.
    """

    bounded: bool
    roles: dict[str, Role]
    positions: dict[str, float]


@dataclass(frozen=True)
class Features:
    """What `measure` sees of a run, all float64.

    train, test: last-layer features (N, d) as inputs, with their labels (N,), vectors or tags (N, K); test is
    None without such a split. weight (K, d), bias (K,) or None: the last layer. last_penalty, inner_penalty:
    lambda_L/2 |W_L|^2, and lambda/2 |.|^2 of all else that is penalised, of features too. gradient_norm:
    `ncpipe.features.gradient`. layers: by name, in the order of the network, then by split; none where the
    targets are vectors, and of the samples with one tag where they are tags. target: features (N, d) of
    classes that it was not trained on, where there are such. ranks: of its decayed matrices, by name
    (`ncpipe.features.rank_bound`). ood: features (m, d) of other data, where there are such; their labels
    mean nothing.
    """

    train: Split
    test: Split | None
    weight: Tensor
    bias: Tensor | None
    last_penalty: float
    inner_penalty: float
    gradient_norm: float
    layers: dict[str, dict[str, LayerOnSplit]]
    metadata: NetworkMetadata
    target: Split | None = None
    ranks: dict[str, MatrixRank] = field(default_factory=dict)
    ood: Split | None = None

    def splits(self) -> Iterator[tuple[str, Split]]:
        """Yield `train`, and `test` where there is such a split, with their last layer's features."""
        yield TRAIN, self.train
        if self.test is not None:
            yield TEST, self.test


def last_layer_of(features: Features) -> Features:
    """Return what metrics of the last layer need: without the samples themselves, if they have classes."""
    layers = {name: splits for name, splits in features.layers.items() if name == LAST_LAYER}
    if features.train.row:
        return replace(features, layers=layers)
    test = None if features.test is None else features.test[:0]
    return replace(features, train=features.train[:0], test=test, layers=layers, target=None, ood=None)


def extract(
    run: Run,
    state: dict[str, Tensor],
    data: Prepared,
    device: torch.device,
    keep: float = KEEP,
    *,
    last: bool = False,
) -> Features:
    """Pass each split through a trained run, and take its gradient; all in float64.

    Layers are read twice, because how samples lie about the class means follows from all of them; once where
    the targets are vectors. Of tags those of all samples are read once, those of one tag twice. keep: as in
    `KeptPass`. last: whether the last layer alone is looked at, which of a deep network takes a tenth of the
    time.
    """
    network = load_network(run, state, data, device)
    weight = network.classifier_weight().detach().cpu()
    bias = None if network.last.bias is None else network.last.bias.detach().cpu()

    splits = dict(data.measured())

    entry = network.head_input_layer or LAST_LAYER
    names = dict.fromkeys((entry, LAST_LAYER)) if last else ()

    def layers_of(split: Split, name: str) -> KeptPass:
        layers = functools.partial(layers_by_batch, network, run, data, split, device, names)
        return KeptPass(layers, f"{run.name}, {name}", keep)

    runs = {name: layers_of(split, name) for name, split in splits.items()}
    last_layer = {name: joined(layers(), LAST_LAYER)[0][LAST_LAYER] for name, layers in runs.items()}
    roles = network.roles()
    last_penalty, inner_penalty = penalties(run.spec.penalty, run.depth, roles, state)
    if strength := head_input_strength(run.spec, run.depth):
        inner_penalty += strength / 2 * sum(rows[entry].square().sum().item() for rows, _ in runs[TRAIN]())
    if data.train.row:  # not all samples have a class, or none has
        runs = {n: layers_of(some, n) for n, split in splits.items() if (some := split.of_classes())}
    layers: dict[str, dict[str, LayerOnSplit]] = {}
    if TRAIN in runs:
        learned = first_pass(runs[TRAIN](), data.classes)
        layers = both_passes(runs, learned, {LAST_LAYER: (weight, bias)})
    one = prepare_split(data.train[:1], data.kind, run.spec.model, device, torch.float64)
    return Features(
        _with_features(data.train, last_layer[TRAIN]),
        None if data.test is None else _with_features(data.test, last_layer[TEST]),
        weight,
        bias,
        last_penalty,
        inner_penalty,
        gradient_norm(network, run, data, device),
        layers,
        NetworkMetadata(
            network.bounded or network.on_sphere, roles, layer_positions(network, one.inputs, one.lengths)
        ),
        None if data.target is None else _last_layer(network, run, data, data.target, device),
        matrix_ranks(network, run, data, device),
        None if data.ood is None else _last_layer(network, run, data, data.ood, device),
    )


def _with_features(split: Split, features: Tensor) -> Split:
    """Return features (N, d) as inputs, with the labels (N,), vectors or tags (N, K) of a split."""
    return (type(split) if split.row else Split)(features, split.targets)


def _last_layer(network: Network, run: Run, data: Prepared, split: Split, device: torch.device) -> Split:
    """Return last-layer features (N, d) of a split as inputs, with its labels."""
    features, _ = joined(layers_by_batch(network, run, data, split, device, (LAST_LAYER,)))
    return Split(features[LAST_LAYER], split.targets)
