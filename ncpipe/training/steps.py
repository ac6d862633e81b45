"""Choose the steps of an experiment's optimizer."""

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from ncpipe.config.optimizer_specs import Lbfgs
from ncpipe.config.specs import OwnOptimizer
from ncpipe.training.descent import Descent
from ncpipe.training.line_search import LineSearch
from ncpipe.training.muon import muon_state
from ncpipe.training.optimizers import AdamState, LionState, SgdState
from ncpipe.training.own_optimizers import ByRun
from ncpipe.training.state import TrainingState
from ncpipe.training.torch_optimizers import TorchState

# The state of an optimizer's steps, by its name in params.yaml; `lbfgs` takes steps of another kind.
METHODS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "sgd": SgdState,
        "adam": AdamState,
        "adamw": AdamState,
        "lion": LionState,
        "sign_sgd": LionState,
        "muon": muon_state,
        "torch": TorchState,
    }
)


def steps_of(training: TrainingState) -> Descent | LineSearch:
    """Return the steps of the runs' optimizer, which may be one of study.py."""
    optimizer = training.spec.optimizer
    if isinstance(optimizer, OwnOptimizer):
        seeds = [run.seed for run in training.runs]
        return Descent(training, functools.partial(ByRun, optimizer.study_entry, seeds=seeds))
    if isinstance(optimizer, Lbfgs):
        return LineSearch(training)
    return Descent(training, METHODS[optimizer.name])
