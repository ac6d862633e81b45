"""Define a stage of a study's own: an entry of STAGES in its study.py, which `ncpipe stage NAME` runs."""

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

PER_EXPERIMENT = "experiment"  # the parameter of a function that runs once for each experiment
# Stages that each study has, and what else lies below data/.
TAKEN = frozenset(
    (
        *("code", "grid", "fetch", "fill", "train", "extract", "measure", "aggregate", "plot", "claims"),
        *("report", "prepared", "runs", "features", "metrics", "results", "figures", "raw", "logs"),
    )
)


@dataclass(frozen=True)
class Stage:
    """A stage of a study's own: its entry in STAGES, by the stage's name in dvc.yaml.

    function: returns rows (dicts), a DataFrame, or a dict of these, of figures, and of pairs of a table and a
    figure, by name. They are written to data/NAME as CSV, PNG and SVG; rows alone as NAME.csv. Its parameters
    are the options of `ncpipe stage NAME`. With a parameter `experiment` it runs once for each, and writes to
    data/NAME/EXPERIMENT.
    report: whether the report shows its tables and figures.
    claimed: columns of its table `claimed` that claims may be about; it has the runs in place of runs.csv.
    """

    function: Callable[..., Any]
    report: bool = True
    claimed: tuple[str, ...] = ()

    @property
    def per_experiment(self) -> bool:
        """Whether it runs once for each experiment, and not once for the sweep."""
        return PER_EXPERIMENT in inspect.signature(self.function).parameters

    def options(self) -> Mapping[str, Any]:
        """Return the annotation of each parameter of the function; raise TypeError if one has none."""
        hints = typing.get_type_hints(self.function, include_extras=True)
        for name, parameter in inspect.signature(self.function).parameters.items():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                raise TypeError(f"takes {parameter}; name each of its options")
            if name not in hints:
                if name != PER_EXPERIMENT:
                    raise TypeError(f"takes {name} without a type; annotate it, as {name}: int")
                hints[name] = str
        return {name: hints[name] for name in inspect.signature(self.function).parameters}


def name_problem(name: object) -> str:
    """Return why an entry of STAGES cannot have this name; '' if it can."""
    if not isinstance(name, str) or not (name.isascii() and name.isidentifier() and name[0] != "_"):
        return "is no name; take letters, digits and _, with a letter first"
    return "exists already, in the package; take another name" if name in TAKEN else ""
