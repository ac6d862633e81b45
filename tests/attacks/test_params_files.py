"""params.yaml with every key missing, unknown, of a wrong type, out of range or absurd, made from the schema.

Each test's docstring ends with the fault that would turn it red.
"""

import copy
import functools
import json
import math
import operator
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import training_cases as cases
from conftest import TEXT, Command, architecture
from hypothesis import given, settings
from hypothesis import strategies as st
from one_line import refusal
from training_cases import tree_of

from ncpipe.commands.json_schema import json_schema
from ncpipe.config.params import load_params, params_type, parse_params
from ncpipe.config.study import load_study
from ncpipe.config.yaml_file import parse_yaml

ROOT = Path(__file__).resolve().parents[2]
Path_ = tuple[str | int, ...]
Tree = dict[str, Any]

# The networks and the keys of the papers' studies too: records of a study.py are read as the package's.
STUDY = """from dataclasses import dataclass

from ncpipe.papers.s24.dufm_network import NETWORKS
from ncpipe.papers.s24.params import SeriesParams
from ncpipe.papers.s25.params import TheoryParams


@dataclass(frozen=True)
class PARAMS(SeriesParams, TheoryParams):
    def __post_init__(self):
        SeriesParams.__post_init__(self)
        TheoryParams.__post_init__(self)
"""

IMAGES = cases.DIGITS | {"per_class": 2, "test_per_class": 2}
ARRAYS = {"source": "arrays", "file": "x.npz", "kind": "vector", "per_class": None, "test_per_class": None,
          "seed": 0, "normalisation": "none"}  # fmt: skip
OF_HEAD = {key: value for key, value in cases.HEAD.items() if key != "features"} | {
    "features_over_value": 0.1
}
FEW_SHOTS = {"source": [0, 1, 2], "target": [3, 4], "shots": [1], "episodes": 2, "seed": 0,
             "head": ["ncc", "ridge"], "ridge": 1.0, "n_source": 2,
             "data": {"source": "mnist", "per_class": 2, "seed": 0}}  # fmt: skip
MARKOV = {"source": "markov", "words": 8, "order": 1, "zipf": 1.0, "sharpness": 1.0, "sequences": 8,
          "test_sequences": 8, "context": 4, "seed": 0}  # fmt: skip
WRITTEN = {"source": "text", "file": "x.txt", "vocabulary": 300, "min_per_class": 2, "sequences": 8,
           "test_sequences": 8, "context": 4, "seed": 0}  # fmt: skip
STEPS = {"name": "step", "milestones": [0.5, 0.75], "factor": 0.1}
LAYERS = {"rule": "constant", "value": 0.1, "last_layer": None, "layers": None}
OF_LAYERS = architecture("L-T11", "pre")
SMALL = {"majority": 5, "ratio": 2, "resample": "none"}
KEPT = {"metrics": ["nc1_trace_ratio"], "at": [0.0, 1.0]}
EXPERIMENTS = {
    "free": tree_of(cases.DUFM, data=cases.FREE | {"reduced": False}, penalty=LAYERS),
    "one": tree_of(),
    "text": tree_of(data=TEXT, model=architecture("L-T12", "pre"), optimizer=cases.SGD, schedule=STEPS),
    "images": tree_of(data=IMAGES, optimizer=cases.SEARCH, schedule={"name": "constant"}),
    "mlp": tree_of(cases.MLP, data=ARRAYS, optimizer=cases.ADAMW),
    "cifar": tree_of(cases.RESNET, data=IMAGES, batch_size=4, augmentation=cases.AUGMENTATION, history=KEPT),
    "conv": tree_of(
        cases.CONV,
        data=IMAGES,
        loss="mse",
        penalty=OF_HEAD,
        schedule={"name": "cosine", "final": 0.0, "after": 0.4},
    ),
    "few": tree_of(data=IMAGES | {"transfer": FEW_SHOTS}),
    "noise": tree_of(data=IMAGES | {"label_noise": {"fraction": 0.5, "kind": "uniform", "seed": 0}}),
    "small": tree_of(data=IMAGES | {"imbalance": SMALL}),
    "contrast": tree_of(cases.MLP, loss=cases.SUPCON | {"include_self": False}),
    "markov": tree_of(data=MARKOV, model=OF_LAYERS, optimizer=cases.OPTIMIZERS["lion"]),
    "written": tree_of(data=WRITTEN, model=OF_LAYERS, optimizer=cases.MUON | {"weight_decay": 0.1}),
    "focal": tree_of(
        loss={"name": "focal", "gamma": 2.0, "alpha": None}, optimizer=cases.TORCH | {"arguments": {}}
    ),
    "margins": tree_of(loss=cases.LOSSES[2], optimizer=cases.OPTIMIZERS["sign_sgd"]),
    "vectors": tree_of(cases.MLP, data=cases.TEACHER, loss="mse"),
    "modular": tree_of(data={"source": "modular", "modulus": 5, "per_class": 2, "seed": 0}),
    "adjusted": tree_of(loss={"name": "logit_adjusted", "tau": 1.0}),
    "smoothed": tree_of(loss={"name": "ce", "smoothing": 0.1}),
    "fixed": tree_of(cases.MLP | cases.ETF, loss={"name": "dot_regression"}),
}
BASE: Tree = json.loads(json.dumps({  # no part of it twice
    "sweep": {"experiments": ["one", "text"], "depths": [2, 3], "seeds": [0, 1]},
    "compute": {"device": "auto", "threads": 1, "precision": "float32"},
    "convergence": {"train_error": 0, "window": 0.25, "tolerance": 0.01, "gradient": 0.1},
    "slopes": {"seed": 0, "level": 0.95},
    "effective_depth": {"tolerance": 0.01},
    "about": {"one": {"question": "Does it fall?", "expected": "It does."}},
    "experiments": EXPERIMENTS,
    "series": {"one": {"depth": 2, "seeds": [0], "axis": "penalty.value", "values": [0.1]}},
    "theory": {
        "constructed": {"kinds": ["sharp"], "depths": [8], "draws": 2, "detours": 2,
                        "attention_exponent": 0.25, "seed": 0},
        "counterexample": {"experiment": "one", "classes": 2, "per_class": 2, "sizes": [0.1],
                           "depths": [10], "seed": 0},
    },
}))  # fmt: skip

