"""The pipeline as DVC runs it, in a temporary clone: what runs, what is kept, and what ends on disk.

Each test's docstring ends with the fault that would turn it red.
"""

import copy
import csv
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import flip_byte
from pipeline import CHANGED_TRAINS, PARAMS, ROOT, Clone, Copy, Made, Output, trained_in, trains

from ncpipe.config.yaml_file import read_yaml
from ncpipe.integrations import notebook as results
from ncpipe.system.errors import InputError

pytestmark = [
    pytest.mark.pipeline,
    pytest.mark.skipif(not (ROOT / ".git").exists(), reason="clones the repository, and this is no checkout"),
    pytest.mark.skipif(os.name == "nt", reason="stops process groups"),
]

BOTH = ["alpha", "beta"]
ALL_TRAINS = trains(BOTH, [2, 3], [0, 1])
ALPHA = trains(["alpha"], [2, 3], [0, 1])
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


def figures(clone: Clone) -> set[str]:
    return {path.name for path in (clone.folder / "data/figures").iterdir()}


class TestFreshClone:
    def test_one_command_makes_tables_and_figures(self, swept_first: Made) -> None:
        """Red: a stage that needs a file which no stage before it writes; a stage left out of dvc.yaml; a
        plot of DVC's that nothing writes, or the figure left out of them."""
        clone, output = swept_first
        assert sorted(output.ran) == ALL_STAGES
        plots = read_yaml(clone.folder / "dvc.yaml")["plots"]
        names = [plot if isinstance(plot, str) else next(iter(plot)) for plot in plots]
        assert names == ["data/figures/depth_sweep.png", "data/results/depth", "data/results/curves"]
        assert all((clone.folder / name).exists() for name in names)
        names = (*SWEEP_FIGURES, "curves_alpha", "curves_beta")
        assert figures(clone) == {f"{name}.{kind}" for name in names for kind in ("png", "svg")}
        metrics = dvc_metrics(clone)
        assert {name: (values["runs"], values["converged"]) for name, values in metrics.items()} == {
            "alpha": (4, 4),
            "beta": (4, 4),
        }
        assert all("slope_nc1_trace_ratio" in values for values in metrics.values())
        assert all("slope_loss_gap" in values and "deepest" not in values for values in metrics.values())
        assert {row["bound"] for row in table(clone, "runs")} == {"holds"}
        lines = (clone.folder / "data/results/rates.txt").read_text(encoding="utf-8").splitlines()
        assert list(dict.fromkeys(line.split()[0] for line in lines)) == ["line", *BOTH]
        printed = [line.strip() for line in output.err.splitlines()]
        assert all("4 of 4" in line for line in lines[1:])
        assert set(lines) <= set(printed)

    def test_every_network_is_trained_once(self, swept_first: Made) -> None:
        """Red: a batch that trains what is stored already; a stored run that its stage does not take."""
        _, output = swept_first
        assert output.trained == ALL_TRAINS
        assert output.err.count("taken from the store") == len(ALL_TRAINS)
        assert "train alpha --depth 2 --seed 0: taken from the store" in output.err  # the fast way

    def test_a_notebook_is_told_of_what_there_is_not_and_of_damage(
        self, swept: Clone, own_copy: Copy
    ) -> None:
        """Red: weights of which one bit is another; a run of other parameters taken for the one asked for."""
        clone = own_copy(swept)
        study = results.load(clone.folder / "stages")
        with pytest.raises(InputError, match=r"alpha L=9 seed=0: not in the sweep of beta, alpha at depths"):
            study.run("alpha", depth=9, seed=0)
        with pytest.raises(InputError, match=r"no table slope; the tables are .*, slopes, "):
            study.table("slope")
        weights = clone.folder / "data/runs/alpha/L2/s0/model.safetensors"
        whole = weights.read_bytes()
        weights.unlink()  # a link into DVC's cache
        weights.write_bytes(whole)
        flip_byte(weights, -1)
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

    def test_git_sees_nothing_but_the_lock(self, swept: Clone) -> None:
        """Red: outputs that .gitignore does not cover, so that DVC writes a .gitignore beside them."""
        status = swept.run("git", "status", "--porcelain").out
        assert status.split() == ["??", "dvc.lock"]
        assert list((swept.folder / "data").rglob(".gitignore")) == []


