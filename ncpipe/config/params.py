"""Read params.yaml into frozen specs and expand the grid of runs; `experiment` has the records of a run."""

import dataclasses
import functools
import math
import re
import typing
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from ncpipe.config.bounds import Depth, Fraction, Index, NonNegative, Number, Positive
from ncpipe.config.experiment import AnyExperiment, Experiment
from ncpipe.config.records import check, joined, read
from ncpipe.config.run import Compute, Device, Run, as_json
from ncpipe.config.study import NO_STUDY, PARAMS, Study, load_study, mistake
from ncpipe.config.yaml_file import key_lines, read_yaml
from ncpipe.system.errors import LINE, InputError, cut, shown, suggest

PARAMS_FILE = Path("params.yaml")
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
RESERVED = {"item", "key", "true", "false", "null"}  # by DVC and YAML
MOST_RUNS = 100_000
MOST_LINES = 100  # mistakes that are listed at most


@dataclass(frozen=True)
class Sweep:
    """The runs: every experiment at every depth and every value of the axis, if any, with every seed.

    experiments: names under `experiments`.
    depths: L, as the architectures' definitions count it.
    seeds: seeds of the initial weights and of the mini-batches.
    axis: one more key to vary, a dotted key of an experiment, as penalty.value; the stages fetch and train of
    the study's dvc.yaml have to vary it too.
    values: numbers that the axis takes, in place of those in the experiments.
    """

    experiments: tuple[str, ...]
    depths: tuple[Depth, ...]
    seeds: tuple[Index, ...]
    axis: str | None = None
    values: tuple[Number, ...] = ()

    def __post_init__(self) -> None:
        if self.values and self.axis is None:
            raise ValueError("values without an axis; name the key whose values these are, or remove them")


AXES = typing.get_type_hints(Sweep, include_extras=True)


@dataclass(frozen=True)
class Convergence:
    """When a run that ended finite has converged, and which runs are used (`ncpipe.tables.convergence`).

    train_error: largest train error at the end of a run that fits the data.
    window: share of the epochs, the last ones, over which the change of the loss is measured.
    tolerance: largest relative change of the regularised loss over this window.
    gradient: largest gradient norm of the regularised loss at the end, as a share of the penalty's own
    gradient norm; null sets no limit.
    use: the runs of means, slopes and claims: `fit`, all that fit the data, or `converged`, those of them
    that converged; a run that still moves has often the lower loss.
    """

    train_error: NonNegative
    window: Fraction
    tolerance: Positive
    gradient: Positive | None = None
    use: Literal["fit", "converged"] = "fit"


@dataclass(frozen=True)
class Slopes:
    """Log-log slopes over depth, with intervals over seeds (`ncpipe.tables.intervals`).

    seed: seed of permutation tests.
    level: confidence level of intervals; tests use the significance level 1 - level.
    """

    seed: Index
    level: Fraction


@dataclass(frozen=True)
class EffectiveDepth:
    """The first layer that separates the classes [K23 sec. 4.2].

    tolerance: largest nearest-class-centre train error of a layer that separates the classes.
    """

    tolerance: NonNegative


@dataclass(frozen=True)
class Purpose:
    """Purpose of an experiment, for the report and published figures; no result depends on it.

    question: the question that its runs answer.
    expected: the answer that a theory or a paper predicts.
    label: name of the experiment in published figures, where its settings do not tell it apart.
    scale: how the runs differ in size from those of the paper, such as `reduced, 250 images`; published
    figures have it below the label.
    """

    question: str
    expected: str | None = None
    label: str | None = None
    scale: str | None = None


