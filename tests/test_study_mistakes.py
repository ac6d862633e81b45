"""What is wrong in a study.py is one line with its place, from the stage `code`, before anything trains."""

import re
from pathlib import Path
from typing import Any

import pytest
from conftest import experiment_tree, refused_by, write_params
from studies import (
    EVERYTHING,
    FUNCTION,
    LOOP,
    MODULE,
    OF_LOOP,
    OF_MODULE,
    POLY,
    STAGES,
    TRAINING,
    WHOLE,
    changed,
)

from ncpipe.commands.code import write_code

STUDIES = {
    "": "",
    "functions": "import random\n" + WHOLE + TRAINING,
    "module": MODULE,
    "loop": LOOP,
    "stages": STAGES,
}
EXPERIMENTS: dict[str, dict[str, Any]] = {"functions": EVERYTHING, "module": OF_MODULE}
AGAIN = "gives another result when it is called again"
WIDTH = "    width: Count"
GIVEN = '{"inputs": points + spec.noise * draw.standard_normal(points.shape), "labels": labels}'
INITIALISED = "        init_weights(self, 1.0, False, generator)\n"
LAYERS = "self.first, self.last = nn.Linear(size, width), nn.Linear(width, classes, bias=False)"
METRIC = 'Metric("spread", "NC1", "0", "spread", "", "", "", "every, both")'
SPREAD = "the metric 'spread' has "
UNSEEDED = "torch.as_tensor(np.random.default_rng().standard_normal((6, 2)), dtype=torch.float32)"
MEASURED = "DataLoader(train, 25), DataLoader(test, 25)"
LIMIT = "    limit: Positive"
TIED = "        self.blocks[1].weight = self.blocks[0].weight"
REBOUND = """type("Mean", (nn.BatchNorm1d,), {
    "forward": lambda own, x: setattr(own, "running_mean", own.running_mean + x.mean(0)) or x
})(8)"""
KEY_EXISTS = "which exists already; take another name"

