"""Check the assumptions of S25's theorems for a run and its data, one by one.

N  samples    K  classes    d  width    V  vocabulary
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ncpipe.study import InputError, Prepared, Run, Split, TrainedRun, gufm

LEAST_WIDTH = 4  # on a circle one sample cannot pass another


@dataclass(frozen=True)
class Assumption:
    """One condition: its source in S25, its statement here, and the problem, or None where it holds."""

    source: str
    statement: str
    problem: str | None


def paper_loss(run: Run) -> Literal["ce", "mse"]:
    """Return the run's loss if it is one of the paper's with a learned last layer; else raise InputError."""
    plain = run.spec.loss_name in ("ce", "mse") and not getattr(run.spec.loss, "smoothing", 0)
    if not plain or run.spec.model.has_fixed_classifier:
        raise InputError(f"{run.name}: S25's theorems are for plain `ce` and `mse` and a learned classifier")
    if run.spec.data.targets != "classes" or run.spec.data.kind == "next_tokens":
        raise InputError(f"{run.name}: S25's theorems are for one class for each sample")
    return "ce" if run.spec.loss_name == "ce" else "mse"


def paper_model(run: Run) -> Any:
    """Return the keys of the run's network if the proofs have its architecture; else raise InputError."""
    model = run.spec.model
    if model.architecture.startswith(("L-RN", "L-T")):
        return model
    raise InputError(
        f"{run.name}: the proofs' networks are L-RN and L-T networks; none is known for {model.architecture}"
    )


def is_transformer(run: Run) -> bool:
    """Return whether a run's network is one of the transformers, L-T11 to L-T22."""
    return run.spec.model.architecture.startswith("L-T")


def check_assumptions(run: Run, data: Prepared) -> None:
    """Raise InputError that names the first condition of Theorems 4.3 and 4.6 that is not met."""
    for assumption in assumptions(run, data):
        if assumption.problem is not None:
            raise InputError(
                f"{run.name}: {assumption.source} asks for {assumption.statement}; {assumption.problem}"
            )


def assumptions(run: Run, data: Prepared) -> Iterator[Assumption]:
    """Yield the conditions of Theorems 4.3 and 4.6 and of their constructions, with what fails of each."""
    model, _ = paper_model(run), paper_loss(run)
    counts = torch.bincount(data.train.labels, minlength=data.classes)
    sizes, width = f"{int(counts.min())} to {int(counts.max())}", model.width
    unequal = f"they have {sizes} samples" if counts.min() < counts.max() else None
    yield Assumption("sec. 3", "classes of one size", unequal)
    yield Assumption("Assumption 4.4", "a label that the sample decides", _ambiguity(run, data))
    narrow = f"model.width is {width}"
    yield Assumption("Theorem 4.3", f"width d >= {LEAST_WIDTH}", narrow if width < LEAST_WIDTH else None)
    if data.vocabulary is not None:
        least = 2 * data.vocabulary + 2
        statement = f"width d >= 2V + 2 = {least} on token sequences (for the proof; training needs less)"
        yield Assumption("Theorem 4.3", statement, narrow if width < least else None)
    yield Assumption("Theorem 4.3", "L*_GUFM > 0, attained", _no_optimum(run, data))
    other = "the construction here is not the one of App. B.2; use norm: post"
    yield Assumption("App. A", "post-LN blocks", None if model.norm == "post" else other)
    if model.mlp_width is not None:
        narrow = f"model.mlp_width is {model.mlp_width}, set it to d"
        statement = "two-layer blocks at least as wide inside as out"
        yield Assumption("App. A", statement, narrow if model.mlp_width < width else None)


def distinct_samples(run: Run, data: Prepared) -> tuple[Split, Tensor]:
    """Return the training samples without repetitions, by class, and each sample's row among them.

    The rows are (N,). Token sequences are the same context if they agree up to their last real token. Inputs
    are float64.
    """
    samples = TrainedRun(run, {}, prepared=data).samples(data.train)
    rows = torch.cat([samples.labels.unsqueeze(1).double(), _without_padding(samples)], 1)
    if samples.lengths is not None:
        rows = torch.cat([rows, samples.lengths.unsqueeze(1).double()], 1)
    unique, row_of = torch.unique(rows, dim=0, return_inverse=True)
    first = torch.full((len(unique),), len(rows)).scatter_reduce(0, row_of, torch.arange(len(rows)), "amin")
    return samples[first], row_of


def _without_padding(samples: Split) -> Tensor:
    """Return the inputs as rows (N, ...) float64, with -1 for padding."""
    rows = samples.inputs.flatten(1).double()
    if samples.lengths is None:
        return rows
    return rows.masked_fill(torch.arange(rows.shape[1]) >= samples.lengths.unsqueeze(1), -1)


def _ambiguity(run: Run, data: Prepared) -> str | None:
    distinct, row_of = distinct_samples(run, data)
    _, where, counts = torch.unique(
        _without_padding(distinct), dim=0, return_inverse=True, return_counts=True
    )
    if (counts == 1).all():
        return None
    pair = torch.nonzero(where == torch.nonzero(counts > 1)[0]).flatten()[:2]
    first, second = (int(torch.nonzero(row_of == row)[0]) for row in pair)
    labels = [int(distinct.labels[row]) for row in pair]
    return f"training samples {first} and {second} are equal but of classes {labels[0]} and {labels[1]}"


def _no_optimum(run: Run, data: Prepared) -> str | None:
    model, strength = paper_model(run), run.spec.penalty.last_strength(run.depth)
    try:
        gufm.check_range(paper_loss(run), data.classes, model.width, strength, model.last_bias)
    except InputError as error:
        return str(error)
    return None
