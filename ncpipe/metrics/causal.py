"""Measure the collapse of a causal language model: the features that enter its unembedding, by next token.

n  sequences    T  their tokens    V  tokens of the vocabulary    d  feature width
"""

import contextlib
import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ncpipe.metrics.classifier import Classifier, find_classifier
from ncpipe.metrics.eval_mode import eval_mode
from ncpipe.metrics.loaders import Forward, batches_of, call, check_loader, to_device
from ncpipe.metrics.measurements import Measurements
from ncpipe.metrics.selection import IGNORE_INDEX
from ncpipe.metrics.vocabulary import DECISIONS, TokenPass, measure_vocabulary
from ncpipe.models.hook_points import is_linear, linear_layers, unwrapped, with_article
from ncpipe.system.errors import InputError

IGNORED = -100  # labels that transformers' losses leave out
SPECIAL = ("pad", "bos", "eos", "sep", "cls", "mask", "unk", "decoder_start")
OTHERWISE = "nc.measure_model(model, NAME_OF_THE_LAST_LINEAR, loader, classes='present') measures positions"
TRIED = 4  # tokens of the sequence that is tried
ROUNDING, COARSE_ROUNDING = 1e-5, 0.05  # of logits, relative; for types coarser than float32


class _UnembeddingReached(Exception):
    """Ends a forward pass at the unembedding, whose logits (V numbers a position) are not needed."""


def measure_causal_lm(
    model: nn.Module,
    loader: Iterable[Any],
    test_loader: Iterable[Any] | None = None,
    *,
    unembedding: str | nn.Module | None = None,
    min_per_class: int = 10,
    decisions: int | None = DECISIONS,
    labels_key: str = "labels",
    shift: bool | None = None,
    ignore_index: int = IGNORE_INDEX,
    attention_mask: str = "attention_mask",
    device: torch.device | str | None = None,
    forward: Forward | None = None,
    seed: int = 0,
    progress: bool | None = None,
) -> Measurements:
    """Return every metric of the features that enter the unembedding, with next tokens as classes.

    Args:
        model: a causal model of transformers, or any module with a linear unembedding, tied or not, of any
            float type.
        loader: batches, mappings with `labels_key` and whatever the model takes, or (inputs, labels); run
            through once, in eval mode and without gradients.
        test_loader: the same of held-out samples, whose NC4 is by the class means of `loader`.
        unembedding: the nn.Linear that gives the logits, or its name; None asks the model
            (`get_output_embeddings`), or the first of its modules that names one, which is then what is run.
        min_per_class: a class is a token that is the next one at least so often; others are left out.
        decisions: positions of each split that NC4, `nc3_cosine` and margins are taken on, drawn by `seed`;
            None takes all, which holds their features.
        labels_key: of the labels (n, T); `input_ids` where the inputs are the labels.
        shift: whether labels are the tokens themselves, so that the label of a position is the next one;
            False where labels are shifted already. None asks the model's own loss, and takes the labels of a
            model without one for the tokens.
        ignore_index: the label of positions that are left out. attention_mask: the key of a mask (n, T); a
            position counts where all tokens that it takes have 1.
        device: where model and inputs go; None leaves the model where it is.
        forward: how to call the model, forward(model, inputs), if not model(inputs) or model(**inputs).
        progress: whether to show a bar of batches, as in `measure_model`.

    Returns: rows of layer, split, metric and value as `measure_model`'s, and the counts `classes` (K),
    `tokens` (N), `left_out_rare`, `left_out_ignored`, `left_out_masked` and `decisions`.

    The model's mode, and all generators, are as before afterwards. Raises InputError for a model without a
    linear unembedding, one that is not causal, one whose own loss does not shift labels unless `shift` is
    given, batches without labels, labels beyond the vocabulary, features that are not finite, fewer than two
    classes, and statistics that do not fit into memory.
    """
    check_loader("loader", loader)
    called, head = _unembedding(model, unembedding)
    with eval_mode(unwrapped(model), device, loader, test_loader, forward):
        given = _alignment(called, head, shift)
        read = _Reader(
            called, head, labels_key, given, ignore_index, attention_mask, forward or call, shift is None
        )
        train = read.whole("loader", loader, decisions, seed, progress)
        test = None
        if test_loader is not None:
            test = read.whole("test_loader", test_loader, decisions, seed, progress)
        return measure_vocabulary(train, test, head.weight, head.bias, min_per_class)


