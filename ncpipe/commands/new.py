"""`ncpipe new`: a study made from the template, below stages/ of a checkout or a project of its own."""

import contextlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ncpipe.claims.ledger import CLAIMS_FILE
from ncpipe.commands.json_schema import CLAIMS_SCHEMA, SCHEMA_FILE, SCHEMAS, schema_text
from ncpipe.config.params import NAME, PARAMS_FILE, load_params
from ncpipe.runs.code_digests import PACKAGE, ROOT
from ncpipe.system.console import say
from ncpipe.system.errors import InputError

# In a checkout the study that is the template; in an installed package a copy of its files.
TEMPLATES = (ROOT / "stages/smoke", ROOT / PACKAGE / "template")
COPIED = ("dvc.yaml", ".dvcignore", ".dvc/plots/log_x.json", ".dvc/plots/log_y.json")
HEAD = """\
# yaml-language-server: $schema={schema}
# {name}: the stages of dvc.yaml beside this file, on these parameters. Change them, then `{command}`.
#
# What is to be found out, and what the theory says, stands under `about`. Cost: half a minute as it stands.
"""
STARTERS = ROOT / PACKAGE / "commands/starters"
OWN_DEPS = f"    deps:\n      - {PACKAGE}\n      - study.py\n"
FETCHED = "      - data/code/experiments/${item.experiment}/fetch.txt\n"
# What dvc.yaml has in a study with an axis: in place of each text the other, as often as it is there.
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
WATCHED = f"    deps:\n      - {PACKAGE}\n"  # by the stage code, in a checkout
ALWAYS = "    always_changed: true # it reads the package that is installed, which DVC does not watch\n"


@dataclass(frozen=True)
class Wanted:
    """What a study begins with besides the template.

    own_code: a study.py with a network, data set, metric, loss and optimizer of one's own. axis: a dotted key
    of the experiment to vary besides depth. data: a file of arrays, which is copied.
    """

    own_code: bool = False
    axis: str | None = None
    data: Path | None = None


PLAIN = Wanted()


def new(place: str, wanted: Wanted = PLAIN) -> None:
    """Make a study called like the last part of `place`.

    A name makes stages/NAME in the checkout that one stands in: a DVC project that shares the checkout's code
    and cache. A path makes a git repository with a first commit and a DVC project there, which runs the
    installed package.
    InputError, and nothing is written, if the name is none or something is there already.
    """
    checkout = ROOT if _is_checkout(ROOT) and Path.cwd().resolve().is_relative_to(ROOT) else None
    alone = Path(place).name != place
    if alone:
        target = Path(os.path.abspath(place))
        above = next(filter(_is_checkout, target.resolve().parents), None)
        if above:
            raise InputError(
                f"{place}: lies in {above}, a checkout of ncpipe; choose a folder outside, or make a study "
                f"of the checkout (ncpipe new {target.name})"
            )
    elif checkout is None:
        raise InputError(
            f"{place}: no checkout of ncpipe is here to have it; as a path (ncpipe new ./{place}) it becomes "
            "a project of its own"
        )
    else:
        target = checkout / "stages" / place
    if not NAME.fullmatch(target.name if alone else place):
        raise InputError(f"{place}: a study's name is of letters, digits and _, and begins with a letter")
    if os.path.lexists(target):
        raise InputError(f"{target}: is there already; choose another name")
    with _appearing(target) as folder:
        (_write_alone if alone else _write_study)(folder, target.name, wanted)
    command = "dvc repro" if alone else f"dvc --cd stages/{target.name} repro"
    say(f"new: {target}; edit its params.yaml, then {command}{' there' if alone else ''}")


def _is_checkout(folder: Path) -> bool:
    return (folder / PACKAGE / "__main__.py").is_file() and (folder / "pyproject.toml").is_file()


def _write_study(folder: Path, name: str, wanted: Wanted) -> None:
    _write_common(folder, name, "../../", f"dvc --cd stages/{name} repro", wanted, SHARED_CACHE)
    (folder / PACKAGE).symlink_to(f"../../{PACKAGE}", target_is_directory=True)
    _check(folder)


def _write_alone(folder: Path, name: str, wanted: Wanted) -> None:
    _write_common(folder, name, "", "dvc repro", wanted)
    for schema in SCHEMAS:
        (folder / schema).write_text(schema_text(schema), encoding="utf-8")
    (folder / ".gitignore").write_text(GIT_IGNORED, encoding="utf-8")
    pipeline = (folder / "dvc.yaml").read_text(encoding="utf-8")
    watched = OWN_DEPS if wanted.own_code else WATCHED
    assert pipeline.count(watched) == 1
    (folder / "dvc.yaml").write_text(pipeline.replace(watched, ALWAYS), encoding="utf-8")
    (folder / "README.md").write_text(_starter("README").format(name=name), encoding="utf-8")
    (folder / "results.ipynb").write_text(_notebook(name), encoding="utf-8")
    _check(folder)
    _commit(folder, name)


def _commit(folder: Path, name: str) -> None:
    """Make a git repository with one commit of all files, under a name of ours where git knows none."""

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=folder, check=True, capture_output=True, text=True
        ).stdout.strip()

    try:
        git("init", "--quiet")
        known = subprocess.run(["git", "config", "user.email"], cwd=folder, capture_output=True, check=False)
        who = [] if known.stdout.strip() else ["-c", "user.name=ncpipe", "-c", "user.email=ncpipe@localhost"]
        git("add", "--all")
        git(*who, "commit", "--quiet", "--no-verify", "-m", f"Begin the study {name}")
    except FileNotFoundError:
        raise InputError("git: not found; DVC needs it, so install it first") from None
    except subprocess.CalledProcessError as error:
        words = " ".join(error.cmd[1:2])
        raise InputError(f"git {words} failed: {' '.join(error.stderr.split())}") from None


