"""Define a run, an experiment at one depth with one seed, and how runs are computed."""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from ncpipe.config.bounds import Bound, Number, key_of
from ncpipe.config.experiment import Experiment
from ncpipe.config.study import NO_STUDY, Study

Device = Literal["auto", "cpu", "cuda", "mps"]


@dataclass(frozen=True)
class Compute:
    """How runs are computed.

    device: auto takes CUDA where it can, or the CPU. It does not make a finished run stale; the others do.
    threads: CPU threads of each batch of runs; cores / threads batches train side by side.
    precision: tf32 is float32 whose products a GPU computes from factors rounded to 10 bits of mantissa.
    """

    device: Device
    threads: Annotated[int, Bound(1, 256)]  # they are started even where there are fewer cores
    precision: Literal["float32", "tf32", "float64"]

    def double(self, device: Device | None = None) -> "Compute":
        """Return how features are computed: in float64, on a device that supports it."""
        device = device or self.device
        return dataclasses.replace(self, device="cpu" if device == "mps" else device, precision="float64")


def as_json(spec: Any) -> Any:
    """Return a spec as JSON values; optional keys with their default value are left out."""
    if dataclasses.is_dataclass(spec):
        present = ((f, getattr(spec, f.name)) for f in dataclasses.fields(spec))
        return {key_of(field.name): as_json(value) for field, value in present if value != field.default}
    return [as_json(part) for part in spec] if isinstance(spec, tuple) else spec


@dataclass(frozen=True)
class Run:
    """One trained network: a row of the grid."""

    experiment: str
    depth: int
    seed: int
    spec: Experiment
    axis: str | None = None  # key of the experiment that the study varies, if it varies one
    value: Number | None = None  # of that key; spec has it
    study: Study = field(default=NO_STUDY, compare=False, repr=False)  # of its study.py

    @property
    def name(self) -> str:
        varied = "" if self.axis is None else f" {self.axis}={self.value}"
        return f"{self.experiment} L={self.depth}{varied} seed={self.seed}"

    @property
    def columns(self) -> dict[str, Any]:
        """Columns (`ncpipe.tables.keys.run_keys`) that identify the run in tables, with their values."""
        varied = {} if self.axis is None else {"axis": self.axis, "x": self.value}
        return {"experiment": self.experiment, "depth": self.depth, **varied, "seed": self.seed}

    @property
    def path(self) -> Path:
        """Path of the run below a folder of runs (or of features)."""
        path = Path(self.experiment) / f"L{self.depth}"
        return (path if self.value is None else path / _folder(self.value)) / f"s{self.seed}"

    @property
    def data(self) -> Path:
        """Path of its data below the folder of prepared data sets."""
        return data_path(self.experiment, self.value)


def data_path(experiment: str, value: Number | None) -> Path:
    """Return the path of an experiment's data: one for each value of the study's axis, if it has one."""
    path = Path(experiment)
    return path if value is None else path / _folder(value)


def _folder(value: Number) -> str:
    """Return the number as DVC writes it in an item of a matrix, which is as Python does."""
    return f"x{value}"
