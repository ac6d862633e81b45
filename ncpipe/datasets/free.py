"""Prepare labels of samples without inputs."""

import torch

from ncpipe.config.sources.free import FreeData
from ncpipe.datasets.prepared import Prepared, Split


def prepare_free(spec: FreeData, *_: object) -> Prepared:
    """Return labels (N,), ordered by class; N is K for reduced data, whose samples stand for n each."""
    rows, copies = (1, spec.per_class) if spec.reduced else (spec.per_class, 1)
    labels = torch.arange(spec.classes).repeat_interleave(rows)
    train = Split(torch.arange(len(labels)), labels)
    facts = {"source": spec.source, "counts": {"train": [rows] * spec.classes}, "copies": copies}
    return Prepared(spec.kind, spec.classes, None, train, None, facts)
