"""From balanced draws of integer pixels to the float images a network sees."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ncpipe.config.sources.images import ImageData
from ncpipe.datasets.facts import describe
from ncpipe.datasets.prepared import Prepared, Split, draw_balanced
from ncpipe.system.errors import InputError
from ncpipe.system.randomness import seeded_generator


@dataclass(frozen=True)
class Pool:
    """Images to draw from: pixels (N, channels, height, width) uint8, labels (N,) int64 in 0..classes-1."""

    pixels: Tensor
    labels: Tensor
    classes: int

    def __getitem__(self, indices: Tensor) -> "Pool":
        return Pool(self.pixels[indices], self.labels[indices], self.classes)

    def draw(self, per_class: int | None, seed: int, split: str) -> Tensor:
        """Return the indices of a balanced draw for `split`, see draw_balanced."""
        generator = seeded_generator(seed, f"data {split}")
        return draw_balanced(self.labels, self.classes, per_class, generator, split)


def from_splits(spec: ImageData, train: Pool, test: Pool, largest: int, raw: Mapping[str, str]) -> Prepared:
    """Draw both splits from the official ones; facts keeps the official sizes."""
    drawn_train = train[train.draw(spec.per_class, spec.seed, "train")]
    drawn_test = test[test.draw(spec.test_per_class, spec.seed, "test")]
    official = {"train": len(train.labels), "test": len(test.labels)}
    return from_draws(spec, drawn_train, drawn_test, largest, raw, official)


def from_draws(
    spec: ImageData,
    train: Pool,
    test: Pool,
    largest: int,
    raw: Mapping[str, str],
    official: Mapping[str, int],
) -> Prepared:
    """Divide by `largest`, the largest pixel value, then normalise both splits by the training set's rule."""
    offset, scale = _constants(spec, train.pixels, largest)
    train_split = Split(_normalise(train.pixels, largest, offset, scale), train.labels)
    test_split = Split(_normalise(test.pixels, largest, offset, scale), test.labels)
    facts = describe(spec.source, train.classes, spec.seed, train_split, test_split, raw) | {
        "official": dict(official),
        "normalisation": {
            "rule": f"pixel / {largest}, then (x - mean) / std of its channel",
            "mean": offset.tolist(),
            "std": scale.tolist(),
        }
        if spec.normalisation == "standardise"
        else {"rule": f"pixel / {largest}"},
    }
    return Prepared("image", train.classes, None, train_split, test_split, facts)


def _constants(spec: ImageData, pixels: Tensor, largest: int) -> tuple[Tensor, Tensor]:
    """Return offset and scale of each channel, (channels,) float64: mean and std, or 0 and 1 for `unit`."""
    channels = pixels.shape[1]
    if spec.normalisation == "unit":
        zeros = torch.zeros(channels, dtype=torch.float64)
        return zeros, zeros + 1
    moments = [channel_moments(pixels[:, channel], largest) for channel in range(channels)]
    for channel, (_, std) in enumerate(moments):
        if std == 0:
            raise InputError(
                f"data.normalisation: channel {channel} is constant in the drawn training images; "
                "use `unit` or raise data.per_class"
            )
    table = torch.tensor(moments, dtype=torch.float64)
    return table[:, 0], table[:, 1]


def channel_moments(pixels: Tensor, largest: int) -> tuple[float, float]:
    """Mean and population standard deviation of pixels / largest, pixels uint8 of any shape.

    Computed from the histogram of values: integer counts are exact, so the constants depend neither on the
    order of the samples nor on the number of threads.
    """
    counts = torch.bincount(pixels.flatten(), minlength=largest + 1).double()
    values = torch.arange(len(counts), dtype=torch.float64) / largest
    mean = (counts * values).sum() / counts.sum()
    variance = (counts * (values - mean).square()).sum() / counts.sum()
    return mean.item(), variance.sqrt().item()


def _normalise(pixels: Tensor, largest: int, offset: Tensor, scale: Tensor) -> Tensor:
    """Return (pixels / largest - offset) / scale per channel, in float64 and rounded once to float32."""
    values = torch.arange(largest + 1, dtype=torch.float64) / largest
    tables = ((values - offset[:, None]) / scale[:, None]).float().numpy()
    images = np.empty(pixels.shape, dtype=np.float32)
    for channel, table in enumerate(tables):
        images[:, channel] = table[pixels[:, channel].numpy()]
    return torch.from_numpy(images)


def prepare_digits(spec: ImageData, *_: object) -> Prepared:
    """Draw scikit-learn's digits: training images from all 1797, then test images from the others."""
    from sklearn.datasets import load_digits  # takes a second

    bunch = load_digits()
    pool = Pool(torch.from_numpy(bunch.images).byte().unsqueeze(1), torch.from_numpy(bunch.target), 10)
    train = pool.draw(spec.per_class, spec.seed, "train")
    left = torch.ones(len(pool.labels), dtype=torch.bool)
    left[train] = False
    rest = pool[left]
    test = rest.draw(spec.test_per_class, spec.seed, "test")
    content = hashlib.sha256(pool.pixels.numpy().tobytes() + bytes(pool.labels.tolist()))
    raw = {"sklearn.datasets.load_digits": f"sha256:{content.hexdigest()}"}
    return from_draws(spec, pool[train], rest[test], 16, raw, {"all": len(pool.labels)})
