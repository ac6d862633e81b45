"""Samples of other data beside the train and test splits, for scores that tell them from test samples."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import torch

from ncpipe.config.transfer_specs import OtherImages
from ncpipe.datasets.facts import count_shared
from ncpipe.datasets.prepared import Prepared, Split
from ncpipe.datasets.transfer import resized
from ncpipe.system.errors import InputError


def with_other_images(data: Prepared, spec: OtherImages, other: Prepared) -> Prepared:
    """Return the data with images of another set, in their size and normalised by the same constants.

    spec: its keys. other: that set, with pixels in [0, 1].
    """
    rule: Mapping[str, Any] = data.facts["normalisation"]  # type: ignore[assignment]
    images = resized("data.ood", other.train, data.train.inputs)
    mean, deviation = (
        torch.tensor(rule.get(name, [default]), dtype=torch.float64).view(-1, 1, 1)
        for name, default in (("mean", 0.0), ("std", 1.0))
    )
    inputs = ((images.inputs.double() - mean) / deviation).float()
    record = asdict(spec) | {"raw": other.facts["raw"]}
    return with_outliers("data.ood", data, Split(inputs, images.labels), record)


def with_outliers(name: str, data: Prepared, ood: Split, record: Mapping[str, object]) -> Prepared:
    """Return the data with a split `ood`; InputError that begins with `name` if it cannot be one.

    record: what facts say of it.
    """
    if data.test is None:
        raise InputError(
            f"{name}: its scores are compared with those of test samples; give test_inputs and test_labels"
        )
    for split, samples in data.splits():
        if shared := count_shared(samples, ood)["samples"]:
            raise InputError(
                f"{name}: {shared} of its {len(ood)} samples are {split} samples; leave them out"
            )
    facts = {**data.facts, "ood": {**record, "samples": len(ood)}}
    return replace(data, facts=facts, ood=ood)
