"""Store labels of samples without inputs, and their facts; without torch.

`ncpipe.datasets.prepare` makes tensors of them.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from ncpipe.config.sources.free import FreeData
from ncpipe.datasets.stored import store


def rows_and_copies(spec: FreeData) -> tuple[int, int]:
    """Return the samples of a class, and how many samples each of them stands for."""
    return (1, spec.per_class) if spec.reduced else (spec.per_class, 1)


def free_labels(spec: FreeData) -> NDArray[np.int64]:
    """Return labels (N,), ordered by class; N is K for reduced data."""
    return np.arange(spec.classes, dtype=np.int64).repeat(rows_and_copies(spec)[0])


def free_facts(spec: FreeData) -> dict[str, object]:
    """Return the facts that are recorded of free data."""
    rows, copies = rows_and_copies(spec)
    return {"source": spec.source, "counts": {"train": [rows] * spec.classes}, "copies": copies}


def store_free(folder: Path, spec: FreeData) -> int:
    """Write to the byte what `write_prepared` makes of `prepare_free`; return the number of samples."""
    labels = free_labels(spec)
    tensors = {"train.inputs": np.arange(len(labels), dtype=np.int64), "train.labels": labels}
    store(folder, lambda path: save_file(tensors, path), spec.kind, spec.classes, None, free_facts(spec))
    return len(labels)
