"""What is wrong with a study, found in seconds: its files' names, and one step of its study.py's networks.

The stage `code` runs this before anything trains. Of an experiment that study.py has a part in, a few samples
pass through the network, the loss, one step of the optimizer and every metric.
"""

import dataclasses
import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from ncpipe.claims.ledger import CLAIMS_FILE, load_claims
from ncpipe.commands.grid import check_metrics
from ncpipe.commands.watched import check_watched
from ncpipe.config.params import Params
from ncpipe.config.specs import ArraysData, Data, ImageData, NextTokenData, Run, TextData
from ncpipe.config.study import loaded, study_error, study_errors
from ncpipe.papers.outputs import RUN_NUMBERS
from ncpipe.system.artifacts import PREPARED, RAW
from ncpipe.system.errors import InputError, cut

if TYPE_CHECKING:
    from ncpipe.datasets.prepared import Prepared, Split
    from ncpipe.models.network import Network

SAMPLES = 64  # of a dry pass, at least two of each class


def check_study(params: Params) -> None:
    """Raise InputError, in one line, for the first mistake that a run would come upon later."""
    check_metrics(params)
    if CLAIMS_FILE.is_file():
        load_claims(CLAIMS_FILE, lambda: params, RUN_NUMBERS)
    for name in params.sweep.experiments:
        spec = params.experiments[name]
        if isinstance(spec.data, ArraysData):
            check_watched("fetch", spec.data.file)
            if not Path(spec.data.file).is_file():
                raise InputError(f"experiments.{name}.data.file: {spec.data.file} is not there")
    study = loaded()
    if not any(study.tables.values()):
        return
    measured = False
    for name in params.sweep.experiments:
        spec = params.experiments[name]
        parts = (spec.model, spec.data, spec.loss, spec.optimizer)
        own = any(type(part) in study.tables[table] for part, table in zip(parts, _ASKED, strict=True))
        if own or (study.metrics and not measured):
            runs = params.runs_of(name)
            with study_errors():
                _try_out(name, [runs[0], runs[-1]])
            measured = True


_ASKED = ("NETWORKS", "DATA", "LOSSES", "OPTIMIZERS")


