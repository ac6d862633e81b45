"""All metrics: those beside their functions, and those that a run or a pass over tokens alone knows.

Reports, rounding floors, power laws, guides, figure titles and docs/metric_tables.md follow from them.
A new metric is a function with its entry (`ncpipe.metrics.entry`) in a module that is named here. No torch is
imported, because tables and figures read this too.
"""

import re
from types import MappingProxyType

from ncpipe.metrics import (
    class_sizes,
    collapse,
    few_shot,
    geometry,
    nrc,
    outliers,
    ranks,
    samples,
    tags,
    token_collapse,
    uniformity,
)
from ncpipe.metrics.entry import LAST, WEIGHTS, WP24, Family, Metric, families_of

__all__ = ["CATALOGUE", "Metric"]
GAP = "[theory.md](theory.md)"
# Headings in the order of pages and reports.
GROUPS = (
    "NC0", "NC1", "NC2", "GNC2", "NC3", "UNC3", "NC4", "test", "margin", "norm", "rank", "singular values",
    "minority", "transfer", "NRC1", "NRC2", "NRC3", "NRC4", "tag average", "error", "outliers", "NC5",
    "count",
)  # fmt: skip


def _entries(families: tuple[Family, ...]) -> tuple[Metric, ...]:
    entries = [entry for family in families for entry in family.entries]
    return tuple(sorted(entries, key=lambda entry: GROUPS.index(entry.group)))


