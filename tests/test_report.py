"""The page of a study: what is in it, that it is whole and alone, and that nothing else makes it another."""

import base64
import json
import math
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest
from made_study import CLAIMS, RULE, tables, write_study
from ruamel.yaml import YAML

from ncpipe.commands.report import report
from ncpipe.config.yaml_file import read_yaml
from ncpipe.report.chart_data import chart_data, kept, number
from ncpipe.report.first_screen import asked, findings, how_sure, next_steps, rate_rows, trained
from ncpipe.report.grids import cell
from ncpipe.report.page import citing, script_json, typeset
from ncpipe.report.result_grids import side_by_side
from ncpipe.report.words import WORDS, network_words
from ncpipe.system.errors import InputError

ROOT = Path(__file__).resolve().parent.parent
PIPELINES = sorted([ROOT / "dvc.yaml", *ROOT.glob("stages/*/dvc.yaml")])
HOSTILE = 'Is </script><script>alert(1)</script> & "text" text?'
CHARTS = ("runs", "points", "slopes", "history", "measurements", "places")  # the tables that charts show
ABOUT = {"one": {"question": HOSTILE, "expected": "NC1 falls."}}


class Page(HTMLParser):
    """Elements with their attributes, the text outside scripts, and what the scripts hold."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text, self.scripts = "", []
        self.inside = ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self.inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self.inside = ""

    def handle_data(self, data):
        if self.inside == "script":
            self.scripts[-1] += data
        elif self.inside != "style":
            self.text += data

    def all(self, name):
        return [attrs[name] for _, attrs in self.elements if name in attrs]


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A study's folder with its page."""
    folder = tmp_path_factory.mktemp("study")
    write_study(folder, tables(), **ABOUT)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        report()
    return folder


@pytest.fixture(scope="module")
def page(study):
    return Page((study / "data/report.html").read_text(encoding="utf-8"))


def test_everything_is_on_the_page(page):
    """Red: a section left out; a reason that is not told; a word that only those who know the field read."""
    properties = WORDS["collapse"]["classes"]["properties"]
    kinds = ("terms", "headings", "marks", "verdicts")
    explained = [*properties, *(name for part in kinds for name in WORDS[part])]
    papers = [f"{name}: {paper['authors']}, {paper['title']}" for name, paper in WORDS["papers"].items()]
    for words in (
        *(entry["says"] for entry in properties.values()),
        *explained,
        *papers,
        network_words("L-RN1", "post"),
        "Neural collapse against depth L",
        "12 networks of 2 experiments: L = ",
        "2 seeds at each.",
        "11 of 12 runs converged.",
        "3 claims: 1 agrees, 2 disagree (1 with a paper).",
        HOSTILE,
        "L^-0.50",
        "an interval needs two used runs at every point",
        "L-RN1 on digits, λ = 0.005",
        "one: 1 of 6 runs diverged (L = 5): lower optimizer.learning_rate",
        "one: c0de",
        "ncpipe 0.1.0, torch 2.13.0",
        "learning_rate: 0.01",
        "dvc repro",
        "University of Washington",
    ):
        assert words in page.text, words
    labels = page.all("alt")
    assert any(
        label.startswith("Collapse against depth L") and "one: NC1 too few runs for an interval" in label
        for label in labels
    )
    assert page.all("data-grid") == [
        "claims", "claims-not-run", "failed", "side-by-side", "slopes", "slopes-others", "runs",
    ]  # fmt: skip
    assert "nc2_etf" not in page.text


