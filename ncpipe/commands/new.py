"""Create a study from the template (`ncpipe new`), in stages/ of a checkout or as a separate project."""

import contextlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from jinja2 import Environment, FileSystemLoader

from ncpipe.commands.json_schema import SCHEMAS, schema_text
from ncpipe.config.params import NAME, PARAMS_FILE, load_params
from ncpipe.config.reading import PACKAGE, ROOT
from ncpipe.config.yaml_file import parse_yaml
from ncpipe.system.artifacts import CLAIMS_FILE
from ncpipe.system.console import say
from ncpipe.system.errors import InputError, shown

if TYPE_CHECKING:
    from torch import Tensor

# Files that every study has as they are: of a study of the checkout, or of its copy in an installed package.
TEMPLATES = (ROOT / "stages/smoke", ROOT / PACKAGE / "template")
COPIED = (".dvcignore", ".dvc/plots/log_x.json", ".dvc/plots/log_y.json")
STARTERS = ROOT / PACKAGE / "commands/starters"  # templates of the others
SHARED_CACHE = "[cache]\n    dir = ../../../.dvc/cache\n"
DVC_CONFIG = "[core]\n    analytics = false\n"
DVC_IGNORED = "/config.local\n/tmp\n/cache\n"
GIT_IGNORED = "/data/\n__pycache__/\ndvc_plots/\n"

Kind = Literal["vector", "image", "tokens"]


def create_study(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="Name of the study, created as stages/NAME in this checkout. A path instead of a name "
            "creates a separate git and DVC project there, which runs the installed package.",
        ),
    ],
    own_code: Annotated[
        bool,
        typer.Option(
            "--own-code",
            help="Add a study.py with examples of an own network, data set, metric, loss and optimizer.",
        ),
    ] = False,
    axis: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Key to vary besides depth, for example model.width."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Own data set: an .npz or .safetensors file, which is copied."),
    ] = None,
    kind: Annotated[
        Kind | None,
        typer.Option(help="With --data: what its inputs are, where their shape and type leave it open."),
    ] = None,
    own_loop: Annotated[
        bool,
        typer.Option(
            "--own-loop",
            help="Add a study.py with an own training loop: a small ResNet on augmented images of digits.",
        ),
    ] = False,
    with_stage: Annotated[
        bool,
        typer.Option(
            "--stage",
            help="Add a study.py with a stage of its own, which writes a table of trained runs.",
        ),
    ] = False,
) -> None:
    """Create a new study from the template.

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
    if own_loop and (own_code or data is not None):
        raise InputError("--own-loop: has code and data of its own; leave out --own-code and --data")
    if with_stage and (own_loop or own_code):
        raise InputError("--stage: has a study.py of its own; leave out --own-code and --own-loop")
    if kind is not None and data is None:
        raise InputError("--kind: is of --data, which is missing; add the file, or leave --kind out")
    if os.path.lexists(target):
        raise InputError(f"{target}: exists already; choose another name")
    command = "dvc repro" if separate else f"dvc --cd stages/{target.name} repro"
    values = {
        "name": target.name,
        "command": command,
        "schemas": "" if separate else "../../",
        "separate": separate,
        "kind": "loop" if own_loop else "own" if own_code else "stage" if with_stage else "mixture",
        "question": _question(data, axis),
    }
    with _created_folder(target) as folder:
        _write_files(folder, values, axis, data, kind)
        if separate:
            _commit(folder, target.name)
    say(f"new: {target}; edit its params.yaml, then run {_by_uv(separate)}{command}{' there' * separate}")


def _by_uv(separate: bool) -> str:
    """Return what to write before a command: `uv run`, if that started this one and knows the environment."""
    if "UV_RUN_RECURSION_DEPTH" not in os.environ:
        return ""
    return f"uv run --project {ROOT} " if separate and _is_checkout(ROOT) else "uv run "


def _is_checkout(folder: Path) -> bool:
    return (folder / PACKAGE / "__main__.py").is_file() and (folder / "pyproject.toml").is_file()


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


def _write_files(
    folder: Path, values: dict[str, Any], axis: str | None, data: Path | None, kind: Kind | None
) -> None:
    """Write the files of a study; raise InputError if its params.yaml is not valid.

    values: what the templates need of it, besides what its axis and data need.
    """
    separate = values["separate"]  # a project of its own, not a study of a checkout
    (folder / ".dvc/plots").mkdir(parents=True)
    template = next(folder for folder in TEMPLATES if folder.is_dir())
    for file in COPIED:
        shutil.copyfile(template / file, folder / file)
    if data is not None:
        values["data"] = _data(folder, data, kind)
        if values["kind"] == "own" and values["data"]["kind"] == "tokens":
            raise InputError(
                "--own-code: its network reads no tokens, which --data has; leave out one of them"
            )
    if axis is not None:
        values |= _axis(values, axis)
    if values["kind"] != "mixture":
        code = render(f"{values['kind']}_study.py", values)
        (folder / "study.py").write_text(code, encoding="utf-8")
    texts = {str(path): render(path, values) for path in (PARAMS_FILE, CLAIMS_FILE, "dvc.yaml")}
    texts |= {".dvc/config": DVC_CONFIG + SHARED_CACHE * (not separate), ".dvc/.gitignore": DVC_IGNORED}
    if separate:
        texts |= {schema: schema_text(schema) for schema in SCHEMAS} | {".gitignore": GIT_IGNORED}
        texts |= {file: render(file, values) for file in ("README.md", "results.ipynb")}
    else:
        (folder / PACKAGE).symlink_to(f"../../{PACKAGE}", target_is_directory=True)
    for file, text in texts.items():
        (folder / file).write_text(text, encoding="utf-8")
    try:
        load_params(folder / PARAMS_FILE)
    except InputError as error:  # its file is removed, so its lines help nobody
        mistake = re.sub(r" \(line \d+\)$", "", str(error).splitlines()[0].partition(": ")[2])
        raise InputError(f"new: the template does not suit this: {mistake}") from None


def render(file: str | Path, values: Mapping[str, Any]) -> str:
    """Return a file of a study, of the templates in `starters`."""
    environment = Environment(
        loader=FileSystemLoader(STARTERS), trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    return environment.get_template(f"{file}.jinja").render(values)


def _question(data: Path | None, axis: str | None) -> str | None:
    """Return a question about the study's own data or axis, in quotes; None if it has neither."""
    if data is None and axis is None:
        return None
    on = "" if data is None else f" on {data.name}"
    more = "more the deeper they are" if axis is None else f"more or less with {axis}"
    return json.dumps(f"Do networks{on} collapse {more}?", ensure_ascii=False)


