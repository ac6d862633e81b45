"""Numbers in prose about published runs, and docs/ledger.py: each number comes from a published table."""

import re
from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import yaml
from conftest import loaded
from scipy import stats

from ncpipe.system.errors import InputError
from ncpipe.tables.headlines import nc2_of

ROOT = Path(__file__).resolve().parent.parent
render, trends, ledger = (
    loaded(ROOT / f"docs/{name}.py") for name in ("results/render", "results/trends", "ledger")
)

# What the template's prose may have in digits: names, places in a paper, depths, and settings of params.yaml.
NAMES = [
    r"NC[123]", "S25", r"L-RN[12]", r"L-T11", "CIFAR-10", r"Figures? [12](?: and 2)?",
    r"rows? \d(?: and \d)?", r"Fig\. [12]", r"(?:Theorem|Thm) \d\.\d", r"eq\. 7", r"(?:sec\.|[Ss]ection) 5",
    r"L = \d+(?:, \d+)*", "1/L", "95 %",
    r"λ(?:_L)? = [\d.]+(?:/L)?", "0.005/L", r"β₂ = [\d.]+", r"0\.9(?:5|99)", "ε = 1e-8", "ε = 1e-6",
    "depths to 13", "close to 0", "all 0", "→ 0", "exclude 0", r"L\^",
]  # fmt: skip


def prose(template: str) -> str:
    """Return the template without code, links' targets and what is filled in."""
    images, links, code = r"!\[[^\]]*\]\([^)]*\)", r"\]\([^)]*\)", r"`[^`\n]*`"
    for pattern in (r"\{#.*?#\}", r"\{%.*?%\}", r"\{\{.*?\}\}", "```.*?```", code, images, links):
        template = re.sub(pattern, " ", template, flags=re.DOTALL)
    return template


def own_numbers(template: str) -> list[str]:
    text = re.sub("|".join(sorted(NAMES, key=len, reverse=True)), " ", prose(template))
    return re.findall(r"\S*\d\S*", text)


@pytest.mark.parametrize(("page", "written"), [("README", render.rendered), ("trends", trends.page)])
def test_a_page_of_results_is_what_its_tables_give(page: str, written: Callable[[], str]) -> None:
    """Red: a number edited in the page, or a folder published again without the script that writes it."""
    assert (ROOT / f"docs/results/{page}.md").read_text(encoding="utf-8") == written()


def test_a_slope_of_the_trends_is_polyfits_over_its_own_runs() -> None:
    """Independently from points.csv. Red: another panel's runs, other depths or seeds than the choice's."""
    (panel,) = [panel for panel in trends.panels() if panel.panel == "Figure 2, a"]
    (batches,) = [choice for choice in panel.choices if choice.folder == "mini_batches"]
    (same,) = [runs for runs, choices in panel.groups() if batches in choices]
    points = render.published("mnist_rn1", "points")
    rows = points[(points["metric"] == "nc3_cosine") & (points["split"] == "train") & points["used"]]
    rows = rows[rows["depth"].isin([2, 8, 13, 34]) & rows["seed"].isin([0, 1, 2])]
    slope = np.polyfit(np.log10(rows["depth"]), np.log10(rows["value"]), 1)[0]
    assert trends.fit(same, "NC3")["slope"] == pytest.approx(slope, rel=1e-9)
    section = (ROOT / "docs/results/trends.md").read_text(encoding="utf-8").split("## Figure 2, a")[1]
    lines = [line.split("|") for line in section.split("\n## ")[0].splitlines()]
    (row,) = [line for line in lines if line[1:2] == [" published, 3 seeds "] and "13, 34" in line[3]]
    assert f"{slope:z.2f} [" in row[6]


def test_runs_of_lowest_loss_have_the_panels_objective() -> None:
    """From the tables. Red: λ_L = 0.005/L among them, under which every loss is lower; runs left out; a depth
    at which some choices have no run, so that trainings change with depth."""
    (panel,) = [panel for panel in trends.panels() if panel.panel == "Figure 1, row 4"]
    lowest = panel.lowest()
    assert lowest["depth"].tolist() == [2, 8]
    names = "optimizer_mnist", "trends_mnist_rn2_pytorch", "trends_mnist_rn2_he", "trends_mnist_rn2_half"
    runs = pd.concat([render.published(name, "runs") for name in ("mnist_rn2", *names)])
    same = (runs["penalty_rule"] == "over_depth") & (runs["penalty_last_layer"] == 0.005) & runs["selected"]
    least = runs[same].groupby("depth")["loss"].min()
    further = pd.read_csv(ROOT / "docs/results/stationary/continued.csv")
    further = further[(further["experiment"] == "mnist_rn2") & (further["iterations"] > 0)]
    least = least.combine(further.groupby("depth")["loss"].min(), min, fill_value=np.inf)
    np.testing.assert_array_equal(lowest["loss"], least[[2, 8]])
    assert "[" not in trends.cell(trends.fit(lowest, "NC1"))


