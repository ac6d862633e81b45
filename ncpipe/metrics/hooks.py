"""Measure the collapse of any PyTorch classifier from the inputs of its last linear layer.

N  samples    n  samples of a batch    K  classes    d  feature width    T  positions of a sequence
"""

import contextlib
import difflib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ncpipe.metrics.checks import check_finite, check_statistics, data_warnings
from ncpipe.metrics.passes import Classifiers, first_pass, same_samples, second_pass
from ncpipe.metrics.selection import IGNORE_INDEX, Classes, measured_entries, renumber, select_classes
from ncpipe.metrics.table import LAST_LAYER, TEST, TRAIN, Measurement, measure_layer, measure_weights
from ncpipe.system.errors import InputError, MeasurementWarning

Forward = Callable[[nn.Module, Any], Any]
Select = Callable[[Tensor, Any], Tensor]
Mask = str | Callable[[Any], Tensor]
Pass = Callable[[], Iterator[tuple[dict[str, Tensor], Tensor]]]
SHOWN = 12  # names of layers in an error


def measure_model(
    model: nn.Module,
    classifier: str | nn.Module,
    loader: Iterable[Any],
    test_loader: Iterable[Any] | None = None,
    *,
    device: torch.device | str | None = None,
    forward: Forward | None = None,
    labels: str = "labels",
    select: Select | None = None,
    layers: Sequence[str] | Mapping[str, Select] = (),
    classes: Classes = "all",
    ignore_index: int = IGNORE_INDEX,
    mask: Mask | None = None,
) -> list[Measurement]:
    """Return every metric of the features h (N, d) that enter `classifier`, and of its weight and bias.

    loader, test_loader: batches (inputs, ..., labels) or mappings with the key `labels`; labels (n,) in
    0..K-1, or (n, T), one for each position of a sequence: each position is then a sample. Each loader is run
    through twice (class means first), in eval mode and without gradients, and must give the same samples each
    time: shuffling is fine; random augmentation, sampling with replacement or a shuffled `drop_last` is not,
    and raises.
    classifier: the last nn.Linear or its name (`fc`, `score`). device: where model and inputs go; None leaves
    the model where it is. forward(model, inputs): how to call it, if not model(inputs) or model(**inputs).
    select(values, inputs) -> (n, d): which of several feature vectors a sample predicts from; required where
    the classifier sees (n, T, d), see `last_token`.
    layers: names of further layers whose outputs are measured too, those of shape (n, C, H, W) averaged over
    positions; or names with a `select` of their own.
    classes: `all` of the classifier's K, each of which needs samples; `present`, those that occur in
    `loader`; or a list of numbers. Samples of other classes are left out, and so are their rows of W.
    ignore_index: label of samples, or positions, that are left out. mask: key of the inputs, or a function of
    them, of a tensor in the labels' shape that is 0 where a sample or position is left out.
    Training mode and hooks are restored, also after an error. Raises InputError, and warns of what can be
    measured but says little (MeasurementWarning), as `ncpipe metrics` does.
    """
    head = _linear(model, classifier)
    hook_points = [
        _HookPoint(LAST_LAYER, head, select or _feature_vectors, output=False),
        *_extra_layers(model, layers),
    ]
    call = forward or _call
    selection = _Selection(classes, labels, ignore_index, mask)
    with _eval_mode(model, device):
        chosen = select_classes(classes, head.out_features, lambda: _measured_labels(loader, selection))
        train, test = (
            _loader_pass(model, hook_points, name, each, call, selection, chosen, head)
            for name, each in (("loader", loader), ("test_loader", test_loader))
        )
        assert train is not None
        return _measure(train, test, head, chosen)


def collect_features(
    model: nn.Module,
    classifier: str | nn.Module,
    loader: Iterable[Any],
    test_loader: Iterable[Any] | None = None,
    *,
    device: torch.device | str | None = None,
    forward: Forward | None = None,
    labels: str = "labels",
    select: Select | None = None,
) -> dict[str, np.ndarray]:
    """Return the arrays that `measure_model` would measure: one pass, everything in memory.

    `numpy.savez(path, **arrays)` writes what `ncpipe metrics` reads: features (N, d), labels (N,), weight
    (K, d), bias (K,) if there is one, and test_features, test_labels. Arguments as in `measure_model`.
    """
    head = _linear(model, classifier)
    hook_point = _HookPoint(LAST_LAYER, head, select or _feature_vectors, output=False)
    arrays = {"weight": _to_numpy(head.weight)}
    if head.bias is not None:
        arrays["bias"] = _to_numpy(head.bias)
    selection, every = _Selection("all", labels), torch.arange(head.out_features)
    with _eval_mode(model, device):
        for prefix, each in (("", loader), ("test_", test_loader)):
            name = f"{prefix}loader"
            if run := _loader_pass(model, [hook_point], name, each, forward or _call, selection, every, head):
                batches = [(values[LAST_LAYER].cpu(), answers.cpu()) for values, answers in run()]
                values, answers = zip(*batches, strict=True)
                arrays |= {f"{prefix}features": _to_numpy(torch.cat(values))}
                arrays |= {f"{prefix}labels": _to_numpy(torch.cat(answers))}
    return arrays


