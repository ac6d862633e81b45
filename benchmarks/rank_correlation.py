"""How often a test of Spearman's rho, and four intervals for it, are right with few runs at each x.

    uv run python benchmarks/rank_correlation.py

Simulates p values of x with n runs each, values = effect * place of x + spread * normal, and prints the
tables behind docs/development.md ("Rank correlation with few runs") in 2 minutes. The population rho of such
a design is that of infinitely many runs at each x. `size` is how often a permutation test (as in
`ncpipe.tables.ranks`) rejects rho = 0 at 5 % where it is 0, `power` how often it does so with the right sign
(effects 0.5, 1, 2).
The intervals are nominal 95 %:

percentile  of a bootstrap of the runs at each x, about the mean there, scaled to the unbiased variance
BCa         SciPy's, of a bootstrap of the runs at each x; four x and equal spread alone
Fisher      tanh(atanh rho -+ 1.96 sqrt((1 + rho^2/2)/(N - 3))) of all N runs (Bonett and Wright 2000)
t           rho -+ Student's t times the standard error of the ranks' means, Satterthwaite's freedom
"""

import itertools
import warnings
from collections.abc import Callable, Sequence

import numpy as np
from scipy import special, stats

PLACES, SEEDS, EFFECTS = (4, 8), (2, 3, 5), (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)
TRIALS, FEWER, FEWEST, DRAWS = 2000, 200, 50, 399  # of percentiles FEWER, of BCa FEWEST

Interval = Callable[[np.ndarray, np.random.Generator], tuple[np.ndarray, np.ndarray]]


def spreads(places: int) -> dict[str, np.ndarray]:
    """Return the standard deviation at each x, by name."""
    last = np.full(places, 0.3)
    last[-1] = 3
    ends = last.copy()
    ends[0] = 3
    return {"equal": np.ones(places), "growing": np.geomspace(0.3, 3, places), "last": last, "ends": ends}


def population_rho(means: np.ndarray, spread: np.ndarray) -> float:
    """Return rho for infinitely many runs at each x."""
    apart = (means[:, None] - means) / np.hypot(spread[:, None], spread)
    mid_ranks = special.ndtr(apart).mean(axis=1)  # of a run at each x, as a share of all runs
    scores = np.arange(len(means)) - (len(means) - 1) / 2
    return float((scores @ mid_ranks) / len(means) / np.sqrt(np.mean(scores**2) / 12))


