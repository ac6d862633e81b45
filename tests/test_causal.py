"""`measure_causal_lm`: which positions count, of any model; what is left as it was and refused."""

from typing import Any

import numpy as np
import pytest
import torch
import transformers
from conftest import split_values
from torch import Tensor, nn

from ncpipe.metrics.causal import measure_causal_lm
from ncpipe.metrics.hooks import collect_features
from ncpipe.metrics.vocabulary import measure_token_arrays
from ncpipe.system.errors import InputError

TOKENS = 60


def gpt2(seed: int = 0, width: int = 16) -> nn.Module:
    torch.manual_seed(seed)
    sizes = {"n_positions": 16, "n_embd": width, "n_layer": 2, "n_head": 2}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=TOKENS, **sizes))


def llama() -> nn.Module:
    torch.manual_seed(1)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.LlamaConfig(vocab_size=TOKENS, tie_word_embeddings=False, **sizes)
    return transformers.LlamaForCausalLM(config)


def batches(count: int = 6, seed: int = 0) -> list[dict[str, Tensor]]:
    """Tokens 0 to 39 of 60; the last two sequences of a batch are padded, on either side; labels ignored."""
    draw = torch.Generator().manual_seed(seed)
    loader = []
    for _ in range(count):
        tokens = (40 * torch.rand(8, 12, generator=draw) ** 2).long()
        mask = torch.ones_like(tokens)
        mask[6, 7:] = 0
        mask[7, :4] = 0
        labels = tokens.clone()
        labels[0, :5] = -100
        loader.append({"input_ids": tokens, "attention_mask": mask, "labels": labels})
    return loader


def by_hand(model: nn.Module, loader: list[dict[str, Tensor]]) -> tuple[Tensor, np.ndarray, int, int]:
    """Hidden states of the body and next tokens, position by position."""
    features, labels, ignored, masked = [], [], 0, 0
    for batch in loader:
        with torch.no_grad():
            base = model.base_model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
        for row, tokens, mask in zip(base[0], batch["labels"], batch["attention_mask"], strict=True):
            for place in range(len(tokens) - 1):
                if not mask[place] or not mask[place + 1]:
                    masked += 1
                elif tokens[place + 1] == -100:
                    ignored += 1
                else:
                    features.append(row[place])
                    labels.append(int(tokens[place + 1]))
    return torch.stack(features), np.array(labels), ignored, masked


@pytest.mark.parametrize("make", [gpt2, llama])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_positions_that_count_are_those_by_hand(make: Any, kind: torch.dtype) -> None:
    """Tied and untied, whole and half. Red: no shift, padding kept, ignored ones counted."""
    model = make().to(kind).eval()
    rows = measure_causal_lm(model, batches(), min_per_class=4, decisions=None)
    features, labels, ignored, masked = by_hand(model, batches())
    weight = model.get_output_embeddings().weight.detach().float().numpy()
    expected = split_values(measure_token_arrays(features, labels, weight, min_per_class=4, decisions=None))
    expected |= {"left_out_ignored": ignored, "left_out_masked": masked}
    assert split_values(rows) == pytest.approx(expected, rel=1e-12, abs=1e-15, nan_ok=True)
    assert (ignored, masked) == (6 * 4, 6 * (5 + 4))
    assert expected["left_out_rare"] > 0


class Plain(nn.Module):
    """A module of one's own: inputs and shifted labels, an unembedding with a bias."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.out = nn.Embedding(TOKENS, 8), nn.Linear(8, TOKENS)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.embed(tokens).cumsum(1).tanh())


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
    assert split_values(same) == pytest.approx(split_values(rows), rel=0, abs=0, nan_ok=True)


def test_labels_may_be_the_inputs() -> None:
    model = gpt2()
    unlabelled = [{"input_ids": batch["input_ids"]} for batch in batches()]
    labelled = [{"input_ids": batch["input_ids"], "labels": batch["input_ids"]} for batch in batches()]
    rows = measure_causal_lm(model, unlabelled, labels_key="input_ids")
    assert split_values(rows) == split_values(measure_causal_lm(model, labelled))


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
    """But of four tokens, which show the alignment: V numbers a position would fill the memory."""
    model, seen = gpt2(), []
    with torch.no_grad():
        model.lm_head.register_forward_hook(lambda module, args, logits: seen.append(logits.numel()))
    measure_causal_lm(model, batches())
    assert max(seen) <= 4 * TOKENS


COUNTS = {"layers": 1, "attention_heads": 2, "ffn_dim": 12}
SMALL: dict[str, Any] = {
    **dict.fromkeys(["d_model", "hidden_size", "word_embed_proj_dim", "n_embd"], 8),
    **dict.fromkeys(["num_attention_heads", "num_key_value_heads", "num_heads", "n_head"], 2),
    **dict.fromkeys(["num_hidden_layers", "num_layers", "n_layer"], 1),
    **dict.fromkeys(["max_position_embeddings", "n_positions"], 16),
    **dict.fromkeys(["intermediate_size", "ffn_dim", "d_ff"], 12),
    **{f"{part}_{size}": count for part in ("encoder", "decoder") for size, count in COUNTS.items()},
    **dict.fromkeys(["pad_token_id", "decoder_start_token_id"], 0),
    "vocab_size": 20,
    "d_kv": 4,
    "is_decoder": True,
}
SHIFTING = ["GPT2LMHeadModel", "LlamaForCausalLM", "OPTForCausalLM", "MambaForCausalLM", "BertLMHeadModel"]
NOT_SHIFTING = ["BartForCausalLM", "MBartForCausalLM", "PegasusForCausalLM", "MarianForCausalLM"]
NOT_CAUSAL = ["BertForMaskedLM", "RobertaForMaskedLM", "DistilBertForMaskedLM"]
WITH_ENCODER = ["BartForConditionalGeneration", "T5ForConditionalGeneration", "MarianMTModel"]


def small(name: str) -> nn.Module:
    torch.manual_seed(0)
    kind = getattr(transformers, name)
    sizes = {n: v for n, v in SMALL.items() if not ("Masked" in name and n == "is_decoder")}
    return kind(kind.config_class(**sizes)).eval()


def tokens_of(count: int = 12) -> Tensor:
    return torch.randint(4, 20, (count, 8), generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def trained_on(model: nn.Module, tokens: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """The features and labels of which the model's own loss is the mean cross-entropy, of two alignments."""
    seen: list[Tensor] = []
    model.get_output_embeddings().register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    out = model(input_ids=tokens, labels=tokens)
    [features] = seen
    for by, given, labels in ((1, features[:, :-1], tokens[:, 1:]), (0, features, tokens)):
        logits = out.logits[:, : tokens.shape[1] - by]
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        if torch.isclose(loss, out.loss, rtol=1e-5):
            return given.flatten(0, 1).numpy(), labels.flatten().numpy()
    raise AssertionError("neither alignment")