@dataclass(frozen=True)
class _Reader:
    """Read features and next tokens from the batches of a loader; arguments as in `measure_causal_lm`."""

    model: nn.Module
    head: Classifier
    labels_key: str
    shift: bool
    ignore_index: int
    attention_mask: str
    forward: Forward
    check_labels: bool

    @property
    def device(self) -> torch.device:
        """Device of the statistics: that of the head, or the CPU for Apple's GPUs, which have no float64."""
        device = self.head.device(self.model)
        return torch.device("cpu") if device.type == "mps" else device

    def whole(
        self, name: str, loader: Iterable[Any], decisions: int | None, seed: int, progress: bool | None
    ) -> TokenPass:
        """Return a pass over a loader, an argument by this name."""
        positions = TokenPass(self.head.classes, self.head.width, self.device, decisions, seed)
        empty = True
        for inputs, labels in batches_of(loader, self.model, self.labels_key, name, progress):
            positions.update(*self.read(inputs, labels))
            empty = False
        if empty:
            raise InputError(f"{name}: it gave no samples; there is nothing to measure")
        return positions

    @torch.no_grad()
    def read(self, inputs: Any, labels: Tensor) -> tuple[Tensor, Tensor, int, int]:
        """Return features (p, d), next tokens (p,), and the numbers of ignored and masked positions."""
        inputs, labels = to_device(inputs, self.head.device(self.model)), labels.to(self.device)
        features = self._features(inputs).to(self.device)
        mask = inputs.get(self.attention_mask) if isinstance(inputs, Mapping) else None
        self._check_shapes(features, labels, mask)
        labels = labels.long()  # a shorter type would wrap `ignore_index`
        if self.check_labels:
            tokens = inputs.get("input_ids") if isinstance(inputs, Mapping) else inputs
            check_labels(tokens, labels, self.ignore_index)
        kept = torch.ones_like(labels, dtype=torch.bool) if mask is None else mask.to(self.device) != 0
        if self.shift:
            features, labels, kept = features[:, :-1], labels[:, 1:], kept[:, 1:] & kept[:, :-1]
        masked = int((~kept).sum())
        ignored = int((kept & (labels == self.ignore_index)).sum())
        kept = kept & (labels != self.ignore_index)
        labels = labels[kept]
        rows = self.head.classes
        if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < rows:
            wrong = int(labels[(labels < 0) | (labels >= rows)][0])
            raise InputError(
                f"labels name token {wrong}, and the unembedding has {rows} rows, 0 to {rows - 1}: give the "
                "tokenizer's own model, or labels with ignore_index where nothing is to be predicted"
            )
        return features[kept], labels, ignored, masked

    def _features(self, inputs: Any) -> Tensor:
        """Return what enters the unembedding, (n, T, d). The forward pass ends there."""
        seen: list[Tensor] = []

        def stop(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            seen.append(args[0] if args else next(iter(kwargs.values())))
            raise _UnembeddingReached

        with self.head.reading():
            hook = self.head.module.register_forward_pre_hook(stop, with_kwargs=True)
            try:
                with contextlib.suppress(_UnembeddingReached):
                    self.forward(self.model, inputs)
            finally:
                hook.remove()
        if not seen:
            raise InputError("the unembedding did not run in a forward pass; name another: unembedding=...")
        return seen[0].detach()

    def _check_shapes(self, features: Tensor, labels: Tensor, mask: Tensor | None) -> None:
        if labels.dim() != 2 or labels.is_floating_point():
            kind = f"{labels.dtype} {tuple(labels.shape)}"
            raise InputError(f"labels are {kind}; they must be whole numbers (sequences, tokens)")
        if features.shape[:-1] != labels.shape:
            raise InputError(
                f"the unembedding sees {tuple(features.shape)} and labels are {tuple(labels.shape)}; it must "
                "see a feature vector for each label"
            )
        if mask is not None and mask.shape != labels.shape:
            shapes = f"is {tuple(mask.shape)} and labels are {tuple(labels.shape)}"
            raise InputError(f"{self.attention_mask} {shapes}; they must agree")


@torch.no_grad()
def _alignment(model: nn.Module, head: Classifier, shift: bool | None) -> bool:
    """Return whether to shift labels: as given, or as the model's own loss does."""
    module = next(_naming_unembedding(model), None)
    try:
        shifts = None if module is None else own_shift(module, head.classes, head.device(model))
    except RuntimeError as error:
        shifts, reason = False, f"could not be tried ({error})"
    else:
        reason = "compares a position with the label at its own place"
    if shift is None and shifts is False:
        raise InputError(
            f"shift: the loss of {with_article(type(module).__name__)} {reason}; say whether the labels are "
            "the tokens themselves, shift=True, or the next ones, shift=False"
        )
    return shift is not False


def _naming_unembedding(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules that may name an unembedding; a wrapper, such as Lightning's, holds one."""
    return (m for m in unwrapped(model).modules() if callable(getattr(m, "get_output_embeddings", None)))


def _unembedding(model: nn.Module, wanted: str | nn.Module | None) -> tuple[nn.Module, Classifier]:
    """Return the module to run and the layer that gives its logits."""
    if wanted is not None:
        return model, find_classifier(model, wanted, "unembedding")
    problem = "names no unembedding"
    for module in _naming_unembedding(model):
        layer: Any = None
        with contextlib.suppress(NotImplementedError):
            layer = module.get_output_embeddings()  # type: ignore[operator]
        if isinstance(layer, nn.Module) and is_linear(layer):
            return module, find_classifier(module, layer, "unembedding")
        if layer is not None:
            problem = f"has {with_article(type(layer).__name__)} as unembedding"
            break
    raise InputError(
        f"the model {problem}, and a Linear is needed; name the layer that gives its logits, "
        f"unembedding=...; {linear_layers(model)}"
    )


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
    before, after = (output[0, : TRIED - 1].cpu().double() for output in (logits, changed))
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
