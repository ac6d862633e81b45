"""Pass a model over the batches of loaders: its features at hook points, and the labels that are measured.

n  samples of a batch    K  classes    d  feature width    T  positions of a sequence
"""

import contextlib
import functools
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import DataLoader, IterableDataset

from ncpipe.datasets.tensors import as_tensor
from ncpipe.metrics.classifier import Classifier, find_classifier, tensors_in
from ncpipe.metrics.eval_mode import eval_mode
from ncpipe.metrics.kept_pass import KEEP, Batch, KeptPass
from ncpipe.metrics.selection import IGNORE_INDEX, measured_entries
from ncpipe.metrics.table import LAST_LAYER, OOD, TEST, TRAIN
from ncpipe.models.hook_points import HookPoint, Select, hook_points, reading, unwrapped
from ncpipe.system.errors import InputError, shown, warn

Forward = Callable[[nn.Module, Any], Any]
Mask = str | Callable[[Any], Tensor]
Targets = Literal["classes", "vectors", "tags"]
ARRAYS = {"classes": "labels", "vectors": "targets", "tags": "tags"}  # by what is predicted
ENTRIES = {"vectors": "floats", "tags": "0 and 1"}  # of a row (n, K)
ARGUMENTS = {TRAIN: "loader", TEST: "test_loader", OOD: "ood_loader"}


@contextlib.contextmanager
def passes(
    model: nn.Module,
    classifier: str | nn.Module,
    loaders: Mapping[str, Iterable[Any] | None],
    layers: Sequence[str] | Mapping[str, Select | None] = (),
    device: torch.device | str | None = None,
    *,
    names: Mapping[str, str] = ARGUMENTS,
    targets: Targets = "classes",
    select: Select | None = None,
    forward: Forward | None = None,
    labels_key: str = "labels",
    ignore_index: int = IGNORE_INDEX,
    mask: Mask | None = None,
    keep: float = KEEP,
    progress: bool | None = None,
) -> Iterator[tuple[Classifier, dict[str, KeptPass]]]:
    """Yield the classifier, and by split the pass over its loader, where there is one.

    Each pass yields the values of all layers by name and the labels of a batch, as `measure_model` sees them;
    the classifier's weight and bias are known once one has begun. names: of the loaders, for messages.
    Arguments as in `measure_model` and `collect_features`; the model is in eval mode until the block ends.
    """
    if targets != "classes" and mask is not None:
        raise InputError(f"mask: does not apply to {targets}; leave it out")
    if not (mask is None or isinstance(mask, str) or callable(mask)):
        raise InputError(f"mask: the name of an input or a function, not {mask!r}")
    given: dict[str, Any] = {s: loader for s, loader in loaders.items() if loader is not None or s == TRAIN}
    for split, loader in given.items():
        check_loader(names[split], loader)
    head = find_classifier(model, classifier, least=1 if targets == "vectors" else 2)
    points = [HookPoint(LAST_LAYER, head.module, select, output=False), *hook_points(model, layers)]
    read = _Reader(model, head, points, forward or call, labels_key, targets, ignore_index, mask, progress)
    with eval_mode(unwrapped(model), device, *given.values(), forward), read.open:
        yield (
            head,
            {
                split: KeptPass(
                    functools.partial(read.batches, split, names[split], loader),
                    names[split],
                    0 if split == OOD else keep,
                )
                for split, loader in given.items()
            },
        )


