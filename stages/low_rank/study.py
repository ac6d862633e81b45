"""The numbers of S24's deep unconstrained features model that claims of this study call by name."""

from ncpipe.papers.s24.calls import CALLS

__all__ = ("CALLS",)
