"""Build first layers that separate all samples: lin_0; embedding and first attention [S25 App. A].

M  distinct samples    D  input size    d  width    C  tokens    V  vocabulary    p  patch size    all float64
"""

import torch
from torch import Tensor

from ncpipe.papers.s25.constructions.assumptions import paper_model
from ncpipe.study import Prepared, Run, TrainedRun, seeded_generator

State = dict[str, Tensor]


def resnet_embedding(run: Run, inputs: Tensor, draws: int) -> State:
    """Return lin_0: Gaussian weights on whitened inputs (M, D), the best of `draws` draws.

    The best draw has the largest smallest distance between samples. The proof takes any draw of a continuous
    distribution; the penalty of all blocks falls with the square of this distance, and lin_0 has no penalty.
    """
    width = paper_model(run).width
    mean = inputs.mean(0)
    _, singular, axes = torch.linalg.svd(inputs - mean, full_matrices=False)
    rank = int((singular > singular[0] * 1e-9).sum())
    whitening = axes[:rank].T / singular[:rank] * len(inputs) ** 0.5  # (D, r)
    generator = seeded_generator(run.seed, "construction embedding")
    best: State = {}
    least = 1.0
    for _ in range(draws):
        matrix = torch.randn(rank, width, generator=generator, dtype=torch.float64)
        offset = torch.randn(width, generator=generator, dtype=torch.float64)
        starts = on_sphere((inputs - mean) @ whitening @ matrix + offset)
        nearest = (starts @ starts.T).fill_diagonal_(-width).max().item() / width
        if not best or nearest < least:
            weight = (whitening @ matrix).T
            best, least = {"lin0.weight": weight, "lin0.bias": offset - weight @ mean}, nearest
    return best


def transformer_embedding(run: Run, data: Prepared, shift: float) -> State:
    """Return the embedding and the attention of the first block; its MLP and later attention are 0.

    W_QK = 0, so that attention averages; W_VO = `shift` A, where A moves the first half of the coordinates to
    the second, so that the sum over the past stands beside the present [S25 App. A]. With two matrices W_V
    keeps the first half and W_O moves it (the text's W_V = W_O = sqrt(shift) A gives W_O W_V = shift A^2 =
    0).
    """
    model = paper_model(run)
    state: State = {}
    if data.vocabulary is None:
        _, tokens, size = TrainedRun(run, {}, prepared=data).samples(data.train[:1]).inputs.shape
        generator = seeded_generator(run.seed, "construction embedding")
        half = model.width // 2
        for name, sizes in (("patches.weight", (model.width, size)), ("positions", (tokens, model.width))):
            state[f"embedding.{name}"] = torch.randn(*sizes, generator=generator, dtype=torch.float64)
    else:
        half = data.vocabulary
        state |= _token_embedding(half, data.train.inputs.shape[1], model.width)
    keep = torch.zeros(model.width, model.width, dtype=torch.float64)
    keep[:half, :half] = torch.eye(half)
    move = keep.roll(half, 0)
    if not model.two_matrix_attention:
        return state | {"blocks.0.attention.vo.weight": shift * move}
    root = shift**0.5
    return state | {"blocks.0.attention.v.weight": root * keep, "blocks.0.attention.o.weight": root * move}


def _token_embedding(vocabulary: int, context: int, width: int) -> State:
    """Return W_e and W_p that write a token as sqrt(d) 2^-(i+1) on its coordinate, i places before the last.

    W_p has a and b on the coordinates 2V+1 and 2V+2 with a + b = -1 and a^2 + b^2 = 4^(i+1) - 1 (so not both
    positive, as the text has it): the sum is 0 and the norm 2^(i+1).
    """
    positions = torch.zeros(context, width, dtype=torch.float64)
    before = torch.arange(context - 1, -1, -1, dtype=torch.float64)
    root = torch.sqrt(2 * (4 ** (before + 1) - 1) - 1)
    positions[:, 2 * vocabulary] = (root - 1) / 2
    positions[:, 2 * vocabulary + 1] = (-root - 1) / 2
    tokens = torch.zeros(vocabulary, width, dtype=torch.float64)
    tokens[:, :vocabulary] = torch.eye(vocabulary)
    return {"embedding.tokens": tokens, "embedding.positions": positions}


def on_sphere(rows: Tensor) -> Tensor:
    """Return LN of rows (M, d) without eps."""
    centred = rows - rows.mean(1, keepdim=True)
    return rows.shape[1] ** 0.5 * centred / centred.norm(dim=1, keepdim=True)