# Of each study: a piece, what stands in its place, what the line that is named begins with, and the words.
MISTAKES: dict[str, list[tuple[str, str, str, str]]] = {
    "": [
        ("", "x = 1\ndef f(:\n", "def", "invalid syntax"),
        ("", "\n\nimport nothing_of_this_name\n", "import", "ModuleNotFoundError: No module named"),
        ("", "def f():\n    return 1 / 0\n\nf()\n", "    return", "f: ZeroDivisionError: division by zero"),
        ("", "raise SystemExit(3)\n", "raise", "SystemExit: 3"),
        ("", "x = 1\nNETWORKS = []\n", "NETWORKS", "NETWORKS is of type list; it has to be a dict"),
        ("", "\nNETWORKS = {'square': 1}\n", "NETWORKS", "'square' in NETWORKS is no spec: make it a frozen"),
        ("", "\nclass A:\n    pass\n\n\nNETWORKS = {A: 1}\n", "class A", "A in NETWORKS is no spec"),
        ("", "\nMETRICS = {'spread': len}\n", "METRICS", "METRICS has a key of type str; expected a Metric"),
    ],
    "functions": [
        ('Literal["square"]', 'Literal["mlp"]', "class SquareModel", "'mlp' exists already, in the package"),
        (WIDTH, '    width: "Nothing"', "class SquareModel", "annotation of SquareModel is no type"),
        (WIDTH, "    width: list[int]", "class SquareModel", "list is no type of a key"),
        (WIDTH, '    width: "SquareModel | RingsData"', "class SquareModel",
         "a union of records has no key: write Annotated[A | B, TaggedBy('key')]"),
        (WIDTH, '    width: "tuple[RingsData, ...]"', "class SquareModel",
         "a list or dict of records cannot be a key"),
        ("    architecture: Lit", "    name: Lit", "class SquareModel", "begin with the key architecture"),
        (': Literal["square"]', ": str", "class SquareModel", "architecture is no name"),
        ("(frozen=True)\nclass SquareModel", "\nclass SquareModel", "class SquareModel", "not frozen"),
        ('    norm: ClassVar[str] = "none"\n', "", "class SquareModel", "SquareModel has no norm"),
        ("SquareModel: Family(", "SquareModel: print(", "NETWORKS = ", "NETWORKS[SquareModel] is no Family"),
        (LAYERS, LAYERS.replace("self.last", "self.head"), "",
         "Square has no classifier; set self.last = torch.nn.Linear"),
        (INITIALISED, f"{INITIALISED}        self.last.weight.requires_grad_(False)\n", "class Square(",
         "initialise() changes requires_grad; set it in __init__"),
        (INITIALISED, f"        self.first.weight.data = {UNSEEDED}\n", "class SquareModel",
         f"initialise() of square {AGAIN}; draw from `generator`"),
        ("self.first(x).square()", "self.first(x).square() * random.random()", "class Square(",
         f"the network {AGAIN} in eval mode; draw `if self.training` alone"),
        (f"return {GIVEN}", "1 / 0", "    1 / 0", "rings: ZeroDivisionError"),
        (GIVEN, "[1]", "def rings", "what rings gives is of type list; expected arrays by name"),
        (GIVEN, '{"labels": labels}', "def rings", "what rings gives: has no 'inputs'; it has labels"),
        (GIVEN, '{"inputs": points, "labels": labels + 1}', "def rings",
         "what rings gives: labels has no sample of class 0"),
        (GIVEN, '{"inputs": points, "labels": labels, "label": 1}', "def rings",
         "what rings gives: nothing reads label;"),
        ("np.random.default_rng(spec.seed)", "np.random.default_rng()", "", f"function of rings {AGAIN}"),
        (POLY, "    return -own.mean()\n", "class PolyLoss",
         "has the shape (); expected a number for each sample,"),
        (POLY, POLY.replace("-own", "-torch.rand(()) * own"), "class PolyLoss",
         f"the loss poly of this network {AGAIN}, so its runs could not be repeated"),
        (POLY, POLY.replace("-own", "-own / own.mean().detach()"), "class PolyLoss",
         "the loss poly gives a sample another number with other samples in its batch"),
        ("heavy_ball(weights,", "heavy_ball(theta,", "", "OPTIMIZERS[HeavyBall] takes 'theta', which "),
        ("return {name: value -", "return {name[1:]: value -", "class HeavyBall", "weights has to be a dict"),
        ('name: value - rate * state["velocity"][name]', "name: value[:1]", "class HeavyBall", " is (1, "),
        ("value - rate * state", "value - rate * float(np.random.default_rng().random()) * state",
         "class HeavyBall", "the optimizer heavy_ball changes from call to call"),
        ('name: value - rate * state["velocity"][name]', 'name: value.sub_(rate * state["velocity"][name])',
         "class HeavyBall", "the optimizer heavy_ball changes the weights that it gets"),
        ('Metric("spread"', 'Metric("cdnv"', "METRICS = ", "'cdnv' exists already, in the package"),
        ('Metric("spread"', 'Metric("train_error"', "METRICS = ", "has the name of a column of tables"),
        ('Metric("spread"', 'Metric("a b"', "METRICS = ", "the metric 'a b' is no name"),
        (f"SPREAD: {FUNCTION}", "SPREAD: 3.0", "METRICS = ", "METRICS[spread] is of type float"),
        (FUNCTION, "lambda classes: float(np.random.default_rng().random())", "METRICS = ",
         f"the metric spread {AGAIN}"),
        (METRIC, METRIC.replace('"NC1"', '""'), "METRICS = ", f"{SPREAD}the group ''; write a short text"),
        (METRIC, METRIC.replace("every, both", "everywhere"), "METRICS = ",
         f"{SPREAD}where 'everywhere'; write layers"),
        (METRIC, METRIC.replace("every, both", "last, weights"), "METRICS = ", "is known at 'every, both'"),
        (METRIC, METRIC.replace('both"', 'both", "lin"'), "METRICS = ",
         f"{SPREAD}the scale 'lin'; write log"),
    ],
    "module": [
        ('"head", [', '"haed", [', "", "last: the model has no layer 'haed'; did you mean 'head'?"),
        ('"head", [', '"drop", [', "", "last: 'drop' is of type Dropout; name an nn.Linear inside"),
        ('"stem", "blocks', '"stam", "blocks', "", "layers: the model has no layer 'stam'"),
        ('"blocks.*"', '"block.*"', "", "layers: no layer of the model matches 'block.*'"),
        ('"blocks.*"]', '"blocks.*"], {"embedding": ["emb"]}', "", "no parameter matches 'emb'; there are "),
        ("return Net(classes)", "return 3", "", "build gives int; return a module"),
        ("self.head(self.drop(x))", "self.head(x).softmax(1)", "", "does not return the logits of its last"),
        ("last_bias: ClassVar[bool] = True", "pass", "", "`last` has a bias; write the ClassVar last_bias ="),
        ("self.stem(x.flatten(1))", "self.stem(x.squeeze(1).flatten(1)[:, None])[:, 0]", "",
         "build gives a network that does not fit: layer 'stem' gives (40, 1, 8); name it with a function"),
        ("self.drop(x)", "nn.functional.dropout(x)", "class Net(",
         f"Net, L = 2: the network {AGAIN} in eval mode"),
        ("nn.Parameter(torch.zeros(8))", "torch.randn(8)", "class Net(",
         "keeps numbers that are neither parameters nor buffers; use self.register_buffer"),
        ("nn.Dropout(0.5)", f"nn.Dropout(0.5)\n{TIED}", "class Net(", "is not read back as it is stored"),
        ("nn.Dropout(0.5)", REBOUND, "class Net(", "sets the buffer module.drop.running_mean to"),
        ("self.head(self.drop(x))", "self.head(self.drop(x @ torch.eye(8)))", "        return self.head",
         "Net.forward: RuntimeError"),
        ("nn.Linear(8, classes)", "nn.utils.parametrizations.weight_norm(nn.Linear(8, classes))", "",
         "last: 'head' is of type ParametrizedLinear; name an nn.Linear inside"),
    ],
    "loop": [
        ("def spread", "    return Net(2)\n\n\ndef spread", "",
         "train returns another module; train the module that it gets, in place"),
        ("loss=total / count,", "loss=float('nan'),", "",
         "train leaves a loss, error or weight that is not finite after one epoch"),
        ("        log(epoch, loss=total / count, train_error=wrong / count)\n", "", "",
         "train logs no epoch; call log(epoch, loss=..., train_error=...) after each"),
        ("train_error=wrong / count)", "accuracy=1.0)", "",
         "train: TypeError: Log.__call__() got an unexpected keyword argument 'accuracy'"),
        ("DataLoader(train, 25)", "DataLoader(train, 25, shuffle=True)", "",
         "loaders gives other samples to measure on (train) in a second pass; use the same samples in the "
         "same order, without augmentation or shuffling"),
        (MEASURED, "[{'x': torch.ones(2, 3), 'label': torch.ones(2)}]", "",
         "loaders gives a batch without labels to measure on (train); its keys are x, label"),
        (MEASURED, "iter([1])", "",
         "loaders gives a list_iterator to measure on (train); give a DataLoader or a list of batches"),
        (f", {MEASURED}", "", "",
         "loaders gives DataLoader; return (train, measured), then test, ood and target"),
        ("DataLoader(test, 25)", "DataLoader(test, 25), None, DataLoader(test, 25)", "",
         "loaders gives target; few-shot errors need target and measure.transfer both"),
        (MEASURED, "DataLoader(train, 25), None, DataLoader(test, 25)", "",
         "loaders gives ood and no test, with whose samples its scores are compared; give both"),
        ("DataLoader(test, 25)", "DataLoader(test, 25), DataLoader(test, 25)", "",
         "loaders gives the same samples as ood too; give those of other data"),
        ("return Net(depth)", "return depth", "", "build gives an int; return a module"),
        ("Training(build, loaders, train)}", "Training(build, loaders, None)}", "",
         "TRAININGS[Plain] is no Training (ncpipe.training.own_loop)"),
        ("loaders, train)}", "loaders, train, 3)}", "TRAININGS", "select is a function of (values, inputs)"),
        ("loaders, train)}", "loaders, train, layers=['fc'])}", "TRAININGS", "layers a dict of such by"),
    ],
    "stages": [
        ('"norms": Stage(norms)', '"norms": norms', "STAGES = ", "STAGES['norms'] is no Stage of a function"),
        ('"norms": Stage', '"train": Stage', "STAGES = ", "the stage 'train' exists already, in the package"),
        ('"norms": Stage', '"no name": Stage', "STAGES = ", "the stage 'no name' is no name; take letters"),
        ("power: Count = 2", "power=2", "def norms", "takes power without a type; annotate it, as"),
        ("power: Count = 2", "power: list = []", "def norms", "STAGES['norms'] list is no type of a key"),
        ("power: Count = 2", "*power", "def norms", "STAGES['norms'] takes *power; name each of its options"),
        ('"square": square', '"a b": square', "RUN_COLUMNS = ", "the key 'a b', which is no name"),
        ('"square": square', '"square": 3', "RUN_COLUMNS = ", "RUN_COLUMNS[square] is of type int, no func"),
        ("PARAMS = Limits", "PARAMS = {}", "PARAMS = ", "PARAMS is no frozen dataclass; its fields are keys"),
        (LIMIT, f"    sweep: Positive\n{LIMIT}", "class Limits", f"PARAMS has the key 'sweep', {KEY_EXISTS}"),
        (LIMIT, f"    grid: Positive\n{LIMIT}", "class Limits", f"PARAMS has the key 'grid', {KEY_EXISTS}"),
    ],
}  # fmt: skip


@pytest.mark.usefixtures("study_folder")
@pytest.mark.parametrize(
    ("study", "before", "after", "place", "words"),
    [pytest.param(study, *row, id=f"{study} {row[3]}") for study in MISTAKES for row in MISTAKES[study]],
)
def test_a_mistake_is_one_line_with_its_place(
    study: str, before: str, after: str, place: str, words: str
) -> None:
    """Red: Python's traceback; a loop that fails after hours; a result that no second training gives."""
    text = changed(STUDIES[study], (before, after))
    Path("study.py").write_text(text, encoding="utf-8")
    write_params([2], [0, 1], own=EXPERIMENTS.get(study, experiment_tree()))
    with Path("params.yaml").open("a", encoding="utf-8") as file:
        file.write("limit: 2.5\n" if study == "stages" else "")
    if study == "loop":
        Path("params.yaml").write_text(OF_LOOP, encoding="utf-8")
    message = refused_by(write_code)
    start = re.match(r"study\.py: line (\d+): ", message)
    assert start, message
    assert words in message
    if place:
        assert text.splitlines()[int(start[1]) - 1].startswith(place), message
