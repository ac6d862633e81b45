"""How much memory a run takes while it trains, measured on one forward pass."""

import torch
from torch import Tensor

from ncpipe.datasets.prepared import Prepared
from ncpipe.models.build import arrange, build_model, input_shape
from ncpipe.specs import Run
from ncpipe.training.objective import FITS
from ncpipe.training.stack import Stack

BUFFERS = 8  # of the size of the weights: values, gradient, two moments, a copy, and what an update makes
BACKWARD = 1.2  # activations at the height of the backward pass over those after the forward pass


def bytes_per_run(run: Run, data: Prepared, device: torch.device, dtype: torch.dtype) -> int:
    """Bytes that one run of a stack needs on `device`, its share of the inputs left out.

    Counts the distinct storages that autograd keeps of one step's forward pass.
    """
    model = run.spec.model
    network = build_model(model, input_shape(data, model), data.classes, run.depth, run.seed)
    stack = Stack([network], device, dtype)
    samples = arrange(data.train, data.kind, model, device, dtype)
    if run.spec.batch_size != "full":
        samples = samples[: run.spec.batch_size]
    own = {stack.values.untyped_storage().data_ptr(), samples.inputs.untyped_storage().data_ptr()}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        logits = stack.module(samples.inputs, samples.lengths)
        FITS[run.spec.loss](logits, samples.labels.expand(logits.shape[:2]))
    return int(BACKWARD * sum(kept.values())) + BUFFERS * stack.values.nbytes
