"""Every metric of one trained run: from its features and weights to rows of tables.

`ncpipe.metrics` has the metrics; `ncpipe.commands.measure` reads a run's files and writes the tables.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from torch import Tensor

from ncpipe.config.loss_specs import is_plain, smoothing_of
from ncpipe.config.run import Run
from ncpipe.config.sources.next_tokens import MarkovData
from ncpipe.config.study import call, mistake, mistake_of
from ncpipe.datasets.prepared import TagSplit, VectorSplit
from ncpipe.datasets.stored import read_facts
from ncpipe.features.extraction import Features
from ncpipe.features.layer_samples import Trained, measure_all_tokens, measure_samples
from ncpipe.features.objective import fit_of
from ncpipe.features.own_metrics import own_measurements
from ncpipe.metrics.catalogue import MINORITY, one_of_a_spectrum, series_name
from ncpipe.metrics.class_sizes import metrics_by_size, size_groups
from ncpipe.metrics.geometry import simplex_fits, unit_rows
from ncpipe.metrics.losses import logits_of, unregularised_loss
from ncpipe.metrics.regression import measure_vectors
from ncpipe.metrics.table import (
    LAST_LAYER,
    MEANS_SPECTRUM,
    OF_SAMPLES,
    OF_STATISTICS,
    OF_WEIGHT,
    TEST,
    TRAIN,
    WEIGHTS,
    Measurement,
    measure_layer,
    measure_matrix,
    measure_tags,
    measure_weights,
    rows_of,
    values_of,
)
from ncpipe.models.network import INNER
from ncpipe.models.penalties import head_input_strength
from ncpipe.system.artifacts import PREPARED
from ncpipe.system.errors import InputError
from ncpipe.theory.gap import ROUNDING, Gap, Objective, TrainedState, gap_to_optimum
from ncpipe.theory.regression import regression_optimum

PENALTY = ("rule", "value", "last_layer", "biases", "scope")  # its keys that are columns of runs.csv
OWN_LOOP = "own loop"  # in place of what only a packaged run is known by


def measure_run(trained: Trained) -> Iterator[Measurement]:
    """Yield every metric of a finished run."""
    run, features = trained.run, trained.features
    yield from _measure(features, trained.weights)
    yield from own_measurements(run, features, trained)
    yield from measure_samples(trained)
    if run.spec.training:
        return
    yield from measure_all_tokens(trained)
    if run.spec.data.targets == "vectors":
        yield from _of_features_model(run, features, trained.row)
        return
    yield from terms_of(run.depth, trained.row)
    yield from _by_size(run, features)
    yield from ranks_of(features)
    yield from _of_tokens(run, features)


def _measure(features: Features, state: dict[str, Tensor]) -> Iterator[Measurement]:
    given = {name: (split.inputs, split.labels) for name, split in features.splits()}
    if isinstance(features.train, VectorSplit):
        of_rows = measure_tags if isinstance(features.train, TagSplit) else measure_vectors
        yield from of_rows(given, features.weight, features.bias)
    if features.layers:
        yield from measure_weights(features.weight)
    for name, matrix in state.items():
        if matrix.dim() == 2 and features.metadata.roles.get(name) in INNER:
            rows = measure_matrix(name.removesuffix(".weight"), matrix)
            yield from (row for row in rows if not one_of_a_spectrum(row.metric))
    for name, splits in features.layers.items():
        train = splits["train"].statistics
        if name not in features.metadata.positions:
            yield from rows_of(name, TRAIN, values_of(MEANS_SPECTRUM, statistics=train))
            continue
        weight = features.weight if name == LAST_LAYER else None
        for split, layer in splits.items():
            yield from measure_layer(name, split, layer.statistics, layer.samples, train, weight)


def last_layer_metrics(run: Run, features: Features, names: Sequence[str], key: str) -> dict[str, float]:
    """Return metrics of the last layer that need no loss, by `catalogue.series_name`.

    key: what a mistake in the names is called by.
    """
    measured = [*_measure(features, {}), *own_measurements(run, features)]
    for name in names:
        if not any(row.metric == name for row in measured):
            raise InputError(f"{key}: {name} is none of the last layer's")
    return {series_name(row.split, row.metric): row.value for row in measured if row.metric in names}


def layer_metrics(features: Features, names: Collection[str]) -> dict[str, dict[str, float]]:
    """Return metrics of each layer that has them, by the layer, then by `catalogue.series_name`."""
    layers: dict[str, dict[str, float]] = {}
    for row in _measure(features, {}):
        if row.metric in names and row.split != WEIGHTS:
            layers.setdefault(row.layer, {})[series_name(row.split, row.metric)] = row.value
    return layers


def terms_of(depth: int, run: Mapping[str, Any]) -> Iterator[Measurement]:
    """Yield the gap to L*_GUFM and its parts as metrics, so that they get means, slopes and intervals."""
    for metric in ("loss_gap", "gap_gufm", "gap_fit"):
        yield Measurement(LAST_LAYER, TRAIN, metric, run[metric])
    for metric in ("gap_last_penalty", "inner_penalty"):
        yield Measurement(LAST_LAYER, WEIGHTS, metric, run[metric])
    yield Measurement(LAST_LAYER, WEIGHTS, "inner_penalty_times_depth", depth * run["inner_penalty"])


def _of_features_model(run: Run, features: Features, description: Mapping[str, Any]) -> Iterator[Measurement]:
    """Yield the penalty of inner layers, and the gap to the features model's optimum where features decay.

    The features that enter the last layer, and it, are a point of that model: |H|^2 has the decay lambda_H/N
    there. Raises InputError if its loss is below the optimum, beyond rounding.
    """
    inner = description["inner_penalty"]
    strength = head_input_strength(run.spec, run.depth)
    decay = run.spec.penalty.last_strength(run.depth)
    if run.spec.loss_name == "mse" and strength and decay and not run.spec.model.has_head:
        train, bias = features.train, features.bias
        mean = 0.0 if bias is None else train.labels.double().mean(0)
        centred = train.labels.double() - mean
        moment = centred.T @ centred / len(train)
        best = regression_optimum(moment, decay, len(train) * strength, features.weight.shape[1]).loss
        of_features = strength / 2 * float(train.inputs.square().sum())
        reached = description["fit"] + description["last_penalty"] + of_features
        if reached - best < -ROUNDING * max(1.0, reached):
            raise InputError(
                f"{run.name}: fit and penalties of the last layer and its features are {reached:.12g}, "
                f"{best - reached:.3g} below the least that is possible, {best:.12g}; an error in theory or "
                "code, or features of another network"
            )
        yield Measurement(LAST_LAYER, TRAIN, "ufm_gap", reached - best)
    yield Measurement(LAST_LAYER, WEIGHTS, "inner_penalty", inner)
    yield Measurement(LAST_LAYER, WEIGHTS, "inner_penalty_times_depth", run.depth * inner)


def _of_tokens(run: Run, features: Features) -> Iterator[Measurement]:
    """Yield the metrics of next tokens, for any K, and the loss above the entropy rate where it is known."""
    if run.spec.data.kind != "next_tokens":
        return
    if simplex_fits(*features.weight.shape):  # else they are among the others
        many = [family for family in (*OF_STATISTICS, *OF_SAMPLES) if family.many]
        for split, seen in features.layers[LAST_LAYER].items():
            values = values_of(many, statistics=seen.statistics, weight=features.weight)
            yield from rows_of(LAST_LAYER, split, values)
        of_weight = values_of([family for family in OF_WEIGHT if family.many], weight=features.weight)
        yield from rows_of(LAST_LAYER, WEIGHTS, of_weight)
    if isinstance(run.spec.data, MarkovData) and run.spec.loss == "ce":
        least = read_facts(PREPARED / run.data)["facts"]["least_loss"]
        for split, samples in features.splits():
            layer = (features.weight, features.bias)
            loss = unregularised_loss(samples.inputs, samples.labels, *layer, "ce")
            yield Measurement(LAST_LAYER, split, "excess_loss", loss - least)


def ranks_of(features: Features) -> Iterator[Measurement]:
    """Yield the largest distance of a decayed matrix from rank K, relative to its size and to its bound."""
    if ranks := [rank for rank in features.ranks.values() if rank.distance]:  # a bound of 0 leaves none
        far = max(rank.distance / rank.size for rank in ranks)
        yield Measurement(LAST_LAYER, WEIGHTS, "rank_distance", far)
        share = max(rank.distance / rank.bound for rank in ranks)
        yield Measurement(LAST_LAYER, WEIGHTS, "rank_bound_share", share)


def _by_size(run: Run, features: Features) -> Iterator[Measurement]:
    """Yield the metrics of frequent and of rare classes, where the data have such."""
    if (imbalance := run.spec.data.imbalance) is None:
        return
    weight, bias, layer = features.weight, features.bias, features.layers[LAST_LAYER]
    if imbalance.majority is not None:
        values = values_of(MINORITY, weight=weight, majority=imbalance.majority)
        yield from rows_of(LAST_LAYER, WEIGHTS, values)
    groups, counts = size_groups(len(weight), imbalance.majority), layer[TRAIN].statistics.counts
    for name, split in features.splits():
        wrong = split.misses(logits_of(split.inputs, weight, bias))
        values = metrics_by_size(groups, counts, layer[name].statistics, weight, wrong, split.labels)
        yield from rows_of(LAST_LAYER, name, values)


GRAM_COLUMNS = ("matrix", "row", "column", "value")  # of `gram_rows`


def gram_rows(features: Features) -> Iterator[dict[str, Any]]:
    """Yield the cosines between the last layer's centred class means, and between them and the rows of W."""
    if not features.layers:
        return
    means = unit_rows(features.layers[LAST_LAYER]["train"].statistics.centred_means)
    rows = unit_rows(features.weight)
    for matrix, cosines in (("means", means @ means.T), ("duality", rows @ means.T)):
        for i, line in enumerate(cosines.tolist()):
            yield from (dict(zip(GRAM_COLUMNS, (matrix, i, j, v), strict=True)) for j, v in enumerate(line))


