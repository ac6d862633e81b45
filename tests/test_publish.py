"""Publishing a sweep: its tables and figures with what made them, and drawing them again from there."""

import json
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from conftest import experiment_tree, measure_runs, write_params
from ruamel.yaml import YAML

from ncpipe.commands.aggregate import aggregate
from ncpipe.commands.claims import claims
from ncpipe.commands.plot import figures_of_published, plot_published, read_published
from ncpipe.commands.publish import SHOWN, publish
from ncpipe.config.params import load_params
from ncpipe.config.yaml_file import read_yaml
from ncpipe.runs.provenance import provenance
from ncpipe.runs.store import sweep_fingerprints
from ncpipe.runs.training_log import BATCH_LOG, FINISHED, HEAD, log_time
from ncpipe.system.artifacts import sha256_of
from ncpipe.system.errors import InputError

LEDGER = """
- {id: bound, ref: here, statement: no loss lies below the optimum, quantity: minimum, metric: loss_gap,
   experiment: one, expect: {at_least: 0}}
- {id: nc1, ref: here, statement: NC1 improves with depth, quantity: slope, without: 1,
   metric: nc1_trace_ratio, experiment: one, expect: {below: 0}}
"""


PANELS = """panel,kind,series,metric,split,xlabel,x,name,seed,value,verdict
NC1 at the end,place,nc1_trace_ratio,nc1_trace_ratio,train,,,one,0,0.5,agrees
NC1 at the end,place,nc1_trace_ratio,nc1_trace_ratio,train,,,two,0,0.25,agrees
"""


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the results of two experiments at two depths, two seeds each."""
    folder = tmp_path_factory.mktemp("swept")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        history = {"metrics": ["nc1_trace_ratio"], "at": [0.5, 1]}
        write_params([2, 3], [0, 1], one=experiment_tree(history=history), two=experiment_tree(loss="mse"))
        measure_runs("one", "two", depths=[2, 3], seeds=[0, 1])
        aggregate()
        Path("claims.yaml").write_text(LEDGER)
        claims()
        Path("data/claims/panels.csv").write_text(PANELS)  # no run of this sweep converged
        subprocess.run(["git", "init", "--quiet"], check=True)
        subprocess.run(["git", "add", "params.yaml"], check=True)
        author = ["-c", "user.name=A test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *author, "commit", "--quiet", "--message", "A state"], check=True)
        publish(Path("published"))
    return folder


def test_tables_are_those_of_the_sweep(swept: Path) -> None:
    """Line by line; of metrics that no figure shows, none."""
    published = swept / "published"
    for name in ("runs", "points", "summary", "slopes", "slopes_leave_out", "slopes_by_selection"):
        whole = (swept / "data" / "results" / f"{name}.csv").read_text().splitlines()
        kept = (published / f"{name}.csv").read_text().splitlines()
        shown = {f",{metric}," for metric in SHOWN}
        assert kept == [
            line for i, line in enumerate(whole) if not i or name == "runs" or any(m in line for m in shown)
        ]
    history = pd.read_csv(swept / "data/results/history.csv")
    measured = history[[name for name in history if name in SHOWN]].notna().any(axis=1)
    assert 0 < measured.sum() < len(history)
    assert len(pd.read_csv(published / "history.csv")) == measured.sum()
    for name in ("data/results/rates.txt", "params.yaml"):
        assert (published / Path(name).name).read_bytes() == (swept / name).read_bytes()
    assert not list(swept.glob("**/.partial/*"))
    assert not (swept / ".partial").exists()  # beside the folder itself, which is the user's own


def test_of_claims_there_are_those_that_the_sweep_answers(swept: Path) -> None:
    """Red: a ledger of claims about what nobody ran here, or at too few depths."""
    head, bound, slope = (swept / "data/claims/claims.csv").read_text().splitlines()
    assert "too few values of L above 0 with runs that are used for a slope" in slope
    assert (swept / "published/claims.csv").read_text().splitlines() == [head, bound]
    assert (swept / "published/panels.csv").read_bytes() == (swept / "data/claims/panels.csv").read_bytes()
    assert (swept / "published/panels.png").is_file()


def test_provenance_names_source_versions_machine_and_time(swept: Path) -> None:
    facts = json.loads((swept / "published" / "provenance.json").read_text())
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=swept, check=True, capture_output=True, text=True)
    runs = [swept / "data" / "runs" / name / "L2" / "s0" / "run.json" for name in ("one", "two")]
    records = [json.loads(run.read_text())["computed_with"] for run in runs]
    assert facts["source"] == {"commit": head.stdout.strip(), "changed": []}
    assert facts["trained_with"] == {key: sorted({record[key] for record in records}) for key in records[0]}
    assert facts["machine"]["cores"] >= 1
    assert facts["machine"]["processor"]
    assert set(facts["training"]) == {"one", "two"}
    assert all(record["batches"] == 2 and record["stopped"] == 0 for record in facts["training"].values())


def test_times_are_those_of_the_results_that_are_there(swept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red: hours of what has been replaced, or of another sweep with the same names; a batch with runs of two
    sweeps that is nobody's; a log that was cut off or is another version's, at which publishing ends."""
    monkeypatch.chdir(swept)
    log = Path("data/logs/batches.csv")
    before = log.read_text()
    said = provenance(load_params())["training"]
    head, *rows = before.splitlines()
    digest = rows[0].rpartition(",")[2].split()[-1]
    try:
        log.write_text(before + f"one,2,2,cpu,7200.00,finished,{'0' * 16}\none,2,1,cpu,36")
        assert provenance(load_params())["training"] == said
        log.write_text(before + f"gone,2,2,cpu,7200.00,stopped,{'0' * 16} {digest}\n")
        hours = said["one"]["batch_hours"] + 2
        more = provenance(load_params())["training"]
        assert more == said | {
            "one": said["one"] | {"stopped": 1, "batch_hours": pytest.approx(hours, abs=0.01)}
        }
        log.write_text("experiment,depth,runs,device,seconds,ended\none,2,2,cpu,7200.00,finished\n")
        assert provenance(load_params())["training"] == {}
        fingerprint = sweep_fingerprints(load_params(), load_params().compute)[0]
        log_time([fingerprint], "cpu", 36.0, FINISHED)
        assert log.read_text().splitlines()[0] == head
        assert provenance(load_params())["training"] == {
            "one": {"batch_hours": 0.01, "threads": 1, "batches": 1, "stopped": 0}
        }
    finally:
        log.write_text(before)


