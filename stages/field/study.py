"""The numbers that claims of this study call by name, each with its numerical twin if it has one."""

import class_encodings
import codes
import heads
import imbalance
import modular
import nc0
import paths
import regression
import shallow

CALLS = {
    "encoding.cosine": (class_encodings.encoding_cosine, class_encodings.encoding_cosine_numerical),
    "nc0.left": (nc0.nc0_left,),
    "nc0.sgd_left": (nc0.nc0_sgd_left, nc0.nc0_sgd_left_closed),
    "nc0.over_limit": (nc0.nc0_over_limit,),
    "nc0.momentum_gain": (nc0.nc0_momentum_gain,),
    "nc0.momentum_gain_at_loss": (nc0.nc0_momentum_gain_at_loss,),
    "code.largest_cosine": (codes.code_largest_cosine,),
    "depth.low_rank_over_dnc": (codes.low_rank_over_dnc,),
    "depth.rank": (codes.deep_rank,),
    "depth.dnc_share": (codes.deep_dnc_share,),
    "seli.distance": (imbalance.seli_distance,),
    "seli.slope": (imbalance.seli_slope,),
    "modular.norm_advantage": (modular.norm_advantage, modular.norm_advantage_numerical),
    "modular.norm_slope": (modular.norm_slope,),
    "modular.entropy_slope": (modular.entropy_slope,),
    "modular.critical_decay": (modular.critical_decay,),
    "modular.critical_slope": (modular.critical_slope,),
    "modular.circle_over_simplex": (modular.circle_over_simplex,),
    "path.anchored_within": (paths.anchored_within,),
    "path.central_flow_step": (paths.central_flow_step,),
    "linear_head.frozen": (heads.linear_head_frozen,),
    "regression.value": (regression.regression_value, regression.regression_value_numerical),
    "regression.gram_error": (regression.regression_gram_error,),
    "regression.rank": (regression.regression_rank, regression.regression_rank_numerical),
    "regression.outside": (regression.regression_outside,),
    "shallow.cosine": (shallow.shallow_cosine,),
}
