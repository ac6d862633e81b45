"""Specs of losses with keys of their own, and what suits them; `ncpipe.training.objective` computes them.

A loss without keys is its name alone (`loss: ce`).
"""

from dataclasses import dataclass
from typing import Any, Literal

from ncpipe.config.bounds import Fraction, NonNegative, Positive


@dataclass(frozen=True)
class LogitLoss:
    """Cross-entropy or squared error, with smoothed labels if you like.

    name: ce or mse.
    smoothing: delta, the share of a label that is spread over all classes: (1 - delta) e_y + delta/K.
    """

    name: Literal["ce", "mse"]
    smoothing: Fraction = 0.0


@dataclass(frozen=True)
class SupCon:
    """Supervised contrast of the features' directions within a batch [K23 eq. 32]; there are no logits.

    Features are scaled to length sqrt(d). The last layer is no part of it: before anything is measured it
    becomes the nearest-class-mean rule of the training features.
    name: supcon.
    temperature: tau, by which inner products of unit vectors are divided.
    include_self: whether a sample counts among those of its own class, as K23 prints it; else only others do
    [Khosla et al. 2020].
    """

    name: Literal["supcon"]
    temperature: Positive
    include_self: bool = False


@dataclass(frozen=True)
class DotRegression:
    """(a_y h - c)^2/(2 c), c = |a_y| sqrt(d), of features scaled to length sqrt(d) [Yang et al. 2022].

    Each feature is drawn to its class's row of a fixed classifier, and pushed away from none.
    name: dot_regression.
    """

    name: Literal["dot_regression"]


@dataclass(frozen=True)
class Focal:
    """Cross-entropy that counts a sample less the surer it is: -alpha_y (1 - p_y)^gamma log p_y.

    p is the softmax of the logits [Lin et al. 2017, eq. 4, and eq. 5 with alpha].
    name: focal.
    gamma: 0 is cross-entropy.
    alpha: a factor for each class; 1 for all without it.
    """

    name: Literal["focal"]
    gamma: NonNegative
    alpha: tuple[Positive, ...] | None = None


@dataclass(frozen=True)
class Ldam:
    """Label-distribution-aware margins: cross-entropy of the logits, f_y less a margin [Cao et al. 2019].

    The margin of a class of n_y training samples is C/n_y^(1/4) (their eq. 12 and 13).
    name: ldam.
    max_margin: the margin of the smallest class, which sets C.
    scale: factor of the logits after the margin, s in the authors' code; 1 is eq. 12.
    cosines: true makes the logits f_k = cos(h, w_k), as in the authors' code (with scale 30); false, as in
    eq. 12, keeps f = W h + b.
    """

    name: Literal["ldam"]
    max_margin: NonNegative
    scale: Positive
    cosines: bool


@dataclass(frozen=True)
class LogitAdjusted:
    """Cross-entropy of f_k + tau log pi_k, pi_k the share of class k in the training set.

    [Menon et al. 2021, eq. 10]. Predictions are those of f itself.
    name: logit_adjusted.
    tau: 0 is cross-entropy; 1 makes the balanced error's optimum the loss's.
    """

    name: Literal["logit_adjusted"]
    tau: NonNegative


Loss = (
    Literal["ce", "mse", "pick_all", "supcon", "dot_regression"]
    | LogitLoss
    | SupCon
    | DotRegression
    | Focal
    | Ldam
    | LogitAdjusted
)
ON_SPHERE = ("supcon", "dot_regression")  # losses of the features' directions alone


def name_of(loss: Loss) -> str:
    """Return the loss's name, without its keys."""
    return loss if isinstance(loss, str) else loss.name


def smoothing_of(loss: Loss) -> float:
    """delta; 0 where labels are as they are."""
    return loss.smoothing if isinstance(loss, LogitLoss) else 0.0


def has_cosines(loss: Loss) -> bool:
    """Whether the logits are cosines of features and rows of the last layer."""
    return isinstance(loss, Ldam) and loss.cosines


def ignores_lengths(loss: Loss) -> bool:
    """Whether the loss depends on the features' directions alone."""
    return name_of(loss) in ON_SPHERE or has_cosines(loss)


def is_plain(loss: Loss) -> bool:
    """Whether it is cross-entropy or squared error to the labels as they are."""
    return name_of(loss) in ("ce", "mse") and smoothing_of(loss) == 0


def objective_incompatibility(experiment: Any) -> str:
    """Why an experiment's loss, classifier and penalty do not go together; '' if they do."""
    if problem := _loss_incompatibility(experiment) or _classifier_incompatibility(experiment):
        return problem
    if experiment.penalises_features and ignores_lengths(experiment.loss) and not experiment.model.has_head:
        return f"penalty.features does not apply to {name_of(experiment.loss)}; remove it"
    return ""


def _loss_incompatibility(experiment: Any) -> str:
    name, model = name_of(experiment.loss), experiment.model
    if experiment.data.kind == "next_tokens" and name not in ("ce", "mse"):
        return f"loss: {name} does not apply to next tokens; take `ce` or `mse`"
    if model.has_free_features and not is_plain(experiment.loss):
        return f"loss: {model.architecture} takes plain `ce` or `mse`"
    if name == "dot_regression" and not model.has_fixed_classifier:
        return "loss: dot_regression needs fixed rows; write `classifier: {kind: etf, length: 1.0}` in model"
    if has_cosines(experiment.loss) and model.last_bias:
        return "model.last_bias: the cosines of ldam have no bias; write false"
    if name == "supcon":
        return _contrast_incompatibility(experiment)
    return ""


def _contrast_incompatibility(experiment: Any) -> str:
    loss, data, model = experiment.loss, experiment.data, experiment.model
    if not isinstance(loss, SupCon):
        return "loss: supcon needs a temperature; write `loss: {name: supcon, temperature: 0.1}`"
    if model.has_fixed_classifier:
        return "model.classifier does not apply: supcon trains no logits; remove it"
    if not model.last_bias:
        return "model.last_bias: the nearest-mean rule, supcon's last layer, has one; write true"
    if experiment.penalty.last_layer is not None:
        return "penalty.last_layer does not apply: supcon learns no last layer; write null"
    if not loss.include_self and getattr(data, "per_class", None) == 1:
        return (
            "data.per_class: supcon compares samples of one class, and each has 1; take 2 or more, or "
            "`include_self: true`"
        )
    if experiment.batch_size == 1:
        return "batch_size: supcon compares the samples of a batch; take 2 or more"
    return ""


def _classifier_incompatibility(experiment: Any) -> str:
    model = experiment.model
    if not model.has_fixed_classifier:
        return ""
    if model.last_bias:
        return "model.last_bias: a fixed classifier has none; write false"
    classes, width = getattr(experiment.data, "classes", None), model.feature_width
    if classes and width and (problem := too_narrow(classes, width)):
        return problem
    if experiment.penalty.last_layer is not None:
        return "penalty.last_layer does not apply: model.classifier is fixed; write null"
    return ""


def too_narrow(classes: int, width: int) -> str:
    """Why a fixed classifier has no K = `classes` rows of `width` numbers; '' if it has."""
    if width >= classes - 1:
        return ""
    return f"model.classifier: {classes} classes need a width of {classes - 1} for a simplex, not {width}"
