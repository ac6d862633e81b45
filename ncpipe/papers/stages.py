"""Name the functions that the further stages of the papers' studies call, for their digests of code.

`ncpipe.runs.code_digests` has the stages of every sweep.
"""

from collections.abc import Mapping

from ncpipe.config.choices import Definition

SWEEP_STAGES: Mapping[str, Definition] = {
    "counterexample": ("ncpipe.papers.s25.commands.counterexample", "write_counterexample"),
    "low_rank": ("ncpipe.papers.s24.commands.low_rank", "low_rank"),
    "low_rank_real": ("ncpipe.papers.s24.commands.low_rank_real", "low_rank_real"),
    "theory": ("ncpipe.papers.s25.commands.theory", "theory"),
    "models": ("ncpipe.papers.k23.commands", "write_models"),
}
EXPERIMENT_STAGES: Mapping[str, Definition] = {
    "construct": ("ncpipe.papers.s25.commands.construct", "construct"),
    "series": ("ncpipe.papers.s24.commands.series", "series"),
}
