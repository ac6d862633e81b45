"""params.yaml: what is read, what is refused and in which words, and how the grid is expanded."""

import dataclasses
import json
import re
import typing
from pathlib import Path
from typing import Any

import jsonschema
import pandas as pd
import pytest
from conftest import TEXT, architecture, experiment, experiment_tree, refused_by
from dvc.utils.serialize import load_yaml
from pipeline import with_axis

from ncpipe.commands.json_schema import SCHEMA_FILE, about, schema_text
from ncpipe.config.bounds import key_of
from ncpipe.config.experiment import Experiment
from ncpipe.config.params import Convergence, Params, load_params, parse_params
from ncpipe.config.records import read
from ncpipe.config.run import as_json
from ncpipe.config.yaml_file import key_lines, read_yaml
from ncpipe.system.errors import InputError
from ncpipe.tables.convergence import WATCHED, judge_run

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = [ROOT / "params.yaml", *sorted(ROOT.glob("stages/*/params.yaml"))]


def tree(**experiments: Any) -> dict[str, Any]:
    return {
        "sweep": {"experiments": ["one"], "depths": [2, 3], "seeds": [0, 1]},
        "compute": {"device": "auto", "threads": 1, "precision": "float32"},
        "convergence": {"train_error": 0, "window": 0.25, "tolerance": 0.01},
        "slopes": {"seed": 0, "level": 0.95},
        "effective_depth": {"tolerance": 0.01},
        "experiments": experiments or {"one": experiment_tree()},
    }


LBFGS = {"name": "lbfgs", "learning_rate": 1.0, "memory": 5}
IMAGES = {"source": "digits", "per_class": 4, "test_per_class": 4, "seed": 0, "normalisation": "unit"}
STEPS = {"name": "step", "factor": 0.1}
KEPT = {"at": [1], "metrics": ["nc2_etf"]}


def changed(path: str, value: object) -> dict[str, Any]:
    """The tree with the value at a dotted path replaced."""
    whole = tree()
    *above, key = path.split(".")
    place = whole
    for step in above:
        place = place[step]
    place[key] = value
    return whole


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("sweep.experiments", ["two"], "sweep.experiments: unknown 'two'; allowed: one"),
        ("sweep.depths", [2, 3, 2], "sweep.depths: 2 is listed twice"),
        ("sweep.depths", [2, 1], "sweep.depths: 1 does not suit one: L-RN1 needs L >= 2"),
        ("sweep.seeds", [2**32 - 1, 2**32], "sweep.seeds[1]: 4294967296 is out of range"),
        ("about", {"onne": {"question": "?"}}, "about.onne: no experiment has this name; did you mean 'one'"),
        ("experiments.one.optimizer.learning_rat", 1, "did you mean 'learning_rate'? allowed: name,"),
        ("experiments.one.optimizer.learning_rate", "1e-3", "expected a number, got text ('1e-3')"),
        ("experiments.one.optimizer.name", "adamm", "name: 'adamm' is unknown; did you mean 'adam'"),
        ("experiments.one.model.mlp_width", 4, "model: mlp_width does not apply: L-RN1 has one-layer MLPs"),
        ("experiments.one.model.architecture", "L-RN2", "mlp_width is needed: L-RN2 has two-layer MLPs"),
        ("experiments.one.model.architecture", "L-T11", "one: model.patch is needed: L-T11 reads"),
        ("experiments.one.model.patch", 2, "one.model.patch: unknown key; allowed: architecture, norm"),
        ("experiments.one.data.source", "marko", "free, markov, text"),
        ("experiments.one.loss", "text", "one.loss: 'text' is unknown; allowed: ce, mse, pick_all, sup"),
        ("experiments", {"one": experiment_tree(), "One": experiment_tree()}, "collides with 'one'"),
        ("experiments", {"one": experiment_tree(), "null": experiment_tree()}, "null: DVC reserves"),
        ("sweep.seeds", list(range(50_001)), "sweep: 100002 runs; DVC keeps a stage for each"),
        ("experiments", {"one": experiment_tree(), "a-b": experiment_tree()}, "experiments.a-b: a name is"),
        ("experiments.one.data", TEXT, "L-RN1 takes vectors or images, imdb is token sequences"),
        ("experiments.one", experiment_tree(optimizer=LBFGS, batch_size=4), "lbfgs needs `full`"),
        ("experiments.one", experiment_tree(batch_size=25), "25, but there are at most 24 samples"),
        ("experiments.one.data", IMAGES | {"per_class": 175}, "data: per_class: 175, but digits has 174 tr"),
        ("experiments.one.data", IMAGES | {"per_class": 100, "test_per_class": 75},
         "one.data: test_per_class: 75, but digits has 74 test"),  # one set, less the training images
        ("experiments.one.data", IMAGES | {"source": "mnist", "per_class": 5422}, "but mnist has 5421 train"),
        ("experiments.one.data", IMAGES | {"source": "cifar100", "test_per_class": 101}, "has 100 test"),
        ("experiments.one.data", IMAGES | {"ood": {"source": "svhn", "per_class": 4660, "seed": 0}},
         "one.data.ood: per_class: 4660, but svhn has 4659 training samples"),
        ("experiments.one.data", TEXT | {"per_class": 12_501}, "data: per_class: 12501, but imdb has 12500"),
        ("experiments.one.history", KEPT | {"at": [1.5]}, "history.at[0]: 1.5 is out of range"),
        ("experiments.one.history", KEPT | {"at": []}, "history: metrics and at"),
        ("experiments.one.history", {"at": [1]}, "history.metrics: missing"),
        ("experiments.one.schedule", STEPS | {"milestones": []}, "one.schedule: milestones: empty; list"),
        ("experiments.one.schedule", STEPS | {"milestones": [0.5, 0.25]}, "schedule: milestones: must asc"),
        ("experiments.one", experiment_tree(data=TEXT, model=architecture("L-T11", "pre", patch=2)),
         "model.patch does not apply to token"),
        ("experiments.one", experiment_tree(model=architecture("L-T11", "post", patch=4)),
         "experiments.one: model.patch: 4 does not divide the input's side 6"),
    ],
)  # fmt: skip
def test_mistakes_name_their_key(path: str, value: object, message: str) -> None:
    refused = refused_by(parse_params, changed(path, value))
    assert message in refused


