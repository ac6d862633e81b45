"""Lowest losses of the deep unconstrained features model that many starts find, beside its closed levels.

Run by hand: `uv run python benchmarks/low_rank.py --starts 384` prints the losses behind docs/low_rank.md, in
about 20 minutes on one core. n = 50 and lambda = .004 for features and all layers, as in S24's Figure 2.
"""

import argparse
from collections import Counter

import torch

from ncpipe.papers.s24.dufm import LEAST_CLASSES, dnc_loss, equal_decays, srg_loss
from ncpipe.papers.s24.dufm_numerical import minimise
from ncpipe.papers.s24.dufm_shapes import largest_points
from ncpipe.papers.s24.dufm_solutions import Solution, layers
from ncpipe.papers.s24.structure import classes_given_up, ranks, structure

PER_CLASS, DECAY = 50, 0.004
CASES = [
    *((2, k) for k in (10, 15)),
    *((3, k) for k in (6, 7, 10)),
    *((4, k) for k in (3, 4, 5, 6, 7, 10, 15)),
]
ALIKE = 2e-5  # ends within this of each other count as one solution
CHUNK = 96  # starts side by side


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, required=True, help="starts for each K and L")
    parser.add_argument("--seed", type=int, default=0, help="of the first start")
    parser.add_argument("--steps", type=int, default=4000)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    print(
        "| L | K | DNC | SRG | SRG-k | lowest | starts there | below DNC | below SRG | gave up | ranks | is |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    for depth, classes in CASES:
        print(row(depth, classes, chosen.starts, chosen.seed, chosen.steps), flush=True)


def row(depth: int, classes: int, starts: int, seed: int, steps: int) -> str:
    model = equal_decays(classes, PER_CLASS, depth, DECAY)
    dnc = dnc_loss(model)
    levels: list[float | None] = [None, None]
    if classes >= LEAST_CLASSES:
        levels = [srg_loss(model, minus) for minus in (2, largest_points(classes) // 2)]
    ends: list[tuple[float, Solution]] = []
    for first in range(0, starts, CHUNK):
        found = minimise(
            model, classes + 6, starts=min(CHUNK, starts - first), seed=seed + first, steps=steps
        )
        ends += zip(found.values.tolist(), found.solutions, strict=True)
    ends.sort(key=lambda end: end[0])
    values = torch.tensor([value for value, _ in ends])
    lowest, best = ends[0]
    hidden = layers(best.features, best.weights)
    given_up = Counter(classes_given_up(layers(end.features, end.weights)[-1]) > 0 for _, end in ends)
    after = [matrix.clamp(min=0) for matrix in hidden[:-1]]
    kinds = f"{'-'.join(f'{rank:g}' for rank in ranks(hidden[:-1]))} / {ranks(after)[-1]:g}"
    cells = [
        f"{depth}",
        f"{classes}",
        f"{dnc:.6f}",
        *("-" if level is None else f"{level:.6f}" for level in levels),
        f"{lowest:.6f}",
        f"{int((values < lowest + ALIKE).sum())} of {starts}",
        f"{int((values < dnc * (1 - 1e-5)).sum())}",
        "-" if levels[0] is None else f"{int((values < levels[0] * (1 - 1e-5)).sum())}",
        f"{given_up[True]}",
        kinds,
        structure(after[-2], hidden[-2]).name if depth > 2 else structure(after[0], after[0]).name,
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
