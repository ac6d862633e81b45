"""The regularised loss of S25 eq. 7 and 11, and K23's others, for every run of a stack at once.

S  runs    N  samples    K  classes    d  feature width    P  numbers per run
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ncpipe.config.arguments import argument_names, call_by_name
from ncpipe.config.loss_specs import Focal, Ldam, LogitAdjusted, Loss, SupCon, name_of, smoothing_of
from ncpipe.config.run import Run
from ncpipe.config.specs import OwnLoss
from ncpipe.config.study import mistake
from ncpipe.datasets.prepared import Prepared, Split
from ncpipe.models.loss_functions import (
    cross_entropy,
    focal,
    half_distance_to,
    half_squared_error,
    label_aware_margins,
    logit_adjusted,
    smoothed,
    supervised_contrast,
)
from ncpipe.models.penalties import head_input_strength, is_penalised, strengths
from ncpipe.system.errors import InputError
from ncpipe.training.stack import Stack

PAIRS = 4_000_000  # similarities of a run that are held at a time, where nothing is learned from them


@dataclass(frozen=True)
class Outputs:
    """Inputs of a loss: logits (S, N, K), labels (S, N), and what some losses read besides.

    labels may be vectors (S, N, K), or tags as 0 and 1, for squared error, pick-all and losses of study.py.
    features (S, N, d). last_weight (S, K, d): of the last layer. head_input (S, N, d'): the features that may
    be penalised. counts (K,): samples of each class in the whole training set.
    """

    logits: Tensor
    labels: Tensor
    features: Tensor | None = None
    last_weight: Tensor | None = None
    head_input: Tensor | None = None
    counts: Tensor | None = None


def fit_times_samples(outputs: Outputs, loss: Loss) -> Tensor:
    """Return N times the loss without penalties, (S,).

    `mse` is |f - y|^2/2, whose mean is S25's MSE; `pick_all` the cross-entropies of all of a sample's tags, a
    mean over samples and not over tags [Li et al. 2024].
    """
    logits, labels, counts = outputs.logits, outputs.labels, outputs.counts
    if isinstance(loss, OwnLoss):
        losses = own_losses(loss, outputs)
        return logits.shape[1] * losses if loss.compares_samples else losses.sum(1)
    if isinstance(loss, SupCon):
        return _mean_contrast_times_samples(outputs, loss)
    if isinstance(loss, Focal):
        alpha = None
        if loss.alpha is not None:  # filled on the device: a step may copy nothing from the host
            alpha = torch.stack([logits.new_full((), factor) for factor in loss.alpha])
        return focal(logits, labels, loss.gamma, alpha).sum(1)
    if isinstance(loss, Ldam):
        assert counts is not None
        return label_aware_margins(logits, labels, counts, loss.max_margin, loss.scale).sum(1)
    if isinstance(loss, LogitAdjusted):
        assert counts is not None
        return logit_adjusted(logits, labels, counts, loss.tau).sum(1)
    if name_of(loss) == "dot_regression":
        assert outputs.last_weight is not None
        reach = outputs.last_weight.shape[2] ** 0.5 * outputs.last_weight[:, 0].norm(dim=1)
        return half_distance_to(logits, labels, reach).sum(1)
    if delta := smoothing_of(loss):
        labels = smoothed(labels, logits.shape[-1], delta, logits)
    if name_of(loss) == "mse":
        return half_squared_error(logits, labels, over=(1, 2))
    return cross_entropy(logits, labels).sum(1)


def _mean_contrast_times_samples(outputs: Outputs, loss: SupCon) -> Tensor:
    """Return N times the mean contrast over the samples that have another of their class in the batch."""
    assert outputs.features is not None
    total = compared = torch.zeros((), dtype=outputs.features.dtype, device=outputs.features.device)
    samples = outputs.labels.shape[1]
    rows = samples if torch.is_grad_enabled() else max(1, PAIRS // samples)
    for start in range(0, samples, rows):
        part = slice(start, start + rows)
        losses, has_other = supervised_contrast(
            outputs.features, outputs.labels, loss.temperature, loss.include_self, part
        )
        total, compared = total + losses.sum(1), compared + has_other.sum(1)
    return samples * total / compared.clamp(min=1)


def own_losses(loss: OwnLoss, outputs: Outputs) -> Tensor:
    """Return what a function of study.py gives: numbers (S, N), or means (S,) if it compares samples.

    It sees one run, without S. On a GPU by vmap, if vmap takes the function. Elsewhere run after run, on
    copies that begin at an aligned address: kernels may sum in another order otherwise, and a run's bytes
    must not depend on its neighbours.
    """
    function, name = loss.study_entry, type(loss).__name__
    names = argument_names(function)
    shared = {"counts": outputs.counts, "spec": loss}
    tensors = {
        "logits": outputs.logits,
        "labels": outputs.labels,
        "features": outputs.features,
        "weight": outputs.last_weight,
    }
    by_run = {name: tensor for name, tensor in tensors.items() if name in names and tensor is not None}

    def of_run(*parts: Tensor) -> Tensor:
        return call_by_name(function, shared | dict(zip(by_run, parts, strict=True)))

    losses = _by_vmap(of_run, list(by_run.values())) if outputs.logits.is_cuda else None
    if losses is None:
        runs = range(len(outputs.logits))
        losses = torch.stack([of_run(*(tensor[run].clone() for tensor in by_run.values())) for run in runs])
    runs_, samples = outputs.logits.shape[:2]
    compares = loss.compares_samples
    if losses.shape != ((runs_,) if compares else (runs_, samples)):
        shape = tuple(losses.shape[1:])
        needed = "the mean over the batch, ()" if compares else f"a number for each sample, ({samples},)"
        raise mistake(loss, f"the loss of {name} has the shape {shape}; expected {needed}")
    return losses


def _by_vmap(function: Callable[..., Tensor], tensors: Sequence[Tensor]) -> Tensor | None:
    """Return function(*tensors) of every run at once; None if it has shapes that depend on data."""
    try:
        return torch.vmap(function)(*tensors)
    except RuntimeError as error:  # as of x[labels == 0], which a plain loop over the runs takes
        if "vmap" not in str(error):
            raise
        return None


def outputs_of(stack: Stack, samples: Split, counts: Tensor | None) -> Outputs:
    """Return what losses read of the runs of a stack on samples. counts: of the whole training set."""
    try:
        logits, features, head_input = stack.forward_with_features(samples)
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise InputError(
            "batch_size: leaves a mini-batch of one sample, which batch norm cannot normalise; take another"
        ) from None
    labels = samples.targets.expand(*logits.shape[:2], *samples.row)
    return Outputs(logits, labels, features, stack.last_weight, head_input, counts)


def concatenate(parts: Sequence[Outputs]) -> Outputs:
    """Return the outputs of several batches as those of one, without what only penalties read."""
    features = [part.features for part in parts if part.features is not None]
    return Outputs(
        torch.cat([part.logits for part in parts], 1),
        torch.cat([part.labels for part in parts], 1),
        torch.cat(features, 1),
        parts[0].last_weight,
        counts=parts[0].counts,
    )


def compares_samples(loss: Loss) -> bool:
    """Return whether a sample's loss depends on the others of its batch."""
    return isinstance(loss, SupCon) or (isinstance(loss, OwnLoss) and loss.compares_samples)


def singleton_class_error(loss: Loss, data: Prepared) -> str:
    """Return why a class has nothing to be compared with, or no alpha of its own; '' if all have."""
    if isinstance(loss, Focal) and loss.alpha is not None and len(loss.alpha) != data.classes:
        return f"alpha: {len(loss.alpha)} factors for {data.classes} classes; list one for each"
    if not isinstance(loss, SupCon) or loss.include_self:
        return ""
    counts = torch.bincount(data.train.labels, minlength=data.classes)
    if counts.min() > 1:
        return ""
    return (
        f"supcon compares samples of one class, and class {int(counts.argmin())} has {int(counts.min())}; "
        "take more of it, or `include_self: true`"
    )


def penalty_strengths(stack: Stack, runs: Sequence[Run]) -> Tensor:
    """Return lambda of every number of every run, (S, P): lambda_L on W_L, 0 on what is not penalised."""
    roles, dimensions = stack.roles, stack.dimensions
    return stack.per_parameter([strengths(roles, dimensions, r.spec.penalty, r.depth) for r in runs])


def head_input_strengths(stack: Stack, runs: Sequence[Run]) -> Tensor | None:
    """Return lambda_H (S,) of the features that are penalised; None where no run penalises any."""
    penalised = {r.spec.penalises_features for r in runs}
    assert len(penalised) == 1, "a stack does not mix runs with and without a penalty of features"
    lambdas = [head_input_strength(r.spec, r.depth) for r in runs]
    return stack.values.new_tensor(lambdas) if True in penalised else None


def decayed_numbers(stack: Stack, runs: Sequence[Run]) -> Tensor:
    """Return 1 (S, P) on every number that is penalised, whatever its lambda; there AdamW may decay."""
    roles, dimensions = stack.roles, stack.dimensions
    return stack.per_parameter(
        [
            {name: float(is_penalised(roles[name], dimensions[name], r.spec.penalty)) for name in roles}
            for r in runs
        ]
    )


def penalty(values: Tensor, strengths: Tensor) -> Tensor:
    """Return lambda/2 |theta_bar|^2 of each run: values, strengths (S, P) -> (S,)."""
    return (strengths * values.square()).sum(1) / 2