def test_every_mistake_of_a_file_is_listed(tmp_path: Path) -> None:
    """Also what contradicts other keys, of those parts that are whole in themselves."""
    bad = tree(
        one=experiment_tree(
            data=TEXT | {"vocabulary": None}, model={"patch": 4}, epochs=0, loss="hinge", width=64
        ),
        two=experiment_tree(),
    )
    bad["sweep"] = {"experiments": ["two", "tow"], "depths": [1, 2, 2], "seeds": [0, True]}
    del bad["slopes"], bad["compute"]["threads"]
    (tmp_path / "params.yaml").write_text(json.dumps(bad), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_params(tmp_path / "params.yaml")
    starts = [
        "sweep.seeds[1]: expected a whole number, got true or false (True)",
        "compute.threads: missing; add it",
        "slopes: missing; add it",
        "experiments.one.data: vocabulary is a number with `tokenizer: corpus`",
        "experiments.one.model.patch: unknown key",
        "experiments.one.loss: 'hinge' is unknown",
        "experiments.one.epochs: 0 is out of range; it must be >= 1",
        "experiments.one.width: unknown key",
        "sweep.depths: 2 is listed twice",
        "sweep.experiments: unknown 'tow'; did you mean 'two'? allowed: one, two",
        "sweep.depths: 1 does not suit two",
    ]
    lines = [line.removeprefix(f"{tmp_path}/params.yaml: ") for line in str(caught.value).splitlines()]
    assert sorted(lines) == sorted(line for start in starts for line in lines if line.startswith(start))
    assert len(lines) == len(starts)


@pytest.mark.parametrize(("epochs", "log_every", "largest"), [(20, 6, 5), (300, 76, 75), (7, 2, 1)])
def test_a_history_too_coarse_for_the_window_is_refused_with_what_works(
    epochs: int, log_every: int, largest: int
) -> None:
    """Red: runs that train for hours and then count as not converged, all of them."""
    message = refused_by(parse_params, tree(one=experiment_tree(epochs=epochs, log_every=log_every)))
    assert message == (
        f"experiments.one.log_every: {log_every} is too coarse to judge convergence over the last 25 % of "
        f"{epochs} epochs; it must be <= {largest} (convergence.window x epochs)"
    )
    spec = experiment(epochs=epochs, log_every=largest)
    parse_params(tree(one=experiment_tree(epochs=epochs, log_every=largest)))
    logged = sorted({*range(0, spec.epochs + 1, spec.log_every), spec.epochs})
    rows = dict.fromkeys(WATCHED, 0.0)
    history = pd.DataFrame([{"epoch": epoch, **rows} for epoch in logged])
    assert judge_run(history, True, Convergence(0.0, 0.25, 0.01))[0] == ""


def test_what_no_sweep_asks_for_and_what_no_value_would_mend_may_be_coarse() -> None:
    """Three epochs have no quarter; an experiment out of the sweep has time."""
    coarse = experiment_tree(epochs=20, log_every=6)
    parse_params(tree(one=experiment_tree(epochs=3, log_every=5), other=coarse))


def test_the_grid_is_sorted_by_depth_and_seed_and_keeps_the_experiments_order() -> None:
    whole = tree(b=experiment_tree(), a=experiment_tree())
    whole["sweep"] = {"experiments": ["b", "a"], "depths": [5, 2], "seeds": [3, 1]}
    runs = [(run.experiment, run.depth, run.seed) for run in parse_params(whole).grid()]
    axes = [(depth, seed) for depth in (2, 5) for seed in (1, 3)]
    assert runs == [(name, *axis) for name in ("b", "a") for axis in axes]


def test_a_whole_number_serves_as_a_number() -> None:
    """Red: 1 in run.json where another params.yaml has 1.0, so that two equal runs have two names."""
    adam = {"name": "adam", "learning_rate": 1, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
    assert isinstance(experiment(optimizer=adam).optimizer.learning_rate, float)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.parent.name)
def test_shipped_params_read_the_same_to_dvc(path: Path) -> None:
    load_params(path)
    assert read_yaml(path) == load_yaml(str(path))


@pytest.mark.parametrize("text", ["just words", ""])
def test_a_file_that_is_no_params_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "params.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"params\.yaml: the file: expected keys with values"):
        load_params(tmp_path / "params.yaml")


@pytest.mark.parametrize(
    "pipeline", [p.parent / "dvc.yaml" for p in SHIPPED[1:]], ids=lambda p: p.parent.name
)
def test_studies_run_the_stages_of_the_root(pipeline: Path) -> None:
    """The stage lists are one text, and what a study adds is marked. Red: a stage edited in one of them.

    A study with an axis varies it in fetch and train.
    """

    def stages(path: Path) -> str:
        text = path.read_text(encoding="utf-8").partition("stages:\n")[2]
        text = re.sub(r"\n.* # of this study alone$", "", text, flags=re.MULTILINE)
        return re.sub(r"\n  # Of this study alone:\n.*?(?=\nmetrics:)", "", text, flags=re.DOTALL)

    params = load_params(pipeline.parent / "params.yaml")
    axis, root = params.sweep.axis, stages(ROOT / "dvc.yaml")
    if any(spec.training for spec in params.experiments.values()):  # which have loaders in place of data
        root = root.replace("{item.experiment}.data", "{item.experiment}.training")
    expected = root if axis is None else with_axis(root).replace("x_label: depth L", f"x_label: {axis}")
    assert stages(pipeline) == expected


def test_a_key_that_is_as_if_absent_leaves_no_trace_in_a_runs_record() -> None:
    """So that a new optional key makes no finished run another one."""
    penalty = {"rule": "constant", "value": 0.005, "last_layer": None}
    absent, false, true = (
        as_json(experiment(penalty=penalty | more)) for more in ({}, {"biases": False}, {"biases": True})
    )
    assert absent["penalty"] == penalty == false["penalty"]
    assert true["penalty"] == penalty | {"biases": True}
    steps = {"name": "step", "milestones": [0.5, 0.75], "factor": 0.1}
    tree = experiment_tree(schedule=steps, model=architecture("L-RN2", "post"))
    assert json.loads(json.dumps(as_json(read(Experiment, tree, "")))) == tree


def test_the_papers_panels_are_all_there() -> None:
    """S25 sec. 5 and App. D: architecture, norm, data and penalty of every row of Figures 1 and 2."""
    params = load_params(ROOT / "params.yaml")
    panels = {
        "cifar10_rn1": ("L-RN1", "post", "cifar10", "constant", 0.005, 0.005, 0.005),
        "cifar10_t11": ("L-T11", "post", "cifar10", "constant", 0.005, 0.005, 0.005),
        "imdb_pre_t11": ("L-T11", "pre", "imdb", "constant", 0.005, 0.005, 0.001),
        "mnist_rn2": ("L-RN2", "post", "mnist", "over_depth", 0.005, 0.005, 0.005),
        "mnist_rn2_uniform": ("L-RN2", "post", "mnist", "over_depth", 0.005, 0.0005, 0.005),
        "mnist_rn1": ("L-RN1", "post", "mnist", "constant", 0.005, 0.005, 0.005),
        "mnist_t11": ("L-T11", "post", "mnist", "constant", 0.005, 0.005, 0.005),
        "mnist_rn2_constant": ("L-RN2", "post", "mnist", "constant", 0.0025, 0.0025, 0.005),
    }
    for name, (architecture_name, norm, source, rule, value, last_at_10, rate) in panels.items():
        spec = params.experiment(name)
        assert (spec.model.architecture, spec.model.norm) == (architecture_name, norm)
        assert spec.data.source == source
        assert (spec.penalty.rule, spec.penalty.value) == (rule, value)
        assert spec.penalty.last_strength(10) == pytest.approx(last_at_10)
        assert spec.optimizer.learning_rate == rate
        assert (spec.model.width, spec.epochs, spec.loss) == (64, 5000, "ce")


@pytest.fixture(scope="module")
def schema() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json.loads(schema_text()))


