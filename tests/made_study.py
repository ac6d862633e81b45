"""A study as the stages before `report` leave it, made up: nothing is trained."""

import json
from pathlib import Path

import pandas as pd
from conftest import experiment_tree, params_tree
from made_tables import grid, measure, noisy, places_of
from ruamel.yaml import YAML

from ncpipe.config.params import Slopes
from ncpipe.tables.points import usable_points
from ncpipe.tables.profiles import layer_profile
from ncpipe.tables.slopes import leave_out_slopes, loglog_slopes
from ncpipe.tables.summary import summarise

RULE = Slopes(seed=0, level=0.95)
SETTING = {
    "architecture": "L-RN1", "norm": "post", "initialisation": "normal", "source": "digits",
    "loss_name": "ce", "last_bias": False, "penalty_rule": "constant", "penalty_value": 0.005,
    "penalty_last_layer": None, "penalty_biases": False, "penalty_scope": "matrices", "loss": 0.02,
    "loss_gap": 0.001, "loss_moved": 0.001, "last_train_error": 0.0, "diverged_at_epoch": None,
    "train_error": 0.0, "test_error": 0.1, "reason": "",
}  # fmt: skip
SVG = """<?xml version="1.0" encoding="utf-8" standalone="no"?>
<!DOCTYPE svg PUBLIC "-//W3C//DTD SVG 1.1//EN" "x.dtd">
<svg xmlns:xlink="http://www.w3.org/1999/xlink" width="486pt" height="200pt" viewBox="0 0 486 200"
 xmlns="http://www.w3.org/2000/svg" version="1.1">
 <metadata>of a date</metadata>
 <defs><clipPath id="clip"><rect width="200" height="90"/></clipPath></defs>
 <defs><path id="glyph" d="M 0 0 L 40 40"/></defs>
 <g id="figure_1" clip-path="url(#clip)"><use xlink:href="#glyph"/></g>
</svg>
"""
CLAIMS = """id,ref,author,statement,about,quantity,expected,verdict,value,low,high,runs,scale,reason
falls,S25,paper,NC1 falls,"one, nc1_trace_ratio",slope,< 0,agrees,-0.4,-0.5,-0.3,6 runs,,
rises,S25,paper,NC1 rises,"one, nc1_trace_ratio",slope,> 0,disagrees,-0.4,-0.5,-0.3,6 runs,,
ours,S25,ours,NC1 halves,"one, nc1_trace_ratio",slope,< -1,disagrees,-0.4,-0.5,-0.3,6 runs,,
late,S25,paper,NC2 falls,"one, nc2_etf (weights)",slope,< 0,does not apply,,,,0 runs,,no runs
"""


def tables(experiments=("one", "two"), depths=(2, 3, 5), seeds=(0, 1), layers=3, metrics=(), rows=5):
    """runs (the last of the first experiment diverged), points, slopes, layers, summary and history; and by
    layer, measurements and places."""
    runs = grid(experiments, depths, seeds).assign(**SETTING)
    bad = (runs["experiment"] == experiments[0]) & (runs["depth"] == depths[-1]) & (runs["seed"] == seeds[-1])
    runs = runs.assign(converged=~bad, selected=~bad, reason=bad.map({True: "diverged", False: ""}))
    series = [("nc1_trace_ratio", "train"), ("nc1_trace_ratio", "test"), ("rank_means", "train"), *metrics]
    parts = [
        measure(runs[runs["depth"] > i], noisy, metric, split, f"X{i}" if i else "last")
        for metric, split in series
        for i in range(layers if layers else max(depths))
    ]
    parts.append(measure(runs, lambda depth, seed: float(seed), "nc2_etf", "weights"))  # 0 at one seed
    measured = pd.concat(parts, ignore_index=True)
    last = measured[measured["layer"] == "last"]
    history = pd.concat(
        [
            runs[["experiment", "depth", "seed"]].assign(
                epoch=10 * i, loss=1.0 / (1 + i), fit=0.5, penalty=0.1, train_error=0.0, test_error=0.1
            )
            for i in range(rows)
        ],
        ignore_index=True,
    )
    return {
        "runs": runs,
        "points": usable_points(last, runs),
        "slopes": loglog_slopes(last, runs, RULE),
        "slopes_leave_out": leave_out_slopes(last, runs, RULE),
        "layers": layer_profile(measured, places_of(measured), runs),
        "summary": summarise(last, runs),
        "history": history,
        "measurements": measured,
        "places": places_of(measured),
    }


def write_study(folder: Path, made, **about):
    """params.yaml, and below data/ what `ncpipe report` reads."""
    runs = made["runs"]
    names = list(dict.fromkeys(runs["experiment"]))
    depths, seeds = (sorted({int(value) for value in runs[column]}) for column in ("depth", "seed"))
    tree = params_tree(depths, seeds, **{name: experiment_tree() for name in names}) | {"about": about}
    with (folder / "params.yaml").open("w", encoding="utf-8") as file:
        YAML().dump(tree, file)
    for name in ("results", "figures", "claims"):
        (folder / "data" / name).mkdir(parents=True)
    for name, table in made.items():
        if name in ("measurements", "places"):
            for experiment, rows in table.groupby("experiment"):
                (folder / f"data/metrics/{experiment}").mkdir(parents=True, exist_ok=True)
                rows.to_csv(folder / f"data/metrics/{experiment}/{name}.csv", index=False)
        else:
            table.to_csv(folder / f"data/results/{name}.csv", index=False)
    for name in ("depth_sweep", "loss_gap", "curves_one"):
        (folder / f"data/figures/{name}.svg").write_text(SVG)
    (folder / "data/claims/claims.csv").write_text(CLAIMS)
    for name, depth, seed in runs[["experiment", "depth", "seed"]].itertuples(index=False, name=None):
        place = folder / f"data/runs/{name}/L{depth}/s{seed}"
        place.mkdir(parents=True)
        record = {
            "computed_with": {"code": "c0de", "device": "cpu", "ncpipe": "0.1.0", "torch": "2.13.0"},
            "inputs": {
                "data_checksum": "da7a",
                "precision": "float32",
                "threads": 1,
                "spec": experiment_tree(),
            },
        }
        (place / "run.json").write_text(json.dumps(record))
