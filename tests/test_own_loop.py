"""A training loop of a study's own: checked, trained in a process of its own, resumed, measured by hooks."""

import dataclasses
import functools
import hashlib
import itertools
import multiprocessing
import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import clear_code_digests, contents, refused_by, stored_runs
from studies import LOOP, OF_LOOP

import ncpipe as nc
from ncpipe.commands.aggregate import aggregate
from ncpipe.commands.extract import extract_experiment
from ncpipe.commands.fetch import fetch
from ncpipe.commands.grid import write_grid
from ncpipe.commands.json_schema import schema_text
from ncpipe.commands.measure import measure
from ncpipe.commands.plot import plot
from ncpipe.commands.report import report
from ncpipe.commands.train import train
from ncpipe.config.params import load_params
from ncpipe.config.reading import at_start
from ncpipe.config.run import Run
from ncpipe.config.study import load_study
from ncpipe.datasets.own_loaders import _add, store_loaders
from ncpipe.datasets.stored import data_checksum
from ncpipe.features.layer_samples import measure_samples
from ncpipe.features.own_metrics import own_measurements
from ncpipe.features.own_network import extract_own, roles
from ncpipe.features.run_metrics import measure_run
from ncpipe.features.trained_run import TrainedRun
from ncpipe.integrations import notebook as results
from ncpipe.metrics.few_shot import transfer_ncc_error
from ncpipe.metrics.hooks import measure_model
from ncpipe.metrics.measurements import Measurements
from ncpipe.metrics.table import episode_generator
from ncpipe.runs import own_runs, pool
from ncpipe.runs.code_digests import training_digests
from ncpipe.runs.fingerprint import code_digest, fingerprint_of
from ncpipe.runs.run_folder import read_history, read_state
from ncpipe.runs.store_layout import store_folder
from ncpipe.runs.study_check import check_study
from ncpipe.runs.study_effect import study_effect
from ncpipe.system.artifacts import RUNS
from ncpipe.system.errors import InputError
from ncpipe.training.checkpoints import Checkpoints, Stopped
from ncpipe.training.own_loop import build_own, train_own