@dataclass(frozen=True)
class _Reader:
    """Read the values at the hook points in a forward pass, and which entries of a batch are measured.

    key: of the labels in a mapping; open: passes over loaders, which end with its block, also after an error;
    the others as in `measure_model` and `collect_features`.
    """

    model: nn.Module
    head: Classifier
    hook_points: Sequence[HookPoint]
    call: Forward
    key: str
    targets: Targets
    ignore_index: int
    mask: Mask | None
    progress: bool | None
    open: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def batches(self, split: str, name: str, loader: Iterable[Any]) -> Iterator[Batch]:
        """Yield each batch's values by hook point, and its labels; name: of the loader, for messages."""
        device = self.head.device(self.model)
        # Apple's GPUs have no float64, in which the metrics are computed.
        place = torch.device("cpu") if device.type == "mps" else device
        read, counted = 0, 0
        batches = batches_of(loader, self.model, self.key, name, self.progress)
        for inputs, labels in self.open.enter_context(contextlib.closing(batches)):
            read, inputs = read + 1, to_device(inputs, device)
            labels, measured = self.entries(labels, inputs, other=split == OOD)
            if read == 1 and self.targets == "classes":
                _warn_of_tokens(inputs, labels[measured], measured)
            values = self.read(inputs, measured)
            yield (
                {point: value[measured.to(value.device)].to(place) for point, value in values.items()},
                labels[measured].to(place),
            )
            counted += int(measured.sum())
        if read and not counted:
            raise InputError(f"{name}: no sample is left; `ignore_index` or `mask` leaves out all")

    def entries(self, labels: Tensor, inputs: Any, other: bool) -> tuple[Tensor, Tensor]:
        """Return the labels, or rows of targets, and which of them (n,) or (n, T) are measured.

        other: whether these are samples of other data, whose labels (n,) mean nothing.
        """
        if self.targets != "classes":
            rows = labels.reshape(-1, 1) if labels.dim() == 1 and self.head.classes == 1 else labels
            name, entries = ARRAYS[self.targets], ENTRIES[self.targets]
            wrong = self.targets == "vectors" and not rows.is_floating_point()
            if wrong or rows.dim() != 2 or rows.shape[1] != self.head.classes:
                raise InputError(
                    f"{name} are {labels.dtype} {tuple(labels.shape)}; they must be {entries} "
                    f"(n, {self.head.classes}), as the model's outputs are"
                )
            return rows, torch.ones(len(rows), dtype=torch.bool, device=rows.device)
        if other and labels.dim() == 1:
            labels = torch.full(labels.shape, self.ignore_index + 1, device=labels.device)
        if labels.dim() not in (1, 2) or labels.is_floating_point():
            shape = tuple(labels.shape)
            hint = "; batches of single samples need a DataLoader" if labels.dim() == 0 else ""
            hint = "; floats (n, t) take nc.measure_regression_model" if labels.is_floating_point() else hint
            raise InputError(
                f"labels are {labels.dtype} {shape}; they must be whole numbers (n,) or (n, T){hint}"
            )
        if isinstance(self.mask, str) and not (isinstance(inputs, Mapping) and self.mask in inputs):
            raise InputError(f"mask: the inputs have no {self.mask!r}; name a key or give a function")
        mask = inputs[self.mask] if isinstance(self.mask, str) else self.mask and self.mask(inputs)
        return labels, measured_entries(labels, self.ignore_index, mask)

    @torch.no_grad()
    def read(self, inputs: Any, entries: Tensor) -> dict[str, Tensor]:
        """Run one forward pass and return each hook point's values, (n, d) or (n, T, d) as the entries are.

        The first one reads the classifier's W and b, and compares its logits with the model's output.
        """
        by_position = entries.dim() == 2
        with self.head.reading() as logits, reading(self.hook_points, inputs, by_position) as vectors:
            output = self.call(self.model, inputs)
        _check_shapes(vectors, entries)
        if logits:
            plain = self.targets == "vectors"
            self.head.check_output(output, logits[0], vectors[LAST_LAYER], plain)
        return vectors


def _warn_of_tokens(inputs: Any, labels: Tensor, measured: Tensor) -> None:
    """Warn where labels (m,), those of `measured` (n, T), are the tokens (n, T) that the model reads."""
    tokens = inputs.get("input_ids") if isinstance(inputs, Mapping) else inputs
    if not isinstance(tokens, Tensor) or tokens.shape != measured.shape or measured.dim() != 2:
        return
    if len(labels) and torch.equal(tokens[measured.to(tokens.device)].to(labels), labels):
        warn("the labels are the tokens that the model reads; nc.measure_causal_lm has the next ones")


def _check_shapes(hook_points: dict[str, Tensor], labels: Tensor) -> None:
    for name, values in hook_points.items():
        if values.shape[:-1] != labels.shape:
            shape, wanted = tuple(values.shape), tuple(labels.shape)
            count = f"{len(labels)} labels" if labels.dim() == 1 else f"labels of shape {wanted}"
            hint = (
                "; one class a sample is (n,), several take nc.measure_multilabel_model"
                if labels.dim() > values.dim() - 1
                else ""
            )
            raise InputError(f"layer {name!r}: {shape} for {count}; expected one row for each label{hint}")


def call(model: nn.Module, inputs: Any) -> Any:
    """Return model(inputs), or model(**inputs) of a mapping; without wrappers, see `unwrapped`."""
    model = unwrapped(model)
    if isinstance(inputs, Mapping):
        return model(**inputs)
    several = isinstance(inputs, tuple | list) and not isinstance(inputs, PackedSequence)
    return model(*inputs) if several else model(inputs)


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
            keys = ", ".join(map(str, batch))
            raise InputError(
                f"a batch has no {key!r}; it has {keys}: say which holds the labels, labels_key=..."
            )
        inputs = {name: value for name, value in batch.items() if name != key or key == "input_ids"}
        makes_inputs = getattr(unwrapped(model), "prepare_decoder_input_ids_from_labels", None)
        if callable(makes_inputs) and not any(name.startswith("decoder_input") for name in inputs):
            inputs["labels"] = batch[key]
        return inputs, as_tensor(batch[key], key)
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
    return tqdm(iter(batches), desc=name, total=total, unit=" batches", leave=False)


def to_device(inputs: Any, device: torch.device) -> Any:
    """Return the inputs with every tensor in them, also of mappings and tuples, on the device."""
    if isinstance(inputs, Tensor | PackedSequence):
        return inputs.to(device)  # type: ignore[arg-type] # stubs name a dtype alone
    if isinstance(inputs, Mapping):
        return {name: to_device(value, device) for name, value in inputs.items()}
    if not isinstance(inputs, tuple | list):
        return inputs
    moved = [to_device(value, device) for value in inputs]
    return type(inputs)(*moved) if hasattr(inputs, "_fields") else type(inputs)(moved)  # named tuples
