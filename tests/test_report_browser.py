"""The page in a headless Chromium: it draws, asks nobody for anything, and does what it is asked."""

import shutil
import subprocess
from collections.abc import Iterator

import pytest
from made_study import tables, write_study

from ncpipe.commands.report import report

sync_api = pytest.importorskip("playwright.sync_api", reason="no playwright: uv sync --group browser")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the path: apt-get install chromium")
SIZES = {"wide": (1280, 900, "light"), "narrow": (390, 844, "dark")}
# What no width decides is tried at one.
one_width = pytest.mark.parametrize("page", ["wide"], indirect=True)


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    write_study(folder, tables(), one={"question": "Does it fall?"})
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        report()
    return (folder / "data/report.html").as_uri()


@pytest.fixture(scope="module", params=SIZES)
def page(request, browser, address) -> Iterator:
    """The page, drawn; whatever it said or asked for is looked at when its tests are over."""
    width, height, scheme = SIZES[request.param]
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    page = context.new_page()
    messages, addresses = [], []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("request", lambda asking: addresses.append(asking.url))
    page.goto(address)
    page.wait_for_function("document.documentElement.dataset.drawn === 'yes'", timeout=30_000)
    yield page
    context.close()
    assert messages == []
    assert [url for url in addresses if not url.startswith("data:")] == [address]


def marks(page, chart):
    """Places of the marks of a chart."""
    return page.eval_on_selector_all(
        f"#{chart} svg .mark-symbol path", "all => all.map(each => each.getAttribute('transform'))"
    )


def labels(page):
    """What the single runs of the panel tell of themselves."""
    texts = page.eval_on_selector_all(
        "#panel svg .mark-symbol path",
        "all => all.map(each => each.getAttribute('aria-label')).filter(Boolean)",
    )
    return [text for text in texts if "seed" in text]


def test_it_is_as_wide_as_the_window(page):
    """Red: a chart or table that pushes the page over the window's edge."""
    assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0


def test_a_table_that_is_wider_than_its_box_says_so(page):
    """Red: columns cut off without a sign that there are more."""
    boxes = page.eval_on_selector_all(
        ".scroll", "all => all.map(e => [e.scrollWidth > e.clientWidth + 1, e.hasAttribute('data-wide')])"
    )
    assert all(wide == marked for wide, marked in boxes)
    if page.viewport_size["width"] < 400:
        assert [True, True] in boxes
        cue = "getComputedStyle(document.querySelector('.scroll[data-wide]'), '::before').content"
        assert "scroll" in page.evaluate(cue)


@one_width
def test_every_run_is_drawn_and_tells_of_itself(page):
    """Red: a run left out; a hollow one that does not say why it is."""
    runs = labels(page)
    assert len(runs) == 12
    assert sum("diverged" in text for text in runs) == 1
    page.locator("#panel svg .mark-symbol path[aria-label*='diverged']").hover()
    page.wait_for_selector("#vg-tooltip-element.visible")
    tooltip = page.locator("#vg-tooltip-element").inner_text()
    assert all(words in tooltip for words in ("seed", "diverged", "one"))


@one_width
def test_a_choice_changes_the_chart(page):
    """Red: a chooser that no chart hears of."""
    before = marks(page, "panel")
    page.select_option("#metric", "rank_means")
    page.wait_for_function("document.querySelector('#panel svg').textContent.includes('rank means')")
    assert marks(page, "panel") != before
    page.select_option("#metric", "nc1_trace_ratio")
    page.select_option("#split", "test")
    page.select_option("#against", "layer")
    page.wait_for_function("document.querySelector('#panel svg').textContent.includes('layer')")
    assert not page.locator("#layer").is_visible()
    texts = labels(page)
    assert len(texts) == 32  # 12 runs at the last layer, 12 at X1, 8 at X2, which a network of 2 blocks lacks
    assert sum("diverged" in text for text in texts) == 3
    page.select_option("#against", "x")
    page.select_option("#layer", "X2")
    page.wait_for_function("document.querySelector('#panel-says').textContent.includes('Single runs')")
    texts = labels(page)
    assert len(texts) == 8
    assert all("seed" in text for text in texts)
    assert sum("not converged: diverged" in text for text in texts) == 1
    page.select_option("#layer", "")
    page.select_option("#split", "train")
    page.uncheck("#panel-choice input[value='0']")
    page.wait_for_function("!document.querySelector('#panel svg').textContent.includes('one')")
    says = page.locator("#panel-says").inner_text()
    assert "two " in says
    assert "L−0.4" in says
    assert "one " not in says
    page.check("#panel-choice input[value='0']")