CPU = torch.device("cpu")


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a study with an own loop; the working directory."""
    folder = tmp_path / "study"
    folder.mkdir()
    monkeypatch.chdir(folder)
    write(LOOP)
    yield folder
    load_study(tmp_path)
    clear_code_digests()


class Here:
    """In place of a process for a loop, this one, for tests that the process is no part of."""

    def __init__(self, count: int, *shared: Any) -> None:
        pool._stop, pool._state = shared

    def __enter__(self) -> "Here":
        return self

    def __exit__(self, *_: object) -> None:
        pool._stop = pool._state = None

    def submit(self, call: Callable[..., object], *arguments: object) -> Future[object]:
        future: Future[object] = Future()
        try:
            future.set_result(call(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_runs, "executor", Here)


def write(program: str, params: str = OF_LOOP) -> Run:
    """Write a study and return its first run."""
    Path("study.py").write_text(program, encoding="utf-8")
    Path("params.yaml").write_text(params, encoding="utf-8")
    clear_code_digests()
    return load_params().grid()[0]


def checked(program: str, params: str = OF_LOOP) -> None:
    """Write a study and check it, as the stage `code` does."""
    write(program, params)
    check_study(load_params())


def changed(old: str, new: str) -> Run:
    assert LOOP.count(old) == 1
    return write(LOOP.replace(old, new))


def assert_measured(trained: TrainedRun, expected: Measurements) -> None:
    """Assert that every expected value is among those of the run, to 1e-12."""
    values = {(row.layer, row.split, row.metric): row.value for row in measure_run(trained)}
    for row in expected:
        value = values[row.layer, row.split, row.metric]
        assert value == pytest.approx(row.value, rel=1e-12, abs=1e-300, nan_ok=True), row


def test_what_is_measured_is_what_measure_model_measures(study: Path) -> None:
    """To 1e-12, at every layer and split, on the same weights and data.

    Red: a network that is rebuilt in training mode, or in another precision; layers that are read twice."""
    other = "DataLoader(TensorDataset(samples(2).tensors[0] + 3, torch.full((60,), -7)), 25)"
    run = changed("DataLoader(test, 25)", f"DataLoader(test, 25), {other}")
    trained = train_own(run, CPU)
    model = build_own(run)
    model.load_state_dict(trained.state)
    keys = run.spec.training
    _, *measured = keys.study_entry.loaders(keys, run.seed)
    expected = measure_model(model, "fc", *measured, layers=["stem", "body"])
    assert {row.layer for row in expected} == {"stem", "body", "last"}
    assert {row.split for row in expected} == {"train", "test", "weights", "ood"}
    assert_measured(TrainedRun(run, trained.state), expected)


OF_TOKENS = {  # a classifier that sees each place of a map as a token, and predicts from the last one
    "self.body(self.stem(x)).mean((2, 3))))": "self.body(self.stem(x)).flatten(2).transpose(1, 2)))[:, -1]",
    "def build(": "def last(values, inputs):\n    return values[:, -1]\n\n\n"
    "def corner(values, inputs):\n    return values[:, :, 0, 0]\n\n\ndef build(",
    "loaders, train)": 'loaders, train, select=last, layers={"bo*": corner})',
}


def test_a_training_says_which_vectors_are_measured(study: Path) -> None:
    """Red: a classifier of tokens that no loop can measure; the mean of a map where its corner is asked."""
    program = functools.reduce(lambda text, pair: text.replace(*pair), OF_TOKENS.items(), LOOP)
    checked(program)
    run = load_params().grid()[0]
    model = build_own(run)
    keys = run.spec.training
    chosen = keys.study_entry
    _, *measured = chosen.loaders(keys, run.seed)
    layers = {"stem": nc.channels_first, "body": chosen.layers["bo*"]}
    expected = measure_model(model, "fc", *measured, layers=layers, select=chosen.select)
    assert_measured(TrainedRun(run, model.state_dict()), expected)
    refused = refused_by(checked, program.replace("select=last, ", ""))
    assert refused.endswith("or a function of (values, inputs) in its Training of study.py")


def test_few_shot_errors_are_of_the_fifth_loader(study: Path) -> None:
    """At every layer, as of its features collected by hooks; more classes there than the network knows.

    Red: errors on test samples; labels cut to the network's classes; episodes of another seed."""
    target = "[(samples(2).tensors[0], torch.arange(60) % 4)]"
    params = OF_LOOP.replace(
        "[stem, body]}", "[stem, body], transfer: {shots: [2, 5], episodes: 9, seed: 3, head: [ncc]}}"
    )
    run = write(LOOP.replace("DataLoader(test, 25)", f"DataLoader(test, 25), None, {target}"), params)
    trained = train_own(run, CPU)
    features = extract_own(run, trained.state, CPU)
    rows = list(measure_samples(TrainedRun(run, trained.state, seen=features)))
    values = {(row.layer, row.metric): row.value for row in rows if row.split == "target"}
    model = build_own(run)
    model.load_state_dict(trained.state)
    (inputs, labels), means = run.spec.training.study_entry.loaders(run.spec.training, 0)[4][0], {}
    model.eval()
    with torch.no_grad():
        means["stem"] = model.stem(inputs).mean((2, 3))
        means["body"] = means["last"] = model.body(model.stem(inputs)).mean((2, 3))
    for layer, rows_of_layer in means.items():
        for shots in (2, 5):
            generator = episode_generator(3, shots)
            expected = transfer_ncc_error(rows_of_layer.double(), labels, shots, 9, generator)
            assert values[layer, f"transfer_ncc_error_{shots:03d}"] == expected
        assert values[layer, "cdnv"] == pytest.approx(nc.functional.cdnv(rows_of_layer, labels), rel=1e-6)

    params = params.replace("[2, 5]", "[15]")
    run = write(LOOP.replace("DataLoader(test, 25)", f"DataLoader(test, 25), None, {target}"), params)
    assert refused_by(lambda: list(measure_samples(TrainedRun(run, trained.state, seen=features)))) == (
        "plain L=2 seed=0: transfer.shots: class 0 has 15 samples; 15 shots leave none to decide"
    )


