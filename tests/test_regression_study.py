"""The study of regression, made tiny: every stage, its claims, its figures and its page."""

import shutil
from pathlib import Path

import pandas as pd
import pytest
from conftest import measure_runs
from pipeline import ROOT
from ruamel.yaml import YAML

from ncpipe.commands.aggregate import aggregate
from ncpipe.commands.claims import claims
from ncpipe.commands.plot import plot
from ncpipe.commands.report import report


def test_every_stage_runs_and_what_needs_classes_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tree = YAML(typ="safe").load(ROOT / "stages/regression/params.yaml")
    tree["sweep"] |= {"seeds": [0, 1]}
    for each in tree["experiments"].values():
        each |= {"epochs": 60, "log_every": 5}
        each["data"] |= {"samples": 30, "test_samples": 10}
    YAML().dump(tree, Path("params.yaml"))
    shutil.copy(ROOT / "stages/regression/claims.yaml", "claims.yaml")
    measure_runs(*tree["sweep"]["experiments"], depths=tree["sweep"]["depths"], seeds=[0, 1])
    for stage in (aggregate, plot, claims, report):
        stage()
    judged = pd.read_csv("data/claims/claims.csv").set_index("id")["verdict"]
    assert list(judged.index) == ["regression-nrc1", "regression-nrc2", "regression-nrc3", "regression-bound"]
    assert judged["regression-bound"] == "agrees"
    assert sorted(path.stem for path in Path("data/figures").glob("*.png")) == [
        "curves_decay", "curves_features", "curves_free", "depth_sweep", "spectra",
    ]  # fmt: skip
    summary = pd.read_csv("data/results/summary.csv")
    assert {"nrc1", "nrc2", "nrc3", "ufm_gap"} <= set(summary["metric"])
    assert not summary["metric"].str.startswith(("nc0", "nc1", "nc2", "nc3", "nc4", "ncc")).any()
    assert Path("data/report.html").is_file()
