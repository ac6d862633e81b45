"""Return the initial weights of runs that do not start from random ones."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from ncpipe.config.run import Run
from ncpipe.config.study import call, mistake_of
from ncpipe.datasets.prepared import Prepared
from ncpipe.models.build import build_uninitialised_network


def starts_of(runs: Sequence[Run], data: Prepared) -> list[Mapping[str, Tensor]] | None:
    """Return the initial weights of runs that start from given ones; None if they start from random ones.

    Raises InputError if the function of study.py gives other names or shapes than the network has.
    """
    if runs[0].spec.start is None:
        return None
    function = runs[0].study.starts[runs[0].spec.start]
    shapes = {
        name: tuple(value.shape)
        for name, value in build_uninitialised_network(runs[0], data).named_parameters()
    }
    starts = []
    for run in runs:
        weights = call(function, run, data)
        if not isinstance(weights, Mapping):
            what = f"gives {type(weights).__name__} for {run.name}; return tensors by name"
            raise mistake_of(function, what)
        found = {name: tuple(value.shape) for name, value in weights.items() if isinstance(value, Tensor)}
        if wrong := next((name for name in shapes if found.get(name) != shapes[name]), None):
            what = f"gives {found.get(wrong, 'nothing')} for {wrong} of {run.name}; expected {shapes[wrong]}"
            raise mistake_of(function, what)
        starts.append(weights)
    return starts
