"""A stage's figures, drawn by as many processes as there are cores where they are many."""

import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from ncpipe.bounds import usable_cores
from ncpipe.figures.save import save_figure

FIGURES_PER_PROCESS = 6  # a process more, which takes two seconds to start, is worth it for so many

Figures = Mapping[str, Callable[[], Figure]]  # how each is drawn, by name


def draw(folder: Path, figures_of: Callable[[], Figures]) -> None:
    """Every figure as PNG and SVG in a folder. figures_of: gives them, and is called in each process anew."""
    figures = figures_of()
    workers = max(1, min(usable_cores(), len(figures) // FIGURES_PER_PROCESS))
    own, *shares = (list(figures)[start::workers] for start in range(workers))
    context = multiprocessing.get_context("spawn")
    others = [
        context.Process(target=_draw, args=(folder, figures_of, names), daemon=True) for names in shares
    ]
    for other in others:
        other.start()
    for name in own:
        save_figure(figures[name](), folder, name)
    for other, names in zip(others, shares, strict=True):
        other.join()
        if other.exitcode:  # it failed, and here it is said why
            for name in names:
                save_figure(figures[name](), folder, name)


def _draw(folder: Path, figures_of: Callable[[], Figures], names: Sequence[str]) -> None:
    """Some of the figures, in a process of their own, which ends with the one that started it."""
    figures = figures_of()
    starter = multiprocessing.parent_process()
    for name in names:
        if starter is None or not starter.is_alive():
            return
        save_figure(figures[name](), folder, name)
