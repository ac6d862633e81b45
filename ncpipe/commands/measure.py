"""Stage measure: every metric of an experiment's runs, with their histories and how they ended."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from ncpipe.config.loss_specs import is_plain, smoothing_of
from ncpipe.config.params import load_params
from ncpipe.config.specs import MarkovData, Run
from ncpipe.datasets.prepared import read_prepared
from ncpipe.datasets.stored import read_facts
from ncpipe.features.files import features_at, read_features
from ncpipe.features.low_rank import low_rank_columns
from ncpipe.features.objective import fit_of
from ncpipe.features.own_metrics import Whole, own_measurements
from ncpipe.features.passes import Features
from ncpipe.metrics.catalogue import one_of_a_spectrum, series_name
from ncpipe.metrics.collapse import cdnv, nc1_trace_ratio
from ncpipe.metrics.geometry import simplex_fits, unit_rows
from ncpipe.metrics.losses import prediction_error, unregularised_loss
from ncpipe.metrics.minority import errors_by_size, minority_cosine, minority_spread
from ncpipe.metrics.statistics import class_statistics
from ncpipe.metrics.table import (
    LAST_LAYER,
    TARGET,
    TEST,
    TRAIN,
    WEIGHTS,
    Measurement,
    measure_layer,
    measure_matrix,
    measure_means,
    measure_weights,
)
from ncpipe.metrics.transfer import transfer_metrics
from ncpipe.metrics.uniformity import uniform_duality, weight_uniformity
from ncpipe.metrics.vocabulary import many_class_metrics
from ncpipe.models.network import INNER
from ncpipe.runs.fingerprint import RUN_RECORD, RunFingerprint, fingerprints_of
from ncpipe.runs.grid import read_grid
from ncpipe.runs.run_folder import read_history, read_state
from ncpipe.system.artifacts import FEATURES, METRICS, PREPARED, RUNS, publish_folder, read_json
from ncpipe.system.errors import InputError
from ncpipe.theory.gap import Objective, Reached, gap_to_optimum
from ncpipe.training.device import fix_order_of_sums

Rows = dict[str, list[dict[str, Any]]]  # by table


def measure(
    experiment: str,
    each: Callable[..., Iterable[Rows]] = map,
) -> None:
    """Features and histories -> data/metrics/EXPERIMENT/{measurements,places,runs,history,gram}.csv.

    each: calls a function for each run, as `map` does; no run needs another.
    """
    params = load_params()
    tables: Rows = {name: [] for name in ("measurements", "runs", "history", "gram", "places")}
    runs = read_grid(params, experiment)
    fingerprints = fingerprints_of(runs, params.compute)
    for rows in each(measure_run, fingerprints):
        for name, own in rows.items():
            tables[name] += own
    tables["places"] = [dict(row) for row in dict.fromkeys(tuple(row.items()) for row in tables["places"])]
    with publish_folder(METRICS / experiment) as folder:
        for name, own in tables.items():
            pd.DataFrame(own).to_csv(folder / f"{name}.csv", index=False, lineterminator="\n")


def measure_run(fingerprint: RunFingerprint) -> Rows:
    """The rows of one run, by table."""
    fix_order_of_sums()  # as where features were extracted: the same bytes in any process
    torch.set_num_threads(fingerprint.compute.threads)
    torch.set_flush_denormal(False)  # as it is from the start, also after features were extracted here
    run, key = fingerprint.run, fingerprint.run.columns
    place = {column: value for column, value in key.items() if column != "seed"}
    features = read_features((FEATURES / run.path).with_suffix(".safetensors"))
    state = read_state(RUNS / run.path, fingerprint)
    description = describe(run, features)
    measured = [
        *_measure(features, state),
        *own_measurements(run, features, Whole(state, lambda: read_prepared(PREPARED / run.data))),
        *terms_of(run.depth, description),
        *_by_size(run, features),
        *_of_target(run, features),
        *ranks_of(features),
        *_of_tokens(run, features),
    ]
    history = read_history(RUNS / run.path)
    return {
        "measurements": [key | asdict(row) for row in measured],
        "runs": [key | description],
        "history": [key | row | _on_the_way(run, row["epoch"]) for row in history],
        "gram": [key | row for row in _gram(features)],
        "places": [
            place | {"layer": layer, "position": at} for layer, at in features.metadata.positions.items()
        ],
    }


def _measure(features: Features, state: dict[str, Tensor]) -> Iterator[Measurement]:
    yield from measure_weights(features.weight)
    for name, matrix in state.items():
        if matrix.dim() == 2 and features.metadata.roles.get(name) in INNER:
            yield from _ranks(measure_matrix(name.removesuffix(".weight"), matrix))
    for name, splits in features.layers.items():
        train = splits["train"].statistics
        if name not in features.metadata.positions:
            yield from measure_means(name, "train", train)
            continue
        weight = features.weight if name == LAST_LAYER else None
        for split, layer in splits.items():
            yield from measure_layer(name, split, layer.statistics, layer.samples, train, weight)


def _on_the_way(run: Run, epoch: float) -> dict[str, float]:
    """The metrics that `history` names, by `catalogue.series_name`; none of an epoch that was not kept."""
    if run.spec.history is None or epoch not in run.spec.snapshot_epochs():
        return {}
    kept = read_features(features_at(FEATURES / run.path, int(epoch)))
    measured = [*_measure(kept, {}), *own_measurements(run, kept, None)]
    for name in run.spec.history.metrics:
        if not any(row.metric == name for row in measured):
            raise InputError(
                f"experiments.{run.experiment}.history.metrics: {name} is none of the last layer's"
            )
    asked = [row for row in measured if row.metric in run.spec.history.metrics]
    return {series_name(row.split, row.metric): row.value for row in asked}


def terms_of(depth: int, run: dict[str, Any]) -> Iterator[Measurement]:
    """The gap to L*_GUFM and its parts as metrics, so that they get means, slopes and intervals by depth."""
    for metric in ("loss_gap", "gap_gufm", "gap_fit"):
        yield Measurement(LAST_LAYER, TRAIN, metric, run[metric])
    for metric in ("gap_last_penalty", "inner_penalty"):
        yield Measurement(LAST_LAYER, WEIGHTS, metric, run[metric])
    yield Measurement(LAST_LAYER, WEIGHTS, "inner_penalty_times_depth", depth * run["inner_penalty"])


def _of_tokens(run: Run, features: Features) -> Iterator[Measurement]:
    """What is asked of next tokens whatever K, and the loss above the entropy rate where that is known."""
    if run.spec.data.kind != "next_tokens":
        return
    if simplex_fits(*features.weight.shape):  # else they are among the others
        for split, seen in features.layers[LAST_LAYER].items():
            found = many_class_metrics(seen.statistics) | uniform_duality(seen.statistics, features.weight)
            yield from (Measurement(LAST_LAYER, split, metric, value) for metric, value in found.items())
        for metric, value in weight_uniformity(features.weight).items():
            yield Measurement(LAST_LAYER, WEIGHTS, metric, value)
    if isinstance(run.spec.data, MarkovData) and run.spec.loss == "ce":
        least = read_facts(PREPARED / run.data)["facts"]["least_loss"]
        for split, samples in ((TRAIN, features.train), (TEST, features.test)):
            if samples is not None:
                layer = (features.weight, features.bias)
                loss = unregularised_loss(samples.inputs, samples.labels, *layer, "ce")
                yield Measurement(LAST_LAYER, split, "excess_loss", loss - least)


def ranks_of(features: Features) -> Iterator[Measurement]:
    """The largest shares that a decayed matrix has: what is beyond rank K of its size, and of its bound."""
    if ranks := [rank for rank in features.ranks.values() if rank.distance]:  # a bound of 0 leaves none
        far = max(rank.distance / rank.size for rank in ranks)
        yield Measurement(LAST_LAYER, WEIGHTS, "rank_distance", far)
        share = max(rank.distance / rank.bound for rank in ranks)
        yield Measurement(LAST_LAYER, WEIGHTS, "rank_bound_share", share)


def _by_size(run: Run, features: Features) -> Iterator[Measurement]:
    """How the small classes fare, where the data have such."""
    if run.spec.data.imbalance is None:
        return
    majority = run.spec.data.imbalance.majority
    yield Measurement(LAST_LAYER, WEIGHTS, "minority_cosine", minority_cosine(features.weight, majority))
    yield Measurement(LAST_LAYER, WEIGHTS, "minority_spread", minority_spread(features.weight, majority))
    for name, split in ((TRAIN, features.train), (TEST, features.test)):
        if split is not None:
            own = errors_by_size(split.inputs, split.labels, features.weight, features.bias, majority)
            yield from (Measurement(LAST_LAYER, name, metric, value) for metric, value in own)


def _of_target(run: Run, features: Features) -> Iterator[Measurement]:
    """How far classes that the network was not trained on are collapsed, and how a few samples tell them."""
    asked, target = run.spec.data.transfer, features.target
    if asked is None or target is None:
        return
    seen = class_statistics(target.inputs, target.labels, len(asked.target))
    yield Measurement(LAST_LAYER, TARGET, "nc1_trace_ratio", nc1_trace_ratio(seen))
    yield Measurement(LAST_LAYER, TARGET, "cdnv", cdnv(seen))
    for metric, value in transfer_metrics(
        target.inputs, target.labels, asked.shots, asked.episodes, asked.head, asked.ridge, asked.seed
    ):
        yield Measurement(LAST_LAYER, TARGET, metric, value)


def _ranks(rows: Iterable[Measurement]) -> Iterator[Measurement]:
    """Without the single singular values."""
    return (row for row in rows if not one_of_a_spectrum(row.metric))


def _gram(features: Features) -> Iterator[dict[str, Any]]:
    """Cosines between the last layer's centred class means, and between them and the rows of W."""
    means = unit_rows(features.layers[LAST_LAYER]["train"].statistics.centred_means())
    rows = unit_rows(features.weight)
    for matrix, cosines in (("means", means @ means.T), ("duality", rows @ means.T)):
        for i, line in enumerate(cosines.tolist()):
            yield from ({"matrix": matrix, "row": i, "column": j, "value": v} for j, v in enumerate(line))


