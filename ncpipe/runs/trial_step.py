"""Take one step with an experiment of a study's own code, with a few samples, before anything trains.

They pass through the network, the loss, one step of the optimizer and every metric; an own loop trains for an
epoch of two batches.
"""

import dataclasses
import math
import tempfile
import time
from pathlib import Path
from typing import Any, get_args

import torch

from ncpipe.config.experiment import Data
from ncpipe.config.run import Compute, Run
from ncpipe.config.sources.images import ImageData
from ncpipe.config.sources.next_tokens import NextTokenData
from ncpipe.config.sources.reviews import TextData
from ncpipe.config.specs import OwnData, OwnLoss, OwnOptimizer
from ncpipe.config.study import mistake, mistake_of, study_error
from ncpipe.datasets.own_loaders import loader_digests
from ncpipe.datasets.prepare import prepare
from ncpipe.datasets.prepared import Prepared, Split, TagSplit, TokenSplit, read_prepared
from ncpipe.features.extraction import extract
from ncpipe.features.forward import load_network
from ncpipe.features.own_metrics import own_measurements
from ncpipe.features.own_network import own_passes
from ncpipe.features.trained_run import TrainedRun
from ncpipe.metrics.study_metrics import own_metrics, wrong_place
from ncpipe.metrics.table import LAST_LAYER
from ncpipe.models.build import build_network, build_uninitialised_network, prepare_split
from ncpipe.models.network import Network, Role
from ncpipe.system.artifacts import PREPARED, RAW
from ncpipe.system.console import say
from ncpipe.system.errors import InputError, cut
from ncpipe.system.randomness import global_generators
from ncpipe.training.checkpoints import Checkpoints
from ncpipe.training.device import fix_order_of_sums, prepare_device
from ncpipe.training.hooked import HookedNetwork
from ncpipe.training.objective import own_losses
from ncpipe.training.own_loop import build_own, few_batches, train_own
from ncpipe.training.session import Session
from ncpipe.training.stack import Stack

SAMPLES = 64  # in the step, with at least two of each class
BATCHES = 2  # of an own loop's loaders, in its trial
# Relative differences of one network: of features on a GPU by two kernels, and of weights that are read back.
CLOSE_FEATURES, CLOSE_WEIGHTS = 1e-3, 1e-6
SECONDS = 10.0  # a data set that takes longer is not made twice
# What a mistake says of a function that gives another result from the same arguments.
OTHER = "gives another result when it is called again"
NO_DRAWS = "so its runs could not be repeated; it may not draw at random"
DRAW = "draw with a seed, or from the global generators, which are seeded for each run"


def check_own_loop(run: Run, compute: Compute) -> None:
    """Raise InputError unless one epoch of an own loop, on a few batches, leaves what a run has to leave.

    Its layers exist, its loaders for measuring repeat, its history is finite, what is stored of the network
    gives the network that was trained, and so does the loop that continues from its checkpoint.
    """
    device = prepare_device(compute)
    say(f"code: reading two batches of each of {run.experiment}'s loaders, twice")
    loader_digests(run, BATCHES)
    say(f"code: passing them through the network of {run.experiment}")
    with own_passes(run, None, device, BATCHES) as (_, _, passes):
        for run_through in passes.values():
            for _ in run_through():
                pass
    spec: Any = run.spec
    once = dataclasses.replace(spec.training, epochs=1)
    short = dataclasses.replace(run, spec=dataclasses.replace(spec, training=once, history=None))
    loop = spec.training.study_entry.train
    say(f"code: training {run.experiment} for an epoch (two batches if of a DataLoader), and resuming it")
    with few_batches(BATCHES), tempfile.TemporaryDirectory() as folder:
        checkpoints = Checkpoints([Path(folder) / "trial"], 0.0)
        with global_generators(run.seed, "training"):
            model = build_own(short).to(device)
        trained = train_own(short, device, checkpoints, model=model)
        if trained.diverged_at is not None:
            raise mistake_of(loop, "leaves a loss, error or weight that is not finite after one epoch")
        again = train_own(short, device, checkpoints) if checkpoints.files[0].exists() else trained
    if again.state.keys() != trained.state.keys() or any(
        _differ(value, again.state[name], CLOSE_WEIGHTS) for name, value in trained.state.items()
    ):
        raise mistake_of(loop, "has other weights once it continued from its checkpoint; load them")
    if any(value.dtype in (torch.bfloat16, torch.float16) for value in trained.state.values()):
        model.float()  # as `build` makes the network that is measured
    one, two = (
        _features_of(short, state, model_of, device)
        for state, model_of in ((trained.state, None), (None, model))
    )
    if any(_differ(a, b, CLOSE_FEATURES) for a, b in zip(one, two, strict=True)):
        problem = "changes more of the network than its state_dict() has, which is all that is stored of it"
        raise mistake_of(loop, f"{problem}; keep it in buffers")


