"""Define the keys of optimizers, and of schedules of their learning rate."""

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from ncpipe.config.bounds import Bound, Fraction, NonNegative, Positive
from ncpipe.system.errors import shown


@dataclass(frozen=True)
class Sgd:
    """Stochastic gradient descent with heavy-ball momentum.

    name: sgd.
    learning_rate: at the start; see schedule.
    momentum: 0 is none.
    """

    name: Literal["sgd"]
    learning_rate: Positive
    momentum: Fraction


@dataclass(frozen=True)
class Adam:
    """Adam, on the gradient of the objective with its penalty.

    name: adam.
    learning_rate: at the start; see schedule.
    beta1: decay of the mean gradient.
    beta2: decay of the mean squared gradient.
    eps: added to the root of the mean squared gradient.
    """

    name: Literal["adam"]
    learning_rate: Positive
    beta1: Fraction
    beta2: Fraction
    eps: Positive


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with a decoupled decay of the penalised weights, on top of the objective's own penalty.

    name: adamw.
    weight_decay: share of the weights that a step of rate 1 takes off.
    """

    name: Literal["adamw"]  # type: ignore[assignment]
    weight_decay: NonNegative


@dataclass(frozen=True)
class Lbfgs:
    """One strong-Wolfe L-BFGS iteration per epoch, full batch.

    name: lbfgs.
    learning_rate: scales the first of at most 25 trial steps.
    memory: steps whose curvature is remembered.
    """

    name: Literal["lbfgs"]
    learning_rate: Positive
    memory: Annotated[int, Bound(1, 1000)]  # each takes two copies of the weights


@dataclass(frozen=True)
class Lion:
    """Steps along the sign of a mean gradient [Chen et al. 2023, Algorithm 2].

    name: lion.
    learning_rate: at the start; see schedule.
    beta1: share of the mean gradient in a step's direction.
    beta2: decay of the mean gradient.
    weight_decay: share of the penalised weights that a step of rate 1 takes off.
    """

    name: Literal["lion"]
    learning_rate: Positive
    beta1: Fraction
    beta2: Fraction
    weight_decay: NonNegative = 0.0


@dataclass(frozen=True)
class SignSgd:
    """Steps along the sign of the gradient, or of its mean [Bernstein et al. 2018, Algorithms 1 and 2].

    name: sign_sgd.
    learning_rate: at the start; see schedule.
    momentum: decay of the mean gradient; 0 is SignSGD, more is Signum.
    """

    name: Literal["sign_sgd"]
    learning_rate: Positive
    momentum: Fraction


@dataclass(frozen=True)
class Muon:
    """Momentum whose matrices are orthogonalised by 5 Newton-Schulz iterations [Jordan et al. 2024].

    Matrices of inner layers, and of a ReLU head, take its steps; first layer, last layer and vectors take
    AdamW's. A convolution's kernel (m, c, h, w) is a matrix (m, c h w). Its momentum is Nesterov's.
    name: muon.
    learning_rate: learning rate of the matrices at the start; see schedule.
    momentum: decay of the sum of gradients.
    adam_learning_rate: learning rate of all other parameters at the start; the schedule is the same.
    beta1: decay of the mean gradient, of all else.
    beta2: decay of the mean squared gradient, of all else.
    eps: added to the root of the mean squared gradient, of all else.
    weight_decay: share of the penalised weights that a step of rate 1 takes off.
    """

    state: ClassVar[tuple[str, ...]] = ("momentum", "mean", "square")

    name: Literal["muon"]
    learning_rate: Positive
    momentum: Fraction
    adam_learning_rate: Positive
    beta1: Fraction
    beta2: Fraction
    eps: Positive
    weight_decay: NonNegative = 0.0


@dataclass(frozen=True)
class TorchOptimizer:
    """Any optimizer of torch.optim, by PyTorch's own names; its runs train one at a time.

    It sees the gradient of the objective with its penalty, and all that is learned in one group.
    name: torch.
    class: as in torch.optim, for instance NAdam or RMSprop.
    learning_rate: at the start, PyTorch's lr; see schedule.
    arguments: further ones by name, as {betas: [0.9, 0.99]}; PyTorch's defaults without them.
    """

    name: Literal["torch"]
    class_: str
    learning_rate: Positive
    arguments: dict[str, Any] | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        if not self.class_.isidentifier():
            raise ValueError(f"class: {shown(self.class_)} is no name of a class in torch.optim")
        if "lr" in (self.arguments or {}):
            raise ValueError("arguments: lr is set by learning_rate; leave it out")


Optimizer = Sgd | Adam | AdamW | Lion | SignSgd | Muon | TorchOptimizer | Lbfgs
OneAtATime = Lbfgs | TorchOptimizer  # whose runs train one after the other, not in one stack


@dataclass(frozen=True)
class ConstantSchedule:
    """A constant learning rate.

    name: constant.
    """

    name: Literal["constant"]


@dataclass(frozen=True)
class CosineSchedule:
    """From the learning rate down to `final` times it along half a cosine.

    name: cosine.
    final: share of the learning rate that is left at the end.
    after: share of the steps at the full rate before it falls.
    """

    name: Literal["cosine"]
    final: Annotated[float, Bound(low=0, high=1)]
    after: Annotated[float, Bound(low=0, high=1, open_high=True)] = 0.0


@dataclass(frozen=True)
class StepSchedule:
    """Times `factor` at each of `milestones`.

    name: step.
    milestones: fractions of all steps.
    factor: factor of the learning rate at each milestone.
    """

    name: Literal["step"]
    milestones: tuple[Annotated[float, Bound(low=0, high=1, open_low=True, open_high=True)], ...]
    factor: Positive

    def __post_init__(self) -> None:
        if not self.milestones:
            raise ValueError("milestones: empty; list at least one, or take `name: constant`")
        if list(self.milestones) != sorted(set(self.milestones)):
            raise ValueError("milestones: must ascend, each once")


Schedule = ConstantSchedule | CosineSchedule | StepSchedule