def test_batches_that_end_at_once_are_logged_below_one_head(
    swept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each in its thread. Red: a second head among the rows."""
    monkeypatch.chdir(swept)
    fingerprints = sweep_fingerprints(load_params(), load_params().compute)[:1]
    for trial in range(100):
        (tmp_path / str(trial)).mkdir()
        monkeypatch.chdir(tmp_path / str(trial))
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: log_time(fingerprints, "cpu", 36.0, FINISHED), range(8)))
        lines = BATCH_LOG.read_text().splitlines(keepends=True)
        assert lines.count(HEAD) == 1
        assert len(lines) == 9


def test_drawn_again_from_the_tables_alone(swept: Path, tmp_path: Path) -> None:
    """The same bytes, without the sweep and without params.yaml."""
    (tmp_path / "figure.csv").write_text("somebody's\n")
    plot_published([swept / "published"], tmp_path)
    names = [f"{name}.{kind}" for name in ("depth_sweep", "loss_gap", "panels") for kind in ("png", "svg")]
    for name in names:
        assert sha256_of(tmp_path / name) == sha256_of(swept / "published" / name)
    assert (tmp_path / "figure.csv").is_file()
    assert len(list(tmp_path.iterdir())) == 7


def test_a_folder_published_again_has_further_figures_with_their_tables(
    swept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red: a table that a figure needs and the folder lacks; an uncommitted change that is not named."""
    monkeypatch.chdir(swept)
    params, names = Path("params.yaml"), ["curves_one"]
    before = params.read_text()
    shutil.copytree("published", "further")
    Path("further/mine").mkdir()
    for note in ("mine/table.csv", "NOTES.md"):
        Path("further", note).write_text(note)
    try:
        params.write_text(before + "# a remark\n")
        publish(Path("further"), names)
    finally:
        params.write_text(before)
    assert [Path("further", note).read_text() for note in ("mine/table.csv", "NOTES.md")] == [
        "mine/table.csv",
        "NOTES.md",
    ]
    assert json.loads(Path("further/provenance.json").read_text())["source"]["changed"] == ["params.yaml"]
    assert Path("further/history.csv").read_bytes() == Path("data/results/history.csv").read_bytes()
    plot_published([Path("further")], Path("again"))
    assert [sha256_of(Path(f"further/{name}.png")) for name in names] == [
        sha256_of(Path(f"again/{name}.png")) for name in names
    ]
    with pytest.raises(InputError, match=r"^--figure layer: no figure of this sweep; take of .*layers"):
        publish(Path("further"), ["layer"])


def test_rows_have_the_scale_of_their_experiment(swept: Path, tmp_path: Path) -> None:
    """From params.yaml, else from the claims. Red: a reduced panel beside the paper's without a word."""
    folder = shutil.copytree(swept / "published", tmp_path / "reduced")

    def labels() -> list[str]:
        name, figure = next(figures_of_published(read_published([folder])))
        assert name == "depth_sweep"
        return [axes.get_ylabel() for axes in figure.axes if axes.get_ylabel()]

    pd.read_csv(folder / "claims.csv").assign(scale="toy").to_csv(folder / "claims.csv", index=False)
    first, second = labels()
    assert first.endswith("\ntoy\n0 of 4 runs converged")
    assert "toy" not in second, "no claim is about it"
    about = {"about": {"one": {"question": "q", "scale": "reduced, 250 images and 3 seeds"}}}
    (folder / "params.yaml").write_text(json.dumps(about), encoding="utf-8")
    assert "\nreduced,\n250 images and 3 seeds\n0 of 4 runs" in labels()[0]


def test_what_is_wrong_with_published_folders_is_named(swept: Path, tmp_path: Path) -> None:
    """Red: a KeyError of pandas, where a spreadsheet has saved a table; one experiment's rows twice."""
    published, folder = swept / "published", shutil.copytree(swept / "published", tmp_path / "copied")
    table = folder / "points.csv"
    table.write_text(table.read_text(encoding="utf-8").replace(",", ";"), encoding="utf-8")
    for sources, line in (
        ([published, published], r"published: one is also in .*published; give"),
        ([folder], r"points\.csv: damaged \(no column experiment\); run ncpipe publish"),
        ([tmp_path / "nothing"], r"runs\.csv: not found; give a folder"),
    ):
        with pytest.raises(InputError, match=line):
            plot_published(sources, tmp_path)


def test_results_of_other_parameters_are_not_published(
    swept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red: a rate or a level that nothing was trained or fitted with, beside the numbers of another one."""
    folder = tmp_path / "study"
    shutil.copytree(swept, folder)
    monkeypatch.chdir(folder)
    params = read_yaml(Path("params.yaml"))
    kept = {name: params[name] for name in ("experiments", "sweep")}
    stages = {
        "code": {"params": {"params.yaml": kept | {"compute.threads": params["compute"]["threads"]}}},
        "aggregate": {"params": {"params.yaml": {"slopes": params["slopes"] | {"level": 0.95}}}},
    }
    write_lock(stages)
    publish(Path("same"))
    stages["code"]["params"]["params.yaml"] |= {"compute.threads": 7}
    stages["aggregate"]["params"]["params.yaml"]["slopes"] |= {"level": 0.5}
    write_lock(stages)
    keys = r"compute\.threads and slopes\.level than params\.yaml has; run dvc repro"
    with pytest.raises(InputError, match=f"^publish: DVC last ran with another {keys}$"):
        publish(Path("other"))
    params["experiments"]["one"]["optimizer"]["learning_rate"] = 0.5
    Path("params.yaml").write_text(json.dumps(params), encoding="utf-8")
    with pytest.raises(InputError, match=r"^data/runs/one/L2/s0: trained with another .*; run dvc repro"):
        publish(Path("other"))


def write_lock(stages: dict[str, Any]) -> None:
    """As DVC writes it."""
    with Path("dvc.lock").open("w", encoding="utf-8") as file:
        YAML(typ="rt").dump({"schema": "2.0", "stages": stages}, file)


def test_nothing_is_replaced_but_what_was_published(swept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(swept)
    for folder in ("data", "."):
        with pytest.raises(InputError, match="give a new folder"):
            publish(Path(folder))
    assert Path("data/results/runs.csv").is_file()
