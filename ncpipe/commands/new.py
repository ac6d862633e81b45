"""Create a study from the template (`ncpipe new`), in stages/ of a checkout or as a separate project."""

import contextlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ncpipe.claims.ledger import CLAIMS_FILE
from ncpipe.commands.json_schema import CLAIMS_SCHEMA, SCHEMA_FILE, SCHEMAS, schema_text
from ncpipe.config.params import NAME, PARAMS_FILE, load_params, parse_params
from ncpipe.config.study import load_study
from ncpipe.config.study_files import PACKAGE
from ncpipe.config.yaml_file import parse_yaml
from ncpipe.runs.closures import ROOT
from ncpipe.system.console import say
from ncpipe.system.errors import InputError, shown

if TYPE_CHECKING:
    from torch import Tensor

# The template: a study of the checkout, or its copy in an installed package.
TEMPLATES = (ROOT / "stages/smoke", ROOT / PACKAGE / "template")
COPIED = ("dvc.yaml", ".dvcignore", ".dvc/plots/log_x.json", ".dvc/plots/log_y.json")
HEAD = """\
# yaml-language-server: $schema={schema}
# {name}: parameters of the stages in dvc.yaml. Change them, then run `{command}`.
#
# Write the question and the expected answer under `about`. Cost: {cost} as it stands.
"""
STARTERS = ROOT / PACKAGE / "commands/starters"
OWN_DEPS = f"    deps:\n      - {PACKAGE}\n      - study.py\n"
OWN_SPECS = {"model": ("sine", "patches"), "loss": ("poly",), "optimizer": ("signum",)}  # of the starter
FETCHED = "      - data/code/experiments/${item.experiment}/fetch.txt\n"
# Changes of dvc.yaml in a study with an axis: each first text occurs once and is replaced by the second.
WITH_AXIS = (
    ("      experiment: ${sweep.experiments}\n    cmd: ncpipe fetch",
     "      experiment: ${sweep.experiments}\n      value: ${sweep.values}\n    cmd: ncpipe fetch"),
    ("      - experiments.${item.experiment}.data\n",
     "      - experiments.${item.experiment}.data\n      - sweep.axis\n"),
    ("    outs:\n      - data/prepared/${item.experiment}\n",
     "    outs:\n      - data/prepared/${item.experiment}/x${item.value}\n"),
    ("      depth: ${sweep.depths}\n      seed:",
     "      depth: ${sweep.depths}\n      value: ${sweep.values}\n      seed:"),
    ("/train.txt\n      - data/prepared/${item.experiment}\n",
     "/train.txt\n      - data/prepared/${item.experiment}/x${item.value}\n"),
    ("/L${item.depth}/s${item.seed}", "/L${item.depth}/x${item.value}/s${item.seed}"),
    ("  - data/results/depth:\n      x: depth\n", "  - data/results/x:\n      x: x\n"),
    ("x_label: depth L", "x_label: {axis}"),
)  # fmt: skip
SHARED_CACHE = "[cache]\n    dir = ../../../.dvc/cache\n"
DVC_CONFIG = "[core]\n    analytics = false\n"
DVC_IGNORED = "/config.local\n/tmp\n/cache\n"
GIT_IGNORED = "/data/\n__pycache__/\ndvc_plots/\n"
DEPS = f"    deps:\n      - {PACKAGE}\n"  # of the stage code, in a checkout
ALWAYS = "    always_changed: true # it reads the installed package, which DVC does not watch\n"


Kind = Literal["vector", "image", "tokens"]


@dataclass(frozen=True)
class Extras:
    """Holds what a study has besides the template.

    own_code: a study.py with examples of an own network, data set, metric, loss and optimizer.
    axis: a dotted key of the experiment to vary besides depth.
    data: a file of arrays, which is copied.
    kind: what the inputs of `data` are; None where their shape and type say it.
    own_loop: a study.py with an own training loop, in place of all that the template trains.
    """

    own_code: bool = False
    axis: str | None = None
    data: Path | None = None
    kind: Kind | None = None
    own_loop: bool = False