@one_width
def test_training_curves_follow_their_choice(page):
    page.select_option("#quantity", "train_error")
    page.wait_for_function("document.querySelector('#curves-say').textContent.includes('no place')")
    page.select_option("#curve-scale", "linear")
    page.wait_for_function("document.querySelector('#curve-chart svg').textContent.includes('train error')")
    page.select_option("#curve-x", "3")
    page.wait_for_function("document.querySelectorAll('#curve-chart svg .mark-line path').length === 2")


@one_width
def test_tables_sort_and_filter(page):
    """By number, not by text; up, then down."""
    table = page.locator("table[data-grid=runs]")
    column = table.locator("th").all_inner_texts().index("L") + 1
    cells = table.locator(f"tbody td:nth-child({column})")
    table.locator(f"th:nth-child({column}) button").press("Enter")
    assert cells.all_inner_texts() == [str(L) for L in (2, 3, 5) for _ in range(4)]
    table.locator(f"th:nth-child({column}) button").click()
    assert cells.all_inner_texts() == [str(L) for L in (5, 3, 2) for _ in range(4)]
    assert table.locator(f"th:nth-child({column})").get_attribute("aria-sort") == "descending"
    page.fill("input[data-filter=runs]", "two 3")
    assert table.locator("tbody tr:visible").count() == 2
    assert page.locator("[data-count=runs]").inner_text() == "2 of 12 rows"
    page.fill("input[data-filter=runs]", "")


def test_figures_are_large_enough_to_read(page):
    """On a phone they scroll sideways, with their captions in place. Red: text of five pixels."""
    for figure in page.locator("figure").all():
        assert figure.locator("img").bounding_box()["width"] >= 600
        caption = figure.locator("figcaption").bounding_box()
        assert caption["x"] + caption["width"] <= page.viewport_size["width"]


def test_a_figure_is_enlarged_by_the_keyboard(page):
    """Red: a figure that is no larger on a phone than on the page."""
    page.locator("#f-depth_sweep button.zoom").press("Enter")
    assert page.locator("dialog#large").is_visible()
    assert "L^-0.50" in page.locator("dialog#large .paper").get_attribute("alt")
    assert page.locator("dialog#large .paper").bounding_box()["width"] > 800
    page.keyboard.press("Escape")
    assert not page.locator("dialog#large").is_visible()


def test_axe_finds_nothing(page):
    """Every rule of axe-core, with all that is folded open; in the dark that of contrast alone.

    Red: grey text of too little contrast.
    """
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="uv sync --group browser").Axe()
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    dark = page.viewport_size["width"] == SIZES["narrow"][0]
    rules = {"runOnly": ["color-contrast"]} if dark else {}
    result = axe.run(page, options={"resultTypes": ["violations"], **rules})
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = false; })")
    assert result.violations_count == 0, result.generate_report()


@one_width
def test_a_print_shows_tables_whole_and_no_tools(page, tmp_path):
    """Red: charts, choosers and licences of a screen on paper; a table that is cut off or has no heading."""
    page.emulate_media(media="print")
    assert not page.locator(".chooser").first.is_visible()
    assert page.evaluate("getComputedStyle(document.querySelector('.scroll')).maxHeight") == "none"
    width, height = page.viewport_size.values()
    page.set_viewport_size({"width": 690, "height": 980})  # A4 between its margins
    for name in ("claims", "slopes"):
        table = page.locator(f"table[data-grid={name}]")
        assert table.evaluate("table => table.scrollWidth - table.closest('.grid').clientWidth") <= 0, name
    heading = page.locator("table[data-grid=claims] thead")
    assert heading.evaluate("each => getComputedStyle(each).display") == "table-header-group"  # on each page
    page.set_viewport_size({"width": width, "height": height})
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    if (pdftotext := shutil.which("pdftotext")) is None:
        page.emulate_media(media="screen")
        pytest.skip("no pdftotext on the path: apt-get install poppler-utils")
    page.pdf(path=tmp_path / "page.pdf", format="A4")
    pdf = subprocess.run([pdftotext, "-layout", tmp_path / "page.pdf", "-"], capture_output=True, text=True)
    assert "learning_rate" in pdf.stdout  # parameters, which a screen opens by a click
    for of_a_screen in ("and all rights", "of claims.yaml, about", "pointed at"):
        assert of_a_screen not in pdf.stdout
    page.emulate_media(media="screen")