def last_token(values: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
    """Return (n, d) of (n, T, d) at the last token with attention_mask 1: a `select` for decoders."""
    mask = inputs["attention_mask"].to(values.device)
    positions = torch.arange(mask.shape[1], device=values.device)
    last = (positions * mask).argmax(1)
    return values[torch.arange(len(values), device=values.device), last]


@dataclass(frozen=True)
class _Selection:
    """Select the entries of a batch to measure.

    key: of the labels in a mapping; the others as in `measure_model`.
    """

    classes: Classes
    key: str
    ignore_index: int = IGNORE_INDEX
    mask: Mask | None = None

    def kept(self, labels: Tensor, inputs: Any) -> Tensor:
        """Return which labels (n,) or (n, T) are measured, by index and mask."""
        if labels.dim() not in (1, 2) or labels.is_floating_point():
            shape = tuple(labels.shape)
            raise InputError(f"labels are {labels.dtype} {shape}; they must be whole numbers (n,) or (n, T)")
        if isinstance(self.mask, str) and not (isinstance(inputs, Mapping) and self.mask in inputs):
            raise InputError(f"mask: the inputs have no {self.mask!r}; name a key or give a function")
        mask = inputs[self.mask] if isinstance(self.mask, str) else self.mask and self.mask(inputs)
        return measured_entries(labels, self.ignore_index, mask)


@dataclass(frozen=True)
class _HookPoint:
    """Where features are read in the network: the input of a module, or its output."""

    name: str
    module: nn.Module
    select: Select
    output: bool


def _linear(model: nn.Module, classifier: str | nn.Module) -> nn.Linear:
    found = _module(model, classifier, "classifier")
    if not isinstance(found, nn.Linear):
        kind, name = type(found).__name__, classifier if isinstance(classifier, str) else "the given module"
        raise InputError(
            f"classifier: {name} is {_with_article(kind)}, not a Linear; {_linear_layers(model)}"
        )
    if found.out_features < 2:
        raise InputError("the classifier has one output; the metrics need a row of weights for each class")
    return found


def _module(model: nn.Module, wanted: str | nn.Module, argument: str) -> nn.Module:
    modules = dict(model.named_modules())
    if isinstance(wanted, nn.Module):
        if not any(module is wanted for module in modules.values()):
            raise InputError(f"{argument}: the given module is no part of the model")
        return wanted
    if wanted not in modules:
        known = (
            _linear_layers(model)
            if argument == "classifier"
            else f"near that: {_similar_names(wanted, modules)}"
        )
        raise InputError(f"{argument}: the model has no layer {wanted!r}; {known}")
    return modules[wanted]


def _similar_names(wanted: str, modules: Mapping[str, nn.Module]) -> str:
    """Return the most similar names, or the top-level names where none is similar."""
    return ", ".join(
        difflib.get_close_matches(wanted, modules) or [name for name in modules if name and "." not in name]
    )


def _linear_layers(model: nn.Module) -> str:
    names = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    if not names:
        return "it has no Linear layers"
    return f"its Linear layers: {'..., ' if len(names) > SHOWN else ''}{', '.join(names[-SHOWN:])}"


def _with_article(kind: str) -> str:
    return f"{'an' if kind[0] in 'AEIOU' else 'a'} {kind}"


def _extra_layers(model: nn.Module, layers: Sequence[str] | Mapping[str, Select]) -> list[_HookPoint]:
    if isinstance(layers, str):
        raise InputError(f"layers takes a list of names: [{layers!r}]")
    chosen = layers if isinstance(layers, Mapping) else dict.fromkeys(layers, _pool)
    if LAST_LAYER in chosen:
        raise InputError(f"a layer named {LAST_LAYER!r} would be mistaken for the classifier's input")
    return [
        _HookPoint(name, _module(model, name, "layers"), select, output=True)
        for name, select in chosen.items()
    ]


def _feature_vectors(values: Tensor, inputs: Any) -> Tensor:
    if values.dim() != 2:
        raise InputError(
            f"the classifier sees {tuple(values.shape)}, not one feature vector per sample; "
            "say which one a sample predicts from: select=last_token, or a function of (values, inputs)"
        )
    return values


def _pool(values: Tensor, inputs: Any) -> Tensor:
    if values.dim() == 4:
        return values.double().mean((2, 3))
    if values.dim() != 2:
        raise InputError(
            f"a layer gives {tuple(values.shape)}; name it with a function of (values, inputs) that makes it "
            "(samples, width): layers={name: function}"
        )
    return values


@contextlib.contextmanager
def _eval_mode(model: nn.Module, device: torch.device | str | None) -> Iterator[None]:
    """Put the model into eval mode for the block, then every module back into its own mode.

    PyTorch's generator is restored too, because every pass over a DataLoader draws from it. A measurement
    must not change a training that it interrupts.
    """
    modes = [(module, module.training) for module in model.modules()]
    if device is not None:
        model.to(device)
    model.eval()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        for module, training in modes:
            module.training = training


def _loader_pass(
    model: nn.Module,
    hook_points: Sequence[_HookPoint],
    name: str,
    loader: Iterable[Any] | None,
    call: Forward,
    selection: _Selection,
    chosen: Tensor,
    head: nn.Linear,
) -> Pass | None:
    """Return a function that runs the loader once and yields each batch's values by hook point, and labels.

    name: the argument that the loader was. chosen (K',): the measured classes; labels are places in it.
    """
    if loader is None:
        return None
    if iter(loader) is loader:
        raise InputError(f"{name}: an iterator is good for one pass only; give a DataLoader or a list")
    batches, device = loader, head.weight.device
    some = not (isinstance(selection.classes, str) and selection.classes == "all")
    # Apple's GPUs have no float64, in which the metrics are computed.
    place = torch.device("cpu") if device.type == "mps" else device

    def run() -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        read, counted, samples = 0, 0, torch.zeros(len(chosen), dtype=torch.int64)
        for batch in batches:
            read += 1
            inputs, labels = _split_batch(batch, selection.key)
            inputs = _to_device(inputs, device)
            kept = selection.kept(labels, inputs)
            values = _forward(model, hook_points, inputs, call, by_position=labels.dim() == 2)
            _check_shapes(values, labels)
            labels = labels[kept]
            if some:
                places = renumber(labels, chosen, head.out_features)
                kept, labels = kept.masked_scatter(kept, places >= 0), places[places >= 0]
            found = {
                hook_point: value[kept.to(value.device)].to(place) for hook_point, value in values.items()
            }
            yield found, labels.to(place)
            counted += len(labels)
            if some:
                samples += torch.bincount(labels.cpu(), minlength=len(chosen))
        if not read:
            raise InputError(f"{name}: it gave no batches; there is nothing to measure")
        if not counted:
            raise InputError(f"{name}: no sample is left; `ignore_index` or `mask` leaves out all")
        if some and len(empty := chosen[samples == 0]):
            raise InputError(f"{name}: class {int(empty[0])} has no samples; leave it out of `classes`")

    return run


def _measured_labels(loader: Iterable[Any], selection: _Selection) -> Iterator[Tensor]:
    """Yield the measured labels (m,) of each batch, without a forward pass."""
    for batch in loader:
        inputs, labels = _split_batch(batch, selection.key)
        yield labels[selection.kept(labels, inputs)]


def _measure(train: Pass, test: Pass | None, head: nn.Linear, chosen: Tensor) -> list[Measurement]:
    """Measure in two passes a split, for all hook points together."""
    kept = chosen.to(head.weight.device)
    weight, bias = (None if tensor is None else tensor.detach()[kept] for tensor in (head.weight, head.bias))
    assert weight is not None
    for title, tensor in (("weight", weight), ("bias", bias)):
        if tensor is not None:
            check_finite(f"the classifier's {title}", tensor)
    classifiers: Classifiers = {LAST_LAYER: (weight, bias)}
    results: dict[str, list[Measurement]] = {LAST_LAYER: list(measure_weights(weight))}
    learned = first_pass(train(), len(weight))
    for split, run in ((TRAIN, train), (TEST, test)):
        if run is None:
            continue
        seen = learned if split == TRAIN else first_pass(run(), len(weight))
        for layer, statistics in seen.items():
            check_statistics(split, layer, statistics)
        for message in data_warnings(split, seen[LAST_LAYER].counts, weight.shape[1], chosen):
            warnings.warn(message, MeasurementWarning, stacklevel=3)
        samples = second_pass(run(), seen, classifiers, None if split == TRAIN else learned)
        for layer, statistics in seen.items():
            if not same_samples(statistics, samples[layer]):
                raise InputError(
                    f"the {split} loader gave other samples in its second pass; "
                    "turn off random augmentation, sampling with replacement and drop_last"
                )
            own = weight if layer == LAST_LAYER else None
            rows = measure_layer(layer, split, statistics, samples[layer], learned[layer], own)
            results.setdefault(layer, []).extend(rows)
    return [row for rows in results.values() for row in rows]


@torch.no_grad()
def _forward(
    model: nn.Module, hook_points: Sequence[_HookPoint], inputs: Any, call: Forward, by_position: bool = False
) -> dict[str, Tensor]:
    """Run one forward pass and return each hook point's values (n, d).

    by_position: keep (n, T, d) where the user gave no `select`.
    """
    seen: dict[str, list[Tensor]] = {hook_point.name: [] for hook_point in hook_points}
    with contextlib.ExitStack() as hooks:
        for hook_point in hook_points:
            hooks.callback(_hook(hook_point, seen[hook_point.name]).remove)
        call(model, inputs)
    for name, values in seen.items():
        if len(values) != 1:
            raise InputError(f"layer {name!r} ran {len(values)} times in a forward pass; it must run once")
    found = {}
    for hook_point in hook_points:
        (value,) = seen[hook_point.name]
        whole = by_position and value.dim() == 3 and hook_point.select in (_feature_vectors, _pool)
        found[hook_point.name] = value if whole else hook_point.select(value, inputs)
    return found


def _hook(hook_point: _HookPoint, seen: list[Tensor]) -> RemovableHandle:
    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen.append(_first_tensor(args[0] if args else next(iter(kwargs.values())), hook_point.name))

    def after(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        seen.append(_first_tensor(output, hook_point.name))

    if hook_point.output:
        return hook_point.module.register_forward_hook(after)
    return hook_point.module.register_forward_pre_hook(before, with_kwargs=True)


def _first_tensor(value: Any, name: str) -> Tensor:
    """Return a copy of the value, or of its first entry: transformers' blocks return tuples and mappings."""
    if isinstance(value, Mapping):
        value = next(iter(value.values()))
    elif isinstance(value, tuple) and value:
        value = value[0]
    if not isinstance(value, Tensor):
        raise InputError(f"layer {name!r} gives {_with_article(type(value).__name__)}, not a tensor")
    return value.detach().clone()  # a later layer may work in place (ReLU)


def _call(model: nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple | list) else model(inputs)


def _split_batch(batch: Any, key: str) -> tuple[Any, Tensor]:
    """Return (inputs, labels) of a batch: the mapping without `key`, or all but the last entry."""
    if isinstance(batch, Mapping):
        if key not in batch:
            raise InputError(f"a batch has no {key!r}; it has {', '.join(map(str, batch))} (labels=...)")
        return {name: value for name, value in batch.items() if name != key}, torch.as_tensor(batch[key])
    if not isinstance(batch, tuple | list) or len(batch) < 2:
        raise InputError("a batch must be (inputs, labels) or a mapping with labels")
    return batch[0] if len(batch) == 2 else tuple(batch[:-1]), torch.as_tensor(batch[-1])


def _to_device(inputs: Any, device: torch.device) -> Any:
    if isinstance(inputs, Tensor):
        return inputs.to(device)
    if isinstance(inputs, Mapping):
        return {name: _to_device(value, device) for name, value in inputs.items()}
    if not isinstance(inputs, tuple | list):
        return inputs
    moved = [_to_device(value, device) for value in inputs]
    return type(inputs)(*moved) if hasattr(inputs, "_fields") else type(inputs)(moved)  # named tuples


def _check_shapes(hook_points: dict[str, Tensor], labels: Tensor) -> None:
    for name, values in hook_points.items():
        if values.shape[:-1] != labels.shape:
            shape, wanted = tuple(values.shape), tuple(labels.shape)
            count = f"{len(labels)} labels" if labels.dim() == 1 else f"labels of shape {wanted}"
            raise InputError(f"layer {name!r}: {shape} for {count}; expected one row for each label")


def _to_numpy(tensor: Tensor) -> np.ndarray:
    """Return a NumPy array; bfloat16, which NumPy lacks, becomes float32."""
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
