"""Write docs/ledger.md, every published claim with its verdict, from the tables below docs/results.

    python docs/ledger.py

A test fails if the page is not what this writes, or if a claim that disagrees has no paragraph in
docs/results/disagreements.yaml.
"""

from pathlib import Path

from ncpipe.claims.published import ledger_of_all, read_ledger

FOLDER = Path(__file__).parent


def page() -> str:
    """Return the text of docs/ledger.md."""
    return ledger_of_all(read_ledger(FOLDER / "results"))


if __name__ == "__main__":
    (FOLDER / "ledger.md").write_text(page(), encoding="utf-8")
