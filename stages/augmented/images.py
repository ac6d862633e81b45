"""Write data/images.safetensors: standardised images of CIFAR-10 to train and test on, and digits of MNIST.

500 training and 100 test images of each class, and 100 of each digit in the middle of as large an image,
normalised as these. The official files are downloaded, or read from the folder that NCPIPE_MIRROR names.
"""

import torch
from safetensors.torch import save_file
from torch.nn.functional import pad

from ncpipe.study import prepare_data

keys = {"source": "cifar10", "per_class": 500, "test_per_class": 100, "seed": 0}
data = prepare_data(keys | {"normalisation": "standardise"})
digits = prepare_data(
    {"source": "mnist", "per_class": 100, "test_per_class": 1, "seed": 0, "normalisation": "unit"}
)
mean, deviation = (torch.tensor(data.facts["normalisation"][name]).view(3, 1, 1) for name in ("mean", "std"))
tensors = {
    "x": data.train.inputs,
    "y": data.train.labels,
    "test_x": data.test.inputs,
    "test_y": data.test.labels,
    "digits_x": (pad(digits.train.inputs, (2, 2, 2, 2)).expand(-1, 3, -1, -1) - mean) / deviation,
    "digits_y": digits.train.labels,
}
save_file(tensors, "data/images.safetensors")