def create_study(name: str, extras: Extras) -> None:
    """Create a study with this name, or at this path.

    A name creates stages/NAME in the checkout that contains the current folder: a DVC project that shares the
    checkout's code and cache. A path creates a git repository with one commit and a DVC project, which runs
    the installed package.

    Raises InputError and writes nothing if the name is not valid or the folder exists.
    """
    checkout = ROOT if _is_checkout(ROOT) and Path.cwd().resolve().is_relative_to(ROOT) else None
    separate = Path(name).name != name
    if separate:
        target = Path(os.path.abspath(name))
        above = next(filter(_is_checkout, target.resolve().parents), None)
        if above:
            raise InputError(
                f"{name}: lies in {above}, a checkout of ncpipe; choose a folder outside, or create a study "
                f"of the checkout (ncpipe new {target.name})"
            )
    elif checkout is None:
        raise InputError(
            f"{name}: this is not a checkout of ncpipe; give a path (ncpipe new ./{name}) to "
            "create a separate project"
        )
    else:
        target = checkout / "stages" / name
    if not NAME.fullmatch(target.name if separate else name):
        raise InputError(f"{name}: a study's name has letters, digits and _, and begins with a letter")
    if os.path.lexists(target):
        raise InputError(f"{target}: exists already; choose another name")
    with _created(target) as folder:
        (_write_project if separate else _write_study)(folder, target.name, extras)
    command = "dvc repro" if separate else f"dvc --cd stages/{target.name} repro"
    say(f"new: {target}; edit its params.yaml, then run {command}{' there' if separate else ''}")


def _is_checkout(folder: Path) -> bool:
    return (folder / PACKAGE / "__main__.py").is_file() and (folder / "pyproject.toml").is_file()


def _write_study(folder: Path, name: str, extras: Extras) -> None:
    """Write a study of a checkout."""
    _write_common(folder, name, "../../", f"dvc --cd stages/{name} repro", extras, SHARED_CACHE)
    (folder / PACKAGE).symlink_to(f"../../{PACKAGE}", target_is_directory=True)


def _write_project(folder: Path, name: str, extras: Extras) -> None:
    """Write a separate project."""
    _write_common(folder, name, "", "dvc repro", extras)
    for schema in SCHEMAS:
        (folder / schema).write_text(schema_text(schema), encoding="utf-8")
    (folder / ".gitignore").write_text(GIT_IGNORED, encoding="utf-8")
    _replace(folder / "dvc.yaml", OWN_DEPS if extras.own_code or extras.own_loop else DEPS, ALWAYS)
    (folder / "README.md").write_text(_starter("README").format(name=name), encoding="utf-8")
    (folder / "results.ipynb").write_text(_notebook(name), encoding="utf-8")
    _commit(folder, name)


def _commit(folder: Path, name: str) -> None:
    """Create a git repository with one commit of all files; its author is ncpipe if git knows no user."""

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=folder, check=True, capture_output=True, text=True
        ).stdout.strip()

    try:
        git("init", "--quiet")
        user = subprocess.run(["git", "config", "user.email"], cwd=folder, capture_output=True, check=False)
        author = (
            [] if user.stdout.strip() else ["-c", "user.name=ncpipe", "-c", "user.email=ncpipe@localhost"]
        )
        git("add", "--all")
        git(*author, "commit", "--quiet", "--no-verify", "-m", f"Begin the study {name}")
    except FileNotFoundError:
        raise InputError("git: not found; install it, because DVC needs it") from None
    except subprocess.CalledProcessError as error:
        raise InputError(f"git {error.cmd[1]}: failed: {' '.join(error.stderr.split())}") from None


def _write_common(
    folder: Path, name: str, schemas: str, command: str, extras: Extras, cache: str = ""
) -> None:
    """Write the files of every study; raise InputError if its params.yaml is not valid.

    schemas: path of the JSON schemas. command: what runs the study.
    """
    template = next(each for each in TEMPLATES if each.is_dir())
    (folder / ".dvc/plots").mkdir(parents=True)
    for file in COPIED:
        shutil.copyfile(template / file, folder / file)
    text = (template / PARAMS_FILE).read_text(encoding="utf-8")
    text = text[text.index("\nsweep:") + 1 :]
    claims = (template / CLAIMS_FILE).read_text(encoding="utf-8").partition("\n")[2]
    if extras.own_loop and (extras.own_code or extras.data is not None):
        raise InputError("--own-loop: has code and data of its own; leave out --own-code and --data")
    if extras.own_code or extras.own_loop:
        kind = "loop_" if extras.own_loop else ""
        text, claims = _starter(f"{kind}params"), _starter(f"{kind}claims").format(name=name)
        (folder / "study.py").write_text(_starter(f"{kind}study"), encoding="utf-8")
        _replace(folder / "dvc.yaml", DEPS, OWN_DEPS)
    if extras.data is not None:
        text = _with_data(folder, text, extras.data, extras.kind)
    elif extras.kind is not None:
        raise InputError("--kind: is of --data, which is missing; add the file, or leave --kind out")
    if extras.axis is not None:
        if extras.own_code:
            text = _with_own_key(folder, text, extras.axis)
        text = _with_axis(folder, text, extras.axis)
    if extras.data is not None or extras.axis is not None:
        claims = _with_own_claim(claims, name, parse_yaml(text)["sweep"])
        if not (extras.own_code or extras.own_loop):
            text = _with_own_question(text, extras)
    if extras.own_loop:
        _replace(folder / "dvc.yaml", "experiment}.data\n", "experiment}.training\n")
    cost = "two minutes" if extras.own_loop else "half a minute"
    head = HEAD.format(schema=f"{schemas}{SCHEMA_FILE}", name=name, command=command, cost=cost)
    (folder / PARAMS_FILE).write_text(head + text, encoding="utf-8")
    first = f"# yaml-language-server: $schema={schemas}{CLAIMS_SCHEMA}\n"
    (folder / CLAIMS_FILE).write_text(first + claims, encoding="utf-8")
    (folder / ".dvc/config").write_text(DVC_CONFIG + cache, encoding="utf-8")
    (folder / ".dvc/.gitignore").write_text(DVC_IGNORED, encoding="utf-8")
    try:
        load_params(folder / PARAMS_FILE)
    except InputError as error:  # its file is removed, so its lines help nobody
        mistake = re.sub(r" \(line \d+\)$", "", str(error).splitlines()[0].partition(": ")[2])
        raise InputError(f"new: the template does not suit this: {mistake}") from None