def test_the_first_screen_answers(study, page):
    """Before any question or claim: each experiment's powers, from slopes.csv. Red: another metric's column;
    an arrow where the interval has 0, or where a depth has one run and there is none."""
    text = (study / "data/report.html").read_text(encoding="utf-8")
    parts = ("result", "experiments", "claims", "figures")
    places = [text.index(f'<section id="{name}"') for name in parts]
    assert places == sorted(places)
    first = text[places[0] : places[1]]
    assert first.index('id="rates"') < first.index('id="f-depth_sweep"')
    rows = first.split("<tr>")[2:]
    slopes = pd.read_csv(study / "data/results/slopes.csv").set_index(["experiment", "metric", "split"])
    for row, name in zip(rows, ("one", "two"), strict=True):
        fit = slopes.loc[(name, "nc1_trace_ratio", "train")]
        cell = re.search(r'<td data-column="NC1" title="(.*?)">(.*?)</td>', row)
        interval = f" [{fit['low']:z.2f}, {fit['high']:z.2f}]" if name == "two" else ""
        assert cell[2].endswith(f"L<sup>{fit['slope']:.2f}</sup>{interval}".replace("-", "−"))
        assert repr(float(fit["slope"])) in cell[1]
        assert [arrow in cell[2] for arrow in "↓→"] == [fit["high"] < 0, fit["low"] <= 0 <= fit["high"]]
        assert f"{fit['n_used']:.0f}" in re.search(r'data-column="runs used">(.*?)</td>', row)[1]


def test_red_is_what_contradicts_a_paper(page):
    """Red: a sentence of ours, in the colour of a contradiction."""
    tones = [attrs.get("class", "") for tag, attrs in page.elements if attrs.get("data-column") == "verdict"]
    assert tones == ["bad", "open", "good"]  # disagrees, disagrees (ours), agrees


def test_runs_that_count_without_having_converged_are_named():
    """Red: a page that calls a run left out that its means use."""
    runs = tables()["runs"]
    assert "Left out of all means and powers: 1 of 12." in how_sure(runs, 0.95, "")[0]
    moving = how_sure(runs.assign(selected=True), 0.95, "")[0]
    assert "11 of 12 runs converged" in moving
    assert "Used although they did not converge: 1 of 12." in moving
    assert "Left out" not in moving


def test_what_was_trained_and_what_comes_next():
    """Red: seeds that are asked for where all is clear; a run that did not converge and is not named."""
    runs, rows = tables()["runs"], rate_rows(*(tables()[name] for name in ("runs", "points", "slopes")), {})
    values = ", ".join(map(str, sorted(set(runs["depth"]))))
    assert trained(runs) == f"12 networks of 2 experiments: L = {values}, 2 seeds at each."
    assert next_steps(runs, rows)[0] == "1 of 12 runs diverged: lower optimizer.learning_rate."
    moving = runs.assign(reason=runs["reason"].replace("diverged", "loss moving"))
    assert next_steps(moving, rows)[0].startswith("1 of 12 runs ended before they converged: more epochs")
    clear = next_steps(runs.assign(reason=""), rows)
    assert len(clear) == 1
    assert "only new networks train" in clear[0]
    assert next_steps(runs.assign(reason="", seed=0), rows)[0].startswith("Add seeds")


def test_the_question_has_the_condition_of_two_layer_blocks():
    """Theorem 4.6 of S25; under a constant penalty their optima need not collapse (App. C)."""
    runs = tables()["runs"]
    assert "as L grows." in " ".join(asked(runs, {}))
    assert "if the inner λ falls as 1/L" in " ".join(asked(runs.assign(architecture="L-RN2"), {}))
    assert "S25" not in " ".join(asked(runs.assign(architecture="mlp"), {}))


def test_regression_has_its_own_columns():
    """Red: dashes below NC1 to NC3, which vectors as targets do not have."""
    made = tables(metrics=[("nrc1", "train"), ("nrc2", "train"), ("loss_gap", "train")])
    names = {"two": "", "one": ""}
    [one, two] = rate_rows(made["runs"], made["points"], made["slopes"], names)
    assert (one.line, two.line) == ("two", "one")
    assert list(one.rates) == ["NRC1", "NRC2", "loss gap"]
    assert "L^" in one.rates["NRC1"].text


