"""Return the initial weights of runs that do not start from random ones."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from torch import Tensor

from ncpipe.config.run import Run
from ncpipe.datasets.prepared import Prepared


def starts_of(runs: Sequence[Run], data: Prepared) -> list[dict[str, Tensor]] | None:
    """Return the initial weights of runs that start from given ones; None if they start from random ones."""
    start = STARTS.get(runs[0].spec.model.start)
    return None if start is None else [start(run, data) for run in runs]


def _construction(run: Run, data: Prepared) -> dict[str, Tensor]:
    from ncpipe.theory.constructions.networks import WARM_START, construct

    return construct(run, data, WARM_START).state


def _solution(run: Run, data: Prepared) -> dict[str, Tensor]:
    from ncpipe.theory.dufm_runs import solution_state

    return solution_state(run)


# Functions that return a run's initial weights in place of random ones, by `Architecture.start`.
STARTS: Mapping[str, Callable[[Run, Prepared], dict[str, Tensor]] | None] = MappingProxyType(
    {
        "random": None,
        "construction": _construction,
        "dnc": _solution,
        "srg": _solution,
        "srg_k": _solution,
    }
)
