"""K23's models without networks: their curves, and the numbers that claims of this study call by name."""

from ncpipe.papers.k23.calls import CALLS
from ncpipe.papers.k23.stages import STAGES

__all__ = ("CALLS", "STAGES")
