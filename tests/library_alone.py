"""Measure every conformance file where torch and NumPy alone are installed; exit 1 on a wrong value.

python tests/library_alone.py
"""

import importlib.util
import sys

import torch

import ncpipe as nc
from ncpipe.metrics.conformance import suite

NEEDLESS = ("dvc", "matplotlib", "numba", "pandas", "psutil", "pydantic", "safetensors", "sklearn", "typer")


def main() -> None:
    installed = [name for name in NEEDLESS if importlib.util.find_spec(name) is not None]
    wrong, right = [f"installed: {', '.join(installed)}"] if installed else [], 0
    for case in suite.cases():
        if case.has_one_class:
            continue
        values = nc.measure(*map(case.arrays.get, suite.ARRAYS))
        assert {(row.split, row.metric) for row in values} == case.answers.keys(), case.name
        for row in values:
            conforms = case.conforms(row.split, row.metric, row.value)
            right += conforms
            if not conforms:
                wrong.append(f"{case.name}: {row.split} {row.metric} {row.value}")
    features = torch.arange(12.0).view(6, 2) ** 2
    batches = [(features[:3], torch.tensor([0, 1, 0])), (features[3:], torch.tensor([1, 0, 1]))]
    measured = nc.measure_model(torch.nn.Sequential(torch.nn.Linear(2, 2)), "0", batches)
    arrays = nc.measure(features, [0, 1, 0, 1, 0, 1])
    assert measured["nc1_trace_ratio"] == arrays["nc1_trace_ratio"]
    assert nc.functional.cdnv([[1.0], [1.5], [-1.0], [-1.5]], [0, 0, 1, 1]) == 0.0625 / 6.25
    print(*wrong, f"{right} values right, {len(wrong)} wrong", sep="\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
