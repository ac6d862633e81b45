"""The numbers of S25's Lemma 4.1 that claims of this study call by name."""

from ncpipe.papers.s25.calls import CALLS

__all__ = ("CALLS",)
