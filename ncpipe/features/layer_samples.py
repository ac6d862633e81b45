"""Measure what needs the samples of a layer themselves, by passes through a finished network.

B  samples of a batch    N  samples    d  width
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ncpipe.config.architectures.transformer import TransformerModel
from ncpipe.config.run import Run
from ncpipe.config.specs import OwnModel
from ncpipe.config.transfer_specs import Episodes, Transfer
from ncpipe.datasets.prepared import Prepared
from ncpipe.features.extraction import Features
from ncpipe.features.forward import ROWS, layers_by_batch, load_network
from ncpipe.features.own_network import own_batches
from ncpipe.metrics.checks import check_shots
from ncpipe.metrics.collapse import cdnv, nc1_trace_ratio
from ncpipe.metrics.kept_pass import Batch, KeptPass
from ncpipe.metrics.outliers import outlier_metrics
from ncpipe.metrics.regression import measure_vectors
from ncpipe.metrics.statistics import class_statistics
from ncpipe.metrics.table import LAST_LAYER, OOD, TARGET, TEST, TRAIN, Measurement, rows_of
from ncpipe.metrics.token_collapse import TokenMeans
from ncpipe.metrics.transfer import transfer_metrics
from ncpipe.models.build import input_shape, prepare_split
from ncpipe.system.errors import InputError

CPU = torch.device("cpu")


@dataclass(frozen=True)
class WeightsAndData:
    """What the metrics of a finished run may need besides its features: weights by name, and its data."""

    state: dict[str, Tensor]
    data: Callable[[], Prepared]


def split_batches(run: Run, whole: WeightsAndData) -> Callable[[str], Iterator[Batch]]:
    """Return a function that passes through a split and yields batches of all layers, with their labels."""
    if run.spec.training:
        return partial(own_batches, run, whole.state)
    data = whole.data()
    network = load_network(run, whole.state, data, CPU)
    splits = dict(data.measured())
    splits |= {name: each for name, each in ((TARGET, data.target), (OOD, data.ood)) if each is not None}

    def batches(split: str) -> Iterator[Batch]:
        return layers_by_batch(network, run, data, splits[split].of_classes() or splits[split], CPU)

    return batches


def measure_samples(run: Run, features: Features, whole: WeightsAndData) -> Iterator[Measurement]:
    """Yield scores of other data and transfer of every layer, and regression collapse of inner ones.

    Each split is passed through once, as long as all layers fit into memory.
    """
    both = {TRAIN: features.train, TEST: features.test}
    last = both | {OOD: features.ood, TARGET: features.target}
    batches: list[Callable[[str], Iterator[Batch]]] = []
    passes: dict[str, KeptPass] = {}

    def samples(layer: str, split: str) -> tuple[Tensor, Tensor]:
        """Return features (N, d) in float64, and labels."""
        if layer == LAST_LAYER and (known := last[split]) is not None:
            return known.inputs, known.labels
        if not batches:
            batches.append(split_batches(run, whole))
        kept = passes.setdefault(split, KeptPass(partial(batches[0], split), f"{run.name}, {split}"))
        rows, labels = zip(*((layers[layer].double(), wanted) for layers, wanted in kept()), strict=True)
        return torch.cat(rows), torch.cat(labels)

    given = [name for name, split in both.items() if split is not None]
    readers = _readers(run, whole) if features.train.of_classes() is None else None
    asked = run.spec.transfer
    for layer in features.metadata.positions:
        if readers is not None and layer != LAST_LAYER:
            splits = {name: samples(layer, name) for name in given}
            yield from measure_vectors(splits, None, None, layer, readers.get(layer))
        if features.ood is not None and features.test is not None:
            known, (test, _), (ood, _) = (samples(layer, name) for name in (TRAIN, TEST, OOD))
            classifier = (features.weight, features.bias) if layer == LAST_LAYER else (None, None)
            yield from rows_of(layer, OOD, outlier_metrics(*known, test, ood, *classifier))
        if asked is not None:
            yield from rows_of(layer, TARGET, _of_target(run, asked, *samples(layer, TARGET)))


def measure_all_tokens(run: Run, whole: WeightsAndData) -> Iterator[Measurement]:
    """Yield the collapse of all tokens of a sample at every layer, where one of them predicts."""
    if not isinstance(run.spec.model, TransformerModel | OwnModel) or run.spec.data.kind == "next_tokens":
        return
    data = whole.data()
    network = load_network(run, whole.state, data, CPU)
    rows = max(1, ROWS // input_shape(data, run.spec.model).rows)
    for split, samples in data.measured():
        if (known := samples.of_classes()) is None:
            continue
        found: dict[str, TokenMeans] = {}
        ready = prepare_split(known, data.kind, run.spec.model, CPU, torch.float64)
        for part in ready.parts(rows):
            with torch.no_grad():
                for layer in network.token_layers(part.inputs, part.lengths):
                    if layer.position is not None:
                        means = found.setdefault(layer.name, TokenMeans(data.classes))
                        means.update(layer.values, part.labels, part.lengths)
        for name, means in found.items():
            yield from rows_of(name, split, means.values())


def _readers(run: Run, whole: WeightsAndData) -> dict[str, Tensor]:
    """Return the matrix (m, d) that reads each inner layer, where one does."""
    data = whole.data()
    network = load_network(run, whole.state, data, CPU)
    one = prepare_split(data.train[:1], data.kind, run.spec.model, CPU, torch.float64)
    layers = network.representations(one.inputs, one.lengths)
    return {layer.name: layer.reader.detach() for layer in layers if layer.reader is not None}


def _of_target(
    run: Run, asked: Episodes | Transfer, features: Tensor, labels: Tensor
) -> Iterator[tuple[str, float]]:
    """Yield collapse and few-shot errors of classes that the network was not trained on."""
    try:
        check_shots(asked.shots, asked.episodes, labels)
    except InputError as error:
        raise InputError(f"{run.name}: transfer.{error}") from None
    seen = class_statistics(features, labels, int(labels.max()) + 1)
    yield "nc1_trace_ratio", nc1_trace_ratio(seen)
    yield "cdnv", cdnv(seen)
    yield from transfer_metrics(
        features, labels, asked.shots, asked.episodes, asked.head, asked.ridge, asked.seed
    )