def _starter(name: str) -> str:
    return (STARTERS / f"{name}.txt").read_text(encoding="utf-8")


def _replace(path: Path, old: str, new_text: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, (path, old)
    path.write_text(text.replace(old, new_text), encoding="utf-8")


def _with_data(folder: Path, text: str, data: Path, kind: Kind | None) -> str:
    """Return params.yaml with a file of arrays as data; copy the file and list it for the stage fetch."""
    from ncpipe.config.specs import ArraysData
    from ncpipe.datasets.array_files import read_arrays  # imports torch
    from ncpipe.datasets.arrays import NAMES, prepare_arrays

    arrays, _ = read_arrays(data, NAMES)
    kind = kind or _kind(data, arrays["inputs"])
    prepare_arrays(ArraysData("arrays", str(data), kind, None, None, 0, "none"))  # what fetch would refuse
    shutil.copyfile(data, folder / data.name)
    file = _quoted(data.name)
    _replace(folder / "dvc.yaml", FETCHED, f"{FETCHED}      - {file}\n")
    normalisation = "none" if kind == "tokens" else "standardise"
    entry = (
        f"data: {{source: arrays, file: {file}, kind: {kind}, per_class: null, test_per_class: null,\n"
        f"           seed: 0, normalisation: {normalisation}}}\n"
    )
    changed, count = re.subn(r"data: \{source: (?:gaussian_mixture|spirals)[^}]*\}\n", lambda _: entry, text)
    assert count == 1
    if kind == "tokens":
        changed = changed.replace("architecture: L-RN1", "architecture: L-T11")
    return changed


def _kind(data: Path, inputs: "Tensor") -> Kind:
    """Return what inputs are by their shape and type; raise InputError where that leaves it open."""
    shape = tuple(inputs.shape)
    if len(shape) == 4:
        return "image"
    if len(shape) != 2:
        raise InputError(
            f"--data: {data}: inputs has shape {shape}; give vectors (N, D), images (N, channels, height, "
            "width) or token ids (N, C)"
        )
    if inputs.is_floating_point():
        return "vector"
    raise InputError(
        f"--data: {data}: inputs {shape} are whole numbers; add --kind tokens if they are ids of tokens, or "
        "--kind vector if they are quantities, such as pixels"
    )


def _with_own_question(text: str, extras: Extras) -> str:
    """Return params.yaml with a question about the study's own data or axis."""
    on = "" if extras.data is None else f" on {extras.data.name}"
    more = "more the deeper they are" if extras.axis is None else f"more or less with {extras.axis}"
    question = json.dumps(f"Do networks{on} collapse {more}?", ensure_ascii=False)
    lines = f'    question: {question}\n    expected: "Write here what you expect, before it runs."\n'
    changed, count = re.subn(r" +question: .*\n +expected: .*\n", lambda _: lines, text)
    assert count == 1
    return changed


def _with_own_claim(claims: str, name: str, sweep: dict[str, Any]) -> str:
    """Return claims.yaml whose last claim, about depth, is one of the study itself, about its axis if any."""
    last = parse_yaml(claims)[-1]
    statement, place, quantity = last["statement"], "", "slope"
    if axis := sweep.get("axis"):
        statement = statement.replace("improves with depth", f"falls with {axis} at the largest depth")
        place = f"  depth: {max(sweep['depths'])}\n"
        quantity = "slope" if min(sweep["values"]) > 0 else "spearman"  # 0 has no logarithm
    if "experiment" in last:
        place = f"  experiment: {last['experiment']}\n{place}"
    return claims[: claims.rindex("- id: ")] + (
        f"- id: {last['id']}\n  ref: {name}\n  author: ours\n  statement: {statement}\n"
        f"  quantity: {quantity}\n{place}  metric: {last['metric']}\n  expect: {{below: 0}}\n"
    )


def _quoted(name: str) -> str:
    """Return a file's name as YAML, in quotes if it needs them; InputError if DVC would change it."""
    if "${" in name or not name.isprintable():
        raise InputError(f"--data: {shown(name)}: DVC does not take this name literally; rename the file")
    try:
        plain = parse_yaml(f"[{{name: {name}}}]") == [{"name": name}] and parse_yaml(f"- {name}\n") == [name]
    except InputError:
        plain = False
    return name if plain else json.dumps(name, ensure_ascii=False)


def _with_own_key(folder: Path, text: str, axis: str) -> str:
    """Return params.yaml with the key that an axis names, 1.0, and add it to the specs of study.py.

    Returns the text unchanged if it has the key, or if the key is of no spec of study.py.
    """
    part, _, key = axis.partition(".")
    study = (folder / "study.py").read_text(encoding="utf-8")
    for name in OWN_SPECS.get(part, ()):
        first = "architecture" if part == "model" else "name"
        entry = rf"\b{part}: \{{{first}: {name}\b[^}}]*"  # one in each experiment
        found = re.search(entry, text)
        assert found is not None
        if not key.isidentifier() or re.search(rf"\b{key}:", found[0]):
            return text
        text = re.sub(entry, lambda match: f"{match[0]}, {key}: 1.0", text)
        field = f'    {first}: Literal["{name}"]\n'
        assert study.count(field) == 1
        study = study.replace(field, f"{field}    {key}: float\n")
    (folder / "study.py").write_text(study, encoding="utf-8")
    return text


def _with_axis(folder: Path, text: str, axis: str) -> str:
    """Return params.yaml with a sweep over a number of the experiment: its value, and another one."""
    tree = parse_yaml(text)
    value = next(iter(tree["experiments"].values()))
    for key in axis.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"--axis: {axis} is not a number of the experiment; give a key such as model.width")
    for old, with_axis in WITH_AXIS:
        _replace(folder / "dvc.yaml", old, with_axis.replace("{axis}", axis))
    load_study(folder)
    values = _values_in_range(tree, axis, value)
    line = f"axis: {axis}, values: [{values[0]}, {values[1]}]"
    return re.sub(r"^sweep: \{(\s*)", rf"sweep: {{\1{line},\1", text, count=1)