def _differ(one: torch.Tensor, two: torch.Tensor, tolerance: float) -> bool:
    return bool((one.double() - two.double()).norm() > tolerance * two.double().norm())


def _features_of(
    run: Run, state: dict[str, torch.Tensor] | None, model: torch.nn.Module | None, device: torch.device
) -> list[torch.Tensor]:
    """Return what enters the classifier of a network, for a few batches of each split."""
    with own_passes(run, state, device, BATCHES, model=model) as (_, _, passes):
        return [values[LAST_LAYER] for through in passes.values() for values, _ in through()]


def check_runs(runs: list[Run]) -> None:
    """Build the shallowest and the deepest network; take one step with the first and compute its metrics."""
    fix_order_of_sums()  # so that a step taken twice gives the same bytes
    data = _subsample(_load_data(runs[0].spec.data, PREPARED / runs[0].data))
    cpu = torch.device("cpu")
    for run in runs[:1] if runs[0].depth == runs[1].depth else runs:
        _check_network(run, data)
    run = runs[0]
    batch = run.spec.batch_size
    samples = len(data.train)
    spec = dataclasses.replace(
        run.spec,
        epochs=1,
        log_every=1,
        history=None,
        batch_size="full" if batch == "full" or batch >= samples else max(batch, samples // 2),
    )
    run = dataclasses.replace(run, spec=spec)
    session = Session([run], data, cpu, torch.float32)
    start = session.stack.values.clone()
    try:
        loss, gradient = session.loss_and_gradient(session.train)
        again = session.loss_and_gradient(session.train)
    except RuntimeError as error:  # from autograd, whose traceback has no line of study.py
        if study_error(error):
            raise
        part = spec.loss if isinstance(spec.loss, OwnLoss) else spec.model
        reason = " ".join(str(error).split())
        raise mistake(part, f"the loss {spec.loss_name} of this network has no gradient: {reason}") from None
    if not bool(loss.isfinite().all()) or not bool(gradient.isfinite().all()):
        verb = "is" if not bool(loss.isfinite().all()) else "has a gradient that is"
        raise mistake(spec.loss, f"the loss {spec.loss_name} {verb} not finite before the first step")
    if not torch.equal(loss, again[0]) or not torch.equal(gradient, again[1]):
        part = spec.loss if isinstance(spec.loss, OwnLoss) else spec.model
        raise mistake(part, f"the loss {spec.loss_name} of this network {OTHER}, {NO_DRAWS}")
    _check_samples_apart(session)
    _check_optimizer(session)
    for _ in session.epochs():
        pass
    if not bool(session.stack.values.isfinite().all()):
        raise mistake(
            spec.optimizer, f"the first step of {spec.optimizer.name} gives weights that are not finite"
        )
    if not torch.equal(Session([run], data, cpu, torch.float32).stack.values, start):
        raise mistake(spec.model, f"initialise() of {spec.model.architecture} {OTHER}; draw from `generator`")
    if run.study.metrics:
        state = session.results()[0].state
        features = extract(run, state, data, cpu)
        trained = TrainedRun(run, state, prepared=data)
        pair = [list(own_measurements(run, features, trained)) for _ in range(2)]
        for one, two in zip(*pair, strict=True):
            if one.value != two.value and not (math.isnan(one.value) and math.isnan(two.value)):
                raise mistake("METRICS", f"the metric {one.metric} {OTHER}; {DRAW}")
        for metric, function in own_metrics(run.study).items():
            if right := wrong_place(metric, function):
                raise mistake(
                    "METRICS",
                    f"the metric {metric.name!r} has where {metric.where!r}; what its function takes is "
                    f"known at {right!r}",
                )


def _check_samples_apart(session: Session) -> None:
    """Raise InputError if a loss compares samples without saying so: a full batch passes in parts."""
    loss = session.spec.loss
    if not isinstance(loss, OwnLoss) or loss.compares_samples:
        return
    with torch.no_grad():
        outputs = session.outputs(session.train)
        half = math.ceil(outputs.logits.shape[1] / 2)
        part = dataclasses.replace(
            outputs,
            logits=outputs.logits[:, :half],
            labels=outputs.labels[:, :half],
            features=None if outputs.features is None else outputs.features[:, :half],
        )
        whole, alone = own_losses(loss, outputs)[:, :half], own_losses(loss, part)
    if not torch.allclose(alone, whole, rtol=1e-4, atol=1e-4 * float(whole.abs().max())):
        problem = "gives a sample another number with other samples in its batch; set the ClassVar"
        raise mistake(loss, f"the loss {loss.name} {problem} compares_samples = True and return the mean")


def _check_optimizer(session: Session) -> None:
    """Raise InputError if an optimizer of study.py gives something else when it is called again.

    It then keeps something that is in no checkpoint, so that a resumed run is another run; on CUDA its step
    is recorded once and replayed, so that it would train as in that step for ever.
    """
    spec, values = session.spec, session.stack.values
    if isinstance(spec.optimizer, OwnOptimizer):
        method: Any = session.method
        gradient = session.loss_and_gradient(session.train)[1]
        before = {name: buffer.clone() for name, buffer in method.buffers().items()}
        twice = []
        for _ in "ab":
            given = {"weights": values.clone(), "gradients": gradient.clone()}
            twice.append(method.optimizer.update(*given.values(), method.table[0]))
            for name, one, kept in zip(given, given.values(), (values, gradient), strict=True):
                if not torch.equal(one, kept):
                    problem = f"changes the {name} that it gets; compute from a copy, by clone()"
                    raise mistake(spec.optimizer, f"the optimizer {spec.optimizer.name} {problem}")
            for name, buffer in method.buffers().items():
                buffer.copy_(before[name])
        if not torch.allclose(twice[0], twice[1], rtol=0.0, atol=0.0, equal_nan=True):
            raise mistake(
                spec.optimizer,
                f"the optimizer {spec.optimizer.name} changes from call to call with the same weights, "
                "gradients, state, step and rate; keep numbers in `state`, or compute them from `step`",
            )


def _check_network(run: Run, data: Prepared) -> None:
    """Raise InputError, with the network's class and line, if a forward pass breaks a rule of `Network`."""
    model = run.spec.model
    network = build_network(run, data)
    made = network.module if isinstance(network, HookedNetwork) else network  # by study.py
    name = f"{type(made).__name__}, L = {run.depth}"
    try:
        roles = network.roles()
        length = network.length
    except ValueError as error:
        raise mistake(made, f"{name}: {error}") from None
    if build_uninitialised_network(run, data).roles() != roles:
        raise mistake(made, f"{name}: initialise() changes requires_grad; set it in __init__")
    if unknown := sorted(set(roles.values()) - set(get_args(Role))):
        message = f"has the role {unknown[0]!r}; the roles are {', '.join(get_args(Role))}"
        raise mistake(made, f"{name}: parameter_groups() {message}")
    if (role := roles.get("last.weight", "last")) not in ("last", "frozen"):
        raise mistake(made, f"{name}: the role of self.last is {role}; write it as last")
    if not length > 0:
        raise mistake(made, f"{name}: length is {length}; expected the number of blocks, above 0")
    samples = prepare_split(data.train, data.kind, model, torch.device("cpu"), torch.float32)
    with torch.no_grad():
        layers = list(network.eval().representations(samples.inputs, samples.lengths))
        again = list(network.representations(samples.inputs, samples.lengths))
    names = [layer.name for layer in layers]
    if len(set(names)) < len(names):
        raise mistake(made, f"{name}: layers() gives two layers of one name in {', '.join(names)}")
    for layer in layers:
        _check_layer(made, name, layer.name, layer.values, data.train.predictions, layer.position)
    if any(not torch.equal(one.values, two.values) for one, two in zip(layers, again, strict=True)):
        raise mistake(made, f"{name}: the network {OTHER} in eval mode; draw `if self.training` alone")
    if names[-1:] != ["last"] or layers[-1].position != 1:
        last = f"{names[-1]!r} at position {layers[-1].position}" if layers else "none"
        raise mistake(made, f"{name}: the last layer of layers() is {last}; expected 'last' at position 1")
    if (has_bias := network.last.bias is not None) != model.last_bias:
        bias = f"{'a' if has_bias else 'no'} bias; write the ClassVar last_bias = {has_bias}"
        raise mistake(model, f"{name}: `last` has {bias} into {type(model).__name__}")
    width, rows = layers[-1].values.shape[1], network.last.weight
    if tuple(rows.shape) != (data.classes, width):
        raise mistake(
            made,
            f"{name}: `last` has a weight {tuple(rows.shape)}; expected ({data.classes}, {width}), the "
            "classes and the width of the layer 'last'",
        )
    buffers = dict(network.named_buffers())
    with torch.no_grad(), global_generators(run.seed, "trial"):
        network.train().forward_with_features(samples.inputs, samples.lengths)
    if rebound := [key for key, buffer in network.named_buffers() if buffer is not buffers.get(key)]:
        problem = f"sets the buffer {rebound[0]} to another tensor; change it in place, by copy_() or mul_()"
        raise mistake(made, f"{name}: {problem}")
    _check_state(network, made, name, run, data)


def _check_state(network: Network, made: torch.nn.Module, name: str, run: Run, data: Prepared) -> None:
    """Raise InputError if what a run stores of a network is not all of it: another seed's takes its weights.

    What is neither parameter nor buffer would be that of another run in a batch, and after training that of
    the initial weights. Both are passed through in float64, as when they are measured.
    """
    cpu = torch.device("cpu")
    state = Stack([network], cpu, torch.float32).state_of(0)
    try:
        other = load_network(dataclasses.replace(run, seed=run.seed + 1), state, data, cpu)
    except InputError as error:
        problem = f"is not read back as it is stored, by names of parameters and buffers: {error}"
        raise mistake(made, cut(f"{name}: {problem}")) from None
    samples = prepare_split(data.train, data.kind, run.spec.model, cpu, torch.float64)
    with torch.no_grad():
        one, two = (
            list(each.representations(samples.inputs, samples.lengths))
            for each in (network.double().eval(), other)
        )
    if any(not torch.equal(layer.values, twin.values) for layer, twin in zip(one, two, strict=True)):
        problem = "keeps numbers that are neither parameters nor buffers; use self.register_buffer"
        raise mistake(made, f"{name}: {problem}")


def _check_layer(
    made: torch.nn.Module, name: str, layer: str, values: object, samples: int, position: object
) -> None:
    if not isinstance(values, torch.Tensor) or values.dim() != 2 or len(values) != samples:
        shape = tuple(values.shape) if isinstance(values, torch.Tensor) else type(values).__name__
        raise mistake(made, f"{name}: the layer {layer} is {shape}; expected ({samples}, width)")
    if position is not None and not 0 <= float(position) <= 1:  # type: ignore[arg-type]
        raise mistake(made, f"{name}: the layer {layer} is at {position}; expected 0 to 1, or None")
    if not bool(values.isfinite().all()):
        kind = "NaN" if bool(values.isnan().any()) else "infinity"
        raise mistake(made, f"{name}: the layer {layer} gives {kind} before the first step")


def _load_data(spec: Data, folder: Path) -> Prepared:
    """Return the data if they are prepared or need no download; otherwise noise of the same shape."""
    if isinstance(spec, OwnData):
        return _own_data(spec)
    if not isinstance(spec, ImageData | TextData | NextTokenData) or spec.source == "digits":
        return prepare(spec, RAW, None, progress=False)
    try:
        return read_prepared(folder)
    except InputError:  # not prepared yet
        return _noise(spec)


def _own_data(spec: Data) -> Prepared:
    """Return the data of a function of study.py; InputError if a second call gives others."""
    begin = time.monotonic()
    data = prepare(spec, RAW, None, progress=False)
    if time.monotonic() - begin < SECONDS:
        again = prepare(spec, RAW, None, progress=False)
        if data.facts != again.facts:  # with digests of the arrays
            raise mistake(spec, f"the function of {spec.source} {OTHER}; {DRAW}")
    return data


def _noise(spec: ImageData | TextData | NextTokenData) -> Prepared:
    """Return random images or texts of the data set's shape."""
    draw = torch.Generator().manual_seed(0)
    if isinstance(spec, NextTokenData):
        ids = torch.randint(spec.vocabulary, (8, spec.context + 1), generator=draw)
        tokens = TokenSplit(ids[:, :-1], ids[:, 1:])
        return Prepared("next_tokens", spec.vocabulary, spec.vocabulary, tokens, tokens, {}, checksum="")
    if isinstance(spec, TextData):
        labels, words = torch.arange(8) % 2, spec.vocabulary or 1000
        ids = torch.randint(1, words, (8, spec.context), generator=draw)
        split = Split(ids, labels, torch.full((8,), spec.context))
        return Prepared("tokens", 2, words, split, split, {}, checksum="")
    labels = torch.arange(2 * spec.classes) % spec.classes
    channels = 3 if spec.source in ("cifar10", "cifar100", "svhn") else 1
    images = torch.rand(len(labels), channels, spec.side, spec.side, generator=draw)
    split = Split(images, labels)
    return Prepared("image", spec.classes, None, split, split, {}, checksum="")


def _subsample(data: Prepared) -> Prepared:
    """Return the data with a few samples of each class."""
    if data.kind == "free":
        return data
    train, test = data.train[_few(data.train, data.classes)], data.test
    return dataclasses.replace(data, train=train, test=test and test[_few(test, data.classes)])


def _few(split: Split, classes: int) -> slice | torch.Tensor:
    """Return the indices of a few samples; two at least of each class, or that have a tag alone."""
    if isinstance(split, TokenSplit):  # a label at every position
        return slice(0, 2)
    if isinstance(split, TagSplit):
        alone = torch.nonzero(split.labels.sum(1) == 1).flatten()
        of_tags = [alone[tagged.bool()][:2] for tagged in split.labels[alone].T]
        return torch.cat([torch.arange(min(SAMPLES, len(split))), *of_tags])
    if split.row:
        return slice(0, SAMPLES)
    count = max(2, math.ceil(SAMPLES / classes))
    return torch.cat([torch.nonzero(split.labels == label).flatten()[:count] for label in range(classes)])
