"""Scikit-learn's bundled handwritten digits: 1797 images of 8x8, pixel values 0..16, no official split."""

import hashlib

import torch
from sklearn.datasets import load_digits

from ncpipe.datasets.images import Pool, from_draws
from ncpipe.datasets.prepared import Prepared
from ncpipe.specs import ImageData

LARGEST = 16
CLASSES = 10


def prepare_digits(spec: ImageData) -> Prepared:
    """Draw the training set from all images, then the test set from those that are left."""
    bunch = load_digits()
    pixels = torch.from_numpy(bunch.images).to(torch.uint8)[:, None]
    pool = Pool(pixels, torch.from_numpy(bunch.target).long(), CLASSES)
    train = pool.draw(spec.per_class, spec.seed, "train")
    left = torch.ones(len(pool.labels), dtype=torch.bool)
    left[train] = False
    rest = pool[left]
    test = rest.draw(spec.test_per_class, spec.seed, "test")
    content = hashlib.sha256(pool.pixels.numpy().tobytes() + bytes(pool.labels.tolist()))
    raw = {"sklearn.datasets.load_digits": f"sha256:{content.hexdigest()}"}
    return from_draws(spec, pool[train], rest[test], LARGEST, raw, {"all": len(pool.labels)})
