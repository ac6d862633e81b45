"""Does training in TF32 move the metrics? Emulated, so no GPU is needed.

    python benchmarks/tf32.py [depth ...]

TF32 products take factors rounded to 10 bits of mantissa and add up in float32. Here every product of the
forward and of the backward pass gets such factors; all else stays. digits_rn1 as shipped, metrics of the
last layer in float64 from float64 passes in both cases. To compare with: the spread over seeds.
"""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ncpipe.config.params import load_params
from ncpipe.config.run import Run
from ncpipe.datasets.prepare import prepare
from ncpipe.features.extraction import extract
from ncpipe.metrics.table import measure_layer, measure_weights
from ncpipe.training.loop import train_batch

CPU = torch.device("cpu")
SEEDS = range(3)
METRICS = ("nc1_trace_ratio", "nc2_etf", "nc3_cosine")
FACTORS = {"bmm": (0, 1), "mm": (0, 1), "baddbmm": (1, 2), "addmm": (1, 2)}  # places among the arguments
PARAMS = Path(__file__).resolve().parent.parent / "params.yaml"


def to_tf32(x: torch.Tensor) -> torch.Tensor:
    """To the nearest number with 10 bits of mantissa, ties away from 0."""
    bits = x.contiguous().view(torch.int32)
    return ((bits + (1 << 12)) & ~((1 << 13) - 1)).view(torch.float32)


class Tf32Products(TorchDispatchMode):
    """Rounds the factors of every product that is computed within."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        places = FACTORS.get(func.overloadpacket.__name__, ())
        args = [to_tf32(arg) if index in places else arg for index, arg in enumerate(args)]
        return func(*args, **(kwargs or {}))


def log10_metrics(runs: list[Run], trained: Any, data: Any) -> torch.Tensor:
    """(runs, metrics)."""
    rows = []
    for run, result in zip(runs, trained, strict=True):
        features = extract(run, result.state, data, CPU)
        last = features.layers["last"]["train"]
        measured = [*measure_weights(features.weight)]
        measured += measure_layer(
            "last", "train", last.statistics, last.samples, last.statistics, features.weight
        )
        values = {row.metric: row.value for row in measured}
        rows.append([values[name] for name in METRICS])
    return torch.tensor(rows, dtype=torch.float64).log10()


def main() -> None:
    torch.set_flush_denormal(True)
    torch.set_num_threads(1)
    spec = load_params(PARAMS).experiment("digits_rn1")
    data = prepare(spec.data, Path("data/raw"), None, progress=False)
    print(f"{'L':>3} {'metric':<16} {'float32':>8} {'tf32':>8} {'shift':>8} {'std of seeds':>13}")
    for depth in map(int, sys.argv[1:] or ["2", "5", "13"]):
        runs = [
            Run("digits_rn1", depth, seed, dataclasses.replace(spec, log_every=spec.epochs)) for seed in SEEDS
        ]
        plain = log10_metrics(runs, train_batch(runs, data, CPU, "float32"), data)
        with Tf32Products():
            rounded = train_batch(runs, data, CPU, "float32")
        tf32 = log10_metrics(runs, rounded, data)
        for name, one, other in zip(METRICS, plain.T, tf32.T, strict=True):
            shift = (other - one).mean()
            means = f"{one.mean():>8.3f} {other.mean():>8.3f}"
            print(f"{depth:>3} {name:<16} {means} {shift:>+8.3f} {one.std():>13.3f}")


if __name__ == "__main__":
    main()
