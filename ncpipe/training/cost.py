"""Estimate the memory that training a run takes, from passes over a few of its samples.

`ncpipe.runs.batches` sizes batches by these numbers.
"""

import math

import torch
from torch import Tensor

from ncpipe.config.optimizer_specs import Lbfgs
from ncpipe.config.run import Run
from ncpipe.datasets.prepared import Prepared
from ncpipe.models.build import build_network, build_uninitialised_network, input_shape, prepare_split
from ncpipe.models.inputs import width_of
from ncpipe.system.device_memory import free_bytes
from ncpipe.system.errors import NotEnoughMemory
from ncpipe.training.device import is_out_of_memory
from ncpipe.training.objective import compares_samples, fit_times_samples, outputs_of
from ncpipe.training.stack import Stack
from ncpipe.training.state import samples_at_a_time

BUFFERS = 8  # as large as the weights: values, gradient, two moments, a copy, temporaries of an update
BACKWARD = 1.2  # peak of the activations in the backward pass over those after the forward pass
TRIAL_SAMPLES = 16  # samples of a trial pass
SAVED_PER_ROW = 16  # rows of a layer's width that autograd keeps of a row of its input, about and at most
STEP_BYTES = 100  # a step's learning rate and corrections, while their table is made
PAIR_BYTES = 2  # two masks of a pair of samples, beside its similarity
LEVERS = "model.width, the depth, the data or batch_size"  # keys that make a run smaller


def bytes_per_run(run: Run, data: Prepared, device: torch.device, dtype: torch.dtype) -> int:
    """Return the bytes that one run of a stack needs, without its share of the inputs.

    Counts the distinct storages that autograd keeps of a forward pass on `device`, for two small numbers of
    samples, and extrapolates linearly.
    """
    batch = len(data.train) if run.spec.batch_size == "full" else min(run.spec.batch_size, len(data.train))
    stack = Stack([build_network(run, data)], device, dtype)
    together = min(batch, samples_at_a_time(stack, run.spec, data, device))
    few, more = min(together, TRIAL_SAMPLES // 2), min(together, TRIAL_SAMPLES)
    saved_few = saved_bytes(stack, run, data, few)
    saved = saved_few
    if more > few:
        saved += (saved_bytes(stack, run, data, more) - saved_few) * (together - few) // (more - few)
    if compares_samples(run.spec.loss):  # grows with the square of the batch
        saved += (dtype.itemsize + PAIR_BYTES) * batch**2
    return int(BACKWARD * saved) + BUFFERS * stack.values.nbytes + _method_bytes(run, data, batch, stack)


def check_memory(run: Run, data: Prepared, device: torch.device, dtype: torch.dtype) -> int:
    """Return `bytes_per_run`; raise NotEnoughMemory if that is more than is free on `device`.

    It is tried out only where the weights, and roughly the activations of a few samples, fit.
    """
    free = free_bytes(device)
    try:
        need = _least_bytes(run, data, dtype)
        if need <= free:
            need = bytes_per_run(run, data, device, dtype)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        need = 2**63  # or more: the size of a tensor overflows
    if need > free:
        raise NotEnoughMemory(
            f"{run.name}: takes about {need / 1e9:.3g} GB of memory, and {free / 1e9:.3g} GB are free on "
            f"{device}; make {LEVERS} smaller"
        )
    return need


def _least_bytes(run: Run, data: Prepared, dtype: torch.dtype) -> int:
    """Return the bytes of the weights and their buffers plus, roughly, of a few samples' activations."""
    model, rows = run.spec.model, input_shape(data, run.spec.model).rows
    width = max(width_of(model), getattr(model, "mlp_width", None) or 0)
    with torch.device("meta"):  # shapes without numbers
        numbers = sum(parameter.numel() for parameter in build_uninitialised_network(run, data).parameters())
    return dtype.itemsize * (BUFFERS * numbers + TRIAL_SAMPLES * SAVED_PER_ROW * rows * width * run.depth)


def _method_bytes(run: Run, data: Prepared, batch: int, stack: Stack) -> int:
    """Return the bytes that the optimizer keeps beside its buffers: curvature pairs, or a table of steps."""
    if isinstance(run.spec.optimizer, Lbfgs):
        return 2 * min(run.spec.optimizer.memory, run.spec.epochs) * stack.values.nbytes
    return STEP_BYTES * run.spec.epochs * math.ceil(len(data.train) / batch)


def saved_bytes(stack: Stack, run: Run, data: Prepared, count: int) -> int:
    """Return the bytes that autograd keeps of a forward pass over `count` samples."""
    values = stack.values
    part = data.train[:count]
    samples = prepare_split(part, data.kind, run.spec.model, values.device, values.dtype)
    weights_and_inputs = {values.untyped_storage()._cdata, samples.inputs.untyped_storage()._cdata}
    counts = data.train.counts(data.classes)
    counts = counts if counts is None else counts.to(values.device)
    saved: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights_and_inputs:
            saved[storage._cdata] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        fit_times_samples(outputs_of(stack, samples, counts), run.spec.loss)
    return sum(saved.values())
