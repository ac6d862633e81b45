"""How packages do on the conformance suite: the table of docs/metrics.md, for those that can be imported.

uv run --group peers python tests/conformance/peers.py

Only what a package defines as docs/metrics.md does is asked of it, in float64, with what its functions leave
to the caller given as needed: the mean of the class means as centre, centred means of length 1.

K  classes    d  width
"""

import importlib
import json
import math
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch

from ncpipe.metrics.conformance.suite import EXPECTED, KINDS, ROUGHLY, conforms
from ncpipe.metrics.conformance.suite import FEATURES as FOLDER
from ncpipe.metrics.table import measure_arrays

ANSWERS = json.loads(EXPECTED.read_text())
Values = Iterator[tuple[str, str, Callable[[], float]]]  # split, metric and how to compute it


class Case:
    """A file's arrays in float64."""

    def __init__(self, path: Path) -> None:
        with np.load(path) as file:
            arrays = {name: torch.from_numpy(array.astype("f8")) for name, array in file.items()}
        self.arrays = arrays
        self.splits = {"train": (arrays["features"], arrays["labels"].long())}
        if "test_features" in arrays:
            self.splits["test"] = arrays["test_features"], arrays["test_labels"].long()
        self.classes = int(arrays["labels"].max()) + 1
        self.weight = arrays.get("weight")
        self.bias = arrays.get("bias", torch.zeros(self.classes, dtype=torch.float64))
        self.has_bias = "bias" in arrays


def ncpipe(case: Case) -> Values:
    names = ("features", "labels", "weight", "bias", "test_features", "test_labels")
    arrays = [case.arrays.get(name) for name in names]
    arrays[1], arrays[5] = (None if a is None else a.long() for a in (arrays[1], arrays[5]))
    for row in measure_arrays(*arrays):
        yield row.split, row.metric, lambda value=row.value: value


def kowalski(case: Case) -> Values:
    peer, by_class = importlib.import_module("kowalski.neural_collapse"), importlib.import_module("kowalski")
    for split, (features, labels) in case.splits.items():
        parts = by_class.to_per_class_list(features, labels)
        yield split, "cdnv", lambda p=parts: float(peer.class_distance_normalized_variance(p))


def neural_collapse(case: Case) -> Values:
    accumulate, measure = (
        importlib.import_module(f"neural_collapse.{name}") for name in ("accumulate", "measure")
    )
    double = {"dtype": torch.float64}
    shape = case.classes, case.splits["train"][0].shape[1]
    train = accumulate.MeanAccumulator(*shape, **double)
    train.accumulate(*case.splits["train"])
    for split, (features, labels) in case.splits.items():
        means = accumulate.MeanAccumulator(*shape, **double)
        means.accumulate(features, labels)
        centres, centre = means.compute()
        within = accumulate.CovarAccumulator(*shape, M=centres, **double)
        within.accumulate(features, labels, centres)
        spread = accumulate.VarNormAccumulator(*shape, M=centres, **double)
        spread.accumulate(features, labels, centres)
        unit = (centres - centre) / (centres - centre).norm(dim=1, keepdim=True)
        found = within.compute(), centres, centre
        yield split, "nc1_pinv", lambda f=found: measure.covariance_ratio(*f, "pinv")
        yield split, "nc1_trace_ratio", lambda f=found: measure.covariance_ratio(*f, "quotient")
        variances = spread.compute()[0]
        yield split, "cdnv", lambda v=variances, m=centres: measure.variability_cdnv(v, m)
        simplex = shape[0] <= shape[1] + 1  # else undefined by docs/metrics.md, a number there
        if simplex:
            yield split, "nc2_means", lambda u=unit: measure.simplex_etf_error(u)
        if simplex and case.weight is not None:
            yield split, "nc3_duality", lambda u=unit: measure.self_duality_error(case.weight, u)
        if case.weight is not None and not case.has_bias:
            decisions = accumulate.DecAccumulator(*shape, M=train.compute()[0], W=case.weight, **double)
            decisions.accumulate(features, labels, case.weight, train.compute()[0])
            yield split, "nc4_mismatch", partial(_share, len(labels), measure.clf_ncc_agreement, decisions)