ABOUT = ("question", "expected")
HOSTILE = ["; touch X", "$(touch X)", "a\nb", "'", "../..", "x" * 10**5, "\u202e\0", "nan", ""]
WRONG = [None, True, 0, -1, 0.5, "text", [], [None], {}, {"a": 1}, [[[]]], math.nan, math.inf, *HOSTILE]
LARGE = [2**31, 2**32, 2**63, 2**64, 10**18, 10**400, -(10**400), 1e39, 1e308]

KIND: list[Any] = []  # the type of the study's params.yaml


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """That of the study, which every file of this module is read in."""
    path = tmp_path_factory.mktemp("study")
    (path / "study.py").write_text(STUDY)
    KIND.append(params_type(load_study(path)))
    yield path
    load_study(path / "nowhere")


def parsed(tree: object) -> object:
    return parse_params(tree, KIND[0])


def paths(tree: object, above: Path_ = ()) -> Iterator[Path_]:
    """Every place of a tree but its root."""
    entries = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in entries:
        yield (*above, key)
        yield from paths(value, (*above, key))


def own_part(path: Path_) -> Tree:
    """A copy of BASE with the experiments that other keys name, and that of the path."""
    kept = {"one", "text", *path[1:2]}
    experiments = {name: tree for name, tree in BASE["experiments"].items() if name in kept}
    return copy.deepcopy(BASE | {"experiments": experiments})


def changed(path: Path_, value: object) -> Tree:
    whole = own_part(path)
    functools.reduce(operator.getitem, path[:-1], whole)[path[-1]] = value  # type: ignore[index, call-overload]
    return whole


def last_name(path: Path_) -> str:
    """The key that a message has to name: of a list's member, the list's."""
    return next(str(key) for key in reversed(path) if isinstance(key, str))


def distinct_places() -> Iterator[Path_]:
    """Every place of BASE, but of equal records at one place of several experiments that of the first."""
    seen = set()
    for path in paths(BASE):
        above = functools.reduce(operator.getitem, path[:-1], BASE)  # type: ignore[arg-type]
        key = (path[2:] if path[0] == "experiments" else path, repr(above))
        if key not in seen:
            seen.add(key)
            yield path


PLACES = list(distinct_places())
PARTS = {".".join(map(str, path[:2])): [] for path in PLACES}  # a test each
for place in PLACES:
    PARTS[".".join(map(str, place[:2]))].append(place)


def test_the_base_is_good_and_has_every_record_of_the_schema() -> None:
    """Red: a record of which nothing here makes damages."""
    assert refusal(lambda: parsed(BASE)) is None
    values = [functools.reduce(operator.getitem, path, BASE) for path in [(), *PLACES]]  # type: ignore
    seen = [set(value) for value in values if isinstance(value, dict)]
    count = 0
    for record in records_of(json_schema(KIND[0])):
        required, known = set(record["required"]), set(record["properties"])
        of_loops = {"training", "classifier"} & known or ("episodes" in known and "source" not in known)
        if of_loops:  # of study.py: tests/test_own_loop.py has them
            continue
        assert any(required <= keys <= known for keys in seen), f"nowhere in BASE: {sorted(known)}"
        count += 1
    assert count > 20


def records_of(node: Any) -> Iterator[dict[str, Any]]:
    """The records of a schema, wherever they stand in it."""
    if isinstance(node, dict):
        if "properties" in node and "required" in node:
            yield node
        for value in node.values():
            yield from records_of(value)
    elif isinstance(node, list):
        for value in node:
            yield from records_of(value)


@functools.cache
def limits() -> list[float]:
    """`bounds_of` the schema, each once."""
    return sorted({limit for pair in bounds_of(json_schema(KIND[0])) for limit in pair})


