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
            problem = f"gives {type(weights).__name__} for {run.name}; return tensors by name"
            raise mistake_of(function, problem)
        for name, shape in shapes.items():
            given = tuple(value.shape) if isinstance(value := weights.get(name), Tensor) else "nothing"
            if given != shape:
                raise mistake_of(function, f"gives {given} for {name} of {run.name}; expected {shape}")
        starts.append(weights)
    return starts
