"""Write data/images.safetensors: 500 training and 100 test images of each class of CIFAR-10, standardised.

The official files are downloaded, or read from the folder that NCPIPE_MIRROR names.
"""

from safetensors.torch import save_file

from ncpipe.study import prepare_data

keys = {"source": "cifar10", "per_class": 500, "test_per_class": 100, "seed": 0}
data = prepare_data(keys | {"normalisation": "standardise"})
tensors = {
    "x": data.train.inputs,
    "y": data.train.labels,
    "test_x": data.test.inputs,
    "test_y": data.test.labels,
}
save_file(tensors, "data/images.safetensors")
