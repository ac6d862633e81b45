"""Name the modules that the further stages of the papers' studies run, for their digests of code.

`ncpipe.runs.code_digests` has the stages of every sweep.
"""

from collections.abc import Mapping

SWEEP_STAGES: Mapping[str, str] = {
    "counterexample": "ncpipe.papers.s25.commands.counterexample",
    "low_rank": "ncpipe.papers.s24.commands.low_rank",
    "low_rank_real": "ncpipe.papers.s24.commands.low_rank_real",
    "theory": "ncpipe.papers.s25.commands.theory",
    "models": "ncpipe.papers.k23.commands",
}
EXPERIMENT_STAGES: Mapping[str, str] = {
    "construct": "ncpipe.papers.s25.commands.construct",
    "series": "ncpipe.papers.s24.commands.series",
}