def test_an_own_metric_reads_the_samples(study: Path) -> None:
    """Red: samples of a packaged network, which an own loop has not."""
    run = write(LOOP)
    trained = train_own(run, CPU)
    features = extract_own(run, trained.state, CPU)
    rows = list(own_measurements(run, features, TrainedRun(run, trained.state)))
    train_last = next(row for row in rows if (row.layer, row.split) == ("last", "train"))
    assert train_last.value == pytest.approx(features.train.inputs.square().sum().item(), rel=1e-12)
    assert len(rows) == 3 * 2  # layers and splits


def test_parameters_have_roles() -> None:
    """Red: a frozen embedding, or a classifier's bias, among the inner weights."""
    model = torch.nn.Sequential(torch.nn.Embedding(5, 4), torch.nn.Linear(4, 4), torch.nn.Linear(4, 3))
    model[1].bias.requires_grad_(False)
    parameter_roles = roles(model, model[2])
    assert parameter_roles == {
        "0.weight": "embedding",
        "1.weight": "inner",
        "1.bias": "frozen",
        "2.weight": "last",
        "2.bias": "last",
    }


def test_a_resumed_run_is_the_run(study: Path, tmp_path: Path) -> None:
    """Bit for bit, though its loop draws from the global generator.

    Red: generators that begin anew at a checkpoint; a history without the rows before it."""
    run = write(LOOP)
    whole = train_own(run, CPU)
    files = Checkpoints([tmp_path / "run.checkpoint"], 1e9)
    seen: list[int] = []
    with pytest.raises(Stopped):
        train_own(run, CPU, files, lambda epoch, loss: seen.append(epoch), lambda: seen[-1:] == [2])
    assert [saved["epoch"] for saved in files.read()] == [2]
    again = train_own(run, CPU, files)
    assert [row.epoch for row in again.history] == [1, 2, 3, 4]
    assert [row.loss for row in again.history] == [row.loss for row in whole.history]
    assert sorted(again.snapshots) == [0, 2, 4]
    for name, value in whole.state.items():
        assert torch.equal(value, again.state[name]), name


def test_a_loop_without_checkpoints_stops_after_an_epoch(study: Path) -> None:
    """Red: Ctrl-C that waits for the whole loop."""
    run = write(re.sub(r".*log\.checkpoint.*\n", "", LOOP))
    seen: list[int] = []
    with pytest.raises(Stopped):
        train_own(run, CPU, None, lambda epoch, loss: seen.append(epoch), lambda: True)
    assert seen == [1]


def test_a_loop_that_diverges_ends_as_every_run_does(study: Path) -> None:
    """With its last finite weights. Red: a NaN that is stored as a result."""
    run = changed("log(epoch, loss=total", "log(epoch, loss=torch.nan if epoch == 3 else total")
    trained = train_own(run, CPU)
    assert trained.diverged_at == 3
    assert [row.epoch for row in trained.history] == [1, 2]
    assert all(torch.equal(value, trained.snapshots[2][name]) for name, value in trained.state.items())


KEPT_STATE = '"optimizer": optimizer.state_dict()'


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("log(epoch, loss", "log(epoch - 1, loss", "the loop logs epoch 0 after 0, of 1; count on"),
        ("range(log.epoch + 1", "range(1", "the loop logs epoch 1 after 1, of 1; count on"),
        ('        model.load_state_dict(state["model"])\n', "",
         "has other weights once it continued from its checkpoint"),
        (KEPT_STATE, '"optimizer": optimizer', "an object of torch.optim.sgd.SGD, which is not read"),
        ("if state :=", "nn.utils.parametrizations.weight_norm(model.fc)\n    if state :=",
         "weights do not fit what build gives"),
        ("        log(epoch, loss", "        model.body[0][1] = nn.LeakyReLU(epoch)\n        log(epoch, loss",
         "changes more of the network than its state_dict() has"),
    ],
)  # fmt: skip
def test_a_wrong_loop_fails_before_it_trains(study: Path, old: str, new: str, message: str) -> None:
    """Red: training of hours that cannot continue, or whose network is not what is measured."""
    assert LOOP.count(old) == 1
    assert message in refused_by(checked, LOOP.replace(old, new))


