"""Read claims.yaml: statements of papers, each with the number of the sweep that answers it.

`ncpipe.claims.evidence` computes the numbers. Editors show the docstrings of these records.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from ncpipe.config.bounds import Bound, Count, Index, Number, Positive
from ncpipe.config.experiment import own_loop
from ncpipe.config.params import Params, load_params
from ncpipe.config.records import check
from ncpipe.config.study import loaded
from ncpipe.config.yaml_file import read_yaml
from ncpipe.metrics.catalogue import CATALOGUE, TRANSFERS
from ncpipe.metrics.study_metrics import own_metrics
from ncpipe.system.errors import InputError, cut, shown, suggest

CLAIMS_FILE = Path("claims.yaml")
RUN_NUMBERS = (  # columns of runs.csv and effective_depth.csv that can be a claim's metric
    "loss",
    "fit",
    "last_penalty",
    "inner_penalty",
    "loss_optimum",
    "loss_gap",
    "gap_gufm",
    "gap_fit",
    "gap_last_penalty",
    "train_error",
    "test_error",
    "last_train_error",
    "gradient_norm",
    "effective_depth",
    "loss_over_dnc",  # of networks with a head, like all below
    "loss_over_srg",
    "classes_given_up",
    "low_rank_over_dnc",
    "mean_rank",
    "dnc_found",
)

OVER_DEPTHS = ("slope", "bend")  # kinds of difference that are computed over all depths
EXTREMES = ("minimum", "maximum")
WERE_QUANTITIES = ("since_fit", "layer_slope", "layer_rise", "depth_bound")  # calls of `computed` now

Author = Literal["paper", "ours", "yours"]
Scale = Literal["stated settings", "reduced", "toy"]
Split = Literal["train", "test", "weights", "true_labels", "target", "ood"]


@dataclass(frozen=True)
class Expect:
    """Where the number lies if the claim holds: one of the keys.

    below: less than this.
    above: more than this.
    at_least: this or more.
    at_most: this or less.
    between: from the first to the second of two.
    within: for a theory: the largest distance from `against`, as a share of it. For a line: the largest
    half-width of the slope's interval with which a line that is not rejected agrees.
    """

    below: Number | None = None
    above: Number | None = None
    at_least: Number | None = None
    at_most: Number | None = None
    between: tuple[Number, ...] = ()
    within: Positive | None = None

    def __post_init__(self) -> None:
        given = [field.name for field in fields(self) if getattr(self, field.name) not in (None, ())]
        if len(given) != 1:
            raise ValueError(f"give one of {', '.join(field.name for field in fields(self))}")
        if self.between and not (len(self.between) == 2 and self.between[0] < self.between[1]):
            raise ValueError("between takes two numbers, the smaller one first")

    def bound(self, target: float = math.nan) -> Bound:
        """Return the expected range; `within` is relative to the target, or absolute if the target is 0."""
        if self.between:
            return Bound(self.between[0], self.between[1])
        if self.within is not None:
            reach = self.within * (abs(target) or 1)
            return Bound(target - reach, target + reach)
        low = self.above if self.above is not None else self.at_least
        high = self.below if self.below is not None else self.at_most
        return Bound(
            -math.inf if low is None else low,
            math.inf if high is None else high,
            open_low=self.above is not None,
            open_high=self.below is not None,
        )


@dataclass(frozen=True)
class OtherSide:
    """The other side of a difference; keys that are left out are those of the claim's own runs.

    experiment: a name of params.yaml.
    depth: L.
    value: of the study's axis.
    metric: another one.
    split: another one.
    """

    experiment: str | None = None
    depth: Count | None = None
    value: Number | None = None
    metric: str | None = None
    split: Split | None = None

    def __post_init__(self) -> None:
        if all(getattr(self, field.name) is None for field in fields(self)):
            raise ValueError("names nothing; give another experiment, depth, value, metric or split")


Quantity = Literal[
    "slope", "line", "spearman", "value", "minimum", "maximum", "difference", "computed", "theory"
]
OF_RUNS = ("metric", "experiment", "split", "depth", "value", "panel")
KEYS: Mapping[Quantity, tuple[str, ...]] = {  # of each quantity, besides those of every claim
    "slope": (*OF_RUNS, "over", "x", "without"),
    "line": (*OF_RUNS, "without"),
    "spearman": (*OF_RUNS, "over", "x", "layer", "along", "along_split"),
    "value": OF_RUNS,
    "minimum": (*OF_RUNS, "minus"),
    "maximum": (*OF_RUNS, "minus"),
    "difference": (*OF_RUNS, "versus", "of", "without"),
    "computed": (*OF_RUNS, "call", "args"),
    "theory": ("call", "args", "against"),
}
NEEDED: Mapping[Quantity, tuple[str, ...]] = {  # those that have no default; `metric` wherever it is a key
    "line": ("without",),
    "difference": ("versus", "of"),
    "computed": ("call",),
    "theory": ("call",),
}


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A statement of a paper, or of ours, and the number that answers it; KEYS has the keys of each quantity.

    quantity: kind of number.
    - slope: of log10 metric on log10 L, or on the study's axis or across experiments at one depth.
    - line: the same slope at large depths, and whether the means there lie on a line.
    - spearman: the rank correlation of the metric with L, with the study's axis or across experiments.
    - value: the mean over the seeds of one setting, at the deepest L by default.
    - minimum, maximum: of all runs that ended finite, converged or not; an exact number.
    - difference: a number of one setting minus that of another; runs of one seed are pairs.
    - computed: a number of each run, and its mean, or one number, by a function of the tables.
    - theory: a number of the theory, without any run.
    id: unique name in tables.
    ref: paper and place in it.
    statement: the claim in our words.
    expect: where the number lies if the claim holds.
    author: who makes it: the `paper`; `ours`, of ncpipe's own studies; `yours`, of a study of your own.
    scale: `stated settings` with all settings that the paper states, `reduced` with some of them smaller,
    `toy` on other data or networks; null where none applies.
    identity: whether it is a proven identity, whose failure is an error of the code and fails the pipeline.
    metric: of docs/metrics.md, at the last layer, or a number of runs.csv.
    experiment: a name of params.yaml; left out, each of the sweep's has the claim, its name behind the id.
    split: train, test, weights for the metrics of W, true_labels for training samples by these, or target for
    classes that the network never saw.
    depth: L, where the number is of one depth.
    value: of the study's axis, where the number is of one value.
    panel: title of the panel of data/claims/panels.png that shows what the number is made of.
    over: experiments, in place of one, each with the number that it stands for; at one depth.
    x: what these numbers are: a key of the experiments, as data.per_class, or a word where none is meant.
    without: how many of the smallest depths are left out.
    layer: of which the metric is, where it is not the last: of ncc_error alone.
    along: another metric of the same runs, in place of L or the axis.
    along_split: the split of that; without it the claim's.
    minus: another metric of the same split, which is subtracted from an extreme first.
    versus: the other side of a difference.
    of: what differs: the slope on L, the size of its drift (bend), the mean of log10 metric of one setting,
    or the mean of the metric.
    call: name of a function (docs/claims.md).
    args: its arguments.
    against: for `within`: a number, or `numerical` for the same number computed independently.
    """

    quantity: Quantity
    id: str
    ref: str
    statement: str
    expect: Expect
    author: Author = "paper"
    scale: Scale | None = None
    identity: bool = False
    metric: str = ""
    experiment: str = ""
    split: Split = "train"
    depth: Count | None = None
    value: Number | None = None
    panel: str = ""
    over: dict[str, Number] = field(default_factory=dict)
    x: str = ""
    without: Index = 0
    layer: str = ""
    along: str = ""
    along_split: Split | None = None
    minus: str = ""
    versus: OtherSide | None = None
    of: Literal["slope", "bend", "log10", "value"] | None = None
    call: str = ""
    args: dict[str, Any] = field(default_factory=dict)
    against: Literal["numerical"] | float | None = None

    @property
    def of_runs(self) -> bool:
        """Whether the claim is about runs."""
        return self.quantity != "theory"

    @property
    def number(self) -> str:
        """The name of the number in tables: the quantity, or the function that computes it from runs."""
        return self.call if self.quantity == "computed" else self.quantity


