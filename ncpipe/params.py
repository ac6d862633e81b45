"""params.yaml -> frozen specs: the one reader of the file, and the one place that expands the grid."""

import dataclasses
import difflib
import math
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from ruamel.yaml import YAML, YAMLError

from ncpipe.errors import InputError
from ncpipe.specs import (
    Bound,
    Compute,
    Count,
    Device,
    Experiment,
    Fraction,
    Index,
    NonNegative,
    Positive,
    Run,
)

PARAMS_FILE = Path("params.yaml")
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")

T = TypeVar("T")


@dataclass(frozen=True)
class Sweep:
    experiments: tuple[str, ...]
    depths: tuple[Count, ...]
    seeds: tuple[Index, ...]


@dataclass(frozen=True)
class Convergence:
    """When a run counts as converged: see `ncpipe.tables.convergence`."""

    train_error: NonNegative
    window: Fraction
    tolerance: Positive


@dataclass(frozen=True)
class Slopes:
    """Log-log slopes: bootstrap draws and their seed; level of the intervals, 1 - level that of the tests."""

    draws: Count
    seed: Index
    level: Fraction


@dataclass(frozen=True)
class EffectiveDepth:
    """Largest nearest-class-centre train error at which a layer counts as separated [K23 sec. 4.2]."""

    tolerance: NonNegative


@dataclass(frozen=True)
class Constructed:
    """Networks built from S25's proofs, for every experiment of the sweep.

    kinds: `printed` and `sharp` are App. A's with the strengths of the text or the least that serve, `shifts`
    has biases alone. draws, detours, attention_exponent: `ncpipe.proofs.networks.Choices`. seed: of the first
    layer.
    """

    kinds: tuple[Literal["printed", "sharp", "shifts"], ...]
    depths: tuple[Count, ...]
    draws: Count
    detours: Count
    attention_exponent: Positive
    seed: Index


@dataclass(frozen=True)
class Counterexample:
    """S25 App. C's example: K = classes, n = per_class, epsilon in sizes.

    experiment: an L-RN2 whose model, loss and lambda these networks have; its data are not used. Sizes are
    varied at the first depth, depths at the first size.
    """

    experiment: str
    classes: Annotated[int, Bound(low=2)]
    per_class: Annotated[int, Bound(low=2)]
    sizes: tuple[Positive, ...]
    depths: tuple[Annotated[int, Bound(low=2)], ...]
    seed: Index


@dataclass(frozen=True)
class Theory:
    """What the study in stages/theory sets beside its trained networks."""

    constructed: Constructed
    counterexample: Counterexample


@dataclass(frozen=True)
class Params:
    sweep: Sweep
    compute: Compute
    convergence: Convergence
    slopes: Slopes
    effective_depth: EffectiveDepth
    experiments: dict[str, Experiment]
    theory: Theory | None = None

    def compute_on(self, device: Device | None) -> Compute:
        """How runs are computed, with another device if one is given."""
        return self.compute if device is None else dataclasses.replace(self.compute, device=device)

    def study(self) -> Theory:
        """The keys of the theory study; InputError where there are none."""
        if self.theory is None:
            raise InputError("theory: missing; this command belongs to stages/theory")
        return self.theory

    def grid(self) -> tuple[Run, ...]:
        """All runs of the sweep: experiments in the file's order, depths and seeds ascending."""
        return tuple(run for name in self.sweep.experiments for run in self.runs_of(name))

    def runs_of(self, experiment: str) -> tuple[Run, ...]:
        """The sweep's runs of one experiment, by depth and seed."""
        spec = self.experiment(experiment)
        return tuple(
            Run(experiment, depth, seed, spec)
            for depth in sorted(self.sweep.depths)
            for seed in sorted(self.sweep.seeds)
        )

    def experiment(self, name: str) -> Experiment:
        if name not in self.experiments:
            raise InputError(f"experiment {name!r} is not in params.yaml; {_suggest(name, self.experiments)}")
        return self.experiments[name]

    def run(self, experiment: str, depth: int, seed: int) -> Run:
        """One run, in the sweep or not."""
        spec = self.experiment(experiment)
        _check_depth(experiment, spec, depth, "depth")
        return Run(experiment, depth, seed, spec)


