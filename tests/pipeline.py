"""Clones of this repository in which the tests run DVC: their fixtures, and what is read from the output."""

import copy
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import experiment_tree, params_tree
from filelock import FileLock
from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = Path(sys.executable).parent
TIMEOUT = 1800  # seconds for one command, on a machine that others use too
EPOCHS = 500  # a second or two: long enough to be killed in

# A shell's background job, as pytest may be, ignores Ctrl-C, and so would everything that it starts.
HEAR_CTRL_C = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execvp(sys.argv[1], sys.argv[1:])
"""

Tree = dict[str, Any]


def _experiment(data_seed: int, learning_rate: float) -> Tree:
    tree = experiment_tree(epochs=EPOCHS, log_every=10)
    tree["data"] |= {"separation": 4.0, "seed": data_seed}
    tree["optimizer"]["learning_rate"] = learning_rate
    return tree


# The axes are not in sorted order: a test that reorders them puts them in it.
PARAMS: Tree = params_tree([3, 2], [0, 1], beta=_experiment(1, 0.01), alpha=_experiment(0, 0.02)) | {
    "convergence": {"train_error": 0.0, "window": 0.1, "tolerance": 0.05},
    "about": {"alpha": {"question": "Does every stage work?", "expected": "Yes."}},
}


CLAIMS = """\
- id: bound
  ref: S25 Lemma 4.2
  statement: no loss is below the optimum
  quantity: minimum
  experiment: {}
  metric: loss_gap
  identity: true
  expect: {{at_least: 0}}
"""


@dataclass(frozen=True)
class Output:
    """What one command said, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def ran(self) -> list[str]:
        """Stages whose command DVC ran, in order."""
        return re.findall(r"^Running stage '([^']+)'", self.out, re.MULTILINE)

    @property
    def restored(self) -> list[str]:
        """Stages whose outputs DVC took from its run cache."""
        return re.findall(r"^Stage '([^']+)' is cached", self.out, re.MULTILINE)

    @property
    def trained(self) -> list[str]:
        """Stage names of the networks that were really trained, alone or beside another, sorted."""
        return trained_in(self.err)


def trained_in(text: str) -> list[str]:
    names = []
    pattern = r"^train (\w+) L=(\d+) seed=(\d+)(?: together with ([^:]+))?: L-RN1 on "
    for experiment, depth, seed, mates in re.findall(pattern, text, re.MULTILINE):
        names.append(f"train@{experiment}-{depth}-{seed}")
        names += [f"train@{name}-{depth}-{s}" for name, s in re.findall(r"(\w+) seed (\d+)", mates)]
    return sorted(names)


