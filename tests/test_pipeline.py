"""The pipeline as DVC runs it, in a temporary clone: what runs, what is kept, and what ends on disk.

Each test's docstring ends with the fault that would turn it red.
"""

import ast
import copy
import csv
import json
import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import clear_code_digests
from pipeline import EPOCHS, PARAMS, ROOT, Clone, Copy, Made, Output, trained_in, trains
from ruamel.yaml import YAML

from ncpipe.commands import code, sweep
from ncpipe.commands.cli import run_cli
from ncpipe.commands.grid import write_grid
from ncpipe.config.params import load_params
from ncpipe.integrations import notebook as results
from ncpipe.runs import closures
from ncpipe.system.errors import InputError

pytestmark = [
    pytest.mark.pipeline,
    pytest.mark.skipif(not (ROOT / ".git").exists(), reason="clones the repository, and this is no checkout"),
    pytest.mark.skipif(os.name == "nt", reason="stops process groups"),
]

BOTH = ["alpha", "beta"]
ALL_TRAINS = trains(BOTH, [2, 3], [0, 1])
PER_EXPERIMENT = [f"{kind}@{name}" for kind in ("fetch", "extract", "measure") for name in BOTH]
ALL_STAGES = sorted(["code", "fill", "grid", *PER_EXPERIMENT, *ALL_TRAINS, "aggregate", "plot", "claims"])
TABLES = [f"data/{name}" for name in ("grid", "results", "figures", "claims")]  # of the whole sweep
OUTPUTS = [*TABLES, *(f"data/{name}" for name in ("prepared", "runs", "features", "metrics"))]
RUN_FILES = {"history.csv", "model.safetensors", "run.json", "manifest.json"}
SWEEP_FIGURES = ("depth_sweep", "loss_gap", "layers", "train_test", "heat_maps", "spectra")


