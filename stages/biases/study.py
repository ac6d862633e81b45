"""The numbers of S25's App. C that claims of this study call by name."""

from ncpipe.papers.s25.calls import CALLS

__all__ = ("CALLS",)
