"""What is done to a balanced draw of training samples: wrong labels, or fewer samples of some classes.

N  training samples    K  classes
"""

from collections.abc import Mapping
from dataclasses import asdict, replace

import torch
from torch import Tensor

from ncpipe.config.experiment import Data
from ncpipe.config.sources.source import Imbalance, LabelNoise
from ncpipe.datasets.facts import counted
from ncpipe.datasets.prepared import Prepared, Split
from ncpipe.system.errors import InputError
from ncpipe.system.randomness import seeded_generator


def with_label_changes(data: Prepared, spec: Data) -> Prepared:
    """Return the data as the spec's keys label_noise and imbalance ask; without them `data` itself.

    Inputs keep the values that the balanced draw gave them: they are normalised by its constants, so that
    runs of every fraction and ratio see the same samples. Raises InputError that names the key where a class
    would have no sample, or there are no small classes.
    """
    if spec.label_noise is not None:
        return _relabelled(data, spec.label_noise)
    if spec.imbalance is not None:
        return _unbalanced(data, spec.imbalance)
    return data


def _relabelled(data: Prepared, noise: LabelNoise) -> Prepared:
    true, noisy = data.train.labels, noisy_labels(data.train.labels, data.classes, noise)
    counts = torch.bincount(noisy, minlength=data.classes)
    if len(empty := torch.nonzero(counts == 0)):
        raise InputError(
            f"data.label_noise: leaves class {int(empty[0])} without a training sample; take another seed or "
            "`kind: permutation`"
        )
    record: dict[str, object] = {**asdict(noise), "wrong": int((noisy != true).sum())}
    train = Split(data.train.inputs, noisy, data.train.lengths)
    return _with(data, train, {"label_noise": record}, true)


def noisy_labels(labels: Tensor, classes: int, noise: LabelNoise) -> Tensor:
    """Return labels (N,) of which round(fraction * N), at places drawn by the seed, are drawn again."""
    order = torch.randperm(len(labels), generator=seeded_generator(noise.seed, "label noise places"))
    chosen = order[: round(noise.fraction * len(labels))]
    generator = seeded_generator(noise.seed, "label noise labels")
    noisy = labels.clone()
    if noise.kind == "permutation":
        noisy[chosen] = labels[chosen[torch.randperm(len(chosen), generator=generator)]]
    else:
        noisy[chosen] = torch.randint(classes, labels.shape, generator=generator)[: len(chosen)]
    return noisy


def _unbalanced(data: Prepared, imbalance: Imbalance) -> Prepared:
    if imbalance.majority is not None and imbalance.majority >= data.classes:
        raise InputError(
            f"data.imbalance.majority: {imbalance.majority} of {data.classes} classes leave none to be "
            f"small; it must be <= {data.classes - 1}"
        )
    train = data.train[kept_samples(data.train.labels, data.classes, imbalance)]
    return _with(data, train, {"imbalance": asdict(imbalance)}, None)


def kept_samples(labels: Tensor, classes: int, imbalance: Imbalance) -> Tensor:
    """Return indices into a balanced draw with labels (N,): each class's first samples, in the draw's order.

    With `resample: over` those of a small class go round until they are as many as in the draw.
    """
    chosen = []
    for label in range(classes):
        members = torch.nonzero(labels == label).flatten()
        if (over := _size_over(label, classes, imbalance)) > 1:
            few = round(len(members) / over)
            if few < 1:
                raise InputError(
                    f"data.imbalance.ratio: {imbalance.ratio:g} leaves class {label} none of its "
                    f"{len(members)} training samples; lower it or raise data.per_class"
                )
            again = torch.arange(len(members) if imbalance.resample == "over" else few) % few
            members = members[again]
        chosen.append(members)
    return torch.cat(chosen)


def _size_over(label: int, classes: int, imbalance: Imbalance) -> float:
    """Return the size of the largest class over that of this one."""
    if imbalance.majority is None:
        return float(imbalance.ratio ** (label / (classes - 1)))
    return imbalance.ratio if label >= imbalance.majority else 1.0


def _with(data: Prepared, train: Split, more: Mapping[str, object], true: Tensor | None) -> Prepared:
    facts = {**data.facts, **counted(data.classes, train, data.test), **more}
    return replace(data, train=train, facts=facts, true_labels=true)
