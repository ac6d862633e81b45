"""Specs, data and a terminal that the tests share."""

import copy
import faulthandler
import importlib.util
import io
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import hypothesis
import pytest
import torch
from ruamel.yaml import YAML
from torch import Tensor

from ncpipe.config import reading
from ncpipe.config.experiment import Experiment
from ncpipe.config.params import load_params
from ncpipe.config.records import read
from ncpipe.config.study import load_study
from ncpipe.datasets.prepared import Prepared, Split
from ncpipe.metrics.table import Measurement
from ncpipe.runs.fingerprint import RunFingerprint
from ncpipe.runs.store import sweep_fingerprints
from ncpipe.runs.store_layout import store_folder
from ncpipe.system.artifacts import sha256_of
from ncpipe.system.errors import InputError
from ncpipe.training.device import fix_order_of_sums

pytest_plugins = ["pipeline"]  # clones that several modules' tests look at

# One thread each for the tests and for what they start: two processes' threads would wait for each other.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")
# One core for a worker of xdist and what it starts, where figures would start processes of their own.
if (worker := os.environ.get("PYTEST_XDIST_WORKER")) and hasattr(os, "sched_setaffinity"):
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(worker.removeprefix("gw")) % len(cores)]})
# What the tests start writes its bytecode, as for users; else each process compiles all that it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
fix_order_of_sums()
# The same examples in each run, however long one takes.
hypothesis.settings.register_profile("ncpipe", deadline=None, derandomize=True)
hypothesis.settings.load_profile("ncpipe")


@pytest.fixture
def cuda_flags() -> Iterator[None]:
    """Leave PyTorch's settings as they were."""
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before = products.allow_tf32, convolutions.allow_tf32, convolutions.deterministic
    yield
    products.allow_tf32, convolutions.allow_tf32, convolutions.deterministic = before


