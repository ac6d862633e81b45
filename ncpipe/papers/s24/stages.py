"""Offer the stages of stages/low_rank and of stages/low_rank_real."""

from ncpipe.papers.s24.low_rank import low_rank
from ncpipe.papers.s24.low_rank_real import low_rank_real
from ncpipe.papers.s24.series import series
from ncpipe.papers.s24.tables.low_rank import NUMBERS
from ncpipe.study import Stage

STAGES = {"series": Stage(series, report=False), "low_rank": Stage(low_rank, claimed=NUMBERS)}
HEAD_STAGES = {"low_rank": Stage(low_rank_real, claimed=NUMBERS)}