def _beyond_the_bound(run: Run) -> str:
    """Why the GUFM's optimum says nothing of a run, '' if it may."""
    name = run.spec.loss_name
    if run.spec.data.kind == "next_tokens":
        return "next tokens: classes are not balanced, and equal contexts have several labels"
    if name != "ce" and not is_plain(run.spec.loss):
        return "smoothed labels under squared error" if name == "mse" else f"the loss {name}"
    return "a fixed classifier" if run.spec.model.has_fixed_classifier else ""


def describe(run: Run, features: Features) -> dict[str, Any]:
    """One run's row: what it is, how it ended, its objective, gap and errors from the features in float64."""
    outcome = read_json(RUNS / run.path / RUN_RECORD)["outcome"]
    layer = (features.weight, features.bias)
    train = features.train
    objective = Objective(fit_of(run, train, *layer), features.last_penalty, features.inner_penalty)
    reached = Reached(
        "mse" if run.spec.loss_name == "mse" else "ce",  # any other is beyond the bound
        objective,
        train.inputs,
        train.labels,
        features.weight,
        run.spec.model.last_bias,
        run.spec.penalty.last_strength(run.depth),
        features.metadata.bounded,
        _beyond_the_bound(run),
        smoothing_of(run.spec.loss),
    )
    return {
        "architecture": run.spec.model.architecture,
        "norm": run.spec.model.norm,
        "initialisation": run.spec.model.initialisation,
        "source": run.spec.data.source,
        "loss_name": run.spec.loss_name,
        "last_bias": run.spec.model.last_bias,
        "penalty_rule": run.spec.penalty.rule,
        "penalty_value": run.spec.penalty.value,
        "penalty_last_layer": run.spec.penalty.last_layer,
        "penalty_biases": run.spec.penalty.biases,
        "penalty_scope": run.spec.penalty.scope,
        "finished": outcome["finished"],
        "diverged_at_epoch": outcome["diverged_at_epoch"],
        "last_strength": run.spec.penalty.last_strength(run.depth),
        "loss": objective.loss,
        "gradient_norm": features.gradient_norm,
        **asdict(objective),
        **asdict(gap_to_optimum(run.name, reached)),
        "train_error": prediction_error(train.inputs, train.labels, *layer),
        "test_error": math.nan
        if features.test is None
        else prediction_error(features.test.inputs, features.test.labels, *layer),
        **(low_rank_columns(run, features, objective.loss) if _has_ranks(run) else {}),
    }


def _has_ranks(run: Run) -> bool:
    """Whether S24's ranks and levels are about this run: free features, or a head under squared error."""
    model = run.spec.model
    return model.has_free_features or (run.spec.loss == "mse" and model.has_head)
