"""What figures show of a head's class means, layer by layer.

K  classes    d  width    L  the head's matrices
"""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from ncpipe.config.specs import Run
from ncpipe.features.low_rank import class_means, head_of
from ncpipe.features.passes import Features
from ncpipe.metrics.spectrum import singular_values


def means_of_head(run: Run, features: Features) -> Mapping[str, Tensor]:
    """Return class means (K, d) on the training samples, about 0: M1, ~M2, M2, ..., ~ML, ML."""
    head = head_of(run)
    layers = {"M1": head.input_layer}
    for at, (before, after) in enumerate(zip(head.before, head.after, strict=True), start=2):
        layers |= {f"~M{at}": before, f"M{at}": after}
    return {name: class_means(features, layer) for name, layer in layers.items()}


def singular_rows_of_head(means: Mapping[str, Tensor]) -> Iterator[dict[str, Any]]:
    """Yield singular values of M1, M~2, ..., M~L and of ML: layer, place from 1, value."""
    last = list(means)[-1]
    for name, matrix in means.items():
        if name in ("M1", last) or name.startswith("~"):
            for place, value in enumerate(singular_values(matrix).tolist(), 1):
                yield {"layer": name, "place": place, "value": value}


def gram_rows_of_head(means: Mapping[str, Tensor]) -> Iterator[dict[str, Any]]:
    """Yield the Gram matrix of M_{L-1} over its mean diagonal: layer, row, column, value."""
    name = [name for name in means if not name.startswith("~")][-2]
    gram = means[name] @ means[name].T
    for row, line in enumerate((gram / gram.diagonal().mean()).tolist()):
        for column, value in enumerate(line):
            yield {"layer": name, "row": row, "column": column, "value": value}
