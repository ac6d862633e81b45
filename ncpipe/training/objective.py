"""The regularised loss of S25 eq. 7 and 11, and K23's others, for every run of a stack at once.

S  runs    N  samples    K  classes    d  feature width    P  numbers per run
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from ncpipe.datasets.prepared import Prepared
from ncpipe.loss_specs import Loss, SupCon, name_of, smoothing_of
from ncpipe.losses import (
    cross_entropy,
    half_distance_to,
    half_squared_error,
    smoothed,
    supervised_contrast,
)
from ncpipe.models.penalties import entry_strength, is_penalised, strengths
from ncpipe.specs import Experiment, Run
from ncpipe.training.stack import Stack

PAIRS = 4_000_000  # similarities of a run that are held at a time, where nothing is learned from them


@dataclass(frozen=True)
class Outputs:
    """What a loss is taken of: logits (S, N, K), labels (S, N), and what some losses read beside them.

    features (S, N, d). rows (S, K, d): of the last layer. entering (S, N, d'): those that may be penalised.
    """

    logits: Tensor
    labels: Tensor
    features: Tensor | None = None
    rows: Tensor | None = None
    entering: Tensor | None = None


def sum_of_cross_entropies(outputs: Outputs, loss: Loss) -> Tensor:
    """Over samples -> (S,)."""
    return cross_entropy(outputs.logits, _targets(outputs, loss)).sum(1)


def sum_of_squared_errors(outputs: Outputs, loss: Loss) -> Tensor:
    """The same of |f - y|^2/2, which divided by N is S25's MSE."""
    return half_squared_error(outputs.logits, _targets(outputs, loss), over=(1, 2))


def sum_of_dot_regressions(outputs: Outputs, loss: Loss) -> Tensor:
    """The same of (f_y - c)^2/(2 c) with c = |a_y| sqrt(d), which logits of features on the sphere reach."""
    assert outputs.rows is not None
    longest = outputs.rows.shape[2] ** 0.5 * outputs.rows[:, 0].norm(dim=1)
    return half_distance_to(outputs.logits, outputs.labels, longest).sum(1)


def mean_contrast_times_samples(outputs: Outputs, loss: Loss) -> Tensor:
    """N times the mean supervised contrast over the samples that have another of their class in the batch."""
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
        "supcon": mean_contrast_times_samples,
        "dot_regression": sum_of_dot_regressions,
    }
)


def fit_times_samples(outputs: Outputs, loss: Loss) -> Tensor:
    """The loss without penalties, times N, (S,)."""
    return FITS[name_of(loss)](outputs, loss)


def joined(parts: Sequence[Outputs]) -> Outputs:
    """The outputs of several batches as those of one."""
    features = [part.features for part in parts if part.features is not None]
    return Outputs(
        torch.cat([part.logits for part in parts], 1),
        torch.cat([part.labels for part in parts], 1),
        torch.cat(features, 1) if features else None,
        parts[0].rows,
    )


def compares_samples(loss: Loss) -> bool:
    """Whether a sample's loss depends on the others of its batch."""
    return isinstance(loss, SupCon)


def lonely(loss: Loss, data: Prepared) -> str:
    """Why a class has nothing to be compared with; '' if all have."""
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
    """Whether logits alone do not make the objective."""
    return compares_samples(spec.loss) or spec.penalises_features


def penalty_strengths(stack: Stack, runs: Sequence[Run]) -> Tensor:
    """lambda of every number of every run, (S, P): lambda_L on W_L, 0 on what is not penalised."""
    roles, dimensions = stack.roles, stack.dimensions
    return stack.per_parameter([strengths(roles, dimensions, r.spec.penalty, r.depth) for r in runs])


def entering_strengths(stack: Stack, runs: Sequence[Run]) -> Tensor | None:
    """lambda_H (S,) of the features that are penalised; None where no run penalises any."""
    own = [entry_strength(r.spec, r.depth) for r in runs]
    penalised = {r.spec.penalises_features for r in runs}
    assert len(penalised) == 1, "a stack does not mix runs with and without a penalty of features"
    return stack.values.new_tensor(own) if True in penalised else None


def decayed_numbers(stack: Stack, runs: Sequence[Run]) -> Tensor:
    """(S, P): 1 on every number that is penalised, whatever its lambda; there AdamW may decay."""
    roles, dimensions = stack.roles, stack.dimensions
    return stack.per_parameter(
        [
            {name: float(is_penalised(roles[name], dimensions[name], r.spec.penalty)) for name in roles}
            for r in runs
        ]
    )


def penalty(values: Tensor, strengths: Tensor) -> Tensor:
    """lambda/2 |theta_bar|^2 of each run: values, strengths (S, P) -> (S,)."""
    return (strengths * values.square()).sum(1) / 2
