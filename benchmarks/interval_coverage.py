"""How often 95 % intervals of a slope cover the true slope, in simulated sweeps with normal errors.

    uv run python benchmarks/interval_coverage.py [--sweeps 200000]

A row for each number of depths and seeds, a column for each course of the standard deviation over the depths.
The interval is that of `ncpipe.tables.intervals.combination_interval`, for many sweeps at once; the first
sweeps of each kind are compared with it.
"""

import argparse

import numpy as np
from scipy import special

from ncpipe.tables.intervals import combination_interval
from ncpipe.tables.slopes import slope_weights

DEPTHS = {5: (2, 3, 5, 8, 13), 7: (2, 3, 5, 8, 13, 21, 34)}
SEEDS = (2, 3, 5)
COMPARED = 5  # sweeps of each kind


def deviations(depths: int) -> dict[str, np.ndarray]:
    """Return the standard deviation of the runs at each depth, by the name of its course."""
    rising = np.geomspace(0.3, 3, depths)
    return {
        "equal": np.ones(depths),
        "grows tenfold": rising,
        "falls tenfold": rising[::-1],
        "tenfold in the middle": np.where(np.arange(depths) == depths // 2, 3, 0.3),
        "tenfold at the end": np.where(np.arange(depths) == depths - 1, 3, 0.3),
    }


def coverage(depths: int, seeds: int, deviation: np.ndarray, sweeps: int, level: float = 0.95) -> float:
    """Return the share of simulated sweeps whose interval has the true slope, 0."""
    generator = np.random.default_rng([depths, seeds])
    values = generator.standard_normal((sweeps, depths, seeds)) * deviation[:, np.newaxis]
    weights = slope_weights(np.log10(DEPTHS[depths]), np.full(depths, seeds))
    slope = values.mean(axis=2) @ weights
    parts = weights**2 * values.var(axis=2, ddof=1) / seeds
    freedom = parts.sum(axis=1) ** 2 / (parts**2).sum(axis=1) * (seeds - 1)
    reach = np.sqrt(parts.sum(axis=1)) * special.stdtrit(freedom, (1 + level) / 2)
    for own, middle, half in zip(values[:COMPARED], slope, reach, strict=False):
        ends = combination_interval(weights, list(own), level)
        np.testing.assert_allclose(ends, (middle - half, middle + half))
    return float((np.abs(slope) <= reach).mean())


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--sweeps", type=int, default=200_000)
    sweeps = parser.parse_args().sweeps
    print(f"| depths | seeds | {' | '.join(deviations(5))} |\n|---|---|{'---|' * len(deviations(5))}")
    for depths in DEPTHS:
        for seeds in SEEDS:
            shares = [coverage(depths, seeds, own, sweeps) for own in deviations(depths).values()]
            print(f"| {depths} | {seeds} | {' | '.join(f'{100 * share:.1f} %' for share in shares)} |")


if __name__ == "__main__":
    main()