def load_claims(
    path: Path = CLAIMS_FILE,
    params: Callable[[], Params] = load_params,
    further: Iterable[str] = (),
) -> tuple[Claim, ...]:
    """Return the claims of a file; check those about runs against params.yaml.

    params: returns params.yaml; called if any claim is about runs. further: numbers of runs besides
    RUN_NUMBERS. Raises InputError with one line per mistake, which begins with the claim's id and the key.
    """
    if not path.is_file():
        raise InputError(f"{path}: not found; run this in a folder with a claims.yaml (see docs/claims.md)")
    try:
        tree = read_yaml(path)
    except InputError as error:
        raise InputError(cut(f"{path}: {error}")) from None
    claims, mistakes = parse_claims(tree)
    if any(claim.of_runs for claim in claims):
        known = params()
        metrics = _known_metrics(known, further)
        claims = tuple(own for claim in claims for own in _of_each(claim, known.sweep.experiments))
        of_runs = [claim for claim in claims if claim.of_runs]
        mistakes += dict.fromkeys(
            f"{claim.id}.{line}" for claim in of_runs for line in _unknown(claim, known, metrics)
        )
    if mistakes:
        raise InputError("\n".join(cut(f"{path}: {line}") for line in mistakes))
    return claims


def parse_claims(tree: object) -> tuple[tuple[Claim, ...], list[str]]:
    """Return the valid claims in the file's order, and a line for each mistake."""
    if not isinstance(tree, list):
        return (), ["expected a list of claims"]
    claims: list[Claim] = []
    mistakes: list[str] = []
    seen: set[str] = set()
    for index, entry in enumerate(tree):
        name = entry.get("id") if isinstance(entry, dict) else None
        path = name if isinstance(name, str) and name.isprintable() and name else f"claim {index + 1}"
        if path in seen:
            mistakes.append(f"{path}: another claim has the same id; rename one")
        seen.add(path)
        claim, wrong = _read(entry, path)
        mistakes += wrong
        if isinstance(name, str) and name != path:  # ids appear in tables and on the terminal
            mistakes.append(f"{path}.id: {shown(name)} is empty or not printable; rename it")
        elif claim is not None:
            mistakes += [f"{path}.{line}" for line in _contradictions(claim)]
            claims.append(claim)
    return tuple(claims), mistakes


