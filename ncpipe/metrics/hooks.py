"""Measure the collapse of any PyTorch classifier from the inputs of its last linear layer.

N  samples    n  samples of a batch    K  classes    d  feature width    T  positions of a sequence
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import isfunction
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from ncpipe.datasets.tensors import as_tensor
from ncpipe.metrics.checks import check_finite, check_outliers, check_statistics, data_warnings
from ncpipe.metrics.classifier import Classifier, find_classifier, tensors_in
from ncpipe.metrics.eval_mode import eval_mode, unwrapped
from ncpipe.metrics.layers import HookPoint, Select, hook_points, reading
from ncpipe.metrics.measurements import Measurement, Measurements, rows_of
from ncpipe.metrics.outliers import outlier_metrics
from ncpipe.metrics.regression import check_target_batch, measure_regression
from ncpipe.metrics.sample_statistics import Classifiers, first_pass, same_samples, second_pass
from ncpipe.metrics.selection import IGNORE_INDEX, Classes, measured_entries, renumber, select_classes
from ncpipe.metrics.table import LAST_LAYER, OOD, TEST, TRAIN, measure, measure_layer, measure_weights
from ncpipe.system.errors import InputError, shown, warn

Forward = Callable[[nn.Module, Any], Any]
Mask = str | Callable[[Any], Tensor]
Pass = Callable[[], Iterator[tuple[dict[str, Tensor], Tensor]]]
ONE_PASS = "an iterator is good for one pass only; give a DataLoader or a list"


def measure_model(
    model: nn.Module,
    classifier: str | nn.Module,
    loader: Iterable[Any],
    test_loader: Iterable[Any] | None = None,
    ood_loader: Iterable[Any] | None = None,
    *,
    device: torch.device | str | None = None,
    forward: Forward | None = None,
    labels_key: str = "labels",
    select: Select | None = None,
    layers: Sequence[str] | Mapping[str, Select] = (),
    classes: Classes = "all",
    ignore_index: int = IGNORE_INDEX,
    mask: Mask | None = None,
    targets: bool = False,
    tags: bool = False,
) -> Measurements:
    """Return every metric of the features h (N, d) that enter `classifier`, and of its weight and bias.

    loader, test_loader: batches (inputs, ..., labels) or mappings with the key `labels_key`; labels (n,) in
    0..K-1, or (n, T), one for each position of a sequence: each position is then a sample. Each loader is run
    through twice (class means first), in eval mode and without gradients, and must give the same samples each
    time: shuffling is fine; random augmentation, sampling with replacement or a shuffled `drop_last` is not,
    and raises.
    ood_loader: batches of the same form with samples of other data, whose labels mean nothing, for scores
    that tell them from test samples. One more pass then keeps the last layer's features of all loaders.
    classifier: the last nn.Linear, or a layer that replaces it (LoRA's), or its name (`fc`, `score`).
    device: where model and inputs go; None leaves the model where it is. forward(model, inputs): how to call
    it, if not model(inputs) or model(**inputs).
    select(values, inputs) -> (n, d): which of several feature vectors a sample predicts from; required where
    the classifier sees (n, T, d), see `last_token`.
    layers: names of further layers whose outputs are measured too, maps (n, C, H, W) or (n, H, W, C) averaged
    over positions; or names with a `select` of their own, as `channels_first` and `channels_last`. In a name,
    * is any part: `blocks.*`.
    classes: `all` of the classifier's K, each of which needs samples; `present`, those that occur in
    `loader`; or a list of numbers. Samples of other classes are left out, and so are their rows of W.
    ignore_index: label of samples, or positions, that are left out. mask: key of the inputs, or a function of
    them, of a tensor in the labels' shape that is 0 where a sample or position is left out.
    targets: regression, whose batches have floats (n, t) in place of labels, or (n,) for t = 1: the rows are
    those of `measure_regression`, from one pass that keeps all features on the CPU. `layers` and what selects
    classes or samples do not apply then.
    tags: whether batches have tags (n, K) of 0 and 1 in place of labels, where a sample has several classes;
    the rows are those of `measure`, and what holds for `targets` does here.
    Modes, buffers and hooks are restored, also after an error. Compiled models run uncompiled. W and b are
    what the classifier uses in the pass, and its logits must be the model's (`forward` may return them).
    Raises InputError, and warns of what can be measured but says little (MeasurementWarning), as
    `ncpipe metrics` does.
    """
    check_loader("loader", loader)
    head = find_classifier(model, classifier, least=1 if targets else 2)
    if ood_loader is not None and (test_loader is None or ood_loader is loader or ood_loader is test_loader):
        raise InputError(
            "ood_loader: its scores tell other data from test samples; give test_loader too, each of its own"
        )
    if targets or tags:
        what = "vectors" if targets else "tags"
        for name, given in (
            ("layers", bool(layers)),
            ("classes", classes != "all"),
            ("ignore_index", ignore_index != IGNORE_INDEX),
            ("mask", mask is not None),
            ("ood_loader", ood_loader is not None),
            ("tags", targets and tags),
        ):
            if given:
                raise InputError(f"{name}: does not apply to targets that are {what}; leave it out")
    points = [HookPoint(LAST_LAYER, head.module, select, output=False), *hook_points(model, layers)]
    read = _Reader(model, head, points, forward or call, labels_key, ignore_index, mask)
    with eval_mode(unwrapped(model), device, loader, test_loader, ood_loader, forward):
        if targets or tags:
            return _measure_rows(read, loader, test_loader, tags)
        chosen = select_classes(classes, head.classes, lambda: _measured_labels(loader, read))
        some = None if isinstance(classes, str) and classes == "all" else chosen
        train, test = (
            _loader_pass(read, name, each, some)
            for name, each in (("loader", loader), ("test_loader", test_loader))
        )
        assert train is not None
        ood = _loader_pass(read, "ood_loader", ood_loader)
        values = _measure(train, test, read, chosen)
        return (
            values if ood is None else Measurements([*values, *_outliers((train, test, ood), read, chosen)])
        )


def collect_features(
    model: nn.Module,
    classifier: str | nn.Module,
    loader: Iterable[Any],
    test_loader: Iterable[Any] | None = None,
    ood_loader: Iterable[Any] | None = None,
    *,
    device: torch.device | str | None = None,
    forward: Forward | None = None,
    labels_key: str = "labels",
    select: Select | None = None,
) -> dict[str, np.ndarray]:
    """Return the arrays that `measure_model` would measure: one pass, everything in memory.

    `numpy.savez(path, **arrays)` writes what `ncpipe metrics` reads: features (N, d), labels (N,), weight
    (K, d), bias (K,) if there is one, test_features, test_labels and ood_features. Arguments as in
    `measure_model`.
    """
    check_loader("loader", loader)
    head = find_classifier(model, classifier)
    points = [HookPoint(LAST_LAYER, head.module, select, output=False)]
    read = _Reader(model, head, points, forward or call, labels_key)
    arrays: dict[str, np.ndarray] = {}
    with eval_mode(unwrapped(model), device, loader, test_loader, ood_loader, forward):
        for prefix, each in (("", loader), ("test_", test_loader), ("ood_", ood_loader)):
            if run := _loader_pass(read, f"{prefix}loader", each):
                batches = [(values[LAST_LAYER].cpu(), answers.cpu()) for values, answers in run()]
                values, answers = zip(*batches, strict=True)
                arrays |= {f"{prefix}features": _to_numpy(torch.cat(values))}
                arrays |= {f"{prefix}labels": _to_numpy(torch.cat(answers))}
    arrays.pop("ood_labels", None)
    arrays["weight"] = _to_numpy(head.weight)
    if head.bias is not None:
        arrays["bias"] = _to_numpy(head.bias)
    return arrays


@contextlib.contextmanager
def passes(
    model: nn.Module,
    classifier: str | nn.Module,
    loaders: Mapping[str, Iterable[Any]],
    layers: Sequence[str] | Mapping[str, Select] = (),
    device: torch.device | str | None = None,
) -> Iterator[tuple[Classifier, dict[str, Pass]]]:
    """Yield the classifier, and by a loader's name a function that runs through it once.

    Each pass yields the values of all layers by name and the labels of a batch, as `measure_model` sees them;
    the classifier's weight and bias are known once one has begun. Arguments as in `measure_model`; the model
    is in eval mode until the block ends.
    """
    head = find_classifier(model, classifier)
    points = [HookPoint(LAST_LAYER, head.module, None, output=False), *hook_points(model, layers)]
    read = _Reader(model, head, points, call)
    with eval_mode(unwrapped(model), device, *loaders.values()):
        found = {}
        for name, loader in loaders.items():
            through = _loader_pass(read, f"the {name} loader", loader)
            assert through is not None
            found[name] = through
        yield head, found


def last_token(values: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
    """Return (n, d) of (n, T, d) at the last token with attention_mask 1: a `select` for decoders."""
    mask = inputs["attention_mask"].to(values.device)
    positions = torch.arange(mask.shape[1], device=values.device)
    last = (positions * mask).argmax(1)
    return values[torch.arange(len(values), device=values.device), last]


@dataclass(frozen=True)
class _Reader:
    """Read the values at the hook points in a forward pass, and which entries of a batch are measured.

    key: of the labels in a mapping; the others as in `measure_model`.
    """

    model: nn.Module
    head: Classifier
    hook_points: Sequence[HookPoint]
    call: Forward
    key: str = "labels"
    ignore_index: int = IGNORE_INDEX
    mask: Mask | None = None

    def kept(self, labels: Tensor, inputs: Any) -> Tensor:
        """Return which labels (n,) or (n, T) are measured, by index and mask."""
        if labels.dim() not in (1, 2) or labels.is_floating_point():
            shape = tuple(labels.shape)
            hint = "; floats (n, t) of regression take targets=True" if labels.is_floating_point() else ""
            hint = "; batches of single samples need a DataLoader" if labels.dim() == 0 else hint
            raise InputError(
                f"labels are {labels.dtype} {shape}; they must be whole numbers (n,) or (n, T){hint}"
            )
        if isinstance(self.mask, str) and not (isinstance(inputs, Mapping) and self.mask in inputs):
            raise InputError(f"mask: the inputs have no {self.mask!r}; name a key or give a function")
        mask = inputs[self.mask] if isinstance(self.mask, str) else self.mask and self.mask(inputs)
        return measured_entries(labels, self.ignore_index, mask)

    @torch.no_grad()
    def read(self, inputs: Any, labels: Tensor) -> dict[str, Tensor]:
        """Run one forward pass and return each hook point's values, (n, d) or (n, T, d) as the labels are.

        The first one reads the classifier's W and b, and compares its logits with the model's output.
        """
        with self.head.reading() as logits, reading(self.hook_points) as values:
            output = self.call(self.model, inputs)
        found = {
            point.name: point.vectors(values[point.name], inputs, by_position=labels.dim() == 2)
            for point in self.hook_points
        }
        _check_shapes(found, labels)
        if logits:
            self.head.check_output(output, logits[0], found[LAST_LAYER])
        return found


def _loader_pass(
    reader: _Reader, name: str, loader: Iterable[Any] | None, chosen: Tensor | None = None
) -> Pass | None:
    """Return a function that runs the loader once and yields each batch's values by hook point, and labels.

    name: the argument that the loader was. chosen (K',): the measured classes, where not all are; labels are
    places in it then.
    """
    if loader is None:
        return None
    check_loader(name, loader)
    # A class may start anew in its `__iter__`; others end at the first pass.
    if isinstance(loader, Iterator) and not isfunction(type(loader).__iter__):
        raise InputError(f"{name}: {ONE_PASS}")
    batches, device = loader, reader.head.device(reader.model)
    # Apple's GPUs have no float64, in which the metrics are computed.
    place = torch.device("cpu") if device.type == "mps" else device

    def run() -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        counted = -1  # until a batch has samples
        samples = torch.zeros(0 if chosen is None else len(chosen), dtype=torch.int64, device="cpu")
        for inputs, labels in batches_of(batches, reader.model, reader.key):
            counted, inputs = max(counted, 0), to_device(inputs, device)
            kept = reader.kept(labels, inputs)
            values = reader.read(inputs, labels)
            labels = labels[kept]
            if chosen is not None:
                places = renumber(labels, chosen, reader.head.classes)
                kept, labels = kept.masked_scatter(kept, places >= 0), places[places >= 0]
            found = {
                hook_point: value[kept.to(value.device)].to(place) for hook_point, value in values.items()
            }
            yield found, labels.to(place)
            counted += len(labels)
            if chosen is not None:
                samples += torch.bincount(labels.cpu(), minlength=len(chosen))
        if counted < 0:
            why = ONE_PASS if isinstance(batches, Iterator) else "there is nothing to measure"
            raise InputError(f"{name}: it gave no samples; {why}")
        if not counted:
            raise InputError(f"{name}: no sample is left; `ignore_index` or `mask` leaves out all")
        if chosen is not None and len(empty := chosen[samples == 0]):
            raise InputError(f"{name}: class {int(empty[0])} has no samples; leave it out of `classes`")

    return run


def _measure_rows(
    reader: _Reader, loader: Iterable[Any], test_loader: Iterable[Any] | None, tags: bool
) -> Measurements:
    """Measure a model whose batches have float targets, or tags, in one pass over each loader."""
    arrays: list[Tensor | None] = []
    device = reader.head.device(reader.model)
    for name, batches in (("loader", loader), ("test_loader", test_loader)):
        if batches is None:
            arrays += [None, None]
            continue
        found: list[Tensor] = []
        wanted: list[Tensor] = []
        for inputs, targets in batches_of(batches, reader.model, reader.key):
            targets = targets.reshape(-1, 1) if targets.dim() == 1 and reader.head.classes == 1 else targets
            if tags:
                _check_tag_batch(targets, reader.head.classes)
            else:
                check_target_batch(targets, reader.head.classes)
            rows = reader.read(to_device(inputs, device), targets[:, 0])[LAST_LAYER]
            # Copies, because a loader may fill the same tensors again.
            found.append(torch.empty_like(rows, dtype=torch.float64, device="cpu").copy_(rows))
            wanted.append(torch.empty_like(targets, device="cpu").copy_(targets))
        if not found:
            raise InputError(f"{name}: it gave no samples; there is nothing to measure")
        arrays += [torch.cat(found), torch.cat(wanted)]
    own, answers, test, test_answers = arrays
    assert own is not None
    assert answers is not None
    weight, bias = (None if each is None else each.cpu() for each in (reader.head.weight, reader.head.bias))
    measured = measure if tags else measure_regression
    return measured(own, answers, weight, bias, test, test_answers)


def _check_tag_batch(tags: Tensor, classes: int) -> None:
    if tags.dim() != 2 or tags.shape[1] != classes:
        raise InputError(f"tags are {tuple(tags.shape)}; they must be (n, {classes}) of 0 and 1")


def _measured_labels(loader: Iterable[Any], reader: _Reader) -> Iterator[Tensor]:
    """Yield the measured labels (m,) of each batch, without a forward pass."""
    for inputs, labels in batches_of(loader, reader.model, reader.key):
        yield labels[reader.kept(labels, inputs)]


def _measure(train: Pass, test: Pass | None, reader: _Reader, chosen: Tensor) -> Measurements:
    """Measure in two passes a split, for all hook points together."""
    learned = first_pass(train(), len(chosen))
    weight, bias = _rows(reader.head, chosen)
    classifiers: Classifiers = {LAST_LAYER: (weight, bias)}
    results: dict[str, list[Measurement]] = {LAST_LAYER: list(measure_weights(weight))}
    rounding = reader.head.rounding(reader.model)
    for split, run in ((TRAIN, train), (TEST, test)):
        if run is None:
            continue
        seen = learned if split == TRAIN else first_pass(run(), len(weight))
        for layer, statistics in seen.items():
            check_statistics(split, layer, statistics)
        for message in data_warnings(split, seen[LAST_LAYER].counts, weight.shape[1], chosen):
            warn(message)
        samples = second_pass(run(), seen, classifiers, None if split == TRAIN else learned)
        for layer, statistics in seen.items():
            if not same_samples(statistics, samples[layer], rounding):
                raise InputError(
                    f"the {split} loader gave other samples in its second pass; turn off random "
                    "augmentation, sampling with replacement and drop_last, in low precision shuffling too"
                )
            own = weight if layer == LAST_LAYER else None
            rows = measure_layer(layer, split, statistics, samples[layer], learned[layer], own)
            results.setdefault(layer, []).extend(rows)
    return Measurements(row for rows in results.values() for row in rows)


def _outliers(passes: Sequence[Pass | None], reader: _Reader, chosen: Tensor) -> Iterator[Measurement]:
    """Return how well scores tell samples of other data from test samples; passes: of train, test and ood."""
    found = [
        [(values[LAST_LAYER].cpu(), labels.cpu()) for values, labels in run()]
        for run in passes
        if run is not None
    ]
    (features, labels), (held_out, _), (others, _) = (
        map(torch.cat, zip(*parts, strict=True)) for parts in found
    )
    check_outliers(others, features, held_out)
    weight, bias = _rows(reader.head, chosen)
    return rows_of(LAST_LAYER, OOD, outlier_metrics(features, labels, held_out, others, weight, bias))


def _rows(head: Classifier, chosen: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the classifier's weight (K', d) and bias (K',) of the measured classes; both are finite."""
    kept = chosen.to(head.weight.device)
    weight, bias = head.weight[kept], None if head.bias is None else head.bias[kept]
    check_finite("the classifier's weight", weight)
    check_finite("the classifier's bias", bias)
    return weight, bias


def call(model: nn.Module, inputs: Any) -> Any:
    """Return model(inputs), or model(**inputs) of a mapping; without wrappers, see `unwrapped`."""
    model = unwrapped(model)
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple | list) else model(inputs)


def check_loader(name: str, loader: object) -> None:
    """Raise InputError unless a loader can be iterated over."""
    if isinstance(loader, str) or not (hasattr(loader, "__iter__") or hasattr(loader, "__getitem__")):
        raise InputError(f"{name}: give a DataLoader or a list of batches, not {shown(loader)}")


def batches_of(loader: Iterable[Any], model: nn.Module, key: str) -> Iterator[tuple[Any, Tensor]]:
    """Yield inputs and labels of the batches that have samples; collators give None, too, without any.

    Warns where the first batches of all workers of an IterableDataset, which come in turn, are the same.
    """
    several = isinstance(loader, DataLoader) and isinstance(loader.dataset, IterableDataset)
    workers = loader.num_workers if several and loader.num_workers > 1 else 0  # type: ignore[attr-defined]
    first: list[Any] = []
    for batch in loader:
        if batch is None or (isinstance(batch, Mapping | tuple | list) and not batch):
            continue
        inputs, labels = _inputs_and_labels(batch, model, key)
        if not labels.numel():
            continue
        if len(first) < workers:
            first.append((inputs, labels))
            if len(first) == workers and all(_same_tensors(first[0], other) for other in first[1:]):
                warn(
                    f"the {workers} workers of the loader's IterableDataset give the same samples, which "
                    f"count {workers} times; share them out by torch.utils.data.get_worker_info()"
                )
        yield inputs, labels


def _same_tensors(one: Any, other: Any) -> bool:
    pairs = list(zip_longest(tensors_in(one), tensors_in(other)))
    return all(a is not None and b is not None and torch.equal(a, b) for a, b in pairs)


def _inputs_and_labels(batch: Any, model: nn.Module, key: str) -> tuple[Any, Tensor]:
    """Return (inputs, labels) of a batch: the mapping without `key`, or all but the last entry.

    Labels stay among the inputs where they are these too, `input_ids`, and as `labels` where transformers'
    model makes the decoder's inputs of them.
    """
    if isinstance(batch, Mapping):
        if key not in batch:
            known = ", ".join(map(str, batch))
            raise InputError(
                f"a batch has no {key!r}; it has {known}: say which holds the labels, labels_key=..."
            )
        own = {name: value for name, value in batch.items() if name != key or key == "input_ids"}
        makes_inputs = getattr(unwrapped(model), "prepare_decoder_input_ids_from_labels", None)
        if callable(makes_inputs) and not any(name.startswith("decoder_input") for name in own):
            own["labels"] = batch[key]
        return own, as_tensor(batch[key], key)
    if not isinstance(batch, tuple | list) or len(batch) < 2:
        raise InputError("a batch has no labels; it must be (inputs, labels) or a mapping with them")
    return batch[0] if len(batch) == 2 else tuple(batch[:-1]), as_tensor(batch[-1], "labels")


def to_device(inputs: Any, device: torch.device) -> Any:
    """Return the inputs with every tensor in them, also of mappings and tuples, on the device."""
    if isinstance(inputs, Tensor):
        return inputs.to(device)
    if isinstance(inputs, Mapping):
        return {name: to_device(value, device) for name, value in inputs.items()}
    if not isinstance(inputs, tuple | list):
        return inputs
    moved = [to_device(value, device) for value in inputs]
    return type(inputs)(*moved) if hasattr(inputs, "_fields") else type(inputs)(moved)  # named tuples


def _check_shapes(hook_points: dict[str, Tensor], labels: Tensor) -> None:
    for name, values in hook_points.items():
        if values.shape[:-1] != labels.shape:
            shape, wanted = tuple(values.shape), tuple(labels.shape)
            count = f"{len(labels)} labels" if labels.dim() == 1 else f"labels of shape {wanted}"
            hint = (
                "; one class a sample is (n,), several take tags=True"
                if labels.dim() > values.dim() - 1
                else ""
            )
            raise InputError(f"layer {name!r}: {shape} for {count}; expected one row for each label{hint}")


def _to_numpy(tensor: Tensor) -> np.ndarray:
    """Return a NumPy array; bfloat16, which NumPy lacks, becomes float32."""
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
