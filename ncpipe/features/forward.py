"""Forward passes of a trained network that show every layer.

N  samples of a batch    d  width
"""

from collections.abc import Collection, Iterator

import torch
from torch import Tensor

from ncpipe.config.run import Run
from ncpipe.datasets.prepared import Prepared, Split
from ncpipe.models.build import build_network, input_shape, prepare_split
from ncpipe.models.network import Network
from ncpipe.system.errors import InputError

ROWS = 50_000  # samples x tokens of one forward pass


def load_network(run: Run, state: dict[str, Tensor], data: Prepared, device: torch.device) -> Network:
    """Return the trained network in float64; InputError if the weights are not of its architecture."""
    network = build_network(run, data).double()  # before it takes the weights, which may be float64 too
    try:
        network.load_state_dict(state)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"{run.name}: weights do not fit the architecture ({reason}); train it anew"
        ) from None
    return network.to(device).eval()


@torch.no_grad()
def layers_by_batch(
    network: Network,
    run: Run,
    data: Prepared,
    split: Split,
    device: torch.device,
    names: Collection[str] = (),
) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
    """Pass over a split: per batch, layers by name, (N, d) at the predicting token, and labels (N,).

    names: of the layers to give; all without it.
    """
    model = run.spec.model
    samples = prepare_split(split, data.kind, model, device, torch.float64)
    rows = max(1, ROWS // input_shape(data, model).rows)
    for start in range(0, len(samples), rows):
        part = samples[start : start + rows]
        seen = network.representations(part.inputs, part.lengths)
        # Steps within blocks first.
        layers = {
            layer.name: layer.values for layer in sorted(seen, key=lambda layer: layer.position is None)
        }
        yield {name: layers[name] for name in names or layers}, part.targets


@torch.no_grad()
def layer_positions(network: Network, x: Tensor, lengths: Tensor | None = None) -> dict[str, float]:
    """Return each layer's position in blocks, `Network.length` at the features; only steps have one."""
    return {
        layer.name: float(layer.position * network.length)
        for layer in network.representations(x, lengths)
        if layer.position is not None
    }
