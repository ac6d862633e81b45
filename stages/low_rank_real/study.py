"""Heads on data: their ranks and losses beside those of S24's solutions."""

from ncpipe.papers.s24.head_ranks import HEAD_COLUMNS as RUN_COLUMNS
from ncpipe.papers.s24.stages import HEAD_STAGES as STAGES

__all__ = ("RUN_COLUMNS", "STAGES")
