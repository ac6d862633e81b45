"""Figures of the papers' stages: every thing in them is that of `figure_cases.json`.

They are those of `ncpipe.papers.s24.figures.class_means`, `ncpipe.papers.s24.figures.heads`,
`ncpipe.papers.s24.figures.low_rank`, `ncpipe.papers.s24.figures.low_rank_series` and
`ncpipe.papers.s25.proof_networks`; test_figures.py has all others.
"""

import json

import pytest
from figure_cases import STORED, stored
from paper_figure_cases import PAPER_CASES

KNOWN = json.loads(STORED.read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", PAPER_CASES)
def test_a_figure_has_the_words_lines_and_axes_that_are_stored(case: str) -> None:
    """If the change is meant: `python tests/figure_cases.py`, and look at the difference."""
    assert stored(case) == KNOWN[case]
