"""Name the numbers of K23's models that claims may call; the second function of a pair checks the first.

A study has them by `from ncpipe.papers.k23.calls import CALLS` in its study.py.
"""

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

CALLS = {
    "smoothing.value": (feature_models.smoothing_value, feature_models.smoothing_value_numerical),
    "imbalance.threshold": (imbalance.minority_threshold, feature_models.minority_threshold_numerical),
    "imbalance.largest_ratio": (imbalance.largest_ratio, feature_models.largest_ratio_numerical),
    "imbalance.fixed_etf": (feature_models.fixed_etf_collapse,),
    "supcon.value": (supcon.supcon_optimum, feature_models.supcon_value_numerical),
    "two_linear.logit": (two_linear.best_logit, feature_models.two_linear_logit_numerical),
    "two_linear.frame": (feature_models.two_linear_frame,),
    "two_linear.jump": (feature_models.two_linear_jump,),
    "batch_norm.value": (batch_norm.optimal_value, feature_models.batch_norm_value_numerical),
    "orthoplex.value": (orthoplex.orthoplex_value, feature_models.orthoplex_value_numerical),
    "orthoplex.cosines": (feature_models.orthoplex_cosines,),
    "flow.scale": (flow_models.scale, flow_models.scale_numerical),
    "flow.error_slope": (flow_models.error_slope,),
    "flow.loss_at_rest": (flow_models.loss_at_rest,),
    "flow.mse_over_se": (flow_models.mse_over_se,),
    "flow.margin_share": (flow_models.margin_share,),
    "flow.margin_rate": (flow_models.margin_rate,),
    "flow.within_left": (flow_models.within_left,),
    "flow.balance_left": (flow_models.balance_left, flow_models.balance_left_numerical),
    "central_path.rate": (flow_models.central_path_rate,),
    "central_path.spread": (flow_models.central_path_spread,),
    "locally_elastic.etf_rate": (flow_models.etf_rate, flow_models.etf_rate_numerical),
    "locally_elastic.etf_error": (flow_models.etf_error,),
    "locally_elastic.separation": (flow_models.separation,),
    "locally_elastic.separable_pairs": (flow_models.separable_pairs,),
    "rank_bound.share": (rank_bound.largest_share,),
    "rank_bound.distance": (rank_bound.largest_distance,),
    "rank_bound.decay_slope": (rank_bound.decay_slope,),
}