class Clone:
    """A git checkout with its own DVC cache; or one of its studies, a DVC project that shares it.

    One batch trains at a time, whatever the cores: what trains when is then the same everywhere.
    """

    def __init__(self, folder: Path, top: Path | None = None) -> None:
        self.folder = folder
        self.top = top or folder

    def study(self, name: str) -> "Clone":
        """The study in stages/NAME: commands run there, on the params.yaml there."""
        return Clone(self.top / "stages" / name, self.top)

    @classmethod
    def of_working_tree(cls, folder: Path, params: Tree, *left_out: str) -> "Clone":
        """Return a checkout of ROOT as its working tree is now, on other parameters; all committed.

        It has neither ROOT's history nor its dvc.lock, nor what no stage reads: each test copies it. Its
        pipelines end before the page, which would add seconds to every `dvc repro`.

        left_out: further stages that its own pipeline lacks.
        """
        subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
        listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(listing, cwd=ROOT, check=True, capture_output=True, text=True).stdout
        for name in filter(None, listed.split("\0")):
            source, target = ROOT / name, folder / name
            read = source.name != "dvc.lock" and not name.startswith(
                ("benchmarks/", "docs/", "tests/", "tools/")
            )
            if read and (source.is_file() or source.is_symlink()):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target, follow_symlinks=False)
        # Figures of a tenth of the size and without a layout, as in this process.
        for name, here, there in (
            ("save.py", "DPI = 200", "DPI = 20"),
            ("drawing.py", "engine.execute(figure)", "figure.set_layout_engine(None)"),
        ):
            file = folder / "ncpipe/figures" / name
            text = file.read_text()
            assert here in text
            file.write_text(text.replace(here, there))
        for pipeline in (folder / "dvc.yaml", *folder.glob("stages/*/dvc.yaml")):
            pipeline.write_text(without(pipeline.read_text(), "report"))
        clone = cls(folder)
        clone.edit_pipeline(lambda pipeline: without(pipeline, *left_out))
        clone.run("git", "config", "user.name", "A test")
        clone.run("git", "config", "user.email", "test@example.org")
        clone.run("git", "config", "commit.gpgsign", "false")
        clone.write_params(params)
        clone.commit()
        return clone

    def copy(self, folder: Path) -> "Clone":
        shutil.copytree(self.top, folder, symlinks=True)
        return Clone(folder / self.folder.relative_to(self.top), folder)

    @property
    def store(self) -> Path:
        """Where its finished runs are stored."""
        return self.top / ".dvc/cache/ncpipe"

    @property
    def environment(self) -> dict[str, str]:
        """That of the tests, less what could steer git, DVC or ncpipe from outside."""
        ours = ("DVC_", "GIT_", "NCPIPE_", "PYTEST_", "PYTHON")
        kept = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
        return kept | {
            "PATH": os.pathsep.join([str(PROGRAMS), os.environ.get("PATH", os.defpath)]),
            "DVC_NO_ANALYTICS": "1",
            "DVC_SITE_CACHE_DIR": str(self.top.parent / "dvc-site"),
            "CI": "1",  # no look for a newer DVC
            "TERM": "dumb",
            "NCPIPE_WORKERS": "1",
        }

    def run(self, *command: str, check: bool = True, **options: Any) -> Output:
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment | options.pop("env", {}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
            **options,
        )
        output = Output(done.returncode, done.stdout, done.stderr)
        assert not check or output.code == 0, (
            f"{command} ended with {output.code}\n{output.out}\n{output.err}"
        )
        return output

    def repro(self, *arguments: str) -> Output:
        return self.run("dvc", "repro", *arguments)

    def json(self, *command: str) -> Any:
        return json.loads(self.run(*command, "--json").out)

    def stale(self) -> list[str]:
        """Stages that are stale by themselves, not through another, sorted."""
        return sorted(self.json("dvc", "status"))

    def commit(self) -> None:
        self.run("git", "add", "--all")
        self.run("git", "commit", "--quiet", "--message", "A test's state")

    def params(self) -> Tree:
        return YAML(typ="safe").load((self.folder / "params.yaml").read_text())

    def write_params(self, tree: Tree) -> None:
        """params.yaml, and a claims.yaml that asks after one of its experiments."""
        yaml = YAML(typ="safe")
        yaml.representer.ignore_aliases = lambda _: True  # experiments share no mapping in the file
        with (self.folder / "params.yaml").open("w") as file:
            yaml.dump(tree, file)
        claims = CLAIMS.format(min(tree["experiments"]))
        (self.folder / "claims.yaml").write_text(claims, encoding="utf-8")

    def edit_params(self, dotted: str, value: object) -> None:
        """Set one parameter, as `sweep.seeds`."""
        tree = self.params()
        *parents, last = dotted.split(".")
        branch = tree
        for key in parents:
            branch = branch[key]
        branch[last] = copy.deepcopy(value)
        self.write_params(tree)

    def edit_pipeline(self, edit: Callable[[str], str]) -> None:
        file = self.folder / "dvc.yaml"
        file.write_text(edit(file.read_text(encoding="utf-8")), encoding="utf-8")

    def digests(self, *folders: str) -> dict[str, str]:
        """sha256 of every file below the folders, and of files, by its path in the clone."""
        places = [self.folder / name for name in folders]
        files = [file for place in places for file in (place, *place.rglob("*")) if file.is_file()]
        return {
            file.relative_to(self.folder).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
            for file in files
        }

    def lock(self) -> Tree:
        """What dvc.lock has; its entries stand in the order in which stages ran.

        `dvc repro code grid fetch`, with which a sweep begins, takes that order from a set of Python's, which
        is another one in each process.
        """
        return YAML(typ="safe").load((self.folder / "dvc.lock").read_text())

    def start(self, *command: str) -> subprocess.Popen[str]:
        """The command in a process group of its own, its messages in one pipe; Ctrl-C works in it."""
        return subprocess.Popen(
            [sys.executable, "-c", HEAR_CTRL_C, *command],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def stop_when(
        self, reached: Callable[[list[str]], bool], number: signal.Signals, *command: str
    ) -> Output:
        """Run the command and send its group a signal as soon as the lines it has said satisfy `reached`."""
        process = self.start(*command)
        assert process.stdout is not None
        watchdog = threading.Timer(TIMEOUT, os.killpg, (process.pid, signal.SIGKILL))
        watchdog.start()
        said: list[str] = []
        stopped = False
        try:
            for line in process.stdout:
                said.append(line)
                if not stopped and reached(said):
                    os.killpg(process.pid, number)
                    stopped = True
            code = process.wait()
        finally:
            watchdog.cancel()
            process.stdout.close()
        text = "".join(said)
        assert stopped, f"{command} never said what it was to be stopped at:\n{text}"
        return Output(code, text, text)


Copy = Callable[[Clone], Clone]
Made = tuple[Clone, Output]  # a clone, and what was said while it was made


@pytest.fixture
def own_copy(tmp_path: Path) -> Copy:
    """Copies a clone for a test that changes it."""
    return lambda clone: clone.copy(tmp_path / "clone")


def shared(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], Made]) -> Made:
    """A clone and what its making said, made once for all of xdist's workers; each has a copy of its own."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / f"shared-{name}"
    said = folder / "said.json"
    with FileLock(f"{folder}.lock"):
        if not said.exists():
            shutil.rmtree(folder, ignore_errors=True)  # of a making that failed
            folder.mkdir()
            _, output = make(folder / "clone")
            said.write_text(json.dumps(asdict(output)), encoding="utf-8")
    clone = Clone(folder / "clone").copy(factory.mktemp(name) / "clone")
    return clone, Output(**json.loads(said.read_text(encoding="utf-8")))


@pytest.fixture(scope="session")
def swept_first(tmp_path_factory: pytest.TempPathFactory) -> Made:
    def make(folder: Path) -> Made:
        clone = Clone.of_working_tree(folder, PARAMS)
        return clone, clone.repro()

    return shared(tmp_path_factory, "swept", make)


@pytest.fixture(scope="session")
def swept(swept_first: Made) -> Clone:
    """A fresh clone after `dvc repro`. Not to be changed."""
    return swept_first[0]


def trains(experiments: Iterable[str], depths: Iterable[int], seeds: Iterable[int]) -> list[str]:
    """Names of train stages, sorted."""
    return sorted(f"train@{e}-{d}-{s}" for e in experiments for d in depths for s in seeds)


CHANGED_TRAINS = sorted([*trains(["wild"], [2], [0, 7]), "train@alpha-2-7"])


@pytest.fixture(scope="session")
def changed_first(swept: Clone, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A seed and an experiment more, which diverges; one of each less, and one depth. Not to be changed.

    From here on it draws no figures, which take longest.
    """

    def make(folder: Path) -> Made:
        clone = swept.copy(folder)
        clone.edit_pipeline(lambda pipeline: without(pipeline, "plot"))
        wild = copy.deepcopy(PARAMS["experiments"]["alpha"])
        wild["optimizer"] = {"name": "sgd", "learning_rate": 1e10, "momentum": 0.0}
        clone.edit_params("experiments.wild", wild)
        clone.edit_params("sweep", {"experiments": ["wild", "alpha"], "depths": [2], "seeds": [7, 0]})
        return clone, clone.repro()

    return shared(tmp_path_factory, "changed", make)


