"""Scikit-learn's bundled handwritten digits: 1797 images of 8x8, pixel values 0..16, no official split."""

import hashlib
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from ncpipe.config.sources.images import ImageData
from ncpipe.datasets.images import Pool, from_draws
from ncpipe.datasets.prepared import Prepared

LARGEST = 16
CLASSES = 10


def prepare_digits(spec: ImageData, *_: object) -> Prepared:
    """Draw the training set from all images, then the test set from those that are left."""
    table = _table()
    pixels = torch.from_numpy(table[:, :-1]).view(-1, 1, 8, 8)
    pool = Pool(pixels, torch.from_numpy(table[:, -1]).long(), CLASSES)
    train = pool.draw(spec.per_class, spec.seed, "train")
    left = torch.ones(len(pool.labels), dtype=torch.bool)
    left[train] = False
    rest = pool[left]
    test = rest.draw(spec.test_per_class, spec.seed, "test")
    content = hashlib.sha256(pool.pixels.numpy().tobytes() + bytes(pool.labels.tolist()))
    raw = {"sklearn.datasets.load_digits": f"sha256:{content.hexdigest()}"}
    return from_draws(spec, pool[train], rest[test], LARGEST, raw, {"all": len(pool.labels)})


def _table() -> np.ndarray:
    """Return rows of pixels and the label, (1797, 65) uint8, without the slow import of scikit-learn."""
    package = find_spec("sklearn")
    if package is not None and package.origin is not None:
        file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
        if file.is_file():
            return np.loadtxt(file, delimiter=",", dtype=np.uint8)
    from sklearn.datasets import load_digits

    bunch = load_digits()
    found: np.ndarray = np.column_stack([bunch.data, bunch.target]).astype(np.uint8)
    return found