def test_one_depth_has_means_in_place_of_rates():
    """Against the table. Red: `NC1 has no rate` as all that was found."""
    made = tables(("one",), depths=(3,))
    rows = made["points"].query("metric == 'nc1_trace_ratio' and split == 'train' and used")
    mean = math.exp(sum(map(math.log, rows["value"])) / len(rows))
    [row] = rate_rows(made["runs"], made["points"], made["slopes"], {"one": ""})
    assert row.rates["NC1"].text == f"{mean:.3g}"
    assert float(row.rates["NC1"].full.partition(",")[0]) == pytest.approx(mean)
    [sentence] = findings(made["runs"], made["points"], made["slopes"])
    assert sentence.startswith(f"one: NC1 is {mean:.2g}")
    assert "does it depend" not in asked(made["runs"], {})[0]


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("L^-0.37 [-0.43, -0.32]", "L<sup>−0.37</sup> [−0.43, −0.32]"),
        ("K^((L-3)/2) of L-RN1", "K^((L-3)/2) of L-RN1"),
        ("K^(-1/10), x^2", "K<sup>(−1/10)</sup>, x<sup>2</sup>"),
        ("below 1e-05, not 2.5e+03", "below 1 × 10<sup>−5</sup>, not 2.5 × 10<sup>3</sup>"),
        ("a <= -1 & <b>", "a ≤ −1 &amp; &lt;b&gt;"),
    ],
)
def test_powers_are_typeset(text, html):
    assert typeset(text) == html


@pytest.mark.parametrize(
    ("text", "linked"),
    [
        ("Do runs collapse more or less with loss.epsilon?", ["runs"]),
        ("The key penalty.W or `loss`, a lossless L-RN1", []),
        ("`converged`, then converged.", ["converged"]),
        ("The loss. W, then the loss", ["loss", "W"]),
    ],
)
def test_words_are_linked_where_they_are_words(text, linked):
    """Red: `loss` underlined as a term in a key of params.yaml."""
    assert re.findall(r">([^<>]+)</a>", citing({})(text)) == linked


def test_claims_are_whose_they_are():
    """Red: "sentences of papers" about claims that the user wrote."""
    assert "paper" not in how_sure(tables()["runs"], 0.95, "2 claims: 2 agree")[1]
    assert "not an error" in how_sure(tables()["runs"], 0.95, "1 claim: 1 disagrees (0 with a paper)")[1]


def test_metrics_of_the_history_are_curves_by_their_labels():
    """NC through training. Red: a chooser of `nc1_trace_ratio_test`."""
    made = tables(("one",), (2, 3))
    made["history"] = made["history"].assign(nc1_trace_ratio=0.5, nc1_trace_ratio_test=0.7)
    history = chart_data(*(made[name] for name in CHARTS))["history"]
    assert next(iter(history["titles"])) == "nc1_trace_ratio"  # what the chart shows first
    assert history["titles"]["nc1_trace_ratio"] == "NC1"
    assert history["titles"]["nc1_trace_ratio_test"] == "NC1, test"
    assert history["columns"]["nc1_trace_ratio_test"] == [[0.7] * 5] * 4


def test_experiments_stand_side_by_side():
    """Against the tables. Red: the other way round; runs of one seed as independent."""
    made = tables(seeds=(0, 1, 2))
    [grid] = side_by_side(made["runs"], made["points"], RULE)
    rows = {(row[0].text, row[1].text): row for row in grid.rows}
    row = rows[("power of NC1", "two")]
    slopes = made["slopes"].set_index(["experiment", "metric", "split"])["slope"]
    one, two = (slopes[(name, "nc1_trace_ratio", "train")] for name in ("one", "two"))
    assert [cell.value for cell in row[2:]] == pytest.approx([two, one, two - one])
    assert "[" in row[4].text
    assert ("log10 of NC1 at L = 5", "two") in rows
    assert side_by_side(*(tables(("one",))[name] for name in ("runs", "points")), RULE) == []
    vectors = made["points"]["metric"].where(made["points"]["experiment"] != "two", "nrc1")
    without = made["runs"].assign(loss_gap=math.nan)
    assert side_by_side(without, made["points"].assign(metric=vectors), RULE) == []