@pytest.mark.parametrize("name", [*SHIFTING, *NOT_SHIFTING])
def test_the_alignment_is_that_of_the_models_own_loss(name: str) -> None:
    """Red: labels that are shifted once more than the model has learned."""
    model, tokens = small(name), tokens_of()
    loader = [{"input_ids": part, "labels": part} for part in tokens.split(5)]
    options: dict[str, Any] = {"min_per_class": 1}
    if name in NOT_SHIFTING:
        with pytest.raises(
            InputError, match=r"^shift: the loss of a \w+ compares a position with the label at"
        ):
            measure_causal_lm(model, loader, **options)
        options["shift"] = False
    features, labels = trained_on(model, tokens)
    rows = measure_token_arrays(features, labels, min_per_class=1)
    values = split_values(measure_causal_lm(model, loader, **options))
    for metric in ("cdnv", "nc1_trace_ratio", "tokens"):
        expected = split_values(rows).get(metric, len(labels))
        assert values[metric] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("name", "shift"),
    [
        *((name, None) for name in (*NOT_CAUSAL, *WITH_ENCODER)),
        (NOT_CAUSAL[0], True),
        (WITH_ENCODER[0], False),
    ],
)
def test_models_that_are_not_causal_are_refused(name: str, shift: bool | None) -> None:
    """Red: a token predicted from what has seen it."""
    model, tokens = small(name), tokens_of()
    with pytest.raises(InputError, match=r"which is not causal|an encoder-decoder, not a causal model"):
        measure_causal_lm(model, [{"input_ids": tokens, "labels": tokens}], min_per_class=1, shift=shift)


def test_a_model_that_fails_the_trial_asks_for_the_alignment() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lm = gpt2()

        def get_output_embeddings(self) -> nn.Module:
            return self.lm.lm_head

        def forward(self, tokens: Tensor, labels: Tensor | None = None) -> Tensor:
            return self.lm(tokens).logits

    loader = [(batch["input_ids"], batch["labels"]) for batch in batches()]
    with pytest.raises(InputError, match=r"^shift: the loss of a Two could not be tried \(.*\); say"):
        measure_causal_lm(Two(), loader)
    rows = measure_causal_lm(Two(), loader, shift=True)
    unmasked = [{"input_ids": tokens, "labels": labels} for tokens, labels in loader]
    assert split_values(rows) == split_values(measure_causal_lm(gpt2(), unmasked))


def test_labels_that_are_the_next_tokens_already_are_named() -> None:
    """Of a module of one's own and of transformers. Red: labels shifted twice."""
    tokens = tokens_of()
    for model, key in ((Plain(), "out"), (small("GPT2LMHeadModel"), None)):
        loader: list[Any] = [{"input_ids": tokens[:, :-1], "labels": tokens[:, 1:]}]
        if key:
            loader = [(tokens[:, :-1], tokens[:, 1:])]
        with pytest.raises(
            InputError, match=r"^shift: the labels are the next tokens already; give shift=False"
        ):
            measure_causal_lm(model, loader, unembedding=key, min_per_class=1)
        assert measure_causal_lm(model, loader, unembedding=key, min_per_class=1, shift=False)["tokens"] == 84


@pytest.mark.parametrize("name", ["BartForConditionalGeneration", "T5ForConditionalGeneration"])
def test_decoders_inputs_are_made_of_the_labels(name: str) -> None:
    """Red: labels taken from the inputs, so that the decoder reads what the encoder does."""
    model, tokens, answers = small(name), tokens_of(), tokens_of(24)[12:]
    with torch.no_grad():
        out = model(input_ids=tokens, labels=answers, output_hidden_states=True)
    loader = [{"input_ids": tokens, "labels": answers}]
    arrays = collect_features(model, "lm_head", [{**loader[0]}], select=lambda values, inputs: values)
    got = arrays["features"] @ arrays["weight"].T
    np.testing.assert_allclose(got, out.logits.flatten(0, 1).numpy(), atol=1e-4)