def loaded(path: Path) -> ModuleType:
    """Run a script of the repository that is no part of the package, as a module."""
    name = f"{path.parent.name}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def refused_by(call: Callable[..., object], *arguments: Any, **options: Any) -> str:
    """Return the message of the InputError that a call ends with, which is one line."""
    with pytest.raises(InputError) as caught:
        call(*arguments, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


def clear_code_digests() -> None:
    """Forget the code that this process has read, for a test that goes to another folder or edits files."""
    reading._at_start = reading.Reading()


@pytest.fixture
def low_rank(tmp_path: Path) -> Iterator[None]:
    """The study.py of stages/low_rank, whose network is dufm."""
    load_study(Path(__file__).resolve().parents[1] / "stages/low_rank")
    yield
    load_study(tmp_path / "nowhere")


@pytest.fixture
def study_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working folder, for a study.py of the test's own, which is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    clear_code_digests()
    yield tmp_path
    clear_code_digests()
    load_study(tmp_path / "nowhere")


TREE: dict[str, Any] = {
    "data": {
        "source": "gaussian_mixture",
        "classes": 3,
        "dimension": 6,
        "separation": 3.0,
        "noise": 0.5,
        "per_class": 8,
        "test_per_class": 4,
        "seed": 0,
    },
    "model": {
        "architecture": "L-RN1",
        "norm": "post",
        "width": 8,
        "last_bias": False,
        "layer_norm_eps": 1e-5,
        "initialisation": "normal",
        "gain": 1.0,
    },
    "loss": "ce",
    "penalty": {"rule": "constant", "value": 0.005, "last_layer": None},
    "optimizer": {"name": "adam", "learning_rate": 0.01, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8},
    "schedule": {"name": "cosine", "final": 0.0},
    "epochs": 20,
    "batch_size": "full",
    "log_every": 5,
}


TEXT = {
    "source": "imdb",
    "per_class": 4,
    "test_per_class": 4,
    "seed": 0,
    "tokenizer": "corpus",
    "vocabulary": 300,
    "context": 7,
    "keep": "start",
}


def experiment_tree(**changes: Any) -> dict[str, Any]:
    """The tree of a small experiment; model=... updates the model's keys, anything else replaces a key."""
    tree = copy.deepcopy(TREE)
    for key, value in changes.items():
        if key == "model":
            tree[key] |= value
        else:
            tree[key] = value
    return tree


def params_tree(depths: list[int], seeds: list[int], **experiments: Any) -> dict[str, Any]:
    """The tree of params.yaml of a small sweep."""
    return {
        "sweep": {"experiments": list(experiments), "depths": depths, "seeds": seeds},
        "compute": {"device": "cpu", "threads": 1, "precision": "float32"},
        "convergence": {"train_error": 0.0, "window": 0.25, "tolerance": 0.01},
        "slopes": {"seed": 0, "level": 0.95},
        "effective_depth": {"tolerance": 0.01},
        "experiments": experiments,
    }


def write_params(depths: list[int], seeds: list[int], **experiments: Any) -> None:
    """params.yaml of a small sweep in the working directory."""
    yaml = YAML()
    yaml.representer.ignore_aliases = lambda _: True  # experiments share no mapping in the file
    with Path("params.yaml").open("w", encoding="utf-8") as file:
        yaml.dump(params_tree(depths, seeds, **experiments), file)


def prepare_sweep(depths: list[int], seeds: list[int], **experiments: Any) -> None:
    """Write params.yaml of a small sweep in the working directory, and prepare its data."""
    from ncpipe.commands.fetch import fetch

    write_params(depths, seeds, **experiments)
    for name in experiments:
        fetch(name)


def fingerprints() -> list[RunFingerprint]:
    """The runs of the sweep in the working directory whose data are prepared."""
    params = load_params()
    return sweep_fingerprints(params, params.compute)


def measure_runs(*names: str, depths: Sequence[int], seeds: Sequence[int] = (0,)) -> None:
    """Take the stages of experiments in params.yaml from `grid` to `measure`, in this process."""
    from ncpipe.commands.extract import extract_experiment
    from ncpipe.commands.fetch import fetch
    from ncpipe.commands.grid import write_grid
    from ncpipe.commands.measure import measure
    from ncpipe.commands.train import train
    from ncpipe.config.params import load_params

    write_grid()
    for name in names:
        fetch(name)
        together = {*seeds} == {*load_params().sweep.seeds}  # in one batch
        for depth, seed in itertools.product(depths, [None] if together else seeds):
            train(name, depth, seed, workers=1)
        extract_experiment(name)
        measure(name)


def experiment(**changes: Any) -> Experiment:
    return read(Experiment, experiment_tree(**changes), "")


def architecture(name: str, norm: str, **more: Any) -> dict[str, Any]:
    """Model keys of an architecture, with the ones it needs."""
    keys: dict[str, Any] = {"architecture": name, "norm": norm, **more}
    if name.endswith("2"):
        keys["mlp_width"] = 11
    return keys


ARCHITECTURES = [
    (name, norm)
    for name in ("L-RN1", "L-RN2", "L-T11", "L-T12", "L-T21", "L-T22")
    for norm in ("post", "pre")
]


def vector_data(classes: int = 3, per_class: int = 8, size: int = 6, seed: int = 0) -> Prepared:
    generator = torch.Generator().manual_seed(seed)
    centres = 2 * torch.randn(classes, size, generator=generator)
    splits = []
    for count in (per_class, 4):
        labels = torch.arange(classes).repeat_interleave(count)
        splits.append(Split(centres[labels] + torch.randn(len(labels), size, generator=generator), labels))
    return Prepared("vector", classes, None, *splits, {}, checksum="made by a test")


def image_data(side: int = 4, channels: int = 2, classes: int = 3, per_class: int = 4) -> Prepared:
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(classes).repeat_interleave(per_class)
    splits = [
        Split(torch.randn(len(labels), channels, side, side, generator=generator), labels) for _ in "ab"
    ]
    return Prepared("image", classes, None, *splits, {}, checksum="made by a test")


def token_data(context: int = 7, vocabulary: int = 12, classes: int = 3, per_class: int = 4) -> Prepared:
    generator = torch.Generator().manual_seed(2)
    labels = torch.arange(classes).repeat_interleave(per_class)
    splits = []
    for _ in "ab":
        lengths = torch.randint(1, context + 1, labels.shape, generator=generator)
        ids = torch.randint(1, vocabulary, (len(labels), context), generator=generator)
        ids[torch.arange(context) >= lengths.unsqueeze(1)] = 0
        splits.append(Split(ids, labels, lengths))
    return Prepared("tokens", classes, vocabulary, *splits, {}, checksum="made by a test")


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rotation(width: int, seed: int) -> Tensor:
    return torch.linalg.qr(normal(width, width, seed=seed))[0]


def split_values(rows: Sequence[Measurement], split: str = "train") -> dict[str, float]:
    """The values of one split, by metric."""
    return {row.metric: row.value for row in rows if row.split == split}


def contents(folder: Path) -> dict[str, str]:
    """Digests of all files below a folder, by path in it."""
    return {str(path.relative_to(folder)): sha256_of(path) for path in folder.rglob("*") if path.is_file()}


def flip_byte(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def stored_runs() -> list[Path]:
    """Folders of the runs in the store of the folder one stands in."""
    return sorted(path for path in store_folder().glob("*") if len(path.name) == 64)


def linked(path: Path) -> None:
    """It lies elsewhere, and a link to it in its place."""
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def before_calls(
    patch: pytest.MonkeyPatch, places: Iterable[tuple[object, str]], act: Callable[[], object]
) -> None:
    """Let something happen before each call of some functions, given by module and name."""

    def preceded(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            act()
            return original(*arguments, **options)

        return call

    for place, name in places:
        patch.setattr(place, name, preceded(getattr(place, name)))


class Terminal(io.StringIO):
    """A terminal, and what is to be seen on it."""

    def isatty(self) -> bool:
        return True

    @property
    def screen(self) -> list[str]:
        """Its rows: a carriage return goes back to the row's start, and what follows writes over it."""
        rows = []
        for text in self.getvalue().split("\n"):
            row = ""
            for part in text.split("\r"):
                row = part + row[len(part) :]
            rows.append(row.rstrip())
        return rows


ON_REQUEST = {"attack", "long", "slurm"}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Those that run DVC first: they are few and long, and workers are to end at the same time.

    One of them makes `swept` at once, and those without it come next, so that no worker waits for it.

    The long forms of attacks, and what else takes long or needs a cluster, are left out unless an
    expression of -m names one of their markers.
    """
    requested = {marker for marker in ON_REQUEST if marker in config.getoption("markexpr")}
    left_out = []
    for item in items:
        markers = {marker.name for marker in item.iter_markers()} & ON_REQUEST
        if markers and not markers & requested:
            left_out.append(item)
    config.hook.pytest_deselected(items=left_out)
    selected = set(items) - set(left_out)
    items[:] = [item for item in items if item in selected]
    waits = {item.path for item in items if "swept" in item.fixturenames}
    items.sort(key=lambda item: (item.get_closest_marker("pipeline") is None, item.path in waits))
    items.sort(key=lambda item: item.path.name != "test_triton_block.py")  # a minute, in one test
    items.sort(key=lambda item: item.path.name != "test_shell_words.py")  # one test, with `swept`


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Draw with as few pixels as show that all is drawn, and lay figures out only where that is looked at;
    skip what is only run on request.
    """
    if save := sys.modules.get("ncpipe.figures.save"):  # importing it takes seconds
        save.DPI = 20
    if engines := sys.modules.get("matplotlib.layout_engine"):
        engine = engines.ConstrainedLayoutEngine
        engine.laid_out = getattr(engine, "laid_out", engine.execute)
        engine.execute = engine.laid_out if item.path.name == "test_figures.py" else lambda self, figure: None
    if any(item.get_closest_marker(marker) for marker in ON_REQUEST):
        faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True)
def _process_as_it_was() -> Iterator[None]:
    """One thread; and subnormal numbers again after a test that trained, which sets them to 0."""
    torch.set_num_threads(1)
    yield
    torch.set_flush_denormal(False)


Command = Callable[..., Any]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Command:
    """`ncpipe WORDS` in this process: its exit code, or the line that it ends with."""
    from ncpipe.__main__ import main

    def run(*words: str) -> object:
        monkeypatch.setattr(sys, "argv", ["ncpipe", *words])
        with pytest.raises(SystemExit) as stop:
            main()
        return stop.value.code

    return run


@pytest.fixture
def disk_log(monkeypatch: pytest.MonkeyPatch) -> list[int | str]:
    """What reaches the disk from here on, in order: inodes of flushes, and "renamed" before a rename."""
    done: list[int | str] = []
    sync, replace = os.fsync, os.replace

    def synced(handle: int) -> None:
        done.append(os.fstat(handle).st_ino)
        sync(handle)

    def replaced(source: Path, target: Path) -> None:
        done.append("renamed")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    return done