def _read(entry: object, path: str) -> tuple[Claim | None, list[str]]:
    """Return a claim and no mistakes, or None and its mistakes."""
    if isinstance(entry, dict) and (name := entry.get("quantity")) in WERE_QUANTITIES:
        moved = ", its over and alpha below `args`" if name == "depth_bound" else ""
        return None, [f"{path}.quantity: write `quantity: computed` and `call: {name}`{moved}"]
    claim, wrong = check(Claim, entry, path)
    if claim is not None:
        wrong = [f"{path}.{line}" for line in _misplaced(claim, entry)]
    return None if wrong else claim, wrong


def _misplaced(claim: Claim, entry: Any) -> Iterator[str]:
    """Yield keys that belong to another quantity than the claim's, and those that its own needs."""
    own = KEYS[claim.quantity]
    for key in (key for key, value in entry.items() if value is not None):
        if key not in own and (others := [name for name, keys in KEYS.items() if key in keys]):
            yield f"{key}: belongs to {', '.join(others)}; remove it"
    for key in ("metric", *NEEDED.get(claim.quantity, ())):
        if key in own and not entry.get(key):
            yield f"{key}: missing; add it"


def _contradictions(claim: Claim) -> Iterator[str]:
    """Yield contradictions between a claim's own keys."""
    if claim.quantity == "theory":
        if (claim.expect.within is None) != (claim.against is None):
            yield "expect: `within` and `against` belong together; give both or neither"
    elif (claim.expect.within is None) == (claim.quantity == "line"):
        yield (
            "expect: a line takes `within`, the largest half-width of its slope's interval"
            if claim.quantity == "line"
            else "expect.within: is for a theory or a line; give between, below or the like"
        )
    elif claim.along_split and not claim.along:
        yield "along_split: belongs to `along`, which is missing; name a metric or remove it"
    elif claim.along and (claim.over or claim.layer):
        yield "along: replaces over and layer; remove one of them"
    elif claim.quantity == "spearman" and 0 not in (claim.expect.above, claim.expect.below):
        yield "expect: only the sign of a rank correlation is tested; give above: 0 or below: 0"
    if claim.versus is not None:
        if claim.of in OVER_DEPTHS and (claim.depth or claim.versus.depth):
            yield f"of: a {claim.of} is over all depths; leave out depth, or take log10 or value"
        own = {each.name: getattr(claim, each.name) for each in fields(OtherSide)}
        if own | {key: value for key, value in asdict(claim.versus).items() if value is not None} == own:
            yield "versus: is the setting of the claim itself; name another"
        if (claim.of == "bend") != (claim.without > 0):
            yield "without: a bend needs the number of depths to leave out, 1 or more; others take none"
    if bool(claim.over) != bool(claim.x):
        yield "over: goes together with x, which says what its numbers are; give both or neither"
    elif claim.over:
        if len(set(claim.over.values())) < 2:
            yield "over: name at least two experiments, with different numbers"
        for key in ("experiment", "value", "without"):
            if getattr(claim, key):
                yield f"{key}: does not go together with over; remove it"
        if claim.quantity == "slope" and min(claim.over.values()) <= 0:
            yield "over: a number that is not above 0 has no logarithm; take `quantity: spearman`"


