"""Estimate the memory that training a run takes, from passes over a few of its samples.

`ncpipe.runs.batches` sizes batches by these numbers.
"""

import dataclasses
import math
from collections.abc import Callable

import torch
from torch import Tensor

from ncpipe.config.optimizer_specs import Lbfgs
from ncpipe.config.run import Run
from ncpipe.datasets.prepared import Prepared
from ncpipe.models.build import build_network, build_uninitialised_network, input_shape, prepare_split
from ncpipe.models.inputs import width_of
from ncpipe.models.network import Network
from ncpipe.system.device_memory import free_bytes
from ncpipe.system.errors import NotEnoughMemory
from ncpipe.training.device import is_out_of_memory
from ncpipe.training.objective import compares_samples, fit_times_samples, outputs_of
from ncpipe.training.stack import Stack
from ncpipe.training.state import samples_at_a_time

BUFFERS = 8  # as large as the weights: values, gradient, two moments, a copy, temporaries of an update
BACKWARD = 1.2  # peak of the activations in the backward pass over those after the forward pass
META = torch.device("meta")  # tensors there are shapes without numbers
# Deeper networks are extrapolated from two depths: the first is at least SHALLOW, and they differ by PERIOD,
# a step that leads from one depth to another in every architecture.
SHALLOW, PERIOD = 20, 6
TRIAL_SAMPLES = 16  # samples of a trial pass
SAVED_PER_ROW = 16  # rows of a layer's width that autograd keeps of a row of its input, about and at most
TRIAL_SHARE = 4  # a trial runs on the device if it needs less than one part in so many of the free memory
STEP_BYTES = 100  # a step's learning rate and corrections, while their table is made
PAIR_BYTES = 2  # two masks of a pair of samples, beside its similarity
LEVERS = "model.width, the depth, the data or batch_size"  # keys that make a run smaller


def bytes_per_run(
    run: Run,
    data: Prepared,
    device: torch.device,
    dtype: torch.dtype,
    trains_on: torch.device | None = None,
) -> int:
    """Return the bytes that one run of a stack needs, without its share of the inputs.

    Counts the distinct storages that autograd keeps of a forward pass on `device`, for two small numbers of
    samples, and extrapolates linearly. trains_on: the device that the run will train on, if that is another.
    """
    batch = len(data.train) if run.spec.batch_size == "full" else min(run.spec.batch_size, len(data.train))
    stack = Stack([_network(run, data, device)], device, dtype)
    together = min(batch, samples_at_a_time(stack, run.spec, data, trains_on or device))
    few, more = min(together, TRIAL_SAMPLES // 2), min(together, TRIAL_SAMPLES)
    saved_few = saved_bytes(stack, run, data, few)
    saved = saved_few
    if more > few:
        saved += (saved_bytes(stack, run, data, more) - saved_few) * (together - few) // (more - few)
    if compares_samples(run.spec.loss):  # grows with the square of the batch
        saved += (dtype.itemsize + PAIR_BYTES) * batch**2
    return int(BACKWARD * saved) + BUFFERS * stack.values.nbytes + _method_bytes(run, data, batch, stack)


def check_memory(run: Run, data: Prepared, device: torch.device, dtype: torch.dtype) -> None:
    """Raise NotEnoughMemory if one run takes more memory than is free on `device`.

    Clearly small networks are tried on the device with a few samples. For others nothing is allocated: shapes
    on the meta device suffice, but PyTorch takes seconds to load its rules for them.
    """
    free = free_bytes(device)
    try:
        need = _least_bytes(run, data, dtype)
        if need <= free:
            need = estimate(run, data, device if TRIAL_SHARE * need <= free else META, dtype, device)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        need = 2**63  # or more: the size of a tensor overflows
    if need > free:
        raise NotEnoughMemory(
            f"{run.name}: takes about {need / 1e9:.3g} GB of memory, and {free / 1e9:.3g} GB are free on "
            f"{device}; make {LEVERS} smaller"
        )


def estimate(
    run: Run,
    data: Prepared,
    device: torch.device,
    dtype: torch.dtype,
    trains_on: torch.device | None = None,
) -> int:
    """Return `bytes_per_run`, extrapolated from two shallow networks for a deep one."""
    return _extrapolated(run, lambda shallow: bytes_per_run(shallow, data, device, dtype, trains_on))


def _least_bytes(run: Run, data: Prepared, dtype: torch.dtype) -> int:
    """Return the bytes of the weights and their buffers plus, roughly, of a few samples' activations."""
    model, rows = run.spec.model, input_shape(data, run.spec.model).rows
    width = max(width_of(model), getattr(model, "mlp_width", None) or 0)
    numbers = _extrapolated(
        run, lambda shallow: sum(p.numel() for p in _network(shallow, data, META).parameters())
    )
    return dtype.itemsize * (BUFFERS * numbers + TRIAL_SAMPLES * SAVED_PER_ROW * rows * width * run.depth)


def _extrapolated(run: Run, count: Callable[[Run], int]) -> int:
    """Return count(run), extrapolated linearly in the depth from two shallow networks for a deep one."""
    if run.depth <= SHALLOW + 2 * PERIOD:
        return count(run)
    low = SHALLOW + (run.depth - SHALLOW) % PERIOD
    first, second = (count(dataclasses.replace(run, depth=depth)) for depth in (low, low + PERIOD))
    return first + (second - first) * (run.depth - low) // PERIOD


def _method_bytes(run: Run, data: Prepared, batch: int, stack: Stack) -> int:
    """Return the bytes that the optimizer keeps beside its buffers: curvature pairs, or a table of steps."""
    if isinstance(run.spec.optimizer, Lbfgs):
        return 2 * min(run.spec.optimizer.memory, run.spec.epochs) * stack.values.nbytes
    return STEP_BYTES * run.spec.epochs * math.ceil(len(data.train) / batch)


def _network(run: Run, data: Prepared, device: torch.device) -> Network:
    """Return the run's network; on the meta device shapes only, without memory and weights."""
    if device.type == "meta":
        with device:
            return build_uninitialised_network(run, data)
    return build_network(run, data)


def saved_bytes(stack: Stack, run: Run, data: Prepared, count: int) -> int:
    """Return the bytes that autograd keeps of a forward pass over `count` samples."""
    values = stack.values
    part = data.train[:count]
    samples = prepare_split(part, data.kind, run.spec.model, values.device, values.dtype)
    weights_and_inputs = {_identity(values), _identity(samples.inputs)}
    counts = data.train.counts(data.classes)  # which have no numbers on `meta`
    counts = counts if counts is None else counts.to(values.device)
    saved: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        if _identity(tensor) not in weights_and_inputs:
            saved[_identity(tensor)] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        fit_times_samples(outputs_of(stack, samples, counts), run.spec.loss)
    return sum(saved.values())


def _identity(tensor: Tensor) -> int:
    """Return a number that is equal for tensors sharing memory; meta storages have no address."""
    return tensor.untyped_storage()._cdata