def _beyond_the_bound(run: Run, frozen: bool = False) -> str:
    """Return why the GUFM's optimum is no bound for a run; '' if it is one.

    frozen: whether the last layer's weights are not learned.
    """
    name = run.spec.loss_name
    if run.spec.data.targets != "classes":
        return f"targets that are {run.spec.data.targets}"
    if run.spec.data.kind == "next_tokens":
        return "next tokens: classes are not balanced, and equal contexts have several labels"
    if name != "ce" and not is_plain(run.spec.loss):
        return "smoothed labels under squared error" if name == "mse" else f"the loss {name}"
    return "a fixed classifier" if frozen or run.spec.model.has_fixed_classifier else ""


def describe(run: Run, features: Features, outcome: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's row: what it is, how it ended, and its objective, gap and errors (float64).

    outcome: `finished` and `diverged_at_epoch` of its run.json.
    """
    if run.spec.training:
        return _describe_own(run.spec.training.name, features, outcome)
    train, objective = features.train, objective_of(run, features)
    reached = TrainedState(
        "mse" if run.spec.loss_name == "mse" else "ce",  # any other is beyond the bound
        objective,
        train.inputs,
        train.labels,
        features.weight,
        run.spec.model.last_bias,
        run.spec.penalty.last_strength(run.depth),
        features.metadata.bounded,
        _beyond_the_bound(run, features.metadata.roles.get("last.weight") == "frozen"),
        smoothing_of(run.spec.loss),
    )
    return {
        "architecture": run.spec.model.architecture,
        "norm": run.spec.model.norm,
        "initialisation": run.spec.start or run.spec.model.initialisation,
        "source": run.spec.data.source,
        "loss_name": run.spec.loss_name,
        "last_bias": run.spec.model.last_bias,
        **{f"penalty_{key}": getattr(run.spec.penalty, key) for key in PENALTY},
        "finished": outcome["finished"],
        "diverged_at_epoch": outcome["diverged_at_epoch"],
        "last_strength": run.spec.penalty.last_strength(run.depth),
        "loss": objective.loss,
        "gradient_norm": features.gradient_norm,
        **asdict(objective),
        **asdict(gap_to_optimum(run.name, reached)),
        **_errors(features),
    }


def objective_of(run: Run, features: Features) -> Objective:
    """Return a run's regularised loss on its training set, by its terms."""
    fit = fit_of(run, features.train, features.weight, features.bias)
    return Objective(fit, features.last_penalty, features.inner_penalty)


def study_columns(trained: Trained, taken: Collection[str]) -> dict[str, Any]:
    """Return a run's values in the columns that RUN_COLUMNS of study.py adds to runs.csv.

    taken: the columns that exist already. Raises InputError for one of these, for a dict without the columns
    that it has to have, and for a value that is no number, text, truth value or None.
    """
    row: dict[str, Any] = {}
    for key, function in trained.run.study.run_columns.items():
        names = key if isinstance(key, tuple) else (key,)
        if known := [name for name in names if name in taken]:
            problem = f"the column {known[0]!r} exists already; take another name"
            raise mistake("RUN_COLUMNS", problem)
        result = call(function, trained)
        values = result if isinstance(key, tuple) else {key: result}
        if not isinstance(values, Mapping) or values.keys() != {*names}:
            kind = f"{type(result).__name__} for {trained.run.name}"
            raise mistake_of(function, f"gives {kind}; return a dict with {', '.join(names)}")
        for name in names:
            value = values[name]
            value = value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
            if not (value is None or isinstance(value, bool | int | float | str)):
                kind = f"{type(value).__name__} for {trained.run.name}"
                raise mistake_of(function, f"gives {kind}; return a number, a text or None")
            row[name] = value
    return row


def _describe_own(name: str, features: Features, outcome: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a run that a loop of study.py trained, whose objective nothing here knows."""
    unknown = (
        *("penalty_value", "penalty_last_layer", "last_strength", "loss", "gradient_norm"),
        *("fit", "last_penalty", "inner_penalty"),
    )
    return {
        "architecture": name,
        "norm": "none",
        "source": "own loaders",
        "last_bias": features.bias is not None,
        "penalty_biases": False,
        **dict.fromkeys(("initialisation", "loss_name", "penalty_rule", "penalty_scope"), OWN_LOOP),
        "finished": outcome["finished"],
        "diverged_at_epoch": outcome["diverged_at_epoch"],
        **dict.fromkeys(unknown, math.nan),
        **asdict(Gap(OWN_LOOP, "", *[math.nan] * 5)),
        **_errors(features),
    }


def _errors(features: Features) -> dict[str, float]:
    """Return the shares of wrong predictions; NaN of no split, and where the targets are vectors."""
    errors = {f"{name}_error": math.nan for name in (TRAIN, TEST)}
    for name, split in features.splits():
        wrong = split.misses(logits_of(split.inputs, features.weight, features.bias))
        errors[f"{name}_error"] = wrong.double().mean().item()
    return errors