def test_a_loop_that_stops_early_leaves_its_last_weights(study: Path) -> None:
    """Red: no run at all, because history asks for the last epoch."""
    run = changed(
        "        log.checkpoint(", "        if epoch == 3:\n            break\n        log.checkpoint("
    )
    trained = train_own(run, CPU)
    assert [row.epoch for row in trained.history] == [1, 2, 3]
    assert sorted(trained.snapshots) == [0, 2, 4]
    assert all(torch.equal(value, trained.snapshots[4][name]) for name, value in trained.state.items())


def test_a_loop_that_logs_too_seldom_fails_at_once(study: Path) -> None:
    """Red: the same after all epochs."""
    run = changed(
        "        log(epoch, loss", "        if epoch % 3:\n            continue\n        log(epoch, loss"
    )
    refused = refused_by(train_own, run, CPU)
    assert "logs epoch 3 after 0, and experiments.plain.history asks for epoch 2; log every epoch" in refused


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("classifier: fc", "classifier: head", "experiments.plain.measure: "),
        ("[stem, body]", "[stem, stem]", "experiments.plain.measure: layers: one is listed twice; remove it"),
        ("[nc1_trace_ratio]", "[nc1]", "experiments.plain.history.metrics: unknown 'nc1'; "),
        ("    measure: {classifier: fc, layers: [stem, body]}\n", "",
         "experiments.plain.measure: missing; add it"),
    ],
)  # fmt: skip
def test_a_wrong_key_is_one_line(study: Path, old: str, new: str, message: str) -> None:
    """By the reader of every other key. Red: keys that nothing checks."""
    assert OF_LOOP.count(old) == 1
    refused = refused_by(checked, LOOP, OF_LOOP.replace(old, new))
    assert refused.removeprefix("params.yaml: ").startswith(message)


def test_a_file_without_study_py_names_it(study: Path) -> None:
    """Red: a union of no specs, which breaks every other study; a schema that underlines `training`."""
    assert '"training"' in schema_text(study=write(LOOP).study)
    Path("study.py").unlink()
    with pytest.raises(InputError, match=r"training: no study\.py beside this file has an entry for it"):
        load_params()


def test_data_have_the_same_checksum_whenever_they_are_fetched(study: Path, tmp_path: Path) -> None:
    """Red: digests of splits in any order, so that runs have other names and train again."""
    run = write(LOOP)
    for number in range(8):
        store_loaders(tmp_path / str(number), run)
    assert len({data_checksum(tmp_path / str(number)) for number in range(8)}) == 1


def test_loaders_that_change_later_are_found_by_fetch(study: Path, tmp_path: Path) -> None:
    """Red: a pass that is compared over its first batches alone."""
    assert store_loaders(tmp_path / "same", write(LOOP)) == {"train": 60, "test": 60}
    odd = """

class Odd(TensorDataset):
    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x + (index > 55) * torch.rand(1), y
"""
    run = write(LOOP.replace("return TensorDataset(", "return Odd(") + odd)
    check_study(load_params())
    with pytest.raises(InputError, match="loaders gives other samples to measure on"):
        store_loaders(tmp_path / "odd", run)


def test_its_runs_are_keyed_by_what_they_depend_on(study: Path) -> None:
    """Its loop stands in a file of its own, so that a metric trains nothing again.

    Red: a digest that misses the loop, or that every study.py shares."""
    loop, _, metrics = LOOP.partition("def spread")
    loop = loop.replace("from ncpipe.metrics.catalogue import Metric\n", "")
    header = """
from loop import Plain, build, loaders, train
from ncpipe.metrics.catalogue import Metric
from ncpipe.training.own_loop import Training


def spread"""

    def split(old: str = "", new: str = "") -> Run:
        Path("loop.py").write_text(loop.replace(old, new), encoding="utf-8")
        return write((header + metrics).replace(old, new))

    run = split()
    assert study_effect(at_start()) is None
    reached = training_digests(run.spec, run.study, at_start())
    assert {"loop.py", "ncpipe/training", "ncpipe/runs/run_folder"} <= reached.keys()
    assert not {"study.py", "ncpipe/metrics"} & reached.keys()
    compute = load_params().compute
    code = code_digest(run.spec, run.study)
    edits = {"momentum=0.9": "momentum=0.8", "nn.Conv2d(6, 6, 1)": "nn.Conv2d(6, 6, 3)", "2 * torch": "torch"}
    edits["h.square()"] = "h.abs()"  # a metric
    digests = [code_digest(run.spec, run.study) for run in itertools.starmap(split, edits.items())]
    assert [digest == code for digest in digests] == [False, False, False, True]
    run = split()
    keys = {
        fingerprint_of(dataclasses.replace(run, **change), data, compute).key()
        for change, data in (({}, "a"), ({}, "b"), ({"depth": 3}, "a"), ({"seed": 1}, "a"))
    }
    assert len(keys) == 4


