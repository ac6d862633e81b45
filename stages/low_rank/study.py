"""S24's deep unconstrained features model: its ranks and losses beside those of solutions."""

from ncpipe.papers.s24.calls import CALLS
from ncpipe.papers.s24.dufm_network import NETWORKS
from ncpipe.papers.s24.head_ranks import FREE_COLUMNS as RUN_COLUMNS
from ncpipe.papers.s24.params import PARAMS
from ncpipe.papers.s24.stages import STAGES

__all__ = ("CALLS", "NETWORKS", "PARAMS", "RUN_COLUMNS", "STAGES")