class TestWhatRuns:
    """After an edit of params.yaml; test_code.py has edits of the code."""

    def test_an_edit_makes_stale_what_depends_on_it(self, swept: Clone, own_copy: Copy) -> None:
        """Red: extract or measure that depend on the axes' order, or on other experiments' rows of the grid;
        a stage that lists compute.device; rules of the analysis among the parameters of a stage before
        aggregate."""
        clone = own_copy(swept)
        reordered = {"sweep.depths": [2, 3], "sweep.seeds": [1, 0], "sweep.experiments": BOTH}
        rules = {"compute.device": "auto", "convergence.tolerance": 0.02, "slopes.seed": 200}
        cases: list[tuple[dict[str, object], list[str]]] = [
            (reordered | rules, ["aggregate", "claims", "grid", "plot"]),
            # drops data of beta
            ({"sweep.experiments": ["alpha"], "compute.threads": 2},
             ["aggregate", "fill", "grid", "plot", *trains(["alpha"], [2, 3], [0, 1])]),
        ]  # fmt: skip
        for edits, stale_stages in cases:
            clone.write_params(PARAMS)
            for key, value in edits.items():
                clone.edit_params(key, value)
            clone.run("sh", "-c", "ncpipe code && ncpipe grid")
            assert [stage for stage in clone.stale() if stage != "code"] == stale_stages, edits

    def test_new_seeds_and_experiments_train_themselves_alone(self, changed_first: Made) -> None:
        """Red: `sweep` among the parameters of train, or the axes in its command; a diverged run that stops
        the sweep, is dropped from the tables, or counts as converged."""
        clone, output = changed_first
        assert output.trained == CHANGED_TRAINS
        assert not [name for name in output.restored if name.startswith("train")]
        assert [name for name in output.ran if name.startswith("fetch")] == ["fetch@wild"]
        assert sorted(name for name in output.ran if name.startswith("train")) == CHANGED_TRAINS
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
        metrics = dvc_metrics(clone)
        assert metrics["wild"] == {"runs": 2, "converged": 0}
        assert (metrics["alpha"]["runs"], metrics["alpha"]["converged"]) == (2, 2)
        assert set(metrics) == {"alpha", "wild"}

    def test_what_was_removed_leaves_the_tables(self, changed_first: Made) -> None:
        """A depth, a seed and an experiment.

        Red: a stage that globs data/runs instead of reading the grid, or does not depend on it; aggregate
        that takes what lies in data/metrics from an earlier sweep."""
        clone, output = changed_first
        after = [f"{kind}@{name}" for kind in ("extract", "measure") for name in ("alpha", "wild")]
        others = {*output.ran} - {*CHANGED_TRAINS, "fetch@wild"}
        assert others == {"code", "fill", "grid", *after, "aggregate", "claims"}
        for name in ("points", "summary", "runs", "history"):
            assert {row["depth"] for row in table(clone, name)} == {"2"}
        for name in ("points", "summary", "slopes", "runs", "history"):
            assert {row["experiment"] for row in table(clone, name)} - {"wild"} == {"alpha"}
        assert {row["seed"] for row in table(clone, "runs")} == {"0", "7"}

    def test_what_was_removed_comes_back_without_training(
        self, swept: Clone, changed_first: Made, own_copy: Copy
    ) -> None:
        """Red: an output that is not cached; a result that depends on what lay there before."""
        clone = own_copy(changed_first[0])
        shutil.copy(swept.folder / "dvc.yaml", clone.folder)
        clone.write_params(PARAMS)
        shutil.rmtree(clone.folder / "data/runs/alpha/L2/s7")  # DVC leaves it, and extract has it as input
        output = clone.repro()
        assert (output.ran, output.trained) == (["fill"], [])  # which removes what the sweep no longer has
        assert clone.digests(*OUTPUTS).items() >= swept.digests(*OUTPUTS).items()
        assert clone.digests(*TABLES) == swept.digests(*TABLES)


@dataclass(frozen=True)
class Killed:
    """A second fresh clone, in another folder and of alpha alone, in which two commands were killed before a
    sweep ended.

    outputs: what each of the three said. runs: the run folders after each, as stage names.
    """

    clone: Clone
    outputs: list[Output]
    runs: list[list[str]]

    @property
    def finished(self) -> list[set[str]]:
        """Stages that ended well in each: all but the last if it was killed."""
        return [set(output.ran[:-1] if output.code else output.ran) for output in self.outputs]


def shape_of(stage: str) -> str:
    """What runs that train side by side have in common: `train@alpha-2`."""
    return stage.rpartition("-")[0]


def in_batch(number: int) -> Callable[[list[str]], bool]:
    return lambda said: len({shape_of(name) for name in trained_in("".join(said))}) == number