@dataclass(frozen=True)
class Params:
    """A params.yaml.

    sweep: the grid of runs.
    compute: device, threads and precision.
    convergence: when a run counts as converged.
    slopes: how power laws in depth are fitted.
    effective_depth: when a layer counts as separating the classes.
    experiments: every setting of a run but its depth and seed, by the experiment's name.
    about: question, expectation, label and scale of each experiment; an edit regenerates the report alone.
    """

    study: ClassVar[Study] = NO_STUDY  # the study.py beside the file; `params_type` sets it

    sweep: Sweep
    compute: Compute
    convergence: Convergence
    slopes: Slopes
    effective_depth: EffectiveDepth
    experiments: dict[str, AnyExperiment]
    about: dict[str, Purpose] | None = None

    def compute_on(self, device: Device | None) -> Compute:
        """Return how runs are computed, on another device if one is given."""
        return self.compute if device is None else dataclasses.replace(self.compute, device=device)

    def grid(self) -> tuple[Run, ...]:
        """Return all runs of the sweep: experiments in the file's order; depths, values, seeds ascending."""
        return tuple(run for name in self.sweep.experiments for run in self.runs_of(name))

    def runs_of(self, experiment: str) -> tuple[Run, ...]:
        """Return the sweep's runs of one experiment, by depth, value and seed."""
        specs = {value: self.experiment(experiment, value) for value in self.values()}
        return tuple(
            Run(experiment, depth, seed, spec, self.sweep.axis, value, self.study)
            for depth in sorted(self.sweep.depths)
            for value, spec in specs.items()
            for seed in sorted(self.sweep.seeds)
        )

    def values(self) -> tuple[Number | None, ...]:
        """Return the values of the sweep's axis, ascending; (None,) without an axis."""
        return tuple(sorted(self.sweep.values)) or (None,)

    def experiment(self, name: str, value: Number | None = None) -> Experiment:
        """Return an experiment's spec, at a value of the sweep's axis if it has one."""
        if name not in self.experiments:
            raise InputError(
                cut(f"experiment {shown(name)} is not in params.yaml; {suggest(name, self.experiments)}")
            )
        spec, axis = self.experiments[name], self.sweep.axis
        if axis is None and value is not None:
            raise InputError(f"value {value}: sweep.axis of params.yaml names no key that has values")
        if axis is not None and value is None:
            raise InputError(
                f"sweep.axis is {axis}: name one of its values, --value=...; dvc.yaml does it in the stages "
                "fetch and train by a matrix over sweep.values"
            )
        return spec if axis is None or value is None else _at_value(name, spec, axis, value)

    def run(self, experiment: str, depth: int, seed: int, value: Number | None = None) -> Run:
        """Return one run, in the sweep or not. A value is written as in the sweep: 1 where 1.0 is given."""
        value = next((swept for swept in self.sweep.values if swept == value), value)
        spec = self.experiment(experiment, value)
        read(Depth, depth, "depth")
        read(Index, seed, "seed")
        for problem in _depth_mistake(experiment, spec, depth, "depth"):
            raise InputError(problem)
        return Run(experiment, depth, seed, spec, self.sweep.axis, value, self.study)


def make_run(
    experiment: str,
    depth: int,
    seed: int,
    keys: Mapping[str, Any] | Experiment,
    axis: str | None = None,
    value: Number | None = None,
    where: str = "sweep",
) -> Run:
    """Return a run of any keys, as below `experiments` in params.yaml, in the sweep or not.

    keys: or those of an experiment. axis, value: a dotted key that takes another value. where: what a mistake
    in these is called by. Raises InputError with a line for each mistake. It has none of a study's metrics.
    """
    spec: Any = keys
    if isinstance(keys, Mapping):
        spec = read(AnyExperiment, dict(keys), f"experiments.{experiment}")
    if axis is not None and value is not None:
        spec = _at_value(experiment, spec, axis, value, where)
    return Run(experiment, depth, seed, spec, axis, value)


@functools.cache
def params_type(study: Study) -> type[Params]:
    """Return the type of a params.yaml beside a study.py: Params, with the keys of PARAMS if it has them.

    It has the checks and methods of PARAMS too. Raises InputError if that has a key that exists already.
    """
    if study is NO_STUDY:
        return Params
    record = study.params
    for field in dataclasses.fields(record) if record else ():
        if hasattr(Params, field.name) or field.name in Params.__dataclass_fields__:
            problem = f"{PARAMS} has the key {field.name!r}, which exists already; take another name"
            raise mistake(record, problem, PARAMS)
    bases = (record, Params) if record else (Params,)
    keys = [
        (field.name, field.type, dataclasses.field(default=field.default, kw_only=True))
        for kind in reversed(bases)
        for field in dataclasses.fields(kind)
    ]
    joined = dataclasses.make_dataclass("Params", keys, bases=bases, namespace={"study": study}, frozen=True)
    joined.__doc__, joined.__module__ = Params.__doc__, bases[0].__module__
    return joined