# What the dvc.yaml of a study with an axis has in place of the root's lines.
AXIS = [
    (
        "    matrix:\n      experiment: ${sweep.experiments}\n    cmd: ncpipe fetch ${item}\n",
        "    matrix:\n      experiment: ${sweep.experiments}\n      value: ${sweep.values}\n"
        "    cmd: ncpipe fetch ${item}\n",
    ),
    (
        "      - experiments.${item.experiment}.data\n",
        "      - experiments.${item.experiment}.data\n      - sweep.axis\n",
    ),
    (
        "    outs:\n      - data/prepared/${item.experiment}\n",
        "    outs:\n      - data/prepared/${item.experiment}/x${item.value}\n",
    ),
    (
        "      depth: ${sweep.depths}\n      seed: ${sweep.seeds}\n",
        "      depth: ${sweep.depths}\n      value: ${sweep.values}\n      seed: ${sweep.seeds}\n",
    ),
    (
        "train.txt\n      - data/prepared/${item.experiment}\n",
        "train.txt\n      - data/prepared/${item.experiment}/x${item.value}\n",
    ),
    ("L${item.depth}/s${item.seed}\n", "L${item.depth}/x${item.value}/s${item.seed}\n"),
    ("  - data/results/depth:\n      x: depth\n", "  - data/results/x:\n      x: x\n"),
]


def without(pipeline: str, *stages: str) -> str:
    """A dvc.yaml without some stages, and without the plot that is a figure if nothing draws it."""
    for stage in stages:
        pipeline, count = re.subn(rf"^  {stage}:\n(?:    .*\n)+\n", "", pipeline, flags=re.MULTILINE)
        assert count == 1, stage
    if "plot" in stages:
        pipeline = re.sub(r"^  - data/figures/.*\n", "", pipeline, flags=re.MULTILINE)
    return pipeline


def with_axis(pipeline: str) -> str:
    """The root's dvc.yaml as a study with an axis has it."""
    for root, study in AXIS:
        assert pipeline.count(root) == 1, root
        pipeline = pipeline.replace(root, study)
    return pipeline