def test_only_metrics_that_are_headlines_of_both_stand_side_by_side():
    """Red: the distance to an ETF under cross-entropy beside that to the identity under the squared error."""
    made = tables(seeds=(0, 1, 2))
    runs, points = made["runs"], made["points"]
    etf = points[points["metric"] == "nc2_etf"]
    points = pd.concat([points, etf.assign(metric="nc2_identity")], ignore_index=True)
    square = runs["loss_name"].where(runs["experiment"] != "one", "mse")
    [grid] = side_by_side(runs.assign(loss_name=square, last_bias=False), points, RULE)
    assert {row[0].text for row in grid.rows} >= {"power of NC1", "power of NC3"}
    assert not [row[0].text for row in grid.rows if "NC2" in row[0].text]


def test_each_line_of_a_study_with_an_axis_has_its_own_depth(tmp_path, monkeypatch):
    """Red: every line named with the depth of the experiment's first run; text filled into a column that is
    read as numbers, as all runs converged."""
    made = tables(("one",), seeds=(0,))
    made["runs"] = made["runs"].assign(converged=True, selected=True, reason="")
    for name, table in made.items():
        by_x = table.assign(x=table.get("depth", 1), axis="data.noise")
        made[name] = pd.concat([by_x.assign(depth=depth) for depth in (2, 8)], ignore_index=True)
    runs = made["runs"].drop_duplicates("depth")
    write_study(tmp_path, made | {"runs": runs})
    made["runs"].to_csv(tmp_path / "data/results/runs.csv", index=False)
    params = YAML(typ="safe").load((tmp_path / "params.yaml").read_text(encoding="utf-8"))
    params["sweep"] |= {"axis": "data.noise", "values": [2, 3, 5]}
    with (tmp_path / "params.yaml").open("w", encoding="utf-8") as file:
        YAML().dump(params, file)
    for depth, x in [(depth, x) for depth in (2, 8) for x in (2, 3, 5)]:
        run = tmp_path / f"data/runs/one/L{depth}/s0"
        shutil.copytree(run, run.parent / f"x{x}/s0")
    monkeypatch.chdir(tmp_path)
    report()
    text = Page((tmp_path / "data/report.html").read_text(encoding="utf-8")).text
    for depths in ("2", "8", "2, 8"):  # two rows of the first table, and the experiment
        assert f"L-RN1 on digits, L = {depths}, λ = 0.005\n" in text
    assert "x is data.noise." in text
    assert "data.noise−" not in text  # a key of params.yaml as the base of each power makes a table too wide


def test_nothing_is_asked_of_a_network(page):
    """Every address is of the page's own or holds what it stands for; and the page forbids the others."""
    asking = [
        attrs.get(name, "#")
        for tag, attrs in page.elements
        for name in ("href", "src", "xlink:href", "action")
        if (tag, name) != ("a", "href")
    ]
    assert [address for address in asking if not address.startswith(("#", "data:"))] == []
    links = [attrs["href"] for tag, attrs in page.elements if tag == "a"]
    leaving = {address for address in links if not address.startswith(("#", "data:"))}
    assert leaving == {paper["link"] for paper in WORDS["papers"].values()}  # followed by a click alone
    policies = [
        attrs["content"] for _, attrs in page.elements if attrs.get("http-equiv") == "Content-Security-Policy"
    ]
    assert len(policies) == 1
    assert policies[0].startswith("default-src 'none'")
    assert "connect-src" not in policies[0]


def held_by(address):
    """The type and the bytes of a data URI."""
    kind, text = address.split(";base64,")
    return kind, base64.b64decode(text)


