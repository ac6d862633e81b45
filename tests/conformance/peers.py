"""How packages do on the conformance suite: prints the tables of docs/conformance_scores.md.

Packages that are not installed are left out.

uv run --group peers python tests/conformance/peers.py

Only what a package defines as docs/metrics.md does is asked of it, in float64, with what its functions leave
to the caller given as needed: the mean of the class means as centre, centred means of length 1. MONAI's two
indicators are compared with their own definitions, in 120 digits.

N  samples    K  classes    d  width
"""

import importlib
import importlib.metadata
import math
import warnings
from collections.abc import Callable, Iterator
from functools import cache, partial

import numpy as np
import torch
from exact_metrics import Layer, average, length, minus, mp, mpf, singular_values, unit
from make_expected import layer_of

from ncpipe.metrics.conformance import suite
from ncpipe.metrics.conformance.suite import KINDS, Verdict
from ncpipe.metrics.table import measure

Values = Iterator[tuple[str, str, Callable[[], float]]]  # split, metric and how to compute it


class Case:
    """A file's arrays in float64."""

    def __init__(self, case: suite.Case) -> None:
        arrays = {name: torch.from_numpy(array.astype("f8")) for name, array in case.arrays.items()}
        self.name, self.arrays = case.name, arrays
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
    for row in measure(*arrays):
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


def torchmetrics(case: Case) -> Values:
    """Calinski-Harabasz of the training split is ((N - K)/(K - 1))/NC1 where classes are of one size."""
    score = importlib.import_module("torchmetrics.functional.clustering").calinski_harabasz_score
    yield from _by_calinski(case, lambda h, y: float(score(h, y)))


def scikit_learn(case: Case) -> Values:
    score = importlib.import_module("sklearn.metrics").calinski_harabasz_score
    yield from _by_calinski(case, lambda h, y: float(score(h.numpy(), y.numpy())))


def _by_calinski(case: Case, score: Callable[[torch.Tensor, torch.Tensor], float]) -> Values:
    features, labels = case.splits["train"]
    if len(labels.bincount().unique()) == 1:
        factor = (len(labels) - case.classes) / max(1, case.classes - 1)

        def compute() -> float:
            found = score(features, labels)
            return factor / found if found else math.inf

        yield "train", "nc1_trace_ratio", compute


def monai(case: Case) -> Values:
    """Its indicators under its own names: 0 to 1, higher is more collapsed."""
    compute = importlib.import_module("monai.metrics.embedding_collapse").compute_embedding_collapse
    features, labels = case.splits["train"]
    for name in ("centroid_similarity", "effective_rank"):
        found = partial(compute, features, labels, include_indicators=[name], reduction="none")
        key = name if name == "centroid_similarity" else "effective_rank_score"
        yield "train", key, lambda found=found, key=key: float(found()[key])


@cache
def monai_answers(name: str) -> dict[tuple[str, str], tuple[str, str]]:
    """What MONAI defines: (1 + mean cosine of class means)/2, and 1 - exp(entropy of s/sum s)/min(N - 1, d).

    s are the singular values of the features less their mean; class means are not centred.
    """
    layer = layer_of(name)
    found = {"effective_rank_score": _dimensional_collapse(layer)}
    if max(layer.labels) > 0:
        found["centroid_similarity"] = _similarity(layer)
    return {("train", key): (mp.nstr(value, 25), "0") for key, value in found.items()}


def _similarity(layer: Layer) -> mpf:
    count = max(layer.labels) + 1
    groups: list[list[list[mpf]]] = [[] for _ in range(count)]
    for h, y in zip(layer.features, layer.labels, strict=True):
        groups[y].append(h)
    zero = [mpf(0)] * len(layer.features[0])
    units = [unit(average(rows)) or zero for rows in groups]
    # The mean over pairs of u_i u_j is (|sum u|^2 - sum |u|^2)/(K (K - 1)).
    total = [mp.fsum(column) for column in zip(*units, strict=True)]
    squares = mp.fsum(mp.fdot(u, u) for u in units)
    found = (1 + (mp.fdot(total, total) - squares) / (count * (count - 1))) / 2
    return found if found > mpf(10) ** -100 else mpf(0)  # antipodal means


