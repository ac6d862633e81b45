"""Measure what needs the samples of a layer themselves, by passes through a finished network.

B  samples of a batch    N  samples    d  width
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Any, Protocol

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
from ncpipe.metrics.kept_pass import Batch, KeptPass, joined
from ncpipe.metrics.outliers import outlier_metrics
from ncpipe.metrics.regression import measure_vectors
from ncpipe.metrics.statistics import class_statistics
from ncpipe.metrics.table import LAST_LAYER, OOD, TARGET, TEST, TRAIN, Measurement, rows_of, transfer_metrics
from ncpipe.metrics.token_collapse import TokenMeans
from ncpipe.models.build import input_shape, prepare_split
from ncpipe.system.errors import InputError

CPU = torch.device("cpu")


class Trained(Protocol):
    """A run with its weights, and what is known of it: a `ncpipe.features.trained_run.TrainedRun`."""

    @property
    def run(self) -> Run: ...
    @property
    def weights(self) -> dict[str, Tensor]: ...
    @property
    def data(self) -> Prepared: ...
    @property
    def features(self) -> Features: ...
    @property
    def row(self) -> Mapping[str, Any]: ...


def split_batches(trained: Trained) -> Callable[[str], Iterator[Batch]]:
    """Return a function that passes through a split and yields batches of all layers, with their labels."""
    if trained.run.spec.training:
        return partial(own_batches, trained.run, trained.weights)
    data = trained.data
    network = load_network(trained.run, trained.weights, data, CPU)
    splits = {**dict(data.measured()), TARGET: data.target, OOD: data.ood}

    def batches(split: str) -> Iterator[Batch]:
        samples = splits[split]
        assert samples is not None
        return layers_by_batch(network, trained.run, data, samples.of_classes() or samples, CPU)

    return batches


def measure_samples(trained: Trained) -> Iterator[Measurement]:
    """Yield scores of other data and transfer of every layer, and regression collapse of inner ones.

    Each split is passed through once, as long as all layers fit into memory.
    """
    run, features = trained.run, trained.features
    last = {TRAIN: features.train, TEST: features.test, OOD: features.ood, TARGET: features.target}
    batches = cache(lambda: split_batches(trained))  # of which most runs need none
    passes: dict[str, KeptPass] = {}

    def samples(layer: str, split: str) -> tuple[Tensor, Tensor]:
        """Return features (N, d) in float64, and labels."""
        if layer == LAST_LAYER and (known := last[split]) is not None:
            return known.inputs, known.labels
        if split not in passes:
            passes[split] = KeptPass(partial(batches(), split), f"{run.name}, {split}")
        values, labels = joined(passes[split](), layer)
        return values[layer].double(), labels

    readers = _readers(trained) if features.train.of_classes() is None else None
    transfer = run.spec.transfer
    for layer in features.metadata.positions:
        if readers is not None and layer != LAST_LAYER:
            splits = {split: samples(layer, split) for split in (TRAIN, TEST) if last[split] is not None}
            yield from measure_vectors(splits, None, None, layer, readers.get(layer))
        if features.ood is not None and features.test is not None:
            train, (test, _), (ood, _) = (samples(layer, split) for split in (TRAIN, TEST, OOD))
            classifier = (features.weight, features.bias) if layer == LAST_LAYER else (None, None)
            yield from rows_of(layer, OOD, outlier_metrics(*train, test, ood, *classifier))
        if transfer is not None:
            yield from rows_of(layer, TARGET, _of_target(run, transfer, *samples(layer, TARGET)))


def measure_all_tokens(trained: Trained) -> Iterator[Measurement]:
    """Yield the collapse of all tokens of a sample at every layer, where one of them predicts."""
    run = trained.run
    if not isinstance(run.spec.model, TransformerModel | OwnModel) or run.spec.data.kind == "next_tokens":
        return
    data = trained.data
    network = load_network(run, trained.weights, data, CPU)
    rows = max(1, ROWS // input_shape(data, run.spec.model).rows)
    for split, samples in data.measured():
        if (of_classes := samples.of_classes()) is None:
            continue
        by_layer: dict[str, TokenMeans] = {}
        prepared = prepare_split(of_classes, data.kind, run.spec.model, CPU, torch.float64)
        for part in prepared.parts(rows):
            with torch.no_grad():
                for layer in network.token_layers(part.inputs, part.lengths):
                    if layer.position is not None:
                        means = by_layer.setdefault(layer.name, TokenMeans(data.classes))
                        means.update(layer.values, part.labels, part.lengths)
        for name, means in by_layer.items():
            yield from rows_of(name, split, means.values())


def _readers(trained: Trained) -> dict[str, Tensor]:
    """Return the matrix (m, d) that reads each inner layer, where one does."""
    data = trained.data
    network = load_network(trained.run, trained.weights, data, CPU)
    one = prepare_split(data.train[:1], data.kind, trained.run.spec.model, CPU, torch.float64)
    layers = network.representations(one.inputs, one.lengths)
    return {layer.name: layer.reader.detach() for layer in layers if layer.reader is not None}


def _of_target(
    run: Run, transfer: Episodes | Transfer, features: Tensor, labels: Tensor
) -> Iterator[tuple[str, float]]:
    """Yield collapse and few-shot errors of classes that the network was not trained on."""
    try:
        check_shots(transfer.shots, transfer.episodes, labels)
    except InputError as error:
        raise InputError(f"{run.name}: transfer.{error}") from None
    seen = class_statistics(features, labels, int(labels.max()) + 1)
    yield "nc1_trace_ratio", nc1_trace_ratio(seen)
    yield "cdnv", cdnv(seen)
    yield from transfer_metrics(
        features, labels, transfer.shots, transfer.episodes, transfer.head, transfer.ridge, transfer.seed
    )
