"""The regularised loss of S25 eq. 7 and 11, and K23's others, for every run of a stack at once.

S  runs    N  samples    K  classes    d  feature width    P  numbers per run
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from ncpipe.config.arguments import argument_names, call_by_name
from ncpipe.config.experiment import Experiment
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


def sum_of_cross_entropies(outputs: Outputs, loss: Loss) -> Tensor:
    """Return the cross-entropies summed over samples, (S,)."""
    return cross_entropy(outputs.logits, _targets(outputs, loss)).sum(1)


def sum_of_squared_errors(outputs: Outputs, loss: Loss) -> Tensor:
    """Return the same of |f - y|^2/2, which divided by N is S25's MSE."""
    return half_squared_error(outputs.logits, _targets(outputs, loss), over=(1, 2))


def sum_of_pick_all(outputs: Outputs, loss: Loss) -> Tensor:
    """Return the same of the cross-entropies of all tags, -sum_{k in S} log softmax(f)_k [Li et al. 2024].

    A sample counts as often as it has tags; the loss is a mean over samples, not over tags.
    """
    return cross_entropy(outputs.logits, outputs.labels).sum(1)


def sum_of_dot_regressions(outputs: Outputs, loss: Loss) -> Tensor:
    """Return the same of (f_y - c)^2/(2 c), c = |a_y| sqrt(d), which features on the sphere reach."""
    assert outputs.last_weight is not None
    longest = outputs.last_weight.shape[2] ** 0.5 * outputs.last_weight[:, 0].norm(dim=1)
    return half_distance_to(outputs.logits, outputs.labels, longest).sum(1)


def sum_of_focal_losses(outputs: Outputs, loss: Loss) -> Tensor:
    """Return the same of -alpha_y (1 - p_y)^gamma log p_y."""
    assert isinstance(loss, Focal)
    alpha = None
    if loss.alpha is not None:  # filled on the device: a step may copy nothing from the host
        alpha = torch.stack([outputs.logits.new_full((), factor) for factor in loss.alpha])
    return focal(outputs.logits, outputs.labels, loss.gamma, alpha).sum(1)


def sum_of_margin_losses(outputs: Outputs, loss: Loss) -> Tensor:
    """Return the same of cross-entropy with label-distribution-aware margins."""
    assert isinstance(loss, Ldam)
    assert outputs.counts is not None
    margin, scale = loss.max_margin, loss.scale
    return label_aware_margins(outputs.logits, outputs.labels, outputs.counts, margin, scale).sum(1)


def sum_of_adjusted_losses(outputs: Outputs, loss: Loss) -> Tensor:
    """Return the same of cross-entropy of logits that the classes' shares are added to."""
    assert isinstance(loss, LogitAdjusted)
    assert outputs.counts is not None
    return logit_adjusted(outputs.logits, outputs.labels, outputs.counts, loss.tau).sum(1)


