"""Samples without inputs, whose features a features model learns."""

import torch

from ncpipe.datasets.prepared import Prepared, Split
from ncpipe.specs import FreeData


def prepare_free(spec: FreeData) -> Prepared:
    """The numbers 0, ..., N-1 for inputs, ordered by class; no test split. Of reduced data N is K."""
    rows, copies = (1, spec.per_class) if spec.reduced else (spec.per_class, 1)
    labels = torch.arange(spec.classes).repeat_interleave(rows)
    facts = {"source": spec.source, "counts": {"train": [rows] * spec.classes}, "copies": copies}
    return Prepared("free", spec.classes, None, Split(torch.arange(len(labels)), labels), None, facts)
