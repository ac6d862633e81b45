"""Measure the collapse of any PyTorch classifier from the inputs of its last linear layer.

N  samples    n  samples of a batch    K  classes    d  feature width    T  positions of a sequence
"""

import contextlib
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from ncpipe.datasets.tensors import as_tensor
from ncpipe.metrics.checks import check_finite, check_outliers, check_statistics, data_warnings
from ncpipe.metrics.classifier import Classifier, find_classifier, tensors_in
from ncpipe.metrics.eval_mode import eval_mode
from ncpipe.metrics.kept_pass import KEEP, Batch, KeptPass
from ncpipe.metrics.measurements import Measurement, Measurements, rows_of
from ncpipe.metrics.outliers import outlier_metrics
from ncpipe.metrics.parts import parts_of
from ncpipe.metrics.regression import check_target_batch, measure_regression
from ncpipe.metrics.sample_statistics import Classifiers, accumulate, first_pass, same_samples, second_pass
from ncpipe.metrics.selection import (
    IGNORE_INDEX,
    Classes,
    measured_entries,
    present_classes,
    renumber,
    select_classes,
)
from ncpipe.metrics.table import LAST_LAYER, OOD, TEST, TRAIN, measure, measure_layer, measure_weights
from ncpipe.models.hook_points import HookPoint, Select, hook_points, reading, unwrapped
from ncpipe.system.errors import InputError, shown, warn