def check_there(path: Path = PARAMS_FILE) -> None:
    """Raise InputError if there is no params file, for commands that do not read it."""
    if not path.is_file():
        raise InputError(f"{path}: not found; run this beside a params.yaml (folder now: {Path.cwd()})")


def load_params_and_study(contents: Sequence[Path]) -> tuple[Params | None, Study]:
    """Return the parameters and their study; None for one without params.yaml, which has one of `contents`.

    Raises InputError if there is neither.
    """
    if not PARAMS_FILE.is_file() and any(map(Path.exists, contents)):
        return None, load_study(Path())
    params = load_params()
    return params, params.study


def load_params(path: Path = PARAMS_FILE) -> Params:
    """Read and check a params file.

    Runs the study.py beside it, if there is one, whose networks, data sets and metrics the file may name.
    Raises InputError with a line for each mistake, which names the key.
    """
    check_there(path)
    kind = params_type(load_study(path.parent))
    tree = read_yaml(path)
    try:
        return parse_params(tree, kind)
    except InputError as error:
        mistakes = str(error).splitlines()
        key_line = key_lines(path.read_text(encoding="utf-8-sig"))
        lines = []
        for mistake in mistakes[:MOST_LINES]:
            line = _line_of(mistake, key_line)
            lines.append(cut(f"{path}: {mistake}", LINE - len(line)) + line)
        if len(mistakes) > MOST_LINES:
            lines.append(f"{path}: {len(mistakes) - MOST_LINES} more mistakes")
        raise InputError("\n".join(lines)) from None


def _line_of(mistake: str, key_line: Mapping[str, int]) -> str:
    """Return ` (line 12)`, the line of the key that a mistake begins with, or of the nearest key above it."""
    key = mistake.partition(": ")[0]
    while key and key not in key_line:
        key = key[: max(key.rfind("."), key.rfind("["), 0)]
    return f" (line {key_line[key]})" if key else ""


def parse_params(tree: object, kind: type[Params] = Params) -> Params:
    """Return checked parameters from the plain values of a YAML file.

    kind: of `params_type`. Raises InputError with a line for each mistake.
    """
    params, mistakes = check(kind, tree)
    experiments = _mapping_at(tree, "experiments")
    mistakes += _name_mistakes(experiments)
    mistakes += _about_mistakes(_mapping_at(tree, "about"), experiments)
    if params is None:  # the parts that parse may still contradict each other
        raw = _mapping_at(tree, "sweep")
        sweep = {name: check(kind, raw[name])[0] for name, kind in AXES.items() if name in raw}
        specs = {name: check(AnyExperiment, value)[0] for name, value in experiments.items()}
        rule = check(Convergence, _mapping_at(tree, "convergence"))[0]
    else:
        sweep, specs, rule = vars(params.sweep), params.experiments, params.convergence
    mistakes += map(cut, dict.fromkeys(_sweep_mistakes(sweep, specs, rule)))
    mistakes += map(cut, _start_mistakes(specs, kind.study.starts))
    if mistakes:
        raise InputError("\n".join(mistakes))
    return params


def _start_mistakes(specs: Mapping[Any, AnyExperiment | None], starts: Mapping[str, Any]) -> Iterator[str]:
    for name, spec in specs.items():
        start = getattr(spec, "start", None)
        if start is not None and start not in starts:
            hint = suggest(start, starts) if starts else "no study.py beside this file has STARTS"
            yield f"experiments.{name}.start: unknown {shown(start)}; {hint}"


def _about_mistakes(about: Iterable[object], experiments: Collection[object]) -> list[str]:
    names = [str(name) for name in experiments]
    return [
        cut(f"{joined('about', str(name))}: no experiment has this name; {suggest(str(name), names)}")
        for name in about
        if str(name) not in names
    ]