# What is computed of every layer and classifier, in the order in which it is.
FAMILIES = families_of((samples, geometry, collapse, uniformity, ranks), GROUPS)
ENTRIES = _entries(FAMILIES)
# Of the pipeline's runs alone, which know their loss and penalty.
GAPS = (
    Metric(
        "loss_gap", "gap", "0", "regularised loss above the optimum of the unconstrained features model",
        "regularised loss − L*_GUFM = `gap_gufm` + `inner_penalty`", "[0, ∞)", GAP, "last, train", order=2,
        rounding="loss", label="loss gap", headline=True,
    ),
    Metric(
        "gap_gufm", "gap", "0", "part of the loss gap that the features and the last layer have",
        "`gap_fit` + `gap_last_penalty`", "[0, ∞)", GAP, "last, train", order=2, rounding="loss",
        label=r"gap in $h$ and $W_L$",
    ),
    Metric(
        "gap_fit", "gap", "0", "unregularised loss above the optimum's",
        "unregularised loss − that of the optimum", "ℝ", GAP, "last, train", order=1, rounding="loss",
    ),
    Metric(
        "gap_last_penalty", "gap", "0", "penalty of the last layer above the optimum's",
        "λ_L/2 ‖W‖² − that of the optimum", "ℝ", GAP, WEIGHTS, order=1, rounding="loss",
    ),
    Metric(
        "inner_penalty", "gap", "0", "penalty of all layers but the last, the rest of the loss gap",
        "λ/2 ‖·‖² of the inner matrices", "[0, ∞)", GAP, WEIGHTS, order=2, label="gap in inner layers",
    ),
    Metric(
        "inner_penalty_times_depth", "gap", "-", "inner penalty times L", "`inner_penalty` · L", "[0, ∞)",
        GAP, WEIGHTS,
    ),
)  # fmt: skip
# Of the pipeline's runs on data with `imbalance`, which says which classes are small.
MINORITY = families_of((class_sizes,), GROUPS)
MINORITIES = (*_entries(MINORITY), *class_sizes.BY_SIZE)
# Of classes that no classifier has, a value for each number of shots n: transfer_ncc_error_005 is that of 5.
FEW_SHOT = families_of((few_shot,), GROUPS)
TRANSFERS = _entries(FEW_SHOT)
# Of networks that see all tokens of a sample and predict from one (`ncpipe.metrics.token_collapse`).
SAMPLE_TOKENS = _entries(families_of((token_collapse,), GROUPS))
# Of runs with decay on all that is learned, of whose matrices the one that has most of it counts.
RANKS = (
    Metric(
        "rank_distance", "rank", "0", "distance of decayed matrices from rank K, as a share",
        "largest ‖W_l − nearest of rank K‖/‖W_l‖ of the matrices before the last layer", "[0, 1)", "ZDBGT24",
        WEIGHTS, label="distance from rank $K$",
    ),
    Metric(
        "rank_bound_share", "rank", "-", "that distance over its bound by TCV",
        "largest ‖W_l − nearest of rank K‖ λ/(√(Σ‖δ_i‖²) √(N `tcv`) + ‖G_l‖), `tcv` of what enters W_l",
        "[0, 1]", "ZDBGT24, [constants ours](theory.md)", WEIGHTS, scale="linear",
    ),
)  # fmt: skip
# Of positions whose label is the next token (`ncpipe.metrics.vocabulary`), beside ENTRIES.
TOKENS = (
    Metric(
        "classes", "count", "", "classes K: next tokens that occur often enough",
        "K, the tokens that occur at least `min_per_class` times as the next one", "2..V", WP24, LAST,
        scale="linear",
    ),
    Metric(
        "tokens", "count", "", "positions N whose next token is one of them",
        "N, the positions whose next token is one of these", "1..", "", LAST, scale="linear",
    ),
    *(
        Metric(f"left_out_{name}", "count", "", meaning, formula, "0..", "", LAST, scale="linear")
        for name, meaning, formula in (
            ("rare", "left out: next tokens that are too rare", "positions whose next token is none of them"),
            ("ignored", "left out: labels that are the ignore index", "positions with label `ignore_index`"),
            ("masked", "left out: padding", "positions before or at a token of `attention_mask` 0"),
        )
    ),
    Metric(
        "decisions", "count", "", "positions that NC4, nc3_cosine and margins are taken on",
        "positions drawn for `nc4_mismatch`, `ncc_error`, `nc3_cosine` and margins", "1..N", "", LAST,
        scale="linear",
    ),
    *(
        Metric(
            f"{metric}_{end}", "NC4", "0", f"{side} end of the 95 % interval of {metric}",
            f"{side} end of the Wilson interval at 95 % of `{metric}`", "[0, 1]", "W27", LAST, scale="linear",
        )
        for metric in ("nc4_mismatch", "ncc_error")
        for end, side in (("low", "lower"), ("high", "upper"))
    ),
)  # fmt: skip
# Of the pipeline's runs on generated language, whose best attainable loss is known.
SOURCES = (
    Metric(
        "excess_loss", "loss", "0", "cross-entropy above the entropy rate of the source",
        "mean cross-entropy in nats − mean entropy of the next token given the context that the source sees",
        "ℝ", "", "last, train and test", label="loss above entropy rate",
    ),
)  # fmt: skip
# Where the targets are vectors (`ncpipe.metrics.regression`), in place of all that needs classes.
REGRESSION_FAMILIES = families_of((nrc,), GROUPS)
REGRESSION = (
    *_entries(REGRESSION_FAMILIES),
    Metric(
        "ufm_gap", "gap", "0", "loss of last layer and features above the features model's optimum",
        "fit + λ_W/2 ‖W‖² + λ_H/(2N) Σ‖h_i‖² − its least value; with `penalty.features` alone", "[0, ∞)",
        f"ADGZR24 Thm 4.1; {GAP}", "last, train", order=2, rounding="loss", label="gap to the features model",
    ),
)  # fmt: skip
# Where a sample may have several classes (`ncpipe.metrics.tags`), beside those of samples with one.
TAG_FAMILIES = families_of((tags,), GROUPS)
TAGS = _entries(TAG_FAMILIES)
# Where there are samples of other data (`ncpipe.metrics.outliers`), a third split.
OUTLIERS = _entries(families_of((outliers,), GROUPS))
_TABLES = (
    *(ENTRIES, SAMPLE_TOKENS, TOKENS, GAPS, MINORITIES, TRANSFERS),
    *(RANKS, SOURCES, REGRESSION, TAGS, OUTLIERS),
)
CATALOGUE = MappingProxyType({metric.name: metric for table in _TABLES for metric in table})
SINGULAR = "singular_"  # names of metrics that are one value of a spectrum each begin so
NUMBERED = re.compile(rf"^({SINGULAR}\w+|transfer_\w+)_\d+$")
# Of what series of these splits are called.
SUFFIXES = {"test": "_test", "true_labels": "_true_labels", "target": "_target", "ood": "_ood"}
UNKNOWN = Metric("", "other", "-", "", "", "", "", "")


def one_of_a_spectrum(metric: str) -> bool:
    """Return whether a name is a single singular value, of which tables for people show none."""
    return metric.startswith(SINGULAR)


def entry_of_package(name: str) -> Metric:
    """Return a metric's entry, the spectrum's for one singular value, or UNKNOWN."""
    return CATALOGUE.get(NUMBERED.sub(r"\1", name), UNKNOWN)


def series_name(split: str, metric: str) -> str:
    """Return the short name of a last-layer series: the metric, with a suffix for splits but `train`."""
    return metric + SUFFIXES.get(split, "")


def split_of(name: str) -> str:
    """Return the split of a name by `series_name`."""
    return next((split for split, suffix in SUFFIXES.items() if name.endswith(suffix)), "train")
