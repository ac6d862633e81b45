"""Name what the papers' own stages write: paths below data/, and numbers of runs that claims may be about.

`ncpipe.system.artifacts` has the paths of every sweep, and `ncpipe.claims.ledger` the numbers.
"""

from pathlib import Path

MODELS = Path("data/models")  # K23, without networks
CONSTRUCTED = Path("data/constructed")  # S25, like the two below
COUNTEREXAMPLE = Path("data/counterexample.csv")
THEORY = Path("data/theory")
SERIES = Path("data/series")  # S24, like the next
LOW_RANK = Path("data/low_rank")
PARENTS = (CONSTRUCTED, SERIES)  # folders that hold outputs of stages and are none
REPORTED = (THEORY, LOW_RANK, MODELS)  # folders whose tables and figures the report shows

RUN_NUMBERS = (  # columns of `claim_numbers` in `ncpipe.papers.s24.tables.low_rank`
    "first_rank",
    "last_rank",
    "rank_spread",
    "rank_spread_before",
    "rank_dip",
    "relu_rank",
    "kept_over_dnc",
    "square",
    "triangular",
    "dnc1_layers",
    "nc1_layers",
    "fourth_share",
)
