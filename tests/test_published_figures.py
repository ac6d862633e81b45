"""Published figures: each is drawn again from its table, and shows the same; run by `-m long`."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import continued
import image_numbers
import low_rank_figures
import pandas as pd
import pytest
import trends
from matplotlib.figure import Figure
from PIL import Image
from pipeline import ROOT

from ncpipe.commands.plot import figures_of_published, read_published
from ncpipe.figures.save import content_digest, save_figure
from ncpipe.papers.s24.figures.heads import ranks_by_value
from ncpipe.system.artifacts import read_json

DOCS = ROOT / "docs"
RESULTS = DOCS / "results"
# Rows of the figures that the text puts together from several folders.
TOGETHER = {
    "figure_1": ("cifar10_rn1", "cifar10_t11_1000", "imdb_pre_t11_500", "mnist_rn2"),
    "figure_2": ("mnist_rn1", "mnist_t11_1000", "mnist_rn2_constant"),
}
HEADS = {
    f"{source}_{kind}": f"{title}, {regularised}"
    for source, title in (("mnist", "MNIST"), ("cifar10", "CIFAR-10"))
    for kind, regularised in (("dufm", "DUFM-like"), ("standard", "standard"))
}
UNDRAWN = {
    "constructed_gap.png": "stages/theory draws it in seconds from constructions, without a table of runs",
    "depth_sweep.png": "the default sweep's own figure; its tables are not published",
    "language_model.png": "the page's own example, which test_docs_examples.py runs",
    "low_rank_real.png": "epochs of the runs, of which no table is published",
    "regimes_models.png": "stages/regimes_models draws it from closed forms, without runs",
    "report.png": "a photograph of the report",
}


def drawn() -> Iterator[tuple[str, Callable[[], Figure]]]:
    """Yield each figure below docs that is made of published tables, by its path without suffix."""
    for folder in sorted(path.parent for path in RESULTS.glob("*/points.csv")):
        further = read_json(folder / "provenance.json").get("figures", {})
        for name in ("depth_sweep", "loss_gap", "panels", *further):
            if (folder / f"{name}.png").is_file():
                yield f"results/{folder.name}/{name}", partial(again, (folder.name,), name)
    yield "results/transformers_images/images", image_numbers.draw
    yield "results/stationary/continued", continued.draw
    yield "results/trends/forest", trends.forest
    for panel in trends.panels():
        if panel.more:
            yield f"results/trends/{trends.SEEDS}", partial(trends.single_networks, panel)
    for (folder, figure), panels in trends.LINES.items():
        yield f"results/{folder}/{figure}", partial(trends.lines, panels, folder)
    for name, draw in low_rank_figures.figures().items():
        yield f"results/low_rank/s24/{name}", draw
    for name, folders in TOGETHER.items():
        yield name, partial(again, folders, "depth_sweep")
    runs = pd.read_csv(RESULTS / "low_rank_real/runs.csv")
    yield "low_rank_real_ranks", partial(ranks_by_value, runs, 10, r"$\lambda$", HEADS)


def again(folders: tuple[str, ...], name: str) -> Figure:
    return dict(figures_of_published(read_published([RESULTS / folder for folder in folders])))[name]


DRAWN: Mapping[str, Callable[[], Figure]] = dict(drawn())


def test_every_picture_is_drawn_again_or_has_a_reason() -> None:
    """Red: a published picture that nothing compares with its numbers."""
    pictures = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.png")}
    assert pictures == {f"{name}.png" for name in DRAWN} | set(UNDRAWN)


@pytest.mark.long
@pytest.mark.parametrize("name", DRAWN)
def test_a_published_figure_shows_its_table(name: str) -> None:
    """Red: a picture that is older than its table, or than the words that the code now gives it."""
    digest = content_digest(DRAWN[name]())
    assert Image.open(DOCS / f"{name}.png").text["Description"] == digest
    svg = DOCS / f"{name}.svg"
    assert not svg.exists() or digest in svg.read_text(encoding="utf-8")


def test_another_number_or_word_is_another_digest(tmp_path: Path) -> None:
    """Red: a digest that leaves out lines, runs, fits or labels; one that rounding changes."""

    def digest(x: float = 1.0, word: str = "a", run: float = 3.0) -> str:
        figure = Figure()
        axes = figure.subplots()
        axes.plot([1, 2], [x, 2.0], label=word)
        axes.scatter([1], [run])
        axes.legend()
        axes.set_ylabel("reduced")
        png, svg = save_figure(figure, tmp_path, "x")
        said = Image.open(png).text["Description"]
        assert said == content_digest(figure)
        assert said in svg.read_text(encoding="utf-8")
        return said

    assert digest() == digest(1 + 1e-12)
    assert len({digest(), digest(x=1.001), digest(word="b"), digest(run=3.01)}) == 4