def nc_toolbox(case: Case) -> Values:
    peer = importlib.import_module("nc_toolbox")
    train = peer.class_embedding_means(*(t.numpy() for t in case.splits["train"]))
    for split, tensors in case.splits.items():
        features, labels = (t.numpy() for t in tensors)
        means = peer.class_embedding_means(features, labels)
        found = features, labels, means, means.mean(0)
        counts = np.bincount(labels)
        variances = peer.class_embedding_variances(features, labels, means) * (counts - 1) / counts  # over n
        yield split, "nc1_pinv", lambda f=found: peer.nc1_strong(*f)
        yield split, "nc1_trace_ratio", lambda f=found: _ratio(*peer.nc1_weak(*f))
        if counts.min() > 1:
            yield split, "cdnv", lambda m=means, v=variances: peer.nc1_cdnv(m, v)
        if case.weight is not None:
            classifier = case.weight.numpy(), case.bias.numpy(), train
            decide = partial(peer.nc4_classifier_agreement, features, *classifier)
            yield split, "nc4_mismatch", partial(_share, len(labels), decide)


def _ratio(between: float, within: float) -> float:
    return within / between if between else math.inf


def _share(samples: int, agreement: Callable[..., float], *arguments: object) -> float:
    """Disagreement, without the rounding of 1 - agreement."""
    return round((1 - agreement(*arguments)) * samples) / samples


PACKAGES = {
    "ncpipe": ncpipe,
    "kowalski": kowalski,
    "neural_collapse": neural_collapse,
    "nc_toolbox": nc_toolbox,
}


def tally(package: Callable[[Case], Values], paths: list[Path]) -> tuple[int, int, int]:
    """Values asked for, those that conform, and those right to 1e-3."""
    asked = exact = rough = 0
    for path in paths:
        answers = ANSWERS[path.stem]
        for split, metric, compute in package(Case(path)):
            try:
                found = compute()
            except (ArithmeticError, RuntimeError, ValueError):
                found = None  # it raised
            asked += 1
            exact += found is not None and conforms(metric, found, *answers[split][metric])
            rough += found is not None and conforms(metric, found, *answers[split][metric], ROUGHLY)
    return asked, exact, rough


def groups() -> dict[str, list[Path]]:
    """Files by group: every file in the first whose beginnings it has."""
    found: dict[str, list[Path]] = {group: [] for group in KINDS}
    for path in sorted(FOLDER.glob("*.npz")):
        found[next(g for g, begin in KINDS.items() if path.stem.startswith(begin))].append(path)
    return found


def rows(packages: list[str]) -> Iterator[tuple[str, list[str]]]:
    """A group of files and a cell for each package, with the sums at last."""
    sums = dict.fromkeys(packages, (0, 0, 0))
    for group, paths in groups().items():
        counted = {name: tally(PACKAGES[name], paths) for name in packages}
        for name, counts in counted.items():
            sums[name] = tuple(a + b for a, b in zip(sums[name], counts, strict=True))
        yield f"{group} ({len(paths)})", [cell(*counted[name]) for name in packages]
    yield f"all ({len(ANSWERS)})", [cell(*sums[name]) for name in packages]


def main() -> None:
    available = []
    for name in PACKAGES:
        try:
            importlib.import_module(name)
            available.append(name)
        except ImportError as error:
            print(f"left out: {name} ({error})")
    print(f"| files | {' | '.join(available)} |\n|---|{'---|' * len(available)}")
    for group, cells in rows(available):
        print(f"| {group} | {' | '.join(cells)} |")


def cell(asked: int, exact: int, rough: int) -> str:
    return f"{exact} of {asked}" + (f", {rough} to 1e-3" if rough > exact else "")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    main()
