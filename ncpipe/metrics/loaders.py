"""Read inputs and labels from the batches of any loader, call a model on them, and move tensors."""

import contextlib
import sys
from collections.abc import Callable, Generator, Iterable, Mapping
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from ncpipe.datasets.tensors import as_tensor
from ncpipe.metrics.classifier import tensors_in
from ncpipe.models.hook_points import unwrapped
from ncpipe.system.errors import InputError, shown, warn

Forward = Callable[[nn.Module, Any], Any]


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