def unit_ranks(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the ranks of x = 0 ... p - 1 and of values (..., p, n), centred and of length 1."""
    places, runs = values.shape[-2:]
    x = np.repeat(np.arange(places), runs) - (places - 1) / 2
    ranks = stats.rankdata(values.reshape(*values.shape[:-2], -1), axis=-1)
    ranks -= ranks.mean(axis=-1, keepdims=True)
    return x / np.sqrt(x @ x), ranks / np.sqrt((ranks**2).sum(axis=-1, keepdims=True))


def sample_rho(values: np.ndarray) -> np.ndarray:
    """Return rho of each sample of values (..., p, n)."""
    x, ranks = unit_ranks(values)
    rho: np.ndarray = ranks @ x
    return rho


def p_values(values: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Return the p-value of the permutation test of each sample (trials, p, n)."""
    x, ranks = unit_ranks(values)
    own = np.abs(ranks @ x) - 1e-9
    as_large = sum(np.abs(ranks @ generator.permutation(x)) >= own for _ in range(DRAWS))
    return (1 + as_large) / (1 + DRAWS)


def percentile(values: np.ndarray, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return the interval of percentiles of the first samples."""
    ends = []
    for sample in values[:FEWER]:
        runs, means = sample.shape[1], sample.mean(axis=1, keepdims=True)
        pool = means + (sample - means) * np.sqrt(runs / (runs - 1))
        picks = generator.integers(runs, size=(DRAWS, *sample.shape))
        drawn = np.take_along_axis(np.broadcast_to(pool, picks.shape), picks, axis=2)
        ends.append(np.quantile(sample_rho(drawn), [0.025, 0.975]))
    low, high = np.array(ends).T
    return low, high


def bca(values: np.ndarray, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return SciPy's bias-corrected and accelerated interval of the first samples; NaN where it has none."""

    def statistic(*groups: np.ndarray) -> float:
        x = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
        return float(np.corrcoef(x, stats.rankdata(np.concatenate(groups)))[0, 1])

    ends = []
    with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):  # of samples without one
        for sample in values[:FEWEST]:
            found = stats.bootstrap(tuple(sample), statistic, n_resamples=99, vectorized=False, rng=generator)
            ends.append(tuple(found.confidence_interval))
    low, high = np.array(ends).T
    return low, high


def fisher(values: np.ndarray, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return the interval by Fisher's z."""
    del generator
    rho = np.clip(sample_rho(values), -0.9999, 0.9999)
    reach = special.ndtri(0.975) * np.sqrt((1 + rho**2 / 2) / (values[0].size - 3))
    return np.tanh(np.arctanh(rho) - reach), np.tanh(np.arctanh(rho) + reach)


def student(values: np.ndarray, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return the interval of the ranks' means, as `ncpipe.tables.intervals` makes that of a slope."""
    del generator
    runs = values.shape[2]
    x, ranks = unit_ranks(values)
    parts = runs * x[::runs] ** 2 * ranks.reshape(values.shape).var(axis=2, ddof=1)
    freedom = parts.sum(axis=1) ** 2 / (parts**2 / (runs - 1)).sum(axis=1)
    reach, rho = np.sqrt(parts.sum(axis=1)) * special.stdtrit(freedom, 0.975), ranks @ x
    return np.maximum(rho - reach, -1), np.minimum(rho + reach, 1)


INTERVALS: dict[str, Interval] = {"percentile": percentile, "BCa": bca, "Fisher": fisher, "t": student}


def simulate(places: int, runs: int, name: str, effect: float) -> dict[str, float]:
    """Return the population rho, how often each interval covers it, and how often the test rejects."""
    spread = spreads(places)[name]
    generator = np.random.default_rng([places, runs, list(spreads(places)).index(name), int(10 * effect)])
    means = effect * np.arange(places)
    rho = population_rho(means, spread)
    noise = generator.standard_normal((TRIALS, places, runs))
    values = means[:, None] + spread[:, None] * noise
    found = {"rho": rho}
    for title, interval in INTERVALS.items():
        if title != "BCa" or (places == min(PLACES) and name == "equal"):
            low, high = interval(values, generator)
            found[title] = float(np.mean((low <= rho) & (rho <= high)))
    right = sample_rho(values) > 0 if effect else True
    return found | {"rejected": float(np.mean((p_values(values, generator) <= 0.05) & right))}


def span(shares: Sequence[float]) -> str:
    """Return the least and the largest share in percent."""
    return f"{100 * min(shares):.0f} to {100 * max(shares):.0f} %" if shares else ""


def main() -> None:
    """Print both tables."""
    found = {key: simulate(*key) for key in itertools.product(PLACES, SEEDS, spreads(PLACES[0]), EFFECTS)}
    print(f"| seeds | spread | {' | '.join(INTERVALS)} |\n|{'---|' * (2 + len(INTERVALS))}")
    for runs, name in itertools.product(SEEDS, spreads(PLACES[0])):
        own = [shares for key, shares in found.items() if key[1:3] == (runs, name)]
        cells = [span([shares[title] for shares in own if title in shares]) for title in INTERVALS]
        print(f"| {runs} | {name} | {' | '.join(cells)} |")
    print("\n| x values | seeds | spread | size | power | population rho |\n|---|---|---|---|---|---|")
    for places, runs, name in itertools.product(PLACES, SEEDS, spreads(PLACES[0])):
        none, *some = (found[places, runs, name, effect] for effect in EFFECTS[:4])
        power = ", ".join(f"{100 * shares['rejected']:.0f}" for shares in some)
        rhos = ", ".join(f"{shares['rho']:.2f}" for shares in some)
        print(f"| {places} | {runs} | {name} | {100 * none['rejected']:.0f} % | {power} % | {rhos} |")


if __name__ == "__main__":
    main()
