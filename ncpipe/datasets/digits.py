"""Scikit-learn's bundled handwritten digits: 1797 images of 8x8, pixel values 0..16, no official split."""

import hashlib

import torch

from ncpipe.config.sources.images import ImageData
from ncpipe.datasets.images import Pool, from_draws
from ncpipe.datasets.prepared import Prepared

LARGEST = 16
CLASSES = 10


def prepare_digits(spec: ImageData, *_: object) -> Prepared:
    """Draw the training set from all images, then the test set from those that are left."""
    from sklearn.datasets import load_digits  # takes a second

    bunch = load_digits()
    pool = Pool(torch.from_numpy(bunch.images).byte().unsqueeze(1), torch.from_numpy(bunch.target), CLASSES)
    train = pool.draw(spec.per_class, spec.seed, "train")
    left = torch.ones(len(pool.labels), dtype=torch.bool)
    left[train] = False
    rest = pool[left]
    test = rest.draw(spec.test_per_class, spec.seed, "test")
    content = hashlib.sha256(pool.pixels.numpy().tobytes() + bytes(pool.labels.tolist()))
    raw = {"sklearn.datasets.load_digits": f"sha256:{content.hexdigest()}"}
    return from_draws(spec, pool[train], rest[test], LARGEST, raw, {"all": len(pool.labels)})
