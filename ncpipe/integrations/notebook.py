"""A study's results in a notebook: tables as pandas frames, runs as networks, figures as functions.

    from ncpipe.integrations import notebook as results
    study = results.load(".")
    study.slopes
    run = study.run("digits_rn1", depth=13, seed=0)
    run.model()

Reads what `dvc repro` has written and changes nothing. PyTorch is loaded where a network or features are
asked for, no sooner.
"""

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pandas as pd

from ncpipe.config.params import PARAMS_FILE, Params, load_params
from ncpipe.config.specs import Number, Run
from ncpipe.datasets.stored import data_checksum
from ncpipe.runs.fingerprint import RunFingerprint, check_run, verify_run
from ncpipe.system.artifacts import FEATURES, PREPARED, RESULTS, RUNS
from ncpipe.system.errors import InputError
from ncpipe.tables.files import read_table
from ncpipe.tables.keys import run_keys

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

    from ncpipe.datasets.prepared import Prepared
    from ncpipe.features.passes import Features
    from ncpipe.models.network import Network


def load(folder: str | Path = ".") -> "Study":
    """Return the study whose params.yaml and data/ lie in a folder, or in one above it.

    Runs the study.py beside params.yaml, if there is one. InputError where no params.yaml is found, or none
    that can be read.
    """
    start = Path(folder).resolve()
    for place in (start, *start.parents):
        if (place / PARAMS_FILE).is_file():
            return Study(place, load_params(place / PARAMS_FILE))
    raise InputError(f"{start}: no {PARAMS_FILE} here or above; name a folder of a study")


class Study:
    """What one params.yaml has led to. Tables are read once, when they are asked for."""

    def __init__(self, folder: Path, params: Params) -> None:
        self.folder, self.params = folder, params
        self._tables: dict[str, pd.DataFrame] = {}

    def table(self, name: str) -> pd.DataFrame:
        """Return a copy of data/results/NAME.csv; InputError names the tables that there are."""
        if name not in self._tables:
            place = self.folder / RESULTS
            if place.is_dir() and not (place / f"{name}.csv").is_file():
                there = ", ".join(sorted(path.stem for path in place.glob("*.csv")))
                raise InputError(f"{place}: no table {name}; there are {there}")
            self._tables[name] = read_table(place / f"{name}.csv", "aggregate")
        return self._tables[name].copy()

    @property
    def runs(self) -> pd.DataFrame:
        """A row for each run: whether it converged and why not, its loss, gap, ranks."""
        return self.table("runs")

    @property
    def points(self) -> pd.DataFrame:
        """The last layer's metrics, a row for each run, split and metric."""
        return self.table("points")

    @property
    def slopes(self) -> pd.DataFrame:
        """log metric against log L (or the axis) with intervals."""
        return self.table("slopes")

    @property
    def layers(self) -> pd.DataFrame:
        """Every layer's metrics."""
        return self.table("layers")

    @property
    def history(self) -> pd.DataFrame:
        """What was logged while runs trained."""
        return self.table("history")

    @property
    def figures(self) -> Mapping[str, Callable[[], "Figure"]]:
        """By name, functions that draw: `study.figures["depth_sweep"]()`."""
        from ncpipe.figures.sweep import sweep_figures

        return sweep_figures(self.params.sweep.experiments, self.table)

    def run(self, experiment: str, *, depth: int, seed: int, value: Number | None = None) -> "StudyRun":
        """Return a run of the sweep, or raise InputError. value: of the axis, if the study has one."""
        run = self.params.run(experiment, depth, seed, value)
        if run not in self.params.grid():
            sweep = self.params.sweep
            raise InputError(
                f"{run.name}: not in the sweep of {', '.join(sweep.experiments)} at depths "
                f"{list(sweep.depths)} with seeds {list(sweep.seeds)}"
            )
        return StudyRun(self, run)


class StudyRun:
    """One run: what params.yaml says of it (`spec`), its row of `runs`, its weights and features."""

    def __init__(self, study: Study, run: Run) -> None:
        self.study, self.run, self.spec = study, run, run.spec

    def __repr__(self) -> str:
        return f"<run {self.run.name}>"

    @property
    def row(self) -> pd.Series:
        """Of `Study.runs`."""
        return self._own(self.study.runs).iloc[0]

    @property
    def points(self) -> pd.DataFrame:
        """Of `Study.points`."""
        return self._own(self.study.points)

    @property
    def history(self) -> pd.DataFrame:
        """Of `Study.history`, a row for each logged epoch."""
        return self._own(self.study.history)

    @cached_property
    def data(self) -> "Prepared":
        """The prepared data set that it trained on: inputs and labels of both splits."""
        from ncpipe.datasets.prepared import read_prepared

        return read_prepared(self.study.folder / PREPARED / self.run.data)

    def model(self) -> "Network":
        """Return the network with its final weights, on the CPU in their precision, in evaluation mode.

        InputError if the run's folder is missing, damaged, or the result of other parameters or data.
        """
        from safetensors.torch import load_file

        from ncpipe.models.build import build_uninitialised_network

        folder = self.study.folder / RUNS / self.run.path
        if not folder.is_dir():
            raise InputError(f"{folder}: not found; run dvc repro")
        verify_run(folder)
        checksum = data_checksum(self.study.folder / PREPARED / self.run.data)
        check_run(folder, RunFingerprint(self.run, checksum, self.study.params.compute))
        network = build_uninitialised_network(self.run, self.data)
        network.load_state_dict(load_file(folder / "model.safetensors"))
        return network.eval()

    def inputs(self, split: Literal["train", "test"] = "train") -> "Tensor":
        """Return the samples of a split as `model()` takes them. InputError if there is no such split."""
        import torch

        from ncpipe.models.build import prepare_split

        found = dict(self.data.splits()).get(split)
        if found is None:
            raise InputError(f"{self.run.experiment}: its data have no split {split}")
        kind, model = self.data.kind, self.spec.model
        return prepare_split(found, kind, model, torch.device("cpu"), torch.float32).inputs

    def features(self) -> "Features":
        """What `extract` wrote: `train` and `test` with inputs (N, d), float64, and labels (N,); `weight`,
        `bias` of the classifier; statistics of every layer."""
        from ncpipe.features.files import read_features

        return read_features((self.study.folder / FEATURES / self.run.path).with_suffix(".safetensors"))

    def _own(self, table: pd.DataFrame) -> pd.DataFrame:
        rows = (table[run_keys(table)] == pd.Series(self.run.columns)).all(axis=1)
        if not rows.any():
            raise InputError(f"{self.run.name}: not in data/results; run dvc repro (stage aggregate)")
        return table[rows].reset_index(drop=True)
