"""Measure the features in one file, an .npz or .safetensors of named arrays."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from ncpipe.datasets.array_files import Names, read_arrays
from ncpipe.metrics.checks import data_warnings
from ncpipe.metrics.measurements import Measurements
from ncpipe.metrics.regression import measure_regression
from ncpipe.metrics.table import TRAIN, measure
from ncpipe.metrics.vocabulary import DECISIONS, measure_token_arrays
from ncpipe.system.errors import InputError, suggest, warn

OPTIONAL = ("weight", "bias", "test_features")
OUTLIERS = "ood_features"
LABELS = ("labels", "test_labels")
VECTORS = ("targets", "test_targets")  # in place of labels, for regression
TAGS = ("tags", "test_tags")  # in place of labels, where a sample may have several classes
# The names of these arrays in the pipeline's files below data/features.
PIPELINE = {
    f"{s}.{kind}": f"{p}{kind}"
    for s, p in (("train", ""), ("test", "test_"))
    for kind in ("features", LABELS[0], VECTORS[0], TAGS[0])
} | {"ood.features": OUTLIERS}


NAMES = Names(
    ("features",),
    (*LABELS[:1], *OPTIONAL, *LABELS[1:], OUTLIERS, *VECTORS, *TAGS),
    PIPELINE,
    passed_over=("penalty.", "gradient.", "target.", "ood.labels", "layers/", "ranks/"),
)


@dataclass(frozen=True)
class MeasuredFile:
    """The values of a file's arrays, with warnings of what says little and of arrays that nothing reads.

    facts: the sizes of what was measured on the training split: samples, width and classes, or target_length.
    """

    values: Measurements
    warnings: list[str]
    facts: dict[str, int]


def measure_file(
    path: str | Path,
    *,
    classes: Literal["all", "present"] = "all",
    min_per_class: int = 1,
    decisions: int = DECISIONS,
    shots: Sequence[int] = (),
) -> Measurements:
    """Return every metric of the arrays in an .npz or .safetensors file.

    Args:
        path: holds features (N, d) and labels (N,); where there are any, weight (K, d), bias (K,),
            test_features (M, d) and test_labels (M,), and ood_features (m, d) of other data. A study's files
            below data/features do. Of regression: targets (N, t) and test_targets (M, t) in place of labels;
            where a sample may have several classes: tags (N, K) and test_tags (M, K) of 0 and 1.
        classes: `all`, each with a sample; `present` for those with at least `min_per_class` samples, as
            where classes are tokens of a vocabulary; so too with min_per_class above 1.
        decisions: samples that NC4, `nc3_cosine` and margins are taken on where classes are `present`.
        shots: of each class, for few-shot errors and their bounds, as in `measure`; with all classes alone.

    Raises InputError for a file that cannot be read or measured, and warns (MeasurementWarning) of what can
    be measured but says little.
    """
    if classes not in ("all", "present"):
        raise InputError(f"classes: {classes!r} is unknown; take 'all' or 'present'")
    present = classes == "present" or min_per_class != 1
    measured = measure_named(Path(path), (min_per_class, decisions) if present else None, shots)
    for message in measured.warnings:
        warn(message)
    return measured.values


def measure_named(
    path: Path, present: tuple[int, int] | None = None, shots: Sequence[int] = ()
) -> MeasuredFile:
    """Return the same with everything that `ncpipe metrics` prints of it.

    present: least samples of a class and decisions, of `present` classes; None for all classes. shots: as in
    `measure_file`.
    """
    arrays, ignored = read_arrays(path, NAMES)
    answers = _answers(path, arrays, ignored, present)
    if shots and (answers != LABELS or present is not None):
        given = answers[0] if answers != LABELS else "`present` classes"
        raise InputError(
            f"{path}: shots need labels of classes that are all there; they were given with {given}"
        )
    try:
        if answers == VECTORS:
            values = measure_regression(*_in_order(arrays, VECTORS))
        elif answers == TAGS:
            values = measure(*_in_order(arrays, TAGS))
        elif present is None:
            values = measure(*_in_order(arrays, LABELS), shots=shots, ood=arrays.get(OUTLIERS))
        else:
            least, decisions = present
            values = measure_token_arrays(
                *_in_order(arrays, LABELS), min_per_class=least, decisions=decisions
            )
    except InputError as error:
        hint = f"; nothing reads {ignored[0]!r}; {suggest(ignored[0], NAMES.known)}" if ignored else ""
        raise InputError(f"{path}: {error}{hint}") from None
    warnings = list(values.warnings)
    if ignored:
        warnings.insert(0, f"ignored {', '.join(ignored)}; the known arrays are {', '.join(NAMES.known)}")
    samples, width = arrays["features"].shape
    if present is not None:
        labels = arrays["labels"].long()
        counts = labels[labels >= 0].bincount()
        numbers = torch.nonzero(counts >= present[0]).flatten()
        warnings += data_warnings(TRAIN, counts[numbers], width, numbers)
        counted = values.select(split=TRAIN)
        samples, classes = int(counted["tokens"]), int(counted["classes"])
    else:
        classes = len(values.by_class()["class"]) if answers == LABELS else arrays[answers[0]].shape[1]
    count = "target_length" if answers == VECTORS else "classes"
    return MeasuredFile(values, warnings, {"samples": samples, "width": width, count: classes})


def _answers(
    path: Path, arrays: dict[str, Tensor], ignored: Sequence[str], present: tuple[int, int] | None
) -> tuple[str, str]:
    """Return the names of what is predicted; raise InputError unless the file has one kind of it."""
    kinds = {names: [name for name in names if name in arrays] for names in (LABELS, VECTORS, TAGS)}
    answers = [names[0] for names in kinds.values() if names]
    others = [name for name in answers if name not in LABELS]
    if len(answers) > 1:
        raise InputError(f"{path}: has {answers[0]} and {answers[1]}; leave out one of them")
    if others and present is not None:
        raise InputError(f"{path}: has {others[0]}, where classes cannot be chosen")
    if OUTLIERS in arrays and (others or present is not None):
        raise InputError(f"{path}: has {OUTLIERS}, whose scores need labels and every class; leave it out")
    if not {names[0] for names in kinds} & arrays.keys():
        raise InputError(f"{path}: has no 'labels'; it has {', '.join([*arrays, *ignored])}")
    return next(names for names, stored in kinds.items() if stored)


def _in_order(
    arrays: dict[str, Tensor], targets: tuple[str, str]
) -> tuple[Tensor, Tensor, *tuple[Tensor | None, ...]]:
    """Return the arrays in the order of `measure` and `measure_regression`."""
    optional = (arrays.get(name) for name in (*OPTIONAL, targets[1]))
    return arrays["features"], arrays[targets[0]], *optional
