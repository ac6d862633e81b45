"""Samples that a user brings as arrays in one file: vectors, images or token ids."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ncpipe.config.sources.arrays import ArraysData
from ncpipe.config.study import call, mistake
from ncpipe.config.study_files import FETCH
from ncpipe.datasets.array_files import Names, named_tensors, read_arrays
from ncpipe.datasets.facts import describe
from ncpipe.datasets.outliers import with_outliers
from ncpipe.datasets.prepared import FORMS, Prepared, Split, draw_balanced
from ncpipe.datasets.targets import check_not_constant, check_tags, check_vectors
from ncpipe.system.console import say
from ncpipe.system.errors import InputError
from ncpipe.system.randomness import global_generators, seeded_generator

SHAPES = {"vector": "(N, D)", "image": "(N, channels, height, width)", "tokens": "(N, C)"}
COLOURS = (1, 3, 4)  # channels of grey images, RGB and RGBA


def _count_classes(labels: Tensor) -> int:
    """Return K = 1 + the largest label."""
    _check_labels(labels, "labels")
    classes = int(labels.max()) + 1
    if classes < 2:
        raise InputError("labels name 1 class; collapse needs at least 2")
    if classes > len(labels):
        raise InputError(f"labels go up to {classes - 1}, but only {len(labels)} samples have one")
    return classes


def _check_labels(labels: Tensor, name: str) -> None:
    if labels.dim() != 1 or not len(labels):
        raise InputError(f"{name} has shape {tuple(labels.shape)}; expected (N,) with N > 0")
    if labels.is_floating_point():
        raise InputError(f"{name} is of type {_type(labels)}; expected whole numbers, one for each class")


OUTLIERS = "ood_inputs"
NAMES = Names(
    ("inputs", "labels"),
    ("test_inputs", "test_labels", "lengths", "test_lengths", OUTLIERS, "ood_lengths"),
    {},
)


def prepare_arrays(spec: ArraysData, *_: object) -> Prepared:
    """Return the draw that `spec` asks of its file; InputError names the file and the array at fault."""
    return _named(spec.file, spec, spec, *read_arrays(Path(spec.file), _names(spec)))


def prepare_own(spec: Any) -> Prepared:
    """Return all the samples of arrays that a function of study.py gives, as they are.

    spec: its record below `data`. Raises InputError that names the function, or its line where it raises.
    """
    if spec.kind not in SHAPES:
        raise mistake(spec, f"the kind of {type(spec).__name__} has to be one of {', '.join(SHAPES)}")
    function = spec.study_entry
    where = str(mistake(function, f"what {function.__name__} gives", "DATA"))
    seed = getattr(spec, "seed", None)
    with global_generators(seed if isinstance(seed, int) else 0, "data"):
        arrays = call(function, spec, stage=FETCH)
    if not isinstance(arrays, Mapping):
        raise InputError(f"{where} is of type {type(arrays).__name__}; expected arrays by name")
    form = ArraysData("arrays", "", spec.kind, None, None, 0, "none", targets=spec.targets)
    tensors, unread = named_tensors(where, arrays, _names(form))
    return _named(where, spec, form, tensors, unread)


def _names(spec: ArraysData) -> Names:
    if spec.targets == "classes":
        return NAMES
    answers = FORMS[spec.targets].array
    return Names(("inputs", answers), ("test_inputs", f"test_{answers}", "lengths", "test_lengths"), {})


def _named(where: str, spec: Any, form: ArraysData, arrays: dict[str, Tensor], unread: list[str]) -> Prepared:
    """Return prepared arrays; an InputError about them begins with `where` they come from."""
    if unread:
        known = ", ".join(_names(form).known)
        raise InputError(f"{where}: nothing reads {', '.join(unread)}; leave it out (known: {known})")
    try:
        return _prepare(spec, form, arrays)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _prepare(source: Any, spec: ArraysData, arrays: dict[str, Tensor]) -> Prepared:
    """Prepare arrays. source: the record that is recorded; spec: how its arrays are to be taken."""
    answers = FORMS[spec.targets].array
    if spec.targets == "classes":
        classes = _count_classes(arrays[answers])
    else:
        CHECKS[spec.targets][0](arrays[answers], answers)
        classes = arrays[answers].shape[1]
    samples = _checked(spec, arrays, "", classes)
    train = samples[_draw(spec, samples, classes, "train")]
    sizes, test = {"train": len(samples)}, None
    if "test_inputs" in arrays or f"test_{answers}" in arrays:
        for name, other in (("test_inputs", f"test_{answers}"), (f"test_{answers}", "test_inputs")):
            if name not in arrays:
                raise InputError(f"has {other} and no {name}; give both or neither")
        held_out = _checked(spec, arrays, "test_", classes)
        sizes["test"] = len(held_out)
        _check_shape("test_inputs", held_out, samples)
        test = held_out[_draw(spec, held_out, classes, "test")]
    elif spec.test_per_class is not None:
        raise InputError("has no test_inputs; write null for data.test_per_class")
    ood = None
    if OUTLIERS in arrays:  # no class has a number there
        unlabelled = arrays | {"ood_labels": torch.zeros(arrays[OUTLIERS].shape[:1], dtype=torch.int64)}
        ood = _checked(spec, unlabelled, "ood_", 1)
        _check_shape(OUTLIERS, ood, samples)
    raw = {f"{spec.file or source.source}/{name}": _digest(array) for name, array in arrays.items()}
    rule: dict[str, object] = {"rule": spec.normalisation}
    if spec.normalisation == "standardise":
        mean, std = _constants(spec, train.inputs)
        rule |= {"mean": mean.ravel().tolist(), "std": std.ravel().tolist()}
        train = replace(train, inputs=_normalise(train.inputs, mean, std))
        test, ood = (
            None if split is None else replace(split, inputs=_normalise(split.inputs, mean, std))
            for split in (test, ood)
        )
    facts = describe(source.source, classes, getattr(source, "seed", None), train, test, raw)
    facts |= {"in_file": sizes, "normalisation": rule}
    vocabulary = None
    if spec.kind == "tokens":
        inputs = ("inputs", "test_inputs", OUTLIERS)
        vocabulary = 1 + max(int(arrays[name].max()) for name in inputs if name in arrays)
    data = Prepared(spec.kind, classes, vocabulary, train, test, facts)
    return data if ood is None else with_outliers(OUTLIERS, data, ood, {})


def _check_shape(name: str, split: Split, like: Split) -> None:
    shape, expected = (tuple(samples.inputs.shape[1:]) for samples in (split, like))
    if shape != expected:
        raise InputError(f"{name} has samples of shape {shape}, inputs of shape {expected}")


def _draw(spec: ArraysData, samples: Split, classes: int, split: str) -> Tensor:
    if samples.row:
        return torch.arange(len(samples))
    per_class = spec.per_class if split == "train" else spec.test_per_class
    generator = seeded_generator(spec.seed, f"data {split}")
    return draw_balanced(samples.labels, classes, per_class, generator, split)


def _checked(spec: ArraysData, arrays: dict[str, Tensor], prefix: str, classes: int) -> Split:
    """Return one split as its arrays have it, inputs float32 or, of tokens, int64."""
    names = [f"{prefix}{name}" for name in ("inputs", FORMS[spec.targets].array, "lengths")]
    inputs, labels, lengths = (arrays.get(name) for name in names)
    assert inputs is not None
    assert labels is not None
    shape = tuple(inputs.shape)
    if len(shape) != SHAPES[spec.kind].count(",") + 1 or 0 in shape:
        raise InputError(
            f"{names[0]} has shape {shape}; kind: {spec.kind} takes {SHAPES[spec.kind]}, none of them 0"
        )
    if spec.kind == "image" and shape[1] == shape[2] != shape[3] and shape[3] in COLOURS:
        raise InputError(
            f"{names[0]} has shape {shape}, whose channels seem to be last; kind: image takes "
            f"{SHAPES['image']}, as inputs.transpose(0, 3, 1, 2) is"
        )
    CHECKS[spec.targets][0](labels, names[1])
    if len(labels) != len(inputs):
        raise InputError(
            f"{names[0]} has {len(inputs)} samples and {names[1]} {len(labels)}; they belong together"
        )
    form, (_, checked) = FORMS[spec.targets], CHECKS[spec.targets]
    labels = checked(labels, names[1], classes)
    if spec.kind == "tokens":
        ids = _checked_ids(inputs, names[0])
        return form(ids, labels, _checked_lengths(inputs, lengths, names[2]))
    if lengths is not None:
        raise InputError(f"{names[2]} does not apply to kind: {spec.kind}; leave it out")
    if spec.normalisation == "standardise":  # rounded once, at its end
        return form(_checked_finite(inputs.double(), names[0]), labels)
    return form(_as_float32(inputs, names[0]), labels)


def _checked_vectors(targets: Tensor, name: str, length: int) -> Tensor:
    """Return targets (N, t) as float32; of one value alone there is nothing to learn."""
    if targets.shape[1] != length:
        raise InputError(f"{name} has {targets.shape[1]} numbers a sample, and targets {length}")
    values = _as_float32(targets, name)
    if name == "targets":
        check_not_constant(values, name)
    return values


def _checked_tags(tags: Tensor, name: str, classes: int) -> Tensor:
    """Return tags (N, K) as float32; each class needs a sample of its tag alone, which metrics are about."""
    if tags.shape[1] != classes:
        raise InputError(f"{name} has {tags.shape[1]} columns, and tags {classes}")
    if len(missing := torch.nonzero(~tags[tags.sum(1) == 1].bool().any(0))):
        raise InputError(
            f"{name}: no sample has the tag {int(missing[0])} (from 0) alone; give at least one, which the "
            "means of classes are of"
        )
    return tags.float()


def _checked_classes(labels: Tensor, name: str, classes: int) -> Tensor:
    """Return labels (N,) as int64, of which every class has one."""
    labels = labels.long()
    if (least := int(labels.min())) < 0 or int(labels.max()) >= classes:
        wrong = least if least < 0 else int(labels.max())
        raise InputError(f"{name} has a label {wrong}; classes are numbered 0 to {classes - 1}")
    counts = torch.bincount(labels, minlength=classes)
    if len(empty := torch.nonzero(counts == 0)):
        raise InputError(
            f"{name} has no sample of class {int(empty[0])}; each of 0 to {classes - 1} needs one"
        )
    return labels


# By what the targets are: a check of type and shape, and the labels of a split from the array.
CHECKS: dict[str, tuple[Callable[[Tensor, str], None], Callable[[Tensor, str, int], Tensor]]] = {
    "classes": (_check_labels, _checked_classes),
    "vectors": (check_vectors, _checked_vectors),
    "tags": (check_tags, _checked_tags),
}


def _as_float32(inputs: Tensor, name: str) -> Tensor:
    return _checked_finite(inputs.float(), name)


def _checked_finite(values: Tensor, name: str) -> Tensor:
    finite = values.flatten(1).isfinite().all(1)
    if not bool(finite.all()):
        row = int(torch.nonzero(~finite)[0])
        raise InputError(f"{name} has NaN, inf or what float32 does not hold, first in sample {row} (from 0)")
    return values


def _checked_ids(inputs: Tensor, name: str) -> Tensor:
    if inputs.is_floating_point() or inputs.dtype == torch.bool:
        raise InputError(f"{name} is of type {_type(inputs)}; token ids are whole numbers")
    if int(inputs.min()) < 0:
        raise InputError(f"{name} has a token id {int(inputs.min())}; ids begin at 0")
    return inputs.long()


def _checked_lengths(inputs: Tensor, lengths: Tensor | None, name: str) -> Tensor:
    """Return (N,) int64, the real tokens of each sequence; all of them if nothing says how many."""
    samples, context = inputs.shape
    if lengths is None:
        return torch.full((samples,), context)
    if lengths.is_floating_point() or tuple(lengths.shape) != (samples,):
        raise InputError(
            f"{name} is {_type(lengths)} {tuple(lengths.shape)}; expected whole numbers ({samples},)"
        )
    if int(lengths.min()) < 1 or int(lengths.max()) > context:
        raise InputError(f"{name} goes from {int(lengths.min())} to {int(lengths.max())}, not 1 to {context}")
    return lengths.long()


def _constants(spec: ArraysData, inputs: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Mean and population standard deviation of each channel or coordinate of float64, as they broadcast.

    The deviation of a constant one is 1, as scikit-learn's StandardScaler has it, and a line says so.
    """
    over = (0, 2, 3) if spec.kind == "image" else 0
    values = inputs.numpy()  # whose sums do not depend on the number of threads
    mean, std = values.mean(over, keepdims=True), values.std(over, keepdims=True)
    constant = (values == values[:1, :, :1, :1] if spec.kind == "image" else values == values[:1]).all(over)
    if constant.any():
        word = "channel" if spec.kind == "image" else "coordinate"
        first = int(np.flatnonzero(constant)[0])
        say(
            f"{spec.file}: {int(constant.sum())} of {constant.size} {word}s are constant in the drawn "
            f"training samples, the first is {first} (from 0); they are divided by 1 in place of 0"
        )
        std = np.where(constant.reshape(std.shape), 1.0, std)
    return mean, std


def _normalise(inputs: Tensor, mean: np.ndarray, std: np.ndarray) -> Tensor:
    return torch.from_numpy(((inputs.numpy() - mean) / std).astype(np.float32))


def _digest(array: Tensor) -> str:
    """Return a digest of type, shape and values: a file that was only written anew has the same."""
    head = f"{_type(array)} {tuple(array.shape)}\0".encode()
    content = array.contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return f"sha256:{hashlib.sha256(head + content).hexdigest()}"


def _type(array: Tensor) -> str:
    return str(array.dtype).removeprefix("torch.")
