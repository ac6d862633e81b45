"""Describe every metric: its property, its value at collapse, its order there and its meaning.

Printed reports, rounding floors, power laws, guides, figure titles and docs/metric_tables.md follow from it.
Adding a metric is its function, the line that emits it, and its entry here. No torch: tables and figures read
this too.

Formulas and symbols as in docs/metrics.md, which explains them.
"""

import re
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal


@dataclass(frozen=True)
class Metric:
    """name: the column `metric`. group: the property it measures, NC1 to NC4 or another heading.

    collapse: its value at collapse. meaning: one line for a printed report. formula, interval (of values),
    source and where (layers and splits): for the page, in its notation.
    scale: log for what falls as a power, linear for shares, ranks, margins.
    order: the power of the distance from collapse in which it vanishes; None where it does not.
    rounding: what it carries: `features` to that power, the `loss` of which it is a difference, or no floor
    that can be told (none). label: what figures call it, in mathtext.
    """

    name: str
    group: str
    collapse: str
    meaning: str
    formula: str
    interval: str
    source: str
    where: str
    scale: Literal["log", "linear"] = "log"
    order: int | None = None
    rounding: Literal["features", "loss", "none"] = "none"
    label: str = ""

    @property
    def title(self) -> str:
        """Title of an axis or panel that shows the metric on its scale."""
        name = self.label or self.name.replace("_", " ")
        return rf"$\log_{{10}}$ {name}" if self.scale == "log" else name

    @property
    def direction(self) -> str:
        """Where collapse lies: `lower` or `higher` if its value is an end of the interval, else ''."""
        ends = self.interval.strip("[](){} ").replace("..", ",").split(",")
        low, high = ends[0].strip(), ends[-1].strip()
        at = self.collapse.replace("-", "−").replace("inf", "∞")
        if not at:  # of counts
            return ""
        return "lower" if at in (low, "least") else "higher" if at == high else ""


EVERY, LAST = "every, both", "last, both"
WEIGHTS, TEST = "last, weights", "every, test"
S25, S24, P20 = "S25 Def. 3.4", "S24 sec. 6", "P20"
WP24 = "WP24"
ADGZR24 = "ADGZR24 sec. 3"
MANY = "; K > d + 1 alone"
OBSERVED = " (an observed value, no interpolation)"
GAP = "[theory.md](theory.md)"