def test_it_runs_to_its_report(study: Path) -> None:
    """One run in a process of its own, and every stage after it; one depth is a sweep too.

    Red: a table or figure that asks for the penalty or the architecture."""
    run = write(LOOP)
    check_study(load_params())
    write_grid()
    fetch("plain")
    train("plain", 2, 0, workers=1)
    assert multiprocessing.active_children() == []
    assert len(stored_runs()) == 1
    assert [row["epoch"] for row in read_history(RUNS / run.path)] == [1, 2, 3, 4]
    extract_experiment("plain")
    measure("plain")
    for stage in (aggregate, plot, report):
        stage()
    figures = {path.stem for path in Path("data/figures").glob("*.png")}
    assert {"layers", "curves_plain", "train_test", "heat_maps"} <= figures
    history = pd.read_csv("data/results/history.csv")
    assert list(history["nc1_trace_ratio"].notna()) == [True, False, True, False, True]
    layers = pd.read_csv("data/results/layers.csv")
    assert list(dict.fromkeys(layers["layer"])) == ["stem", "body", "last"]
    runs = pd.read_csv("data/results/runs.csv")
    assert runs["loss_gap"].isna().all()
    assert runs["converged"].all()
    assert "Does it collapse?" in Path("data/report.html").read_text(encoding="utf-8")
    trained = train_own(run, CPU)  # what the other process did
    data = data_checksum(Path("data/prepared/plain"))
    stored = read_state(RUNS / run.path, fingerprint_of(run, data, load_params().compute))
    assert all(torch.equal(value, stored[name]) for name, value in trained.state.items())
    before = torch.get_rng_state()
    networks = TrainedRun(run, stored).network, results.load().run("plain", depth=2, seed=0).model()
    assert torch.equal(torch.get_rng_state(), before)
    for network in networks:
        assert all(torch.equal(value, stored[name]) for name, value in network.state_dict().items())
    with pytest.raises(InputError, match=r"a loop of study\.py trained it; take the data of its loaders"):
        results.load().run("plain", depth=2, seed=0).inputs()


def test_every_number_of_an_array_counts_in_the_digest_of_a_batch() -> None:
    """Red: one by repr, which leaves out most of an array of more than a thousand."""
    batch = np.zeros(5000), np.ones(2, int)
    other = batch[0].copy(), batch[1]
    other[0][2500] = 1
    digests = [hashlib.sha256() for _ in "abc"]
    for digest, value in zip(digests, (batch, other, (batch[0].copy(), batch[1])), strict=True):
        _add(digest, value)
    first, second, third = (digest.hexdigest() for digest in digests)
    assert first != second
    assert first == third


PIPELINE = """\
stages:
  code: {cmd: ncpipe code, deps: [study.py]}
  fetch: {cmd: ncpipe fetch, deps: [more/noise.txt]}
"""


READING = """

def scale():
    with open("more/" + "noise.txt") as file:
        return float(file.read())


def edit(text):
    if os.environ.get("EDIT"):
        with open("more/" + "noise.txt", "w") as file:
            file.write(text)
"""


