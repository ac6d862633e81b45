"""Find the classifier of a model, and the W and b of its logits W h + b.

n  samples    K  classes    d  feature width
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ncpipe.metrics.kept_pass import pass_rounding
from ncpipe.models.hook_points import (
    SHOWN,
    find_module,
    is_linear,
    is_part,
    linear_layers,
    linear_modules,
    unwrapped,
    with_article,
)
from ncpipe.system.errors import InputError, warn

FEW = 8  # samples, and positions of each, on which a layer is compared with W h + b
ROWS = 256  # logits (K,) of samples or positions that are compared with the model's
PLAIN = (Tensor, nn.Parameter)
# Of operands of float32 products (`torch.set_float32_matmul_precision`): float32, TF32, bfloat16.
OPERAND_ROUNDING = {"highest": 2.0**-23, "high": 2.0**-10, "medium": 2.0**-7}


class Classifier:
    """A layer that gives logits W h + b, whatever makes its W and b.

    weight (K, d) and bias (K,) are what it multiplies with and adds, once it has run in a block of `reading`:
    parametrizations, pruning and weight_norm make the weight in the forward pass, and shards are only
    gathered for it. A layer without such a weight (LoRA, quantised weights) is asked for its map instead.
    """

    weight: Tensor
    bias: Tensor | None

    def __init__(self, module: nn.Module, name: str, argument: str) -> None:
        self.module, self.name, self.argument = module, name, argument
        self.classes, self.width = int(module.out_features), int(module.in_features)  # type: ignore[arg-type]
        self.precision: torch.dtype | None = None  # of the logits, once it has run

    def device(self, model: nn.Module) -> torch.device:
        """Return the device of the layer's tensors, or of the model's where the layer holds none."""
        for module in (self.module, model):
            for tensor in (*module.parameters(), *module.buffers()):
                if not tensor.is_meta:
                    return tensor.device
        return torch.device("cpu")

    @contextlib.contextmanager
    def reading(self) -> Iterator[list[tuple[int, Tensor]]]:
        """Read W and b when the layer runs in the block, the first time; yield a list for its logits.

        They are the number of rows (K,) and the first `ROWS` of them.

        Raises InputError, where the layer runs, unless its logits are W h + b.
        """
        logits: list[tuple[int, Tensor]] = []
        if self.precision is not None:
            yield logits
            return
        # Registered last: the hooks that make the weight run before, and those that change the logits too.
        hooks = (
            self.module.register_forward_pre_hook(self._read, with_kwargs=True),
            self.module.register_forward_hook(self._compare, with_kwargs=True),
            # Copies, because the model may change them in place.
            self.module.register_forward_hook(lambda module, args, output: logits.append(self._rows(output))),
        )
        try:
            yield logits
        finally:
            for hook in hooks:
                hook.remove()

    def rounding(self, model: nn.Module) -> float:
        """Return the relative error of features that run in other batches, see `same_samples`."""
        kinds = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
        kinds |= {self.weight.dtype} if self.precision is None else {self.weight.dtype, self.precision}
        return pass_rounding(max(torch.finfo(kind).eps for kind in kinds))

    def check_output(
        self, output: Any, logits: tuple[int, Tensor], features: Tensor, plain: bool = False
    ) -> None:
        """Raise InputError unless a model's output holds the layer's logits, those of features (n, d).

        logits: what `reading` gave of the same forward pass. They may be shifted by a number for each sample
        (log-softmax), or be their softmax, unless they have to be as they are (`plain`). Warns where the
        output holds no tensor to compare.
        """
        tensors = [t for t in tensors_in(output) if t.is_floating_point()]
        if self.classes == 1:
            tensors = [t.unsqueeze(1) if t.dim() == 1 else t for t in tensors]
        tensors = [t for t in tensors if t.dim() > 1]
        if not tensors:
            warn(f"the model returns no logits, so it was not checked that they are those of {self.name!r}")
            return
        expected = [logits]
        if features.shape[:-1].numel() != logits[0]:  # one of several feature vectors of a sample
            expected.append(self._rows(self._logits(features.to(self.weight))))
        outputs = [t if t.shape[-1] == self.classes else t.movedim(1, -1) for t in tensors]
        outputs = [t for t in outputs if t.shape[-1] == self.classes]
        if not any(self._same_logits(t, *rows, features, plain) for t in outputs for rows in expected):
            shapes = ", ".join(str(tuple(t.shape)) for t in tensors[:SHOWN])
            kind = "numbers" if plain else "logits"
            raise InputError(
                f"{self.argument}: the model returns {shapes}, which are not the {self.classes} {kind} of "
                f"{self.name!r}; name the layer that gives them, or a forward=... that returns them"
            )

    def _read(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take W and b from the layer, or from its map, and compare W h + b with what it gives."""
        few = _few(args[0] if args else next(iter(kwargs.values())))
        if not isinstance(few, Tensor):
            return  # the measurement's own hook names it
        logits = module.forward(few)
        for weight, bias in self._candidates(few):
            self.weight, self.bias = weight.detach().clone(), bias if bias is None else bias.detach().clone()
            if self._gives(few, logits):
                self.precision = logits.dtype
                return
        raise InputError(
            f"{self._refusal()}; it may normalise or quantise its inputs: name the linear layer itself, or "
            "measure its inputs without a classifier (`layers` of another one, or `measure`)"
        )

    def _compare(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        few = _few(args[0] if args else next(iter(kwargs.values())))
        if not isinstance(output, Tensor) or not self._gives(few, _few(output)):
            raise InputError(f"{self._refusal()}: a hook changes them; remove it, or measure without it")

    def _refusal(self) -> str:
        kind = with_article(self.module._get_name())  # `DynamicQuantizedLinear` of what is another `Linear`
        return f"{self.argument}: {self.name!r} is {kind}, and its logits are not W h + b with fixed W and b"

    def _candidates(self, few: Tensor) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Yield (weight, bias) as the layer names them, then as its outputs for unit vectors show them."""
        weight, bias = getattr(self.module, "weight", None), getattr(self.module, "bias", None)
        width = few.shape[-1]
        # A quantised weight, a shard and an offloaded one are no plain tensors of numbers.
        plain = [
            t is None or (type(t) in PLAIN and t.is_floating_point() and not t.is_meta)
            for t in (weight, bias)
        ]
        if all(plain) and weight is not None and weight.shape == (self.classes, width):
            yield weight, bias
        units = torch.eye(width, dtype=few.dtype, device=few.device)
        units = units.view(width, *(1 for _ in range(few.dim() - 2)), width)
        try:
            added = self.module.forward(torch.zeros_like(units[:1])).view(-1)
            rows = self.module.forward(units).view(width, -1) - added
        except Exception as error:
            raise InputError(f"{self._refusal()}: {str(error).splitlines()[0]}") from error
        yield rows.T, added if bool(added.any()) else None

    def _gives(self, features: Tensor, logits: Any) -> bool:
        made = self._logits(features.to(self.weight.dtype))
        if not isinstance(logits, Tensor) or logits.shape != made.shape or not logits.is_floating_point():
            return False
        return _close(made, logits, self._rounding(features, made, logits))

    def _logits(self, features: Tensor) -> Tensor:
        return functional.linear(features, self.weight, self.bias)

    def _rows(self, logits: Tensor) -> tuple[int, Tensor]:
        """Return the number of rows of logits (..., K), and copies of the first ones."""
        rows = logits.reshape(-1, self.classes)
        return len(rows), rows[:ROWS].clone()

    def _same_logits(self, output: Tensor, count: int, logits: Tensor, features: Tensor, plain: bool) -> bool:
        found, output = self._rows(output)
        if found != count:
            return False
        allowed = self._rounding(features, logits, output)
        a, b = output.cpu().double(), logits.cpu().double()  # Apple's GPUs have no float64
        if plain:
            return _close(a, b, 2 * allowed)
        shifted = _close(a - a.mean(1, keepdim=True), b - b.mean(1, keepdim=True), 2 * allowed)
        return shifted or _close(a, b.softmax(1), 2 * allowed)

    def _rounding(self, features: Tensor, *logits: Tensor) -> float:
        """Return by how much equal logits may differ, of the types of these."""
        coarsest = max(torch.finfo(tensor.dtype).eps for tensor in logits)
        products = OPERAND_ROUNDING[_product_precision()]
        if coarsest < OPERAND_ROUNDING["highest"]:
            products = coarsest
        lengths = [torch.linalg.vector_norm(t, dim=-1).max().item() for t in (features, self.weight)]
        size = lengths[0] * lengths[1] + (0.0 if self.bias is None else self.bias.abs().max().item())
        return 4 * coarsest * max(tensor.abs().max().item() for tensor in logits) + 16 * products * size


def find_classifier(
    model: nn.Module, wanted: str | nn.Module, argument: str = "classifier", least: int = 2
) -> Classifier:
    """Return the layer that gives the model's logits, by its name or itself; raise InputError for another.

    least: of outputs that it has to have.
    """
    layer = find_module(model, wanted, argument)
    name = next(name for name, module in unwrapped(model).named_modules() if module is layer) or "the model"
    if not is_linear(layer):
        kind = with_article(type(layer).__name__)
        raise InputError(f"{argument}: {name} is {kind}, not a Linear; {linear_layers(model)}")
    if whole := next((outer for outer, module in linear_modules(model) if is_part(layer, module)), None):
        raise InputError(f"{argument}: {name} is a part of {whole}, which gives the logits; name {whole}")
    if int(layer.out_features) < least:  # type: ignore[arg-type]
        raise InputError("the classifier has one output; the metrics need a row of weights for each class")
    tensors = [*model.parameters(), *model.buffers()]
    offloaded = any(hasattr(module, "_hf_hook") for module in model.modules())  # by accelerate
    if tensors and all(tensor.is_meta for tensor in tensors) and not offloaded:
        raise InputError("the model is on the device meta, which holds no numbers; load its weights")
    return Classifier(layer, name, argument)


def _few(value: Any) -> Any:
    """Return a few samples, and positions of each, of a tensor (n, ..., d); anything else as it is."""
    return value[(slice(FEW),) * (value.dim() - 1)] if isinstance(value, Tensor) else value


def _product_precision() -> str:
    """Return the precision of float32 products; the lowest where it is set for single backends."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # set by `torch.backends.cuda.matmul.fp32_precision`
        return "medium"


def tensors_in(output: Any) -> Iterator[Tensor]:
    """Yield the tensors of nested tuples, lists and mappings."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping | tuple | list):
        for part in output.values() if isinstance(output, Mapping) else output:
            yield from tensors_in(part)


def _close(a: Tensor, b: Tensor, allowed: float) -> bool:
    """Return whether no entries differ by more; NaN does not, and is refused by name elsewhere."""
    return not bool(((a - b).abs() > allowed).any())
