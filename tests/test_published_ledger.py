"""docs/ledger.py: the ledger of all studies from published tables."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from conftest import loaded
from scipy import stats

from ncpipe.system.errors import InputError

ledger = loaded(Path(__file__).resolve().parent.parent / "docs/ledger.py")
HEAD = (
    "id,ref,author,statement,about,quantity,expected,verdict,value,low,high,p_value,runs,scale,reason,kind\n"
)
GROUP = {"claims": ["b"], "title": "T", "differs": "D.", "sure": "S.", "change": "C."}


@pytest.fixture
def published(tmp_path: Path) -> Path:
    (tmp_path / "one").mkdir()
    rows = "a,P1 abstract,paper,it holds,x,theory,< 1,agrees,0.5,0.5,0.5,,,,,theorem\n"
    rows += "b,P2 sec. 1,ours,it rises,y,slope,> 0,disagrees,-1,-2,-0.5,,3 of 3 runs,reduced,,trained\n"
    (tmp_path / "one/claims.csv").write_text(HEAD + rows)
    (tmp_path / "ledger.yaml").write_text(
        yaml.safe_dump({"papers": {"P1": "First"}, "studies": {"one": "stages/one"}})
    )
    (tmp_path / "disagreements.yaml").write_text(yaml.safe_dump([GROUP]))
    return tmp_path


def test_all_claims_are_on_the_page(published: Path) -> None:
    """Red: a claim that is left out, or counts of something else."""
    page = ledger.page_of(ledger.read_ledger(published))
    assert "| theorems, by closed forms or solved optima | 1 | 0 | 0 |" in page
    assert "| P1 | the paper |" not in page  # a theorem is no trained network
    assert "| others | we | 0 | 0 | 1 |" in page
    assert page.index("**What differs.** D.") < page.index("it holds")
    assert "slope -1 [-2, -0.5]" in page
    assert "3 of 3 runs, reduced" in page
    assert "`dvc --cd stages/one repro`" in page


def test_a_statement_counts_once(published: Path) -> None:
    """Red: an identity that five panels repeat, as five agreements; panels that differ, as an agreement."""
    (published / "two").mkdir()
    rows = "a,P1 abstract,paper,it holds,x,theory,< 1,agrees,0.5,0.5,0.5,,,,,theorem\n"
    rows += "b,P2 sec. 1,ours,it rises,z,slope,> 0,agrees,1,0.5,2,,4 of 4 runs,toy,,trained\n"
    (published / "two/claims.csv").write_text(HEAD + rows)
    page = ledger.page_of(ledger.read_ledger(published))
    assert "| theorems, by closed forms or solved optima | 1 | 0 | 0 |" in page
    assert "| trained networks | 0 | 1 | 0 |" in page
    assert page.count("| it rises |") == 1
    [line] = [line for line in page.splitlines() if "| it rises |" in line]
    for part in ("slope -1 [-2, -0.5]<br>slope 1 [0.5, 2]", "**disagrees** 1, **agrees** 1", "one<br>two"):
        assert part in line


def test_adjusted_p_values_are_scipys() -> None:
    values = pd.Series(np.random.default_rng(0).uniform(size=20) ** 3, index=range(40, 60))
    adjusted = ledger.benjamini_hochberg(values)
    assert adjusted.to_numpy() == pytest.approx(stats.false_discovery_control(values.to_numpy()), rel=1e-12)
    assert list(adjusted.index) == list(values.index)


def test_decided_claims_that_many_tests_explain_are_named(published: Path) -> None:
    """Red: p-values compared with 5 % one by one, or adjusted over all papers together."""
    head = HEAD.replace("kind\n", "kind,p_decision,stood\n")
    runs = "3 of 3 runs,reduced,,trained"
    rows = f"b,P2 sec. 1,ours,it rises,y,slope,> 0,disagrees,-1,-2,-0.5,,{runs},0.04,after\n"
    rows += f"c,P2 sec. 2,ours,it stays,y,slope,> 0,undecided,-1,-2,0.5,,{runs},0.3,before\n"
    rows += f"d,P1 sec. 2,paper,it falls,y,slope,> 0,agrees,1,0.1,2,,{runs},0.04,before\n"
    (published / "one/claims.csv").write_text(head + rows)
    page = ledger.page_of(ledger.read_ledger(published))
    assert "3 claims about trained networks rest on a test; 2 of them are decided." in page
    assert "1 stay decided.\nThe others, with their p-values: `b` (0.04)." in page
    assert "1 of 3 claims about trained networks were written" in page


def test_a_disagreement_without_a_paragraph_is_one_line(published: Path) -> None:
    (published / "disagreements.yaml").write_text("[]")
    with pytest.raises(InputError, match="b: list exactly the claims"):
        ledger.read_ledger(published)


def test_a_folder_without_tables_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no published claims"):
        ledger.read_ledger(tmp_path)
