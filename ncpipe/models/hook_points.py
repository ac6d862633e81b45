"""Find the layers of a module by name, and read them in a forward pass by hooks.

n  samples of a batch    d  feature width    T  positions of a sequence    C, H, W  channels, rows, columns
"""

import contextlib
import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from ncpipe.system.errors import InputError, shown

Select = Callable[[Tensor, Any], Tensor]
SHOWN = 12  # names of layers in an error
# Modules whose output (n, C, H, W) has its channels first, and the names under which modules have a width.
CHANNELS_FIRST = (
    nn.modules.conv._ConvNd,
    nn.modules.batchnorm._NormBase,  # InstanceNorm too
    nn.GroupNorm,
    nn.modules.pooling._MaxPoolNd,
    nn.modules.pooling._AvgPoolNd,
    nn.modules.pooling._AdaptiveAvgPoolNd,
    nn.modules.pooling._AdaptiveMaxPoolNd,
    nn.Upsample,
)
CHANNELS_LAST = (nn.Linear, nn.LayerNorm, nn.RMSNorm)
# Those whose output is (T, n, d) if `batch_first` of their attention is not set.
POSITIONS_FIRST = (
    *(nn.TransformerEncoder, nn.TransformerEncoderLayer),
    *(nn.TransformerDecoder, nn.TransformerDecoderLayer),
    *(nn.MultiheadAttention, nn.RNNBase),
)
WIDTHS = ("out_channels", "num_features", "num_channels", "out_features")


class NoVectorError(InputError):
    """Reports a layer that has not one vector per sample; its text ends with the argument that makes one."""


def find_module(model: nn.Module, wanted: str | nn.Module, argument: str) -> nn.Module:
    """Return a module of the model, by its name with or without the names of wrappers, or itself."""
    inner = unwrapped(model)
    if isinstance(inner, torch.jit.ScriptModule):
        raise InputError(f"{argument}: a scripted model runs no hooks; measure the module it was made from")
    modules = dict(model.named_modules()) | dict(inner.named_modules())
    if isinstance(wanted, nn.Module):
        wanted = unwrapped(wanted)
        if not any(module is wanted for module in modules.values()):
            raise InputError(f"{argument}: the given module is no part of the model")
        return wanted
    if not isinstance(wanted, str):
        raise InputError(f"{argument}: a name or a module, not {shown(wanted)}")
    if wanted not in modules:
        close = difflib.get_close_matches(wanted, modules)
        guess = f"did you mean {close[0]!r}? " if close else ""
        near = ", ".join(close or [name for name in modules if name and "." not in name])
        names = f"near that: {near}" if argument == "layers" else linear_layers(model)
        raise InputError(f"{argument}: the model has no layer {wanted!r}; {guess}{names}")
    return unwrapped(modules[wanted])


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the network inside DataParallel, DistributedDataParallel and torch.compile.

    Replicas would run hooks once on each device, and DistributedDataParallel's forward pass waits for the
    other processes.
    """
    while True:
        if isinstance(model, nn.DataParallel | DistributedDataParallel):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


def is_linear(module: nn.Module) -> bool:
    """Return whether a module gives `out_features` numbers of `in_features`, as nn.Linear and LoRA's do."""
    sizes = (getattr(module, name, None) for name in ("in_features", "out_features"))
    return all(isinstance(size, int) for size in sizes)


def linear_layers(model: nn.Module) -> str:
    """Return the names of the model's linear layers, the last ones of many, for an error."""
    layers = linear_modules(model)
    names = [name for name, part in layers if not any(is_part(part, module) for _, module in layers)]
    if not names:
        return "it has no Linear layers"
    return f"its Linear layers: {'..., ' if len(names) > SHOWN else ''}{', '.join(names[-SHOWN:])}"


def with_article(kind: str) -> str:
    """Return `a Linear` of `Linear`, `an Embedding` of `Embedding`."""
    return f"{'an' if kind[0] in 'AEIOUaeiou' else 'a'} {kind}"


def linear_modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the model's linear layers with their names."""
    modules = ((name, unwrapped(module)) for name, module in unwrapped(model).named_modules() if name)
    return [(name, module) for name, module in modules if is_linear(module)]


def is_part(part: nn.Module, whole: nn.Module) -> bool:
    """Return whether a linear layer is inside another of the same sizes, as LoRA's `base_layer` is."""
    same = (part.in_features, part.out_features) == (whole.in_features, whole.out_features)
    return same and part is not whole and any(module is part for module in whole.modules())


