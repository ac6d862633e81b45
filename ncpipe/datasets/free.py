"""Samples without inputs, whose features a features model learns."""

import torch

from ncpipe.config.specs import FreeData
from ncpipe.datasets.free_labels import free_facts, free_labels
from ncpipe.datasets.prepared import Prepared, Split


def prepare_free(spec: FreeData) -> Prepared:
    """The numbers 0, ..., N-1 for inputs, ordered by class; no test split. Of reduced data N is K."""
    labels = torch.from_numpy(free_labels(spec))
    train = Split(torch.arange(len(labels)), labels)
    return Prepared(spec.kind, spec.classes, None, train, None, free_facts(spec))