def load_params(path: Path = PARAMS_FILE) -> Params:
    """Read and check a params file.

    Raises InputError, in one line that names the key, for anything that no run could use.
    """
    if not path.is_file():
        raise InputError(f"{path}: not found; run this beside a params.yaml (folder now: {Path.cwd()})")
    try:
        tree = YAML(typ="safe").load(path.read_text(encoding="utf-8"))  # DVC's own reader: 1e-3 is a number
    except (YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    try:
        return parse_params(tree)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def parse_params(tree: object) -> Params:
    """Checked parameters from the plain tree that a YAML reader gives."""
    params = read(Params, tree, "")
    for name in params.experiments:
        if not NAME.fullmatch(name):
            raise InputError(
                f"experiments.{name}: a name is letters, digits and _ and begins with a letter "
                "(stage and folder names are made of it)"
            )
    folded: dict[str, str] = {}
    for name in params.experiments:
        if (other := folded.setdefault(name.lower(), name)) != name:
            raise InputError(f"experiments.{name}: collides with {other!r} where file names ignore case")
    for axis in ("experiments", "depths", "seeds"):
        _check_axis(axis, getattr(params.sweep, axis))
    for name in params.sweep.experiments:
        if name not in params.experiments:
            raise InputError(f"sweep.experiments: unknown {name!r}; {_suggest(name, params.experiments)}")
        for depth in params.sweep.depths:
            _check_depth(name, params.experiments[name], depth, "sweep.depths")
        _check_log_every(name, params.experiments[name], params.convergence)
    return params


def _check_axis(axis: str, values: tuple[object, ...]) -> None:
    if not values:
        raise InputError(f"sweep.{axis}: empty, so there is nothing to run; list at least one")
    seen = set()
    for value in values:
        if value in seen:
            raise InputError(f"sweep.{axis}: {value!r} is listed twice; remove one")
        seen.add(value)


def _check_depth(name: str, spec: Experiment, depth: int, key: str) -> None:
    least = 1 if spec.model.is_transformer else 2
    if depth < least:
        raise InputError(
            f"{key}: {depth} is too shallow for {name}: {spec.model.architecture} needs L >= {least} "
            "(L counts the last layer of a ResNet)"
        )


def _check_log_every(name: str, spec: Experiment, rule: Convergence) -> None:
    """Convergence is judged from the rows in the last `window` of the epochs: it takes two of them.

    Fewer epochs than one in the window leave no value that works; `tables.convergence` says so of the runs.
    """
    largest = math.floor(rule.window * spec.epochs + 1e-9)  # as `tables.convergence` rounds it
    if 1 <= largest < spec.log_every:
        raise InputError(
            f"experiments.{name}.log_every: {spec.log_every} is too coarse to judge convergence over the "
            f"last {100 * rule.window:.3g} % of {spec.epochs} epochs; it must be <= {largest} "
            "(convergence.window x epochs)"
        )


def _suggest(name: object, known: typing.Iterable[str]) -> str:
    known = list(known)
    near = difflib.get_close_matches(str(name), known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}allowed: {', '.join(known)}"


def read(kind: Any, value: object, path: str) -> Any:
    """`value` as the annotated type `kind`; InputError names the dotted `path` of what does not fit."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if is_dataclass(kind):
        return _read_record(typing.cast(type, kind), value, path)
    if origin is typing.Annotated:
        return _read_bounded(arguments[0], arguments[1], value, path)
    if origin in (typing.Union, types.UnionType):
        return _read_union(arguments, value, path)
    if origin is Literal:
        if any(value == option and type(value) is type(option) for option in arguments):
            return value
        raise InputError(f"{path}: {value!r} is unknown; {_suggest(value, map(str, arguments))}")
    if origin is tuple:
        if not isinstance(value, list):
            raise InputError(f"{path}: expected a list, got {_kind_of(value)}")
        return tuple(read(arguments[0], item, f"{path}[{i}]") for i, item in enumerate(value))
    if origin is dict:
        return {
            str(key): read(arguments[1], item, _join(path, str(key)))
            for key, item in _mapping(value, path).items()
        }
    return _read_scalar(kind, value, path)


def _read_record(kind: type[T], value: object, path: str) -> T:
    tree = _mapping(value, path)
    hints = typing.get_type_hints(kind, include_extras=True)
    known = {field.name: field for field in fields(typing.cast(Any, kind))}
    for key in tree:
        if key not in known:
            raise InputError(f"{_join(path, str(key))}: unknown key; {_suggest(key, known)}")
    for name, field in known.items():
        if field.default is MISSING and name not in tree:
            raise InputError(f"{_join(path, name)}: missing; add it")
    arguments = {str(key): read(hints[str(key)], item, _join(path, str(key))) for key, item in tree.items()}
    try:
        return kind(**arguments)
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"{path}: {error}" if path else str(error)) from None


def _read_union(options: tuple[Any, ...], value: object, path: str) -> Any:
    if value is None and type(None) in options:
        return None
    records = [option for option in options if is_dataclass(option)]
    if len(records) == 1:
        return _read_record(typing.cast(type, records[0]), value, path)
    if records:
        tag = fields(records[0])[0].name
        tree = _mapping(value, path)
        if tag not in tree:
            raise InputError(f"{_join(path, tag)}: missing; add it")
        choices: dict[object, Any] = {}
        for record in records:
            hints = typing.get_type_hints(record, include_extras=True)
            choices |= dict.fromkeys(typing.get_args(hints[tag]), record)
        if not isinstance(tree[tag], str) or tree[tag] not in choices:
            raise InputError(
                f"{_join(path, tag)}: {tree[tag]!r} is unknown; {_suggest(tree[tag], map(str, choices))}"
            )
        return _read_record(choices[tree[tag]], value, path)
    rest = [option for option in options if option is not type(None)]
    words = [option for option in rest if typing.get_origin(option) is Literal]
    others = [option for option in rest if option not in words]
    if words and (not others or isinstance(value, str)):
        return read(words[0], value, path)
    return read(others[0], value, path)


def _read_bounded(kind: type, bound: Bound, value: object, path: str) -> float:
    number = _read_scalar(kind, value, path)
    if not bound.admits(number):
        raise InputError(f"{path}: {number!r} is out of range; it must be {bound}")
    return number


def _read_scalar(kind: type, value: object, path: str) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    hint = ""
    if kind in (int, float) and isinstance(value, str):
        hint = "; write the number without quotes, as 0.001 or 1.0e-3"
    raise InputError(f"{path}: expected {_WORDS[kind]}, got {_kind_of(value)}{hint}")


def _mapping(value: object, path: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise InputError(f"{path or 'the file'}: expected keys with values, got {_kind_of(value)}")
    return value


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


_WORDS: dict[type, str] = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def _kind_of(value: object) -> str:
    if value is None:
        return "nothing (null)"
    word = _WORDS.get(type(value), "a list" if isinstance(value, list) else "keys with values")
    return f"{word} ({value!r})" if type(value) in _WORDS else word