def _dimensional_collapse(layer: Layer) -> mpf:
    centre = average(layer.features)
    values = singular_values([minus(h, centre) for h in layer.features])
    total = mp.fsum(values)
    if total <= mpf(10) ** -40 * max(map(length, layer.features)):
        return mpf(1)
    rank = mp.exp(-mp.fsum(s / total * mp.log(s / total) for s in values if s))
    found = 1 - rank / min(len(layer.features) - 1, len(centre))
    return found if found > mpf(10) ** -100 else mpf(0)  # equal singular values


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
    "torchmetrics": torchmetrics,
    "sklearn": scikit_learn,
    "monai": monai,
}
# What the package's version is called, and where there is none but in its setup.py.
DISTRIBUTIONS = {"sklearn": "scikit-learn"}
FROM_REPOSITORY = {"neural_collapse": "0.1", "nc_toolbox": "0.0.8"}


@cache
def verdicts(package: str) -> list[Verdict]:
    """Every value that a package was asked for, by file."""
    found = []
    for case in suite.cases():
        if case.has_one_class and package in ("ncpipe", "monai"):
            continue  # ours refuses, which test_conformance.py holds; MONAI's rank does not compare classes
        if package == "monai":
            case = suite.Case(case.name, case.arrays, monai_answers(case.name))
        for split, metric, compute in PACKAGES[package](Case(case)):
            if (split, metric) not in case.answers:
                continue
            try:
                value, reason = compute(), ""
            except Exception as error:  # theirs
                value, reason = None, type(error).__name__
            found.append(Verdict(case, split, metric, value, reason))
    return found


def by_kind(packages: list[str]) -> Iterator[tuple[str, list[str]]]:
    """A kind of files and a cell for each package, with the sums at last."""
    names = suite.cases()
    for kind in KINDS:
        count = sum(case.kind == kind for case in names)
        yield (
            f"{kind} ({count})",
            [cell([v for v in verdicts(name) if v.case.kind == kind]) for name in packages],
        )
    yield f"all ({len(names)})", [cell(verdicts(name)) for name in packages]


def cell(own: list[Verdict]) -> str:
    exact, rough = sum(v.conforms for v in own), sum(v.roughly for v in own)
    if not own:
        return "–"
    return f"{exact} of {len(own)}" + (f", {rough} to 1e-3" if rough > exact else "")


def by_package(packages: list[str]) -> Iterator[tuple[str, list[str]]]:
    """A package and its version, score and the smallest input that breaks it, if any."""
    for name in packages:
        own = verdicts(name)
        wrong = sorted((v for v in own if not v.roughly), key=lambda v: (v.size, v.case.name, v.metric))
        yield name, [version(name), cell(own), breaks(wrong[0]) if wrong else "none"]


def breaks(verdict: Verdict) -> str:
    shape = " × ".join(map(str, verdict.case.arrays["features"].shape))
    found = verdict.reason or f"{verdict.found:.3g}"
    exact = "undefined" if verdict.case.has_one_class else f"{float(verdict.exact):.3g}"
    return f"`{verdict.case.name}` ({shape}): `{verdict.metric}` {found}, exactly {exact}"


def version(name: str) -> str:
    if name in FROM_REPOSITORY:
        return FROM_REPOSITORY[name]
    return importlib.metadata.version(DISTRIBUTIONS.get(name, name))


def main() -> None:
    available = []
    for name in PACKAGES:
        try:
            importlib.import_module(name)
            available.append(name)
        except ImportError as error:
            print(f"left out: {name} ({error})")
    columns = " | ".join(f"`{name}`" for name in available)
    print(f"| files | {columns} |\n|---|{'---|' * len(available)}")
    for kind, cells in by_kind(available):
        print(f"| {kind} | {' | '.join(cells)} |")
    print("\n| package | version | values that conform | smallest input that breaks it |\n|---|---|---|---|")
    for name, cells in by_package(available):
        print(f"| `{name}` | {' | '.join(cells)} |")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    main()