def _mapping_at(tree: object, key: str) -> Mapping[Any, Any]:
    value = tree.get(key) if isinstance(tree, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def _name_mistakes(experiments: Iterable[object]) -> Iterator[str]:
    folded: dict[str, str] = {}
    for name in map(str, experiments):
        if not NAME.fullmatch(name):
            yield (
                f"{joined('experiments', name)}: a name is letters, digits and _ and begins with a letter "
                "(stage and folder names are made of it)"
            )
        elif name.lower() in RESERVED:
            yield f"experiments.{name}: DVC reserves this name; choose another"
        elif (other := folded.setdefault(name.lower(), name)) != name:
            yield f"experiments.{name}: collides with {other!r} where file names ignore case"


def _sweep_mistakes(
    sweep: Mapping[str, Any],
    experiments: Mapping[Any, Experiment | None],
    rule: Convergence | None,
) -> Iterator[str]:
    """Yield mistakes in the grid. In `sweep` None is a value that does not parse; a missing key is absent."""
    axis = sweep.get("axis")
    lists = {key: sweep.get(key) for key in ("experiments", "depths", "seeds")}
    lists |= {"values": sweep.get("values", ())} if axis else {}
    for key, values in lists.items():
        if values == ():
            yield f"sweep.{key}: empty, so there is nothing to run; list at least one"
        for value in (value for value, times in Counter(values or ()).items() if times > 1):
            yield f"sweep.{key}: {shown(value)} is listed twice; remove one"
    runs = math.prod(len(values or ()) for values in lists.values())
    if runs > MOST_RUNS:
        yield f"sweep: {runs} runs; DVC keeps a stage for each, and {MOST_RUNS} are the most"
        return
    reported: set[str] = set()  # a mistake of the axis in every experiment is reported for the first only
    for name in dict.fromkeys(sweep.get("experiments") or ()):
        if name not in experiments:
            yield f"sweep.experiments: unknown {shown(name)}; {suggest(name, experiments)}"
            continue
        specs = [experiments[name]]
        if axis and specs[0]:
            at_values = [_varied(name, specs[0], axis, value) for value in lists["values"] or ()]
            specs = [spec for spec, _ in at_values]
            for problem in (problem for _, problems in at_values for problem in problems):
                if (anywhere := problem.replace(f"experiments.{name}", "", 1)) not in reported:
                    reported.add(anywhere)
                    yield problem
        for spec in filter(None, specs):
            for depth in dict.fromkeys(sweep.get("depths") or ()):
                yield from _depth_mistake(name, spec, depth, "sweep.depths")
            if rule:
                yield from _log_every_mistake(name, spec, rule)


def _at_value(name: str, spec: Experiment, axis: str, value: Number, where: str = "sweep") -> Experiment:
    """Return an experiment with the value at the axis; raise InputError as `_varied` tells."""
    experiment, mistakes = _varied(name, spec, axis, value, where)
    if experiment is None:
        raise InputError("\n".join(map(cut, mistakes)))
    return experiment


def _varied(
    name: str, spec: Experiment, axis: str, value: Number, where: str = "sweep"
) -> tuple[Experiment | None, list[str]]:
    """Return an experiment with the value at the axis, a dotted key; or None and the mistakes.

    where: the key that contains axis and values.
    """
    tree = parent = as_json(spec)
    *above, key = axis.split(".")
    for step in above:
        if not isinstance(parent.get(step), dict):
            parent[step] = {}
        parent = parent[step]
    parent[key] = value
    experiment, mistakes = check(AnyExperiment, tree, f"experiments.{name}")
    path = f"experiments.{name}.{axis}: "
    keys = ("values" if m.startswith(path) and f"{path}unknown" not in m else "axis" for m in mistakes)
    return experiment, [f"{where}.{key}: {m}" for key, m in zip(keys, mistakes, strict=True)]


def _depth_mistake(name: str, spec: Experiment, depth: int, key: str) -> Iterator[str]:
    if problem := spec.depth_incompatibility(depth):
        yield f"{key}: {depth} does not suit {name}: {problem}"


def _log_every_mistake(name: str, spec: Experiment, rule: Convergence) -> Iterator[str]:
    """Check that the last `window` of the epochs has two rows, from which convergence is judged.

    A window shorter than an epoch leaves no valid value; `tables.convergence` reports such runs.
    """
    largest = math.floor(rule.window * spec.epochs + 1e-9)  # as `tables.convergence` rounds it
    if 1 <= largest < spec.log_every:
        yield (
            f"experiments.{name}.log_every: {spec.log_every} is too coarse to judge convergence over the "
            f"last {100 * rule.window:.3g} % of {spec.epochs} epochs; it must be <= {largest} "
            "(convergence.window x epochs)"
        )