def mean_contrast_times_samples(outputs: Outputs, loss: Loss) -> Tensor:
    """Return N times the mean contrast over the samples that have another of their class in the batch."""
    assert isinstance(loss, SupCon)
    assert outputs.features is not None
    total = compared = torch.zeros((), dtype=outputs.features.dtype, device=outputs.features.device)
    samples = outputs.labels.shape[1]
    rows = samples if torch.is_grad_enabled() else max(1, PAIRS // samples)
    for start in range(0, samples, rows):
        losses, found = supervised_contrast(
            outputs.features,
            outputs.labels,
            loss.temperature,
            loss.include_self,
            slice(start, start + rows),
        )
        total, compared = total + losses.sum(1), compared + found.sum(1)
    return samples * total / compared.clamp(min=1)


def _targets(outputs: Outputs, loss: Loss) -> Tensor:
    if not (delta := smoothing_of(loss)):
        return outputs.labels
    return smoothed(outputs.labels, outputs.logits.shape[-1], delta, outputs.logits)


# Each is N times a mean over samples, (S,).
FITS: Mapping[str, Callable[[Outputs, Loss], Tensor]] = MappingProxyType(
    {
        "ce": sum_of_cross_entropies,
        "mse": sum_of_squared_errors,
        "pick_all": sum_of_pick_all,
        "supcon": mean_contrast_times_samples,
        "dot_regression": sum_of_dot_regressions,
        "focal": sum_of_focal_losses,
        "ldam": sum_of_margin_losses,
        "logit_adjusted": sum_of_adjusted_losses,
    }
)


def fit_times_samples(outputs: Outputs, loss: Loss) -> Tensor:
    """Return the loss without penalties, times N, (S,)."""
    if isinstance(loss, OwnLoss):
        return _own_times_samples(loss, outputs)
    return FITS[name_of(loss)](outputs, loss)


def _own_times_samples(loss: OwnLoss, outputs: Outputs) -> Tensor:
    """Return the same of a function of study.py, which sees one run, without S.

    On a GPU by vmap, if vmap takes the function. Elsewhere run after run, on copies that begin at an aligned
    address: kernels may sum in another order otherwise, and a run's bytes must not depend on its neighbours.
    """
    function, name = loss.study_entry, type(loss).__name__
    names = argument_names(function)
    shared = {"counts": outputs.counts, "spec": loss}
    read = {
        "logits": outputs.logits,
        "labels": outputs.labels,
        "features": outputs.features,
        "weight": outputs.last_weight,
    }
    given = {name: each for name, each in read.items() if name in names and each is not None}

    def of_run(*tensors: Tensor) -> Tensor:
        return call_by_name(function, shared | dict(zip(given, tensors, strict=True)))

    found = _by_vmap(of_run, list(given.values())) if outputs.logits.is_cuda else None
    if found is None:
        runs = range(len(outputs.logits))
        found = torch.stack([of_run(*(each[run].clone() for each in given.values())) for run in runs])
    runs_, samples = outputs.logits.shape[:2]
    compares = loss.compares_samples
    if found.shape != ((runs_,) if compares else (runs_, samples)):
        shape = tuple(found.shape[1:])
        needed = "the mean over the batch, ()" if compares else f"a number for each sample, ({samples},)"
        raise mistake(loss, f"the loss of {name} has the shape {shape}; expected {needed}")
    return samples * found if compares else found.sum(1)


def _by_vmap(function: Callable[..., Tensor], given: Sequence[Tensor]) -> Tensor | None:
    """Return function(*tensors) of every run at once; None if it has shapes that depend on data."""
    try:
        return torch.vmap(function)(*given)
    except RuntimeError as error:  # as of x[labels == 0], which a plain loop over the runs takes
        if "vmap" not in str(error):
            raise
        return None


def concatenate(parts: Sequence[Outputs]) -> Outputs:
    """Return the outputs of several batches as those of one."""
    features = [part.features for part in parts if part.features is not None]
    return Outputs(
        torch.cat([part.logits for part in parts], 1),
        torch.cat([part.labels for part in parts], 1),
        torch.cat(features, 1) if features else None,
        parts[0].last_weight,
        counts=parts[0].counts,
    )


def compares_samples(loss: Loss) -> bool:
    """Return whether a sample's loss depends on the others of its batch."""
    return isinstance(loss, SupCon) or (isinstance(loss, OwnLoss) and loss.compares_samples)


def targets_of_runs(samples: Split, logits: Tensor) -> Tensor:
    """Return the targets of each run's predictions: labels (S, N), or vectors (S, N, K) as the logits are."""
    return samples.targets.expand(*logits.shape[:2], *samples.row)


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


def reads_features(spec: Experiment) -> bool:
    """Return whether the objective reads features besides logits."""
    own = spec.loss.study_entry if isinstance(spec.loss, OwnLoss) else None
    reads = own is not None and "features" in argument_names(own)
    return reads or compares_samples(spec.loss) or spec.penalises_features


def penalty_strengths(stack: Stack, runs: Sequence[Run]) -> Tensor:
    """Return lambda of every number of every run, (S, P): lambda_L on W_L, 0 on what is not penalised."""
    roles, dimensions = stack.roles, stack.dimensions
    return stack.per_parameter([strengths(roles, dimensions, r.spec.penalty, r.depth) for r in runs])


def head_input_strengths(stack: Stack, runs: Sequence[Run]) -> Tensor | None:
    """Return lambda_H (S,) of the features that are penalised; None where no run penalises any."""
    own = [head_input_strength(r.spec, r.depth) for r in runs]
    penalised = {r.spec.penalises_features for r in runs}
    assert len(penalised) == 1, "a stack does not mix runs with and without a penalty of features"
    return stack.values.new_tensor(own) if True in penalised else None


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
