"""A stage's figures, drawn by as many processes as there are cores where they are many."""

import multiprocessing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ncpipe.bounds import usable_cores
from ncpipe.figures.save import save_figure

FIGURES_PER_PROCESS = 6  # a process more, which takes two seconds to start, is worth it for so many

Figures = Mapping[str, Callable[[], Figure]]  # how each is drawn, by name
Taken = Any  # a number that processes share: multiprocessing has no type for it that it names


def draw(folder: Path, figures_of: Callable[[], Figures]) -> None:
    """Every figure as PNG and SVG in a folder. figures_of: gives them, and is called in each process anew."""
    figures = figures_of()
    workers = max(1, min(usable_cores(), len(figures) // FIGURES_PER_PROCESS))
    context = multiprocessing.get_context("spawn")
    taken = context.Value("i", 0)  # figures: each process takes the next one
    others = [
        context.Process(target=_draw_others, args=(folder, figures_of, taken), daemon=True)
        for _ in range(workers - 1)
    ]
    for other in others:
        other.start()
    own = set(_draw_next(folder, figures, taken, lambda: True))
    for other in others:
        other.join()
    if any(other.exitcode for other in others):  # it failed, and here it is said why
        for name in figures.keys() - own:
            save_figure(figures[name](), folder, name)


def _draw_others(folder: Path, figures_of: Callable[[], Figures], taken: Taken) -> None:
    """Some of the figures, in a process of their own, which ends with the one that started it."""
    starter = multiprocessing.parent_process()
    list(_draw_next(folder, figures_of(), taken, lambda: starter is not None and starter.is_alive()))


def _draw_next(folder: Path, figures: Figures, taken: Taken, wanted: Callable[[], bool]) -> Iterator[str]:
    """Draw one figure after another that nobody has taken, in their order; the names of those drawn."""
    names = list(figures)
    while wanted():
        with taken.get_lock():
            place = taken.value
            taken.value += 1
        if place >= len(names):
            return
        save_figure(figures[names[place]](), folder, names[place])
        yield names[place]
