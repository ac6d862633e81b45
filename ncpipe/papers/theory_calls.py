"""Name the numbers of theory that a claim in claims.yaml can call, with the functions that compute them.

`ncpipe.claims.calls` checks a call's arguments, and `ncpipe.claims.evidence` evaluates it.
"""

import inspect

from ncpipe.claims.calls import Call, Calls, with_own
from ncpipe.papers.k23 import (
    batch_norm,
    feature_models,
    flow_models,
    imbalance,
    orthoplex,
    rank_bound,
    supcon,
    two_linear,
)
from ncpipe.papers.s24 import theory_calls as low_rank
from ncpipe.papers.s25 import theory_calls as deep

CALLS = {
    "gufm.value": Call(feature_models.gufm_value, feature_models.gufm_value_numerical),
    "gufm.collapse": Call(feature_models.gufm_collapse),
    "gufm.rescaled": Call(feature_models.gufm_rescaled),
    "ufm.value": Call(feature_models.ufm_value, feature_models.ufm_value_numerical),
    "smoothing.value": Call(feature_models.smoothing_value, feature_models.smoothing_value_numerical),
    "imbalance.threshold": Call(imbalance.minority_threshold, feature_models.minority_threshold_numerical),
    "imbalance.largest_ratio": Call(imbalance.largest_ratio, feature_models.largest_ratio_numerical),
    "imbalance.fixed_etf": Call(feature_models.fixed_etf_collapse),
    "supcon.value": Call(supcon.supcon_optimum, feature_models.supcon_value_numerical),
    "two_linear.logit": Call(two_linear.best_logit, feature_models.two_linear_logit_numerical),
    "two_linear.frame": Call(feature_models.two_linear_frame),
    "two_linear.jump": Call(feature_models.two_linear_jump),
    "batch_norm.value": Call(batch_norm.optimal_value, feature_models.batch_norm_value_numerical),
    "orthoplex.value": Call(orthoplex.orthoplex_value, feature_models.orthoplex_value_numerical),
    "orthoplex.cosines": Call(feature_models.orthoplex_cosines),
    "flow.scale": Call(flow_models.scale, flow_models.scale_numerical),
    "flow.error_slope": Call(flow_models.error_slope),
    "flow.loss_at_rest": Call(flow_models.loss_at_rest),
    "flow.mse_over_se": Call(flow_models.mse_over_se),
    "flow.margin_share": Call(flow_models.margin_share),
    "flow.margin_rate": Call(flow_models.margin_rate),
    "flow.within_left": Call(flow_models.within_left),
    "flow.balance_left": Call(flow_models.balance_left, flow_models.balance_left_numerical),
    "central_path.rate": Call(flow_models.central_path_rate),
    "central_path.spread": Call(flow_models.central_path_spread),
    "locally_elastic.etf_rate": Call(flow_models.etf_rate, flow_models.etf_rate_numerical),
    "locally_elastic.etf_error": Call(flow_models.etf_error),
    "locally_elastic.separation": Call(flow_models.separation),
    "locally_elastic.separable_pairs": Call(flow_models.separable_pairs),
    "rank_bound.share": Call(rank_bound.largest_share),
    "rank_bound.distance": Call(rank_bound.largest_distance),
    "rank_bound.decay_slope": Call(rank_bound.decay_slope),
    "dufm.srg_over_dnc": Call(low_rank.srg_over_dnc),
    "dufm.small_decay_ratio": Call(low_rank.small_decay_ratio),
    "dufm.ratio_slope": Call(low_rank.ratio_slope),
    "dufm.dnc_threshold": Call(low_rank.dnc_threshold),
    "dufm.best_minus": Call(low_rank.best_minus),
    "dufm.built_over_closed": Call(low_rank.built_over_closed),
    "dufm.descended_over_srg": Call(low_rank.descended_over_srg),
    "dufm.within_class": Call(low_rank.within_class),
    "dufm.relaxed_over_bound": Call(low_rank.relaxed_over_bound),
    "gufm.excess_at_distance": Call(deep.excess_at_distance),
    "two_layer_blocks.kept_share": Call(deep.least_kept_share),
    "two_layer_blocks.biases_excess": Call(deep.biases_excess),
    "two_layer_blocks.penalised_biases_over_still": Call(deep.penalised_biases_over_still),
}


def calls() -> Calls:
    """Return the calls of the package and those of the study."""
    return with_own(CALLS)


def calls_table() -> list[str]:
    """Return a row of docs/claim_calls.md for each call: arguments, docstring, and if it has a check."""
    lines = []
    for name, call in CALLS.items():
        arguments = ", ".join(inspect.signature(call.number).parameters)
        paragraph = " ".join((inspect.getdoc(call.number) or "").split("\n\n")[0].split())
        number = paragraph.removeprefix("Return ").removeprefix("the ").replace("|", "\\|")
        if number.split()[0].isalpha() and len(number.split()[0]) > 3:  # a word, not a symbol
            number = number[0].upper() + number[1:]
        lines.append(f"| `{name}({arguments})` | {number} | {'yes' if call.check else ''} |")
    return lines