def _write_common(
    folder: Path, name: str, schemas: str, command: str, wanted: Wanted, cache: str = ""
) -> None:
    template = next(each for each in TEMPLATES if each.is_dir())
    (folder / ".dvc/plots").mkdir(parents=True)
    for file in COPIED:
        shutil.copyfile(template / file, folder / file)
    text = (template / PARAMS_FILE).read_text(encoding="utf-8")
    text = text[text.index("\nsweep:") + 1 :]
    claims = (template / CLAIMS_FILE).read_text(encoding="utf-8").partition("\n")[2]
    if wanted.own_code:
        text, claims = _starter("params"), _starter("claims").format(name=name)
        (folder / "study.py").write_text(_starter("study"), encoding="utf-8")
        _replace(folder / "dvc.yaml", WATCHED, OWN_DEPS)
    if wanted.data is not None:
        text = _with_data(folder, text, wanted.data)
    if wanted.axis is not None:
        text = _with_axis(folder, text, wanted.axis)
        claims = claims.replace("improves with depth", f"falls with {wanted.axis}")
    head = HEAD.format(schema=f"{schemas}{SCHEMA_FILE}", name=name, command=command)
    (folder / PARAMS_FILE).write_text(head + text, encoding="utf-8")
    first = f"# yaml-language-server: $schema={schemas}{CLAIMS_SCHEMA}\n"
    (folder / CLAIMS_FILE).write_text(first + claims, encoding="utf-8")
    (folder / ".dvc/config").write_text(DVC_CONFIG + cache, encoding="utf-8")
    (folder / ".dvc/.gitignore").write_text(DVC_IGNORED, encoding="utf-8")


def _starter(name: str) -> str:
    return (STARTERS / f"{name}.txt").read_text(encoding="utf-8")


def _replace(path: Path, old: str, new_text: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, (path, old)
    path.write_text(text.replace(old, new_text), encoding="utf-8")


def _with_data(folder: Path, text: str, data: Path) -> str:
    """Return params.yaml with a file of arrays as data; copy the file and let the stage fetch watch it."""
    from ncpipe.datasets.array_files import read_arrays  # only now: brings torch
    from ncpipe.datasets.arrays import NAMES

    arrays, _ = read_arrays(data, NAMES)
    inputs = arrays["inputs"]
    whole = not inputs.is_floating_point()
    kind = "image" if inputs.dim() == 4 else "tokens" if whole and inputs.dim() == 2 else "vector"
    shutil.copyfile(data, folder / data.name)
    _replace(folder / "dvc.yaml", FETCHED, f"{FETCHED}      - {data.name}\n")
    normalisation = "none" if kind == "tokens" else "standardise"
    own = (
        f"data: {{source: arrays, file: {data.name}, kind: {kind}, per_class: null, test_per_class: null,\n"
        f"           seed: 0, normalisation: {normalisation}}}\n"
    )
    changed, count = re.subn(r"data: \{source: (?:gaussian_mixture|spirals)[^}]*\}\n", own, text)
    assert count == 1
    return changed


def _with_axis(folder: Path, text: str, axis: str) -> str:
    """Return params.yaml whose sweep varies a number of the experiments: its value, and twice that."""
    from ncpipe.config.yaml_file import parse_yaml

    found = []
    for spec in parse_yaml(text)["experiments"].values():
        for key in axis.split("."):
            spec = spec.get(key) if isinstance(spec, dict) else None
        found.append(spec)
    value = found[0]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"--axis: {axis} is no number of the experiment; name a key as model.width")
    for old, with_axis in WITH_AXIS:
        _replace(folder / "dvc.yaml", old, with_axis.replace("{axis}", axis))
    line = f"axis: {axis}, values: [{value}, {2 * value}]"
    return re.sub(r"^sweep: \{(\s*)", rf"sweep: {{\1{line},\1", text, count=1)


def _notebook(name: str) -> str:
    """Return a notebook that shows the means and slopes of the study's metrics."""
    sources = [
        ("markdown", f"# {name}\n\nRun `dvc repro` first: it writes the tables that are read here."),
        ("code", 'import pandas as pd\n\nsummary = pd.read_csv("data/results/summary.csv")\nsummary'),
        ("code", 'pd.read_csv("data/results/slopes.csv")'),
    ]
    cells: list[dict[str, Any]] = [
        {"cell_type": kind, "id": f"cell-{index}", "metadata": {}, "source": text.splitlines(keepends=True)}
        | ({"execution_count": None, "outputs": []} if kind == "code" else {})
        for index, (kind, text) in enumerate(sources)
    ]
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, indent=1) + "\n"


def _check(folder: Path) -> None:
    """Raise InputError if the study's params.yaml cannot be read, as with an axis that does not suit it."""
    try:
        load_params(folder / PARAMS_FILE)
    except InputError as error:
        raise InputError(str(error).replace(f"{folder}/", "")) from None


@contextlib.contextmanager
def _appearing(target: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes `target` when the block ends without an error."""
    folder = target.with_name(f".{target.name}.partial")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
        os.replace(folder, target)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