def _try_out(experiment: str, runs: list[Run]) -> None:
    """Build the shallowest and the deepest network, and take one step with the first and all its metrics."""
    import torch

    from ncpipe.features.own_metrics import Whole, own_measurements
    from ncpipe.features.passes import extract
    from ncpipe.training.session import Session

    data = _few(_some_data(runs[0].spec.data, PREPARED / runs[0].data))
    cpu = torch.device("cpu")
    for run in runs[:1] if runs[0].depth == runs[1].depth else runs:
        _check_network(run, data)
    run = runs[0]
    batch = run.spec.batch_size
    most = len(data.train)
    spec = dataclasses.replace(
        run.spec,
        epochs=1,
        log_every=1,
        history=None,
        batch_size="full" if batch == "full" or batch >= most else max(batch, most // 2),
    )
    run = dataclasses.replace(run, spec=spec)
    session = Session([run], data, cpu, torch.float32)
    try:
        loss, gradient = session.loss_and_gradient(session.train)
    except RuntimeError as error:  # of autograd, below which no line of study.py is
        if study_error(error):
            raise
        own = spec.loss if type(spec.loss) in loaded().losses else spec.model
        what = " ".join(str(error).split())
        raise _of(own, f"the loss {spec.loss_name} of this network has no gradient: {what}") from None
    if not bool(loss.isfinite().all()) or not bool(gradient.isfinite().all()):
        what = "is" if not bool(loss.isfinite().all()) else "has a gradient that is"
        raise _of(spec.loss, f"the loss {spec.loss_name} {what} not finite before the first step")
    for _ in session.epochs():
        pass
    if not bool(session.stack.values.isfinite().all()):
        raise _of(
            spec.optimizer, f"the first step of {spec.optimizer.name} gives weights that are no numbers"
        )
    if loaded().metrics:
        state = session.results()[0].state
        features = extract(run, state, data, cpu)
        for _ in own_measurements(run, features, Whole(state, lambda: data)):
            pass


def _check_network(run: Run, data: "Prepared") -> None:
    """Raise InputError, with the network's class and line, if a forward pass is not as it has to be."""
    import torch

    from ncpipe.models.build import build_network, prepare_split
    from ncpipe.models.network import Network, Role

    model = run.spec.model
    network = build_network(run, data)
    if not isinstance(network, Network):
        raise _of(model, f"its Family builds a {type(network).__name__}; expected a Network")
    name = f"{type(network).__name__}, L = {run.depth}"
    try:
        roles = network.roles()
        length = network.length
    except ValueError as error:
        raise _of_network(network, f"{name}: {error}") from None
    known = get_args(Role)
    if unknown := sorted(set(roles.values()) - set(known)):
        what = f"the role {unknown[0]!r}; the roles are {', '.join(known)}"
        raise _of_network(network, f"{name}: parameter_groups() has {what}")
    if (role := roles.get("last.weight", "last")) not in ("last", "frozen"):
        raise _of_network(network, f"{name}: the role of self.last is {role}; write it as last")
    if not length > 0:
        raise _of_network(network, f"{name}: length is {length}; expected the number of blocks, above 0")
    samples = prepare_split(data.train, data.kind, model, torch.device("cpu"), torch.float32)
    with torch.no_grad():
        layers = list(network.eval().representations(samples.inputs, samples.lengths))
    names = [layer.name for layer in layers]
    if len(set(names)) < len(names):
        raise _of_network(network, f"{name}: layers() gives two layers of one name in {', '.join(names)}")
    for layer in layers:
        _check_layer(network, name, layer.name, layer.values, data.train.predictions, layer.position)
    if names[-1:] != ["last"] or layers[-1].position != 1:
        said = f"{names[-1]!r} at position {layers[-1].position}" if layers else "none"
        raise _of_network(
            network, f"{name}: the last layer of layers() is {said}; expected 'last' at position 1"
        )
    width, rows = layers[-1].values.shape[1], network.last.weight
    if tuple(rows.shape) != (data.classes, width):
        raise _of_network(
            network,
            f"{name}: `last` has a weight {tuple(rows.shape)}; expected ({data.classes}, {width}), the "
            "classes and the width of the layer 'last'",
        )


def _check_layer(
    network: "Network", name: str, layer: str, values: object, samples: int, position: object
) -> None:
    import torch

    if not isinstance(values, torch.Tensor) or values.dim() != 2 or len(values) != samples:
        shape = tuple(values.shape) if isinstance(values, torch.Tensor) else type(values).__name__
        raise _of_network(network, f"{name}: the layer {layer} is {shape}; expected ({samples}, width)")
    if position is not None and not 0 <= float(position) <= 1:  # type: ignore[arg-type]
        raise _of_network(network, f"{name}: the layer {layer} is at {position}; expected 0 to 1, or None")
    if not bool(values.isfinite().all()):
        kind = "NaN" if bool(values.isnan().any()) else "infinity"
        raise _of_network(
            network, f"{name}: the layer {layer} gives {kind} for the data as they are, before the first step"
        )


def _of_network(network: object, what: str) -> InputError:
    own = type(network).__name__
    return loaded().mistake(own, what) if own in loaded().lines else InputError(cut(what))


def _of(spec: object, what: str) -> InputError:
    """Return the mistake, with the line of the record if study.py defines it."""
    own = type(spec).__name__
    return loaded().mistake(own, what) if own in loaded().lines else InputError(cut(what))


def _some_data(spec: Data, place: Path) -> "Prepared":
    """Return the data if they are prepared or can be made here; else random numbers of the same shape."""
    from ncpipe.datasets.prepare import prepare
    from ncpipe.datasets.prepared import read_prepared

    own = type(spec) in loaded().data
    if own or not isinstance(spec, ImageData | TextData | NextTokenData) or spec.source == "digits":
        return prepare(spec, RAW, None, progress=False)
    try:
        return read_prepared(place)
    except InputError:  # not there yet
        return _noise(spec)


def _noise(spec: ImageData | TextData | NextTokenData) -> "Prepared":
    """Return random samples of the shape of an image set or of texts."""
    import torch

    from ncpipe.datasets.prepared import Prepared, Split, TokenSplit

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


def _few(data: "Prepared") -> "Prepared":
    """Return some samples of each class."""
    if data.kind == "free":
        return data
    if data.kind == "next_tokens":  # a label at every position
        few = slice(0, 2)
        return dataclasses.replace(data, train=data.train[few], test=data.test and data.test[few])
    each = max(2, math.ceil(SAMPLES / data.classes))
    test = None if data.test is None else _first(data.test, data.classes, each)
    return dataclasses.replace(data, train=_first(data.train, data.classes, each), test=test)


def _first(split: "Split", classes: int, each: int) -> "Split":
    import torch

    places: Iterable[torch.Tensor] = (
        torch.nonzero(split.labels == label).flatten()[:each] for label in range(classes)
    )
    return split[torch.cat(list(places))]
