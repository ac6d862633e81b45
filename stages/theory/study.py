"""S25's theory: networks of its proofs beside trained ones, App. C's example, Lemma 4.1."""

from ncpipe.papers.s25.calls import CALLS
from ncpipe.papers.s25.params import PARAMS
from ncpipe.papers.s25.stages import STAGES

__all__ = ("CALLS", "PARAMS", "STAGES")