def test_figures_are_on_the_page_to_the_byte(study, page):
    """Red: a figure in another's place; one that a reader who hears the page learns nothing of."""
    images = [attrs for tag, attrs in page.elements if tag == "img"]
    drawn = [study / f"data/figures/{name}.svg" for name in ("depth_sweep", "loss_gap")]
    for attrs, path in zip(images, [ROOT / "docs/collapse.svg", *drawn], strict=True):
        assert held_by(attrs["src"]) == ("data:image/svg+xml", path.read_bytes())
        assert attrs["alt"]
    ids = page.all("id")
    assert len(ids) == len(set(ids))
    aims = [aim.removeprefix("#") for aim in page.all("href") if aim.startswith("#")]
    assert {*page.all("aria-labelledby"), *aims} <= {*ids}
    assert {"word-S25", "word-NC2", "word-loss-gap"} <= {*aims}


def test_tables_are_behind_their_links_to_the_byte(study, page):
    links = {
        attrs["download"]: attrs["href"] for tag, attrs in page.elements if tag == "a" and "download" in attrs
    }
    assert set(links) == {"claims.csv", "slopes.csv", "runs.csv"}
    for name, address in links.items():
        folder = "claims" if name == "claims.csv" else "results"
        assert held_by(address)[1] == (study / f"data/{folder}/{name}").read_bytes()
    assert (study / "data/claims/claims.csv").read_text() == CLAIMS


def test_charts_have_every_run(study, page):
    """Against the tables themselves. Red: a run in another's place; an unused run without its reason."""
    data = json.loads(page.scripts[0])
    points = pd.read_csv(study / "data/results/points.csv").fillna({"reason": ""})
    runs = data["runs"]
    count = 0
    for series in data["series"]:
        for i, value in enumerate(series["values"]):
            place = {
                "experiment": data["lines"][runs["line"][i]], "depth": runs["x"][i], "seed": runs["seed"][i],
                "metric": series["metric"], "split": series["split"],
            }  # fmt: skip
            row = points[(points[list(place)] == pd.Series(place)).all(axis=1)]
            assert len(row) == 1
            assert value == pytest.approx(row["value"].item(), rel=1e-4)
            assert series["reasons"].get(str(i), "") == row["reason"].item()
            count += 1
    assert count == len(points)
    assert [series["title"] for series in data["series"]][:2] == ["NC1", "NC2 (ETF)"]
    slopes = pd.read_csv(study / "data/results/slopes.csv")
    assert sum(len(series["fits"]) for series in data["series"]) == len(slopes)
    assert {series["log"] for series in data["series"] if series["metric"] == "rank_means"} == {False}


def test_charts_have_every_layer_of_every_run(study, page):
    """Against the tables. Red: a run in another's place; a layer in another's."""
    data = json.loads(page.scripts[0])
    layers, runs = data["layers"], data["runs"]
    measured = pd.concat(pd.read_csv(path) for path in study.glob("data/metrics/*/measurements.csv"))
    keys = ["experiment", "depth", "seed", "layer", "metric", "split"]
    values = measured.set_index(keys)["value"].to_dict()
    charted = {}
    for series in layers["series"]:
        for i, (net, run_values) in enumerate(zip(layers["which"], series["values"], strict=True)):
            for layer, value in zip(layers["nets"][net]["layer"], run_values, strict=True):
                key = (data["lines"][runs["line"][i]], runs["x"][i], runs["seed"][i], layer)
                charted[(*key, series["metric"], series["split"])] = math.nan if value is None else value
    for key, value in values.items():
        assert charted[key] == pytest.approx(value, rel=1e-3, nan_ok=True), key
    assert all(math.isnan(value) for key, value in charted.items() if key not in values)


def test_charts_have_every_epoch(page):
    history = json.loads(page.scripts[0])["history"]
    assert history["epochs"] == [[0, 10, 20, 30, 40]]
    assert set(history["which"]) == {0}
    assert history["titles"]["train_error"] == "train error"
    assert history["columns"]["loss"] == [pytest.approx([1, 1 / 2, 1 / 3, 1 / 4, 1 / 5], rel=1e-4)] * 12


