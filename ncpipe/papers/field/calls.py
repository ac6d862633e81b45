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
)

Pair = tuple[Callable[..., float], Callable[..., float] | None]

CALLS: Mapping[str, Pair] = MappingProxyType(
    {
        "encoding.cosine": (encodings.encoding_cosine, encodings.encoding_cosine_numerical),
        "nc0.left": (nc0.nc0_left, None),
        "nc0.sgd_left": (nc0.nc0_sgd_left, nc0.nc0_sgd_left_closed),
        "nc0.over_limit": (nc0.nc0_over_limit, None),
        "nc0.momentum_gain": (nc0.nc0_momentum_gain, None),
        "nc0.momentum_gain_at_loss": (nc0.nc0_momentum_gain_at_loss, None),
        "code.largest_cosine": (codes.code_largest_cosine, None),
        "depth.low_rank_over_dnc": (codes.low_rank_over_dnc, None),
        "depth.rank": (codes.deep_rank, None),
        "depth.dnc_share": (codes.deep_dnc_share, None),
        "seli.distance": (imbalance.seli_distance, None),
        "seli.slope": (imbalance.seli_slope, None),
        "modular.norm_advantage": (modular.norm_advantage, modular.norm_advantage_numerical),
        "modular.norm_slope": (modular.norm_slope, None),
        "modular.entropy_slope": (modular.entropy_slope, None),
        "modular.critical_decay": (modular.critical_decay, None),
        "modular.critical_slope": (modular.critical_slope, None),
        "modular.circle_over_simplex": (modular.circle_over_simplex, None),
        "path.anchored_within": (paths.anchored_within, None),
        "path.central_flow_step": (paths.central_flow_step, None),
        "linear_head.frozen": (heads.linear_head_frozen, None),
        "regression.value": (regression.regression_value, regression.regression_value_numerical),
        "regression.gram_error": (regression.regression_gram_error, None),
        "regression.rank": (regression.regression_rank, regression.regression_rank_numerical),
        "regression.outside": (regression.regression_outside, None),
        "shallow.cosine": (shallow.shallow_cosine, None),
    }
)
