"""See a network that a loop of study.py trained at its named layers, by hooks as any model's.

N  samples    K  classes    d  width
"""

import contextlib
import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from ncpipe.config.experiment import own_loop
from ncpipe.config.run import Run
from ncpipe.datasets.own_loaders import REPEAT, measured_loaders
from ncpipe.datasets.prepared import Split
from ncpipe.features.extraction import Features, LayerOnSplit, NetworkMetadata
from ncpipe.metrics.checks import check_statistics
from ncpipe.metrics.classifier import Classifier
from ncpipe.metrics.hooks import passes
from ncpipe.metrics.kept_pass import KEEP, KeptPass
from ncpipe.metrics.sample_statistics import first_pass, same_samples, second_pass
from ncpipe.metrics.table import LAST_LAYER, OOD, TEST, TRAIN
from ncpipe.models.network import Role, embedding_parameters
from ncpipe.system.errors import InputError
from ncpipe.system.randomness import global_generators
from ncpipe.training.own_loop import build_own


@contextlib.contextmanager
def own_passes(
    run: Run,
    state: dict[str, Tensor] | None,
    device: torch.device,
    most: int | None = None,
    keep: float = KEEP,
) -> Iterator[tuple[nn.Module, Classifier, dict[str, KeptPass]]]:
    """Yield a run's network, its classifier, and by split a function that passes through all of its samples.

    state: trained weights; None for those of `build`. most: batches of each split; None for all. keep: as in
    `KeptPass`.
    """
    loop = own_loop(run.spec)
    assert loop is not None
    with global_generators(run.seed, "training"):
        model = build_own(run)
    if state is not None:
        try:
            model.load_state_dict(state)
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise InputError(f"{run.name}: weights do not fit what build gives ({reason})") from None
    loaders = measured_loaders(run, most)
    with global_generators(run.seed, "loaders"):
        try:
            with passes(
                model, loop.measure.classifier, loaders, loop.measure.layers, device, keep=keep,
                names={split: f"the {split} loader" for split in loaders}, progress=False,
            ) as (head, found):  # fmt: skip
                yield model, head, found
        except InputError as error:
            raise InputError(f"experiments.{run.experiment}.measure: {error}") from None


def extract_own(run: Run, state: dict[str, Tensor], device: torch.device, keep: float = KEEP) -> Features:
    """Pass each split through a trained network, in its own precision; all else is in float64.

    What no loop of study.py says is NaN: its penalty, and the gradient of its objective.
    keep: as in `KeptPass`.
    """
    with own_passes(run, state, device, keep=keep) as (model, head, found):
        other = found.pop(OOD, None)
        kept: dict[str, list[tuple[Tensor, Tensor]]] = {split: [] for split in found}
        seen = {}
        for split, run_through in found.items():
            seen[split] = first_pass(_keeping(run_through, kept[split]), head.classes, split)
        weight, bias = head.weight.detach(), None if head.bias is None else head.bias.detach()
        about = {}
        for split, run_through in found.items():
            for layer, statistics in seen[split].items():
                check_statistics(split, layer, statistics)
            train = seen[TRAIN] if split == TEST else None
            about[split] = second_pass(run_through(), seen[split], {LAST_LAYER: (weight, bias)}, train)
            rounding = head.rounding(model)
            for layer, statistics in seen[split].items():
                if run_through.runs > 1 and not same_samples(statistics, about[split][layer], rounding):
                    raise InputError(f"the {split} loader gave other samples in a second pass; {REPEAT}")
        outliers = []
        if other is not None:
            outliers = [(layers[LAST_LAYER].cpu().double(), labels.cpu()) for layers, labels in other()]
        names = [name for name in seen[TRAIN] if name != LAST_LAYER] + [LAST_LAYER]
        splits = {split: Split(*map(torch.cat, zip(*parts, strict=True))) for split, parts in kept.items()}
        return Features(
            splits[TRAIN],
            splits.get(TEST),
            weight.cpu().double(),
            None if bias is None else bias.cpu().double(),
            math.nan,
            math.nan,
            math.nan,
            {
                name: {split: LayerOnSplit(seen[split][name], about[split][name]) for split in found}
                for name in names
            },
            NetworkMetadata(
                False,
                roles(model, head.module),
                {name: place * run.depth / len(names) for place, name in enumerate(names, 1)},
            ),
            ood=Split(*map(torch.cat, zip(*outliers, strict=True))) if outliers else None,
        )


def own_batches(run: Run, state: dict[str, Tensor], split: str) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
    """Pass over a split: per batch, layers by name, (B, d), and labels (B,)."""
    with own_passes(run, state, torch.device("cpu")) as (_, _, found):
        yield from found[split]()


def roles(model: nn.Module, classifier: nn.Module) -> dict[str, Role]:
    """Return what each parameter of any module is: of the classifier, an embedding, or all between."""
    last = {id(parameter) for parameter in classifier.parameters()}
    embeddings = embedding_parameters(model)
    found: dict[str, Role] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if not parameter.requires_grad:
            found[name] = "frozen"
        elif id(parameter) in last:
            found[name] = "last"
        else:
            found[name] = "embedding" if id(parameter) in embeddings else "inner"
    return found


def _keeping(
    run_through: KeptPass, kept: list[tuple[Tensor, Tensor]]
) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
    """Yield the same batches, and keep the last layer's features (N, d) and the labels."""
    for layers, labels in run_through():
        kept.append((layers[LAST_LAYER].cpu().double(), labels.cpu()))
        yield layers, labels