def test_the_page_is_the_same_to_the_byte(study):
    """By a process with other hashes. Red: a time, a folder's name or the order of a set in it."""
    page = study / "data/report.html"
    before = page.read_bytes()
    code = "import time; from ncpipe.commands.report import report; time.time = lambda: 0.0; report()"
    environment = os.environ | {"PYTHONHASHSEED": "1"}
    subprocess.run([sys.executable, "-c", code], cwd=study, env=environment, check=True)
    assert page.read_bytes() == before
    assert str(study).encode() not in before


def test_numbers_that_json_has_none_for():
    values = [number(value) for value in (math.inf, math.nan, 0.1234567, 2.0, 1e300)]
    assert values == [None, None, 0.12346, 2, 1e300]
    assert script_json({"a": "</script><!--"}) == '{"a":"\\u003c/script>\\u003c!--"}'
    texts = [cell(value).text for value in (True, 0.000012345, -0.5, math.nan, "x", None)]
    assert texts == ["yes", "1.23e−05", "−0.5", "", "x", ""]


@pytest.mark.parametrize(
    ("rows", "first", "count"), [(0, [], 0), (1, [0], 1), (200, [0, 1], 200), (1001, [0, 6], 168)]
)
def test_long_histories_keep_their_ends(rows, first, count):
    places = kept(rows)
    assert places[:2] == first
    assert len(places) == count
    assert not rows or places[-1] == rows - 1


@pytest.mark.parametrize(
    ("missing", "advice"),
    [
        ("results/runs.csv", "; run dvc repro (stage aggregate)"),
        ("metrics/one/measurements.csv", "; run dvc repro (stage measure)"),
        ("figures/depth_sweep.svg", "; run dvc repro (stage plot)"),
        ("runs/one/L2/s0/run.json", ""),
    ],
)
def test_what_is_missing_is_named(missing, advice, tmp_path, monkeypatch):
    write_study(tmp_path, tables(("one",), (2, 3)))
    (tmp_path / "data" / missing).unlink()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=re.escape(f"data/{missing}: not found{advice}")):
        report()
    assert not list(tmp_path.glob("data/*report*"))


@pytest.mark.parametrize("path", PIPELINES, ids=lambda p: p.parent.name)
def test_the_page_is_the_last_stage_and_alone_knows_what_was_asked(path):
    """It waits for all that the study makes. Red: `about` among the params of another stage."""
    listed = YAML(typ="safe").load(path)["stages"]
    stages = {name: stage.get("do", stage) for name, stage in listed.items()}
    names = [name for name, stage in stages.items() if "about" in stage.get("params", [])]
    known = path.with_name("params.yaml").is_file()
    assert names == (["report"] if known else [])
    read = {str(dep) for stage in stages.values() for dep in stage.get("deps", [])}
    made = [out for stage in stages.values() for out in stage.get("outs", [])]
    ends = [out for out in made if not any(_holds(dep, out) for dep in read)]
    assert ends == ["data/report.html"]
    if known:
        params = read_yaml(path.with_name("params.yaml"))
        assert set(params["sweep"]["experiments"]) <= set(params["about"]), "say what an experiment is for"


def _holds(dependency, out):
    return out == dependency or out.startswith(f"{dependency}/") or dependency.startswith(f"{out}/")


def test_a_page_to_send_says_where_it_is_from(study, tmp_path, monkeypatch):
    """And the stage's does not."""
    monkeypatch.chdir(study)
    report(tmp_path / "page.html")
    sent = (tmp_path / "page.html").read_text(encoding="utf-8")
    match = re.search(
        r"<dt>Written on</dt><dd>processor (.*?), cores (\d+), memory_gb \d+, system \w+</dd>", sent
    )
    assert re.search(r"<dt>Written with</dt><dd>python 3[\d.]+, torch \S+, numpy .*, dvc [\d.]+</dd>", sent)
    assert match
    assert match[1] not in (study / "data/report.html").read_text(encoding="utf-8")