def _data(folder: Path, data: Path, kind: Kind | None) -> dict[str, str]:
    """Copy a file of arrays into the study, and return its keys of params.yaml."""
    from ncpipe.config.sources.arrays import ArraysData
    from ncpipe.datasets.array_files import read_arrays  # imports torch
    from ncpipe.datasets.arrays import NAMES, prepare_arrays

    arrays, _ = read_arrays(data, NAMES)
    kind = kind or _kind(data, arrays["inputs"])
    prepare_arrays(ArraysData("arrays", str(data), kind, None, None, 0, "none"))  # what fetch would refuse
    shutil.copyfile(data, folder / data.name)
    return {
        "file": _quoted(data.name),
        "kind": kind,
        "normalisation": "none" if kind == "tokens" else "standardise",
    }


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


def _quoted(name: str) -> str:
    """Return a file's name in quotes, as YAML and JSON have it; InputError if DVC would change it."""
    if "${" in name or not name.isprintable():
        raise InputError(f"--data: {shown(name)}: DVC does not take this name literally; rename the file")
    return json.dumps(name, ensure_ascii=False)


def _axis(values: Mapping[str, Any], axis: str) -> dict[str, Any]:
    """Return what the templates need of an axis: its key, two of its values and the largest depth."""
    tree = parse_yaml(render(PARAMS_FILE, values))
    number = next(iter(tree["experiments"].values()))
    for word in axis.split("."):
        number = number.get(word) if isinstance(number, dict) else None
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise InputError(f"--axis: {axis} is not a number of the experiment; give a key such as model.width")
    half = number // 2 if isinstance(number, int) else number / 2
    two = [half, number] if half else [number, number + 1]
    return {"axis": axis, "values": two, "depth": max(tree["sweep"]["depths"])}


@contextlib.contextmanager
def _created_folder(target: Path) -> Iterator[Path]:
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
