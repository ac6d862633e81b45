"""The study of regression by DVC, made tiny: every stage, its claims, its figures and its page."""

from pathlib import Path

import pandas as pd
from pipeline import PARAMS, Clone


def test_every_stage_runs_and_what_needs_classes_is_left_out(tmp_path: Path) -> None:
    study = Clone.of_working_tree(tmp_path / "clone", PARAMS, report=True).study("regression")
    claims = (study.folder / "claims.yaml").read_text(encoding="utf-8")
    tree = study.params()
    tree["sweep"] |= {"seeds": [0, 1]}
    for each in tree["experiments"].values():
        each |= {"epochs": 60, "log_every": 5}
        each["data"] |= {"samples": 30, "test_samples": 10}
    study.write_params(tree)
    (study.folder / "claims.yaml").write_text(claims, encoding="utf-8")
    study.repro()
    data = study.folder / "data"
    judged = pd.read_csv(data / "claims/claims.csv").set_index("id")["verdict"]
    assert list(judged.index) == ["regression-nrc1", "regression-nrc2", "regression-nrc3", "regression-bound"]
    assert judged["regression-bound"] == "agrees"
    assert sorted(path.stem for path in (data / "figures").glob("*.png")) == [
        "curves_decay", "curves_features", "curves_free", "depth_sweep", "spectra",
    ]  # fmt: skip
    summary = pd.read_csv(data / "results/summary.csv")
    assert {"nrc1", "nrc2", "nrc3", "ufm_gap"} <= set(summary["metric"])
    assert not summary["metric"].str.startswith(("nc0", "nc1", "nc2", "nc3", "nc4", "ncc")).any()
    assert (data / "report.html").is_file()
