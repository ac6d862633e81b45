"""Write data/images.safetensors: 500 training and 100 test images of each class of CIFAR-10, standardised.

The official files are downloaded, or read from the folder that NCPIPE_MIRROR names.
"""

import os
from pathlib import Path

from safetensors.torch import save_file

from ncpipe.config.sources.images import ImageData
from ncpipe.datasets.prepare import prepare

draw = ImageData("cifar10", per_class=500, test_per_class=100, seed=0, normalisation="standardise")
mirror = os.environ.get("NCPIPE_MIRROR")
data = prepare(draw, Path("data/raw"), Path(mirror) if mirror else None, progress=True)
tensors = {
    "x": data.train.inputs,
    "y": data.train.labels,
    "test_x": data.test.inputs,
    "test_y": data.test.labels,
}
save_file(tensors, "data/images.safetensors")