Forward = Callable[[nn.Module, Any], Any]
Mask = str | Callable[[Any], Tensor]


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
    keep: float = KEEP,
    by_sample: bool = False,
    progress: bool | None = None,
) -> Measurements:
    """Return every metric of the features h (N, d) that enter `classifier`, and of its weight and bias.

    loader, test_loader: batches (inputs, ..., labels) or mappings with the key `labels_key`; labels (n,) in
    0..K-1, or (n, T), one for each position of a sequence: each position is then a sample. The network runs
    once over each loader, in eval mode and without gradients.
    keep: share of the free memory, of the device and then of the host, for the measured layers' values. A
    loader whose values take more is run through a second time, which a MeasurementWarning says; it must then
    give the same samples again: shuffling is fine, random augmentation or sampling raises.
    by_sample: whether to keep what single samples add to NC1 and NC3, for `values.by_sample()`; 24 bytes a
    sample and layer. progress: whether to show a bar of each loader's batches, where tqdm is installed; None
    on a terminal alone.
    ood_loader: batches of the same form with samples of other data, whose labels mean nothing, for scores
    that tell them from test samples.
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
            ("by_sample", by_sample),
        ):
            if given:
                raise InputError(f"{name}: does not apply to targets that are {what}; leave it out")
    points = [HookPoint(LAST_LAYER, head.module, select, output=False), *hook_points(model, layers)]
    read = _Reader(model, head, points, forward or call, labels_key, ignore_index, mask, progress)
    with eval_mode(unwrapped(model), device, loader, test_loader, ood_loader, forward), read.passes:
        if targets or tags:
            return _measure_rows(read, loader, test_loader, tags)
        train, test, ood = (
            None
            if batches is None
            else _loader_pass(read, name, batches, 0 if batches is ood_loader else keep)
            for name, batches in (
                ("loader", loader),
                ("test_loader", test_loader),
                ("ood_loader", ood_loader),
            )
        )
        assert train is not None
        return _measure(train, test, ood, read, classes, by_sample)


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
    with eval_mode(unwrapped(model), device, loader, test_loader, ood_loader, forward), read.passes:
        for prefix, each in (("", loader), ("test_", test_loader), ("ood_", ood_loader)):
            if each is not None:
                run = _loader_pass(read, f"{prefix}loader", each, keep=0)
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
) -> Iterator[tuple[Classifier, dict[str, KeptPass]]]:
    """Yield the classifier, and by a loader's name the pass over it.

    Each pass yields the values of all layers by name and the labels of a batch, as `measure_model` sees them;
    the classifier's weight and bias are known once one has begun. Arguments as in `measure_model`; the model
    is in eval mode until the block ends.
    """
    head = find_classifier(model, classifier)
    points = [HookPoint(LAST_LAYER, head.module, None, output=False), *hook_points(model, layers)]
    read = _Reader(model, head, points, call, progress=False)
    with eval_mode(unwrapped(model), device, *loaders.values()), read.passes:
        yield (
            head,
            {name: _loader_pass(read, f"the {name} loader", loader) for name, loader in loaders.items()},
        )


def last_token(values: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
    """Return (n, d) of (n, T, d) at the last token with attention_mask 1: a `select` for decoders."""
    mask = inputs["attention_mask"].to(values.device)
    positions = torch.arange(mask.shape[1], device=values.device)
    last = (positions * mask).argmax(1)
    return values[torch.arange(len(values), device=values.device), last]


@dataclass(frozen=True)
class _Reader:
    """Read the values at the hook points in a forward pass, and which entries of a batch are measured.

    key: of the labels in a mapping; passes: over loaders, which end with its block, also after an error; the
    others as in `measure_model`.
    """

    model: nn.Module
    head: Classifier
    hook_points: Sequence[HookPoint]
    call: Forward
    key: str = "labels"
    ignore_index: int = IGNORE_INDEX
    mask: Mask | None = None
    progress: bool | None = None
    passes: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

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

    def batches_of(self, name: str, loader: Iterable[Any]) -> Iterator[tuple[Any, Tensor]]:
        """Yield inputs and labels of the batches of the argument `name`."""
        batches = batches_of(loader, self.model, self.key, name, self.progress)
        return self.passes.enter_context(contextlib.closing(batches))

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


def _loader_pass(reader: _Reader, name: str, loader: Iterable[Any], keep: float = KEEP) -> KeptPass:
    """Return the pass over a loader: each batch's values by hook point, and labels.

    name: the argument that the loader was.
    """
    check_loader(name, loader)
    device = reader.head.device(reader.model)
    # Apple's GPUs have no float64, in which the metrics are computed.
    place = torch.device("cpu") if device.type == "mps" else device

    def run() -> Iterator[Batch]:
        read, counted = 0, 0
        for inputs, labels in reader.batches_of(name, loader):
            read, inputs = read + 1, to_device(inputs, device)
            kept = reader.kept(labels, inputs)
            values = reader.read(inputs, labels)
            yield (
                {point: value[kept.to(value.device)].to(place) for point, value in values.items()},
                labels[kept].to(place),
            )
            counted += int(kept.sum())
        if read and not counted:
            raise InputError(f"{name}: no sample is left; `ignore_index` or `mask` leaves out all")

    return KeptPass(run, name, keep)


def _of_classes(batches: Iterable[Batch], name: str, chosen: Tensor, total: int) -> Iterator[Batch]:
    """Yield the samples of the chosen classes (K',) of all `total`, with their places in it as labels.

    Raises InputError for a class without samples.
    """
    samples = torch.zeros(len(chosen), dtype=torch.int64, device="cpu")
    for values, labels in batches:
        places = renumber(labels, chosen, total)
        of_chosen = places >= 0
        places = places[of_chosen]
        yield {point: value[of_chosen.to(value.device)] for point, value in values.items()}, places
        samples += torch.bincount(places.cpu(), minlength=len(chosen))
    if len(empty := chosen[samples == 0]):
        raise InputError(f"{name}: class {int(empty[0])} has no samples; leave it out of `classes`")


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
        for inputs, targets in reader.batches_of(name, batches):
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


def _measure(
    train: KeptPass,
    test: KeptPass | None,
    ood: KeptPass | None,
    reader: _Reader,
    classes: Classes,
    by_sample: bool,
) -> Measurements:
    """Measure all hook points together: the features of a split are read twice."""
    total = reader.head.classes

    def batches(run: KeptPass, name: str) -> Iterable[Batch]:
        return run() if len(chosen) == total else _of_classes(run(), name, chosen, total)

    if isinstance(classes, str) and classes == "present":
        accumulators = accumulate(train(), total)
        chosen = present_classes(accumulators[LAST_LAYER].counts)
        learned = {layer: each.result_of(chosen) for layer, each in accumulators.items()}
    else:
        chosen = select_classes(classes, total)
        learned = first_pass(batches(train, "loader"), len(chosen), TRAIN)
    weight, bias = _rows(reader.head, chosen)
    classifiers: Classifiers = {LAST_LAYER: (weight, bias)}
    results: dict[str, list[Measurement]] = {LAST_LAYER: list(measure_weights(weight))}
    rounding, parts = reader.head.rounding(reader.model), {}
    for split, name, run in ((TRAIN, "loader", train), (TEST, "test_loader", test)):
        if run is None:
            continue
        seen = learned if split == TRAIN else first_pass(batches(run, name), len(weight), split)
        for layer, statistics in seen.items():
            check_statistics(split, layer, statistics)
        for message in data_warnings(split, seen[LAST_LAYER].counts, weight.shape[1], chosen):
            warn(message)
        about = None if split == TRAIN else learned
        samples = second_pass(batches(run, name), seen, classifiers, about, by_sample)
        for layer, statistics in seen.items():
            if run.runs > 1 and not same_samples(statistics, samples[layer], rounding):
                raise InputError(
                    f"the {split} loader gave other samples in its second pass; turn off random "
                    "augmentation, sampling with replacement and drop_last, in low precision shuffling too, "
                    "or raise `keep`"
                )
            own = weight if layer == LAST_LAYER else None
            rows = measure_layer(layer, split, statistics, samples[layer], learned[layer], own)
            results.setdefault(layer, []).extend(rows)
            parts[layer, split] = parts_of(statistics, samples[layer], chosen)
    if ood is not None:
        assert test is not None
        passes = batches(train, "loader"), batches(test, "test_loader"), ood()
        results[OOD] = list(_outliers(passes, weight, bias))
    return Measurements((row for rows in results.values() for row in rows), parts)


def _outliers(
    passes: Iterable[Iterable[Batch]], weight: Tensor, bias: Tensor | None
) -> Iterator[Measurement]:
    """Return how well scores tell samples of other data from test samples; passes: of train, test and ood."""
    parts = ([(values[LAST_LAYER].cpu(), labels.cpu()) for values, labels in run] for run in passes)
    (features, labels), (held_out, _), (others, _) = (
        map(torch.cat, zip(*batches, strict=True)) for batches in parts
    )
    check_outliers(others, features, held_out)
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


def batches_of(
    loader: Iterable[Any], model: nn.Module, key: str, name: str, progress: bool | None
) -> Generator[tuple[Any, Tensor]]:
    """Yield inputs and labels of the batches that have samples; collators give None, too, without any.

    name: the argument that the loader was. progress: whether a bar counts batches; None: on a terminal.
    Warns where the first batches of all workers of an IterableDataset, which come in turn, are the same.
    """
    several = isinstance(loader, DataLoader) and isinstance(loader.dataset, IterableDataset)
    workers = loader.num_workers if several and loader.num_workers > 1 else 0  # type: ignore[attr-defined]
    first: list[Any] = []
    for batch in with_bar(loader, name, progress):
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


def with_bar(batches: Iterable[Any], name: str, progress: bool | None) -> Iterable[Any]:
    """Return the batches with a bar of how many were read; None shows it on a terminal alone."""
    if progress is None:
        progress = sys.stderr is not None and sys.stderr.isatty()
    if not progress:
        return batches
    try:
        from tqdm import tqdm
    except ModuleNotFoundError:  # the library needs none
        return batches
    total = None
    with contextlib.suppress(TypeError, NotImplementedError):  # tqdm itself allows a TypeError only
        total = len(batches)  # type: ignore[arg-type]
    return tqdm((each for each in batches), desc=name, total=total, unit=" batches", leave=False)


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
