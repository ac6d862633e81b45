"""See a network that a loop of study.py trained at its named layers, by hooks as any model's.

N  samples    K  classes    d  width
"""

import contextlib
import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from ncpipe.config.run import Run
from ncpipe.config.study_files import FILE
from ncpipe.datasets.own_loaders import REPEAT, measured_loaders
from ncpipe.datasets.prepared import Split
from ncpipe.features.extraction import Features, NetworkMetadata
from ncpipe.metrics.classifier import Classifier
from ncpipe.metrics.kept_pass import KEEP, KeptPass, both_passes, check_passes, first_pass, joined
from ncpipe.metrics.loaders import passes
from ncpipe.metrics.table import LAST_LAYER, OOD, TARGET, TEST, TRAIN
from ncpipe.models.hook_points import NoVectorError
from ncpipe.models.network import Role, embedding_parameters
from ncpipe.system.errors import InputError
from ncpipe.system.randomness import global_generators
from ncpipe.training.own_loop import build_own


def own_network(
    run: Run, state: dict[str, Tensor] | None = None, model: nn.Module | None = None
) -> nn.Module:
    """Return the network that `build` of study.py gives for a run, or `model`, with trained weights if given.

    Raises InputError if the weights are not of this network.
    """
    if model is None:
        with global_generators(run.seed, "training"):
            model = build_own(run)
    if state is not None:
        try:
            model.load_state_dict(state)
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise InputError(f"{run.name}: weights do not fit what build gives ({reason})") from None
    return model


@contextlib.contextmanager
def own_passes(
    run: Run,
    state: dict[str, Tensor] | None,
    device: torch.device,
    most: int | None = None,
    keep: float = KEEP,
    model: nn.Module | None = None,
) -> Iterator[tuple[nn.Module, Classifier, dict[str, KeptPass]]]:
    """Yield a run's network, its classifier, and by split a function that passes through all of its samples.

    state, model: as in `own_network`. most: batches of each split; None for all. keep: as in `KeptPass`.
    """
    model = own_network(run, state, model)
    loaders, measure, entry = measured_loaders(run, most), run.spec.measure, run.spec.training.study_entry
    layers = {name: entry.select_of(name) for name in measure.layers}
    with global_generators(run.seed, "loaders"):
        try:
            with passes(
                model, measure.classifier, loaders, layers, device, select=entry.select, keep=keep,
                names={split: f"the {split} loader" for split in loaders}, progress=False,
            ) as (head, runs):  # fmt: skip
                yield model, head, runs
        except InputError as error:
            where = f" in its Training of {FILE}" if isinstance(error, NoVectorError) else ""
            raise InputError(f"experiments.{run.experiment}.measure: {error}{where}") from None


def extract_own(run: Run, state: dict[str, Tensor], device: torch.device, keep: float = KEEP) -> Features:
    """Pass each split through a trained network, in its own precision; all else is in float64.

    What no loop of study.py says is NaN: its penalty, and the gradient of its objective.
    keep: as in `KeptPass`.
    """
    with own_passes(run, state, device, keep=keep) as (model, head, runs):
        classified = {split: run for split, run in runs.items() if split not in (OOD, TARGET)}
        learned = first_pass(classified[TRAIN](), head.classes, TRAIN)
        weight, bias = head.weight.detach(), None if head.bias is None else head.bias.detach()
        again = f"the {{}} loader gave other samples in a second pass; {REPEAT}"
        layers = both_passes(classified, learned, {LAST_LAYER: (weight, bias)})
        check_passes(classified, layers, again, head.rounding(model))
        layers[LAST_LAYER] = layers.pop(LAST_LAYER)
        splits = {}
        for split, batches in runs.items():
            values, labels = joined(batches(), LAST_LAYER)
            splits[split] = Split(values[LAST_LAYER].double(), labels)
        return Features(
            splits[TRAIN],
            splits.get(TEST),
            weight.cpu().double(),
            None if bias is None else bias.cpu().double(),
            math.nan,
            math.nan,
            math.nan,
            layers,
            NetworkMetadata(
                False,
                roles(model, head.module),
                {name: place * run.depth / len(layers) for place, name in enumerate(layers, 1)},
            ),
            splits.get(TARGET),
            ood=splits.get(OOD),
        )


def own_batches(run: Run, state: dict[str, Tensor], split: str) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
    """Pass over a split: per batch, layers by name, (B, d), and labels (B,)."""
    with own_passes(run, state, torch.device("cpu")) as (_, _, runs):
        yield from runs[split]()


def roles(model: nn.Module, classifier: nn.Module) -> dict[str, Role]:
    """Return what each parameter of any module is: of the classifier, an embedding, or all between."""
    last = {id(parameter) for parameter in classifier.parameters()}
    embeddings = embedding_parameters(model)
    by_name: dict[str, Role] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if not parameter.requires_grad:
            by_name[name] = "frozen"
        elif id(parameter) in last:
            by_name[name] = "last"
        else:
            by_name[name] = "embedding" if id(parameter) in embeddings else "inner"
    return by_name
