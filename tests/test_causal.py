"""`measure_causal_lm`: which positions count, of any model; what is left as it was and refused."""

from typing import Any

import numpy as np
import pytest
import torch
from conftest import split_values
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from ncpipe.metrics.causal import measure_causal_lm
from ncpipe.metrics.vocabulary import measure_token_arrays

TOKENS = 60


def gpt2(seed: int = 0, width: int = 16) -> GPT2LMHeadModel:
    torch.manual_seed(seed)
    sizes = {"n_positions": 16, "n_embd": width, "n_layer": 2, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(vocab_size=TOKENS, **sizes))


def llama() -> LlamaForCausalLM:
    torch.manual_seed(1)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=TOKENS, tie_word_embeddings=False, **sizes))


def batches(count: int = 6, seed: int = 0) -> list[dict[str, Tensor]]:
    """Tokens 0 to 39 of 60; the last two sequences of a batch are padded, on either side; labels ignored."""
    draw = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        tokens = (40 * torch.rand(8, 12, generator=draw) ** 2).long()
        mask = torch.ones_like(tokens)
        mask[6, 7:] = 0
        mask[7, :4] = 0
        labels = tokens.clone()
        labels[0, :5] = -100
        found.append({"input_ids": tokens, "attention_mask": mask, "labels": labels})
    return found


def by_hand(model: nn.Module, loader: list[dict[str, Tensor]]) -> tuple[np.ndarray, np.ndarray, int, int]:
    """Hidden states of the body and next tokens, position by position."""
    features, labels, ignored, masked = [], [], 0, 0
    for batch in loader:
        with torch.no_grad():
            base = model.base_model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
        for row, tokens, mask in zip(base[0].float(), batch["labels"], batch["attention_mask"], strict=True):
            for place in range(len(tokens) - 1):
                if not mask[place] or not mask[place + 1]:
                    masked += 1
                elif tokens[place + 1] == -100:
                    ignored += 1
                else:
                    features.append(row[place].numpy())
                    labels.append(int(tokens[place + 1]))
    return np.stack(features), np.array(labels), ignored, masked


@pytest.mark.parametrize("make", [gpt2, llama])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_positions_that_count_are_those_by_hand(make: Any, kind: torch.dtype) -> None:
    """Tied and untied, whole and half. Red: no shift, padding kept, ignored ones counted."""
    model = make().to(kind).eval()
    rows = measure_causal_lm(model, batches(), min_per_class=4, decisions=None)
    features, labels, ignored, masked = by_hand(model, batches())
    weight = model.get_output_embeddings().weight.detach().float().numpy()
    wanted = split_values(measure_token_arrays(features, labels, weight, min_per_class=4, decisions=None))
    wanted |= {"left_out_ignored": ignored, "left_out_masked": masked}
    assert split_values(rows) == pytest.approx(wanted, rel=1e-12, abs=1e-15, nan_ok=True)
    assert (ignored, masked) == (6 * 4, 6 * (5 + 4))
    assert wanted["left_out_rare"] > 0


class Plain(nn.Module):
    """A module of one's own: inputs and shifted labels, an unembedding with a bias."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.out = nn.Embedding(TOKENS, 8), nn.Linear(8, TOKENS)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.out(self.embed(tokens).cumsum(1).tanh())
        return logits


def test_a_module_of_ones_own() -> None:
    """Labels are shifted already; `test_loader` gives the rows of the split test."""
    model, tokens = Plain(), torch.randint(30, (20, 9), generator=torch.Generator().manual_seed(0))
    loader = [(tokens[:, :-1], tokens[:, 1:])]
    rows = measure_causal_lm(model, loader, loader, unembedding="out", shift=False, min_per_class=1)
    assert split_values(rows)["tokens"] == 160
    assert split_values(rows, "test")["cdnv"] == split_values(rows)["cdnv"]
    same = measure_causal_lm(
        model,
        [{"tokens": tokens[:, :-1], "next": tokens[:, 1:]}],
        unembedding=model.out,
        shift=False,
        labels_key="next",
        min_per_class=1,
    )
    assert split_values(same) == split_values(rows)


def test_labels_may_be_the_inputs() -> None:
    model = gpt2()
    whole = [{"input_ids": batch["input_ids"]} for batch in batches()]
    both = [{"input_ids": batch["input_ids"], "labels": batch["input_ids"]} for batch in batches()]
    found = measure_causal_lm(model, whole, labels_key="input_ids")
    assert split_values(found) == split_values(measure_causal_lm(model, both))


def test_the_model_is_left_as_it_was() -> None:
    """Mode, hooks and generator. Red: a hook left behind."""
    model = gpt2().train()
    state = torch.get_rng_state()
    measure_causal_lm(model, batches())
    assert model.training
    assert model.transformer.h[0].training
    assert not model.lm_head._forward_pre_hooks
    assert torch.equal(torch.get_rng_state(), state)


def test_logits_are_not_computed() -> None:
    """The forward pass ends at the unembedding, whose V numbers a position would fill the memory."""
    model = gpt2()
    with torch.no_grad():
        model.lm_head.register_forward_hook(lambda *_: pytest.fail("the unembedding ran"))
    measure_causal_lm(model, batches())
