"""Tell from a language model itself which position its own loss compares with which label.

V  tokens of the vocabulary    T  tokens of a sequence
"""

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from ncpipe.models.hook_points import with_article
from ncpipe.system.errors import InputError

IGNORED = -100  # labels that transformers' losses leave out
SPECIAL = ("pad", "bos", "eos", "sep", "cls", "mask", "unk", "decoder_start")
OTHERWISE = "nc.measure_model(model, NAME_OF_THE_LAST_LINEAR, loader, classes='present') measures positions"
TRIED = 4  # tokens of the sequence that is tried
ROUNDING, COARSE_ROUNDING = 1e-5, 0.05  # of logits, relative; for types coarser than float32


def own_shift(model: nn.Module, vocabulary: int, device: torch.device) -> bool | None:
    """Return whether a causal model's own loss shifts its labels; None where it has no loss.

    A model has one if it takes `labels`, as those of transformers do. Two sequences of four tokens are tried,
    as neither the name of a class nor its configuration tells. Raises InputError for encoder-decoders, for
    models that are not causal, as masked ones; RuntimeError where the trial fails.
    """
    kind = with_article(type(model).__name__)
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        raise InputError(f"the model is {kind}, an encoder-decoder, not a causal model; {OTHERWISE}")
    if "labels" not in inspect.signature(model.forward).parameters:
        return None
    ids, other = _sequences(model, vocabulary, device)
    labels = torch.full_like(ids, IGNORED)
    labels[0, 0] = ids[0, 1]  # of the first position, which a loss that shifts leaves out
    try:
        loss, logits = _loss_and_logits(model(input_ids=ids, labels=labels))
        changed = _loss_and_logits(model(input_ids=other, labels=labels))[1]
    except Exception as error:
        reason = " ".join(str(error).split())[:100] or type(error).__name__
        raise RuntimeError(reason) from error
    before, after = (output[0, : TRIED - 1].double() for output in (logits, changed))
    coarse = torch.finfo(logits.dtype).eps > torch.finfo(torch.float32).eps
    allowed = (COARSE_ROUNDING if coarse else ROUNDING) * before.abs().max()
    if bool(((before - after).abs() > allowed).any()):
        raise InputError(
            f"the model is {kind}, which is not causal: a position sees the tokens after it; {OTHERWISE}"
        )
    return not (bool(loss.isfinite()) and float(loss) > 0)


def check_labels(tokens: Any, labels: Tensor, ignore_index: int) -> None:
    """Raise InputError for labels (n, T) that are the next ones of tokens (n, T), and so need no shift."""
    if not isinstance(tokens, Tensor) or tokens.shape != labels.shape:
        return
    ignored, tokens = labels == ignore_index, tokens.to(labels.device)
    same = bool((ignored | (labels == tokens)).all())
    if not same and bool((ignored[:, :-1] | (labels[:, :-1] == tokens[:, 1:])).all()):
        raise InputError("shift: the labels are the next tokens already; give shift=False")


def _sequences(model: nn.Module, vocabulary: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return two sequences of tokens (1, T) that differ in the last one, without special tokens."""
    config = getattr(model, "config", None)
    special: set[Any] = set()
    for name in SPECIAL:
        value = getattr(config, f"{name}_token_id", None)
        special |= set(value) if isinstance(value, list | tuple) else {value}
    most = getattr(config, "vocab_size", None)
    vocabulary = min(vocabulary, most) if isinstance(most, int) else vocabulary
    plain = [token for token in range(vocabulary) if token not in special][: TRIED + 1]
    tokens = [plain[place % len(plain)] for place in range(TRIED + 1)]
    pair = torch.tensor([tokens[:TRIED], [*tokens[: TRIED - 1], tokens[TRIED]]], device=device)
    return pair[:1], pair[1:]


def _loss_and_logits(output: Any) -> tuple[Tensor, Tensor]:
    if isinstance(output, tuple):
        return output[0], output[1]
    return output.loss, output.logits