def test_a_choice_of_one_depth_or_of_rounding_has_no_power() -> None:
    """Red: `rounding` for one depth; a power of values that float32 leaves."""
    runs = pd.DataFrame({"depth": [2, 2, 8, 8], "NC2": [1e-6, 2e-6, 3e-6, 1e-7], "NC1": [0.1, 0.2, 0.1, 0.3]})
    assert trends.cell(trends.fit(runs, "NC2")) == "rounding"
    assert trends.cell(trends.fit(runs[runs["depth"] == 2], "NC1")) == render.NOTHING
    slope = np.polyfit(np.log10(runs["depth"]), np.log10(runs["NC1"]), 1)[0]
    assert trends.cell(trends.fit(runs, "NC1")).startswith(f"{slope:.2f} [")


def test_a_slope_that_turns_back_is_undecided_in_table_and_figure() -> None:
    """Red: a line that a test rejects drawn as falling, where the metric rises again from the middle on."""
    values = {2: 1.0, 4: 0.01, 8: 0.009, 16: 0.02, 32: 0.02}  # falls by a line, rises from L = 8 on
    runs = pd.DataFrame(
        {"depth": depth, "NC1": value * scale} for depth, value in values.items() for scale in (1.0, 1.01)
    )
    turned, falling = trends.fit(runs, "NC1"), trends.fit(runs[runs["depth"] <= 8], "NC1")
    assert turned["high"] < 0
    assert falling["high"] < 0
    assert [trends.cell(fit)[-1] for fit in (turned, falling)] == ["‡", "†"]
    figure, axes = plt.subplots()
    trends._draw_slopes(axes, [("turned", runs, "o"), ("falling", runs[runs["depth"] <= 8], "o")], "NC1")
    plt.close(figure)
    assert [line.get_color() for line in axes.lines[1::2]] == [trends.UNCLEAR, trends.FALLS]


def test_its_prose_has_no_number_of_its_own() -> None:
    """Red: a number typed into the template, which no table holds."""
    template = (ROOT / "docs/results" / render.TEMPLATE).read_text(encoding="utf-8")
    assert own_numbers(template) == []
    assert own_numbers(template + "\nNC1 falls as L^-0.63 to 0.3.") == ["-0.63", "0.3."]


def test_the_docs_quote_published_rates() -> None:
    """Red: a quotation of another sweep, or any other power of L in README.md and the first pages."""
    pages = "".join(
        (ROOT / name).read_text(encoding="utf-8")
        for name in (
            "README.md",
            "docs/index.md",
            "docs/first_sweep.md",
            "docs/outputs.md",
            "docs/gallery.md",
        )
    )
    rates = (ROOT / "docs/results/cifar10_rn1/rates.txt").read_text(encoding="utf-8")
    quotation = f"```text\n{rates}```\n"
    assert quotation in pages
    assert re.findall(r"L\^-?\d|\d \[-?\d", pages.replace(quotation, "")) == []


@pytest.mark.parametrize(
    ("page", "folder", "pattern"),
    [
        ("gallery", "regimes_models", r"- (?P<agrees>\d+) of (?P<all>\d+) claims agree"),
        ("regimes", "regimes_models", r"^(?P<agrees>\d+) of (?P<all>\d+) claims agree"),
        ("low_rank_runs", "low_rank", r"study's (?P<all>\d+) \[published claims\]\S* (?P<agrees>\d+) agree"),
    ],
)
def test_counts_of_claims_in_prose_are_those_of_the_tables(page: str, folder: str, pattern: str) -> None:
    """Red: a claim that was added, dropped or judged anew, where the page has the old count."""
    text = (ROOT / f"docs/{page}.md").read_text(encoding="utf-8")
    [match] = re.finditer(pattern, text, re.MULTILINE)
    verdicts = render.published(folder, "claims")["verdict"]
    assert int(match["all"]) == len(verdicts)
    assert int(match["agrees"]) == (verdicts == "agrees").sum()


def deviations(panel: "render.Panel", metric: str, split: str) -> pd.DataFrame:
    """Return log10 values less their mean at each depth, seeds by depths."""
    rows = panel.points[(panel.points["metric"] == metric) & (panel.points["split"] == split)]
    values = rows[rows["used"]].pivot(index="seed", columns="depth", values="log10")
    return values - values.mean()


def correlation(tables: list[np.ndarray]) -> float:
    """Return the mean correlation of a seed's deviations at two depths, over all pairs of depths."""
    coefficients = [np.corrcoef(table.T)[np.triu_indices(table.shape[1], 1)] for table in tables]
    return float(np.mean(coefficients))


def test_what_seeds_share_is_that_of_published_sweeps() -> None:
    """docs/depth_rates.md. Red: numbers of a sweep that no table holds."""
    text = " ".join((ROOT / "docs/depth_rates.md").read_text(encoding="utf-8").split())
    series = [
        ("nc1_trace_ratio", "train"),
        (nc2_of("ce", last_bias=False), "weights"),
        ("nc3_cosine", "train"),
    ]
    shown = []
    for panel in (render.Panel("optimizer", "rn1_999"), render.Panel("mnist_rn1")):
        tables = [deviations(panel, *one).to_numpy() for one in series]
        shown.append(correlation(tables))
    one, other = (f"{value:.2f}".replace("-", "−") for value in shown)
    assert f"correlate by {one} (`rn1_999` of" in text
    assert f"{other} ([mnist_rn1]" in text


# docs/ledger.py: the ledger of all studies from published tables


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
