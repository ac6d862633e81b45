"""Load a study's results in a notebook: tables as pandas frames, runs as networks, figures as functions.

    from ncpipe.integrations import notebook as results
    study = results.load(".")
    study.slopes
    run = study.run("digits_rn1", depth=13, seed=0)
    run.model()

It reads what `dvc repro` has written and changes nothing. PyTorch is loaded only for networks and features.
"""

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pandas as pd

from ncpipe.config.bounds import Number
from ncpipe.config.params import PARAMS_FILE, Params, load_params
from ncpipe.config.run import Run
from ncpipe.datasets.stored import data_checksum
from ncpipe.runs.fingerprint import RunFingerprint, check_run, verify_run
from ncpipe.system.artifacts import FEATURES, PREPARED, RESULTS, RUNS
from ncpipe.system.errors import InputError
from ncpipe.tables.files import read_table
from ncpipe.tables.keys import run_keys

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor, nn

    from ncpipe.datasets.prepared import Prepared
    from ncpipe.features.extraction import Features


def load(folder: str | Path = ".") -> "StudyResults":
    """Return the study with params.yaml in this folder or in one above it.

    Runs its study.py, if there is one. Raises InputError if there is no params.yaml, or an invalid one.
    """
    start = Path(folder).resolve()
    for parent in (start, *start.parents):
        if (parent / PARAMS_FILE).is_file():
            return StudyResults(parent, load_params(parent / PARAMS_FILE))
    raise InputError(f"{start}: no {PARAMS_FILE} here or above; give a folder of a study")


class StudyResults:
    """Gives access to the results of one params.yaml."""

    def __init__(self, folder: Path, params: Params) -> None:
        self.folder, self.params = folder, params

    def table(self, name: str) -> pd.DataFrame:
        """Return data/results/NAME.csv; if it does not exist, InputError lists the tables."""
        results = self.folder / RESULTS
        if results.is_dir() and not (results / f"{name}.csv").is_file():
            names = ", ".join(sorted(path.stem for path in results.glob("*.csv")))
            raise InputError(f"{results}: no table {name}; the tables are {names}")
        return read_table(results / f"{name}.csv", "aggregate")

    @property
    def runs(self) -> pd.DataFrame:
        """Return a row for each run: whether it converged, or why not, and its loss, gap and ranks."""
        return self.table("runs")

    @property
    def points(self) -> pd.DataFrame:
        """Return the last layer's metrics, with a row for each run, split and metric."""
        return self.table("points")

    @property
    def slopes(self) -> pd.DataFrame:
        """Return the slopes of log metric on log L (or the axis) with intervals."""
        return self.table("slopes")

    @property
    def layers(self) -> pd.DataFrame:
        """Return the metrics of every layer."""
        return self.table("layers")

    @property
    def history(self) -> pd.DataFrame:
        """Return the training history, with a row for each run and logged epoch."""
        return self.table("history")

    @property
    def figures(self) -> Mapping[str, Callable[[], "Figure"]]:
        """Return functions that draw the figures, by name: `study.figures["depth_sweep"]()`."""
        from ncpipe.figures.sweep import sweep_figures

        return sweep_figures(self.params.sweep.experiments, self.table)

    def run(self, experiment: str, *, depth: int, seed: int, value: Number | None = None) -> "RunResults":
        """Return a run of the sweep; raise InputError if it has none. value: of the study's axis."""
        run = self.params.run(experiment, depth, seed, value)
        if run not in self.params.grid():
            sweep = self.params.sweep
            raise InputError(
                f"{run.name}: not in the sweep of {', '.join(sweep.experiments)} at depths "
                f"{list(sweep.depths)} with seeds {list(sweep.seeds)}"
            )
        return RunResults(self, run)


class RunResults:
    """Gives access to one run: its parameters (`spec`), rows of the tables, weights and features."""

    def __init__(self, study: StudyResults, run: Run) -> None:
        self.study, self.run, self.spec = study, run, run.spec

    def __repr__(self) -> str:
        return f"<run {self.run.name}>"

    @property
    def row(self) -> pd.Series:
        """Return its row of `StudyResults.runs`."""
        return self._rows_of_run(self.study.runs).iloc[0]

    @property
    def points(self) -> pd.DataFrame:
        """Return its rows of `StudyResults.points`."""
        return self._rows_of_run(self.study.points)

    @property
    def history(self) -> pd.DataFrame:
        """Return its rows of `StudyResults.history`, one for each logged epoch."""
        return self._rows_of_run(self.study.history)

    @cached_property
    def data(self) -> "Prepared":
        """The prepared data set: inputs and labels of both splits; InputError for a loop of study.py."""
        from ncpipe.datasets.prepared import read_prepared

        if self.spec.training:
            raise InputError(f"{self.run.name}: a loop of study.py trained it; take the data of its loaders")
        return read_prepared(self.study.folder / PREPARED / self.run.data)

    def model(self) -> "nn.Module":
        """Return the network with its final weights, on the CPU and in evaluation mode, as it was trained.

        Raises InputError if the run's folder is missing, damaged, or the result of other parameters or data.
        """
        from safetensors.torch import load_file

        from ncpipe.features.own_network import own_network
        from ncpipe.models.build import build_uninitialised_network

        folder = self.study.folder / RUNS / self.run.path
        if not folder.is_dir():
            raise InputError(f"{folder}: not found; run dvc repro")
        verify_run(folder)
        checksum = data_checksum(self.study.folder / PREPARED / self.run.data)
        check_run(folder, RunFingerprint(self.run, checksum, self.study.params.compute))
        weights = load_file(folder / "model.safetensors")
        if self.spec.training:
            return own_network(self.run, weights).eval()
        network = build_uninitialised_network(self.run, self.data)
        network.to(next(iter(weights.values())).dtype).load_state_dict(weights)
        return network.eval()

    def inputs(self, split: Literal["train", "test"] = "train") -> "Tensor":
        """Return the inputs of a split for `model()`. Raises InputError if there is no such split."""
        import torch

        from ncpipe.models.build import prepare_split

        samples = dict(self.data.splits()).get(split)
        if samples is None:
            raise InputError(f"{self.run.experiment}: its data have no split {split}")
        kind, model = self.data.kind, self.spec.model
        return prepare_split(samples, kind, model, torch.device("cpu"), torch.float32).inputs

    def features(self) -> "Features":
        """Return the output of `extract` in float64.

        It has `train` and `test` with inputs (N, d) and labels (N,), `weight` and `bias` of the classifier,
        and statistics of every layer.
        """
        from ncpipe.features.files import read_features

        return read_features((self.study.folder / FEATURES / self.run.path).with_suffix(".safetensors"))

    def _rows_of_run(self, table: pd.DataFrame) -> pd.DataFrame:
        rows = (table[run_keys(table)] == pd.Series(self.run.columns)).all(axis=1)
        if not rows.any():
            raise InputError(f"{self.run.name}: not in data/results; run dvc repro (stage aggregate)")
        return table[rows].reset_index(drop=True)
