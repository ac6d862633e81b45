"""The numbers of this folder that a claim can call by name, each with its numerical twin if it has one."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from ncpipe.papers.field import (
    codes,
    encodings,
    heads,
    imbalance,
    modular,
    nc0,
    paths,
    regression,
    shallow,
    spectral,
)

Pair = tuple[Callable[..., float], Callable[..., float] | None]

CALLS: Mapping[str, Pair] = MappingProxyType(
    {
        "encoding.cosine": (encodings.encoding_cosine, encodings.encoding_cosine_numerical),
        "encoding.fall": (encodings.encoding_fall, None),
        "encoding.bias": (encodings.encoding_bias, None),
        "landscape.simplex": (encodings.loss_simplex, None),
        "landscape.benign_share": (encodings.benign_share, None),
        "landscape.saddle": (encodings.saddle_curvature, None),
        "nc0.left": (nc0.nc0_left, None),
        "nc0.sgd_left": (nc0.nc0_sgd_left, nc0.nc0_sgd_left_closed),
        "nc0.over_limit": (nc0.nc0_over_limit, None),
        "nc0.momentum_gain": (nc0.nc0_momentum_gain, None),
        "nc0.momentum_gain_at_loss": (nc0.nc0_momentum_gain_at_loss, None),
        "spectral.component_ratio": (spectral.component_ratio, None),
        "spectral.balanced_gap": (spectral.balanced_gap, None),
        "code.margin": (codes.code_margin, None),
        "code.largest_cosine": (codes.code_largest_cosine, None),
        "code.antipodal_pairs": (codes.code_antipodal_pairs, None),
        "depth.margin": (codes.depth_margin, codes.depth_margin_numerical),
        "depth.low_rank_over_dnc": (codes.low_rank_over_dnc, None),
        "depth.rank": (codes.deep_rank, None),
        "depth.mean_rank": (codes.deep_mean_rank, None),
        "depth.dnc_share": (codes.deep_dnc_share, None),
        "depth.repulsion": (codes.repulsion, None),
        "depth.basin_share": (codes.basin_share, None),
        "seli.distance": (imbalance.seli_distance, None),
        "seli.slope": (imbalance.seli_slope, None),
        "relu.cosine": (imbalance.relu_cosine, None),
        "relu.length_ratio": (imbalance.relu_length_ratio, None),
        "supcon.cosine_spread": (imbalance.supcon_cosine_spread, None),
        "supcon.relu_cosine": (imbalance.supcon_relu_cosine, None),
        "modular.norm_advantage": (modular.norm_advantage, modular.norm_advantage_numerical),
        "modular.norm_slope": (modular.norm_slope, None),
        "modular.entropy_slope": (modular.entropy_slope, None),
        "modular.critical_decay": (modular.critical_decay, None),
        "modular.critical_slope": (modular.critical_slope, None),
        "modular.circle_over_simplex": (modular.circle_over_simplex, None),
        "path.line_rise": (paths.line_rise, None),
        "path.anchored_within": (paths.anchored_within, None),
        "path.central_flow_step": (paths.central_flow_step, None),
        "linear_head.balance_left": (heads.linear_balance_left, heads.linear_balance_left_numerical),
        "linear_head.metric": (heads.linear_head_metric, None),
        "linear_head.ratio": (heads.linear_head_ratio, None),
        "linear_head.frozen": (heads.linear_head_frozen, None),
        "regression.value": (regression.regression_value, regression.regression_value_numerical),
        "regression.gram_error": (regression.regression_gram_error, None),
        "regression.rank": (regression.regression_rank, regression.regression_rank_numerical),
        "regression.outside": (regression.regression_outside, None),
        "shallow.cosine": (shallow.shallow_cosine, None),
    }
)