def test_the_schema_is_current(schema: jsonschema.Draft202012Validator) -> None:
    """`ncpipe schema` writes it."""
    assert (ROOT / SCHEMA_FILE).read_text(encoding="utf-8") == schema_text()
    schema.check_schema(schema.schema)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.parent.name)
def test_shipped_params_name_the_schema_and_fit_it(
    path: Path, schema: jsonschema.Draft202012Validator
) -> None:
    first = path.read_text(encoding="utf-8").splitlines()[0]
    named = first.removeprefix("# yaml-language-server: $schema=")
    assert (path.parent / named).resolve() == ROOT / SCHEMA_FILE
    if not (path.parent / "study.py").is_file():  # whose keys only a schema written beside it has
        schema.validate(read_yaml(path))


def records(kind: Any) -> set[type]:
    """All records that a params.yaml is made of."""
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
        return set().union(*map(records, typing.get_args(kind)))
    hints = typing.get_type_hints(kind, include_extras=True)
    return {kind}.union(*(records(hints[field.name]) for field in dataclasses.fields(kind)))


@pytest.mark.parametrize("kind", sorted(records(Params), key=lambda kind: kind.__name__))
def test_every_key_is_explained(kind: type) -> None:
    description, keys = about(kind)
    assert description
    assert list(keys) == [key_of(field.name) for field in dataclasses.fields(kind)]
    assert all(keys.values())