MATRICES = (
    ("weights", "weights", "W", WEIGHTS),
    ("means", "class means", "the class means, **not** centred", EVERY),
)
ENTRIES = (
    Metric(
        "nc0_row_sum",
        "NC0",
        "0",
        "squared length of the sum of W's rows, over K",
        "‖Σ_k W_k‖²/K; grows with the square of scale",
        "[0, ∞)",
        "ZCML26",
        WEIGHTS,
        order=2,
        label="NC0",
    ),
    Metric(
        "nc0_relative",
        "NC0",
        "0",
        "squared length of the sum of W's rows, over K ‖W‖²",
        "‖Σ_k W_k‖²/(K ‖W‖²); 1 where all rows are equal",
        "[0, 1]",
        "ZCML26 divided by ‖W‖²",
        WEIGHTS,
        order=2,
        rounding="features",
        label="NC0 (relative)",
    ),
    Metric(
        "nc1_trace_ratio",
        "NC1",
        "0",
        "within-class over between-class variance",
        "tr Σ_W / tr Σ_B",
        "[0, ∞]",
        S25,
        EVERY,
        order=2,
        rounding="features",
        label="NC1",
    ),
    Metric(
        "nc1_pinv",
        "NC1",
        "0",
        "within-class over between-class variance by direction, over K",
        "tr(Σ_W Σ_B⁺)/K, Σ_B⁺ of rank at most K−1",
        "[0, ∞]",
        "K23 eq. 4",
        EVERY,
        order=2,
        rounding="features",
    ),
    Metric(
        "nc1_pinv_rank",
        "NC1",
        "min(K-1, d)",
        "rank of the pseudoinverse in nc1_pinv",
        "rank of Σ_B⁺ in `nc1_pinv`",
        "0..min(K−1, d)",
        "",
        f"{EVERY}; no direction",
        scale="linear",
    ),
    Metric(
        "dnc1_trace_pinv",
        "NC1",
        "0",
        "within-class variance over trace of the pseudoinverse",
        "tr Σ_W / tr Σ_B⁺; grows with the fourth power of scale",
        "[0, ∞]",
        f"{S24}, as printed",
        EVERY,
        order=2,
    ),
    Metric(
        "tcv",
        "NC1",
        "0",
        "total cluster variation: within-class variance as it is",
        "tr Σ_W; grows with the square of scale",
        "[0, ∞]",
        "ZDBGT24 by name, formula ours",
        EVERY,
        order=2,
        label="TCV",
    ),
    Metric(
        "cdnv",
        "NC1",
        "0",
        "class variance over squared distance, mean over pairs",
        "mean over pairs of (Var_i + Var_j)/(2‖μ_i − μ_j‖²)",
        "[0, ∞]",
        "K23 eq. 51",
        EVERY,
        order=2,
        rounding="features",
    ),
    Metric(
        "cdnv_log",
        "NC1",
        "−inf",
        "logarithm of class variance over squared distance, mean over pairs",
        "mean over pairs of log((Var_i + Var_j)/(2‖μ_i − μ_j‖²))",
        "[−∞, ∞]",
        WP24,
        f"{EVERY}{MANY}",
        scale="linear",
    ),
    Metric(
        "nc2_etf",
        "NC2",
        "0",
        "weights: distance to a simplex ETF",
        "min_{c ≥ 0} ‖WWᵀ − cE‖/‖WWᵀ‖",
        "[0, 1]",
        f"{S25} (NC2A; printed E lacks the 1/K)",
        WEIGHTS,
        order=1,
        rounding="features",
        label="NC2 (ETF)",
    ),
    Metric(
        "nc2_identity",
        "NC2",
        "0",
        "weights: distance to an orthogonal frame",
        "min_{c ≥ 0} ‖WWᵀ − cI‖/‖WWᵀ‖; 0 at collapse without bias under MSE",
        "[0, 1]",
        f"{S25} (NC2B)",
        WEIGHTS,
        order=1,
        rounding="features",
        label="NC2 (identity)",
    ),
    Metric(
        "nc2_means",
        "NC2",
        "0",
        "class means: distance to a simplex ETF",
        "‖MMᵀ/‖MMᵀ‖ − E/√(K−1)‖",
        "[0, √2]",
        "K23 eq. 7",
        EVERY,
        order=1,
        rounding="features",
        label="NC2 (class means)",
    ),
    Metric(
        "nc2_equinorm_weights",
        "NC2",
        "0",
        "weights: spread of lengths over their mean",
        "standard deviation over mean of the lengths of W's rows",
        "[0, √(K−1)]",
        P20,
        WEIGHTS,
        order=1,
        rounding="features",
    ),
    Metric(
        "nc2_equinorm_means",
        "NC2",
        "0",
        "class means: spread of lengths over their mean",
        "standard deviation over mean of the lengths of μ_k − μ_G",
        "[0, √(K−1)]",
        P20,
        EVERY,
        order=1,
        rounding="features",
    ),
    Metric(
        "nc2_equiangular_weights",
        "NC2",
        "0",
        "weights: mean |cos + 1/(K-1)|",
        "mean over pairs of W's rows of abs(cos + 1/(K−1))",
        "[0, K/(K−1)]",
        P20,
        WEIGHTS,
        order=1,
        rounding="features",
    ),
    Metric(
        "nc2_equiangular_means",
        "NC2",
        "0",
        "class means: mean |cos + 1/(K-1)|",
        "mean over pairs of μ_k − μ_G of abs(cos + 1/(K−1))",
        "[0, K/(K−1)]",
        P20,
        EVERY,
        order=1,
        rounding="features",
    ),
    Metric(
        "nc2_condition",
        "NC2",
        "1 or inf",
        "condition number of the class means, not centred",
        "condition number of the class means, **not** centred: 1 if orthogonal, ∞ for a simplex about 0",
        "[1, ∞]",
        S24,
        EVERY,
    ),
    *(
        Metric(
            f"gnc2_{kind}_{matrix}",
            "GNC2",
            "least",
            f"{name}: {meaning}",
            formula.format(which),
            interval,
            source,
            f"{where}{MANY}",
            scale="log" if kind == "spread" else "linear",
            label={"weights": "GNC2", "means": "GNC2 (class means)"}[matrix] if kind == "spread" else "",
        )
        for matrix, name, which, where in (
            ("weights", "weights", "W's rows", WEIGHTS),
            ("means", "class means", "μ_k − μ_G", EVERY),
        )
        for kind, meaning, formula, interval, source in (
            (
                "energy",
                "mean log inverse distance of directions",
                "mean over pairs of log(1/‖u_i − u_j‖), u_k the directions of {}",
                "[−½ log(2K/(K−1)), ∞]",
                "LYWS23",
            ),
            (
                "spread",
                "spread of log inverse distances of directions",
                "standard deviation over pairs of log(1/‖u_i − u_j‖), u_k the directions of {}",
                "[0, ∞]",
                WP24,
            ),
            (
                "cosine",
                "largest cosine of two",
                "largest cosine of two of {}; 0 can be reached up to K = 2d",
                "[0, 1]",
                "R55",
            ),
            (
                "interference",
                "mean |cos + 1/(K-1)|",
                "mean over pairs of abs(cos + 1/(K−1)) of {}",
                "[0, K/(K−1)]",
                WP24,
            ),
        )
    ),
    Metric(
        "nc3_cosine",
        "NC3",
        "0",
        "1 - mean cosine of a feature and its row of weights",
        "1 − mean cos(h, W_y)",
        "[0, 2]",
        S25,
        LAST,
        order=2,
        rounding="features",
        label="NC3",
    ),
    Metric(
        "nc3_duality",
        "NC3",
        "0",
        "weights times class means: distance to a simplex ETF",
        "‖WMᵀ/‖WMᵀ‖ − E/√(K−1)‖",
        "[0, 2]",
        "K23 eq. 8",
        LAST,
        order=1,
        rounding="features",
    ),
    Metric(
        "unc3_cosine",
        "UNC3",
        "1",
        "mean cosine of a row of weights and its class mean",
        "mean over k of cos(W_k, μ_k − μ_G)",
        "[−1, 1]",
        WP24,
        f"{LAST}{MANY}; higher is nearer",
        scale="linear",
    ),
    Metric(
        "unc3_spread",
        "UNC3",
        "0",
        "spread over classes of the cosine of a row of weights and its mean",
        "standard deviation over k of cos(W_k, μ_k − μ_G)",
        "[0, 1]",
        WP24,
        f"{LAST}{MANY}",
    ),
    Metric(
        "nc4_mismatch",
        "NC4",
        "0",
        "share where classifier and nearest class mean disagree",
        "share with argmax(Wh + b) ≠ nearest **train** mean",
        "[0, 1]",
        "K23 eq. 9",
        LAST,
        scale="linear",
        label="NC4 mismatch",
    ),
    Metric(
        "ncc_error",
        "NC4",
        "0",
        "error of the nearest class mean",
        "share whose nearest **train** mean is not their class's",
        "[0, 1]",
        "K23 sec. 4.2",
        EVERY,
        scale="linear",
        label="nearest-class-mean error",
    ),
    Metric(
        "weak_test_collapse",
        "test",
        "0",
        "squared distance to the nearest train mean",
        "mean squared distance to the nearest train mean / tr Σ_B of train",
        "[0, ∞]",
        "K23 sec. 4.1 in words, formula ours",
        TEST,
        order=2,
        rounding="features",
    ),
    Metric(
        "strong_test_collapse",
        "test",
        "0",
        "squared distance to the own class's train mean",
        "mean squared distance to the own class's train mean / tr Σ_B of train",
        "[0, ∞]",
        "K23 sec. 4.1 in words, formula ours",
        TEST,
        order=2,
        rounding="features",
    ),
    *(
        Metric(
            f"margin_{name}",
            "margin",
            "> 0",
            f"right logit less the largest other, {meaning}",
            f"{formula} f_y − max_{{k≠y}} f_k{ending}",
            "ℝ",
            "",
            f"{LAST}; higher is clearer",
            scale="linear",
        )
        for name, meaning, formula, ending in (
            ("min", "smallest", "smallest", ""),
            ("mean", "mean", "mean of", ""),
            ("p05", "5 % quantile", "5 % quantile of", OBSERVED),
            ("p50", "median", "median of", OBSERVED),
            ("p95", "95 % quantile", "95 % quantile of", OBSERVED),
        )
    ),
    *(
        Metric(
            f"{kind}_{matrix}",
            "rank",
            "K-1 or K, at most d",
            f"{meaning} of the {name}",
            f"{formula} of {which}",
            interval,
            source,
            f"{where}; lower is low-rank bias",
            scale="linear",
        )
        for matrix, name, which, where in MATRICES
        for kind, meaning, formula, interval, source in (
            ("rank", "numerical rank", "singular values s above s_1/1000", "0..min(K, d)", S24),
            ("stable_rank", "stable rank", "Σ s_j²/s_1²", "[1, rank]", ""),
            ("effective_rank", "entropy rank", "exp(−Σ p_j log p_j), p_j = s_j/Σ s,", "[1, rank]", "RV07"),
        )
    ),
    *(
        Metric(
            f"singular_{matrix}",
            "singular values",
            "equal",
            f"singular value of the {name}",
            f"`singular_{matrix}_001`, …: the singular values of {which}, largest first",
            "[0, ∞)",
            S24,
            f"{where}; no direction",
        )
        for matrix, name, which, where in MATRICES
    ),
)
# Of the pipeline's runs alone, which know their loss and penalty.
GAPS = (
    Metric(
        "loss_gap",
        "gap",
        "0",
        "regularised loss above the optimum of the unconstrained features model",
        "regularised loss − L*_GUFM = `gap_gufm` + `inner_penalty`",
        "[0, ∞)",
        GAP,
        "last, train",
        order=2,
        rounding="loss",
        label="loss gap",
    ),
    Metric(
        "gap_gufm",
        "gap",
        "0",
        "part of the loss gap that the features and the last layer have",
        "`gap_fit` + `gap_last_penalty`",
        "[0, ∞)",
        GAP,
        "last, train",
        order=2,
        rounding="loss",
        label=r"gap in $h$ and $W_L$",
    ),
    Metric(
        "gap_fit",
        "gap",
        "0",
        "unregularised loss above the optimum's",
        "unregularised loss − that of the optimum",
        "ℝ",
        GAP,
        "last, train",
        order=1,
        rounding="loss",
    ),
    Metric(
        "gap_last_penalty",
        "gap",
        "0",
        "penalty of the last layer above the optimum's",
        "λ_L/2 ‖W‖² − that of the optimum",
        "ℝ",
        GAP,
        WEIGHTS,
        order=1,
        rounding="loss",
    ),
    Metric(
        "inner_penalty",
        "gap",
        "0",
        "penalty of all layers but the last, the rest of the loss gap",
        "λ/2 ‖·‖² of the inner matrices",
        "[0, ∞)",
        GAP,
        WEIGHTS,
        order=2,
        label="gap in inner layers",
    ),
    Metric(
        "inner_penalty_times_depth",
        "gap",
        "-",
        "inner penalty times L",
        "`inner_penalty` · L",
        "[0, ∞)",
        GAP,
        WEIGHTS,
    ),
)
# Of the pipeline's runs on data with `imbalance`, which says which classes are small.
MINORITIES = (
    Metric(
        "minority_cosine",
        "minority",
        "1",
        "cosine of the small classes' rows of weights",
        "mean over pairs of small classes of cos(W_k, W_j)",
        "[−1, 1]",
        "K23 sec. 3.1.6",
        "last, weights; 1 is minority collapse, −1/(K−1) a simplex",
        scale="linear",
        label="cosine of minority rows",
    ),
    Metric(
        "minority_spread",
        "minority",
        "0",
        "what tells the small classes' rows of weights apart",
        "‖W_B − its mean row‖/‖W‖, W_B the rows of small classes",
        "[0, 1]",
        "formula ours",
        "last, weights; 0 is minority collapse",
        scale="linear",
        label="spread of minority rows",
    ),
    *(
        Metric(
            f"{which}_error",
            "minority",
            "-",
            f"the classifier's error on {size} classes",
            f"share of the samples of {size} classes with argmax(Wh + b) ≠ y",
            "[0, 1]",
            "K23 sec. 3.1.6",
            "last, both",
            scale="linear",
        )
        for which, size in (("majority", "large"), ("minority", "small"))
    ),
)
# Of runs whose data keep classes apart that the network is not trained on (`data.transfer`), a value for
# each number of shots n: transfer_ncc_error_005 is that of 5.
TRANSFERS = (
    *(
        Metric(
            f"transfer_{head}_error",
            "transfer",
            "0",
            f"few-shot error on target classes, {meaning}",
            formula,
            "[0, 1]",
            "K23 sec. 4.3",
            "last, target",
            scale="linear",
            label=f"few-shot error ({head})",
        )
        for head, meaning, formula in (
            (
                "ncc",
                "nearest mean of the shots",
                "share, mean over classes and episodes, whose nearest mean of n shots is not their class's",
            ),
            (
                "ridge",
                "ridge regression on the shots",
                "the same of ridge regression of one-hot labels on the shots",
            ),
        )
    ),
    Metric(
        "transfer_bound",
        "transfer",
        "0",
        "what their CDNV allows the nearest mean's error to be",
        "8(t−1)(1 + 1/n) `cdnv` of t target classes, at least the expected error of n shots drawn anew",
        "[0, ∞]",
        "K23 sec. 4.3, constants ours",
        "last, target",
        order=2,
        rounding="features",
    ),
)
# Of runs with decay on all that is learned, of whose matrices the one that has most of it counts.
RANKS = (
    Metric(
        "rank_distance",
        "rank",
        "0",
        "distance of decayed matrices from rank K, as a share",
        "largest ‖W_l − nearest of rank K‖/‖W_l‖ of the matrices before the last layer",
        "[0, 1)",
        "ZDBGT24",
        WEIGHTS,
        label="distance from rank $K$",
    ),
    Metric(
        "rank_bound_share",
        "rank",
        "-",
        "that distance over its bound by TCV",
        "largest ‖W_l − nearest of rank K‖ λ/(√(Σ‖δ_i‖²) √(N `tcv`) + ‖G_l‖), `tcv` of what enters W_l",
        "[0, 1]",
        "ZDBGT24, [constants ours](theory.md)",
        WEIGHTS,
        scale="linear",
    ),
)
# Of positions whose label is the next token (`ncpipe.metrics.vocabulary`), beside ENTRIES.
TOKENS = (
    Metric(
        "classes",
        "count",
        "",
        "classes K: next tokens that occur often enough",
        "K, the tokens that occur at least `min_per_class` times as the next one",
        "2..V",
        WP24,
        LAST,
        scale="linear",
    ),
    Metric(
        "tokens",
        "count",
        "",
        "positions N whose next token is one of them",
        "N, the positions whose next token is one of these",
        "1..",
        "",
        LAST,
        scale="linear",
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
        "decisions",
        "count",
        "",
        "positions that NC4, nc3_cosine and margins are taken on",
        "positions drawn for `nc4_mismatch`, `ncc_error`, `nc3_cosine` and margins",
        "1..N",
        "",
        LAST,
        scale="linear",
    ),
    *(
        Metric(
            f"{metric}_{end}",
            "NC4",
            "0",
            f"{side} end of the 95 % interval of {metric}",
            f"{side} end of the Wilson interval at 95 % of `{metric}`",
            "[0, 1]",
            "W27",
            LAST,
            scale="linear",
        )
        for metric in ("nc4_mismatch", "ncc_error")
        for end, side in (("low", "lower"), ("high", "upper"))
    ),
)
# Of the pipeline's runs on generated language, whose best attainable loss is known.
SOURCES = (
    Metric(
        "excess_loss",
        "loss",
        "0",
        "cross-entropy above the entropy rate of the source",
        "mean cross-entropy in nats − mean entropy of the next token given the context that the source sees",
        "ℝ",
        "",
        "last, train and test",
        label="loss above entropy rate",
    ),
)
# Where the targets are vectors (`ncpipe.metrics.regression`), in place of all that needs classes.
REGRESSION = (
    Metric(
        "nrc1",
        "NRC1",
        "0",
        "share of features outside their t first principal axes",
        "mean of ‖h − Ph‖²/‖h‖², P onto the t first principal axes of h; t numbers of a target",
        "[0, 1]",
        ADGZR24,
        "last, both",
        order=2,
        rounding="features",
        label="NRC1",
    ),
    Metric(
        "nrc2",
        "NRC2",
        "0",
        "share of features outside the rows of W",
        "the same with P onto the rows of W",
        "[0, 1]",
        ADGZR24,
        "last, both",
        order=2,
        rounding="features",
        label="NRC2",
    ),
    Metric(
        "nrc3",
        "NRC3",
        "0",
        "distance of W Wᵀ to a form of the targets' covariance",
        "min over 0 ≤ γ ≤ λ_min(Σ) of ‖WWᵀ/‖WWᵀ‖ − S/‖S‖‖², S = Σ^(1/2) − √γ I; t > 1 alone",
        "[0, 4]",
        ADGZR24,
        WEIGHTS,
        order=2,
        rounding="features",
        label="NRC3",
    ),
    Metric(
        "nrc3_gamma",
        "NRC3",
        "-",
        "the gamma of that form",
        "the γ where that least is; λ_W λ_H at the features model's optimum",
        "[0, λ_min(Σ)]",
        ADGZR24,
        WEIGHTS,
        scale="linear",
        label="gamma of NRC3",
    ),
    Metric(
        "relative_mse",
        "error",
        "-",
        "squared error over the targets' variance, 1 - R^2",
        "‖f − Y‖²/‖Y − mean‖² = 1 − R²",
        "[0, ∞)",
        "",
        "last, both",
        label="relative squared error",
    ),
    Metric(
        "ufm_gap",
        "gap",
        "0",
        "loss of last layer and features above the features model's optimum",
        "fit + λ_W/2 ‖W‖² + λ_H/2 Σ‖h_i‖² − its least value; with `penalty.features` alone",
        "[0, ∞)",
        f"ADGZR24 Thm 4.1; {GAP}",
        "last, train",
        order=2,
        rounding="loss",
        label="gap to the features model",
    ),
)
CATALOGUE = MappingProxyType(
    {
        metric.name: metric
        for metric in (*ENTRIES, *TOKENS, *GAPS, *MINORITIES, *TRANSFERS, *RANKS, *SOURCES, *REGRESSION)
    }
)
SINGULAR = "singular_"  # names of metrics that are one value of a spectrum each begin so
NUMBERED = re.compile(rf"^({SINGULAR}\w+|transfer_\w+)_\d+$")
# Of what series of these splits are called.
SUFFIXES = {"test": "_test", "true_labels": "_true_labels", "target": "_target"}
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


def page_table(metrics: tuple[Metric, ...]) -> list[str]:
    """Return the lines of a Markdown table in docs/metric_tables.md."""
    head = ["metric", "formula", "range", "at collapse", "order", "source", "layers, splits"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for metric in metrics:
        collapse = metric.collapse.replace("-1", "−1").replace("inf", "∞").replace("-", "")
        order = "" if metric.order is None else str(metric.order)
        cells = [
            f"`{metric.name}`",
            metric.formula,
            metric.interval,
            collapse,
            order,
            metric.source,
            metric.where,
        ]
        lines.append(f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |"))
    return lines