def table(clone: Clone, name: str) -> list[dict[str, str]]:
    with (clone.folder / "data/results" / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def dvc_metrics(clone: Clone) -> dict[str, dict[str, float]]:
    return json.loads((clone.folder / "data/results/metrics.json").read_text())


def plotted(plots: dict[str, Any], name: str) -> list[dict[str, str]]:
    """The rows that one of DVC's plots is drawn from."""
    [plot] = plots[name]
    return plot["content"]["data"]["values"]


def figures(clone: Clone) -> set[str]:
    return {path.name for path in (clone.folder / "data/figures").iterdir()}


def replace(clone: Clone, name: str, old: str, new: str) -> None:
    """Change a module of the package in one place."""
    path = clone.folder / "ncpipe" / name
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, (name, old)
    path.write_text(text.replace(old, new), encoding="utf-8")


def written_anew(text: str) -> str:
    """The same program in another layout, without comments, each docstring another."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            node.body[0] = ast.Expr(ast.Constant("Written anew."))
    return ast.unparse(tree) + "\n"


def add_one_of_each_kind(clone: Clone) -> None:
    """A network, a data set and a metric that no experiment of the clone uses, as one adds them."""
    (clone.folder / "ncpipe/config/architectures/other.py").write_text(
        "from dataclasses import dataclass\nfrom typing import Literal\n\n"
        "from ncpipe.config.architectures.mlp import MLPModel\n\n\n"
        '@dataclass(frozen=True)\nclass OtherModel(MLPModel):\n    architecture: Literal["other"]\n'
    )
    imported = "from ncpipe.config.architectures.mlp import MLPModel\n"
    for name, old, new in (
        (
            "config/experiment.py",
            imported,
            f"{imported}from ncpipe.config.architectures.other import OtherModel\n",
        ),
        ("config/experiment.py", " | MLPModel | ", " | MLPModel | OtherModel | "),
        (
            "models/build.py",
            imported,
            f"{imported}from ncpipe.config.architectures.other import OtherModel\n",
        ),
        (
            "models/build.py",
            "    MLPModel: ",
            "    OtherModel: Family(flatten, MLP),\n    MLPModel: ",
        ),
        (
            "datasets/prepare.py",
            '    "digits": prepare_digits,',
            '    "more_digits": prepare_digits,\n    "digits": prepare_digits,',
        ),
        (
            "metrics/collapse.py",
            "def within_trace(",
            '@metric("NC1", "twice CDNV", "twice `cdnv`", "[0, ∞]", order=2)\n'
            "def twice_cdnv(statistics: ClassStatistics) -> float:\n"
            "    return 2 * cdnv(statistics)\n\n\ndef within_trace(",
        ),
    ):
        replace(clone, name, old, new)


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Clone], list[str]]]:
    """Returns what is stale in a clone, but for `code`, once `code` and `grid` have run.

    They run in this process, which takes a third of the time that DVC needs for them.
    """

    def described(clone: Clone) -> list[str]:
        monkeypatch.chdir(clone.folder)
        for module in (closures, code):
            monkeypatch.setattr(module, "ROOT", clone.folder)
        clear_code_digests()
        code.write_code()
        write_grid()
        return [stage for stage in clone.stale() if stage != "code"]

    yield described
    clear_code_digests()


class TestFreshClone:
    def test_one_command_makes_tables_and_figures(self, swept_first: Made) -> None:
        """Red: a stage that needs a file which no stage before it writes; a stage left out of dvc.yaml."""
        clone, output = swept_first
        assert sorted(output.ran) == ALL_STAGES
        names = (*SWEEP_FIGURES, "curves_alpha", "curves_beta")
        assert figures(clone) == {f"{name}.{kind}" for name in names for kind in ("png", "svg")}
        found = dvc_metrics(clone)
        assert {name: (own["runs"], own["converged"]) for name, own in found.items()} == {
            "alpha": (4, 4),
            "beta": (4, 4),
        }
        assert all("slope_nc1_trace_ratio" in own for own in found.values())
        assert all("slope_loss_gap" in own and "deepest" not in own for own in found.values())
        assert {row["bound"] for row in table(clone, "runs")} == {"holds"}
        said = (clone.folder / "data/results/rates.txt").read_text(encoding="utf-8").splitlines()
        assert list(dict.fromkeys(line.split()[0] for line in said)) == ["line", *BOTH]
        printed = [line.strip() for line in output.err.splitlines()]
        assert all("4 of 4" in line for line in said[1:])
        assert set(said) <= set(printed)

    def test_every_network_is_trained_once(self, swept_first: Made) -> None:
        """Red: a batch that trains what is stored already; a stored run that its stage does not take."""
        _, output = swept_first
        assert output.trained == ALL_TRAINS
        assert output.err.count("taken from the store") == len(ALL_TRAINS)
        assert "train alpha --depth 2 --seed 0: taken from the store" in output.err  # the fast way

    def test_a_notebook_is_told_of_what_there_is_not(self, swept: Clone) -> None:
        """Red: a run or a table that is none ends in an error of Python's."""
        study = results.load(swept.folder / "docs")
        with pytest.raises(InputError, match=r"alpha L=9 seed=0: not in the sweep of beta, alpha at depths"):
            study.run("alpha", depth=9, seed=0)
        with pytest.raises(InputError, match=r"no table slope; the tables are .*, slopes, "):
            study.table("slope")

    def test_a_notebook_is_told_of_damage(self, swept: Clone, own_copy: Copy) -> None:
        """Red: weights of which one bit is another; a run of other parameters taken for the one asked for."""
        clone = own_copy(swept)
        weights = clone.folder / "data/runs/alpha/L2/s0/model.safetensors"
        content = bytearray(weights.read_bytes())
        content[-1] ^= 1
        weights.unlink()  # a link into DVC's cache
        weights.write_bytes(content)
        study = results.load(clone.folder)
        with pytest.raises(InputError, match=r"model\.safetensors"):
            study.run("alpha", depth=2, seed=0).model()
        assert weights.exists()
        clone.edit_params("experiments.alpha.optimizer.learning_rate", 0.03)
        study = results.load(clone.folder)
        with pytest.raises(InputError, match="trained with another spec"):
            study.run("alpha", depth=2, seed=1).model()
        with pytest.raises(InputError, match=r"no params\.yaml here or above"):
            results.load(clone.folder.parent)

    def test_again_runs_nothing(self, swept: Clone) -> None:
        """Red: a stage that writes to its own dependencies; a command that leaves files in a listed one."""
        output = swept.repro()
        assert output.ran == output.restored == []
        assert swept.stale() == []

    def test_git_sees_nothing_but_the_lock(self, swept: Clone) -> None:
        """Red: outputs that .gitignore does not cover, so that DVC writes a .gitignore beside them."""
        status = swept.run("git", "status", "--porcelain").out
        assert status.split() == ["??", "dvc.lock"]
        assert list((swept.folder / "data").rglob(".gitignore")) == []


class TestOtherNetworks:
    @pytest.mark.long
    def test_those_of_the_page_reach_the_figures(self, cut: Clone, own_copy: Copy) -> None:
        """As docs/networks.md has them, but short. Red: a key or file that a stage does not know."""
        page = (ROOT / "docs/networks.md").read_text(encoding="utf-8")
        experiments = YAML(typ="safe").load(page.split("```yaml\n")[1].split("```")[0])["experiments"]
        for tree in experiments.values():
            tree |= {"epochs": 4, "log_every": 1}
        clone, names = own_copy(cut), list(experiments)
        clone.write_params(
            clone.params()
            | {"experiments": experiments, "sweep": {"experiments": names, "depths": [8], "seeds": [0]}}
            | {"about": {}}
        )
        output = clone.repro()
        assert [stage for stage in output.ran if stage.startswith("train")] == [
            f"train@{name}-8-0" for name in names
        ]
        assert {row["bound"] for row in table(clone, "runs")} == {"features not bounded"}
        drawn = {*SWEEP_FIGURES, *(f"curves_{name}" for name in names)} - {"loss_gap"}
        assert {name for name in figures(clone) if name.endswith(".png")} == {f"{name}.png" for name in drawn}
        for name, tree in experiments.items():
            record = json.loads((clone.folder / f"data/runs/{name}/L8/s0/run.json").read_text())
            assert record["inputs"]["spec"]["model"] == tree["model"]
        history = [row for row in table(clone, "history") if row["nc2_etf"]]
        assert {(row["experiment"], row["epoch"]) for row in history} == {
            ("digits_mlp", epoch) for epoch in ("0", "1", "2", "4")
        }
        assert clone.repro().ran == []


ALPHA_TRAINS = trains(["alpha"], [2], [0, 7])
NEW_TRAINS = sorted([*trains(["wild"], [2], [0, 7]), "train@alpha-2-7"])


@pytest.fixture(scope="session")
def changed_first(swept: Clone, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A seed and an experiment more, which diverges; one of each less, and one depth. Not to be changed."""
    clone = swept.copy(tmp_path_factory.mktemp("changed") / "clone")
    wild = copy.deepcopy(PARAMS["experiments"]["alpha"])
    wild["optimizer"] = {"name": "sgd", "learning_rate": 1e10, "momentum": 0.0}
    clone.edit_params("experiments.wild", wild)
    clone.edit_params("sweep", {"experiments": ["wild", "alpha"], "depths": [2], "seeds": [7, 0]})
    assert [name for name in clone.stale() if name.startswith("train")] == NEW_TRAINS
    return clone, clone.repro()


class TestWhatRuns:
    """After an edit of params.yaml or of the code."""

    def test_new_seeds_and_experiments_train_themselves_alone(self, changed_first: Made) -> None:
        """Red: `sweep` among the parameters of train, or the axes in its command; a diverged run that stops
        the sweep, is dropped from the tables, or counts as converged."""
        clone, output = changed_first
        assert output.trained == NEW_TRAINS
        assert [name for name in output.ran if name.startswith("fetch")] == ["fetch@wild"]
        assert sorted(name for name in output.ran if name.startswith("train")) == NEW_TRAINS
        assert re.search(r"wild +NC1 +no rate +0 of 2 +0 of 2", output.err)
        assert "wild: 2 of 2 runs diverged: lower optimizer" in output.err
        rows = {(row["experiment"], row["seed"]): row for row in table(clone, "runs")}
        assert {key: row["converged"] for key, row in rows.items()} == {
            ("alpha", "0"): "True",
            ("alpha", "7"): "True",
            ("wild", "0"): "False",
            ("wild", "7"): "False",
        }
        assert rows["wild", "7"]["reason"] == "diverged"
        found = dvc_metrics(clone)
        assert found["wild"] == {"runs": 2, "converged": 0}
        assert (found["alpha"]["runs"], found["alpha"]["converged"]) == (2, 2)
        assert set(found) == {"alpha", "wild"}

    def test_what_was_removed_leaves_tables_and_figures(self, swept: Clone, changed_first: Made) -> None:
        """A depth, a seed and an experiment.

        Red: a stage that globs data/runs instead of reading the grid, or does not depend on it; aggregate or
        plot that take what lies in data/metrics or data/figures from an earlier sweep."""
        clone, output = changed_first
        after = [f"{kind}@{name}" for kind in ("extract", "measure") for name in ("alpha", "wild")]
        others = {*output.ran} - {*NEW_TRAINS, "fetch@wild"}
        assert others == {"code", "fill", "grid", *after, "aggregate", "plot", "claims"}
        for name in ("points", "summary", "runs", "history"):
            assert {row["depth"] for row in table(clone, name)} == {"2"}
        for name in ("points", "summary", "slopes", "runs", "history"):
            assert {row["experiment"] for row in table(clone, name)} - {"wild"} == {"alpha"}
        assert {row["seed"] for row in table(clone, "runs")} == {"0", "7"}
        names = (*SWEEP_FIGURES, "curves_alpha", "curves_wild")
        assert figures(clone) == {f"{name}.{kind}" for name in names for kind in ("png", "svg")}
        before, now = swept.digests("data/figures"), clone.digests("data/figures")
        assert not [name for name in before.keys() & now.keys() if before[name] == now[name]]

    def test_a_new_depth_trains_itself_alone(self, swept: Clone, own_copy: Copy) -> None:
        """Red: as for a new seed."""
        clone = own_copy(swept)
        clone.edit_params("sweep.depths", [3, 2, 5])
        new = trains(BOTH, [5], [0, 1])
        assert [name for name in clone.stale() if name.startswith("train")] == new
        would = clone.run("dvc", "repro", "--dry").ran
        assert sorted(name for name in would if name.startswith("train")) == new
        assert not [name for name in would if name.startswith("fetch")]

    def test_what_was_removed_comes_back_without_training(
        self, swept: Clone, changed_first: Made, own_copy: Copy
    ) -> None:
        """Red: an output that is not cached; a result that depends on what lay there before."""
        clone = own_copy(changed_first[0])
        clone.write_params(PARAMS)
        shutil.rmtree(clone.folder / "data/runs/alpha/L2/s7")  # DVC leaves it, and extract has it as input
        output = clone.repro()
        assert (output.ran, output.trained) == (["fill"], [])  # which removes what the sweep no longer has
        assert clone.digests(*OUTPUTS).items() >= swept.digests(*OUTPUTS).items()
        assert clone.digests(*TABLES) == swept.digests(*TABLES)

    def test_reordered_axes_redraw_at_most(
        self, swept: Clone, own_copy: Copy, described: Callable[[Clone], list[str]]
    ) -> None:
        """Red: extract or measure depend on the axes' order, by the grid's rows or by params.yaml."""
        clone = own_copy(swept)
        clone.edit_params("sweep.depths", [2, 3])
        clone.edit_params("sweep.seeds", [1, 0])
        assert described(clone) == ["grid"]
        clone.edit_params("sweep.experiments", ["alpha", "beta"])
        assert described(clone) == ["grid", "plot"]
        assert clone.digests("data/grid") == swept.digests("data/grid")

    def test_a_removed_experiment_leaves_the_others_stages(
        self, swept: Clone, own_copy: Copy, described: Callable[[Clone], list[str]]
    ) -> None:
        """Red: extract or measure that depend on other experiments' rows of the grid."""
        clone = own_copy(swept)
        clone.edit_params("sweep.experiments", ["alpha"])
        assert described(clone) == ["aggregate", "fill", "grid", "plot"]

    def test_code_that_is_only_written_differently_runs_nothing(self, swept: Clone, own_copy: Copy) -> None:
        """Every comment gone, every docstring another, every line laid out anew.

        Red: a stage that depends on a file of the package; a digest of the text."""
        clone = own_copy(swept)
        for path in (clone.folder / "ncpipe").rglob("*.py"):
            path.write_text(written_anew(path.read_text(encoding="utf-8")), encoding="utf-8")
        output = clone.repro()
        assert output.ran == ["code"]
        assert clone.stale() == []

    def test_what_changed_code_makes_stale(
        self,
        swept: Clone,
        own_copy: Copy,
        described: Callable[[Clone], list[str]],
    ) -> None:
        """One change after the other.

        Red: a digest of whole tables, or of a file that no import leads to; one that an import leads to and
        that is not followed; a plan of the digests that DVC knows, not of the code that lies there."""
        clone = own_copy(swept)
        replace(clone, "figures/depth_sweep.py", "RUN_SIZE = 2.2", "RUN_SIZE = 2.3")
        assert described(clone) == ["plot"]
        replace(clone, "figures/labels.py", '"digits": "', '"digits": "the ')  # a caption
        assert described(clone) == ["claims", "plot"]
        add_one_of_each_kind(clone)
        kinds = {name.partition("@")[0] for name in described(clone)}
        assert kinds == {"grid", "extract", "measure", "aggregate", "plot", "claims"}
        replace(clone, "training/schedules.py", "1 + math.cos(", "0.99 + math.cos(")
        clear_code_digests()
        params = load_params()
        assert len(sweep.runs_to_train(params, params.compute)[0]) == len(ALL_TRAINS)
        assert [name for name in described(clone) if name.startswith("train")] == ALL_TRAINS

    def test_compute(self, swept: Clone, own_copy: Copy, described: Callable[[Clone], list[str]]) -> None:
        """Red: `compute` as a whole among the parameters of `code`, or not all of it that decides a result; a
        stage that lists compute.device."""
        clone = own_copy(swept)
        clone.edit_params("compute.device", "auto")
        assert clone.stale() == []
        clone.edit_params("compute.threads", 2)
        assert described(clone) == ["fill", *ALL_TRAINS]
        clone.edit_params("compute", PARAMS["compute"] | {"precision": "float64"})
        assert described(clone) == ["fill", *ALL_TRAINS]

    def test_rules_of_the_analysis_train_nothing(self, swept: Clone, own_copy: Copy) -> None:
        """Red: convergence or slopes among the parameters of a stage before aggregate."""
        clone = own_copy(swept)
        clone.edit_params("convergence.tolerance", 0.02)
        clone.edit_params("slopes.seed", 200)
        assert clone.stale() == ["aggregate", "claims"]


@pytest.fixture(scope="session")
def compared_first(changed_first: Made, tmp_path_factory: pytest.TempPathFactory) -> Made:
    clone = changed_first[0].copy(tmp_path_factory.mktemp("compared") / "clone")
    clone.commit()
    rate = "experiments.alpha.optimizer.learning_rate=5e-2"
    return clone, clone.run("dvc", "exp", "run", "--name", "quick", "--set-param", rate)


@pytest.fixture(scope="session")
def compared(compared_first: Made) -> Clone:
    """`changed_first`, committed, after an experiment of another learning rate. Not to be changed."""
    return compared_first[0]


class TestExperiments:
    """DVC's experiments: the same pipeline under other parameters."""

    def test_a_learning_rate_reruns_its_own_runs(self, compared_first: Made) -> None:
        """Red: `experiments` as a whole among the parameters of a stage; a plot that DVC cannot load and for
        which it drops the experiment."""
        _, output = compared_first
        assert output.trained == ALPHA_TRAINS
        trained = [name for name in output.ran if name.startswith("train")]
        assert sorted(trained) == ALPHA_TRAINS
        after = ["extract@alpha", "measure@alpha", "aggregate", "plot", "claims"]
        assert output.ran == ["code", "fill", *trained, *after]

    def test_show_lists_parameters_beside_metrics(self, compared: Clone) -> None:
        """Red: metrics.json that dvc.yaml does not name, or whose keys carry no experiment."""
        lines = compared.run("dvc", "exp", "show", "--csv").out.splitlines()
        rows = {row["Experiment"] or row["rev"]: row for row in csv.DictReader(lines)}
        rate, nc1 = "experiments.alpha.optimizer.learning_rate", "alpha.deepest.log10_nc1_trace_ratio"
        [head] = rows.keys() - {"quick", "workspace"}
        assert {name: float(rows[name][rate]) for name in ("quick", head)} == {"quick": 0.05, head: 0.02}
        assert len({rows[name][nc1] for name in ("quick", head, "workspace")} - {""}) == 2
        [base] = [row for row in compared.json("dvc", "exp", "show") if row["rev"] != "workspace"]
        assert {own["name"] for own in base["experiments"]} == {"quick"}

    def test_the_documented_line_shows_what_changed_and_no_more(self, compared: Clone) -> None:
        """Red: a metric for each split and each NC2; a line of the docs that DVC does not take."""
        page = (ROOT / "docs/comparing.md").read_text(encoding="utf-8")
        [line] = re.findall(r"^dvc (exp show --only-changed .*?)(?:\s+#.*)?$", page, re.MULTILINE)
        wide = {"COLUMNS": "400"}  # the table is cut at the terminal's width
        shown = compared.run("dvc", *shlex.split(line), "--no-pager", env=wide).out
        [head] = [row for row in shown.splitlines() if "Experiment" in row]
        columns = [name for name in head.split() if name != "Created"]  # shown where the minutes differ
        assert columns[0] == "Experiment"
        assert "experiments.alpha.optimizer.learning_rate" in columns
        series = ("nc1_trace_ratio", "nc2_etf", "nc3_cosine")  # the gap is for `ncpipe compare`
        metrics = {f"alpha.deepest.log10_{name}" for name in series}  # one depth, so no slope
        assert metrics == set(columns[1:]) - {"experiments.alpha.optimizer.learning_rate"}

    def test_compare_reads_experiments_without_a_checkout(self, compared: Clone) -> None:
        """Red: results read from the workspace; a parameter of an experiment that is not in the sweep."""
        before = compared.run("git", "status", "--porcelain").out
        said = compared.run("ncpipe", "compare", "quick", "HEAD")
        assert said.err == f"ncpipe: runs the code of {compared.folder.resolve() / 'ncpipe'}\n"
        without_intervals = re.sub(r" \[.*?\]", "", said.out)
        lines = [line.split() for line in without_intervals.splitlines()]
        assert lines[1] == ["experiments.alpha.optimizer.learning_rate", "0.05", "0.02"]
        theirs = compared.json("dvc", "metrics", "diff", "quick", "HEAD")["data/results/metrics.json"]
        gap = theirs["alpha.deepest.log10_loss_gap"]
        numbers = [f"{gap['old']:.2f}", f"{gap['new']:.2f}", f"{gap['diff']:+.2f}", "1", "of", "1"]
        [shown, *_] = [line for line in lines if line[:2] == ["log10", "loss_gap"]]
        assert shown[: 6 + len(numbers)] == ["log10", "loss_gap", "at", "L", "=", "2", *numbers]
        table = compared.run("ncpipe", "compare", "quick", "HEAD", "--csv").out
        rows = list(csv.DictReader(table.splitlines()))
        assert {row["difference"] for row in rows if row["experiment"] == "wild"} == {"", "0.0"}
        assert compared.run("git", "status", "--porcelain").out == before

    @pytest.mark.parametrize(
        ("revisions", "message"),
        [
            (["quick", "quik"], "quik: neither a git revision nor a DVC experiment"),
            (["quick", "HEAD~1"], "HEAD~1: data/results/points.csv: not in the revision"),
            (["quick"], "compare: give at least two"),
        ],
    )
    def test_what_cannot_be_compared_is_one_line(
        self, revisions: list[str], message: str, compared: Clone, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Red: a traceback of DVC's; a table of nothing."""
        monkeypatch.chdir(compared.folder)
        monkeypatch.setenv("DVC_SITE_CACHE_DIR", compared.environment["DVC_SITE_CACHE_DIR"])
        monkeypatch.setattr(sys, "argv", ["ncpipe", "compare", *revisions])
        with pytest.raises(SystemExit, match=f"^ncpipe: {re.escape(message)}.*$") as stop:
            run_cli()
        assert "\n" not in str(stop.value.code)

    def test_plots_diff(self, compared: Clone) -> None:
        """Red: dvc.yaml without the figure or without the data of NC against depth."""
        plots = compared.json("dvc", "plots", "diff", "quick", "HEAD")["data"]
        figure = plots["data/figures/depth_sweep.png"]
        assert sorted(own["revisions"][0] for own in figure) == ["HEAD", "quick"]
        rows = plotted(plots, "data/results/depth/alpha.csv")
        assert {row["rev"] for row in rows} == {"quick", "HEAD"}
        assert len({row["nc1_trace_ratio"] for row in rows}) == 2
        assert {row["depth"] for row in rows} == {"2"}

    def test_a_reverted_parameter_is_restored_without_training(
        self, changed_first: Made, compared: Clone, own_copy: Copy
    ) -> None:
        """Red: `cache: false` or no dependencies in train, which switch DVC's run cache off; a time or a path
        in an output."""
        clone, before = own_copy(compared), changed_first[0]
        clone.write_params(before.params())
        output = clone.repro()
        assert (output.ran, output.trained) == (["fill"], [])
        assert {*ALPHA_TRAINS} <= {*output.restored}
        assert clone.digests("data/results", "data/figures") == before.digests("data/results", "data/figures")
        assert clone.digests("data/runs/alpha/L2/s0") == before.digests("data/runs/alpha/L2/s0")


class TestPlots:
    def test_one_runs_own_history(self, swept: Clone, tmp_path: Path) -> None:
        """By the command of docs/comparing.md. Red: a history in a format that DVC does not plot, or without
        its epochs."""
        path = "data/runs/beta/L3/s1/history.csv"
        options = ["-x", "epoch", "-y", "loss", "--out", str(tmp_path / "json")]
        plots = swept.json("dvc", "plots", "show", path, *options)["data"]
        rows = plotted(plots, path)
        steps = [int(row["epoch"]) for row in rows]
        assert steps == sorted(set(steps))
        assert (steps[0], steps[-1]) == (0, EPOCHS)
        assert float(rows[-1]["loss"]) < float(rows[0]["loss"])


@dataclass(frozen=True)
class Killed:
    """A second fresh clone, in another folder, in which three commands were killed before a sweep ended.

    planned: what git saw of a plan before them. outputs: what each of the four said. runs: the run folders
    after each, as stage names.
    """

    clone: Clone
    planned: str
    outputs: list[Output]
    runs: list[list[str]]

    @property
    def finished(self) -> list[set[str]]:
        """Stages that ended well in each: all but the last if it was killed."""
        return [set(output.ran[:-1] if output.code else output.ran) for output in self.outputs]


def shape_of(stage: str) -> str:
    """What runs that train side by side have in common: `train@alpha-2`."""
    return stage.rpartition("-")[0]


def in_second_batch(said: list[str]) -> bool:
    return len({shape_of(name) for name in trained_in("".join(said))}) == 2


def about_to_claim(said: list[str]) -> bool:
    """Whether DVC has come to a run that was trained in a batch before."""
    stage = re.match(r"Running stage '(train@.*)'", said[-1])
    return stage is not None and stage[1] in trained_in("".join(said))


@pytest.fixture(scope="session")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    """Two die in the middle of a batch, the third when a trained network waits in the store."""
    clone = Clone.of_working_tree(tmp_path_factory.mktemp("killed") / "a second clone", PARAMS)
    clone.run("ncpipe", "sweep", "--dry-run")
    planned = clone.run("git", "status", "--porcelain").out
    outputs, runs = [], []
    for reached, command in (
        (in_second_batch, ["dvc", "repro"]),
        (in_second_batch, ["ncpipe", "sweep"]),
        (about_to_claim, ["dvc", "repro"]),
    ):
        outputs.append(clone.stop_when(reached, signal.SIGKILL, *command))
        runs.append(runs_on_disk(clone))
    torn = next(name for name in ALL_TRAINS if name not in runs[-1])
    for folder in (run_folder(clone, torn), clone.folder / "data/.partial" / torn):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.safetensors").write_bytes(b"half")
    outputs.append(clone.run("ncpipe", "sweep"))
    runs.append(runs_on_disk(clone))
    return Killed(clone, planned, outputs, runs)


def run_folder(clone: Clone, stage: str) -> Path:
    name, depth, seed = stage.removeprefix("train@").split("-")
    return clone.folder / "data/runs" / name / f"L{depth}" / f"s{seed}"


def runs_on_disk(clone: Clone) -> list[str]:
    return [name for name in ALL_TRAINS if run_folder(clone, name).exists()]


class TestKilled:
    def test_no_half_run_is_left(self, killed: Killed) -> None:
        """Red: a run that is written in its own place."""
        assert [output.code for output in killed.outputs] == [*[-signal.SIGKILL] * 3, 0]
        finished = set()
        for runs, own in zip(killed.runs, killed.finished, strict=True):
            finished |= own
            assert set(runs) == finished & set(ALL_TRAINS)
        assert killed.runs[-1] == ALL_TRAINS
        for name in ALL_TRAINS:
            assert {path.name for path in run_folder(killed.clone, name).iterdir()} == RUN_FILES

    def test_every_network_outside_the_killed_batches_is_trained_once(self, killed: Killed) -> None:
        """Red: a store that a restart throws away, so that what waits in it trains again; a run that one of
        `dvc repro` and `ncpipe sweep` has trained and the other does not take."""
        in_killed_batches = []
        for output in killed.outputs[:2]:
            announced = [name for line in output.out.splitlines() for name in trained_in(line)]
            in_killed_batches += [name for name in announced if shape_of(name) == shape_of(announced[-1])]
        trained = [name for output in killed.outputs for name in output.trained]
        assert sorted(trained) == sorted(ALL_TRAINS + in_killed_batches)
        taken = sum(output.err.count("taken from the store") for output in killed.outputs)
        assert taken in (len(ALL_TRAINS), len(ALL_TRAINS) + 1)  # once more where the kill came too late

    def test_a_sweep_in_another_clone_ends_with_the_same_bytes(self, killed: Killed, swept: Clone) -> None:
        """Trained in part, and all but trained, by `ncpipe sweep`. Red: a time, a path, a batch's company, an
        interruption or the command that leaves a trace in a result; a stage that a sweep leaves stale."""
        first, second = swept.digests(*OUTPUTS), killed.clone.digests(*OUTPUTS)
        assert len(first) > 80
        assert first == second
        assert killed.clone.repro().ran == []

    def test_a_plan_leaves_a_fresh_clone_as_it_is(self, killed: Killed) -> None:
        """Red: a plan that runs DVC's first stages, whose lock git then sees."""
        assert killed.planned == ""


class TestBadEnds:
    def test_the_first_stage_says_which_parameter(self, swept: Clone, own_copy: Copy) -> None:
        """DVC chooses which that is. Red: a command that reads no more of params.yaml than it needs, so that
        a bad value fails hours later."""
        clone = own_copy(swept)
        clone.edit_params("sweep.depths", [2, 1])
        output = clone.run("dvc", "repro", check=False)
        assert output.code != 0
        assert len(output.ran) == 1
        assert output.trained == []
        assert "sweep.depths: 1 does not suit" in output.err

    @pytest.mark.parametrize("limit", [512, 1200])
    def test_a_full_disk_is_one_line(self, limit: int, swept: Clone, own_copy: Copy) -> None:
        """Red: a traceback from the writer of the weights (512 bytes) or of run.json (1200 bytes); a
        half-written folder."""
        clone = own_copy(swept)
        program = (
            "import os, resource, sys\n"
            f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n"
            "os.execvp(sys.argv[1], sys.argv[1:])"
        )
        command = [sys.executable, "-c", program, "ncpipe", "train", "alpha", "2", "9"]
        output = clone.run(*command, check=False, env={"PYTHONDONTWRITEBYTECODE": "1"})
        assert output.code == 1
        *_, announcement, line = output.err.splitlines()
        assert announcement.startswith("train alpha L=2 seed=9:")
        assert line.startswith("ncpipe: ")
        assert "File too large" in line
        assert not (clone.folder / "data/runs/alpha/L2/s9").exists()
        assert list((clone.folder / "data/.partial").iterdir()) == []


class TestSweep:
    """`ncpipe sweep`: what `dvc repro` makes, trained by an engine before that (see TestKilled)."""

    def test_the_plan_counts_what_is_stale(self, swept: Clone, own_copy: Copy) -> None:
        """Red: runs planned that are up to date; a plan that trains or changes DVC's lock."""
        clone = own_copy(swept)
        clone.edit_params("sweep.depths", [2])
        clone.edit_params("sweep.seeds", [0, 5, 6])
        before = clone.digests("data")
        plan = clone.run("ncpipe", "sweep", "--dry-run").out.splitlines()
        assert clone.digests("data") == before
        assert plan[-1] == "4 runs to train"
        batches = [line.split() for line in plan[1 : plan.index("")]]
        assert {(name, depth) for name, depth, *_ in batches} == {("alpha", "L=2"), ("beta", "L=2")}
        assert sum(int(cells[2]) for cells in batches) == 4
        assert {int(cells[3]) for cells in batches} == {EPOCHS}

    @pytest.mark.long
    def test_an_edit_while_it_trains_is_never_taken_for_what_was_asked(
        self, cut: Clone, own_copy: Copy
    ) -> None:
        """What trained is stored as what it is, and what is asked for by then is trained.

        Red: a run under the fingerprint of params.yaml as it is when the run has ended."""
        clone = own_copy(cut)
        clone.edit_params("experiments.alpha.epochs", 4 * EPOCHS)  # time to edit in
        params = clone.params()
        process = clone.start("ncpipe", "sweep")
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("train "):
                clone.edit_params("experiments.alpha.optimizer.learning_rate", 0.03)
                break
        said = process.stdout.read()
        process.stdout.close()
        assert process.wait() == 0, said
        record = clone.folder / "data/runs/alpha/L2/s0/run.json"
        rates = [json.loads(record.read_text())["inputs"]["spec"]["optimizer"]["learning_rate"]]
        clone.write_params(params)  # the edit taken back: what was trained is what is asked for again
        output = clone.run("ncpipe", "sweep")
        assert output.trained == []
        rates.append(json.loads(record.read_text())["inputs"]["spec"]["optimizer"]["learning_rate"])
        assert rates == [0.03, params["experiments"]["alpha"]["optimizer"]["learning_rate"]]
        assert clone.stale() == []

    @pytest.mark.long
    def test_keep_going_finishes_the_others(self, cut: Clone, own_copy: Copy) -> None:
        """Red: one experiment that cannot train takes the others with it, or counts as trained."""
        clone = own_copy(cut)
        broken = copy.deepcopy(clone.params()["experiments"]["alpha"])
        broken["model"]["initialisation"] = "construction"  # of more layers than these have
        clone.edit_params("experiments.broken", broken)
        clone.edit_params("sweep.experiments", ["broken", "alpha", "beta"])
        clone.edit_params("sweep.seeds", [0, 8])
        stopped = clone.run("ncpipe", "sweep", check=False)
        assert stopped.code == 1
        assert "L = 2 is too shallow" in stopped.err
        output = clone.run("ncpipe", "sweep", "--keep-going", check=False)
        assert output.code == 1
        assert {"train@alpha-2-8", "train@beta-2-8"} <= {*stopped.trained, *output.trained}
        assert "measure@alpha" in output.ran
        stale = [name for name in clone.stale() if name.startswith("train")]
        assert stale == ["train@broken-2-0", "train@broken-2-8"]