@pytest.fixture(scope="session")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    """Both die in the middle of a batch. It ends with the tables, which figures and claims are made of."""
    folder = tmp_path_factory.mktemp("killed") / "a second clone"
    params = PARAMS | {"sweep": PARAMS["sweep"] | {"experiments": ["alpha"]}}
    clone = Clone.of_working_tree(folder, params, "plot", "claims")
    outputs, runs = [], []
    for number, command in ((2, ["dvc", "repro"]), (1, ["ncpipe", "sweep"])):
        outputs.append(clone.stop_when(in_batch(number), signal.SIGKILL, *command))
        runs.append(runs_on_disk(clone))
    torn = next(name for name in ALPHA if name not in runs[-1])
    for folder in (run_folder(clone, torn), clone.folder / "data/.partial" / torn):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.safetensors").write_bytes(b"half")
    outputs.append(clone.run("ncpipe", "sweep"))
    runs.append(runs_on_disk(clone))
    return Killed(clone, outputs, runs)


def run_folder(clone: Clone, stage: str) -> Path:
    name, depth, seed = stage.removeprefix("train@").split("-")
    return clone.folder / "data/runs" / name / f"L{depth}" / f"s{seed}"


def runs_on_disk(clone: Clone) -> list[str]:
    return [name for name in ALPHA if run_folder(clone, name).exists()]


class TestKilled:
    def test_no_half_run_is_left(self, killed: Killed) -> None:
        """Red: a run that is written in its own place."""
        assert [output.code for output in killed.outputs] == [-signal.SIGKILL, -signal.SIGKILL, 0]
        finished = set()
        for runs, names in zip(killed.runs, killed.finished, strict=True):
            finished |= names
            assert set(runs) == finished & set(ALPHA)
        assert killed.runs[-1] == ALPHA
        for name in ALPHA:
            assert {path.name for path in run_folder(killed.clone, name).iterdir()} == RUN_FILES

    def test_every_network_outside_the_killed_batches_is_trained_once(self, killed: Killed) -> None:
        """Red: a store that a restart throws away, so that what waits in it trains again; a run that one of
        `dvc repro` and `ncpipe sweep` has trained and the other does not take."""
        in_killed_batches = []
        for output in killed.outputs[:2]:
            announced = [name for line in output.out.splitlines() for name in trained_in(line)]
            in_killed_batches += [name for name in announced if shape_of(name) == shape_of(announced[-1])]
        trained = [name for output in killed.outputs for name in output.trained]
        assert sorted(trained) == sorted(ALPHA + in_killed_batches)
        taken = sum(output.err.count("taken from the store") for output in killed.outputs)
        assert taken in (len(ALPHA), len(ALPHA) + 1)  # once more where the kill came too late

    def test_a_sweep_in_another_clone_ends_with_the_same_bytes(self, killed: Killed, swept: Clone) -> None:
        """Trained in part, and all but trained, by `ncpipe sweep`. Red: a time, a path, a batch's company, an
        interruption or the command that leaves a trace in a result; a stage that a sweep leaves stale."""
        folders = [f"data/{name}/alpha" for name in ("prepared", "runs", "features", "metrics")]
        first, second = swept.digests(*folders), killed.clone.digests(*folders)
        assert len(first) > 20
        assert first == second
        names = ["points", "runs", "summary", "slopes", "history"]
        rows, alpha = ([row for n in names for row in table(clone, n)] for clone in (swept, killed.clone))
        assert alpha == [row for row in rows if row["experiment"] == "alpha"]
        assert killed.clone.repro().ran == []


class TestBadEnds:
    def test_a_full_disk_is_one_line(self, swept: Clone, own_copy: Copy) -> None:
        """Red: a traceback from the writer of the weights, which is not Python's; a half-written folder."""
        clone = own_copy(swept)
        program = (
            "import os, resource, sys\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512))\n"
            "os.execvp(sys.argv[1], sys.argv[1:])"
        )
        run = ["--experiment", "alpha", "--depth", "2", "--seed", "9"]
        command = [sys.executable, "-c", program, "ncpipe", "train", *run]
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
        before = clone.digests("data", "dvc.lock")
        plan = clone.run("ncpipe", "sweep", "--dry-run").out.splitlines()
        assert clone.digests("data", "dvc.lock") == before
        assert plan[-1] == "4 runs to train"
        assert [line.split() for line in plan[1 : plan.index("")]] == [
            ["beta", "2", "2"],
            ["alpha", "2", "2"],
        ]

    @pytest.mark.long
    def test_keep_going_finishes_the_others(self, swept: Clone, own_copy: Copy) -> None:
        """Red: one experiment that cannot train takes the others with it, or counts as trained."""
        clone = own_copy(swept)
        broken = copy.deepcopy(clone.params()["experiments"]["alpha"])
        broken["start"] = "construction"  # of more layers than these have
        study = "from ncpipe.papers.s25.constructions.networks import STARTS\n"
        (clone.folder / "study.py").write_text(study, encoding="utf-8")
        clone.edit_params("experiments.broken", broken)
        clone.edit_params("sweep.experiments", ["broken", "alpha", "beta"])
        clone.edit_params("sweep.depths", [2])
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
