"""The numbers of K23's models without networks that claims of this study call by name."""

from ncpipe.papers.k23.calls import CALLS

__all__ = ("CALLS",)
