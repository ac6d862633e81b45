"""Forward passes of a trained network that show every layer.

N  samples of a batch    d  width
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from ncpipe.datasets.prepared import Prepared, Split
from ncpipe.errors import InputError
from ncpipe.models.build import arrange, build_model, input_shape
from ncpipe.models.layers import Affine, OneLayerMLP
from ncpipe.models.resnet import ResNet
from ncpipe.models.transformer import Block, Transformer, last_token
from ncpipe.specs import Run

ROWS = 50_000  # samples x tokens of one forward pass
PRE_ACTIVATION = "Z"  # Z3 is what enters the ReLU of block 3


def load_network(
    run: Run, state: dict[str, Tensor], data: Prepared, device: torch.device
) -> ResNet | Transformer:
    """The trained network in float64; InputError if the weights are not those of its architecture."""
    network = build_model(
        run.spec.model, input_shape(data, run.spec.model), data.classes, run.depth, run.seed
    )
    try:
        network.load_state_dict(state)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"{run.name}: weights do not fit the architecture ({reason}); train it anew"
        ) from None
    return network.to(device, torch.float64).eval()


@torch.no_grad()
def layers_by_batch(
    network: ResNet | Transformer, run: Run, data: Prepared, split: Split, device: torch.device
) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
    """Pass over a split: per batch, layers by name, (N, d) at the predicting token, and labels (N,)."""
    model = run.spec.model
    samples = arrange(split, data.kind, model, device, torch.float64)
    rows = max(1, ROWS // (input_shape(data, model).tokens or 1))
    for start in range(0, len(samples), rows):
        part = samples[start : start + rows]
        yield all_layers(network, part.inputs, part.lengths), part.labels


def all_layers(network: ResNet | Transformer, x: Tensor, lengths: Tensor | None = None) -> dict[str, Tensor]:
    """What `network.layers` yields, and after it each block's pre-activation as Z1, Z2, ... [S24 sec. 6]."""
    inner: dict[str, Tensor] = {}
    handles = []
    for index, block in enumerate(network.blocks, start=1):
        mlp = block.mlp if isinstance(block, Block) else block
        first = mlp.lin if isinstance(mlp, OneLayerMLP) else mlp.lin1
        assert isinstance(first, Affine)
        handles.append(first.register_forward_hook(_note(inner, f"{PRE_ACTIVATION}{index}")))
    try:
        layers = dict(network.layers(x, lengths))
    finally:
        for handle in handles:
            handle.remove()
    if isinstance(network, Transformer):
        tokens = len(network.embedding.positions)
        inner = {name: last_token(z, tokens, lengths) for name, z in inner.items()}
    return layers | inner


def _note(inner: dict[str, Tensor], name: str) -> Callable[[nn.Module, object, Tensor], None]:
    def hook(module: nn.Module, inputs: object, output: Tensor) -> None:
        inner[name] = output

    return hook