def bounds_of(node: Any) -> Iterator[tuple[float, float]]:
    """The least and the largest number of each number in the schema, a step beyond them."""
    if isinstance(node, dict):
        low = node.get("minimum", node.get("exclusiveMinimum"))
        high = node.get("maximum", node.get("exclusiveMaximum"))
        if low is not None and high is not None:
            yield low - 1, high + 1 if high < 1e15 else 2 * high
        for value in node.values():
            yield from bounds_of(value)
    elif isinstance(node, list):
        for value in node:
            yield from bounds_of(value)


def test_every_number_of_the_schema_has_both_ends() -> None:
    """But values of an axis, whose key has them. Red: a count without an upper end."""

    def numbers(node: Any, key: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
        if isinstance(node, dict):
            if node.get("type") in ("integer", "number"):
                yield key, node
            for name, value in node.items():
                yield from numbers(value, name if name not in ("anyOf", "items", "oneOf") else key)
        elif isinstance(node, list):
            for value in node:
                yield from numbers(value, key)

    for key, node in numbers(json_schema(KIND[0])):
        low = {"minimum", "exclusiveMinimum"} & set(node)
        high = {"maximum", "exclusiveMaximum"} & set(node)
        assert key in ("values", "covariance") or (low and high), f"{key}: {node}"


@pytest.mark.parametrize("part", PARTS)
def test_a_missing_or_an_unknown_key_is_named(part: str) -> None:
    """Red: a key that is passed over."""
    for path in PARTS[part]:
        key = path[-1]
        if not isinstance(key, str):
            continue
        whole = own_part(path)
        above = functools.reduce(operator.getitem, path[:-1], whole)  # type: ignore[arg-type]
        value = above.pop(key)  # type: ignore[attr-defined]
        message = refusal(lambda whole=whole: parsed(whole))  # type: ignore[misc]
        assert message is None or key in message, path
        above[f"{key}x"] = value  # type: ignore[call-overload]
        if path[:-1] != ("experiments",):  # where any name is good, if nothing asks for the other
            assert refusal(lambda whole=whole: parsed(whole), key) is not None, path  # type: ignore[misc]


@pytest.mark.parametrize("part", PARTS)
def test_a_wrong_value_is_named_with_its_key(part: str) -> None:
    """Or it is a right one, but no text that a shell would read. Only keys that reach no command take any
    text: names of files, tokenizers and metrics, and the texts below `about`.

    Red: a value that is taken for another; a traceback of a comparison; an axis of text."""
    for path in PARTS[part]:
        good = functools.reduce(operator.getitem, path, BASE)  # type: ignore[arg-type]
        for value in WRONG if isinstance(good, str | dict) else [*WRONG, *LARGE, *limits()]:
            message = refusal(lambda path=path, value=value: parsed(changed(path, value)))  # type: ignore[misc]
            assert message is None or last_name(path) in message, (path, value, message)
            if message is None and value in HOSTILE[:5]:
                assert last_name(path) in ("file", "tokenizer", "metrics", *ABOUT), (path, value)


@pytest.mark.parametrize(
    "arguments",
    ["grid", "fetch --experiment one", "train --experiment one --depth 2 --seed 0",
     "extract --experiment one", "measure --experiment one", "aggregate", "plot"],
)  # fmt: skip
def test_every_command_refuses_before_it_does_anything(
    arguments: str, folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sample of the damages, through the program. Red: a command that reads less of the file."""
    monkeypatch.chdir(folder)
    generator = random.Random(arguments)
    for _ in range(12):
        path, value = (
            generator.choice(PLACES),
            generator.choice([v for v in WRONG if v == v and v != math.inf]),
        )
        whole = changed(path, value)
        if refusal(lambda: parsed(whole)) is None:  # noqa: B023
            continue
        Path("params.yaml").write_text(json.dumps(whole), encoding="utf-8")
        said = command(*arguments.split())
        assert all(line.startswith("ncpipe: params.yaml: ") for line in said.splitlines())
        assert last_name(path) in said
        assert {file.name for file in folder.rglob("*") if file.is_file()} == {"params.yaml", "study.py"}


def test_names_that_no_terminal_shows_are_written_out() -> None:
    """Also where they are offered in place of another. Red: a control character in a message."""
    message = refusal(lambda: parsed(changed(("experiments",), {"\x1b[2J": None})))
    assert message is not None
    assert "\\x1b" in message


YAML_TEXT = st.text(alphabet="ab:{}[],-&*!<>|%@`'\"#?~ \n\t01.eE_\0\u2028\ud7ff", max_size=60)


@settings(max_examples=150)
@given(YAML_TEXT)
def test_any_text(text: str) -> None:
    """Red: an exception of the parser's."""
    refusal(lambda: parsed(parse_yaml(text)))


def test_flipped_bits_of_the_file(folder: Path) -> None:
    """Each of a byte's eight in turn. Red: bytes that are no UTF-8 in a message."""
    content = (ROOT / "params.yaml").read_bytes()
    for place in range(0, 3000, 97):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        (folder / "params.yaml").write_bytes(damaged)
        refusal(lambda: load_params(folder / "params.yaml"))
