"""A data set as the pipeline stores it: tensors of a balanced draw, their meaning, and a checksum."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from ncpipe.config.architectures.architecture import Kind
from ncpipe.config.reading import Reading
from ncpipe.datasets.stored import FACTS, TENSORS, read_facts, store
from ncpipe.datasets.targets import wrong_tags
from ncpipe.system.artifacts import sha256_of
from ncpipe.system.errors import InputError
from ncpipe.system.machine import free_memory
from ncpipe.system.tensor_files import load_tensors, save_tensors

COPIES = 3  # of samples in float64, while they are drawn


@dataclass(frozen=True)
class Split:
    """Samples of one split.

    inputs: `vector` (N, D) float32, `image` (N, channels, height, width) float32, `tokens` (N, C) int64
    padded on the right, `free` (N,) int64, the samples' numbers. labels: (N,) int64 in 0..K-1. lengths: (N,)
    int64, the real tokens of each sequence; None unless tokens.
    """

    sides: ClassVar[int] = 1  # of the labels of one selection
    array: ClassVar[str] = "labels"  # the name of the labels in files of arrays

    inputs: Tensor
    labels: Tensor
    lengths: Tensor | None = None

    def __len__(self) -> int:
        return self.labels.shape[-self.sides]

    @property
    def targets(self) -> Tensor:
        """(N,), or (S, B) of selections side by side: the label of each prediction."""
        return self.labels

    @property
    def row(self) -> tuple[int, ...]:
        """Return the shape of the target of one prediction: (), or (K,) where it is a vector or tags."""
        return ()

    def counts(self, classes: int) -> Tensor | None:
        """Return the samples (K,) of each class; None where a sample has no class."""
        return torch.bincount(self.targets, minlength=classes)

    def misses(self, logits: Tensor) -> Tensor:
        """Return which predictions are wrong, (..., N) of logits (..., N, K); NaN where none can be."""
        return logits.argmax(-1) != self.targets

    def of_classes(self) -> "Split | None":
        """Return the samples that have a class, with labels (N,); None where none can have one."""
        return self

    @property
    def predictions(self) -> int:
        """How many there are, of one selection."""
        return self.targets.shape[-1]

    def __getitem__(self, index: slice | Tensor) -> "Split":
        """Return the samples at `index`, in its order; an index (S, B) gives S selections side by side."""
        lengths = None if self.lengths is None else self.lengths[index]
        return replace(self, inputs=self.inputs[index], labels=self.labels[index], lengths=lengths)

    def parts(self, most: int) -> Iterator["Split"]:
        """Yield the samples in order, in as few parts of at most `most` as there can be, about equally large.

        All parts but the last are multiples of 16 samples where `most` allows it: then the numbers of each of
        several stacked runs start on a 64-byte boundary, whatever the width. Of S selections side by side,
        with labels (S, B), each part has as many of every selection.
        """
        if len(self) <= most:
            yield self
            return
        size = math.ceil(len(self) / math.ceil(len(self) / most))
        size = min(-(-size // 16) * 16, most // 16 * 16 or most)
        axis = self._axis
        lengths = [] if self.lengths is None else self.lengths.split(size, axis)
        for index, (inputs, labels) in enumerate(
            zip(self.inputs.split(size, axis), self.labels.split(size, axis), strict=True)
        ):
            yield replace(self, inputs=inputs, labels=labels, lengths=lengths[index] if lengths else None)

    @property
    def _axis(self) -> int:
        """Where the samples lie."""
        return self.labels.dim() - self.sides

    @property
    def side_by_side(self) -> bool:
        """Whether these are S selections side by side."""
        return self._axis == 1


@dataclass(frozen=True)
class TokenSplit(Split):
    """Sequences of one split, each position of which predicts a token of its own.

    inputs: `next_tokens` (N, C) int64. labels: (N, C) int64, the token that follows each.
    """

    sides = 2

    @property
    def targets(self) -> Tensor:
        """(N*C,), or (S, B*C)."""
        return self.labels.flatten(-2)


@dataclass(frozen=True)
class VectorSplit(Split):
    """Samples of one split, each with a vector to be predicted in place of a class.

    labels: (N, t) float32.
    """

    sides = 2
    array = "targets"

    @property
    def predictions(self) -> int:
        return len(self)

    @property
    def row(self) -> tuple[int, ...]:
        return tuple(self.labels.shape[-1:])

    def counts(self, classes: int) -> None:
        return None

    def misses(self, logits: Tensor) -> Tensor:
        return logits.new_full(logits.shape[:-1], math.nan)

    def of_classes(self) -> Split | None:
        return None


@dataclass(frozen=True)
class TagSplit(VectorSplit):
    """Samples of one split, each with one or several of the K classes, its tags.

    labels: (N, K) float32 of 0 and 1.
    """

    array = "tags"

    def misses(self, logits: Tensor) -> Tensor:
        return wrong_tags(logits, self.labels)

    def of_classes(self) -> Split:
        """Return the samples of one tag, as samples of that class."""
        alone = self.labels.sum(1) == 1
        lengths = None if self.lengths is None else self.lengths[alone]
        return Split(self.inputs[alone], self.labels[alone].argmax(1), lengths)


FORMS = {"classes": Split, "vectors": VectorSplit, "tags": TagSplit}  # by what a data source calls `targets`


@dataclass(frozen=True)
class Prepared:
    """A prepared data set.

    classes: K, or t where the targets are vectors: the outputs of a network. vocabulary: number of token
    ids, None unless tokens. test: None without a test split, of which nothing is asked then. facts: what was
    done to the raw data (source, checksums, normalisation constants),
    as plain JSON values. checksum: sha256 of the tensors, empty before it is written. true_labels (N,): of
    the training samples, where those that they are given are noisy; else None. target: samples of classes
    that the network is not trained on, numbered on their own, where there are such. ood: samples of other
    data, whose labels mean nothing, where there are such.
    """

    kind: Kind
    classes: int
    vocabulary: int | None
    train: Split
    test: Split | None
    facts: Mapping[str, object]
    checksum: str = ""
    true_labels: Tensor | None = None
    target: Split | None = None
    ood: Split | None = None

    def splits(self) -> Iterator[tuple[str, Split]]:
        """Return the splits that there are, by name."""
        yield "train", self.train
        if self.test is not None:
            yield "test", self.test

    def measured(self) -> Iterator[tuple[str, Split]]:
        """Return the splits to measure; with noisy labels the training samples by their true ones too."""
        yield from self.splits()
        if self.true_labels is not None:
            yield "true_labels", Split(self.train.inputs, self.true_labels, self.train.lengths)


def write_prepared(folder: Path, data: Prepared) -> None:
    """Write `data` as `folder`, whole or not at all."""
    tensors = {
        f"{name}.{part}": tensor.contiguous()
        for name, split in (*data.splits(), ("target", data.target), ("ood", data.ood))
        if split is not None
        for part, tensor in (
            ("inputs", split.inputs),
            ("labels", split.labels.bool() if isinstance(split, TagSplit) else split.labels),
            ("lengths", split.lengths),
        )
        if tensor is not None
    }
    if data.true_labels is not None:
        tensors["train.true_labels"] = data.true_labels.contiguous()
    store(
        folder, lambda path: save_tensors(tensors, path), data.kind, data.classes, data.vocabulary, data.facts
    )


def read_prepared(folder: Path) -> Prepared:
    """Read what `write_prepared` wrote; InputError if a file is missing, damaged or not the one it was."""
    facts = read_facts(folder)
    path = folder / TENSORS
    if not path.is_file():
        raise InputError(f"{path}: not found; run dvc repro (stage fetch)")
    reading = Reading()
    reading.mark(path)
    if sha256_of(path) != facts["checksum"]:
        raise InputError(f"{path}: damaged (checksum differs from {FACTS}); run ncpipe repair {folder}")
    tensors = load_tensors(path)
    reading.check()  # they are what was compared

    def split(name: str) -> Split:
        labels = tensors[f"{name}.labels"]
        form = TokenSplit if facts["kind"] == "next_tokens" else Split
        form = {torch.bool: TagSplit, torch.float32: VectorSplit}.get(labels.dtype, form)
        labels = labels.float() if form is TagSplit else labels
        return form(tensors[f"{name}.inputs"], labels, tensors.get(f"{name}.lengths"))

    return Prepared(
        facts["kind"],
        facts["classes"],
        facts["vocabulary"],
        split("train"),
        split("test") if "test.labels" in tensors else None,
        facts["facts"],
        facts["checksum"],
        tensors.get("train.true_labels"),
        split("target") if "target.labels" in tensors else None,
        split("ood") if "ood.labels" in tensors else None,
    )


def draw_balanced(
    labels: Tensor, classes: int, per_class: int | None, generator: torch.Generator, split: str
) -> Tensor:
    """Return indices of `per_class` samples of every class, ordered by class; None takes all, in order.

    labels: (N,) int64. Raises InputError that names the class with too few samples.
    """
    if per_class is None:
        return torch.arange(len(labels))
    chosen = []
    for label in range(classes):
        members = torch.nonzero(labels == label).flatten()
        if len(members) < per_class:
            raise InputError(
                f"class {label} of the {split} split has {len(members)} samples, fewer than {per_class}; "
                f"lower data.{'per_class' if split == 'train' else 'test_per_class'}"
            )
        chosen.append(members[torch.randperm(len(members), generator=generator)[:per_class]])
    return torch.cat(chosen)


def check_memory(samples: int, dimension: int, numbers: int, keys: str) -> None:
    """Raise InputError, which names the keys, if samples to be drawn do not fit into memory.

    numbers: float64 numbers of a sample, of which there are a few copies while they are drawn.
    """
    need, free = COPIES * 8 * samples * numbers, free_memory()
    if need > free:
        raise InputError(
            f"data: {samples} samples of {dimension} coordinates take about {need / 1e9:.3g} GB of memory to "
            f"make, and {free / 1e9:.3g} GB are free; make {keys} smaller"
        )
