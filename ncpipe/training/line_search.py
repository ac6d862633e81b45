"""L-BFGS steps of a session of one run, each with a line search on all samples."""

import functools
import math

import torch
from torch import Tensor

from ncpipe.config.optimizer_specs import Lbfgs
from ncpipe.training.checkpoints import State, copy_to
from ncpipe.training.descent import GradientStep
from ncpipe.training.state import TrainingState

CPU = torch.device("cpu")
TRIALS = 25  # most trial steps of a line search


class LineSearch:
    """L-BFGS iterations of a stack of one run, on all samples.

    If an iteration moves nothing, the next would repeat it, so the search restarts without curvature pairs,
    along the gradient. If that moves nothing either, as at a kink of ReLU, the run stays where it is until
    its learning rate, which scales the first trial step, changes.
    """

    def __init__(self, session: TrainingState) -> None:
        optimizer = session.spec.optimizer
        assert isinstance(optimizer, Lbfgs)
        assert len(session.runs) == 1
        self.weights = torch.nn.Parameter(session.stack.values)
        self.gradient = GradientStep(session)
        self.search = torch.optim.LBFGS(
            [self.weights],
            max_iter=1,
            max_eval=1 + TRIALS,  # with the default of 1 there is no line search
            history_size=optimizer.memory,
            tolerance_grad=0,
            tolerance_change=0,
            line_search_fn="strong_wolfe",
        )
        self.exhausted: float | None = None  # the learning rate at which nothing moves from here

    def epoch(self, session: TrainingState) -> None:
        session.step = session.epochs_done
        rate = session.rates_at(session.epochs_done)[0]
        start = self.gradient(session, 0, lambda kind: session.train)
        session.drop_diverged(start[0])
        if rate == self.exhausted or not session.alive.all():
            return
        restarted, before = not self.search.state[self.weights], session.stack.values.clone()
        self.search.param_groups[0]["lr"] = rate
        self.search.step(functools.partial(self._closure, session, [start]))
        self.exhausted = None
        if torch.equal(session.stack.values, before):
            self.search.state.clear()
            self.exhausted = rate if restarted else None

    def buffers(self) -> dict[str, Tensor]:
        return {}

    def state_dict(self) -> State:
        """Return the optimizer's curvature pairs and counters; empty after a restart."""
        return copy_to(dict(self.search.state[self.weights]), CPU)

    def load_state_dict(self, state: State) -> None:
        self.search.state[self.weights] = copy_to(state, self.weights.device)

    def _closure(self, session: TrainingState, start: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Return the loss; inf without a gradient where a trial step went too far, so that it is halved.

        start: loss and gradient of where the search begins, which is the first thing that it asks for.
        """
        loss, gradient = start.pop() if start else self.gradient(session, 0, lambda kind: session.train)
        finite = loss.isfinite()
        self.weights.grad = torch.where(finite, gradient, math.nan)
        return torch.where(finite, loss, math.inf).sum()