def test_a_mistake_names_its_line(tmp_path):
    """Of what a merge brings, the line where it is written. Red: the line of the mapping that merges."""
    path = tmp_path / "params.yaml"
    text = (ROOT / "params.yaml").read_text(encoding="utf-8")
    old = "optimizer: {name: adam, learning_rate: 0.005"
    path.write_text(text.replace("depths: [2, 3, 5, 8, 13]", "depths: [2, -3]").replace(old, old + "x", 1))
    with pytest.raises(InputError) as caught:
        load_params(path)
    lines = path.read_text().splitlines()
    messages = str(caught.value).splitlines()
    assert len(messages) == 2
    for line, written in zip(messages, ("[2, -3]", "0.005x"), strict=True):
        number = int(re.search(r" \(line (\d+)\)$", line)[1])
        assert written in lines[number - 1]
    merged = "a: &a\n  x: {y: 1}\nb:\n  <<: *a\n  z: 2\n"
    assert key_lines(merged) == {"a": 1, "a.x": 2, "a.x.y": 2, "b": 3, "b.z": 5, "b.x": 2, "b.x.y": 2}


def test_an_editor_names_the_misspelt_key(schema):
    """By the shipped schema, as a validator reads it. Red: 'is not valid under any of the given schemas'."""

    def said(error):
        inner = [line for cause in error.context for line in said(cause)]
        return inner or [f"{error.json_path}: {error.message}"]

    tree = json.loads(json.dumps(read_yaml(ROOT / "params.yaml")))
    assert list(schema.iter_errors(tree)) == []
    spec = tree["experiments"]["digits_rn1"]
    spec["optimizer"] |= {"learning_rat": 0.1, "beta2": 2}
    spec["model"]["widt"] = 3
    spec["data"]["source"] = "digit"
    lines = [line for error in schema.iter_errors(tree) for line in said(error)]
    words = ("'learning_rat' was unexpected", "'widt' was unexpected", "'digit' is not one of", "beta2: 2 is")
    assert len(lines) == len(words)
    assert all(any(word in line for line in lines) for word in words)