def channels_first(values: Tensor, inputs: Any) -> Tensor:
    """Return (n, C) of (n, C, ...), averaged over positions: for `layers`, as in convolutional networks."""
    return _mean(values.flatten(2), 2)


def channels_last(values: Tensor, inputs: Any) -> Tensor:
    """Return (n, C) of (n, ..., C), averaged over positions: for `layers`, as in Swin."""
    return _mean(values.flatten(1, -2), 1)


def _mean(values: Tensor, axis: int) -> Tensor:
    """Return the mean in the type of the values, whose rounding says what is noise."""
    mean = values.mean(axis, dtype=torch.promote_types(values.dtype, torch.float32))
    return mean.to(values.dtype) if values.is_floating_point() else mean


def last_token(values: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
    """Return (n, d) of (n, T, d) at the last token with attention_mask 1: a `select` for decoders.

    Raises NoVectorError of inputs without an attention_mask.
    """
    if not isinstance(inputs, Mapping) or "attention_mask" not in inputs:
        raise NoVectorError(
            "select=nc.last_token finds no 'attention_mask' among the inputs; give batches with one, or a "
            "function of (values, inputs)"
        )
    mask = inputs["attention_mask"].to(values.device)
    positions = torch.arange(mask.shape[1], device=values.device)
    last = (positions * mask).argmax(1)
    return values[torch.arange(len(values), device=values.device), last]


@dataclass(frozen=True)
class HookPoint:
    """Where features are read in the network: the input of a module, or its output.

    select: None takes vectors (n, d) as they are and averages maps over positions.
    """

    name: str
    module: nn.Module
    select: Select | None
    output: bool

    def vectors(self, values: Tensor, inputs: Any, by_position: bool) -> Tensor:
        """Return (n, d) of a batch's values; by_position: (n, T, d) as they are, without a `select`."""
        if self.select is not None:
            selected = self.select(values, inputs)
            if not isinstance(selected, Tensor):
                raise InputError(f"layer {self.name!r}: its function gives {shown(selected)}, not a tensor")
            return selected
        shape = tuple(values.shape)
        if values.dim() == 2 or (by_position and values.dim() == 3):
            if self.output and _may_be_turned(self.module, shape):
                raise NoVectorError(
                    f"layer {self.name!r} gives {shape}, in which samples, positions and width cannot be "
                    "told apart; name it with a function that returns them in this order, such as "
                    f"layers={{{self.name!r}: lambda values, inputs: values.transpose(1, 2)}}; of "
                    "(positions, samples, width) transpose(0, 1)"
                )
            return values
        if not self.output:
            raise NoVectorError(
                f"the classifier sees {shape}, not one feature vector per sample; "
                "say which one a sample predicts from: select=nc.last_token, or a function of (values, "
                "inputs)"
            )
        if values.dim() != 4:
            raise NoVectorError(
                f"layer {self.name!r} gives {shape}; name it with a function of (values, inputs) that makes "
                f"it (samples, width), as nc.channels_last: layers={{{self.name!r}: nc.channels_last}}; of "
                "padded text, a mean without the padding"
            )
        pool = _layout(self.module, shape)
        if pool is None:
            raise NoVectorError(
                f"layer {self.name!r} gives {shape}, and whether channels come first or last cannot be told "
                f"from it; say which: layers={{{self.name!r}: nc.channels_first}} or nc.channels_last"
            )
        return pool(values, inputs)


def _may_be_turned(module: nn.Module, shape: tuple[int, ...]) -> bool:
    """Return whether a module's output may be (n, d, T) or (T, n, d), of a shape that (n, T, d) has too."""
    if len(shape) != 3:
        return False
    parts = [part for part in module.modules() if isinstance(part, CHANNELS_FIRST + CHANNELS_LAST)]
    channels = bool(parts) and all(isinstance(part, CHANNELS_FIRST) for part in parts)
    positions = isinstance(module, POSITIONS_FIRST) and any(
        getattr(part, "batch_first", True) is False for part in module.modules()
    )
    return (channels and shape[1] == shape[2] > 1) or (positions and shape[0] == shape[1] > 1)


def _layout(module: nn.Module, shape: tuple[int, ...]) -> Select | None:
    """Return how to average a module's output (n, C, H, W) or (n, H, W, C); None where that is not known.

    Widths of the layers inside tell it, as does that all of them have channels first. Neither is enough where
    they disagree, or where maps would be square the other way round: layers may be concatenated or permuted.
    """
    widths, kinds = set(), set()
    for part in module.modules():
        if isinstance(part, CHANNELS_FIRST + CHANNELS_LAST):
            kinds.add(isinstance(part, CHANNELS_FIRST))
            widths |= {getattr(part, name, None) for name in WIDTHS}
            normalised: tuple[int, ...] = getattr(part, "normalized_shape", ())
            widths |= set(normalised) if len(normalised) == 1 else set()
    layouts = set()
    if (shape[1] in widths) != (shape[3] in widths):
        layouts.add(channels_first if shape[1] in widths else channels_last)
    if kinds == {True}:
        layouts.add(channels_first)
    if layouts and len(set(shape[1:])) == 2 and shape[1] != shape[3]:
        layouts.add(channels_first if shape[2] == shape[3] else channels_last)
    return layouts.pop() if len(layouts) == 1 else None


def hook_points(model: nn.Module, layers: Sequence[str] | Mapping[str, Select | None]) -> list[HookPoint]:
    """Return the outputs of the named layers, each with its `select`; in a name, * is any part of a name.

    `blocks.*` is blocks.0, blocks.1, ..., in the order of the model. Raises InputError for unknown names.
    """
    if isinstance(layers, str):
        raise InputError(f"layers takes a list of names: [{layers!r}]")
    if not isinstance(layers, Iterable) or not all(isinstance(name, str) for name in layers):
        raise InputError(f"layers: a list of names, or a mapping of names to functions, not {shown(layers)}")
    patterns: Mapping[str, Select | None] = layers if isinstance(layers, Mapping) else dict.fromkeys(layers)
    selects = {name: select for pattern, select in patterns.items() for name in matching(model, pattern)}
    if "last" in selects:
        raise InputError("a layer named 'last' would be mistaken for the classifier's input")
    return [
        HookPoint(name, find_module(model, name, "layers"), select, output=True)
        for name, select in selects.items()
    ]


def matching(model: nn.Module, pattern: str) -> list[str]:
    """Return the names of the modules that a pattern matches; a name without * is left as it is."""
    if "*" not in pattern:
        return [pattern]
    names = [name for name, _ in unwrapped(model).named_modules() if matches(name, pattern)]
    if not names:
        raise InputError(f"layers: no layer of the model matches {pattern!r}")
    return names


def matches(name: str, pattern: str) -> bool:
    """Return whether a dotted name matches a pattern in which * is any text without dots."""
    return re.fullmatch(re.escape(pattern).replace(r"\*", "[^.]*"), name) is not None


@contextlib.contextmanager
def reading(
    points: Sequence[HookPoint], inputs: Any, by_position: bool = False
) -> Iterator[dict[str, Tensor]]:
    """Read vectors at the hook points in the block's forward pass of `inputs`, which fill the yielded dict.

    Whole outputs are not kept. Arguments and errors as in `HookPoint.vectors`.
    """
    calls: dict[str, list[Tensor]] = {point.name: [] for point in points}
    values: dict[str, Tensor] = {}
    with contextlib.ExitStack() as hooks:
        for point in points:
            hooks.callback(_hook(point, calls[point.name], inputs, by_position).remove)
        yield values
    for name, tensors in calls.items():
        if len(tensors) != 1:
            raise InputError(
                f"layer {name!r} ran {len(tensors)} times in a forward pass; it must run once, called as a "
                "module and not in scripted code"
            )
        values[name] = tensors[0]


def _hook(point: HookPoint, vectors: list[Tensor], inputs: Any, by_position: bool) -> RemovableHandle:
    def read(value: Any) -> None:
        found = point.vectors(_first_tensor(value, point.name), inputs, by_position)
        vectors.append(found.clone())  # a later layer may work in place (ReLU)

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        read(args[0] if args else next(iter(kwargs.values())))

    def after(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        read(output)

    if point.output:
        return point.module.register_forward_hook(after)
    return point.module.register_forward_pre_hook(before, with_kwargs=True)


def _first_tensor(value: Any, name: str) -> Tensor:
    """Return the value, or its first entry: transformers' blocks return tuples and mappings."""
    if isinstance(value, Mapping):
        value = next(iter(value.values()))
    elif isinstance(value, tuple) and value:
        value = value[0]
    if not isinstance(value, Tensor):
        raise InputError(f"layer {name!r} gives {with_article(type(value).__name__)}, not a tensor")
    if value.is_nested:
        raise InputError(
            f"layer {name!r} gives a nested tensor, without padding; to keep the padding, call "
            "torch.backends.mha.set_fastpath_enabled(False) before"
        )
    return value.detach()
