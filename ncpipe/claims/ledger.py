"""Read claims.yaml: statements of papers, each with the number of the sweep that answers it.

`ncpipe.claims.quantities` has the records.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from ncpipe.claims.claim import Claim, RunClaim
from ncpipe.claims.quantities import AnyClaim, Trend
from ncpipe.config.bounds import Number
from ncpipe.config.params import Params, load_params
from ncpipe.config.records import check
from ncpipe.config.yaml_file import read_yaml
from ncpipe.metrics.catalogue import CATALOGUE, TRANSFERS
from ncpipe.metrics.study_metrics import own_metrics
from ncpipe.system.artifacts import CLAIMS_FILE
from ncpipe.system.errors import InputError, cut, shown, suggest

RUN_NUMBERS = (  # columns of runs.csv and effective_depth.csv that can be a claim's metric
    "loss", "fit", "last_penalty", "inner_penalty", "loss_optimum", "loss_gap", "gap_gufm", "gap_fit",
    "gap_last_penalty", "train_error", "test_error", "last_train_error", "gradient_norm", "effective_depth",
)  # fmt: skip


def load_claims(
    path: Path = CLAIMS_FILE,
    params: Callable[[], Params] = load_params,
) -> tuple[Claim, ...]:
    """Return the claims of a file; check those about runs against params.yaml.

    params: returns params.yaml; called if any claim is about runs. Raises InputError with one line per
    mistake, which begins with the claim's id and the key.
    """
    if not path.is_file():
        raise InputError(f"{path}: not found; run this in a folder with a claims.yaml (see docs/claims.md)")
    claims, mistakes = parse_claims(read_yaml(path))
    if any(isinstance(claim, RunClaim) for claim in claims):
        study = params()
        metrics = _known_metrics(study)
        claims = tuple(part for claim in claims for part in _by_experiment(claim, study.sweep.experiments))
        if not mistakes:
            mistakes += [
                f"{name}: the name of an experiment makes this id of another claim; rename one"
                for name, count in Counter(claim.id for claim in claims).items()
                if count > 1
            ]
        run_claims = [claim for claim in claims if isinstance(claim, RunClaim)]
        mistakes += dict.fromkeys(
            f"{claim.id}.{line}" for claim in run_claims for line in _unknown(claim, study, metrics)
        )
    if mistakes:
        raise InputError("\n".join(cut(f"{path}: {line}") for line in mistakes))
    return claims


def parse_claims(tree: object) -> tuple[tuple[Claim, ...], list[str]]:
    """Return the valid claims in the file's order, and a line for each mistake.

    Keys without a value are left out.
    """
    if not isinstance(tree, list):
        return (), ["expected a list of claims"]
    claims: list[Claim] = []
    mistakes: list[str] = []
    paths: set[str] = set()
    for index, entry in enumerate(tree):
        if isinstance(entry, dict):
            entry = {key: value for key, value in entry.items() if value is not None}
        name = entry.get("id") if isinstance(entry, dict) else None
        path = name if isinstance(name, str) and name.isprintable() and name else f"claim {index + 1}"
        if path in paths:
            mistakes.append(f"{path}: another claim has the same id; rename one")
        paths.add(path)
        claim, problems = check(AnyClaim, entry, path)
        mistakes += problems
        if isinstance(name, str) and name != path:  # ids appear in tables and on the terminal
            mistakes.append(f"{path}.id: {shown(name)} is empty or not printable; rename it")
        elif claim is not None:
            mistakes += [f"{path}.{line}" for line in claim.mistakes()]
            claims.append(claim)
    return tuple(claims), mistakes


def _by_experiment(claim: Claim, experiments: Iterable[str]) -> list[Claim]:
    """Return the claim, or one for each experiment if it is about runs and names none."""
    if not isinstance(claim, RunClaim) or all(side.experiment for side in claim.sides()):
        return [claim]
    return [replace(claim, id=f"{claim.id}-{name}", experiment=name) for name in experiments]


def _known_metrics(params: Params) -> list[str]:
    """Return every name that a claim's `metric` may be."""
    study = params.study
    claimed = [name for stage in study.stages.values() for name in stage.claimed]
    metrics = [metric.name for metric in own_metrics(study)]
    return [*CATALOGUE, *metrics, *map(str, study.columns), *_shot_metrics(params), *RUN_NUMBERS, *claimed]


def _unknown(claim: RunClaim, params: Params, metrics: list[str]) -> Iterator[str]:
    """Yield a line for each name that params.yaml does not have, and for each unknown metric."""
    for side in claim.sides():
        if (name := side.experiment) not in params.experiments:
            yield f"{_key_of(claim, name)}: unknown {shown(name)}; {suggest(name, params.experiments)}"
        if (name := side.metric) not in metrics and name != "epoch":
            yield f"{_key_of(claim, name)}: unknown {shown(name)}; {_nearest(name, metrics)}"
        if side.when and (name := side.when.metric) not in metrics:
            yield f"when.metric: unknown {shown(name)}; {_nearest(name, metrics)}"
    if isinstance(claim, Trend):
        for name, number in claim.over.items():
            value = _number_at(params.experiments[name], claim.x) if name in params.experiments else None
            if value not in (None, number):
                yield f"over.{name}: {number} here, but params.yaml has {claim.x}: {value}"
    if claim.value is not None and params.sweep.axis is None:
        yield "value: params.yaml has no sweep.axis; remove it"


def _key_of(claim: RunClaim, name: str) -> str:
    """Return the key of a claim that names this experiment or metric."""
    of_all = {field.name for field in fields(Claim)}
    keys = {key: value for key, value in asdict(claim).items() if key not in of_all}
    keys |= {f"versus.{key}": value for key, value in keys.pop("versus", {}).items()}
    return next(key for key, value in keys.items() if value == name or (key == "over" and name in value))


def _number_at(spec: Any, key: str) -> Number | None:
    """Return the number at a dotted key of an experiment; None if there is none."""
    value: Any = asdict(spec)
    for step in key.split("."):
        value = value.get(step) if isinstance(value, dict) else None
    return value if isinstance(value, int | float) else None


def _shot_metrics(params: Params) -> list[str]:
    """Return the metrics that exist for each number of shots of an experiment."""
    transfers = [spec.transfer for spec in params.experiments.values() if spec.transfer]
    shots = sorted({count for transfer in transfers for count in transfer.shots})
    return [f"{metric.name}_{count:03d}" for metric in TRANSFERS for count in shots]


def _nearest(name: str, metrics: list[str]) -> str:
    hint = suggest(name, metrics)
    return hint if hint.startswith("did you mean") else "docs/metric_tables.md has their names"
