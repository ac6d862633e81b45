"""Collapse of all tokens of a sample: against NumPy float64, and at every layer of transformers."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import architecture, experiment_tree, image_data, measure_runs, token_data, write_params
from test_models import CPU, TRANSFORMERS, model_of, network_of
from training_cases import DIGITS

import ncpipe as nc
from ncpipe.datasets.prepared import Prepared
from ncpipe.metrics.token_collapse import TokenMeans
from ncpipe.models.build import prepare_split

LABELS = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])


def drawn(spread: float = 0.3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(3, 1, 5, generator=generator, dtype=torch.float64)
    return centres[LABELS] + spread * torch.randn(8, 4, 5, generator=generator, dtype=torch.float64)


def found_of(tokens: torch.Tensor, lengths: torch.Tensor | None = None) -> dict[str, float]:
    """Of batches of three samples."""
    means = TokenMeans(3)
    for part in torch.arange(len(tokens)).split(3):
        means.update(tokens[part], LABELS[part], None if lengths is None else lengths[part])
    return dict(means.values())


def test_both_are_their_formulas_of_padded_samples() -> None:
    """Without padding the conformance suite has them.

    Red: padding that counts; samples that weigh by their tokens; the mean of all samples as centre."""
    lengths, labels = [4, 1, 2, 3, 4, 2, 1, 3], LABELS.numpy()
    real = [row[:length] for row, length in zip(drawn().numpy(), lengths, strict=True)]
    means = np.array([tokens.mean(0) for tokens in real])
    of_sample = np.mean([((tokens - m) ** 2).sum(1).mean() for tokens, m in zip(real, means, strict=True)])
    centres = np.array([means[labels == k].mean(0) for k in range(3)])
    of_class = np.mean(
        [((tokens - centres[k]) ** 2).sum(1).mean() for tokens, k in zip(real, labels, strict=True)]
    )
    between = ((centres - centres.mean(0)) ** 2).sum(1).mean()
    metrics = found_of(drawn(), torch.tensor(lengths))
    wanted = {"nc1_tokens_of_sample": of_sample / between, "nc1_tokens_of_class": of_class / between}
    assert metrics == pytest.approx(wanted, rel=1e-12)


def test_limits() -> None:
    collapsed = torch.eye(3, 5, dtype=torch.float64)[LABELS].unsqueeze(1).expand(8, 4, 5)
    assert set(found_of(collapsed).values()) == {0.0}
    assert set(found_of(torch.ones(8, 4, 5)).values()) == {math.inf}
    mixed = collapsed + torch.tensor([-1.0, 1.0, -1.0, 1.0]).view(1, 4, 1)
    assert found_of(mixed) == pytest.approx(dict.fromkeys(found_of(mixed), 5 / (2 / 3)), rel=1e-12)
    assert all(math.isnan(value) for value in found_of(drawn() * math.nan).values())


def test_arrays_of_a_layer_are_measured() -> None:
    values = nc.measure_tokens(drawn().tolist(), LABELS.tolist(), layer="blocks.3")
    assert {row.metric: row.value for row in values.select(layer="blocks.3", split="train")} == pytest.approx(
        found_of(drawn()), rel=1e-12
    )


@pytest.mark.parametrize(("name", "norm"), TRANSFORMERS)
@pytest.mark.parametrize("data", [image_data(), token_data()], ids=["images", "padded"])
def test_the_predicting_token_is_one_of_them(name: str, norm: str, data: Prepared) -> None:
    """Red: another pass than the network's; the last block's other tokens left out."""
    model = model_of(name, norm, data)
    network = network_of(model, data, depth=2)
    split = prepare_split(data.train, data.kind, model, CPU, torch.float64)
    with torch.no_grad():
        predicting = list(network.layers(split.inputs, split.lengths))
        every = list(network.token_layers(split.inputs, split.lengths))
        again = list(network.layers(split.inputs, split.lengths))
    tokens = every[0].values.shape[1]
    last = torch.full((len(split),), tokens) if split.lengths is None else split.lengths
    assert [layer.name for layer in every] == [layer.name for layer in predicting]
    for one, layer, other in zip(predicting, every, again, strict=True):
        assert layer.values.shape[:2] == (len(split), tokens)
        torch.testing.assert_close(layer.values[torch.arange(len(split)), last - 1], one.values)
        assert torch.equal(one.values, other.values)


@pytest.mark.usefixtures("study_folder")
def test_a_sweep_has_them_at_every_layer() -> None:
    transformer = architecture("L-T11", "post", patch=4, gain=0.5)
    write_params([2], [0], t11=experiment_tree(data=DIGITS, model=transformer))
    measure_runs("t11", depths=[2])
    rows = pd.read_csv("data/metrics/t11/measurements.csv").query("metric.str.startswith('nc1_tokens')")
    layers = ["embedding", "A1", "B1", "A2", "B2", "last"]
    table = rows.pivot_table(index=["layer", "split"], columns="metric", values="value").dropna()
    assert set(table.index) == {(layer, split) for layer in layers for split in ("train", "test")}
    assert (table["nc1_tokens_of_sample"] > 0).all()
    assert (table["nc1_tokens_of_class"] > table["nc1_tokens_of_sample"]).all()
