"""What a run takes while it trains, memory and time, measured on a few of its samples."""

import dataclasses
import time

import torch
from torch import Tensor

from ncpipe.datasets.prepared import Prepared
from ncpipe.models.build import arrange, build_model, input_shape
from ncpipe.models.network import Network
from ncpipe.specs import Run
from ncpipe.training.objective import FITS
from ncpipe.training.replay import WARM_UP
from ncpipe.training.session import Session
from ncpipe.training.stack import Stack

BUFFERS = 8  # of the size of the weights: values, gradient, two moments, a copy, and what an update makes
BACKWARD = 1.2  # activations at the height of the backward pass over those after the forward pass
ROWS = 20_000  # samples x tokens of the epoch that is timed


def bytes_per_run(run: Run, data: Prepared, device: torch.device, dtype: torch.dtype) -> int:
    """Bytes that one run of a stack needs on `device`, its share of the inputs left out.

    Counts the distinct storages that autograd keeps of a forward pass, at two small numbers of samples:
    what it keeps is a constant and a share per sample.
    """
    batch = len(data.train) if run.spec.batch_size == "full" else min(run.spec.batch_size, len(data.train))
    few, more = min(batch, 8), min(batch, 16)
    stack = Stack([_network(run, data)], device, dtype)
    kept_few = kept_bytes(stack, run, data, few)
    kept = kept_few
    if more > few:
        kept += (kept_bytes(stack, run, data, more) - kept_few) * (batch - few) // (more - few)
    return int(BACKWARD * kept) + BUFFERS * stack.values.nbytes


def seconds_per_epoch(run: Run, runs: int, data: Prepared, device: torch.device, dtype: torch.dtype) -> float:
    """Time of an epoch of `runs` runs like this one side by side, its share of the history included.

    One epoch is timed, after those in which it settles, on as many samples as make `ROWS` rows; more samples
    take longer in proportion.
    """
    rows = input_shape(data, run.spec.model).rows
    samples = min(len(data.train), max(1, ROWS // rows))
    part = dataclasses.replace(
        data,
        train=data.train[:samples],
        test=None if data.test is None else data.test[: max(1, ROWS // rows)],
    )
    epochs = WARM_UP + 2 if device.type == "cuda" else 2
    short = dataclasses.replace(run, spec=dataclasses.replace(run.spec, epochs=epochs))
    session = Session([short] * (1 if run.spec.optimizer.name == "lbfgs" else runs), part, device, dtype)
    ends = []
    for _ in session.epochs():
        _wait_for(device)
        ends.append(time.perf_counter())
    session.record()
    _wait_for(device)
    record = (time.perf_counter() - ends[-1]) * sum(len(split) for _, split in data.splits())
    record /= sum(len(split) for _, split in part.splits())
    seconds = (ends[-1] - ends[-2]) * len(data.train) / samples + record / run.spec.log_every
    return seconds * runs / len(session.runs)


def _network(run: Run, data: Prepared) -> Network:
    model = run.spec.model
    return build_model(model, input_shape(data, model), data.classes, run.depth, run.seed)


def kept_bytes(stack: Stack, run: Run, data: Prepared, count: int) -> int:
    """Bytes that autograd keeps of a forward pass over `count` samples."""
    values = stack.values
    part = data.train[:count]
    samples = arrange(part, data.kind, run.spec.model, values.device, values.dtype)
    own = {values.untyped_storage().data_ptr(), samples.inputs.untyped_storage().data_ptr()}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        logits = stack.logits(samples)
        FITS[run.spec.loss](logits, samples.labels.expand(logits.shape[:2]))
    return sum(kept.values())


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
