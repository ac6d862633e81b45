"""The construction of S25's proofs, from which runs of this study start."""

from ncpipe.papers.s25.constructions.networks import STARTS

__all__ = ("STARTS",)