def _of_each(claim: Claim, experiments: Iterable[str]) -> list[Claim]:
    """Return the claim, or one for each experiment if it names none."""
    if not claim.of_runs or claim.experiment or claim.over:
        return [claim]
    return [replace(claim, id=f"{claim.id}-{name}", experiment=name) for name in experiments]


def _known_metrics(params: Params, further: Iterable[str]) -> list[str]:
    """Return every name that a claim's `metric` may be."""
    own = [*(metric.name for metric in own_metrics()), *loaded().run_columns]
    return [*CATALOGUE, *own, *_of_shots(params), *RUN_NUMBERS, *further]


def _unknown(claim: Claim, params: Params, known: list[str]) -> Iterator[str]:
    """Yield a line for each name that params.yaml does not have, and for each unknown metric."""
    other = asdict(claim.versus) if claim.versus else {}
    experiments = [("experiment", claim.experiment), ("versus.experiment", other.get("experiment"))]
    for key, name in [*experiments, *(("over", name) for name in claim.over)]:
        if name and name not in params.experiments:
            yield f"{key}: unknown {shown(name)}; {suggest(name, params.experiments)}"
        elif name and key == "over":
            written = _at(params.experiments[name], claim.x)
            if written not in (None, claim.over[name]):
                yield f"over.{name}: {claim.over[name]} here, but params.yaml has {claim.x}: {written}"
    metrics = [("metric", claim.metric), ("versus.metric", other.get("metric"))]
    for key, name in [*metrics, ("minus", claim.minus), ("along", claim.along)]:
        if name and name not in known:
            yield f"{key}: unknown {shown(name)}; {_nearest(name, known)}"
    by_layer = claim.call == "layer_rise" or claim.layer
    if by_layer and (claim.metric, claim.split) != ("ncc_error", "train"):
        yield "metric: layers before the last have only ncc_error on the training samples; use that"
    if claim.value is not None and params.sweep.axis is None:
        yield "value: params.yaml has no sweep.axis; remove it"


def _at(spec: Any, key: str) -> Number | None:
    """Return the number at a dotted key of an experiment; None if there is none."""
    value: Any = asdict(spec)
    for step in key.split("."):
        value = value.get(step) if isinstance(value, dict) else None
    return value if isinstance(value, int | float) else None


def _of_shots(params: Params) -> list[str]:
    """Return the metrics that exist for each number of shots of an experiment."""
    transfers = [
        spec.data.transfer
        for spec in params.experiments.values()
        if not own_loop(spec) and spec.data.transfer
    ]
    shots = sorted({count for transfer in transfers for count in transfer.shots})
    return [f"{metric.name}_{count:03d}" for metric in TRANSFERS for count in shots]


def _nearest(name: str, known: list[str]) -> str:
    hint = suggest(name, known)
    return hint if hint.startswith("did you mean") else "docs/metric_tables.md has their names"


def subject(claim: Claim) -> str:
    """Return what a claim about runs is about, in a few words."""
    parts = [f"{', '.join(claim.over)} by {claim.x}" if claim.over else claim.experiment]
    parts.append(claim.metric if claim.split == "train" else f"{claim.metric} ({claim.split})")
    parts += [f"layer {claim.layer}"] if claim.layer else []
    if claim.along:
        split = claim.along_split or claim.split
        parts.append(f"with {claim.along}" if split == "train" else f"with {claim.along} ({split})")
    parts += [f"L = {claim.depth}"] if claim.depth else []
    parts += [f"x = {claim.value:g}"] if claim.value is not None else []
    return ", ".join(parts)