def _values_in_range(tree: dict[str, Any], axis: str, value: float) -> tuple[float, float]:
    """Return a key's value and its double, or else its half or a number near it, all in the key's range."""
    half = value // 2 if isinstance(value, int) else value / 2
    mistakes = ""
    for values in ((value, 2 * value), (half, value), (value, value + 0.5), (value, value + 1)):
        if values[0] == values[1]:
            continue
        try:
            parse_params(tree | {"sweep": tree["sweep"] | {"axis": axis, "values": list(values)}})
        except InputError as error:
            mistakes = mistakes or str(error).splitlines()[0]
        else:
            return values
    raise InputError(f"--axis {axis}: {mistakes}")


def _notebook(name: str) -> str:
    """Return a notebook that shows the means and slopes of the study's metrics."""
    sources = [
        ("markdown", f"# {name}\n\nRun `dvc repro` first: it writes the tables that this notebook reads."),
        ("code", 'import pandas as pd\n\nsummary = pd.read_csv("data/results/summary.csv")\nsummary'),
        ("code", 'pd.read_csv("data/results/slopes.csv")'),
    ]
    cells: list[dict[str, Any]] = [
        {"cell_type": kind, "id": f"cell-{index}", "metadata": {}, "source": text.splitlines(keepends=True)}
        | ({"execution_count": None, "outputs": []} if kind == "code" else {})
        for index, (kind, text) in enumerate(sources)
    ]
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, indent=1) + "\n"


@contextlib.contextmanager
def _created(target: Path) -> Iterator[Path]:
    """Yield an empty folder that is renamed to `target` if the block ends without an error."""
    folder = target.with_name(f".{target.name}.partial")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
        os.replace(folder, target)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