def reading_study(always: bool = False) -> None:
    """Write a study whose loop scales samples by a file that nothing else reads, and a dvc.yaml.

    With EDIT in the environment, the loop edits that file before it begins, and puts it back at its end."""
    Path("more").mkdir(exist_ok=True)
    Path("more/noise.txt").write_text("1.5")
    listed = PIPELINE.replace("deps: [more/noise.txt]", "always_changed: true") if always else PIPELINE
    Path("dvc.yaml").write_text(listed)
    program = LOOP.replace("import torch\n", "import os\n\nimport torch\n", 1).replace(
        "logits = model(x", "logits = model(scale() * x"
    )
    program = program.replace("    batches, *_ =", "    edit('-1.5')\n    batches, *_ =")
    program = program.replace("\n\ndef spread", "    edit('1.5')\n\n\ndef spread")
    write(program + READING)


def stored_contents() -> dict[str, str]:
    return {path.name: contents(path)["model.safetensors"] for path in stored_runs()}


def test_a_file_that_only_the_loop_reads_decides_its_runs(study: Path, here: None) -> None:
    """It is listed for `fetch`, as the refusal says, and what is measured is the same.

    Red: the run of the file before, or one that has the name of the file before."""
    reading_study()
    stores = []
    for scale in ("1.5", "-1.5", "1.5"):
        clear_code_digests()
        Path("more/noise.txt").write_text(scale)
        fetch("plain")
        train("plain", 2, 0, workers=1)
        stores.append(stored_contents())
    first, both, again = stores
    assert len(first) == 1
    assert len({*both.values()}) == 2
    assert again == both


def test_a_file_changes_after_fetch(study: Path) -> None:
    """Red: a run, features or tables of another file than the data's checksum is of."""
    reading_study()
    write_grid()
    fetch("plain")
    Path("more/noise.txt").write_text("-1.5")
    for stage in (functools.partial(train, workers=1), extract_experiment, measure):
        clear_code_digests()
        with pytest.raises(InputError, match=r"^data/prepared/plain: files that dvc\.yaml lists"):
            stage("plain")
    assert stored_runs() == []


def test_a_loop_may_not_read_what_only_a_stage_that_always_runs_reads(study: Path) -> None:
    """It trains again, and then nothing fetches. Red: a file that is in no name of the loop's runs."""
    reading_study(always=True)
    with pytest.raises(InputError, match=r"reads more/noise\.txt, .* to the deps of the stage fetch"):
        check_study(load_params())
    Path("dvc.yaml").unlink()
    with pytest.raises(InputError, match=r"reads more/noise\.txt, .* to the deps of the stage fetch"):
        check_study(load_params())


@pytest.fixture
def trained_before(study: Path, here: None) -> dict[str, str]:
    """The run of a study, which is no longer there."""
    reading_study()
    fetch("plain")
    train("plain", 2, 0, workers=1)
    stored = stored_contents()
    for folder in (RUNS, *stored_runs()):
        shutil.rmtree(folder)
    clear_code_digests()
    return stored


def test_a_loop_is_edited_as_its_process_starts_and_put_back(
    study: Path, trained_before: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red: the result of the edited loop under the name of the loop before."""
    text = Path("study.py").read_text()
    ending = f"    with open('study.py', 'w') as file:\n        file.write({text!r})\n\n\ndef spread"

    def started(*arguments: Any) -> Any:
        edited = text.replace("momentum=0.9", "momentum=0.1").replace("\n\ndef spread", ending)
        Path("study.py").write_text(edited)
        return pool.executor(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(own_runs, "executor", started)
        with pytest.raises(InputError, match="the code was edited since the command began"):
            train("plain", 2, 0, workers=1)
    assert stored_runs() == []
    Path("study.py").write_text(text)
    clear_code_digests()
    train("plain", 2, 0, workers=1)
    assert stored_contents() == trained_before


def test_a_loop_reads_a_file_that_is_edited_and_put_back(
    study: Path, trained_before: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red: the result of the edited file under the name of the file before; a checkpoint that is resumed."""
    monkeypatch.setenv("EDIT", "1")
    with pytest.raises(InputError, match=r"^more/noise\.txt: was changed, or only touched"):
        train("plain", 2, 0, workers=1, checkpoint_seconds=0.0)
    monkeypatch.delenv("EDIT")
    assert stored_runs() == []
    assert not list(store_folder().glob("*.checkpoint"))
    Path("more/noise.txt").write_text("1.5")
    clear_code_digests()
    train("plain", 2, 0, workers=1)
    assert stored_contents() == trained_before
